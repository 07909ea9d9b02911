"""exp, exp2, exp10, expm1, sinh, cosh, tanh.

Method (Cody & Waite 1980; Muller, Elementary Functions): x = k ln 2 + r with |r| <= ln 2 / 2 and k
an integer, found by adding and subtracting a large number; r by two fused steps; exp r from a
minimax polynomial; 2**k from its bits. Nothing divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.math.kit import FORMATS, Num, fma, horner, power_of_two, select, with_sign
from khaljit.tracer.dtypes import DType, f32, f64

__all__ = ["exp", "exp2", "exp2_of_sum", "moderate_exp", "scale", "tanh"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        per_unit: 1 / ln 2; ln2: its high and low part.
        exp: (exp(r) - 1 - r) / r**2 on +-0.348; relative error of exp 2**-28.2, 2**-56.3.
        exp2: (2**r - 1) / r on +-0.5; relative error of 2**r 2**-26.3, 2**-58.
        overflow: the least number whose exp overflows is above this one.
        underflow: exp of anything below rounds to 0; also an exponent of exp2.
    """

    per_unit: float
    ln2: tuple[float, float]
    exp: tuple[float, ...]
    exp2: tuple[float, ...]
    overflow: float
    underflow: float
    least: float


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        1.4426950408889634,
        (0.6931471824645996, -1.9046542121259336e-09),
        (4.9999994e-01, 1.6666514e-01, 4.166806e-02, 8.369524e-03, 1.384292e-03),
        (
            6.931472e-01,
            2.4022594e-01,
            5.5503663e-02,
            9.625427e-03,
            1.3387928e-03,
            1.3341312e-04,
        ),
        88.72283172607422,
        -104.0,
        -150.0,
    ),
    f64: _Table(
        1.4426950408889634,
        (0.6931471805599453, 2.3190468138462996e-17),
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
            0.6931471805599457,
            0.240226506959101,
            0.05550410866478882,
            0.009618129107606772,
            0.0013333558153585075,
            0.0001540353044019759,
            1.5252727253351123e-05,
            1.3215444043055846e-06,
            1.0180732517529332e-07,
            7.072250890647851e-09,
            4.0595001278840653e-10,
        ),
        709.782712893384,
        -746.0,
        -1075.0,
    ),
}


def scale(y: Num, shifted: Num, small: Num) -> Num:
    """y * 2**k rounded once, where ``shifted`` holds k in its low bits (see `Format.shifter`).

    ``small`` says that the result may be subnormal: then 2**(k + 64) is multiplied first and
    2**-64 last, else 2**(k - 1) and 2, so that k may be one more than an exponent can be.
    NaN in y comes through whatever k is.
    """
    form = y.format
    raised = y.of(2.0**64).bits()
    lowered = y.of(0.5).bits()
    power = (shifted.bits() << form.fraction) + select(small, raised, lowered)
    return y * power.reinterpret(y.dtype) * select(small, y.of(2.0**-64), y.of(2.0))


def exp(x: Num, fast: bool) -> Num:
    table = _TABLES[x.dtype]
    shifted = fma(x, table.per_unit, x.format.shifter)
    k = shifted - x.format.shifter
    r = fma(k, -table.ln2[1], fma(k, -table.ln2[0], x))
    y = fma(r * r, horner(r, table.exp), r) + 1.0
    small = x < -(x.format.bias - 2) * 0.693
    result = scale(y, shifted, small)
    result = select(x > table.overflow, x.of(float("inf")), result)
    return select(x < table.underflow, x.of(0.0), result)


def exp2(x: Num, fast: bool) -> Num:
    table = _TABLES[x.dtype]
    shifted = x + x.format.shifter
    r = x - (shifted - x.format.shifter)
    y = fma(r, horner(r, table.exp2), 1.0)
    result = scale(y, shifted, x < -(x.format.bias - 2.0))
    result = select(x >= x.format.bias + 1.0, x.of(float("inf")), result)
    return select(x < table.least, x.of(0.0), result)


def exp2_of_sum(high: Num, low: Num) -> Num:
    """2**(high + low) with |low| far below 1; where high is infinite, low may be NaN."""
    form = high.format
    shifted = high + form.shifter
    r = high - (shifted - form.shifter) + low
    y = fma(r, horner(r, _TABLES[high.dtype].exp2), 1.0)
    result = scale(y, shifted, high < -(form.bias - 2.0))
    result = select(high > form.bias + 1.0, high.of(float("inf")), result)
    return select(high < _TABLES[high.dtype].least - 1.0, high.of(0.0), result)


def moderate_exp(x: Num) -> Num:
    """exp where the result is a normal number."""
    table = _TABLES[x.dtype]
    shifted = fma(x, table.per_unit, x.format.shifter)
    k = shifted - x.format.shifter
    r = fma(k, -table.ln2[1], fma(k, -table.ln2[0], x))
    y = fma(r * r, horner(r, table.exp), r) + 1.0
    return y * power_of_two(shifted.bits(), x.dtype)
