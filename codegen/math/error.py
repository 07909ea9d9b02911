"""erf, erfc.

erf: an odd polynomial near 0; beyond it 1 - exp(-p(|x|)) with a polynomial p, since the logarithm
of erfc is close to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.math.exponential import exp_of_negative_square, moderate_exp, scale
from khaljit.codegen.math.kit import Num, fma, horner, multiply_exactly, select, with_sign
from khaljit.tracer.dtypes import DType, f32, f64

__all__ = ["erf", "erfc"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        split: where the two ways of erf meet.
        near: erf(x) / x - 1 in z = x**2 below the split; relative error of erf 2**-30, 2**-@.
        limit: erf rounds to 1 from here on.
        far: -log(erfc(x)) / x from the split to the limit; relative error of erf 2**-30.3, 2**-59.
        pole: p in scaled.
        last: erfc rounds to 0 from here on.
        scaled: exp(x**2) erfc(x) (x + p) in t = (x - p) / (x + p) for x from 0.45 to last; relative
            error 2**-28, 2**-59, but for the rounding of the coefficients.
    """

    split: float
    near: tuple[float, ...]
    limit: float
    far: tuple[float, ...]
    pole: float
    last: float
    scaled: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        0.921875,
        (
            1.2837917e-01,
            -3.761263e-01,
            1.1283626e-01,
            -2.685573e-02,
            5.1923925e-03,
            -8.049515e-04,
            7.9950485e-05,
        ),
        4.0,
        (
            1.1286485e+00,
            6.351512e-01,
            1.0623704e-01,
            -2.3762185e-02,
            3.64251e-03,
            -3.2281532e-04,
            1.1232437e-05,
        ),
        2.0,
        10.2,
        (
            1.0215827e+00,
            -6.8716085e-01,
            2.7947053e-01,
            -3.6436513e-02,
            -2.1488387e-02,
            6.427804e-03,
            2.9802467e-03,
            -6.702136e-04,
            -4.4746953e-04,
            -1.34542e-04,
        ),
    ),
    f64: _Table(
        1.0,
        (
            0.1283791670955126,
            -0.376126389031841,
            0.11283791670971098,
            -0.02686617064803139,
            0.005223977652696137,
            -0.0008548328536064278,
            0.00012055386205015683,
            -1.4926881786499948e-05,
            1.6481064687705403e-06,
            -1.6557197867695473e-07,
            1.6013731708249974e-08,
            -1.6466856857249445e-09,
            1.4347418171658307e-10,
        ),
        6.0,
        (
            1.1283792175892797,
            0.6366191964608868,
            0.1027757012063659,
            -0.01913889984039208,
            -0.00018437781288258164,
            0.001652136332323564,
            -0.0005294090034281295,
            -4.050807731107362e-05,
            0.00012285515644254422,
            -7.117178850522409e-05,
            2.705566450976755e-05,
            -7.761941547296634e-06,
            1.7484980532216534e-06,
            -3.1184182677249344e-07,
            4.368006071044771e-08,
            -4.703850269249866e-09,
            3.751671407877098e-10,
            -2.079798779670694e-11,
            7.114809917208343e-13,
            -1.1219634492057982e-14,
        ),
        3.0,
        27.4,
        (
            1.0740069070883398,
            -0.8833944531698839,
            0.5902283571040688,
            -0.3104672619005202,
            0.11952776128930424,
            -0.02682723462693713,
            -0.0012124166747606955,
            0.003034062055256409,
            -0.000548309123534001,
            -0.00027677846965751507,
            0.00010755759878677186,
            3.0402353035624583e-05,
            -1.745442099027757e-05,
            -4.766495782809882e-06,
            2.7240343319693384e-06,
            1.0430925259342578e-06,
            -3.442604703922214e-07,
            -3.0183473337953536e-07,
            -7.684219758822957e-09,
            1.0861318246327353e-07,
            1.740038522134215e-08,
            -2.8505881704800845e-08,
        ),
    ),
}


def erf(x: Num) -> Num:
    table = _TABLES[x.dtype]
    magnitude = abs(x)
    z = x * x
    near = fma(magnitude, horner(z, table.near), magnitude)
    a = select(magnitude > table.limit, x.of(table.limit), magnitude)
    far = 1.0 - moderate_exp(-(a * horner(a, table.far)))
    return with_sign(select(magnitude < table.split, near, far), x)


def erfc(x: Num) -> Num:
    """exp(-a**2) times a slowly varying function of a = |x|, with their rounding errors."""
    table = _TABLES[x.dtype]
    magnitude = abs(x)
    a = select(magnitude > table.last, x.of(table.last), magnitude)
    d = a + table.pole
    d_rest = a - (d - table.pole)
    r = 1.0 / d
    r_rest = r * fma(-r, d_rest, fma(-r, d, 1.0))
    g = horner(fma(r, -2.0 * table.pole, 1.0), table.scaled)
    product, product_rest = multiply_exactly(g, r)
    product_rest = fma(g, r_rest, product_rest)
    shifted, high, low = exp_of_negative_square(a)
    y = fma(high, product, fma(high, product_rest, low * product))
    tail = scale(y, shifted, a * a > (x.format.bias - 10.0) * math.log(2.0))
    far = select(x < 0.0, 2.0 - tail, tail)
    near = fma(-x, horner(x * x, table.near), 1.0 - x)
    return select(magnitude < 0.5, near, far)
