"""sin, cos, tan.

Method: the argument modulo pi / 2 (`reduction`); minimax polynomials for sine and cosine on
+-pi/4 and a little beyond; the quadrant picks one and the sign.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.math.kit import Num, Rare, add_ordered, fma, horner, quotient, select
from khaljit.codegen.math.reduction import reduce_precisely
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.records import dataclass

__all__ = ["cos", "sin", "tan"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Polynomials in z = r**2 for r in +-0.806.

    Attributes:
        sin: (sin(r) / r - 1) / z; relative error of the sine 2**-27.6 and 2**-57.4.
        cos: (cos(r) - 1 + z / 2) / z**2; relative error of the cosine 2**-32.6 and 2**-63.3.
        tan: (tan(r) / r - 1) / z; relative error of the tangent 2**-28.8 and 2**-58.3.
    """

    sin: tuple[float, ...]
    cos: tuple[float, ...]
    tan: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (-1.6666652e-01, 8.332013e-03, -1.9495419e-04),
        (4.166664e-02, -1.388713e-03, 2.441209e-05),
        (
            3.3333358e-01,
            1.3332365e-01,
            5.409426e-02,
            2.1102805e-02,
            1.13044195e-02,
            -5.0752755e-04,
            4.671662e-03,
        ),
    ),
    f64: _Table(
        (
            -0.16666666666666619,
            0.008333333333318956,
            -0.00019841269826991148,
            2.755731270462072e-06,
            -2.5050602597643197e-08,
            1.5887753504934588e-10,
        ),
        (
            0.04166666666666657,
            -0.0013888888888868522,
            2.4801587285989352e-05,
            -2.7557313347451146e-07,
            2.087558745780228e-09,
            -1.1352663455847035e-11,
        ),
        (
            0.3333333333333345,
            0.133333333333152,
            0.05396825397827083,
            0.021869488256115018,
            0.00886324018277001,
            0.0035920778354873264,
            0.0014562055099926908,
            0.0005880842778621738,
            0.00024647196710222996,
            7.67460727326763e-05,
            7.937090787803624e-05,
            -4.0687552894000804e-05,
            6.0950509227582286e-05,
            -3.025227830486524e-05,
            1.1103203393061293e-05,
        ),
    ),
}


def _wave(r: Num, n: Num, sign: Num) -> Num:
    """sin(r + n pi / 2), with a sign bit flipped in."""
    table = _TABLES[r.dtype]
    z = r * r
    sine = fma(r * z, horner(z, table.sin), r)
    cosine = fma(z, fma(z, horner(z, table.cos), -0.5), 1.0)
    y = select((n & 1).eq(0), sine, cosine)
    flip = ((n << (r.dtype.bits - 2)) ^ sign) & r.format.sign_bit
    return (y.bits() ^ flip).reinterpret(r.dtype)


def sin(x: Num, reduced: tuple[Num, Num]) -> Num:
    """From |x| reduced, with the sign of x: so sin(-0.0) is -0.0."""
    r, n = reduced
    return _wave(r, n, x.bits())


def cos(reduced: tuple[Num, Num]) -> Num:
    """From |x| reduced, as `sin`."""
    r, n = reduced
    return _wave(r, n + 1, n.of(0))


def tan(x: Num, huge: Rare) -> Num:
    """t = tan r as a sum of two numbers; in odd quadrants -1 / t by a corrected division."""
    r, rest, n = reduce_precisely(abs(x), huge)
    z = r * r
    t, t_rest = add_ordered(r, fma(r * z, horner(z, _TABLES[r.dtype].tan), fma(rest, z, rest)))
    inverse = -quotient(1.0, t)
    error = fma(inverse, t_rest, fma(inverse, t, 1.0))
    y = select((n & 1).eq(0), t, fma(inverse, error, inverse))
    return (y.bits() ^ (x.bits() & x.format.sign_bit)).reinterpret(x.dtype)
