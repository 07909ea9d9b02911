"""erf, erfc.

erf: 1 - exp(-p(|x|)) with a polynomial p, since the logarithm of erfc is close to one. In f64 only
beyond 1, and an odd polynomial up to there, for a p for all would need too many terms.

erfc: 1 - erf near 0; beyond it exp(-x**2), with x**2 to twice the precision, times a function that
varies slowly in (x - p) / (x + p) (Schonfelder 1978).
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.math.exponential import (
    exp2_of_negative_product,
    exp_less_1,
    exp_of_negative_square,
)
from khaljit.codegen.math.kit import (
    LN_2,
    LOG2_E,
    Num,
    add_ordered,
    fma,
    horner,
    power_of_two,
    quotient,
    select,
    with_sign,
)
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["erf", "erfc"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        limit: erf rounds to 1 from here on.
        near: erf(x) / x - 1 in z = x**2 up to 0.5 in f32, 1 in f64; relative error of erf 2**-29.2,
            2**-55.5.
        pole: p in the next ones.
        last: erfc rounds to 0 from here on.
        start, scaled: exp(x**2) erfc(x) (1 + 3/2 x) = start + t scaled(t), the former a high and a
            low part, in t = (x - p) / (x + p) for x from 0.45 to last; relative error 2**-26.7,
            2**-57.3.
    """

    limit: float
    near: tuple[float, ...]
    pole: float
    last: float
    start: tuple[float, float]
    scaled: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        3.92,
        (
            1.2837917e-01,
            -3.7612611e-01,
            1.1282849e-01,
            -2.6757954e-02,
            4.7182157e-03,
        ),
        2.0,
        10.2,
        (1.0215827226638794, -1.375068592324169e-08),
        (
            -1.763693e-01,
            -6.410869e-02,
            1.03292115e-01,
            -3.972324e-02,
            -4.257973e-03,
            6.272351e-03,
            6.298759e-04,
            -9.202679e-04,
            -1.5183214e-04,
        ),
    ),
    f64: _Table(
        6.0,
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
        4.0,
        27.4,
        (0.9589962033754297, 5.255263274619633e-17),
        (
            -0.16948284982046488,
            0.06621465880653045,
            0.010008336516699278,
            -0.048538505177462284,
            0.05452267233866004,
            -0.04192301023059312,
            0.02466465014698933,
            -0.011133234621587362,
            0.003574195772612438,
            -0.0005737705281392524,
            -0.00012969672856033457,
            0.00010732792591185363,
            -1.8775027536023377e-05,
            -7.68262128722918e-06,
            4.179187824126061e-06,
            1.5405090633700062e-07,
            -5.926477915926852e-07,
            5.615634934142871e-08,
            7.526403534506649e-08,
            -9.498906323085947e-09,
            -7.361734386985566e-09,
        ),
    ),
}
# -log(erfc(x)) / x - 1 in f32; the error of this moves erf by 0.2 ulp up to 0.27, where roundings
# take most, and by 1.3 at most beyond.
_WHOLE: Final = (
    1.2837918e-01,
    6.3661897e-01,
    1.0278548e-01,
    -1.9208662e-02,
    1.2021954e-05,
    1.4117887e-03,
    -4.433404e-04,
    4.9844937e-05,
)
# -log2(erfc(x)) / x from 1 on in f64; relative error of erf 2**-59.
_FAR: Final = (
    1.6279071014582225,
    0.9184473576688381,
    0.14827399445430994,
    -0.02761159588780423,
    -0.0002660009562956538,
    0.002383528893515686,
    -0.0007637757438477307,
    -5.844080225263265e-05,
    0.00017724252494729633,
    -0.00010267918632768493,
    3.903307301619717e-05,
    -1.1198114577954861e-05,
    2.522549470386886e-06,
    -4.4989265702643147e-07,
    6.301700697269176e-08,
    -6.786221456530997e-09,
    5.412517735189205e-10,
    -3.000515385477828e-11,
    1.0264500984424092e-12,
    -1.6186511042278816e-14,
)


def erf(x: Num) -> Num:
    table = _TABLES[x.dtype]
    a = abs(x).op(Op.MINIMUM, table.limit)
    if x.dtype is f32:
        return with_sign(_erf_of_positive(a), x)
    near = fma(a, horner(a * a, table.near), a)
    far = 1.0 - exp2_of_negative_product(a, horner(a, _FAR))
    return with_sign(select(a >= 1.0, far, near), x)


def _erf_of_positive(a: Num) -> Num:
    """1 - exp(-p) in f32 as (1 - s) - s (exp(r) - 1) with s = 2**k: -(exp(r) - 1) where k is 0."""
    shifter = a.format.shifter
    p = fma(a, horner(a, _WHOLE), a)
    shifted = fma(p, -LOG2_E, shifter)
    # One step: where it is inexact, s is small.
    r = fma(shifted - shifter, -LN_2, -p)
    s = power_of_two(shifted.bits(), a.dtype)
    return fma(-s, exp_less_1(r), 1.0 - s)


def erfc(x: Num) -> Num:
    """exp(-a**2) times a slowly varying function of a = |x|, with their rounding errors."""
    table = _TABLES[x.dtype]
    magnitude = abs(x)
    a = magnitude.op(Op.MINIMUM, table.last)
    # One division serves both 1 / (a + p) and 1 / (1 + 3/2 a); only the latter must be precise.
    first = a + table.pole
    second = fma(a, 1.5, 1.0)
    second_rest = fma(a, 1.5, 1.0 - second)
    inverse = quotient(1.0, first * second)
    t = fma(inverse * second, -2.0 * table.pole, 1.0)
    start, start_rest = table.start
    g, g_rest = add_ordered(x.of(start), fma(t, horner(t, table.scaled), start_rest))
    r = inverse * first
    product = g * r
    product_rest = (fma(-product, second_rest, fma(-product, second, g)) + g_rest) * r
    shifted, high, low = exp_of_negative_square(a)
    y = fma(high, product, fma(high, product_rest, low * product))
    # Twice, since the result may be subnormal.
    tail = y * power_of_two(shifted.bits() + 64, x.dtype) * 2.0**-64
    far = select(x < 0.0, 2.0 - tail, tail)
    near = fma(-x, horner(x * x, table.near), 1.0 - x)
    return select(magnitude < 0.5, near, far)
