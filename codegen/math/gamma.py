"""tgamma, lgamma.

tgamma: for b from 1 on, Gamma(b) = b**(b - 1/2) exp(-b) S(b), the power and the exponential in
double-length arithmetic as 2 to a sum, S (Stirling's series in effect) a minimax polynomial in
1 / (b + p). Below 1, Gamma(a) = Gamma(a + 1) / a; negative arguments by reflection,
Gamma(-a) = -pi / (sin(pi a) Gamma(a + 1)), where sin(pi a) comes from the exact fraction of a.

lgamma: from 3.5 on, (a - 1/2) (log a - 1) + w(1 / a); below, a polynomial around 2 and the
logarithm of what shifting the argument there multiplies by; negative arguments by reflection.
Relative errors are small next to the zeros at 1 and 2. Next to those between negative integers the
error is relative to the terms that cancel, lgamma(|x|) or 1.
"""

from __future__ import annotations

import math
from typing import Final, final

from khaljit.codegen.math.exponential import exp2_parts
from khaljit.codegen.math.kit import (
    Num,
    Rare,
    add_exactly,
    add_ordered,
    either,
    fma,
    horner,
    multiply_exactly,
    power_of_two,
    quotient,
    select,
)
from khaljit.codegen.math.logarithm import log_of_positive
from khaljit.codegen.math.power import log2_of_normal
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["lgamma", "tgamma"]


# (log(2 pi) - 1) / 2.
_HALF_LOG: Final = 0.41893853320467274


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        log2_e: high and low part.
        overflow: tgamma is infinite above this.
        vanishing: the magnitude beyond which tgamma of negative numbers rounds to 0.
        pole: p in 1 / (b + p).
        stirling: S in 1 / (b + p) for b from 1 to `vanishing`; relative error 2**-29.9, 2**-57.3.
        sine: (sin(pi d) / (pi d) - 1) / d**2 in d**2 <= 1/4; relative error 2**-27.2, 2**-61.1.
        near: lgamma(2 + u) / u for u from -3/4 to 1/2; relative error 2**-25.52, 2**-56.21.
        far: (w(v) - w(0)) / v in v**2 <= 0.16; absolute error 2**-30.7, 2**-56.5.
    """

    log2_e: tuple[float, float]
    overflow: float
    vanishing: float
    pole: float
    stirling: tuple[float, ...]
    sine: tuple[float, ...]
    near: tuple[float, ...]
    far: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (1.4426950216293335, 1.925963033500011e-08),
        35.1,
        46.0,
        0.0,
        (
            2.5066283e00,
            2.0888555e-01,
            8.705395e-03,
            -6.7189466e-03,
            -6.9255044e-04,
            2.6160753e-03,
            -1.4383915e-03,
            2.964237e-04,
        ),
        (
            -1.6449333e00,
            8.1171584e-01,
            -1.9044326e-01,
            2.4716172e-02,
        ),
        (
            4.2278433e-01,
            3.2246694e-01,
            -6.735156e-02,
            2.05853e-02,
            -7.3973425e-03,
            2.8297699e-03,
            -1.1496877e-03,
            8.2088134e-04,
            -1.4320116e-04,
            -4.3331424e-04,
            -4.8404685e-04,
        ),
        (
            8.333332e-02,
            -2.7767592e-03,
            7.70545e-04,
            -3.8587127e-04,
        ),
    ),
    f64: _Table(
        (1.4426950408889634, 2.0355273740931033e-17),
        171.7,
        190.0,
        0.125,
        (
            2.5066282746310007,
            0.20888568955252568,
            0.03481428159846197,
            -0.0012813593207388805,
            -0.0022796395687688527,
            0.0011663673305091593,
            0.0012019448333444903,
            -0.0009665263119028108,
            -0.001039051794381307,
            0.0003052521135966966,
            0.006251951149402095,
            -0.01332740704719311,
            0.006856030504738653,
            0.02364461955780115,
            -0.06913500298045672,
            0.10236812806106753,
            -0.10162375159768569,
            0.07148111770615587,
            -0.035481330516320936,
            0.011886603763362006,
            -0.0024182642435451322,
            0.00022587226700190584,
        ),
        (
            -1.6449340668482264,
            0.8117424252833462,
            -0.19075182412167532,
            0.026147847807942565,
            -0.002346080913288006,
            0.0001484279165529023,
            -6.972267231163206e-06,
            2.45183185187343e-07,
        ),
        (
            0.42278433509846713,
            0.3224670334241132,
            -0.06735230105319528,
            0.02058080842778983,
            -0.0073855510289358795,
            0.002890510330238692,
            -0.0011927539023935576,
            0.0005096695448336721,
            -0.00022315492033929036,
            9.945710457661028e-05,
            -4.4924743807177856e-05,
            2.0511849323728054e-05,
            -9.446398122077862e-06,
            4.344399673663761e-06,
            -2.0307660490290232e-06,
            1.0682032172388344e-06,
            -3.922853549565953e-07,
            4.32545430873023e-09,
            -3.431348412055876e-07,
            1.418349789301435e-07,
            2.617066407553266e-07,
            1.4911642318641432e-07,
        ),
        (
            0.0833333333333327,
            -0.0027777777773362136,
            0.0007936507015073455,
            -0.0005952290902265181,
            0.0008412496266586972,
            -0.0018997976282285136,
            0.005981529951028169,
            -0.022026949067954885,
            0.07739028027486798,
            -0.2148485773855391,
            0.38993202239058283,
            -0.3348509373268737,
        ),
    ),
}


def _fraction(a: Num) -> tuple[Num, Num]:
    """a minus the nearest integer, exactly, and half that integer."""
    whole = a.op(Op.ROUND)
    return a - whole, whole * 0.5


def _sine_ratio(d: Num) -> tuple[Num, Num]:
    """sin(pi d) / (pi d), as a sum."""
    z = d * d
    return add_ordered(d.of(1.0), z * horner(z, _TABLES[d.dtype].sine))


def tgamma(x: Num, rare: Rare) -> Num:
    """Numerator and denominator keep what rounding took from them, and correct the quotient."""
    table = _TABLES[x.dtype]
    negative = x.signed_bits() < 0
    magnitude = abs(x)
    a = magnitude.op(Op.MINIMUM, table.vanishing)
    below = a < 1.0
    moved = below | negative
    unit, zero = x.of(1.0), x.of(0.0)
    b = select(moved, a + 1.0, a)
    exponent, exponent_rest, inverse = _exponent(b, select(moved, a - (b - 1.0), zero))
    y, k = exp2_parts(
        select(negative, -exponent, exponent), select(negative, -exponent_rest, exponent_rest)
    )
    start, *others = table.stirling
    factor, factor_rest = add_ordered(x.of(start), inverse * horner(inverse, others))
    top, top_rest = multiply_exactly(y, factor)
    top_rest = fma(y, factor_rest, top_rest)

    def slow() -> tuple[Num, ...]:
        """Of negative numbers by reflection, and of those of which 1 / a may be infinite."""
        # Half of the scaling comes before the division, so that neither part overflows alone.
        first = k >> 1
        power = power_of_two(first, x.dtype)
        d, half = _fraction(magnitude)
        down, down_rest = _reflection(d, factor, factor_rest)
        result = _divide(
            (select(negative, y, top) * power, select(negative, zero, top_rest) * power),
            (select(negative, down, a), select(negative, down_rest, zero)),
        )
        odd = half.op(Op.FLOOR).ne(half)
        result = select(negative & ~odd, -result, result)
        result = select(d.eq(0.0) & (x < 0.0), x.of(math.nan), result)
        return (result * power_of_two(k - first, x.dtype),)

    divisor = select(below, a, unit)
    reciprocal = quotient(1.0, divisor)
    plain = top * reciprocal
    plain = fma(fma(-plain, divisor, top) + top_rest, reciprocal, plain)
    plain = plain * power_of_two(k, x.dtype)
    (result,) = either(x < 2.0 ** -(x.format.bias // 2), rare, slow, (plain,))
    return select(x > table.overflow, x.of(math.inf), result)


def _reflection(d: Num, factor: Num, factor_rest: Num) -> tuple[Num, Num]:
    """factor sin(pi d) / pi as a sum."""
    sine, sine_rest = _sine_ratio(d)
    down, down_rest = multiply_exactly(factor, sine)
    down_rest = fma(factor, sine_rest, fma(factor_rest, sine, down_rest))
    product, product_rest = multiply_exactly(d, down)
    return product, fma(d, down_rest, product_rest)


def _divide(numerator: tuple[Num, Num], denominator: tuple[Num, Num]) -> Num:
    """The quotient of two sums; infinite where the denominator is 0 or next to it."""
    top, top_rest = numerator
    down, down_rest = denominator
    inverse = 1.0 / down
    near = top * inverse
    error = fma(-near, down, top) + fma(-near, down_rest, top_rest)
    return select(abs(near) < math.inf, fma(error, inverse, near), near)


def _exponent(b: Num, lost: Num) -> tuple[Num, Num, Num]:
    """(b - 1/2) log2(b) - b log2(e) as a sum, and 1 / (b + p).

    ``lost`` more of b counts by the derivative of log Gamma, about log b - 1 / (2 b).
    """
    table = _TABLES[b.dtype]
    inverse = quotient(1.0, b + table.pole if table.pole else b)
    high, low = log2_of_normal(b)
    unit, unit_rest = table.log2_e
    less = b - 0.5
    power, power_rest = multiply_exactly(less, high)
    decay, decay_rest = multiply_exactly(b, -unit)
    total, total_rest = add_exactly(power, decay)
    rest = fma(less, low, power_rest) + fma(b, -unit_rest, decay_rest)
    rest = fma(lost, fma(inverse, -0.5 * unit, high), rest)
    return total, total_rest + rest, inverse


def lgamma(x: Num, rare: Rare) -> Num:
    table = _TABLES[x.dtype]
    a = abs(x)
    negative = x < 0.0
    small, low, high, large = a < 0.25, a < 1.25, a >= 2.5, a >= 3.5
    unit = x.of(1.0)
    # Near: lgamma(a) = u near(u) plus or minus the logarithm of what the shift multiplies by.
    least = select(small, select(negative, a + 1.0, fma(a, a, a)), a)
    shifted = select(high, select(large, a, a - 1.0), select(low, least, unit))
    logarithm, logarithm_rest = log_of_positive(shifted)
    moved = a - select(high, x.of(3.0), select(low, unit, x.of(2.0)))
    u = select(small, a, moved)
    near = fma(u, horner(u, table.near), select(high, logarithm_rest, -logarithm_rest))
    near = near + select(high, logarithm, -logarithm)
    v = quotient(1.0, a)
    far = fma(v, horner(v * v, table.far), _HALF_LOG)
    far = fma(a - 0.5, logarithm - 1.0, fma(a - 0.5, logarithm_rest, far))
    y = select(large, far, near)

    def reflected() -> tuple[Num, ...]:
        """-log(a |sin(pi a)| / pi) - lgamma(a), small a divided out of both logarithms."""
        d, _ = _fraction(a)
        ratio, _ = _sine_ratio(d)
        sine = abs(d) * (ratio * select(small, unit, a))
        log_sine, log_sine_rest = log_of_positive(sine)
        return (select(d.eq(0.0), x.of(math.inf), -log_sine - (y + log_sine_rest)),)

    (result,) = either(negative, rare, reflected, (y,))
    # Where a is so large the result is infinite, or 1 / a above is none.
    infinite = a.eq(0.0) | (a >= 2.0 ** (x.format.bias - 5))
    return select(infinite, x.of(math.inf), result)
