"""sinh, cosh, tanh, asinh, acosh, atanh.

sinh and cosh by the addition theorem: with x = k ln 2 + r,
sinh x = sinh(k ln 2) cosh r + cosh(k ln 2) sinh r, whose first factors come from the bits of two
powers of 2. So small arguments need no formula of their own, and nothing divides.

The inverse functions are log1p of an argument that is kept as a sum of two numbers.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.math.exponential import moderate_exp, reduce_precisely_by_ln2
from khaljit.codegen.math.kit import (
    Num,
    Rare,
    add_ordered,
    either,
    fma,
    horner,
    quotient,
    root,
    select,
    with_sign,
)
from khaljit.codegen.math.logarithm import log1p_of_any, log1p_of_sum
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["acosh", "asinh", "atanh", "cosh", "sinh", "tanh"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Polynomials of one format in z = x**2.

    Attributes:
        sinh: (sinh(r) / r - 1) / z for r in +-0.348; relative error 2**-34, 2**-62.
        cosh: (cosh(r) - 1) / z for r in +-0.348; relative error of cosh 2**-33, 2**-69.
        tanh: (tanh(x) / x - 1) / z for x in +-0.55; relative error 2**-29.7, 2**-60.5.
        overflow: sinh and cosh are infinite above this.
    """

    sinh: tuple[float, ...]
    cosh: tuple[float, ...]
    tanh: tuple[float, ...]
    overflow: float


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (
            1.6666667e-01,
            8.333176e-03,
            1.9972933e-04,
        ),
        (
            5e-01,
            4.166646e-02,
            1.3935491e-03,
        ),
        (
            -3.3333316e-01,
            1.3332544e-01,
            -5.3847548e-02,
            2.1050714e-02,
            -6.2428485e-03,
        ),
        89.5,
    ),
    f64: _Table(
        (
            0.16666666666666677,
            0.008333333333321351,
            0.00019841269886972758,
            2.755724323500376e-06,
            2.510941459556697e-08,
        ),
        (
            0.5,
            0.041666666666666685,
            0.0013888888888873236,
            2.4801587349390575e-05,
            2.755725158627293e-07,
            2.0921862378500168e-09,
        ),
        (
            -0.333333333333333,
            0.1333333333332658,
            -0.053968253963739325,
            0.021869488385310658,
            -0.008863232593378078,
            0.003592091956084385,
            -0.0014555424041294692,
            0.0005884427950480839,
            -0.00023337752977298462,
            8.331098812799291e-05,
            -1.9491489290050737e-05,
        ),
        710.5,
    ),
}


def _powers(shifted: Num) -> tuple[Num, Num]:
    """sinh(k ln 2) / 2 and cosh(k ln 2) / 2 for 0 <= k <= bias + 2."""
    form = shifted.format
    k = shifted.bits() << form.fraction
    up = (k + (form.bias - 2 << form.fraction)).reinterpret(form.dtype)
    down = (k.of(form.bias + 2 << form.fraction) - k).reinterpret(form.dtype)
    return fma(down, -0.0625, up), fma(down, 0.0625, up)


def _addition(r: Num, rest: Num, main: Num, other: Num) -> Num:
    """main cosh(r + rest) + other sinh(r + rest), for main between other / 2 and 2 other."""
    table = _TABLES[r.dtype]
    z = r * r
    near = fma(other, r, main)
    near_rest = fma(other, r, main - near)
    near_rest = fma(other, fma(r * z, horner(z, table.sinh), rest), near_rest)
    return near + fma(main, z * horner(z, table.cosh), near_rest)


def sinh(x: Num) -> Num:
    magnitude = abs(x)
    shifted, k, r, rest = reduce_precisely_by_ln2(magnitude)
    sinh_k, cosh_k = _powers(shifted)
    half = _addition(r, rest, sinh_k, cosh_k)
    z = r * r
    small = fma(r * z, horner(z, _TABLES[x.dtype].sinh), r)
    y = select(k.eq(0.0), small, half + half)
    return with_sign(_or_infinity(magnitude, y), x)


def cosh(x: Num) -> Num:
    magnitude = abs(x)
    shifted, _, r, rest = reduce_precisely_by_ln2(magnitude)
    sinh_k, cosh_k = _powers(shifted)
    half = _addition(r, rest, cosh_k, sinh_k)
    return _or_infinity(magnitude, half + half)


def _or_infinity(magnitude: Num, y: Num) -> Num:
    overflow = _TABLES[y.dtype].overflow
    return select(magnitude > overflow, y.of(float("inf")), y)


def tanh(x: Num) -> Num:
    """An odd polynomial below 0.55, 1 - 2 / (exp(2 |x|) + 1) above."""
    table = _TABLES[x.dtype]
    magnitude = abs(x)
    doubled = magnitude.op(Op.MINIMUM, float(x.format.precision)) * 2.0
    large = fma(quotient(1.0, moderate_exp(doubled) + 1.0), -2.0, 1.0)
    z = x * x
    small = fma(magnitude * z, horner(z, table.tanh), magnitude)
    return with_sign(select(magnitude >= 0.55, large, small), x)


def asinh(x: Num, rare: Rare) -> Num:
    """log1p(w) with w = a + a**2 / (1 + sqrt(1 + a**2)); log(2 a) for huge a."""
    a = abs(x)
    w, rest = add_ordered(a, quotient(a * a, root(fma(a, a, 1.0)) + 1.0))
    unusual = a.bits() >= _huge_bits(x)
    (y,) = either(unusual, rare, lambda: (_log_of_double(a),), (log1p_of_sum(w, rest),))
    return with_sign(y, x)


def acosh(x: Num, rare: Rare) -> Num:
    """log1p(s + t) with t = x - 1 and s = sqrt(2 t + t**2); log(2 x) for huge x."""
    t = x - 1.0
    doubled = t + t
    square = t * t
    # Where t is above 2 the sum's error is not exact, and does not matter.
    q, q_rest = add_ordered(doubled, square)
    q_rest = q_rest + fma(t, t, -square)
    s = root(q)
    s_rest = quotient(fma(-s, s, q) + q_rest, s + s)
    w, rest = add_ordered(s, t)
    above = x.format.one_bits + 1
    unusual = x.bits() - above >= _huge_bits(x) - above
    (y,) = either(unusual, rare, lambda: (_acosh_of_rare(x),), (log1p_of_sum(w, rest + s_rest),))
    return y


def _acosh_of_rare(x: Num) -> Num:
    y = select(x > 1.0, _log_of_double(x), x.of(0.0))
    return select(x >= 1.0, y, x.of(float("nan")))


def _huge_bits(x: Num) -> int:
    """From here on log(2 a) is asinh and acosh."""
    return to_bits(x.dtype, 2.0 ** (x.format.precision + 2)) + 1


def _log_of_double(a: Num) -> Num:
    """log(2 a) of a huge number, which adding 1 does not change; of infinity that, and of NaN."""
    return select(a < float("inf"), log1p_of_any(a, 1), a)


def atanh(x: Num) -> Num:
    """log1p(w) / 2 with w = 2 a / (1 - a), whose rounding errors are carried along."""
    a = abs(x)
    d = 1.0 - a
    d_rest = (1.0 - d) - a
    reciprocal = quotient(1.0, d)
    doubled = a + a
    w = doubled * reciprocal
    rest = fma(-w, d_rest, fma(-w, d, doubled)) * reciprocal
    y = log1p_of_sum(w, rest) * 0.5
    y = select(a.eq(1.0), x.of(float("inf")), y)
    return with_sign(select(a > 1.0, x.of(float("nan")), y), x)
