"""pow, rsqrt, cbrt, hypot.

pow: the base-2 logarithm of |x| as an unevaluated sum of two numbers, with as many more bits as
the exponent of the result has; times y likewise; then 2 to that sum. The logarithm is Tang's
(1990): log m = 2 atanh s with s = (m - 1) / (m + 1), in double-length arithmetic (Dekker 1971) up
to the cubic term. The quotient is corrected, so it may come from an inaccurate division. In f32
results that are neither huge nor tiny take a cheaper logarithm, which does not divide.

cbrt: an approximation of x**(-1/3) from a third of the bits of x (Kahan's trick), two polynomial
steps without division, and a last one whose residual is exact enough to round nearly right.
"""

from __future__ import annotations

import math
from typing import Final, final

from khaljit.codegen.math.exponential import exp2_of_product, exp2_of_sum
from khaljit.codegen.math.kit import (
    Num,
    Rare,
    add_ordered,
    either,
    fma,
    horner,
    is_unusual,
    multiply_exactly,
    quotient,
    root,
    select,
    with_sign,
)
from khaljit.codegen.math.logarithm import split_exponent, split_normal
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, f32, f64, u32
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["cbrt", "hypot", "log2_of_normal", "pow_", "rsqrt"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format; pairs are high and low parts.

    Attributes:
        unit: 2 / ln 2; third: 1 / 3.
        tail: ((atanh(s) / s - 1) / u - 1 / 3) / u in u = s**2 <= 0.02944; error relative to the
            logarithm 2**-36.8 and 2**-68.
    """

    unit: tuple[float, float]
    third: tuple[float, float]
    tail: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (2.885390043258667, 3.851926067000022e-08),
        (0.3333333432674408, -9.934107758624577e-09),
        (
            2.0000076e-01,
            1.4273545e-01,
            1.1709815e-01,
        ),
    ),
    f64: _Table(
        (2.8853900817779268, 4.0710547481862066e-17),
        (0.3333333333333333, 1.850371707708594e-17),
        (
            0.20000000000001128,
            0.14285714285049778,
            0.11111111259966226,
            0.09090892182956184,
            0.07693378699860527,
            0.0662840796008502,
            0.06598173716846492,
        ),
    ),
}


# Pieces of [0.692, 1.384): r, and -log2(r) as a sum whose first term is a multiple of 2**-16. With
# so few bits in r, r m - 1 is exact.
_LEAST: Final = 0.692
_PIECES: Final = (
    (1.25, -0.321929931640625, 1.8367533130003721e-06),
    (1.0, 0.0, 0.0),
    (0.8125, 0.299560546875, -2.650160979555949e-07),
)
# u = 1 / ln 2 rounded to f32, the relative error of that, and u (log(1 + g) / g - 1 + g / 2) / g**2
# on [-0.1351, 0.1251]; error relative to the logarithm 2**-33.2.
_UNIT: Final = 1.4426950216293335
_UNIT_REST: Final = 1.33497583498e-08
_LOG2_TAIL: Final = (
    0.4808984696865082,
    -0.36067458987236023,
    0.2884901762008667,
    -0.2402627319097519,
    0.2112356722354889,
    -0.19143082201480865,
)


def rsqrt(x: Num, rare: Rare) -> Num:
    if rare is not Rare.BRANCHED:
        return 1.0 / x.sqrt()
    least = to_bits(x.dtype, 2.0 ** -(x.format.bias * 3 // 4))
    unusual = x.bits() - least >= x.format.infinity_bits - least
    (y,) = either(unusual, rare, lambda: (_rsqrt_of_any(x),), (quotient(1.0, root(x)),))
    return y


def _rsqrt_of_any(x: Num) -> Num:
    """Of a small number, scaled, of infinity, and of what has none."""
    scale = x.format.bias // 4
    y = quotient(1.0, root(x * 2.0 ** (2 * scale))) * 2.0**scale
    y = select(x.eq(0.0), with_sign(x.of(math.inf), x), y)
    y = select(x.eq(math.inf), x.of(0.0), y)
    return select(x >= 0.0, y, math.nan)


def _log2_by_division(e: Num, m: Num) -> tuple[Num, Num]:
    """log2(2**e m) as a sum, for m in [sqrt(1/2), sqrt(2))."""
    table = _TABLES[m.dtype]
    f = m - 1.0
    d = m + 1.0
    reciprocal = quotient(1.0, d)
    s = f * reciprocal
    s_rest = fma(-s, m - (d - 1.0), fma(-s, d, f)) * reciprocal
    # w = u / 3 + u**2 tail(u), so that atanh s = s + s w.
    u = s * s
    u_rest = fma(s + s, s_rest, fma(s, s, -u))
    third, third_rest = table.third
    small = u * horner(u, table.tail)
    t = small + third
    t_rest = small - (t - third) + third_rest
    w = u * t
    w_rest = fma(u_rest, t, fma(u, t_rest, fma(u, t, -w)))
    product = s * w
    product_rest = fma(s, w_rest, fma(s, w, -product))
    high, low = add_ordered(s, product)
    low = low + (product_rest + fma(s_rest, w, s_rest))
    unit, unit_rest = table.unit
    scaled, scaled_rest = multiply_exactly(high, unit)
    scaled_rest = fma(low, unit, fma(high, unit_rest, scaled_rest))
    total, total_rest = add_ordered(e * m.format.step, scaled)
    return total, total_rest + scaled_rest


def _log2_in_pieces(e: Num, m: Num) -> tuple[Num, Num]:
    """log2(2**e m) in f32 as a sum, for m in [0.692, 1.384).

    m is 1 + g by r; u (g - g**2 / 2) is carried to twice the precision, the rest of the series
    with a rounded u needs no more than f32, and what u lacks comes last.
    """
    first, last = m < 0.8889, m > 1.1034
    inverse, high, low = (
        select(first, m.of(one), select(last, m.of(three), two))
        for one, two, three in zip(*_PIECES, strict=True)
    )
    g = fma(m, inverse, -1.0)
    square = g * g
    t = fma(g, -0.5 * _UNIT, _UNIT)
    t_rest = fma(square, horner(g, _LOG2_TAIL), fma(g, -0.5 * _UNIT, _UNIT - t))
    start = fma(e, m.format.step, high)
    total = fma(g, t, start)
    less = start - total
    rest = fma(g, t_rest, fma(g, t, less)) + fma(less, -_UNIT_REST, low)
    return add_ordered(total, rest)


def log2_of_normal(x: Num) -> tuple[Num, Num]:
    """The base-2 logarithm of a positive normal number as a sum high + low."""
    return _log2_by_division(*split_normal(x))


def pow_(x: Num, y: Num, rare: Rare) -> Num:
    """x**y with the special values of C99, annex F."""
    if x.dtype is f32:
        high, low = _log2_in_pieces(*split_normal(x, _LEAST))
        reach = 64  # beyond it that logarithm is not good enough
    else:
        high, low = log2_of_normal(x)
        reach = x.format.bias - 2
    plain, extreme = exp2_of_product(y, high, low, reach)
    (result,) = either(is_unusual(x) | extreme, rare, lambda: (_pow_of_any(x, y),), (plain,))
    return result


def _pow_of_any(x: Num, y: Num) -> Num:
    magnitude = abs(x)
    infinity = math.inf
    high, low = _log2_by_division(*split_exponent(magnitude))
    high = select(magnitude < infinity, high, magnitude)
    high = select(magnitude.eq(0.0), x.of(-infinity), high)
    product, product_rest = multiply_exactly(y, high)
    result = exp2_of_sum(product, fma(y, low, product_rest))
    # Negative bases: only integers may be exponents, odd ones keep the sign.
    whole = y.op(Op.FLOOR).eq(y)
    half = y * 0.5
    odd = whole & half.op(Op.FLOOR).ne(half)
    result = select((x < 0.0) & (x > -infinity) & ~whole, x.of(float("nan")), result)
    flip = select(odd, x.bits(), 0) & x.format.sign_bit
    result = (result.bits() ^ flip).reinterpret(x.dtype)
    one = y.eq(0.0) | x.eq(1.0) | (magnitude.eq(1.0) & abs(y).eq(infinity))
    return select(one, x.of(1.0), result)


# The first step: (1 - h)**(-1/3) on +-0.1021, absolute error 2**-18.9.
_CUBE_STEP: Final = (0.999998024, 0.333326466, 0.223735107, 0.174810577)
# The second step, from its Taylor series.
_CUBE_AGAIN: Final = {f32: (1.0, 1.0 / 3.0), f64: (1.0, 1.0 / 3.0, 2.0 / 9.0)}


def _third_of_bits(bits: Num) -> Num:
    """About a third of an unsigned integer; of a 64-bit one the upper half only."""
    if bits.dtype is u32:
        return bits.op(Op.MULHI, 0x55555556)
    return ((bits >> 32) * 0x55555556) & 0xFFFFFFFF00000000


def cbrt(x: Num) -> Num:
    form = x.format
    a = abs(x)
    tiny = a < form.tiny
    third = form.precision // 3 + 1
    a = select(tiny, a * 2.0 ** (3 * third), a)
    # The constant makes the error h = 1 - a y**3 of the first guess y lie within +-0.1021.
    guess = int((form.bias * 4 / 3 - 0.0680266) * 2.0**form.fraction)
    y = (guess - _third_of_bits(a.bits())).reinterpret(form.dtype)
    for step in (_CUBE_STEP, _CUBE_AGAIN[form.dtype]):
        y = y * horner(fma(-(y * y), a * y, 1.0), step)
    square = y * y
    r = a * square
    cube, cube_rest = multiply_exactly(r, r)
    error = fma(-cube_rest, r, fma(-cube, r, a))
    r = fma(error, square * (1.0 / 3.0), r)
    r = with_sign(r * select(tiny, x.of(2.0**-third), x.of(1.0)), x)
    return select((a > 0.0) & (a < math.inf), r, x)


def hypot(x: Num, y: Num) -> Num:
    """sqrt(x**2 + y**2), scaled by a power of 2 where the squares would leave the range."""
    bias = x.format.bias + 1
    a, b = abs(x), abs(y)
    largest = select(a > b, a, b)
    high = largest > 2.0 ** (bias // 2 - 4)
    low = largest < 2.0 ** -(bias // 4 + 8)
    down, up = bias // 2 + 6, bias * 11 // 16 + 14
    scale = select(high, x.of(2.0**-down), select(low, x.of(2.0**up), 1.0))
    unscale = select(high, x.of(2.0**down), select(low, x.of(2.0**-up), 1.0))
    a, b = a * scale, b * scale
    result = root(fma(a, a, b * b)) * unscale
    return select(a.eq(math.inf) | b.eq(math.inf), x.of(math.inf), result)
