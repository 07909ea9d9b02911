"""exp, exp2, exp10, expm1.

Method (Cody & Waite 1980; Muller, Elementary Functions): an integer k is found by adding and
subtracting a large number; 2**k comes from its bits; a minimax polynomial gives the rest. exp, exp2
and exp10 are 2**(k + r) with |r| <= 1/2; where exp(r) - 1 or exp(r) to twice the precision is
needed, x = k ln 2 + r with |r| <= ln 2 / 2, by two fused steps, the first exact. Nothing divides,
and k is never converted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.math.kit import (
    LN_2,
    LOG2_E,
    Format,
    Num,
    Rare,
    add_ordered,
    either,
    fma,
    horner,
    multiply_exactly,
    power_of_two,
    select,
    with_sign,
)
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = [
    "exp",
    "exp2",
    "exp2_of_negative_product",
    "exp2_of_product",
    "exp2_of_sum",
    "exp2_parts",
    "exp10",
    "exp_less_1",
    "exp_of_negative_square",
    "expm1",
    "moderate_exp",
    "reduce_by_ln2",
    "reduce_precisely_by_ln2",
]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format; pairs are high and low parts.

    Attributes:
        ln2: log 2; log2_e, log2_10: logarithms to the base 2.
        exp: (exp(r) - 1 - r) / r**2 on +-0.348; relative error of exp 2**-28.2, 2**-56.3.
        expm1: the same; relative error of expm1 2**-28.7, 2**-60.9.
        exp2: (2**r - 1) / r on +-0.5; relative error of 2**r 2**-26.3, 2**-57.6.
    """

    ln2: tuple[float, float]
    log2_e: tuple[float, float]
    log2_10: tuple[float, float]
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    exp2: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (0.6931471824645996, -1.9046542121259336e-09),
        (1.4426950216293335, 1.925963033500011e-08),
        (3.321928024291992, 7.059536955011936e-08),
        (
            4.9999994e-01,
            1.6666514e-01,
            4.166806e-02,
            8.369524e-03,
            1.384292e-03,
        ),
        (
            5e-01,
            1.6666666e-01,
            4.1666355e-02,
            8.333391e-03,
            1.394103e-03,
            1.9845866e-04,
        ),
        (
            6.931472e-01,
            2.4022594e-01,
            5.5503663e-02,
            9.625427e-03,
            1.3387928e-03,
            1.3341312e-04,
        ),
    ),
    f64: _Table(
        (0.6931471805599453, 2.3190468138462996e-17),
        (1.4426950408889634, 2.0355273740931033e-17),
        (3.321928094887362, 1.661617516973592e-16),
        (
            0.5000000000000011,
            0.16666666666666025,
            0.0416666666665216,
            0.008333333333484261,
            0.0013888888948228636,
            0.00019841269935192083,
            2.4801486098432904e-05,
            2.7556925911705036e-06,
            2.7633392003106305e-07,
            2.5278482771254747e-08,
        ),
        (
            0.5,
            0.1666666666666668,
            0.04166666666666672,
            0.008333333333318843,
            0.0013888888888837095,
            0.0001984126989389879,
            2.4801587452172944e-05,
            2.7557235807290774e-06,
            2.7557140143899105e-07,
            2.511212856515827e-08,
            2.096265183688603e-09,
        ),
        (
            0.6931471805599453,
            0.24022650695909997,
            0.05550410866482377,
            0.009618129107670842,
            0.001333355814589766,
            0.00015403530314775601,
            1.525273432163248e-05,
            1.3215550334576542e-06,
            1.0177861373290668e-07,
            7.031619780816873e-09,
            4.4846379290388154e-10,
            5.742864241705938e-11,
        ),
    ),
}


def _exp2_of_multiple(x: Num, unit: float, unit_rest: float, rare: Rare) -> Num:
    """2**(x (unit + unit_rest)) of any x."""

    def parts(x: Num) -> tuple[Num, Num]:
        shifter = x.format.shifter
        shifted = fma(x, unit, shifter)
        r = fma(x, unit, shifter - shifted)
        return shifted, fma(x, unit_rest, r)

    return _exp2_by_parts(x, parts, unit, rare)


def _exp2_by_parts(x: Num, parts: Callable[[Num], tuple[Num, Num]], unit: float, rare: Rare) -> Num:
    """2**(x unit) of any x, where parts gives k in the low bits of a float, and r.

    Clamping and scaling twice cost less than a branch but for f64 on a GPU.
    """
    form = x.format

    def any_() -> tuple[Num, ...]:
        shifted, r = parts(_clamped(x, _limit(form) / unit))
        return (_scaled_exp2(r, shifted),)

    if rare is not Rare.BRANCHED:
        return any_()[0]
    shifted, r = parts(x)
    usual = abs(x) < (form.bias - 3) / unit
    (y,) = either(~usual, rare, any_, (_raised(_exp2_of_rest(r), shifted),))
    return y


def _limit(form: Format) -> float:
    """From here on 2**x rounds to infinity, and 2**-x to 0."""
    return form.bias + form.precision + 1.0


def _clamped(x: Num, limit: float) -> Num:
    return x.op(Op.MAXIMUM, -limit).op(Op.MINIMUM, limit)


def _split(x: Num) -> tuple[Num, Num]:
    """k in the low bits of a float (see `Format.shifter`), and r with x = k + r and |r| <= 1/2."""
    shifted = x + x.format.shifter
    return shifted, x - (shifted - x.format.shifter)


def _exp2_of_rest(r: Num) -> Num:
    """2**r for |r| <= 1/2."""
    return fma(r, horner(r, _TABLES[r.dtype].exp2), 1.0)


def _scaled_exp2(r: Num, shifted: Num) -> Num:
    """2**(k + r) rounded once: by two powers of 2, normal numbers also where the result is none."""
    k = shifted.bits()
    half = k >> 1
    return _exp2_of_rest(r) * power_of_two(half, r.dtype) * power_of_two(k - half, r.dtype)


def _raised(y: Num, shifted: Num) -> Num:
    """y * 2**k where that and its neighbours are normal numbers; k in the low bits of a float."""
    bits = y.bits() + (shifted.bits() << y.format.fraction)
    return bits.reinterpret(y.dtype)


def reduce_by_ln2(x: Num) -> tuple[Num, Num, Num]:
    """k in the low bits of a float, k, and r with x = k ln 2 + r and |r| <= 0.348."""
    high, low = _TABLES[x.dtype].ln2
    shifted = fma(x, LOG2_E, x.format.shifter)
    k = shifted - x.format.shifter
    return shifted, k, fma(k, -low, fma(k, -high, x))


def reduce_precisely_by_ln2(x: Num) -> tuple[Num, Num, Num, Num]:
    """`reduce_by_ln2` with what rounding took from r as the last."""
    high, low = _TABLES[x.dtype].ln2
    shifted, k, r = reduce_by_ln2(x)
    return shifted, k, r, fma(k, -low, fma(k, -high, x) - r)


def exp_less_1(r: Num) -> Num:
    """exp(r) - 1 for |r| <= 0.348."""
    return fma(r * r, horner(r, _TABLES[r.dtype].exp), r)


def exp(x: Num, rare: Rare) -> Num:
    return _exp2_of_multiple(x, *_TABLES[x.dtype].log2_e, rare)


def moderate_exp(x: Num) -> Num:
    """exp where its result is a normal number; of NaN anything."""
    shifted, _, r = reduce_by_ln2(x)
    return _raised(exp_less_1(r) + 1.0, shifted)


def exp_of_negative_square(a: Num) -> tuple[Num, Num, Num]:
    """exp(-a**2) = (high + low) 2**k, the latter in the low bits of a float."""
    square, square_rest = multiply_exactly(a, a)
    shifted, _, r = reduce_by_ln2(-square)
    r = r - square_rest
    high, low = add_ordered(r.of(1.0), exp_less_1(r))
    return shifted, high, low


def exp2(x: Num, rare: Rare) -> Num:
    return _exp2_by_parts(x, _split, 1.0, rare)


def exp10(x: Num, rare: Rare) -> Num:
    return _exp2_of_multiple(x, *_TABLES[x.dtype].log2_10, rare)


def exp2_of_sum(high: Num, low: Num) -> Num:
    """2**(high + low) with |low| far below 1 where that is neither 0 nor infinite."""
    limit = _limit(high.format)
    shifted, r = _split(_clamped(high, limit))
    return _scaled_exp2(r + select(abs(high) < limit, low, 0.0), shifted)


def exp2_of_product(y: Num, high: Num, low: Num, reach: int) -> tuple[Num, Num]:
    """2**(y (high + low)), and whether the exponent is so far beyond +-reach that this is wrong."""
    form = y.format
    shifted = fma(y, high, form.shifter)
    r = fma(y, low, fma(y, high, -(shifted - form.shifter)))
    least = to_bits(form.dtype, form.shifter - reach)
    return _raised(_exp2_of_rest(r), shifted), shifted.bits() - least >= 2 * reach + 1


def exp2_of_negative_product(a: Num, b: Num) -> Num:
    """2**(-a b) where that is a normal number; of NaN anything."""
    shifter = a.format.shifter
    shifted = fma(-a, b, shifter)
    r = fma(-a, b, shifter - shifted)
    return _raised(_exp2_of_rest(r), shifted)


def exp2_parts(high: Num, low: Num) -> tuple[Num, Num]:
    """y and an integer k with 2**(high + low) = y 2**k."""
    shifted, r = _split(high)
    k = shifted.signed_bits() - to_bits(high.dtype, high.format.shifter)
    return _exp2_of_rest(r + low), k


def expm1(x: Num) -> Num:
    """2**k expm1(r) + (2**k - 1), halved so that k may be one more than an exponent can be."""
    shifted, k, r, rest = reduce_precisely_by_ln2(x)
    tail = fma(r * r, horner(r, _TABLES[x.dtype].expm1), rest)
    half = power_of_two(shifted.bits() - 1, x.dtype)
    offset = half - 0.5
    near = fma(r, half, offset)
    scaled = near + fma(tail, half, fma(r, half, offset - near))
    y = with_sign(select(k.eq(0.0), r + tail, scaled + scaled), x)
    y = select(x > (x.format.bias + 1.25) * LN_2, x.of(math.inf), y)
    return select(x < -(x.format.precision + 2.0), x.of(-1.0), y)
