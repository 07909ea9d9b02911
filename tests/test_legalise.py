"""Legal traces hold only what the target's row lists, and mean what they meant before."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from khaljit.codegen.caps import ROWS, Caps, row
from khaljit.codegen.integers import in_width
from khaljit.codegen.legalise import legalise
from khaljit.codegen.operations import REFUSED, cells
from khaljit.codegen.rounding import rounded_to_f16
from khaljit.codegen.writing import Writer
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import (
    ALL,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    index,
    u8,
    u16,
)
from khaljit.tracer.errors import CapabilityError, Site
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Options,
    Space,
    Trace,
    Value,
    values,
)
from khaljit.tracer.numerics import memory_type, to_memory
from khaljit.tracer.ops import MATH, OPS, Op, TypingError
from khaljit.tracer.passes.lower_access import lower_access
from khaljit.tracer.verify import verify
from tests.building import array_param, bits_equal, edge_values, kernel, pointwise, run_pointwise

_ROWS = ["llvm:x86-64", "llvm:x86-64-v2", "llvm:x86-64-v3"]
_BASE = row("llvm:x86-64")
_COUNT = 3000

_OPS = [
    op
    for op, info in OPS.items()
    if info.result is not None
    and not info.effect
    and op not in MATH
    and op not in (Op.TRUNCDIV, Op.TRUNCMOD)
]


def _check_legal(trace: Trace, caps: Caps) -> None:
    """Nothing but what the row lists."""
    verify(trace)
    for value in values(trace.body):
        if value.dtype is not None:
            assert value.dtype in caps.dtypes, value
            assert value.dtype is not index
        if value.is_effect or not value.args or value.op in (Op.RESULT, Op.SHAPE, Op.STRIDE):
            continue
        if value.op is Op.CAST:
            assert (value.args[0].type, value.type) in caps.casts, value
            continue
        works_in = value.args[1 if value.op is Op.SELECT else 0].type
        assert caps.takes(value.op, works_in), (value, works_in)
        if value.op in (Op.SHL, Op.SHR):
            assert in_width(value.args[1])


def _types(op: Op, dtype: DType) -> tuple[tuple[DType, ...], DType] | None:
    """Operand and result types of an operation that works in a type, if it does."""
    arity, result = OPS[op].arity, OPS[op].result
    assert arity is not None
    assert result is not None
    types = (bool_, dtype, dtype) if op is Op.SELECT else (dtype,) * arity
    try:
        return types, result(*types)
    except TypingError:
        return None


def _legal(trace: Trace, caps: Caps) -> Trace:
    legal = legalise(lower_access(trace), caps)
    _check_legal(legal, caps)
    return legal


@pytest.mark.parametrize("name", _ROWS)
@pytest.mark.parametrize("op", _OPS)
def test_operations_keep_every_bit(op: Op, name: str) -> None:
    rng = np.random.default_rng()
    for dtype in ALL:
        found = _types(op, dtype)
        if found is None:
            continue
        types, result = found
        trace = pointwise(lambda b, *args: b.pure(op, args), types, result)
        operands = [edge_values(t, _COUNT, rng) for t in types]
        expected = run_pointwise(trace, operands, result)
        got = run_pointwise(_legal(trace, row(name)), operands, result)
        same = bits_equal(result, expected, got)
        wrong = np.flatnonzero(~same)[:1]
        assert same.all(), (dtype, [o[wrong] for o in operands], expected[wrong], got[wrong])


@pytest.mark.parametrize("name", _ROWS)
@pytest.mark.parametrize("source", ALL)
def test_casts_keep_every_bit(source: DType, name: str) -> None:
    rng = np.random.default_rng()
    for target in ALL:
        trace = pointwise(lambda b, x, to=target: b.cast(x, to), (source,), target)
        operands = [edge_values(source, _COUNT, rng)]
        expected = run_pointwise(trace, operands, target)
        got = run_pointwise(_legal(trace, row(name)), operands, target)
        same = bits_equal(target, expected, got)
        wrong = np.flatnonzero(~same)[:1]
        assert same.all(), (target, operands[0][wrong], expected[wrong], got[wrong])


def test_every_f16_and_bf16_widens_and_comes_back_without_half_instructions() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (f16, bf16):
        trace = pointwise(lambda b, x, to=dtype: b.cast(b.cast(x, f32), to), (dtype,), dtype)
        raw = every.view(memory_type(dtype))
        got = run_pointwise(_legal(trace, _BASE), [raw], dtype)
        assert bits_equal(dtype, raw, got).all()


def test_f32_is_rounded_to_f16_by_integers() -> None:
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-2] + halves[1:-1]) / 2
    drawn = np.random.default_rng().integers(0, 1 << 32, 1 << 14, np.uint32).view(np.float32)
    past = np.array([65519.99, 65520, 65536, np.nan, 2.0**-25, 2.0**-26, 1e-45], np.float32)
    x = np.concatenate((halves, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9)))
    x = np.concatenate((x, -x, drawn, past))

    def rounded(builder: Builder, x: Value) -> Value:
        writer = Writer(builder, lambda op, args, dtype: builder.pure(op, args, None, dtype))
        return rounded_to_f16(writer, x)

    got = run_pointwise(pointwise(rounded, (f32,), f32), [x], f32)
    with np.errstate(all="ignore"):
        assert bits_equal(f32, x.astype(np.float16).astype(np.float32), got).all()


# Fused multiply-add.


def _exact_fma(a: float, b: float, c: float) -> float:
    """a * b + c of finite numbers, rounded once, through rationals."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return a * b + c
    try:
        rounded = abs(exact.numerator) / exact.denominator
    except OverflowError:
        rounded = float("inf")
    return rounded if exact > 0 else -rounded


def _close_triples(count: int, rng: np.random.Generator) -> list[Array]:
    """Addends that nearly cancel a product, or stand half a bit or far away from it."""
    a = np.ldexp(rng.random(count) + 0.5, rng.integers(-540, 500, count))
    b = np.ldexp(rng.random(count) + 0.5, rng.integers(-540, 500, count))
    few = rng.random(count) < 0.3
    a = np.where(few, np.ldexp(np.round(np.ldexp(np.frexp(a)[0], 12)), np.frexp(a)[1] - 12), a)
    b = np.where(few, np.ldexp(np.round(np.ldexp(np.frexp(b)[0], 12)), np.frexp(b)[1] - 12), b)
    with np.errstate(all="ignore"):
        near = -(a * b)
        far = np.ldexp(near, rng.integers(-115, 115, count))
        power = np.ldexp(np.sign(near), np.frexp(near)[1] + rng.integers(-110, 110, count))
    nudged = (near.view(np.int64) + rng.integers(-2, 3, count)).view(np.float64)
    choice = rng.integers(0, 4, count)
    c = np.choose(choice, [near, nudged, far, power])
    finite = np.isfinite(c)
    signs = np.where(rng.random(count) < 0.5, -1.0, 1.0)
    return [a * signs, b, np.where(finite, c, 1.0)]


def test_fma_of_f64_without_the_instruction_rounds_once() -> None:
    rng = np.random.default_rng()
    operands = _close_triples(20_000, rng)
    trace = pointwise(lambda b, *args: b.pure(Op.FMA, args), (f64, f64, f64), f64)
    got = run_pointwise(_legal(trace, _BASE), operands, f64)
    rows = zip(*(operand.tolist() for operand in operands), strict=True)
    expected = np.array([_exact_fma(*triple) for triple in rows])
    assert bits_equal(f64, expected, got).all()


def test_fma_of_f32_without_the_instruction_rounds_once() -> None:
    rng = np.random.default_rng()
    a, b = (rng.standard_normal(20_000).astype(np.float32) for _ in range(2))
    scale = rng.integers(-80, 80, len(a))
    c = np.ldexp(-(a.astype(np.float64) * b), scale).astype(np.float32)
    trace = pointwise(lambda b, *args: b.pure(Op.FMA, args), (f32, f32, f32), f32)
    expected = run_pointwise(trace, [a, b, c], f32)
    assert bits_equal(f32, expected, run_pointwise(_legal(trace, _BASE), [a, b, c], f32)).all()


def test_fma_is_left_where_the_target_has_it() -> None:
    trace = pointwise(lambda b, *args: b.pure(Op.FMA, args), (f32, f32, f32), f32)
    for name, left in (("llvm:x86-64-v3", True), ("llvm:aarch64", True), ("llvm:x86-64", False)):
        ops = {value.op for value in values(_legal(trace, row(name)).body)}
        assert (Op.FMA in ops) is left


# Floor division and modulo of floats.


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("op", [Op.MOD, Op.FLOORDIV])
def test_float_division_is_exact_for_huge_quotients(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng()
    most = 126 if dtype is f32 else 1000
    x = np.ldexp(rng.standard_normal(3000), rng.integers(-most, most, 3000))
    y = np.ldexp(rng.standard_normal(3000), rng.integers(-most, most, 3000))
    operands = [x.astype(dtype.numpy), y.astype(dtype.numpy)]
    trace = pointwise(lambda b, *args: b.pure(op, args), (dtype, dtype), dtype)
    expected = run_pointwise(trace, operands, dtype)
    got = run_pointwise(_legal(trace, row("llvm:x86-64-v3")), operands, dtype)
    assert bits_equal(dtype, expected, got).all()


def test_a_float_remainder_is_built_again_for_a_use_in_another_arm() -> None:
    """The expansion holds a loop, which is visible only where it stands."""
    params = [array_param(k, f32, 1, 0) for k in range(2)]

    def build(b: Builder) -> None:
        i = b.id("global")
        memory, out = (b.memory(p.memory) for p in params)
        x = b.load(memory, (i,), f32, Access())
        rest = b.pure(Op.MOD, (x, b.const(f32, 1.5)))
        arms = []
        for number in (1.0, 2.0):
            b.open()
            b.store(out, (i,), b.pure(Op.ADD, (rest, b.const(f32, number))), Access())
            b.end(Op.YIELD)
            arms.append(b.close())
        b.if_(b.pure(Op.LT, (x, b.const(f32, 0))), arms[0], arms[1])
        b.store(memory, (i,), rest, Access())

    trace = kernel(build, params)
    legal = _legal(trace, row("llvm:x86-64-v3"))
    x = edge_values(f32, 500, np.random.default_rng())
    outcomes = []
    for one in (trace, legal):
        arrays = [x.copy(), np.zeros_like(x)]
        interpret(one, arrays, [], (500, 1, 1))
        outcomes.append(arrays)
    for expected, got in zip(*outcomes, strict=True):
        assert bits_equal(f32, expected, got).all()


def test_sine_and_cosine_share_the_reduction_of_their_angle() -> None:
    """Where one stands in an arm of a branch, what it reduced is not used outside."""
    params = [array_param(k, f32, 1, 0) for k in range(3)]

    def build(b: Builder) -> None:
        i = b.id("global")
        memory, first, second = (b.memory(p.memory) for p in params)
        x = b.load(memory, (i,), f32, Access())
        b.open()
        b.store(first, (i,), b.pure(Op.SIN, (x,)), Access())
        b.end(Op.YIELD)
        arm = b.close()
        b.open()
        b.end(Op.YIELD)
        b.if_(b.pure(Op.LT, (x, b.const(f32, 0))), arm, b.close())
        waves = b.pure(Op.ADD, (b.pure(Op.COS, (x,)), b.pure(Op.SIN, (x,))))
        b.store(second, (i,), waves, Access())

    trace = kernel(build, params)
    legal = _legal(trace, row("llvm:x86-64-v3"))
    branches = [value for value in values(legal.body) if value.op is Op.IF]
    assert len(branches) == 3  # the kernel's own, and one reduction inside and one outside
    x = np.random.default_rng().uniform(-1e9, 1e9, 500).astype(np.float32)
    arrays = [x, np.zeros_like(x), np.zeros_like(x)]
    interpret(legal, arrays, [], (500, 1, 1))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(arrays[1], np.where(x < 0, np.sin(wide), 0), atol=1e-6)
    np.testing.assert_allclose(arrays[2], np.sin(wide) + np.cos(wide), atol=1e-6)


# Atomics.


def _atomic_kernel(kind: str, dtype: DType, operands: int) -> Trace:
    """out[i] = the old value of an atomic on cells[0], with the operands from arrays."""
    element = Element(8, 8, ((0, dtype),))
    params = [
        array_param(0, element),
        *(array_param(k + 1, dtype, 1, 1) for k in range(operands)),
        array_param(operands + 1, dtype, 1, 1 if operands else None),
    ]

    def build(b: Builder) -> None:
        i = b.id("global")
        cells, *rest = (b.memory(param.memory) for param in params)
        args = [b.load(memory, (i,), dtype, Access()) for memory in rest[:-1]]
        where = b.pure(Op.MUL, (i, b.const(index, 7)))  # in bounds for the first lanes only
        access = AtomicAccess(0, kind=kind)
        old = b.effect(Op.ATOMIC, (cells, where, *args), access, dtype)
        b.store(rest[-1], (i,), old, Access())
        one = b.const(index, 1)
        b.store(cells, (one,), b.load(cells, (b.const(index, 0),), dtype, Access()), Access())

    return kernel(build, params)


_KINDS = {"load": 0, "store": 1, "exchange": 1, "compare_exchange": 2, "add": 1, "min": 1}


@pytest.mark.parametrize("kind", [*_KINDS, "sub", "max"])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_float_atomics_go_through_their_bits(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng()
    caps = replace(_BASE, atomics=frozenset(a for a in _BASE.atomics if a[1].is_integer))
    count = _KINDS.get(kind, 1)
    trace = _atomic_kernel(kind, dtype, count)
    legal = legalise(lower_access(trace), caps)
    _check_legal(legal, caps)
    kinds = {v.attr.kind: v.type for v in values(legal.body) if isinstance(v.attr, AtomicAccess)}
    assert all(t.is_integer for t in kinds.values())
    cells = np.zeros(20, np.dtype({"names": ["x"], "formats": [memory_type(dtype)], "itemsize": 8}))
    cells["x"] = edge_values(dtype, 20, rng)
    operands = [edge_values(dtype, 9, rng) for _ in range(count)]
    if kind == "compare_exchange":
        operands[0][0] = cells["x"][0]
    outcomes = []
    for one in (trace, legal):
        arrays = [cells.copy(), *operands, np.zeros(9, memory_type(dtype))]
        interpret(one, arrays, [], (9, 1, 1))
        outcomes.append((arrays[0]["x"].copy(), arrays[-1]))
    for expected, got in zip(*outcomes, strict=True):
        assert bits_equal(dtype, expected, got).all()


@pytest.mark.parametrize("kind", ["load", "store", "exchange", "and", "or", "xor"])
def test_bool_atomics_work_on_bytes_of_which_any_bit_is_true(kind: str) -> None:
    trace = _atomic_kernel(kind, bool_, _KINDS.get(kind, 1))
    legal = _legal(trace, _BASE)
    rng = np.random.default_rng()
    cells = np.zeros(20, np.dtype({"names": ["x"], "formats": [np.uint8], "itemsize": 8}))
    cells["x"] = rng.integers(0, 4, 20)
    operands = [edge_values(bool_, 9, rng) for _ in range(_KINDS.get(kind, 1))]
    outcomes = []
    for one in (trace, legal):
        arrays = [cells.copy(), *operands, np.zeros(9, np.uint8)]
        interpret(one, arrays, [], (9, 1, 1))
        outcomes.append((arrays[0]["x"] != 0, arrays[-1] != 0))
    for expected, got in zip(*outcomes, strict=True):
        assert (expected == got).all()


def test_atomics_that_the_target_has_stay() -> None:
    legal = _legal(_atomic_kernel("add", f32, 1), _BASE)
    (atomic,) = (value for value in values(legal.body) if value.op is Op.ATOMIC)
    assert atomic.dtype is f32


# Carrying 16-bit floats.


def test_16_bit_floats_cross_loops_branches_and_parameters_as_integers() -> None:
    for dtype in (f16, bf16):
        params = [array_param(k, dtype, 1, 0) for k in range(2)]

        def build(b: Builder, dtype: DType = dtype, params: list[ArrayParam] = params) -> None:
            i = b.id("global")
            memory, out = (b.memory(p.memory) for p in params)
            x = b.load(memory, (i,), dtype, Access())
            count, total = b.open((i32, dtype))
            b.open()
            b.end(Op.BREAK, (total,))
            leave = b.close()
            b.open()
            b.end(Op.YIELD)
            b.if_(b.pure(Op.GE, (count, b.const(i32, 5))), leave, b.close())
            more = b.pure(Op.ADD, (total, b.pure(Op.MUL, (x, b.scalar(0, dtype)))))
            b.end(Op.CONTINUE, (b.pure(Op.ADD, (count, b.const(i32, 1))), more))
            (total,) = b.loop((b.const(i32, 0), b.const(dtype, 0.5)), b.close(), (dtype,))
            b.store(out, (i,), total, Access())

        trace = kernel(build, params, [dtype])
        legal = _legal(trace, _BASE)
        assert legal.scalars[0].dtype is u16
        assert {value.dtype for value in values(legal.body)}.isdisjoint({f16, bf16})
        x = edge_values(dtype, 400, np.random.default_rng())
        factor = 1.5
        expected, got = np.zeros_like(x), np.zeros_like(x)
        raw = to_memory(dtype, np.array(factor, np.float32))
        interpret(trace, [x.copy(), expected], [factor], (400, 1, 1))
        interpret(legal, [x.copy(), got], [int(raw.view(np.uint16))], (400, 1, 1))
        assert bits_equal(dtype, expected, got).all()


# Refusals.


def _refused(trace: Trace, caps: Caps) -> CapabilityError:
    with pytest.raises(CapabilityError) as caught:
        legalise(lower_access(trace), caps)
    return caught.value


def test_a_type_that_the_target_lacks_is_refused_with_the_line_and_a_mend() -> None:
    caps = replace(_BASE, name="small", dtypes=_BASE.dtypes - {f64})
    site = Site(__file__, 1)

    def make(b: Builder, x: Value) -> Value:
        b.at = site
        return b.pure(Op.SQRT, (x,))

    error = _refused(pointwise(make, (f64,), f64), caps)
    assert "small has no f64" in error.message
    assert error.mend is not None
    assert "cast to f32" in error.mend
    assert "llvm:x86-64-v3" in error.mend


def test_an_operation_without_an_expansion_is_refused() -> None:
    caps = replace(_BASE, ops=_BASE.ops - {(Op.MULHI, u8)})
    trace = pointwise(lambda b, *args: b.pure(Op.MULHI, args), (u8, u8), u8)
    assert "mulhi in u8" in _refused(trace, caps).message


def test_a_workgroup_that_is_too_large_is_refused() -> None:
    trace = kernel(lambda b: None, workgroup=(64, 64, 1))
    assert "64 x 64 x 1" in _refused(trace, _BASE).message


def test_too_much_shared_memory_is_refused_with_what_takes_how_much() -> None:
    memories = [Memory(Space.SHARED, k, Element.scalar(f32), (1 << 15, 2)) for k in range(2)]

    def build(b: Builder) -> None:
        zero = b.const(index, 0)
        for memory in memories:
            b.store(b.memory(memory), (zero, zero), b.const(f32, 0), Access())

    message = _refused(kernel(build, workgroup=(8, 1, 1)), _BASE).message
    assert "524288 bytes" in message
    assert message.count("32768 x 2 elements of 4 bytes") == 2


# Rows.


def test_rows_are_found_by_their_names() -> None:
    for name, caps in ROWS.items():
        assert row(name) is caps
        assert caps.name == name
    with pytest.raises(KeyError):
        row("llvm:z80")


@pytest.mark.parametrize("name", [name for name in ROWS if not name.startswith("webgpu")])
def test_every_operation_is_taken_or_has_an_expansion(name: str) -> None:
    for op, signs in cells(row(name))["Operations"].items():
        assert REFUSED not in signs, op


def test_elementary_functions_are_expanded() -> None:
    for dtype in (f16, bf16, f32, f64):
        trace = pointwise(
            lambda b, x: b.pure(Op.EXP, (x,)), (dtype,), dtype, Options(contract=True)
        )
        legal = _legal(trace, _BASE)
        assert {value.op for value in values(legal.body)}.isdisjoint(MATH)
