"""NumPy's meaning of every pure operation, judged by exact integers and rationals."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from khaljit.tracer.dtypes import (
    ALL,
    FLOATS,
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
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.numerics import (
    evaluate,
    from_bits,
    from_memory,
    held,
    meaning,
    memory_type,
    to_memory,
)
from khaljit.tracer.ops import COMPARISONS, MATH, OPS, Op

Array = NDArray[Any]

# Significand bits, least and greatest exponent.
FORMATS: Final = {
    f16: (11, -14, 15),
    bf16: (8, -126, 127),
    f32: (24, -126, 127),
    f64: (53, -1022, 1023),
}
LEAVES: Final = {
    Op.CONST,
    Op.SCALAR,
    Op.MEMORY,
    Op.ID,
    Op.SHAPE,
    Op.STRIDE,
    Op.PARAM,
    Op.RESULT,
}
# Integer types with the width of index.
WIDTHS: Final = [(dtype, 32) for dtype in INTEGERS] + [(index, 32), (index, 64)]


def generator() -> np.random.Generator:
    return np.random.default_rng()


# Reference: integers.


def width_of(dtype: DType, index_bits: int) -> int:
    return dtype.bits or index_bits


def wrap(number: int, dtype: DType, index_bits: int) -> int:
    width = width_of(dtype, index_bits)
    number &= (1 << width) - 1
    return number - (1 << width) if dtype.is_signed and number >> (width - 1) else number


def integers(dtype: DType, index_bits: int, count: int = 400) -> Array:
    """Random integers of all magnitudes with the limits and small numbers among them."""
    kind = held(dtype, index_bits)
    limits = np.iinfo(kind)
    rng = generator()
    size = kind.itemsize
    raw = np.frombuffer(rng.bytes(size * count), f"u{size}")
    raw = raw >> rng.integers(0, 8 * size, count).astype(raw.dtype)
    edges = [0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, limits.max, limits.max - 1, limits.min]
    edges += [limits.min + 1] + ([-1, -2, -3, -8] if limits.min else [])
    values = np.concatenate([raw.view(kind), np.array(edges, dtype=kind)])
    rng.shuffle(values)
    return values


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def shift_right(a: int, b: int, width: int) -> int:
    return a >> min(b % (1 << width), width)


INTEGER_BINARY: Final[dict[Op, Callable[[int, int, int], int]]] = {
    Op.ADD: lambda a, b, width: a + b,
    Op.SUB: lambda a, b, width: a - b,
    Op.MUL: lambda a, b, width: a * b,
    Op.FLOORDIV: lambda a, b, width: a // b if b else 0,
    Op.MOD: lambda a, b, width: a % b if b else 0,
    Op.TRUNCDIV: lambda a, b, width: truncated(a, b),
    Op.TRUNCMOD: lambda a, b, width: a - truncated(a, b) * b if b else 0,
    Op.MIN: lambda a, b, width: min(a, b),
    Op.MAX: lambda a, b, width: max(a, b),
    Op.MINIMUM: lambda a, b, width: min(a, b),
    Op.MAXIMUM: lambda a, b, width: max(a, b),
    Op.MULHI: lambda a, b, width: a * b >> width,
    Op.AND: lambda a, b, width: a & b,
    Op.OR: lambda a, b, width: a | b,
    Op.XOR: lambda a, b, width: a ^ b,
    Op.SHL: lambda a, b, width: a << b % (1 << width) if b % (1 << width) < width else 0,
    Op.SHR: shift_right,
    Op.EQ: lambda a, b, width: a == b,
    Op.NE: lambda a, b, width: a != b,
    Op.LT: lambda a, b, width: a < b,
    Op.LE: lambda a, b, width: a <= b,
    Op.GT: lambda a, b, width: a > b,
    Op.GE: lambda a, b, width: a >= b,
}


def bit_string(a: int, width: int) -> str:
    return f"{a & ((1 << width) - 1):0{width}b}"


def run_of_zeros(bits: str) -> int:
    return len(bits) - len(bits.lstrip("0"))


INTEGER_UNARY: Final[dict[Op, Callable[[int, int], int]]] = {
    Op.NEG: lambda a, width: -a,
    Op.ABS: lambda a, width: abs(a),
    Op.NOT: lambda a, width: ~a,
    Op.POPCOUNT: lambda a, width: bit_string(a, width).count("1"),
    Op.CLZ: lambda a, width: run_of_zeros(bit_string(a, width)),
    Op.CTZ: lambda a, width: run_of_zeros(bit_string(a, width)[::-1]),
    Op.REVERSE_BITS: lambda a, width: int(bit_string(a, width)[::-1], 2),
}
COUNTS: Final = {Op.POPCOUNT, Op.CLZ, Op.CTZ}


@pytest.mark.parametrize("op", INTEGER_BINARY)
@pytest.mark.parametrize(("dtype", "index_bits"), WIDTHS, ids=str)
def test_integer_operations_of_two_are_those_of_unbounded_integers_wrapped(
    op: Op, dtype: DType, index_bits: int
) -> None:
    a, b = integers(dtype, index_bits), integers(dtype, index_bits)
    edges = np.unique(integers(dtype, index_bits, 0))
    pairs = np.meshgrid(edges, edges)
    a, b = np.concatenate([a, pairs[0].ravel()]), np.concatenate([b, pairs[1].ravel()])
    result_type = bool_ if op in COMPARISONS else dtype
    result = evaluate(op, result_type, (dtype, dtype), (a, b), index_bits)
    width = width_of(dtype, index_bits)
    wanted = [INTEGER_BINARY[op](x, y, width) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    if op not in COMPARISONS:
        wanted = [wrap(number, dtype, index_bits) for number in wanted]
    assert result.dtype == held(result_type, index_bits)
    assert result.tolist() == wanted


@pytest.mark.parametrize("op", INTEGER_UNARY)
@pytest.mark.parametrize(("dtype", "index_bits"), WIDTHS, ids=str)
def test_integer_operations_of_one_are_those_of_unbounded_integers_wrapped(
    op: Op, dtype: DType, index_bits: int
) -> None:
    a = integers(dtype, index_bits)
    result_type = dtype if op not in COUNTS or dtype is index else i32
    result = evaluate(op, result_type, (dtype,), (a,), index_bits)
    width = width_of(dtype, index_bits)
    wanted = [wrap(INTEGER_UNARY[op](x, width), result_type, index_bits) for x in a.tolist()]
    assert result.dtype == held(result_type, index_bits)
    assert result.tolist() == wanted


def test_bools_take_bitwise_operations_as_logic() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    for op, function in ((Op.AND, operator.and_), (Op.OR, operator.or_), (Op.XOR, operator.xor)):
        result = evaluate(op, bool_, (bool_, bool_), (a, b), 32)
        assert result.dtype == np.bool_
        assert result.tolist() == [
            function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
    assert evaluate(Op.NOT, bool_, (bool_,), (a,), 32).tolist() == [True, True, False, False]
    assert evaluate(Op.EQ, bool_, (bool_, bool_), (a, b), 32).tolist() == [True, False, False, True]


# Reference: floats.


def round_exactly(exact: Fraction, dtype: DType) -> float:
    """A rational other than 0, rounded to nearest even in a type, by integer arithmetic alone."""
    precision, least, greatest = FORMATS[dtype]
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole, part = divmod(magnitude, quantum)
    if part * 2 > quantum or (part * 2 == quantum and whole % 2):
        whole += 1
    rounded = whole * quantum
    sign = -1.0 if exact < 0 else 1.0
    if rounded >= Fraction(2) ** (greatest + 1):
        return sign * math.inf
    return sign * float(rounded)


def reals(dtype: DType, count: int = 300) -> Array:
    """Random bit patterns with zeros, infinities, NaN, subnormals and the limits among them."""
    precision, least, greatest = FORMATS[dtype]
    rng = generator()
    size = dtype.size
    raw = np.frombuffer(rng.bytes(size * count), f"u{size}")
    smallest, ulp = 2.0 ** (least - precision + 1), 2.0 ** (1 - precision)
    largest = (2 - ulp) * 2.0**greatest
    edges = [0.0, 1.0, 1 + ulp, 1 - ulp / 2, 1.5, 2.5, 0.5, 3.0, smallest, 3 * smallest]
    edges += [2.0**least, 2.0**least - smallest, largest, largest / 2, math.inf]
    signed = np.array([*edges, *(-edge for edge in edges), math.nan])
    near_one = rng.standard_normal(count)
    plain = evaluate(Op.CAST, dtype, (f64,), (np.concatenate([signed, near_one]),), 32)
    values = np.concatenate([from_memory(dtype, raw.view(memory_type(dtype))), plain])
    rng.shuffle(values)
    return values


def same(a: float, b: float) -> bool:
    """Equal with the sign of zero, all NaNs being one."""
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)


def differences(result: Array, wanted: list[float], *operands: Array) -> list[tuple[float, ...]]:
    got = result.tolist()
    columns = [operand.tolist() for operand in operands]
    return [
        (*row, have, want)
        for have, want, *row in zip(got, wanted, *columns, strict=True)
        if not same(have, want)
    ]


def exactly(function: Callable[..., Any], dtype: DType, *numbers: float) -> float:
    """A rational function of floats rounded once; special values and zeros are left to Python."""
    if all(math.isfinite(number) for number in numbers):
        try:
            exact = function(*map(Fraction, numbers))
        except ZeroDivisionError:
            if numbers[0] == 0:
                return math.nan
            return math.copysign(math.inf, numbers[0]) * math.copysign(1, numbers[1])
        if exact:
            return round_exactly(exact, dtype)
    elif function is operator.truediv and numbers[1] == 0:
        return numbers[0] * math.copysign(1, numbers[1])
    return float(function(*numbers))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("op", "function"),
    [
        (Op.ADD, operator.add),
        (Op.SUB, operator.sub),
        (Op.MUL, operator.mul),
        (Op.DIV, operator.truediv),
    ],
)
def test_float_arithmetic_is_correctly_rounded(
    op: Op, function: Callable[..., Any], dtype: DType
) -> None:
    a, b = reals(dtype), reals(dtype)
    result = evaluate(op, dtype, (dtype, dtype), (a, b), 32)
    wanted = [exactly(function, dtype, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert result.dtype == held(dtype, 32)
    assert differences(result, wanted, a, b) == []


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def fused(dtype: DType, a: float, b: float, c: float) -> float:
    if not math.isinf(c) or not math.isfinite(a) or not math.isfinite(b):
        return exactly(multiply_add, dtype, a, b, c)
    return c


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_is_rounded_once_over_the_whole_range(dtype: DType) -> None:
    a, b, c = reals(dtype), reals(dtype), reals(dtype)
    edges = np.unique(reals(dtype, 0))
    grid = np.stack(np.meshgrid(edges, edges, edges)).reshape(3, -1)
    chosen = grid[:, generator().integers(0, grid.shape[1], 3000)]
    a, b, c = (np.concatenate([x, y]) for x, y in zip((a, b, c), chosen, strict=True))
    result = evaluate(Op.FMA, dtype, (dtype,) * 3, (a, b, c), 32)
    wanted = [
        fused(dtype, x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert result.dtype == held(dtype, 32)
    assert differences(result, wanted, a, b, c) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("scale", ["one", "least", "greatest"])
def test_fma_is_rounded_once_where_the_sum_cancels_or_ties(dtype: DType, scale: str) -> None:
    precision, least, greatest = FORMATS[dtype]
    rng = generator()
    count = 1500
    exponent = {"one": 0, "least": least, "greatest": greatest - 1}[scale]
    ulp = 2.0 ** (1 - precision)

    def narrow(x: Array) -> Array:
        return evaluate(Op.CAST, dtype, (f64,), (x,), 32)

    a = narrow(1 + rng.integers(0, 1 << min(precision - 1, 20), count) * ulp)
    b = narrow(np.ldexp(1 + rng.integers(0, 1 << (precision - 1), count) * ulp, exponent))
    product = evaluate(Op.MUL, dtype, (dtype, dtype), (a, b), 32).astype(np.float64)
    factor = rng.choice([-1, -1, 1, 0.5, -0.5, ulp, -ulp / 2, ulp / 2, ulp * ulp], count)
    c = narrow(np.clip(product, -(2.0**greatest), 2.0**greatest) * factor)
    result = evaluate(Op.FMA, dtype, (dtype,) * 3, (a, b, c), 32)
    wanted = [
        fused(dtype, x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert differences(result, wanted, a, b, c) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("end", ["least", "greatest"])
def test_fma_is_rounded_once_where_the_product_alone_leaves_the_range(
    dtype: DType, end: str
) -> None:
    precision, least, greatest = FORMATS[dtype]
    rng = generator()
    count = 2000
    middle = least // 2 if end == "least" else greatest // 2
    exponents = middle + rng.integers(-precision, precision + 1, (2, count))
    whole = rng.integers(1 << (precision - 1), 1 << precision, (2, count)).astype(np.float64)
    signs = rng.choice([-1.0, 1.0], (2, count))
    drawn = np.ldexp(whole * signs, np.minimum(exponents, greatest) - precision + 1)
    a, b = evaluate(Op.CAST, dtype, (f64,), (drawn,), 32)
    places = np.minimum(exponents.sum(axis=0) - rng.integers(-3, 60, count), greatest)
    far = np.ldexp(rng.uniform(-1, 1, count), places)
    c = evaluate(Op.CAST, dtype, (f64,), (far,), 32)
    result = evaluate(Op.FMA, dtype, (dtype,) * 3, (a, b, c), 32)
    wanted = [
        fused(dtype, x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert differences(result, wanted, a, b, c) == []


def test_fma_takes_zero_dimensional_arrays() -> None:
    tiny, number = np.array(5e-324), np.array(3.0)
    result = evaluate(Op.FMA, f64, (f64,) * 3, (tiny, number, -tiny), 32)
    assert result.shape == ()
    assert result == 1e-323
    assert evaluate(Op.FMA, f64, (f64,) * 3, (number, number, number), 32) == 12


def square_root(number: float, dtype: DType) -> float:
    if not 0 < number < math.inf:
        return number if number == 0 or number != number or number > 0 else math.nan
    exact = Fraction(number)
    shift = 1200  # enough bits for any of the types, with a sticky one below
    root = math.isqrt((exact.numerator << 2 * shift) // exact.denominator)
    sticky = Fraction(root) ** 2 != exact * 2 ** (2 * shift)
    return round_exactly((Fraction(root) + Fraction(int(sticky), 2)) / 2**shift, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sqrt_is_correctly_rounded(dtype: DType) -> None:
    a = np.abs(reals(dtype))
    a[::7] = -a[::7]
    result = evaluate(Op.SQRT, dtype, (dtype,), (a,), 32)
    assert result.dtype == held(dtype, 32)
    assert differences(result, [square_root(x, dtype) for x in a.tolist()], a) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_to_integers_is_exact_and_keeps_the_sign_of_zero(dtype: DType) -> None:
    more = np.array([-0.5, 0.5, 1.5, 2.5, -1.5, 126.5], np.float32)
    with np.errstate(invalid="ignore"):  # some processors tell of signalling NaN
        a = np.concatenate([reals(dtype), more]).astype(held(dtype, 32))
    cases: dict[Op, Callable[[float], int]] = {
        Op.FLOOR: math.floor,
        Op.CEIL: math.ceil,
        Op.TRUNC: math.trunc,
        Op.ROUND: round,
    }
    for op, function in cases.items():
        wanted = [
            math.copysign(float(function(x)), x) if math.isfinite(x) else x for x in a.tolist()
        ]
        result = evaluate(op, dtype, (dtype,), (a,), 32)
        assert result.dtype == held(dtype, 32)
        assert differences(result, wanted, a) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_negation_and_absolute_value_touch_the_sign_alone(dtype: DType) -> None:
    a = reals(dtype)
    negated = evaluate(Op.NEG, dtype, (dtype,), (a,), 32)
    assert differences(negated, [-x for x in a.tolist()], a) == []
    absolute = evaluate(Op.ABS, dtype, (dtype,), (a,), 32)
    assert differences(absolute, [abs(x) for x in a.tolist()], a) == []


def python_floor_division(x: float, y: float) -> tuple[float, float]:
    if y == 0:
        quotient = exactly(operator.truediv, f64, x, y)
        return quotient, math.nan
    return x // y, x % y


def test_float_floor_division_and_modulo_are_pythons() -> None:
    a, b = reals(f64), reals(f64)
    b[:50] = generator().integers(-5, 6, 50)
    quotients, remainders = zip(
        *(python_floor_division(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)),
        strict=True,
    )
    result = evaluate(Op.FLOORDIV, f64, (f64, f64), (a, b), 32)
    assert differences(result, list(quotients), a, b) == []
    result = evaluate(Op.MOD, f64, (f64, f64), (a, b), 32)
    assert differences(result, list(remainders), a, b) == []


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_floor_division_and_modulo_of_small_numbers_are_exact(dtype: DType) -> None:
    rng = generator()
    a = (rng.integers(-60, 61, 500) / 4).astype(held(dtype, 32))
    b = (rng.integers(-60, 61, 500) / 4).astype(held(dtype, 32))
    quotients = evaluate(Op.FLOORDIV, dtype, (dtype, dtype), (a, b), 32)
    remainders = evaluate(Op.MOD, dtype, (dtype, dtype), (a, b), 32)
    assert quotients.dtype == remainders.dtype == held(dtype, 32)
    pairs = [python_floor_division(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert differences(quotients, [quotient for quotient, _ in pairs], a, b) == []
    assert differences(remainders, [remainder for _, remainder in pairs], a, b) == []


def least(x: float, y: float) -> float:
    return min((x, y), key=lambda number: (number, math.copysign(1, number)))


def skipping(choose: Callable[[float, float], float], x: float, y: float) -> float:
    return y if x != x else x if y != y else choose(x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_min_and_max_skip_nan_and_order_zeros(dtype: DType) -> None:
    edges = np.unique(reals(dtype, 0))
    edges = np.concatenate([edges, -edges])  # both zeros
    a, b = (grid.ravel() for grid in np.meshgrid(edges, edges))
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))

    def greatest(x: float, y: float) -> float:
        return -least(-x, -y)

    types = (dtype, dtype)
    for op, choose in ((Op.MIN, least), (Op.MAX, greatest)):
        wanted = [skipping(choose, x, y) for x, y in pairs]
        assert differences(evaluate(op, dtype, types, (a, b), 32), wanted, a, b) == []
    for op, choose in ((Op.MINIMUM, least), (Op.MAXIMUM, greatest)):
        wanted = [math.nan if x != x or y != y else choose(x, y) for x, y in pairs]
        assert differences(evaluate(op, dtype, types, (a, b), 32), wanted, a, b) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_comparisons_with_nan_are_false_but_for_ne(dtype: DType) -> None:
    a, b = reals(dtype), reals(dtype)
    b[::3] = a[::3]
    cases: dict[Op, Callable[[float, float], bool]] = {
        Op.EQ: operator.eq,
        Op.NE: operator.ne,
        Op.LT: operator.lt,
        Op.LE: operator.le,
        Op.GT: operator.gt,
        Op.GE: operator.ge,
    }
    for op, function in cases.items():
        result = evaluate(op, bool_, (dtype, dtype), (a, b), 32)
        assert result.dtype == np.bool_
        assert result.tolist() == [
            function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]


# Conversions.


def saturated(x: float, dtype: DType, index_bits: int) -> int:
    if x != x:
        return 0
    low, high = (
        (wrap(1 << (index_bits - 1), index, index_bits), (1 << (index_bits - 1)) - 1)
        if dtype is index
        else dtype.limits
    )
    if math.isinf(x):
        return high if x > 0 else low
    return min(max(math.trunc(x), low), high)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize(("dtype", "index_bits"), WIDTHS, ids=str)
def test_float_to_integer_truncates_and_saturates(
    source: DType, dtype: DType, index_bits: int
) -> None:
    width = width_of(dtype, index_bits)
    near = [math.ldexp(1.0, width - k) + d for k in (0, 1, 2) for d in (-1.5, -1, -0.5, 0, 0.5, 1)]
    edges = np.array([*near, *(-x for x in near), 0.99, -0.99, 1.99, -1.99])
    a = np.concatenate([reals(source), evaluate(Op.CAST, source, (f64,), (edges,), 32)])
    result = evaluate(Op.CAST, dtype, (source,), (a,), index_bits)
    assert result.dtype == held(dtype, index_bits)
    assert result.tolist() == [saturated(x, dtype, index_bits) for x in a.tolist()]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("source", "index_bits"), WIDTHS, ids=str)
def test_integer_to_float_is_rounded_once(dtype: DType, source: DType, index_bits: int) -> None:
    a = integers(source, index_bits)
    # Numbers next to a tie of the target, told from it only by their lowest bit.
    precision, width = FORMATS[dtype][0], width_of(source, index_bits)
    ties = []
    for top in range(precision + 1, width):
        for low in (-1, 0, 1):
            ties += [(1 << top) + (1 << (top - precision)) + low]
            ties += [(1 << top) + (3 << (top - precision)) + low]
    wrapped = [wrap(tie * sign, source, index_bits) for tie in ties for sign in (1, -1)]
    a = np.concatenate([a, np.array(wrapped, a.dtype)])
    result = evaluate(Op.CAST, dtype, (source,), (a,), index_bits)
    wanted = [round_exactly(Fraction(x), dtype) if x else 0.0 for x in a.tolist()]
    assert result.dtype == held(dtype, 32)
    assert differences(result, wanted) == []


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_to_float_is_rounded_once(source: DType, dtype: DType) -> None:
    a = reals(source)
    precision = FORMATS[dtype][0]
    if FORMATS[source][0] > precision + 2:  # next to a tie of the target
        numbers = generator().integers(1 << (precision - 1), 1 << precision, 300)
        ties = (numbers + 0.5) * 2.0 ** generator().integers(-30, 4, 300)
        ties = ties.astype(held(source, 32))
        a = np.concatenate([a, ties, np.nextafter(ties, 0), np.nextafter(ties, ties * 2)])
    result = evaluate(Op.CAST, dtype, (source,), (a,), 32)
    wanted = [
        round_exactly(Fraction(x), dtype) if math.isfinite(x) and x else x for x in a.tolist()
    ]
    assert result.dtype == held(dtype, 32)
    assert differences(result, wanted, a) == []


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_of_any_payload_stays_nan(source: DType, dtype: DType) -> None:
    precision = FORMATS[source][0]
    exponent = ((1 << (8 * source.size - precision)) - 1) << (precision - 1)
    payloads = (1, 1 << (precision - 2), (1 << (precision - 1)) - 1)
    raw = np.array([exponent | payload for payload in payloads], f"u{source.size}")
    nans = from_memory(source, raw.view(memory_type(source)))
    assert np.isnan(evaluate(Op.CAST, dtype, (source,), (nans,), 32)).all()


@pytest.mark.parametrize(("source", "source_bits"), WIDTHS, ids=str)
@pytest.mark.parametrize(("dtype", "index_bits"), WIDTHS, ids=str)
def test_integer_to_integer_wraps(
    source: DType, source_bits: int, dtype: DType, index_bits: int
) -> None:
    if index in (source, dtype) and source_bits != index_bits:
        source_bits = index_bits
    a = integers(source, source_bits, 100)
    result = evaluate(Op.CAST, dtype, (source,), (a,), index_bits)
    assert result.dtype == held(dtype, index_bits)
    assert result.tolist() == [wrap(x, dtype, index_bits) for x in a.tolist()]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_bool_is_one_or_zero_and_anything_but_zero_is_true(dtype: DType) -> None:
    bools = np.array([True, False])
    ones = evaluate(Op.CAST, dtype, (bool_,), (bools,), 32)
    assert ones.dtype == held(dtype, 32)
    assert ones.tolist() == [1, 0]
    a = reals(dtype) if dtype.is_float else ones if dtype is bool_ else integers(dtype, 32)
    truth = evaluate(Op.CAST, bool_, (dtype,), (a,), 32)
    assert truth.dtype == np.bool_
    assert truth.tolist() == [x != 0 for x in a.tolist()]


@pytest.mark.parametrize("dtype", [t for t in ALL if t is not bool_], ids=str)
def test_bitcasts_keep_all_bits(dtype: DType) -> None:
    raw = np.frombuffer(generator().bytes(dtype.size * 200), f"u{dtype.size}")
    if dtype.is_float:  # a signalling NaN need not survive being moved
        raw = raw[~np.isnan(from_memory(dtype, raw.view(memory_type(dtype))))]
    unsigned = {1: u8, 2: u16, 4: u32, 8: u64}[dtype.size]
    values = evaluate(Op.BITCAST, dtype, (unsigned,), (raw,), 32)
    assert values.dtype == held(dtype, 32)
    back = evaluate(Op.BITCAST, unsigned, (dtype,), (values,), 32)
    assert back.tolist() == raw.tolist()
    formats = {f16: "<e", f32: "<f", f64: "<d"}
    if dtype in formats:
        size = {2: "<H", 4: "<I", 8: "<Q"}[dtype.size]
        packed = [struct.unpack(formats[dtype], struct.pack(size, x))[0] for x in raw.tolist()]
        assert differences(values, packed) == []
    if dtype is bf16:
        packed = [struct.unpack("<f", struct.pack("<I", x << 16))[0] for x in raw.tolist()]
        assert differences(values, packed) == []


@pytest.mark.parametrize("dtype", [*ALL, index], ids=str)
def test_what_goes_to_memory_comes_back(dtype: DType) -> None:
    if dtype is bool_:
        values = generator().integers(0, 2, 50).astype(np.bool_)
    else:
        values = reals(dtype) if dtype.is_float else integers(dtype, 64)
    raw = to_memory(dtype, values)
    assert raw.dtype == memory_type(dtype)
    assert raw.dtype.itemsize == dtype.size
    back = from_memory(dtype, raw)
    assert back.dtype == values.dtype
    assert np.array_equal(back, values, equal_nan=dtype.is_float)
    assert np.array_equal(from_memory(dtype, raw.view(np.uint8)), back, equal_nan=dtype.is_float)


def test_any_byte_but_zero_reads_as_true() -> None:
    every = np.arange(256, dtype=np.uint8)
    assert from_memory(bool_, every).tolist() == [k != 0 for k in range(256)]


@pytest.mark.parametrize("dtype", [*ALL, index], ids=str)
@pytest.mark.parametrize("index_bits", [32, 64])
def test_bits_of_constants_become_their_values(dtype: DType, index_bits: int) -> None:
    kind = held(dtype, index_bits)
    size = 1 if dtype is bool_ else 2 if dtype is bf16 else kind.itemsize
    for bits in (0, 1, (1 << 8 * size - 1) | 1, 0x3C00 if size == 2 else 3):
        bits = min(bits, 1) if dtype is bool_ else bits
        value = from_bits(dtype, bits, index_bits)
        assert value.shape == ()
        assert value.dtype == kind
        raw = bytes(to_memory(dtype, value).tobytes())
        assert int.from_bytes(raw[:size], "little") == bits
    # A negative index has 64 bits in the trace whatever its width.
    assert from_bits(index, (1 << 64) - 5, index_bits) == -5


# The table as a whole.


def test_every_pure_operation_has_a_meaning_and_nothing_else_has() -> None:
    for op, info in OPS.items():
        types = (f32,) * (info.arity or 0)
        if info.effect or op in LEAVES:
            with pytest.raises(KeyError):
                meaning(op, f32, types, 32)
        else:
            assert callable(meaning(op, f32, types, 32))


@pytest.mark.parametrize("dtype", [*ALL, index], ids=str)
def test_select_takes_each_element_from_its_side(dtype: DType) -> None:
    condition = np.array([True, False, True])
    yes, no = (
        evaluate(Op.CAST, dtype, (i64,), (np.array(numbers),), 32)
        for numbers in ([1, 1, 0], [0, 0, 1])
    )
    result = evaluate(Op.SELECT, dtype, (bool_, dtype, dtype), (condition, yes, no), 32)
    assert result.dtype == held(dtype, 32)
    assert result.tolist() == [1, 0, 0]


@pytest.mark.parametrize("dtype", [*ALL, index], ids=str)
def test_operations_keep_types_and_shapes_of_whatever_dimension(dtype: DType) -> None:
    for op, info in OPS.items():
        if info.result is None or info.effect:
            continue
        types = (bool_, dtype, dtype) if op is Op.SELECT else (dtype,) * (info.arity or 0)
        try:
            result_type = info.result(*types)
        except TypeError:
            continue
        for shape in ((), (0,), (3, 2)):
            args = tuple(np.ones(shape, held(kind, 32)) for kind in types)
            result = evaluate(op, result_type, types, args, 32)
            assert (op, result.dtype, result.shape) == (op, held(result_type, 32), shape)


# Elementary functions.

MATHEMATICAL: Final[dict[Op, Callable[..., float]]] = {
    Op.EXP: math.exp,
    Op.EXP2: lambda x: 2.0**x,
    Op.EXP10: lambda x: 10.0**x,
    Op.EXPM1: math.expm1,
    Op.LOG: math.log,
    Op.LOG2: math.log2,
    Op.LOG10: math.log10,
    Op.LOG1P: math.log1p,
    Op.POW: math.pow,
    Op.RSQRT: lambda x: 1 / math.sqrt(x),
    Op.CBRT: lambda x: math.copysign(abs(x) ** (1 / 3), x),
    Op.HYPOT: math.hypot,
    Op.SIN: math.sin,
    Op.COS: math.cos,
    Op.TAN: math.tan,
    Op.ASIN: math.asin,
    Op.ACOS: math.acos,
    Op.ATAN: math.atan,
    Op.ATAN2: math.atan2,
    Op.SINH: math.sinh,
    Op.COSH: math.cosh,
    Op.TANH: math.tanh,
    Op.ASINH: math.asinh,
    Op.ACOSH: math.acosh,
    Op.ATANH: math.atanh,
    Op.ERF: math.erf,
    Op.ERFC: math.erfc,
    Op.TGAMMA: math.gamma,
    Op.LGAMMA: math.lgamma,
}
DOMAINS: Final = {
    Op.LOG: (0.01, 9),
    Op.LOG2: (0.01, 9),
    Op.LOG10: (0.01, 9),
    Op.LOG1P: (-0.9, 9),
    Op.POW: (0.01, 4),
    Op.RSQRT: (0.01, 9),
    Op.ASIN: (-1, 1),
    Op.ACOS: (-1, 1),
    Op.ACOSH: (1, 9),
    Op.ATANH: (-0.99, 0.99),
    Op.TGAMMA: (0.1, 4),
    Op.LGAMMA: (0.1, 9),
}


@pytest.mark.parametrize("op", [op for op in Op if op in MATH])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elementary_functions_are_pythons_rounded(op: Op, dtype: DType) -> None:
    low, high = DOMAINS.get(op, (-4, 4))
    arity = OPS[op].arity or 0
    args = tuple(
        evaluate(Op.CAST, dtype, (f64,), (generator().uniform(low, high, 200),), 32)
        for _ in range(arity)
    )
    result = evaluate(op, dtype, (dtype,) * arity, args, 32)
    assert result.dtype == held(dtype, 32)
    numbers = zip(*(arg.tolist() for arg in args), strict=True)
    wanted = np.array([MATHEMATICAL[op](*row) for row in numbers])
    tolerance = max(0.51 * 2.0 ** (1 - FORMATS[dtype][0]), 2e-15)
    smallest = 2.0 ** (FORMATS[dtype][1] - FORMATS[dtype][0])
    assert np.allclose(result.astype(np.float64), wanted, rtol=tolerance, atol=smallest)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("op", "operands", "wanted"),
    [
        (Op.EXP, (-math.inf,), 0.0),
        (Op.EXP, (1e4,), math.inf),
        (Op.LOG, (-0.0,), -math.inf),
        (Op.LOG, (-1.0,), math.nan),
        (Op.RSQRT, (0.0,), math.inf),
        (Op.RSQRT, (math.inf,), 0.0),
        (Op.POW, (1.0, math.nan), 1.0),
        (Op.POW, (-2.0, 3.0), -8.0),
        (Op.POW, (-2.0, 0.5), math.nan),
        (Op.ATAN2, (0.0, -1.0), math.pi),
        (Op.ATAN2, (-0.0, 1.0), -0.0),
        (Op.CBRT, (-27.0,), -3.0),
        (Op.SIN, (math.inf,), math.nan),
        (Op.EXP10, (2.0,), 100.0),
        (Op.ERFC, (-math.inf,), 2.0),
        (Op.TGAMMA, (0.0,), math.inf),
        (Op.TGAMMA, (-0.0,), -math.inf),
        (Op.TGAMMA, (-2.0,), math.nan),
        (Op.TGAMMA, (500.0,), math.inf),
        (Op.TGAMMA, (math.inf,), math.inf),
        (Op.TGAMMA, (-math.inf,), math.nan),
        (Op.TGAMMA, (math.nan,), math.nan),
        (Op.LGAMMA, (-3.0,), math.inf),
        (Op.LGAMMA, (1.0,), 0.0),
        (Op.LGAMMA, (-math.inf,), math.inf),
    ],
)
def test_elementary_functions_at_their_ends(
    op: Op, operands: tuple[float, ...], wanted: float, dtype: DType
) -> None:
    args = tuple(np.array(number, held(dtype, 32)) for number in operands)
    result = float(evaluate(op, dtype, (dtype,) * len(args), args, 32))
    rounded = round_exactly(Fraction(wanted), dtype) if wanted == math.pi else wanted
    assert same(result, rounded)
