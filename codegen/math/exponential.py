"""exp, exp2, exp10, expm1.

Method (Cody & Waite 1980; Muller, Elementary Functions): x = k ln 2 + r with |r| <= ln 2 / 2 and k
an integer, found by adding and subtracting a large number; r by two fused steps, the first exact;
exp r from a minimax polynomial; 2**k from its bits. Nothing divides, and k is never converted.
"""

from __future__ import annotations

import math
from typing import Final, final

from khaljit.codegen.math.kit import (
    LN_2,
    LOG2_10,
    LOG2_E,
    LOG10_2,
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
from khaljit.tracer.records import dataclass

__all__ = [
    "exp",
    "exp2",
    "exp2_of_negative_product",
    "exp2_of_product",
    "exp2_of_sum",
    "exp2_parts",
    "exp10",
    "exp_of_negative_square",
    "expm1",
    "moderate_exp",
    "reduce_by_ln2",
    "reduce_precisely_by_ln2",
    "scale",
]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format; pairs are high and low parts.

    Attributes:
        ln2: log 2; log10_2: the logarithm of 2 to the base 10.
        exp: (exp(r) - 1 - r) / r**2 on +-0.348; relative error of exp 2**-28.2, 2**-56.3.
        expm1: the same; relative error of expm1 2**-28.7, 2**-60.9.
        exp2: (2**r - 1) / r on +-0.5; relative error of 2**r 2**-26.3, 2**-57.6.
        exp10: (10**r - 1) / r on +-0.1508; relative error of 10**r 2**-27.4, 2**-56.
    """

    ln2: tuple[float, float]
    log10_2: tuple[float, float]
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    exp2: tuple[float, ...]
    exp10: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (0.6931471824645996, -1.9046542121259336e-09),
        (0.3010300099849701, -1.432098883924482e-08),
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
        (
            2.3025851e00,
            2.6509466e00,
            2.03466e00,
            1.1715546e00,
            5.416228e-01,
            1.9890685e-01,
        ),
    ),
    f64: _Table(
        (0.6931471805599453, 2.3190468138462996e-17),
        (0.3010299956639812, -2.8037281277851704e-18),
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
        (
            2.302585092994046,
            2.6509490552392236,
            2.034678592293255,
            1.1712551488967597,
            0.5393829292532425,
            0.20699585186040342,
            0.06808935914788457,
            0.01959741343276244,
            0.005014188634867117,
            0.001165831298203366,
            0.00023777393994883192,
            -0.00012330916123253014,
        ),
    ),
}


def scale(y: Num, shifted: Num, small: Num) -> Num:
    """y * 2**k rounded once, where ``shifted`` holds k in its low bits (see `Format.shifter`).

    ``small`` says that the result may be subnormal: then 2**(k + 64) is multiplied first and
    2**-64 last, else 2**(k - 1) and 2, so that k may be one more than an exponent can be.
    NaN in y comes through whatever k is.
    """
    form = y.format
    bits = shifted.bits() << form.fraction
    raised = bits.of(to_bits(form.dtype, 2.0**64))
    bits = bits + select(small, raised, to_bits(form.dtype, 0.5))
    return y * bits.reinterpret(form.dtype) * select(small, y.of(2.0**-64), 2.0)


def _raised(y: Num, shifted: Num) -> Num:
    """y * 2**k where that and its neighbours are normal numbers, as `scale` takes them."""
    bits = y.bits() + (shifted.bits() << y.format.fraction)
    return bits.reinterpret(y.dtype)


def _complete(x: Num, y: Num, shifted: Num, unit: float, rare: Rare) -> Num:
    """y * 2**k for k next to x / unit: ``unit`` is log 2 in units of x."""

    def slow() -> tuple[Num]:
        return (_bounded(x, y, shifted, unit),)

    if rare is Rare.SELECTED:
        return slow()[0]
    moderate = abs(x) < (x.format.bias - 2.0) * unit
    (result,) = either(~moderate, rare, slow, (_raised(y, shifted),))
    return result


def _bounded(x: Num, y: Num, shifted: Num, unit: float) -> Num:
    """The same for any x. Where it is so far out that k overflows, comparisons decide.

    Results between the largest finite number and these bounds come out right by themselves.
    """
    form = x.format
    small = x < -(form.bias - 2.0) * unit
    result = scale(y, shifted, small)
    result = select(x > (form.bias + 1.25) * unit, x.of(math.inf), result)
    return select(x < -(form.bias + form.precision + 1.0) * unit, x.of(0.0), result)


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


def _exp_of_rest(r: Num) -> Num:
    return fma(r * r, horner(r, _TABLES[r.dtype].exp), r) + 1.0


def exp(x: Num, rare: Rare) -> Num:
    shifted, _, r = reduce_by_ln2(x)
    return _complete(x, _exp_of_rest(r), shifted, LN_2, rare)


def moderate_exp(x: Num) -> Num:
    """exp where its result is a normal number; of NaN anything."""
    shifted, _, r = reduce_by_ln2(x)
    return _raised(_exp_of_rest(r), shifted)


def exp_of_negative_square(a: Num) -> tuple[Num, Num, Num]:
    """exp(-a**2) = (high + low) 2**k, the latter in the low bits of a float."""
    square, square_rest = multiply_exactly(a, a)
    shifted, _, r = reduce_by_ln2(-square)
    r = r - square_rest
    high, low = add_ordered(r.of(1.0), fma(r * r, horner(r, _TABLES[a.dtype].exp), r))
    return shifted, high, low


def exp2(x: Num, rare: Rare) -> Num:
    shifted = x + x.format.shifter
    r = x - (shifted - x.format.shifter)
    y = fma(r, horner(r, _TABLES[x.dtype].exp2), 1.0)
    return _complete(x, y, shifted, 1.0, rare)


def _exp2_of_sum(high: Num, low: Num) -> tuple[Num, Num]:
    """2**(high + low) / 2**k, and k in the low bits of a float."""
    shifted = high + high.format.shifter
    r = high - (shifted - high.format.shifter) + low
    return fma(r, horner(r, _TABLES[high.dtype].exp2), 1.0), shifted


def exp2_of_sum(high: Num, low: Num) -> Num:
    """2**(high + low) with |low| far below 1; where high is infinite, low may be NaN."""
    y, shifted = _exp2_of_sum(high, low)
    return _bounded(high, y, shifted, 1.0)


def exp2_of_product(y: Num, high: Num, low: Num, reach: int) -> tuple[Num, Num]:
    """2**(y (high + low)), and whether the exponent is so far beyond +-reach that this is wrong."""
    form = y.format
    shifted = fma(y, high, form.shifter)
    r = fma(y, low, fma(y, high, -(shifted - form.shifter)))
    power = fma(r, horner(r, _TABLES[y.dtype].exp2), 1.0)
    least = to_bits(form.dtype, form.shifter - reach)
    return _raised(power, shifted), shifted.bits() - least >= 2 * reach + 1


def exp2_of_negative_product(a: Num, b: Num) -> Num:
    """2**(-a b) where that is a normal number; of NaN anything."""
    shifter = a.format.shifter
    shifted = fma(-a, b, shifter)
    r = fma(-a, b, shifter - shifted)
    return _raised(fma(r, horner(r, _TABLES[a.dtype].exp2), 1.0), shifted)


def exp2_parts(high: Num, low: Num) -> tuple[Num, Num]:
    """y and an integer k with 2**(high + low) = y 2**k."""
    y, shifted = _exp2_of_sum(high, low)
    return y, shifted.signed_bits() - to_bits(high.dtype, high.format.shifter)


def exp10(x: Num, rare: Rare) -> Num:
    table = _TABLES[x.dtype]
    high, low = table.log10_2
    shifted = fma(x, LOG2_10, x.format.shifter)
    k = shifted - x.format.shifter
    r = fma(k, -low, fma(k, -high, x))
    y = fma(r, horner(r, table.exp10), 1.0)
    return _complete(x, y, shifted, LOG10_2, rare)


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
