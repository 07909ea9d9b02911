"""asin, acos, atan, atan2.

asin and acos: an odd polynomial up to 1/2; beyond it asin x = pi/2 - 2 asin sqrt((1 - x) / 2),
whose subtraction is exact. atan: an odd polynomial up to 1; beyond it atan x = pi/2 - atan(1 / x).
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.math.kit import (
    Num,
    add_ordered,
    fma,
    horner,
    quotient,
    root,
    select,
    with_sign,
)
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["acos", "asin", "atan", "atan2"]

# From here on atan is pi / 2 to all digits; 1 / x is taken of no more.
_FAR: Final = 2.0**64


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        quarter: high and low part of pi / 2.
        asin: (asin(x) / x - 1) / z in z = x**2 <= 1/4; relative error 2**-27.6, 2**-59.
        atan: (atan(x) / x - 1) / z in z = x**2 <= 1; relative error 2**-28, 2**-57.
    """

    quarter: tuple[float, float]
    asin: tuple[float, ...]
    atan: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (1.5707963705062866, -4.371138828673793e-08),
        (
            1.6666752e-01,
            7.4953094e-02,
            4.5469157e-02,
            2.4184713e-02,
            4.2158455e-02,
        ),
        (
            -3.33333e-01,
            1.999853e-01,
            -1.4264016e-01,
            1.09508775e-01,
            -8.399273e-02,
            5.7880107e-02,
            -3.1094752e-02,
            1.0866855e-02,
            -1.7822295e-03,
        ),
    ),
    f64: _Table(
        (1.5707963267948966, 6.123233995736766e-17),
        (
            0.1666666666666676,
            0.07499999999970866,
            0.04464285717456128,
            0.030381942709837347,
            0.022372214936909485,
            0.017351612832116392,
            0.01398081158893165,
            0.011398979933798703,
            0.010779899240510258,
            0.0037076610448128757,
            0.021704574353834844,
            -0.020995212382693456,
            0.03262633484851218,
        ),
        (
            -0.3333333333333307,
            0.19999999999951748,
            -0.14285714282587955,
            0.11111111007336943,
            -0.09090907007691831,
            0.07692279887494943,
            -0.06666404410582798,
            0.05880529726736547,
            -0.05253526401083376,
            0.04722347030109137,
            -0.042192400187395576,
            0.0366430867008062,
            -0.029905630504399202,
            0.021986933172263867,
            -0.01390243960671484,
            0.007197784744176304,
            -0.0028855558006156312,
            0.0008315399012955026,
            -0.000152206730737739,
            1.3229545266533419e-05,
        ),
    ),
}


def _folded_asin(magnitude: Num, large: Num) -> tuple[Num, Num]:
    """asin of a number up to 1/2; of ``large`` ones half of what pi/2 lacks to asin; as a sum."""
    z = select(large, (1.0 - magnitude) * 0.5, magnitude * magnitude)
    s = select(large, root(z), magnitude)
    return s, s * z * horner(z, _TABLES[z.dtype].asin)


def asin(x: Num) -> Num:
    magnitude = abs(x)
    large = magnitude > 0.5
    s, rest = _folded_asin(magnitude, large)
    high, low = _TABLES[x.dtype].quarter
    lacking, lacking_rest = add_ordered(x.of(high), s * -2.0)
    lacking = lacking + (fma(rest, -2.0, low) + lacking_rest)
    return with_sign(select(large, lacking, s + rest), x)


def acos(x: Num) -> Num:
    """base pi/2 + sign t, where base is 0, 1 or 2."""
    magnitude = abs(x)
    large = magnitude > 0.5
    s, rest = _folded_asin(magnitude, large)
    t = s + rest
    negative = x < 0.0
    t = select(large, t + t, t)
    t = select(negative ^ large, t, -t)
    ends = select(negative, x.of(2.0), x.of(0.0))
    return _turn(select(large, ends, x.of(1.0)), t)


def _turn(quarters: Num, angle: Num) -> Num:
    """quarters pi/2 + angle."""
    high, low = _TABLES[angle.dtype].quarter
    return fma(quarters, high, fma(quarters, low, angle))


def _folded_atan(t: Num) -> Num:
    z = t * t
    return fma(t * z, horner(z, _TABLES[t.dtype].atan), t)


def atan(x: Num) -> Num:
    magnitude = abs(x)
    large = magnitude > 1.0
    inverse = quotient(1.0, magnitude.op(Op.MIN, _FAR))
    t = _folded_atan(select(large, inverse, magnitude))
    high, low = _TABLES[x.dtype].quarter
    return with_sign(select(large, (low - t) + high, t), x)


def atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y), signed zeros and infinities as C99, annex F, has them."""
    across, along = abs(y), abs(x)
    steep = across > along
    quotient = select(steep, along, across) / select(steep, across, along)
    diagonal = select(along.eq(0.0), x.of(0.0), x.of(1.0))
    t = _folded_atan(select(across.eq(along), diagonal, quotient))
    behind = x.signed_bits() < 0
    t = select(behind ^ steep, -t, t)
    level = select(behind, x.of(2.0), x.of(0.0))
    return with_sign(_turn(select(steep, x.of(1.0), level), t), y)
