"""tgamma, lgamma.

tgamma: for b from 1 on, Gamma(b) = b**(b - 1/2) exp(-b) S(b), the power and the exponential in
double-length arithmetic as 2 to a sum, S (Stirling's series in effect) a minimax polynomial in
1 / (b + p). Below 1, Gamma(a) = Gamma(a + 1) / a; negative arguments by reflection,
Gamma(-a) = -pi / (a sin(pi a) Gamma(a)), where sin(pi a) comes from the exact fraction of a.

lgamma: from 2.5 on, (a - 1/2) (log a - 1) + w(1 / a); below, a polynomial around 2 and the logarithm
of what shifting the argument there multiplies by. Relative errors are small next to the zeros at 1
and 2, not next to those between negative integers, where the error is one of the terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.math.exponential import exp2_parts
from khaljit.codegen.math.kit import (
    Num,
    add_exactly,
    fma,
    horner,
    multiply_exactly,
    select,
)
from khaljit.codegen.math.logarithm import log_of_positive
from khaljit.codegen.math.power import log2_of_positive
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op

__all__ = ["lgamma", "tgamma"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        log2_e: high and low part.
        overflow: tgamma is infinite above this.
        vanishing: the magnitude beyond which tgamma of negative numbers rounds to 0.
        pole: p in 1 / (b + p).
        stirling: S in 1 / (b + p) for b from 1 to `vanishing`; relative error 2**-29.9, 2**-@H@.
        sine: (sin(pi d) / (pi d) - 1) / d**2 in d**2 <= 1/4; relative error 2**-27.2, 2**-61.1.
        log_overflow: lgamma is infinite above this.
        near: lgamma(2 + u) / u for u in +-1/2; relative error 2**-@R32@, 2**-@R64@.
        far: (w(v) - w(0)) / v in v**2 <= 0.16; absolute error 2**-30.7, 2**-56.5.
    """

    log2_e: tuple[float, float]
    overflow: float
    vanishing: float
    pole: float
    stirling: tuple[float, ...]
    sine: tuple[float, ...]
    log_overflow: float
    near: tuple[float, ...]
    far: tuple[float, ...]


@TABLES@


def _fraction(a: Num) -> tuple[Num, Num]:
    """a minus the nearest integer, exactly, and half that integer."""
    whole = a.op(Op.ROUND)
    return a - whole, whole * 0.5


def _sine_ratio(d: Num) -> Num:
    """sin(pi d) / (pi d)."""
    z = d * d
    return fma(z, horner(z, _TABLES[d.dtype].sine), 1.0)


def tgamma(x: Num) -> Num:
    table = _TABLES[x.dtype]
    negative = x.signed_bits() < 0
    magnitude = abs(x)
    a = select(magnitude > table.vanishing, x.of(table.vanishing), magnitude)
    below = a < 1.0
    b = select(below, a + 1.0, a)
    # What a + 1 lost counts by the derivative of log Gamma on [1, 2], about 1.06 b - 1.63.
    lost = select(below, a - (b - 1.0), x.of(0.0))
    factor = horner(1.0 / (b + table.pole), table.stirling)
    factor = fma(factor * lost, fma(b, 1.06, -1.63), factor)
    exponent, exponent_rest = _exponent(b)
    d, half = _fraction(magnitude)
    unit = x.of(1.0)
    down = d * (factor * _sine_ratio(d) * select(below, unit, a))
    ratio = select(negative, unit, factor) / select(negative, down, select(below, a, unit))
    odd = half.op(Op.FLOOR).ne(half)
    ratio = select(negative & ~odd, -ratio, ratio)
    y, k = exp2_parts(
        select(negative, -exponent, exponent), select(negative, -exponent_rest, exponent_rest)
    )
    result = _scale_twice(y * ratio, k)
    result = select(x > table.overflow, x.of(math.inf), result)
    pole = d.eq(0.0) & (x < 0.0)
    return select(pole, x.of(math.nan), result)


def _exponent(b: Num) -> tuple[Num, Num]:
    """(b - 1/2) log2(b) - b log2(e), as a sum."""
    high, low = log2_of_positive(b)
    unit, unit_rest = _TABLES[b.dtype].log2_e
    less = b - 0.5
    power, power_rest = multiply_exactly(less, high)
    decay, decay_rest = multiply_exactly(b, -unit)
    total, total_rest = add_exactly(power, decay)
    rest = fma(less, low, power_rest) + fma(b, -unit_rest, decay_rest)
    return total, total_rest + rest


def _scale_twice(y: Num, k: Num) -> Num:
    """y 2**k in two steps, of which only the last one rounds."""
    form = y.format
    first = k >> 1
    for part in (first, k - first):
        y = y * ((part << form.fraction) + form.one_bits).reinterpret(form.dtype)
    return y


def lgamma(x: Num) -> Num:
    table = _TABLES[x.dtype]
    a = abs(x)
    negative = x < 0.0
    small, middle, large = a < 0.5, a < 1.5, a > 2.5
    unit = x.of(1.0)
    # Near: lgamma(a) = u near(u) - log of this.
    shifted = select(small, select(negative, a + 1.0, fma(a, a, a)), select(middle, a, unit))
    logarithm = log_of_positive(select(large, a, shifted))
    u = select(small, a, a - select(middle, unit, x.of(2.0)))
    near = fma(u, horner(u, table.near), -logarithm)
    v = 1.0 / a
    far = fma(v, horner(v * v, table.far), 0.5 * math.log(2.0 * math.pi) - 0.5)
    far = fma(a - 0.5, logarithm - 1.0, far)
    y = select(large, far, near)
    # lgamma(-a) = -log(a |sin(pi a)| / pi) - lgamma(a), small a divided out of both logarithms.
    d, _ = _fraction(a)
    d = abs(d)
    sine = d * (_sine_ratio(d) * select(small, unit, a))
    y = select(negative, -log_of_positive(sine) - y, y)
    pole = (d.eq(0.0) & negative) | a.eq(0.0)
    y = select(pole | (a > table.log_overflow), x.of(math.inf), y)
    return select(x.ne(x), x, y)
