"""Memory accesses of the CUDA code generator: what is joined, carried through loops, or widened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.tracer.dtypes import (
    DType,
    f16,
    f32,
    f64,
    i32,
)
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Options,
)
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.record import ScalarArgument
from tests.ptx_tools import (
    Argument,
    argument,
    assemble,
    copy_kernel,
    emit,
    matmul_trace,
    recorded,
    run,
)

# Memory.


@pytest.mark.parametrize(
    ("count", "dtype", "wanted"), [(4, f32, "v4.b32"), (2, f64, "v2.b64"), (2, f32, "v2.b32")]
)
def test_scalars_side_by_side_are_one_access(count: int, dtype: DType, wanted: str) -> None:
    text = emit(copy_kernel(count, dtype)).text
    assert text.count(f"ld.global.nc.{wanted}") == 1
    assert text.count(f"ld.global.{wanted}") == 1
    assert text.count(f"st.global.{wanted}") == 1
    assert len(re.findall(r"\bld\.global|\bst\.global", text)) == 3


def test_vectors_of_three_and_arrays_that_are_not_aligned_are_read_one_by_one() -> None:
    assert ".v" not in emit(copy_kernel(3)).text.replace(".version", "").replace(".visible", "")
    unaligned = emit(copy_kernel(4, aligned=False)).text
    assert ".v4" not in unaligned


def test_what_is_written_is_not_read_through_the_read_only_path() -> None:
    text = emit(copy_kernel(1, aligned=False)).text
    assert len(re.findall(r"ld\.global\.nc\.b32", text)) == 1
    assert len(re.findall(r"ld\.global\.b32", text)) == 1

    def same(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        y[i] = x[i]

    arguments: list[tuple[str, Argument]] = [
        ("x", argument(f32)),
        ("y", argument(f32, same_shape=0, same_view=0)),
    ]
    assert ".nc" not in emit(recorded(same, arguments)).text


def test_accesses_are_not_joined_across_what_may_touch_the_same_place(
    rng: np.random.Generator,
) -> None:
    def tangle(x: Any, k: Any) -> None:
        x[0] = 1.0
        first = x[k]
        x[1] = 2.0
        x[2] = first
        x[3] = x[1] + x[k]

    trace = recorded(tangle, [("x", argument(f32, aligned=True)), ("k", ScalarArgument(i32))])
    for k in range(5):
        start = rng.normal(size=4).astype(np.float32)
        got, want = start.copy(), start.copy()
        run(trace, [got], [k], (1, 1, 1))
        interpret(trace, [want], [k], (1, 1, 1))
        assert (got == want).all()


@pytest.mark.parametrize("function", [kj.exp, kj.log, kj.sin])
def test_functions_with_a_branch_of_their_own_go_four_to_a_thread(function: Any) -> None:
    def body(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = function(x[i])

    arguments: list[tuple[str, Argument]] = [
        ("x", argument(f32, aligned=True)),
        ("out", argument(f32, aligned=True, same_shape=0)),
    ]
    together = recorded(body, arguments)
    assert emit(together).text.count("ld.global.nc.v4.b32") == 1
    assert emit(together).text.count("st.global.v4.b32") == 1
    alone = recorded(body, arguments, workgroup=(32, 1, 1))
    x = np.array([0, 1, -1, 2.5, np.inf, np.nan, 1e-40, 1e30, 80, -90, 0.5], np.float32)
    x = np.concatenate([x, x[::-1]])
    got, want = np.zeros_like(x), np.zeros_like(x)
    run(together, [x, got], [], (x.size, 1, 1))
    run(alone, [x, want], [], (1, 1, 1))
    np.testing.assert_array_equal(got, want)


def test_stores_at_multiples_of_four_are_joined() -> None:
    def fill(out: Any) -> None:
        i = kj.global_id(0) * 4
        if i + 3 < out.size:
            for k in kj.unroll(range(4)):
                out[i + k] = kj.f32(k)

    options = Options(unchecked=True)
    trace = recorded(fill, [("out", argument(f32, aligned=True))], options=options)
    assert emit(trace).text.count("st.global.v4.b32") == 1
    got, want = np.zeros(41, np.float32), np.zeros(41, np.float32)
    run(trace, [got], [], (11, 1, 1))
    interpret(trace, [want], [], (11, 1, 1))
    assert (got == want).all()


def loops(text: str) -> list[str]:
    """The innermost loops of a kernel."""
    found = []
    for match in re.finditer(r"^(\$L\d+):\n", text, re.MULTILINE):
        body = text[match.end() :].partition(f"bra.uni {match[1]};")
        if body[1] and not re.search(r"^\$L\d+:\n.*\bbra\.uni", body[0], re.MULTILINE):
            found.append(body[0])
    return found


@pytest.mark.parametrize("bits", [32, 64])
def test_pointers_are_carried_through_a_loop(bits: int, rng: np.random.Generator) -> None:
    trace = matmul_trace(bits)
    turn, _ = loops(emit(trace).text)
    assert "mul.wide" not in turn
    assert "mad.lo.s64" not in turn
    assert turn.count("add.s64 %d") >= 2
    a, b = (rng.normal(size=(19, 19)).astype(np.float32) for _ in range(2))
    got, want = np.zeros((19, 19), np.float32), np.zeros((19, 19), np.float32)
    run(trace, [a, b, got], [], (2, 2, 1))
    interpret(contract(trace), [a, b, want], [], (2, 2, 1))
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.parametrize("start", [0, -3, -(2**31), 2**31 - 2])
@pytest.mark.parametrize("step", [1, 2**30, 2**31 - 1, -1])
def test_offsets_that_wrap_stay_where_the_guard_says(start: int, step: int) -> None:
    """A pointer that is carried past 2^31 elements and back would point elsewhere."""

    def wrap(x: Any, out: Any, start: Any, factor: Any) -> None:
        total = 0
        t = start
        for _ in range(7):
            total = total * 3 + x[t * factor]
            t = t + kj.i32(step)
        out[0] = total

    arguments: list[tuple[str, Argument]] = [("x", argument(i32)), ("out", argument(i32))]
    scalars: list[tuple[str, Argument]] = [
        ("start", ScalarArgument(i32)),
        ("factor", ScalarArgument(i32)),
    ]
    trace = recorded(wrap, [*arguments, *scalars])
    x = np.arange(1, 9, dtype=np.int32)
    for factor in (1, 2, 3, 2**30, -1):
        got, want = np.zeros(1, np.int32), np.zeros(1, np.int32)
        run(trace, [x, got], [start, factor], (1, 1, 1))
        interpret(trace, [x, want], [start, factor], (1, 1, 1))
        assert (got == want).all()


def test_a_counter_that_jumps_over_its_limit_does_not_carry_guarded_pointers() -> None:
    def jump(x: Any, out: Any, n: Any) -> None:
        t, total = 0, 0
        while t < n:
            total += x[t]
            t += 3
        out[0] = total

    arguments: list[tuple[str, Argument]] = [
        ("x", argument(i32)),
        ("out", argument(i32)),
        ("n", ScalarArgument(i32)),
    ]
    (loop,) = loops(emit(recorded(jump, arguments)).text)
    assert "mul.wide" in loop


# Loops by steps, and several elements a thread.


def strided(x: Any, out: Any, start: Any, stop: Any, step: Any) -> None:
    total = 0
    for k in range(start, stop, step):
        total = total * 3 + x[k] + 1
    out[0] = total


@pytest.mark.parametrize("step", [None, 2, 3, 1 << 30])
def test_loops_by_a_step_end_where_they_ended(step: int | None) -> None:
    arguments: list[tuple[str, Argument]] = [("x", argument(i32)), ("out", argument(i32))]
    arguments += [(name, ScalarArgument(i32)) for name in ("start", "stop", "step")]

    def fixed(x: Any, out: Any, start: Any, stop: Any, by: Any) -> None:
        strided(x, out, start, stop, step)

    trace = recorded(strided if step is None else fixed, arguments)
    most = 2**31 - 1
    x = np.arange(9, dtype=np.int32)
    for start, stop in ((0, 9), (0, 0), (5, 2), (-4, 7), (most - 5, most), (-most - 1, -most + 9)):
        for by in (1, 2, 7, most) if step is None else (0,):
            got, want = np.zeros(1, np.int32), np.zeros(1, np.int32)
            run(trace, [x, got], [start, stop, by], (1, 1, 1))
            interpret(trace, [x, want], [start, stop, by], (1, 1, 1))
            assert (got == want).all(), (start, stop, by)


def test_loops_over_the_grid_count_their_iterations(rng: np.random.Generator) -> None:
    def total(x: Any, out: Any) -> None:
        sum_ = 0
        for k in kj.grid_stride(x.size):
            sum_ += x[k]
        kj.atomic_add(out, 0, sum_)

    arguments: list[tuple[str, Argument]] = [("x", argument(i32)), ("out", argument(i32))]
    for bits in (32, 64):
        trace = recorded(total, arguments, workgroup=(32, 1, 1), index_bits=bits)
        text = emit(trace).text
        (loop,) = loops(text)
        assert f"div.u{bits}" in text
        assert f"div.u{bits}" not in loop
        assert len(re.findall(r"\bbra\b", loop)) == 1
        for size in (0, 1, 63, 64, 65, 1000):
            x, out = rng.integers(-99, 99, size).astype(np.int32), np.zeros(1, np.int32)
            run(trace, [x, out], [], (2, 1, 1))
            assert out[0] == x.sum()


def scaled(x: Any, y: Any, a: Any) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = a * x[i] + y[i]


def scaled_without_a_guard(x: Any, y: Any, a: Any) -> None:
    i = kj.global_id(0)
    y[i] = kj.select(x[i] > 0, a, y[i])


def scaled_after_a_return(x: Any, y: Any, a: Any) -> None:
    i = kj.global_id(0)
    if i >= x.size or i >= y.size:
        return
    y[i] = x[i] * a


@pytest.mark.parametrize(("dtype", "elements"), [(f32, 4), (f64, 2), (f16, 4), (i32, 4)], ids=str)
@pytest.mark.parametrize("function", [scaled, scaled_without_a_guard, scaled_after_a_return])
def test_threads_take_several_elements_where_accesses_are_wide_then(
    function: Any,
    dtype: DType,
    elements: int,
    rng: np.random.Generator,
) -> None:
    bits, folded = int(rng.choice([32, 64])), bool(rng.integers(2))
    arguments: list[tuple[str, Argument]] = [
        ("x", argument(dtype, aligned=True)),
        ("y", argument(dtype, aligned=True)),
        ("a", ScalarArgument(dtype)),
    ]
    trace = recorded(function, arguments, index_bits=bits)
    program = emit(trace)
    assert program.item == (elements, 1, 1)
    assert f".v{elements}." in program.text
    for count in (1, 4, 5, int(rng.integers(6, 300)), 1025):
        for size, other in ((count, count), (count - 1, count + 3), (count + 9, count - 1)):
            x, start = (rng.integers(-9, 9, n).astype(dtype.numpy) for n in (size, other))
            got, want = start.copy(), start.copy()
            run(trace, [x, got], [3], (count, 1, 1), folded=folded)
            interpret(contract(trace), [x, want], [3], (count, 1, 1))
            assert (got == want).all(), (count, size, other)


@pytest.mark.parametrize(
    ("dtype", "steps", "elements"), [(f32, 80, 4), (f32, 200, 1), (f64, 20, 2), (f64, 80, 1)]
)
def test_threads_take_one_element_where_much_is_computed(
    dtype: DType, steps: int, elements: int
) -> None:
    def poly(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            value = x[i]
            for k in kj.unroll(range(steps)):  # two operations each, with contraction one
                value = value * x[i] + float(k)
            y[i] = value

    arguments: list[tuple[str, Argument]] = [
        (name, argument(dtype, aligned=True)) for name in ("x", "y")
    ]
    options = Options(contract=False)
    assert emit(recorded(poly, arguments, options=options)).item == (elements, 1, 1)


def test_threads_take_one_element_where_more_would_not_widen_anything() -> None:
    def shifted(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        y[i] = x[i + 1]

    def gathered(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        y[i] = x[kj.i32(y[i])]

    def counted(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        kj.atomic_add(y, i, x[i])

    def plane(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        y[i] = x[i] + kj.f32(kj.global_id(1))

    arguments: list[tuple[str, Argument]] = [
        ("x", argument(f32, aligned=True)),
        ("y", argument(f32, aligned=True)),
    ]
    for function in (shifted, gathered, counted, plane):
        assert emit(recorded(function, arguments)).item == (1, 1, 1)
    loose: list[tuple[str, Argument]] = [(name, argument(f32)) for name in ("x", "y")]
    loose.append(("a", ScalarArgument(f32)))
    assert emit(recorded(scaled_without_a_guard, loose)).item == (1, 1, 1)


def test_pointers_that_a_loop_does_not_change_are_computed_before_it() -> None:
    def fold(x: Any, out: Any, n: Any) -> None:
        i = kj.global_id(0)
        for _ in range(n):
            out[i] = out[i] * 3 + x[i]

    arguments: list[tuple[str, Argument]] = [
        ("x", argument(i32)),
        ("out", argument(i32)),
        ("n", ScalarArgument(i32)),
    ]
    for loop in loops(emit(recorded(fold, arguments)).text):
        assert "mad" not in loop
        assert "ld.param" not in loop


def test_much_shared_memory_is_allotted_by_the_launch(tmp_path: Path) -> None:
    def reverse(out: Any) -> None:
        tile = kj.shared(kj.f32, 15000)
        k = kj.local_id(0)
        tile[k + 14000] = kj.f32(k)
        kj.barrier()
        out[k] = tile[14063 - k]

    trace = recorded(reverse, [("out", argument(f32))], workgroup=(64, 1, 1))
    program = emit(trace)
    assert program.shared == 60000
    assert ".extern .shared" in program.text
    assemble(program, "sm_90", tmp_path)
    out = np.zeros(64, np.float32)
    run(trace, [out], [], (1, 1, 1))
    assert (out == np.arange(63, -1, -1)).all()


def test_numbers_that_no_immediate_holds_are_in_constant_memory(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """Of f64; the machine's instructions take them from there, at no cost."""

    def polynomial(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        total = kj.f64(0.1)
        for coefficient in kj.unroll((0.2, 0.5, 0.1, 1.5, 0.3)):
            total = total * x[i] + coefficient
        out[i] = total

    trace = recorded(polynomial, [("x", argument(f64)), ("out", argument(f64))])
    program = emit(trace)
    (table,) = re.findall(r"\.const \.align 8 \.b64 constants\[3\] = {(.*)};", program.text)
    wanted = [np.float64(number).view(np.uint64) for number in (0.1, 0.2, 0.3)]
    assert [int(number, 16) for number in table.split(", ")] == wanted
    assert re.findall(r"0d\w+", program.text) == ["0d3FE0000000000000", "0d3FF8000000000000"]
    x = rng.normal(size=40)
    out, want = np.zeros(40), np.zeros(40)
    run(trace, [x, out], [], (40, 1, 1))
    interpret(contract(trace), [x, want], [], (40, 1, 1))
    np.testing.assert_array_equal(out, want)
    assemble(program, "sm_90", tmp_path)


def test_more_numbers_than_constant_memory_has_room_for_are_immediates() -> None:
    def many(out: Any) -> None:
        for k in kj.unroll(range(1100)):
            out[k] = kj.f64(1 / (k + 0.1))

    text = emit(recorded(many, [("out", argument(f64))])).text
    assert ".b64 constants[1024]" in text
    assert len(re.findall(r"0d\w{16}", text)) == 1100 - 1024


def test_tables_are_constant_memory_where_warps_read_one_place() -> None:
    table = np.arange(5, dtype=np.float32) ** 2

    def uniform(out: Any, k: Any) -> None:
        out[kj.global_id(0)] = kj.constant(table)[k]

    def varying(out: Any, k: Any) -> None:
        i = kj.global_id(0)
        out[i] = kj.constant(table)[(i + k) % 5]

    arguments: list[tuple[str, Argument]] = [("out", argument(f32)), ("k", ScalarArgument(i32))]
    for function, space in ((uniform, ".const"), (varying, ".global")):
        trace = recorded(function, arguments)
        assert f"{space} .align 16 .b8 table0" in emit(trace).text
        got, want = np.zeros(11, np.float32), np.zeros(11, np.float32)
        run(trace, [got], [3], (11, 1, 1))
        interpret(trace, [want], [3], (11, 1, 1))
        assert (got == want).all()


def test_loads_are_not_joined_to_ones_from_before_a_store() -> None:
    def swap(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = x[i].y
        x[i].x = 3.0
        out[i + 1] = x[i].x

    arguments: list[tuple[str, Argument]] = [
        ("x", argument(f32, 1, 2, aligned=True)),
        ("out", argument(f32)),
    ]
    trace = recorded(swap, arguments)
    x, out = np.arange(2, dtype=np.float32).reshape(1, 2), np.zeros(2, np.float32)
    run(trace, [x, out], [], (1, 1, 1))
    assert list(out) == [1, 3]
