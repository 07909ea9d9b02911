"""The text form of traces."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import ALL, DType, f32, i32, index
from khaljit.tracer.errors import ArgumentValueError, Site
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    Element,
    Memory,
    Note,
    Options,
    ScalarParam,
    Space,
    Trace,
    Value,
    regions,
    values,
)
from khaljit.tracer.numerics import memory_type
from khaljit.tracer.ops import NORMAL, OPS, Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.text import canonical, describe, print_trace
from khaljit.tracer.verify import verify
from tests.building import edge_values
from tests.random_traces import random_trace


@pytest.mark.parametrize("seed", range(120))
def test_a_random_trace_parses_back_to_the_same_text_and_meaning(seed: int) -> None:
    trace = random_trace(seed, watch=seed % 3 == 0, collectives=seed % 2 == 0).trace
    text = print_trace(trace)
    back = parse(text)
    assert print_trace(back) == text
    assert canonical(back) == canonical(trace)
    assert canonical(parse(canonical(trace).decode())) == canonical(trace)
    assert back.arrays == trace.arrays
    assert back.scalars == trace.scalars
    assert back.options == trace.options
    assert (back.workgroup, back.index_bits) == (trace.workgroup, trace.index_bits)
    assert _shape(back) == _shape(trace)


def _shape(trace: Trace) -> list[tuple[object, ...]]:
    """Everything that a trace's effects and the values below them are, numbered by first use."""
    order = values(trace.body)
    numbers = {value: number for number, value in enumerate(order)}
    blocks = {region: number for number, region in enumerate(regions(trace.body))}
    return [
        (
            value.op,
            value.dtype,
            value.attr,
            tuple(numbers[arg] for arg in value.args),
            tuple(blocks[region] for region in value.regions),
        )
        for value in order
    ]


def test_the_text_reads_as_it_should() -> None:
    text = """kernel "<lambda>" workgroup=8,2,1 index=64 contract debug
array a: i32[?, ?] contiguous aligned same_shape=0 same_view=0
array pos.x: f32x3[?] same_shape=1 same_view=1
array array2 "items[0]": struct(size=16 align=4 0:f32 8:i32)[] aligned same_shape=2 same_view=2
scalar limit: i32
scalar scalar1 "true": f32
shared0: i32[8, 8]
table0: i16[2] = 01ff0200
local0: f32[4]
{
  %0: index = id global 0
  %1: index = stride a 0
  %2: i32 = atomic compare_exchange acq_rel a[%0, %1] <- limit, 1:i32
  store shared0[%2, 0:i32] unchecked <- %2
  barrier workgroup
  %3: i16 = load table0[%2]
  %4: f32 = cast %3
  store local0[1:index] <- %4
  %5: f32 = load local0[%0]
  %6: i64 = mul 6:i64, 2:i64
  %7: bool = ge %3, -1:i16
  %8: f32 = load pos.x at %6 if %7 leaf=4
  %9: i32 = load array2 at %6 leaf=8 unchecked
  %10: bool = subgroup any %7
  %11: f32, %12: i32 = if %10 {
    %13: f32 = sub %8, %5
    yield %13, %9
  } else {
    yield scalar1, limit
  }
  if true {
    return
  }
  %14: i32 = loop (%15: i32 = %12, %16: f32 = 0.5:f32) {
    assert "at \\"%s\\"\\n" %7, %15
    %17: bool = lt %15, limit
    if %17 {
      continue %12, %11
    }
    print "{}" %16
    break %15
  }
  store a at %6 unchecked <- %14
  yield
}
"""
    assert print_trace(parse(text)) == text


@pytest.mark.parametrize("dtype", [*ALL, index], ids=str)
def test_constants_keep_their_bits(dtype: DType) -> None:
    rng = np.random.default_rng()
    raw = rng.integers(0, 1 << 63, 3, np.int64) if dtype is index else edge_values(dtype, 400, rng)
    kind = np.dtype(np.int64) if dtype is index else memory_type(dtype)
    bits = {int(x) for x in raw.astype(kind).view(f"u{kind.itemsize}")}
    builder = Builder()
    builder.open()
    for one in bits:
        builder.effect(Op.PRINT, (builder.const_bits(dtype, one),), Note(""))
    builder.end(Op.YIELD)
    trace = Trace("k", (), (), None, 32, Options(), builder.close())
    back = parse(print_trace(trace))
    assert [effect.args[0].attr for effect in back.body.body] == [
        effect.args[0].attr for effect in trace.body.body
    ]
    assert all(effect.args[0].dtype is dtype for effect in back.body.body)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1:f32"),
        (3.0, "3.0:f32"),
        (-2.5e-30, "-2.5e-30:f32"),
        (-0.0, "0x80000000:f32"),
        (float("inf"), "0x7f800000:f32"),
        (1 / 3, "0.333333343:f32"),
        (1e20, "1e+20:f32"),
    ],
)
def test_floats_are_short_decimals_where_those_are_exact(number: float, text: str) -> None:
    builder = Builder()
    builder.open()
    builder.effect(Op.PRINT, (builder.const(f32, number),), Note(""))
    builder.end(Op.YIELD)
    trace = Trace("k", (), (), None, 32, Options(), builder.close())
    assert f'print "" {text}\n' in print_trace(trace)


def _small(name: str = "k", site: Site | None = None, note: Note | None = None) -> Trace:
    builder = Builder()
    builder.at = site
    builder.open()
    memory = Memory(Space.ARRAY, 0, Element.scalar(i32), (None,))
    i = builder.id("global")
    total = builder.pure(Op.ADD, (builder.scalar(0, i32), builder.const(i32, 3)))
    builder.store(builder.memory(memory), (i,), total, Access())
    builder.effect(Op.PRINT, (), note or Note("x"))
    builder.end(Op.YIELD)
    arrays = (ArrayParam(f"{name}_a", memory, True, True, 0, 0),)
    scalars = (ScalarParam(f"{name}_s", i32),)
    return Trace(name, arrays, scalars, (4, 1, 1), 32, Options(), builder.close())


def test_the_canonical_text_knows_no_names_lines_or_sites() -> None:
    plain = _small()
    other = _small("other", Site("file.py", 7, 1, 2), Note("x", 9))
    assert canonical(plain) == canonical(other)
    assert print_trace(plain) != print_trace(other)


def test_the_canonical_text_tells_everything_else_apart() -> None:
    trace = _small()
    (param,) = trace.arrays
    changed = [
        dataclasses.replace(trace, workgroup=(8, 1, 1)),
        dataclasses.replace(trace, workgroup=None),
        dataclasses.replace(trace, index_bits=64),
        *(
            dataclasses.replace(trace, options=Options(**{name: value}))
            for name, value in (
                ("contract", False),
                ("fastmath", True),
                ("unchecked", True),
                ("debug", True),
            )
        ),
        dataclasses.replace(trace, arrays=(dataclasses.replace(param, contiguous=False),)),
        dataclasses.replace(trace, arrays=(dataclasses.replace(param, aligned=False),)),
        dataclasses.replace(trace, scalars=(*trace.scalars, ScalarParam("t", i32))),
        _small(note=Note("y")),
    ]
    texts = {canonical(trace), *(canonical(other) for other in changed)}
    assert len(texts) == 1 + len(changed)


def test_the_text_is_the_same_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from random_traces import random_trace; from khaljit.tracer.text import canonical\n"
        "for seed in range(6): print(canonical(random_trace(seed).trace).hex())"
    )
    here = "".join(f"{canonical(random_trace(seed).trace).hex()}\n" for seed in range(6))
    for salt in ("0", "1"):
        found = subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parent)],
            env={"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout == here


def test_equal_names_are_told_apart() -> None:
    text = (
        'kernel k index=32\narray array0 "x": i32[?] same_shape=0 same_view=0\n'
        'scalar scalar0 "x": i32\n{\n  store array0[scalar0] <- scalar0\n  yield\n}\n'
    )
    trace = parse(text)
    assert (trace.arrays[0].name, trace.scalars[0].name) == ("x", "x")
    assert print_trace(trace) == text


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (("kernel k", "kernal k"), 1, "'kernel' expected"),
        (("index=32", "index=x"), 1, "a number expected"),
        (("array a:", "matrix a:"), 2, "declares nothing"),
        (("scalar n: i32", "scalar n: i33"), 3, "there is no type 'i33'"),
        (("add n, 1:i32", "plus n, 1:i32"), 5, "no such operation"),
        (("add n, 1:i32", "add n, m"), 5, "'m' is not defined"),
        (("add n, 1:i32", "add n, %7"), 5, "'%7' is not defined"),
        (("add n, 1:i32", "add n, 1.5:i32"), 5, "is not a constant"),
        (("add n, 1:i32", "add n 1:i32"), 5, "is one too many"),
        (("%1: bool", "%0: bool"), 6, "%0 is defined twice"),
        (("if %1 {", "if %1"), 7, "'{' expected"),
        (("if %1 {", "if %1 { ~"), 7, "column 9 is not understood"),
        (("a[%0] <-", "a(%0) <-"), 8, "'[' expected"),
        (("a[%0] <- n", "a[%0] <-"), 8, "something is missing"),
        (("\n  yield\n", "\n  barrier workgroup\n"), 10, "ends in yield"),
        (("  yield\n}", "  yield\n  yield\n}"), 10, "nothing follows the end"),
        (("yield\n}\nyield", "yield\n}\n%2: i32 = const 4\nyield"), 11, "no line of its own"),
        (("yield\n}\nyield\n}\n", "yield\n}\nyield\n"), 12, "the text ends inside a region"),
        (("yield\n}\nyield\n}\n", "yield\n}\nyield\n}\nyield\n"), 13, "nothing follows the kernel"),
    ],
)
def test_a_malformed_text_is_refused_with_its_line(
    change: tuple[str, str], line: int, reason: str
) -> None:
    text = (
        "kernel k index=32\narray a: i32[?] same_shape=0 same_view=0\nscalar n: i32\n{\n"
        "%0: i32 = add n, 1:i32\n%1: bool = lt %0, n\nif %1 {\n  store a[%0] <- n\n"
        "  yield\n}\nyield\n}\n"
    )
    parse(text)
    assert change[0] in text
    with pytest.raises(ArgumentValueError) as caught:
        parse(text.replace(*change, 1))
    assert str(caught.value).startswith(f"line {line} of a trace's text: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("seed", range(12))
def test_no_slip_of_the_pen_raises_anything_else(seed: int) -> None:
    rng = random.Random()
    text = print_trace(random_trace(seed, collectives=True, size=12).trace)
    for _ in range(60):
        place = rng.randrange(min(len(text), 2000))
        typed = rng.choice(["", *'0x%:,[]{}()"= \n-.abif'])
        changed = text[:place] + typed + text[place + rng.randrange(2) :]
        with contextlib.suppress(ArgumentValueError):
            parse(changed)


def test_every_pure_operation_is_printed_and_read_by_its_name() -> None:
    for op, info in OPS.items():
        if info.effect or info.result is None:
            continue
        args = ", ".join(["1.5:f32"] * (info.arity or 0))
        text = f'kernel k index=32\n{{\n  %0: f32 = {op.value} {args}\n  print "" %0\n  yield\n}}\n'
        trace = parse(text)
        assert trace.body.body[0].args[0].op is op
        assert print_trace(trace) == text


@pytest.mark.parametrize("right", ["div normal 1.5:f32, 2.5:f32", "sqrt normal 1.5:f32"])
def test_quotients_and_roots_say_when_they_are_normal(right: str) -> None:
    text = f'kernel k index=32\n{{\n  %0: f32 = {right}\n  print "" %0\n  yield\n}}\n'
    trace = parse(text)
    verify(trace)
    assert trace.body.body[0].args[0].attr == NORMAL
    assert print_trace(trace) == text


def test_a_value_is_described_even_when_it_is_broken() -> None:
    assert describe(Value(Op.ADD, None, (Value(Op.LOOP, None),), 3)) == "add 3 (<loop>)"
    one = Value(Op.CONST, i32, (), 7)
    site = Site("kernel.py", 12)
    assert describe(Value(Op.NEG, i32, (one,), at=site)) == "neg: i32 (7) (kernel.py:12)"
