"""The CUDA code generator, without a GPU: its PTX is run by a model of the machine in
``ptx_machine.py``, assembled by ptxas for every architecture, and read."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.caps import row
from khaljit.codegen.legalise import legalise
from khaljit.codegen.program import Program
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.codegen.ptx.emit import PtxEmitter
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import (
    ALL,
    INTEGERS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    i64,
    index,
    u32,
)
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    ATOMICS,
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Options,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.lanes import collective
from khaljit.tracer.numerics import from_memory, memory_type, to_memory
from khaljit.tracer.ops import MATH, OPS, Op, TypingError
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.record import ArrayArgument, ScalarArgument, record
from tests.building import array_param, bits_equal, edge_values, kernel
from tests.ptx_machine import run_program
from tests.random_kernels import COUNTERS, INPUTS, random_kernel

SMS = tuple(ARCHITECTURES)
COUNT = 200 - 1

Make = Callable[[Builder, list[Value]], Value]
Argument = ArrayArgument | ScalarArgument


def legal(trace: Trace, sm: str = "sm_90") -> Trace:
    return legalise(optimise(contract(trace)), row(f"ptx:{sm}"))


def emit(trace: Trace, sm: str = "sm_90") -> Program:
    return PtxEmitter(sm).emit(legal(trace, sm))


def run(
    trace: Trace,
    arrays: Sequence[Array],
    scalars: Sequence[int | float | bool],
    groups: tuple[int, int, int],
    sm: str = "sm_90",
    *,
    folded: bool = False,
) -> list[int]:
    ready = legal(trace, sm)
    program = PtxEmitter(sm, folded=folded).emit(ready)
    return run_program(ready, program, arrays, scalars, groups, folded=folded)


def recorded(function: Any, arguments: Sequence[tuple[str, Argument]], **facts: Any) -> Trace:
    return record(function, arguments, **facts).trace


def argument(dtype: DType, ndim: int = 1, count: int = 1, **facts: Any) -> ArrayArgument:
    element = Element.scalar(dtype) if count == 1 else Element.vector(dtype, count)
    return ArrayArgument(element, count, ndim, **facts)


# Tools.


@functools.cache
def tool(name: str) -> str:
    """A tool of NVIDIA's, from its wheel, the path, or an installed toolkit."""
    places = [shutil.which(name), f"/usr/local/cuda/bin/{name}"]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        places.insert(0, f"{folder}/cu13/bin/{name}")
    for place in places:
        if place is not None and Path(place).is_file():
            return place
    pytest.skip(f"no {name} here: pip install nvidia-cuda-{name.replace('ptxas', 'nvcc')}")


def assemble(program: Program, sm: str, folder: Path) -> str:
    """Assemble a program; gives what ptxas says of it."""
    source = folder / "kernel.ptx"
    source.write_text(program.text)
    done = subprocess.run(
        [tool("ptxas"), "-v", "-arch", sm, str(source), "-o", str(folder / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{said}\n{program.text}"
    assert "warning" not in said.lower(), said
    return said


def is_lean(said: str) -> bool:
    """Whether nothing is spilled and no local memory is used."""
    return bool(
        re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", said)
    )


# Operations.


def makes(dtype: DType, sm: str) -> list[tuple[str, Make]]:
    """What to compute from values of a type, with names."""
    found: list[tuple[str, Make]] = []
    for op, info in OPS.items():
        hidden = op in (Op.TRUNCDIV, Op.TRUNCMOD, Op.SELECT) or op in MATH
        if info.effect or info.result is None or hidden:
            continue
        try:
            info.result(*[dtype] * (info.arity or 0))
        except TypingError:
            continue
        found.append((op.value, lambda b, v, op=op: b.pure(op, tuple(v[: OPS[op].arity]))))  # type: ignore[misc]  # binds now
    found.append(("select", lambda b, v: b.select(b.pure(Op.EQ, (v[0], v[1])), v[1], v[2])))
    if dtype.is_float:
        found.append(("1 / x", lambda b, v: b.pure(Op.DIV, (b.const(dtype, 1.0), v[0]))))
    if sm == "sm_75" and dtype is bf16:  # carried as u16 there, which tests of the legaliser see
        found = found[:6]
    for to in ALL:
        if to is not dtype:
            found.append((f"cast {to.name}", lambda b, v, to=to: b.cast(v[0], to)))  # type: ignore[misc]  # binds now
            if to.bits == dtype.bits and bool_ not in (to, dtype):
                found.append((f"bits {to.name}", lambda b, v, to=to: b.bitcast(v[0], to)))  # type: ignore[misc]  # binds now
    return found


@pytest.mark.parametrize("sm", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ALL, ids=lambda t: t.name)
def test_every_operation_in_every_type_gives_what_the_interpreter_gives(
    dtype: DType, sm: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    chosen = makes(dtype, sm)
    probe = Builder()
    probe.open()
    results = [make(probe, [probe.scalar(k, dtype) for k in range(3)]).type for _, make in chosen]
    params = [array_param(k, each, 1, 0) for k, each in enumerate((*[dtype] * 3, *results))]

    def build(builder: Builder) -> None:
        i = builder.id("global")
        memories = [builder.memory(param.memory) for param in params]
        operands = [builder.load(memory, (i,), dtype, Access()) for memory in memories[:3]]
        for memory, (_, make) in zip(memories[3:], chosen, strict=True):
            builder.store(memory, (i,), make(builder, operands), Access())

    trace = kernel(build, params)
    operands = [edge_values(dtype, COUNT, rng) for _ in range(3)]
    outs = [np.zeros(COUNT, memory_type(result)) for result in results]
    wanted = [out.copy() for out in outs]
    interpret(trace, [*operands, *wanted], [], (COUNT, 1, 1))
    run(trace, [*operands, *outs], [], (COUNT, 1, 1), sm)
    for (name, _), result, out, want in zip(chosen, results, outs, wanted, strict=True):
        good = bits_equal(result, out, want)
        k = int(np.argmin(good))
        given = ", ".join(repr(operand[k]) for operand in operands)
        assert good.all(), f"{name} of {given} is {out[k]!r}, not {want[k]!r}"
    assemble(emit(trace, sm), sm, tmp_path)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda t: t.name)
def test_operands_that_are_constants_are_taken_on_either_side(
    dtype: DType, rng: np.random.Generator, tmp_path: Path
) -> None:
    low, high = dtype.limits
    constants = [low, high, 1, 0, int(rng.integers(2, 100))]
    ops = (Op.ADD, Op.SUB, Op.MUL, Op.SHL, Op.SHR, Op.LT, Op.XOR, Op.FLOORDIV, Op.MAX)
    cases = [(op, number, left) for op in ops for number in constants for left in (True, False)]
    results = [bool_ if op is Op.LT else dtype for op, _, _ in cases]
    params = [array_param(k, each, 1, 0) for k, each in enumerate((dtype, *results))]

    def build(builder: Builder) -> None:
        i = builder.id("global")
        x = builder.load(builder.memory(params[0].memory), (i,), dtype, Access())
        for param, (op, number, left) in zip(params[1:], cases, strict=True):
            known = builder.const(dtype, number)
            value = builder.pure(op, (known, x) if left else (x, known))
            builder.store(builder.memory(param.memory), (i,), value, Access())

    trace = kernel(build, params)
    x = edge_values(dtype, 40, rng)
    outs = [np.zeros(40, memory_type(result)) for result in results]
    wanted = [out.copy() for out in outs]
    interpret(trace, [x, *wanted], [], (40, 1, 1))
    run(trace, [x, *outs], [], (40, 1, 1))
    for case, out, want in zip(cases, outs, wanted, strict=True):
        assert (out == want).all(), f"{case}: {out} is not {want}"
    assemble(emit(trace), "sm_90", tmp_path)


# Control flow.


@pytest.mark.parametrize("workgroup", [None, (8, 1, 1), (32, 1, 1), (5, 3, 2), (40, 2, 1)], ids=str)
@pytest.mark.parametrize("barriers", [False, True])
def test_wild_control_flow_gives_what_the_interpreter_gives(
    workgroup: tuple[int, int, int] | None, barriers: bool, rng: np.random.Generator
) -> None:
    if barriers and workgroup is None:
        return
    for _ in range(3):
        seed = int(rng.integers(1 << 32))
        trace = random_kernel(seed, workgroup, barriers=barriers)
        most = (70, 12, 3) if workgroup is None else (4, 3, 3)
        x, y, z = (int(rng.integers(1, extent)) for extent in most)
        count = x * y * z * int(np.prod(workgroup or (1, 1, 1)))
        values = rng.integers(-4, 9, INPUTS, dtype=np.int32)
        scalars = [int(rng.integers(-3, 40)), float(np.float32(rng.normal()))]
        outcomes = []
        folded = bool(rng.integers(2))
        for machine in (False, True):
            arrays = [np.zeros(count, np.uint32), values.copy(), np.zeros(COUNTERS, np.int32)]
            if machine:
                sm = str(rng.choice(SMS))
                run(trace, arrays, scalars, (x, y, z), sm, folded=folded)
            else:
                interpret(trace, arrays, scalars, (x, y, z))
            outcomes.append(arrays)
        for wanted, got in zip(*outcomes, strict=True):
            assert (wanted == got).all(), f"seed {seed}"


def test_carried_values_that_change_places_are_moved_at_once(rng: np.random.Generator) -> None:
    def rotate(out: Any, n: Any) -> None:
        a, b, c, p, q = 1, 2, 3, True, False
        for _ in range(n):
            a, b, c, p, q = b, c, a, q, p
        out[0] = a
        out[1] = b
        out[2] = c
        out[3] = kj.select(p, 1, 0)
        out[4] = kj.select(q, 1, 0)

    trace = recorded(rotate, [("out", argument(i32)), ("n", ScalarArgument(i32))])
    for n in range(7):
        out, want = np.zeros(5, np.int32), np.zeros(5, np.int32)
        run(trace, [out], [n], (1, 1, 1))
        interpret(trace, [want], [n], (1, 1, 1))
        assert (out == want).all()


# Ids.


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("workgroup", [None, (32, 2, 1), (64, 1, 1), (1, 3, 2)], ids=str)
def test_ids_say_where_an_invocation_is(
    workgroup: tuple[int, int, int] | None, bits: int, folded: bool
) -> None:
    names = ["global", "num_workgroups"]
    if workgroup is not None:
        names += ["local", "workgroup", "workgroup_size", "local_index"]
    shown = [(name, axis) for name in names for axis in range(1 if name == "local_index" else 3)]
    out = array_param(0, i64, 2)

    def build(b: Builder) -> None:
        size = workgroup or (1, 1, 1)
        x, y, z = (b.id("global", axis) for axis in range(3))
        width, height = (
            b.pure(Op.MUL, (b.id("num_workgroups", axis), b.const(index, size[axis])))
            for axis in range(2)
        )
        row_ = b.pure(Op.ADD, (b.pure(Op.MUL, (z, height)), y))
        at = b.pure(Op.ADD, (b.pure(Op.MUL, (row_, width)), x))
        for column, (name, axis) in enumerate(shown):
            value = b.cast(b.id(name, axis), i64)
            b.store(b.memory(out.memory), (at, b.const(index, column)), value, Access())

    trace = kernel(build, [out], workgroup=workgroup, index_bits=bits)
    groups = (3, 2, 2) if workgroup else (37, 9, 2)
    count = int(np.prod(groups)) * int(np.prod(workgroup or (1, 1, 1)))
    got, want = (np.full((count, len(shown)), -1, np.int64) for _ in range(2))
    run(trace, [got], [], groups, folded=folded)
    interpret(trace, [want], [], groups)
    assert (got == want).all()


def test_exactly_the_invocations_of_the_grid_run() -> None:
    def touch(out: Any) -> None:
        kj.atomic_add(out, 0, 1)

    trace = recorded(touch, [("out", argument(i32))])
    for count in (1, 255, 256, 257):
        out = np.zeros(1, np.int32)
        run(trace, [out], [], (count, 1, 1))
        assert out[0] == count


# Subgroups.

_PAIRS = ("broadcast", "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down")


def collectives_of(dtype: DType) -> list[tuple[str, int | None]]:
    """The collectives of a type, with the second operand where it is a constant."""
    names = ["broadcast_first"]
    if dtype is bool_:
        names += ["and", "or", "xor", "any", "all", "ballot", "elect"]
    else:
        names += ["add", "mul", "min", "max", "inclusive_add", "exclusive_add", "inclusive_max"]
        names += [] if dtype.is_float else ["and", "or", "xor", "exclusive_min"]
    lanes = (None, 0, 3, 31, 40)
    return [*((name, None) for name in names), *((name, k) for name in _PAIRS for k in lanes)]


def collective_result(name: str, dtype: DType) -> DType:
    return u32 if name == "ballot" else bool_ if name == "elect" else dtype


def collectives_kernel(dtype: DType, size: int) -> Trace:
    """out_k[i] = collective k of x[i]; its second operand is a constant or y[i]."""
    chosen = collectives_of(dtype)
    types = (dtype, i32, *(collective_result(name, dtype) for name, _ in chosen))
    params = [array_param(k, each, 1, 0) for k, each in enumerate(types)]

    def build(b: Builder) -> None:
        i = b.id("global")
        memories = [b.memory(param.memory) for param in params]
        x = b.load(memories[0], (i,), dtype, Access())
        lane = b.load(memories[1], (i,), i32, Access())
        for (name, known), memory, result in zip(chosen, memories[2:], types[2:], strict=True):
            args: tuple[Value, ...] = () if name == "elect" else (x,)
            if name in _PAIRS:
                args = (x, lane if known is None else b.const(i32, known))
            b.store(memory, (i,), b.effect(Op.SUBGROUP, args, name, result), Access())

    return kernel(build, params, workgroup=(size, 1, 1))


@pytest.mark.parametrize("size", [64, 45])
@pytest.mark.parametrize("sm", ["sm_75", "sm_90"])
@pytest.mark.parametrize("dtype", ALL, ids=lambda t: t.name)
def test_collectives_of_whole_and_partial_warps(
    dtype: DType, sm: str, size: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    trace, chosen = collectives_kernel(dtype, size), collectives_of(dtype)
    x = edge_values(dtype, size, rng)
    if dtype.is_float:  # small numbers, whose sums and products are exact in any order
        x = to_memory(dtype, rng.choice([-2.0, -1.0, 1.0, 1.0, 1.0], size).astype(np.float32))
    second = rng.integers(-2, 35, size).astype(np.int32)
    outs = [np.zeros(size, memory_type(collective_result(name, dtype))) for name, _ in chosen]
    run(trace, [x, second, *outs], [], (1, 1, 1), sm)
    padded = np.zeros(64, memory_type(dtype))
    padded[:size] = x
    for (name, known), out in zip(chosen, outs, strict=True):
        other = np.resize(second if known is None else np.int32(known), 64)
        given = [] if name == "elect" else [from_memory(dtype, padded)]
        if name in _PAIRS:
            given.append(other)
        found = collective(name, dtype, given, np.arange(64) < size, 32, 32)
        result = collective_result(name, dtype)
        wanted = to_memory(result, found)[:size]
        if name in _PAIRS:
            wanted = np.where(source_lane(name, other[:size], size), wanted, x)
        good = bits_equal(result, out, wanted)
        assert good.all(), f"{name} {known} of {x} and {other}: {out}, not {wanted}"
    assemble(emit(trace, sm), sm, tmp_path)


def source_lane(name: str, operand: Array, size: int) -> Array:
    """Whether the lane that each lane reads is there."""
    number = np.arange(size)
    own = number % 32
    lane = {
        "shuffle_xor": own ^ operand,
        "shuffle_up": own - operand,
        "shuffle_down": own + operand,
    }.get(name, operand)
    here = np.minimum(size - number // 32 * 32, 32)
    inside: Array = (lane >= 0) & (lane < here)
    return inside


# Atomics.


PLACES = 8


def atomics_of(dtype: DType) -> list[str]:
    without: set[str] = set()
    if dtype is bool_:
        without = {"add", "sub", "min", "max"}
    elif dtype.is_float:
        without = {"and", "or", "xor"}
    return [kind for kind in ATOMICS if kind not in without]


@pytest.mark.parametrize("space", [Space.ARRAY, Space.SHARED, Space.LOCAL], ids=lambda s: s.value)
@pytest.mark.parametrize("dtype", ALL, ids=lambda t: t.name)
def test_atomics_of_every_kind_give_the_old_value(
    dtype: DType, space: Space, rng: np.random.Generator, tmp_path: Path
) -> None:
    kinds = atomics_of(dtype)
    orders = [str(rng.choice(["relaxed", "acquire", "release", "acq_rel"])) for _ in kinds]
    trace = atomics_kernel(kinds, orders, dtype, space)
    arrays = [edge_values(dtype, PLACES, rng) for _ in range(2 + len(kinds))]
    if dtype.is_float:  # which NaN is not said
        halves = (rng.integers(-9, 9, PLACES).astype(np.float32) / 2 for _ in arrays)
        arrays = [to_memory(dtype, some) for some in halves]
    where = rng.integers(0, PLACES + 2, PLACES).astype(np.int32)
    outcomes = []
    for machine in (False, True):
        olds = [np.zeros(PLACES, memory_type(dtype)) for _ in kinds]
        copies = [where, *(array.copy() for array in arrays), *olds]
        if machine:
            run(trace, copies, [], (1, 1, 1), str(rng.choice(SMS)))
        else:
            interpret(trace, copies, [], (1, 1, 1))
        outcomes.append(copies[3:])
    names = [*kinds, *(f"{kind}, old" for kind in kinds)]
    for name, wanted, got in zip(names, *outcomes, strict=True):
        assert (wanted == got).all(), f"{name}: {got} is not {wanted}"
    for sm in ("sm_75", "sm_90"):
        assemble(emit(trace, sm), sm, tmp_path)


def atomics_kernel(kinds: list[str], orders: list[str], dtype: DType, space: Space) -> Trace:
    """old_k[i] = atomic k at where[i] of x_k or of a copy of it; x_k is left as that is then."""
    types = (i32, dtype, dtype, *[dtype] * 2 * len(kinds))
    params = [array_param(k, each, 1, 0) for k, each in enumerate(types)]

    def one(b: Builder, number: int, x: Value, old: Value, operands: list[Value]) -> None:
        i, at = (
            b.id("local"),
            (b.load(b.memory(params[0].memory), (b.id("local"),), i32, Access()),),
        )
        kind = kinds[number]
        own = Memory(space, number, Element.scalar(dtype), (PLACES,))
        what = x if space is Space.ARRAY else b.memory(own)
        if space is Space.SHARED:
            b.store(what, (i,), b.load(x, (i,), dtype, Access()), Access())
            b.effect(Op.BARRIER, (), "workgroup")
        if space is Space.LOCAL:
            for k in range(PLACES):
                place = (b.const(index, k),)
                b.store(what, place, b.load(x, place, dtype, Access()), Access())
        access = AtomicAccess(kind=kind, order=orders[number])
        found = b.effect(Op.ATOMIC, (what, *at, *operands[: ATOMICS[kind]]), access, dtype)
        if kind != "store":
            b.store(old, (i,), found, Access())
        if space is not Space.ARRAY:
            b.effect(Op.BARRIER, (), "workgroup")
            b.store(x, (i,), b.load(what, (i,), dtype, Access()), Access())

    def build(b: Builder) -> None:
        memories = [b.memory(param.memory) for param in params]
        i = (b.id("local"),)
        operands = [b.load(memory, i, dtype, Access()) for memory in memories[1:3]]
        for number in range(len(kinds)):
            one(b, number, memories[3 + number], memories[3 + len(kinds) + number], operands)

    return kernel(build, params, workgroup=(PLACES, 1, 1))


def test_an_atomic_whose_old_value_is_not_read_is_a_reduction() -> None:
    def count(out: Any, x: Any) -> None:
        kj.atomic_add(out, x[kj.global_id(0)], 1)

    text = emit(recorded(count, [("out", argument(i32)), ("x", argument(i32))])).text
    assert "red.relaxed.gpu.global.add.u32" in text
    assert "atom." not in text


# Memory.


def copy_kernel(count: int, dtype: DType = f32, **facts: Any) -> Trace:
    def copy(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            y[i] = x[i] + y[i]

    facts = {"aligned": True, **facts}
    arguments: list[tuple[str, Argument]] = [
        ("x", argument(dtype, 1, count, **facts)),
        ("y", argument(dtype, 1, count, same_shape=0, **facts)),
    ]
    return recorded(copy, arguments)


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


def matmul(a: Any, b: Any, c: Any) -> None:
    column, line = kj.global_id(0), kj.global_id(1)
    if line < c.shape[0] and column < c.shape[1]:
        total = 0.0
        for t in range(a.shape[1]):
            total += a[line, t] * b[t, column]
        c[line, column] = total


def matmul_trace(bits: int = 32, **options: bool) -> Trace:
    arguments: list[tuple[str, Argument]] = [
        ("a", argument(f32, 2)),
        ("b", argument(f32, 2, same_shape=0)),
        ("c", argument(f32, 2, same_shape=0)),
    ]
    given = Options(**options)
    return recorded(matmul, arguments, workgroup=(16, 16, 1), index_bits=bits, options=given)


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
    (loop,) = loops(emit(trace).text)
    assert "mad.wide" not in loop
    assert "mad.lo.s64" not in loop
    assert loop.count("add.s64 %d") >= 2
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
    assert "mad.wide" in loop


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
    (loop,) = loops(emit(recorded(fold, arguments)).text)
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


# Reports.


@pytest.mark.parametrize("bits", [32, 64])
def test_the_first_failed_assert_is_reported(bits: int) -> None:
    x = array_param(0, i32)

    def build(b: Builder) -> None:
        i = b.id("global")
        value = b.load(b.memory(x.memory), (i,), i32, Access())
        half = b.pure(Op.MUL, (b.cast(value, f32), b.const(f32, 0.5)))
        holds = b.pure(Op.GE, (value, b.const(i32, 0)))
        b.effect(Op.ASSERT, (holds, value, half, b.cast(i, i64)), Note("negative", 9))

    trace = kernel(build, [x], workgroup=(4, 1, 1), index_bits=bits)
    values = np.array([3, 1, 0, 2, 5, -7, 1, -2], np.int32)
    report = run(trace, [values], [], (2, 1, 1))
    bits_of_half = int(np.float32(-3.5).view(np.uint32))
    assert report == [1, 9, 5, 0, 0, -7, bits_of_half, 5]
    assert run(trace, [np.abs(values)], [], (2, 1, 1)) == [0] * 8
    assert emit(trace).reports
    assert not emit(matmul_trace()).reports


def test_printing_is_refused() -> None:
    def show(x: Any) -> None:
        kj.print("x is", x[0])

    with pytest.raises(CapabilityError, match="ptx:sm_90 cannot print"):
        emit(recorded(show, [("x", argument(i32))]))


# The text.


def representative() -> dict[str, Trace]:
    """Kernels of the kinds that matter."""

    def mandel(out: Any, limit: Any) -> None:
        x, y = kj.global_id(0), kj.global_id(1)
        h, w = out.shape
        if x >= w or y >= h:
            return
        cr, ci = x / w * 3.0 - 2.0, y / h * 2.0 - 1.0
        zr, zi, count = 0.0, 0.0, 0
        while count < limit:
            if zr * zr + zi * zi > 4.0:
                break
            zi, zr, count = 2.0 * zr * zi + ci, zr * zr - zi * zi + cr, count + 1
        out[y, x] = count

    def bodies(pos: Any, out: Any, n: Any) -> None:
        tile = kj.shared(kj.vec4, 128)
        me, i = kj.local_id(0), kj.global_id(0)
        p = pos[i]
        ax, ay = 0.0, 0.0
        for base in range(0, n, 128):
            tile[me] = pos[base + me]
            kj.barrier()
            for k in range(128):
                q = tile[k]
                dx, dy = q.x - p.x, q.y - p.y
                s = q.w * kj.rsqrt(dx * dx + dy * dy + 1e-6)
                ax += dx * s
                ay += dy * s
            kj.barrier()
        out[i] = kj.vec4(ax, ay, 0.0, 0.0)

    def total(x: Any, out: Any) -> None:
        s = 0.0
        for i in kj.grid_stride(x.size):
            s += x[i]
        s = kj.workgroup_add(s)
        if kj.local_index() == 0:
            kj.atomic_add(out, 0, s)

    def functions(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            y[i] = kj.exp(x[i]) + kj.sin(x[i]) * kj.log(x[i]) + kj.pow(x[i], 1.7)

    four = argument(f32, 1, 4, aligned=True)
    image: list[tuple[str, Argument]] = [("out", argument(i32, 2)), ("limit", ScalarArgument(i32))]
    group = (128, 1, 1)
    pairs: list[tuple[str, Argument]] = [("x", argument(f32)), ("y", argument(f32, same_shape=0))]
    doubles: list[tuple[str, Argument]] = [("x", argument(f64)), ("y", argument(f64, same_shape=0))]
    return {
        "matmul": matmul_trace(),
        "matmul in 64 bits": matmul_trace(64),
        "copy": copy_kernel(4),
        "halves": copy_kernel(1, f16),
        "brains": copy_kernel(1, bf16),
        "mandel": recorded(mandel, image, workgroup=(8, 8, 1)),
        "bodies": recorded(
            bodies,
            [("pos", four), ("out", four), ("n", ScalarArgument(i32))],
            workgroup=group,
        ),
        "total": recorded(total, [("x", argument(f32)), ("out", argument(f32))], workgroup=group),
        "functions": recorded(functions, pairs),
        "fast functions": recorded(functions, pairs, options=Options(fastmath=True)),
        "functions of doubles": recorded(functions, doubles),
    }


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("name", representative())
def test_kernels_are_assembled_without_a_warning_a_spill_or_local_memory(
    name: str, sm: str, tmp_path: Path
) -> None:
    assert is_lean(assemble(emit(representative()[name], sm), sm, tmp_path))


@pytest.mark.parametrize(
    ("sm", "version"), list(zip(SMS, ("6.3", "7.0", "7.8", "8.6", "8.7"), strict=True))
)
def test_the_version_is_the_lowest_that_knows_the_target(sm: str, version: str) -> None:
    text = emit(copy_kernel(1), sm).text
    assert text.startswith(f".version {version}\n.target {sm}\n")


def test_many_parameters_need_a_later_version(tmp_path: Path) -> None:
    params = [array_param(k, i32, 3) for k in range(80)]

    def build(b: Builder) -> None:
        zero = b.const(index, 0)
        for param in params:
            b.store(b.memory(param.memory), (zero,) * 3, b.const(i32, 1), Access())

    program = emit(kernel(build, params), "sm_80")
    assert program.text.startswith(".version 8.1\n")
    assemble(program, "sm_80", tmp_path)


def test_the_same_trace_gives_the_same_text() -> None:
    for first, second in zip(representative().values(), representative().values(), strict=True):
        assert emit(first).text == emit(second).text


def test_without_contraction_nothing_is_fused(tmp_path: Path) -> None:
    program = emit(matmul_trace(contract=False))
    assert "fma" not in program.text
    assert "fma.rn.f32" in emit(matmul_trace()).text
    assemble(program, "sm_90", tmp_path)
    done = subprocess.run(
        [tool("nvdisasm"), "-c", str(tmp_path / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "FFMA" not in done.stdout
    assert "FMUL" in done.stdout


def test_every_product_and_sum_of_floats_says_how_it_is_rounded() -> None:
    for trace in representative().values():
        for line in emit(trace).text.splitlines():
            if re.match(
                r"(@!?%p\d+ )?(add|sub|mul|fma|div|sqrt|rcp)\.[\w.]*\b(f16|bf16|f32|f64)\b", line
            ):
                assert ".rn." in line or ".approx." in line, line


def test_fast_functions_are_the_hardwares_and_others_are_not() -> None:
    texts = {name: emit(trace).text for name, trace in representative().items()}
    fast = texts.pop("fast functions")
    assert all(name in fast for name in ("ex2.approx", "lg2.approx", "sin.approx"))
    assert not any(".approx" in text for text in texts.values())


def test_debugging_names_the_source_lines(tmp_path: Path) -> None:
    def one(x: Any) -> None:
        x[0] = x[1] + 1

    arguments: list[tuple[str, Argument]] = [("x", argument(i32))]
    program = emit(recorded(one, arguments, options=Options(debug=True)))
    line = one.__code__.co_firstlineno + 1
    assert '.file 1 "' in program.text
    assert f".loc 1 {line} " in program.text
    assemble(program, "sm_90", tmp_path)
    assert ".loc" not in emit(recorded(one, arguments)).text


def test_deep_nesting_does_not_recurse() -> None:
    trace = nested(array_param(0, i32), 3000)
    assert PtxEmitter("sm_90").emit(trace).text.count("st.global") == 3000


def nested(out: ArrayParam, depth: int) -> Trace:
    """A store in each of some nested arms."""

    def build(b: Builder) -> None:
        memory, flat = b.memory(out.memory), Access(checked=False, flat=True)
        for k in range(depth):
            b.store(memory, (b.const(i32, k),), b.const(i32, k), flat)
            b.open()
        for k in range(depth):
            b.end(Op.YIELD)
            then = b.close()
            b.open()
            b.end(Op.YIELD)
            b.if_(b.pure(Op.GT, (b.scalar(0, i32), b.const(i32, k))), then, b.close())

    return kernel(build, [out], [i32])
