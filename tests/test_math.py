"""The elementary functions' expansions: errors against mpmath, special values, and what they use.

The expansions are evaluated operation by operation with NumPy's meaning of each, so this tests
the expansions and no code generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from khaljit.codegen.math.bounds import bound
from khaljit.codegen.math.expand import BRANCHING, expand
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, bool_, f32, f64, i32, i64, u32, u64
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Value
from khaljit.tracer.numerics import evaluate, from_bits
from khaljit.tracer.ops import MATH, Op
from tests.building import pointwise, run_pointwise
from tests.exact import EXACT, MP

_INF: Final = math.inf
_NAN: Final = math.nan
_TWO: Final = frozenset({Op.POW, Op.HYPOT, Op.ATAN2})
_FUNCTIONS: Final = sorted(MATH, key=lambda op: op.value)
_DTYPES: Final = (f32, f64)
_SEED: Final = np.random.SeedSequence().entropy

# Where to sample: uniform intervals for f32; f64 scales the ones marked by its wider exponents.
_INTERVALS: Final[dict[Op, tuple[tuple[float, float], ...]]] = {
    Op.EXP: ((-2, 2), (-104, -86), (86, 89)),
    Op.EXP2: ((-2, 2), (-150, -124), (125, 128)),
    Op.EXP10: ((-2, 2), (-46, -37), (36, 38.5)),
    Op.EXPM1: ((-2, 2), (-20, 90)),
    Op.LOG: ((0.5, 2), (0, 100)),
    Op.LOG2: ((0.5, 2), (0, 100)),
    Op.LOG10: ((0.5, 2), (0, 100)),
    Op.LOG1P: ((-1, 2), (-0.1, 0.1), (0, 1e9)),
    Op.RSQRT: ((0, 4),),
    Op.CBRT: ((-8, 8),),
    Op.SIN: ((-4, 4), (-1e5, 1e5), (-1e7, 1e7)),
    Op.COS: ((-4, 4), (-1e5, 1e5), (-1e7, 1e7)),
    Op.TAN: ((-4, 4), (-1e5, 1e5), (-1e7, 1e7)),
    Op.ASIN: ((-1, 1), (0.9, 1)),
    Op.ACOS: ((-1, 1), (0.9, 1)),
    Op.ATAN: ((-2, 2), (0, 100)),
    Op.SINH: ((-2, 2), (-90, 90)),
    Op.COSH: ((-2, 2), (-90, 90)),
    Op.TANH: ((-2, 2), (0, 20)),
    Op.ASINH: ((-2, 2), (0, 1e9)),
    Op.ACOSH: ((1, 3), (1, 1e9)),
    Op.ATANH: ((-1, 1), (0.9, 1)),
    Op.ERF: ((-2, 2), (0, 7)),
    Op.ERFC: ((-2, 2), (0, 10.1)),
    Op.TGAMMA: ((-4, 4), (-43, 35)),
    Op.LGAMMA: ((0, 4), (-43, 35)),
}
_WIDE: Final = frozenset({Op.EXP, Op.EXP2, Op.EXP10, Op.EXPM1, Op.SINH, Op.COSH})


def _compute(op: Op, dtype: DType, *inputs: Array, fastmath: bool = False) -> Array:
    """The function by its expansion, as an array."""
    builder = Builder()
    scalars = tuple(builder.scalar(k, dtype) for k in range(len(inputs)))
    result = expand(builder, op, scalars, fastmath)
    known: dict[Value, Array] = dict(zip(scalars, inputs, strict=True))
    for value in _in_order(result):
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            known[value] = from_bits(value.type, value.attr, 32)
        elif value not in known:
            args = tuple(known[arg] for arg in value.args)
            types = tuple(arg.type for arg in value.args)
            known[value] = evaluate(value.op, value.type, types, args, 32)
    return np.broadcast_to(known[result], inputs[0].shape)


def _in_order(result: Value) -> list[Value]:
    """All values behind a result, operands first."""
    order: dict[Value, None] = {}
    stack = [(result, False)]
    while stack:
        value, ready = stack.pop()
        if ready:
            order[value] = None
        elif value not in order:
            stack.append((value, True))
            stack.extend((arg, False) for arg in value.args)
    return list(order)


@cache
def _limits(dtype: DType) -> tuple[int, int]:
    """Precision and least exponent of a format."""
    return (24, -126) if dtype is f32 else (53, -1022)


def _error(result: float, exact: Any, dtype: DType, scale: Any) -> float:
    """|result - exact| in ulps of ``scale``; an infinite result counts as the next power of 2."""
    precision, least = _limits(dtype)
    exponent = max(int(MP.frexp(scale)[1]) - 1, least)
    top = MP.ldexp(1, 2 - least)
    if math.isinf(result):
        result = math.copysign(1, result) * top
        exact = MP.sign(exact) * min(abs(exact), top)
    elif abs(exact) >= top:
        exact = MP.sign(exact) * top
        exponent = 1 - least
    return float(abs(result - exact) / MP.ldexp(1, exponent - precision + 1))


def _worst(op: Op, dtype: DType, *inputs: Array) -> tuple[float, tuple[float, ...]]:
    """The largest error over some arguments, and where it is."""
    results = _compute(op, dtype, *inputs)
    worst = (0.0, (0.0,))
    for row, result in zip(zip(*(a.tolist() for a in inputs), strict=True), results, strict=True):
        exact = EXACT[op](*(MP.mpf(x) for x in row))
        if exact == 0:
            assert result == 0, (op, row, result)
            continue
        scale = exact
        if op is Op.LGAMMA and row[0] < 0:
            scale = max(abs(exact), abs(EXACT[op](-row[0])), 1)
        assert not math.isnan(result), (op, row, exact)
        worst = max(worst, (_error(float(result), exact, dtype, scale), row))
    return worst


def _bits(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Floats of random bits, without infinities and NaN."""
    unsigned = np.uint32 if dtype is f32 else np.uint64
    values: Array = rng.integers(0, 1 << dtype.bits, count, unsigned, endpoint=False)
    floats: Array = values.view(dtype.numpy)[np.isfinite(values.view(dtype.numpy))]
    return floats


def _in_domain(op: Op, x: Array) -> Array:
    """Without poles, arguments outside the domain, and results far past the format's range."""
    reach = 40.0 if x.dtype == np.float32 else 180.0
    domains: dict[Op, Callable[[Array], Array]] = {
        Op.LOG: lambda x: x > 0,
        Op.LOG2: lambda x: x > 0,
        Op.LOG10: lambda x: x > 0,
        Op.RSQRT: lambda x: x > 0,
        Op.LOG1P: lambda x: x > -1,
        Op.ASIN: lambda x: abs(x) <= 1,
        Op.ACOS: lambda x: abs(x) <= 1,
        Op.ATANH: lambda x: abs(x) < 1,
        Op.ACOSH: lambda x: x >= 1,
        Op.ERFC: lambda x: x < 30,
        Op.TGAMMA: lambda x: (x != np.floor(x)) & (abs(x) < reach),
        Op.LGAMMA: lambda x: ((x > 0) | (x != np.floor(x))) & (x > -1e6),
    }
    if op in _WIDE:
        return x[abs(x) < 2000]
    return x[domains[op](x)] if op in domains else x


def _samples(op: Op, dtype: DType, rng: np.random.Generator) -> Array:
    parts = [_bits(dtype, 120, rng).astype(np.float64)]
    for low, high in _INTERVALS[op]:
        factor = 8 if dtype is f64 and op in _WIDE and high - low > 4 else 1
        parts.append(rng.uniform(low * factor, high * factor, 60))
        near = np.array([low, high]) * factor
        parts.append(near * (1 + rng.uniform(-1e-7, 1e-7, 2)))
    return _in_domain(op, np.concatenate(parts).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", [op for op in _FUNCTIONS if op not in _TWO], ids=str)
def test_errors_stay_within_the_bound(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(_SEED)
    worst, where = _worst(op, dtype, _samples(op, dtype, rng))
    assert worst <= bound(op, dtype), f"{worst} ulp at {where!r}, seed {_SEED}"


def _pairs(op: Op, dtype: DType, rng: np.random.Generator) -> tuple[Array, Array]:
    x = np.concatenate([_bits(dtype, 150, rng), rng.uniform(0.5, 2, 150).astype(dtype.numpy)])
    if op is Op.POW:
        x = abs(x)[x != 0]
        reach = 148.0 if dtype is f32 else 1070.0
        logs = np.array([float(MP.log(v, 2)) for v in x.tolist()])
        logs[logs == 0] = 1
        y = (rng.uniform(-reach, 0.86 * reach, len(x)) / logs).astype(dtype.numpy)
        return x, y
    ratio = np.exp2(rng.uniform(-8, 8, len(x))) * rng.choice([-1, 1], len(x))
    with np.errstate(over="ignore"):
        y = (x * ratio.astype(dtype.numpy)).astype(dtype.numpy)
    kept = np.isfinite(y) & (x != 0)
    return x[kept], y[kept]


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", sorted(_TWO, key=str), ids=str)
def test_errors_of_functions_of_two_stay_within_the_bound(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(_SEED)
    worst, where = _worst(op, dtype, *_pairs(op, dtype, rng))
    assert worst <= bound(op, dtype), f"{worst} ulp at {where!r}, seed {_SEED}"


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", [Op.SIN, Op.COS, Op.TAN], ids=str)
def test_arguments_of_every_exponent_are_reduced_exactly(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(_SEED)
    exponents = np.arange(10, 127.9 if dtype is f32 else 1023.9, 0.45 if dtype is f32 else 4.1)
    x = (np.exp2(exponents) * rng.choice([-1, 1], len(exponents))).astype(dtype.numpy)
    # Next to multiples of pi / 2, and the doubles that are closest to one.
    near = [float(MP.mpf(int(k)) * MP.pi / 2) for k in rng.integers(1, 1 << 22, 60)]
    hard = [6381956970095103.0 * 2.0**797, 5.319372648326541e255] if dtype is f64 else [16367173.0]
    x = np.concatenate([x, np.array(near + hard, dtype.numpy)])
    worst, where = _worst(op, dtype, x)
    assert worst <= bound(op, dtype), f"{worst} ulp at {where!r}, seed {_SEED}"


# Arguments and results as C99, annex F (and C23's rsqrt) has them.
_SPECIAL: Final[dict[Op, list[tuple[tuple[float, ...], float]]]] = {
    Op.EXP: [((0.0,), 1.0), ((-0.0,), 1.0), ((_INF,), _INF), ((-_INF,), 0.0), ((1e6,), _INF)],
    Op.EXP2: [((0.0,), 1.0), ((_INF,), _INF), ((-_INF,), 0.0), ((-1e30,), 0.0), ((10.0,), 1024.0)],
    Op.EXP10: [((-0.0,), 1.0), ((_INF,), _INF), ((-_INF,), 0.0), ((1e30,), _INF)],
    Op.EXPM1: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), _INF), ((-_INF,), -1.0), ((1e6,), _INF)],
    Op.LOG: [((1.0,), 0.0), ((0.0,), -_INF), ((-0.0,), -_INF), ((-1.0,), _NAN), ((_INF,), _INF)],
    Op.LOG2: [((1.0,), 0.0), ((0.0,), -_INF), ((-_INF,), _NAN), ((_INF,), _INF), ((8.0,), 3.0)],
    Op.LOG10: [((1.0,), 0.0), ((-0.0,), -_INF), ((-1e-30,), _NAN), ((_INF,), _INF)],
    Op.LOG1P: [
        *[((0.0,), 0.0), ((-0.0,), -0.0), ((-1.0,), -_INF), ((-1.5,), _NAN), ((_INF,), _INF)],
        ((-_INF,), _NAN),
    ],
    Op.POW: [
        *[((_NAN, 0.0), 1.0), ((_NAN, -0.0), 1.0), ((1.0, _NAN), 1.0), ((_INF, 0.0), 1.0)],
        *[((-1.0, _INF), 1.0), ((-1.0, -_INF), 1.0), ((1.0, -_INF), 1.0), ((-1.0, _NAN), _NAN)],
        *[((0.0, -3.0), _INF), ((-0.0, -3.0), -_INF), ((-0.0, -2.0), _INF), ((0.0, -0.5), _INF)],
        *[((-0.0, 3.0), -0.0), ((-0.0, 2.0), 0.0), ((-0.0, 0.5), 0.0), ((0.0, 3.0), 0.0)],
        *[((0.5, -_INF), _INF), ((0.5, _INF), 0.0), ((2.0, _INF), _INF), ((-2.0, -_INF), 0.0)],
        *[((-_INF, 3.0), -_INF), ((-_INF, 2.0), _INF), ((-_INF, 0.5), _INF)],
        *[((-_INF, -3.0), -0.0), ((-_INF, -2.0), 0.0), ((_INF, -1.0), 0.0), ((_INF, 2.0), _INF)],
        *[((-2.0, 0.5), _NAN), ((-2.0, 3.0), -8.0), ((-2.0, 2.0), 4.0), ((_NAN, 1.0), _NAN)],
        *[((0.0, _INF), 0.0), ((0.0, -_INF), _INF), ((2.0, 10.0), 1024.0), ((0.0, _NAN), _NAN)],
        *[((-2.0, 1e30), _INF), ((3.0, -1e30), 0.0), ((1.0, 1e30), 1.0), ((-1.0, 5.0), -1.0)],
    ],
    Op.RSQRT: [((0.0,), _INF), ((-0.0,), -_INF), ((_INF,), 0.0), ((-1.0,), _NAN), ((4.0,), 0.5)],
    Op.CBRT: [
        *[((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), _INF), ((-_INF,), -_INF)],
        *[((27.0,), 3.0), ((-8.0,), -2.0), ((1.0,), 1.0)],
    ],
    Op.HYPOT: [
        *[((_INF, _NAN), _INF), ((_NAN, -_INF), _INF), ((_NAN, 1.0), _NAN), ((3.0, 4.0), 5.0)],
        *[((0.0, -0.0), 0.0), ((-0.0, -0.0), 0.0), ((0.0, -2.0), 2.0), ((1.0, _NAN), _NAN)],
    ],
    Op.SIN: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), _NAN), ((-_INF,), _NAN)],
    Op.COS: [((0.0,), 1.0), ((-0.0,), 1.0), ((_INF,), _NAN), ((-_INF,), _NAN)],
    Op.TAN: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), _NAN), ((-_INF,), _NAN)],
    Op.ASIN: [((0.0,), 0.0), ((-0.0,), -0.0), ((1.5,), _NAN), ((-_INF,), _NAN)],
    Op.ACOS: [((1.0,), 0.0), ((1.5,), _NAN), ((_INF,), _NAN)],
    Op.ATAN: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), math.pi / 2), ((-_INF,), -math.pi / 2)],
    Op.ATAN2: [
        *[((0.0, 0.0), 0.0), ((-0.0, 0.0), -0.0), ((0.0, -0.0), math.pi)],
        *[((-0.0, -0.0), -math.pi), ((0.0, -1.0), math.pi), ((-0.0, 1.0), -0.0)],
        *[((1.0, 0.0), math.pi / 2), ((-1.0, -0.0), -math.pi / 2), ((1.0, _INF), 0.0)],
        *[((-1.0, -_INF), -math.pi), ((_INF, 1.0), math.pi / 2), ((_INF, _INF), math.pi / 4)],
        *[((_INF, -_INF), 3 * math.pi / 4), ((-_INF, -_INF), -3 * math.pi / 4)],
        *[((_NAN, 1.0), _NAN), ((1.0, _NAN), _NAN), ((-2.0, 2.0), -math.pi / 4)],
    ],
    Op.SINH: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), _INF), ((-_INF,), -_INF), ((1e6,), _INF)],
    Op.COSH: [((0.0,), 1.0), ((-0.0,), 1.0), ((_INF,), _INF), ((-_INF,), _INF), ((-1e6,), _INF)],
    Op.TANH: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), 1.0), ((-_INF,), -1.0)],
    Op.ASINH: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), _INF), ((-_INF,), -_INF)],
    Op.ACOSH: [((1.0,), 0.0), ((0.5,), _NAN), ((_INF,), _INF), ((-_INF,), _NAN)],
    Op.ATANH: [
        *[((0.0,), 0.0), ((-0.0,), -0.0), ((1.0,), _INF), ((-1.0,), -_INF)],
        *[((1.5,), _NAN), ((-_INF,), _NAN)],
    ],
    Op.ERF: [((0.0,), 0.0), ((-0.0,), -0.0), ((_INF,), 1.0), ((-_INF,), -1.0)],
    Op.ERFC: [((0.0,), 1.0), ((_INF,), 0.0), ((-_INF,), 2.0), ((1e30,), 0.0)],
    Op.TGAMMA: [
        *[((0.0,), _INF), ((-0.0,), -_INF), ((-3.0,), _NAN), ((-_INF,), _NAN), ((_INF,), _INF)],
        *[((1e30,), _INF), ((-1e30,), _NAN)],
    ],
    Op.LGAMMA: [
        *[((0.0,), _INF), ((-0.0,), _INF), ((-3.0,), _INF), ((-_INF,), _INF), ((_INF,), _INF)],
        *[((1.0,), 0.0), ((2.0,), 0.0), ((-1e30,), _INF)],
    ],
}


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", _FUNCTIONS, ids=str)
def test_special_values_are_those_of_c(op: Op, dtype: DType) -> None:
    cases = [*_SPECIAL[op], *([] if op in _TWO else [((_NAN,), _NAN)])]
    columns = zip(*(args for args, _ in cases), strict=True)
    results = _compute(op, dtype, *(np.array(column, dtype.numpy) for column in columns))
    for (args, expected), result in zip(cases, results.tolist(), strict=True):
        if math.isnan(expected):
            assert math.isnan(result), (args, result)
        elif expected == 0 or math.isinf(expected):
            assert result == expected, (args, result)
            assert math.copysign(1, result) == math.copysign(1, expected), (args, result)
        else:
            assert result == dtype.numpy.type(expected), (args, result)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", _FUNCTIONS, ids=str)
def test_any_nan_gives_nan(op: Op, dtype: DType) -> None:
    """Whatever its sign and its other bits are: they must not be taken for a number's."""
    rng = np.random.default_rng(_SEED)
    unsigned = np.dtype(f"u{dtype.size}").type
    random = rng.integers(0, 1 << dtype.bits, 500, unsigned)
    nan = np.array(math.inf, dtype.numpy).view(unsigned) | random | unsigned(1)
    x = nan.view(dtype.numpy)
    other = rng.uniform(0.5, 2, 500).astype(dtype.numpy)
    assert np.isnan(_compute(op, dtype, x, *([other] if op in _TWO else []))).all()
    if op in _TWO:
        assert np.isnan(_compute(op, dtype, other, x)).all()


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize(
    "op",
    sorted(
        {
            Op.SIN,
            Op.TAN,
            Op.ASIN,
            Op.ATAN,
            Op.SINH,
            Op.TANH,
            Op.ASINH,
            Op.ATANH,
            Op.EXPM1,
            Op.LOG1P,
        },
        key=str,
    ),
    ids=str,
)
def test_subnormal_arguments_come_back(op: Op, dtype: DType) -> None:
    tiny = float(np.finfo(dtype.numpy).smallest_subnormal)
    x = (np.array([1, -1, 3, -5, 1001]) * tiny).astype(dtype.numpy)
    np.testing.assert_array_equal(_compute(op, dtype, x), x)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_powers_of_two_are_exact(dtype: DType) -> None:
    precision, least = _limits(dtype)
    exponents = np.arange(least - precision + 1, 1 - least + 1).astype(dtype.numpy)
    powers = np.ldexp(dtype.numpy.type(1), exponents.astype(np.int32))
    np.testing.assert_array_equal(_compute(Op.EXP2, dtype, exponents), powers)
    np.testing.assert_array_equal(_compute(Op.LOG2, dtype, powers), exponents)
    two = np.full_like(exponents, 2)
    np.testing.assert_array_equal(_compute(Op.POW, dtype, two, exponents), powers)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", _FUNCTIONS, ids=str)
def test_expansions_are_pure_and_use_their_own_width_only(op: Op, dtype: DType) -> None:
    own = {f32: {f32, i32, u32, bool_}, f64: {f64, i64, u64, bool_}}[dtype]
    builder = Builder()
    builder.open()
    count = 2 if op in _TWO else 1
    result = expand(builder, op, tuple(builder.scalar(k, dtype) for k in range(count)), False)
    builder.end(Op.YIELD)
    assert not builder.close().body
    assert result.dtype is dtype
    order = _in_order(result)
    assert {value.type for value in order} <= own
    assert not {value.op for value in order} & MATH


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("op", _FUNCTIONS, ids=str)
def test_fast_maths_differs_for_huge_arguments_only(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(_SEED)
    x = [rng.uniform(-1e4, 1e4, 200).astype(dtype.numpy) for _ in range(2 if op in _TWO else 1)]
    fast = _compute(op, dtype, *x, fastmath=True)
    np.testing.assert_array_equal(fast, _compute(op, dtype, *x))


@pytest.mark.parametrize(("op", "dtype"), sorted(BRANCHING, key=str), ids=str)
def test_a_branch_gives_the_same_bits(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(_SEED)
    count = 2 if op in _TWO else 1
    x = [
        np.concatenate([_bits(dtype, 300, rng)[:250], rng.uniform(-9, 9, 100).astype(dtype.numpy)])
        for _ in range(count)
    ]

    def make(builder: Builder, *operands: Value) -> Value:
        return expand(builder, op, operands, False, BRANCHING)

    trace = pointwise(make, [dtype] * count, dtype)
    assert Op.IF in {effect.op for effect in trace.body.body}
    np.testing.assert_array_equal(run_pointwise(trace, x, dtype), _compute(op, dtype, *x))
