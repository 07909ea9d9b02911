"""Lowering for WebGPU, judged by the interpreter alone: what comes out means what went in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.caps import Caps, webgpu
from khaljit.codegen.legalise import legalise
from khaljit.codegen.numbering import with_reports
from khaljit.codegen.reports import FAILED, FAILURE, HEADER, has_report
from khaljit.codegen.webgpu.interface import Slot, Source
from khaljit.codegen.webgpu.launch import sees_subgroups
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Lowered, Variant, lower
from khaljit.codegen.webgpu.probe import COUNT, judge, probe, questions
from khaljit.codegen.writing_reports import write_reports
from khaljit.tracer.build import Builder
from khaljit.tracer.convergence import check
from khaljit.tracer.dtypes import DType, bool_, f16, f32, i8, i16, i32, i64, u8, u16, u32, u64
from khaljit.tracer.errors import InternalError, TraceError
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Trace, Value, values
from khaljit.tracer.ops import COMPARISONS, Op
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.verify import verify
from tests.building import bits_equal, edge_values, pointwise, run_pointwise
from tests.ptx_tools import argument, recorded
from tests.random_traces import random_trace
from tests.webgpu_kernels import KERNELS, agrees, expected, legal

_INT64 = webgpu(frozenset({"shader-int64"}))
ROWS = {"int64": _INT64, "bare": webgpu(), "unfused": webgpu(fused=False)}

_MIXED = np.dtype(
    {"names": list("abc"), "formats": ["f4", "i4", "i1"], "offsets": [0, 8, 12], "itemsize": 16}
)


def run_lowered(
    lowered: Lowered,
    trace: Trace,
    arrays: list[Array],
    scalars: Sequence[int | float | bool],
    grid: tuple[int, int, int],
) -> None:
    """Interpret a lowered trace on arrays of cells."""

    def number(source: Source) -> int | float | bool:
        if source.kind == "scalar":
            return scalars[source.number]
        if source.kind in ("extent", "groups"):
            return grid[source.axis]
        if source.kind in ("offset", "zero"):
            return 0
        array = arrays[source.number]
        if source.kind == "shape":
            return int(array.shape[source.axis])
        align = trace.arrays[source.number].memory.element.align
        return int(array.strides[source.axis]) // align

    given: list[int | float | bool] = []
    for k, scalar in enumerate(lowered.trace.scalars):
        slot = lowered.slots.get(k)
        given.append(0 if slot is None else _as_number(slot, scalar.dtype, number(slot.source)))
    owners = [one.arrays[0] for one in lowered.interface.bindings]
    cells: list[Array] = []
    for param in lowered.trace.arrays:
        dtype = param.memory.element.leaves[0][1]
        raw = bytes(64)
        if param.memory.number < len(owners):
            raw = arrays[owners[param.memory.number]].tobytes()
            raw = raw.ljust(-(-max(4, len(raw)) // 8) * 8, b"\0")
        cells.append(np.frombuffer(raw, dtype.numpy).copy())
    # The grid of the machine, where the kernel left the workgroup open.
    size = lowered.trace.workgroup
    assert size is not None
    groups = grid
    if lowered.interface.whole:
        x, y, z = (-(-count // own) for count, own in zip(grid, size, strict=True))
        groups = x, y, z
    interpret(lowered.trace, cells, given, groups, subgroup_size=32, poison=False)
    for binding, owner in enumerate(owners):
        array = arrays[owner]
        found = np.frombuffer(cells[binding].tobytes()[: array.nbytes], array.dtype)
        array[...] = found.reshape(array.shape)


def _as_number(slot: Slot, dtype: DType, number: int | float | bool) -> int | float | bool:
    """What the code reads of a slot."""
    if slot.dtype.is_float and dtype.is_float:
        return number
    return int.from_bytes(slot.pack(number), "little")


@pytest.mark.parametrize("target", ROWS)
@pytest.mark.parametrize("name", KERNELS)
def test_lowered_kernels_mean_the_same(name: str, target: str) -> None:
    caps, kernel = ROWS[target], KERNELS[name]
    if any(dtype not in caps.dtypes for dtype in kernel.needs):
        pytest.skip(f"{caps.name} has not {', '.join(t.name for t in kernel.needs)}")
    trace = legal(kernel, caps)
    lowered = lower(trace, caps, PLAIN_VARIANT)
    verify(lowered.trace)
    found = [one.copy() for one in kernel.arrays]
    run_lowered(lowered, trace, found, kernel.scalars, kernel.grid)
    for wanted, own in zip(expected(kernel, 32), found, strict=True):
        assert agrees(kernel, wanted, own)


@pytest.mark.parametrize("name", KERNELS)
def test_lowered_traces_hold_machine_types_alone(name: str) -> None:
    caps = webgpu()
    kernel = KERNELS[name]
    if any(dtype not in caps.dtypes for dtype in kernel.needs):
        pytest.skip("has no such type")
    lowered = lower(legal(kernel, caps), caps, Variant(fold=True))
    machine = {bool_, i32, u32, f32}
    types = {value.dtype for value in values(lowered.trace.body) if value.dtype is not None}
    types |= {one.memory.element.leaves[0][1] for one in lowered.trace.arrays}
    assert types <= machine
    assert lowered.interface.folded


def test_nothing_is_converted_to_f16_and_back() -> None:
    """NVIDIA's compiler leaves both conversions out, and so the rounding."""

    def function(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = kj.f32(x[i] * x[i] - kj.f16(1.0)) + kj.f32(kj.f16(out[i]))

    trace = recorded(function, [("x", argument(f16)), ("out", argument(f32))])
    caps = webgpu(frozenset({"shader-f16"}))
    lowered = lower(legalise(optimise(trace), caps), caps, PLAIN_VARIANT).trace
    casts = [one for one in values(lowered.body) if one.op is Op.CAST and one.dtype is f32]
    assert casts
    assert not any(one.args[0].op is Op.CAST and one.args[0].dtype is f16 for one in casts)


def _random_data(seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    mixed = np.zeros((), _MIXED)
    mixed["a"], mixed["b"], mixed["c"] = 1.5, -7, -3
    return [
        rng.integers(-50, 50, (5, 7)).astype(np.int32),
        rng.standard_normal((9, 3)).astype(np.float32),
        rng.integers(-50, 50, (5, 7)).astype(np.int32),
        mixed,
    ]


@pytest.mark.parametrize("collectives", [False, True])
@pytest.mark.parametrize("target", ["int64", "bare"])
def test_random_traces_mean_the_same(target: str, collectives: bool) -> None:
    caps, compared = ROWS[target], 0
    for seed in range(120 if collectives else 40):
        trace = random_trace(seed, collectives=collectives).trace
        if collectives and not _converges(trace):
            continue
        rows = 1 if trace.workgroup is None else trace.workgroup[1] * trace.workgroup[2]
        if rows > 1 and sees_subgroups(trace):
            continue  # its workgroup becomes one line, which has other subgroups
        compared += _compared(trace, caps, seed)
    assert compared >= 5


def _converges(trace: Trace) -> bool:
    try:
        check(trace)
    except TraceError:
        return False
    return True


def _compared(trace: Trace, caps: Caps, seed: int) -> bool:
    """Compare a random trace; False where it breaks a promise of its own."""
    trace = with_reports(trace)
    wanted, scalars, grid = _random_data(seed), [5, 2.5, 3, 7], (2, 2, 1)
    report = np.zeros(2 * HEADER, np.uint32)
    if has_report(trace):
        wanted.append(report)
    shares = trace.arrays[2].same_view == 0
    if shares:
        wanted[2] = wanted[0]
    found = [one.copy() for one in wanted]
    lowered_accesses = optimise(trace)
    options: Any = {"subgroup_size": 32, "poison": False}
    try:
        failure = interpret(lowered_accesses, wanted, scalars, grid, **options).failure
    except InternalError:  # an access that said it was in bounds
        return False
    legal_trace = legalise(write_reports(lowered_accesses), caps)
    variant = Variant(bindings=(0, 1, 0, 2, 3)[: len(wanted)]) if shares else PLAIN_VARIANT
    lowered = lower(legal_trace, caps, variant)
    verify(lowered.trace)
    run_lowered(lowered, legal_trace, found, scalars, grid)
    for k, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if a is report or (k == 2 and shares):
            continue
        same = np.array_equal(a, b, equal_nan=True) if a.dtype.kind == "f" else (a == b).all()
        assert same, f"array {k} of seed {seed}"
    if has_report(trace):
        words = found[-1]
        assert bool(words[FAILED]) == (failure is not None)
        if failure is not None:
            assert words[FAILURE : FAILURE + 2].tolist() == [7, failure[0].site]
    return True


_UNARY = (Op.NEG, Op.ABS, Op.NOT, Op.REVERSE_BITS, Op.POPCOUNT, Op.CLZ, Op.CTZ)
_BINARY = (
    *(Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.MOD, Op.MULHI, Op.MIN, Op.MAX, Op.MINIMUM),
    *(Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR, *COMPARISONS),
)


@pytest.mark.parametrize("dtype", [i8, u8, i16, u16, i32, u32, i64, u64])
def test_integer_operations_without_their_types(dtype: DType) -> None:
    for op in (*_UNARY, *_BINARY):
        result = dtype if op not in COMPARISONS else bool_
        if op in (Op.POPCOUNT, Op.CLZ, Op.CTZ):
            result = i32
        operands = (dtype,) * (1 if op in _UNARY else 2)
        trace = pointwise(lambda b, *v, op=op: b.pure(op, v), operands, result)
        _same(trace, operands, result, webgpu(), str(op))


@pytest.mark.parametrize("source", [i8, u16, i32, u32, i64, u64, f32, bool_])
def test_casts_without_their_types(source: DType) -> None:
    for target in (i8, u8, i16, u16, i32, u32, i64, u64, f32, f16, bool_):
        if target is not source:
            trace = pointwise(lambda b, v, t=target: b.cast(v, t), (source,), target)
            _same(trace, (source,), target, webgpu(), target.name)


def test_fma_of_a_driver_that_rounds_twice() -> None:
    trace = pointwise(lambda b, *v: b.pure(Op.FMA, v), (f32,) * 3, f32)
    for caps in (webgpu(fused=False), webgpu(frozenset({"shader-int64"}), fused=False)):
        _same(trace, (f32,) * 3, f32, caps, "fma", 4000)


def _same(
    trace: Trace,
    operands: tuple[DType, ...],
    result: DType,
    caps: Caps,
    what: str,
    count: int = 300,
) -> None:
    rng = np.random.default_rng(count)
    data = [edge_values(dtype, count, rng) for dtype in operands]
    wanted, found = _both(trace, data, result, caps)
    assert bits_equal(result, wanted, found).all(), what


def _both(trace: Trace, data: list[Array], result: DType, caps: Caps) -> tuple[Array, Array]:
    """What a kernel gives as it is, and lowered."""
    wanted = run_pointwise(trace, data, result)
    legal_trace = legalise(optimise(trace), caps)
    lowered = lower(legal_trace, caps, PLAIN_VARIANT)
    arrays = [*(one.copy() for one in data), np.zeros_like(wanted)]
    with np.errstate(all="ignore"):
        run_lowered(lowered, legal_trace, arrays, [], (len(wanted), 1, 1))
    return wanted, arrays[-1]


def test_a_slot_holds_the_bits_of_its_number() -> None:
    assert Slot(Source("scalar"), bool_, 0, 4).pack(True) == b"\1\0\0\0"
    assert Slot(Source("scalar"), i16, 0, 4).pack(-2) == struct.pack("<i", -2)
    assert Slot(Source("scalar"), u8, 0, 4).pack(255) == struct.pack("<I", 255)
    assert Slot(Source("scalar"), f32, 0, 4).pack(1.5) == struct.pack("<f", 1.5)
    assert Slot(Source("scalar"), f16, 0, 4).pack(1.5) == b"\0\x3e\0\0"
    assert Slot(Source("shape"), i64, 0, 8).pack(-3) == struct.pack("<q", -3)
    halves = [Slot(Source("shape", half=k), i64, 0, 4).pack(-3) for k in range(2)]
    assert b"".join(halves) == struct.pack("<q", -3)


def test_only_what_is_read_has_a_slot() -> None:
    caps = webgpu(immediates=128)
    interface = lower(legal(KERNELS["add"], caps), caps, PLAIN_VARIANT).interface
    sources = [(slot.source.kind, slot.source.number) for slot in interface.slots]
    assert sorted(sources) == [("extent", 0), ("offset", 0), ("offset", 1), ("shape", 0)]
    assert [slot.at for slot in interface.slots] == [0, 4, 8, 12]
    assert interface.size == 16
    assert interface.uniform is None
    folded = lower(legal(KERNELS["add"], caps), caps, Variant(fold=True)).interface
    kinds = {slot.source.kind for slot in folded.slots}
    assert kinds == {"extent", "groups", "offset", "shape"}


def test_an_array_that_is_not_touched_needs_no_buffer() -> None:
    caps = webgpu()
    interface = lower(legal(KERNELS["mandelbrot"], caps), caps, PLAIN_VARIANT).interface
    assert [one.used for one in interface.bindings] == [True]
    assert interface.uniform == 1


def test_the_probe_tells_how_a_driver_rounds() -> None:
    arrays = questions()
    interpret(probe(), arrays, [], (COUNT, 1, 1))
    assert judge(arrays) == {"fused": True, "rounded": True, "subnormals": True}
    x, y = arrays[:2]
    arrays[2][0] = x[0] * x[0] - y[0]
    arrays[3][7] = np.nextafter(arrays[3][7], np.float32(9))
    arrays[5][1] = 0
    assert judge(arrays) == {"fused": False, "rounded": False, "subnormals": False}


@pytest.mark.parametrize("op", [Op.DIV, Op.SQRT])
def test_corrected_division_and_roots_are_exact_but_where_results_are_subnormal(op: Op) -> None:
    """From starts that are exact; on a device from the driver's own."""
    operands = (f32,) * (2 if op is Op.DIV else 1)
    trace = pointwise(lambda b, *v: b.pure(op, v), operands, f32)
    rng = np.random.default_rng(5)
    data = [edge_values(f32, 4000, rng) for _ in operands]
    wanted, found = _both(trace, data, f32, webgpu(rounded=False))
    normal = ~(np.abs(wanted) < np.finfo(np.float32).tiny)
    assert bits_equal(f32, wanted, found)[normal].all()
    assert np.abs(wanted[~normal] - found[~normal]).max() <= 2.0**-149


def test_sums_with_nothing_in_common_are_not_hidden() -> None:
    def parameters(make: Callable[..., Value], count: int) -> set[str]:
        trace = legalise(optimise(pointwise(make, (f32,) * count, f32)), webgpu())
        slots = lower(trace, webgpu(), PLAIN_VARIANT).interface.slots
        return {slot.source.kind for slot in slots}

    def weighted(b: Builder, x: Value, y: Value, z: Value) -> Value:
        weight = b.const(f32, 0.25)
        return b.pure(Op.FMA, (x, weight, b.pure(Op.FMA, (y, weight, z))))

    def rounded(b: Builder, x: Value) -> Value:
        shift = b.const(f32, 12582912.0)
        return b.pure(Op.SUB, (b.pure(Op.ADD, (x, shift)), shift))

    assert "zero" not in parameters(weighted, 3)
    assert "zero" in parameters(rounded, 1)


def test_barriers_wait_for_arrays_only_where_those_hand_something_over() -> None:
    def tiles(a: Any, out: Any) -> None:
        k = kj.local_id(0)
        tile = kj.shared(kj.f32, 64)
        tile[k] = a[k]
        kj.barrier()
        out[k] = tile[63 - k]

    def through_the_array(a: Any, out: Any) -> None:
        k = kj.local_id(0)
        out[k] = a[k]
        kj.barrier()
        out[k] = out[63 - k] + 1.0

    arguments = [(name, argument(f32)) for name in ("a", "out")]
    for kernel, waits in ((tiles, False), (through_the_array, True)):
        trace = recorded(kernel, arguments, workgroup=(64, 1, 1))
        ready = legalise(optimise(trace), webgpu())
        assert lower(ready, webgpu(), PLAIN_VARIANT).hands_over is waits
