"""sin, cos, tan.

Method: the argument modulo pi / 2 (`reduction`); minimax polynomials for sine and cosine on
+-pi/4 and a little beyond; the quadrant picks one and the sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.math.kit import Num, fma, horner, select
from khaljit.codegen.math.reduction import reduce
from khaljit.tracer.dtypes import DType, f32, f64

__all__ = ["cos", "sin"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Polynomials in z = r**2 for r in +-0.806.

    Attributes:
        sin: (sin(r) / r - 1) / z; relative error of the sine 2**-27.6 and 2**-57.4.
        cos: (cos(r) - 1 + z / 2) / z**2; relative error of the cosine 2**-32.6 and 2**-63.3.
    """

    sin: tuple[float, ...]
    cos: tuple[float, ...]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (-1.6666652e-01, 8.332013e-03, -1.9495419e-04),
        (4.166664e-02, -1.388713e-03, 2.441209e-05),
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


def sin(x: Num, fast: bool) -> Num:
    """Of |x|, then with the sign of x: so sin(-0.0) is -0.0."""
    r, n = reduce(abs(x), fast)
    return _wave(r, n, x.bits())


def cos(x: Num, fast: bool) -> Num:
    r, n = reduce(x, fast)
    return _wave(r, n + 1, n.of(0))
