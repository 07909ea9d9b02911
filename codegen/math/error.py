"""erf, erfc.

erf: an odd polynomial near 0; beyond it 1 - exp(-p(|x|)) with a polynomial p, since the logarithm
of erfc is close to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.math.exponential import moderate_exp
from khaljit.codegen.math.kit import Num, fma, horner, select, with_sign
from khaljit.tracer.dtypes import DType, f32, f64

__all__ = ["erf"]


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        split: where the two ways of erf meet.
        near: erf(x) / x - 1 in z = x**2 below the split; relative error of erf 2**-30, 2**-@.
        limit: erf rounds to 1 from here on.
        far: -log(erfc(x)) / x from the split to the limit; relative error of erf 2**-30.3, 2**-59.
    """

    split: float
    near: tuple[float, ...]
    limit: float
    far: tuple[float, ...]


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
    ),
}


def erf(x: Num, fast: bool) -> Num:
    table = _TABLES[x.dtype]
    magnitude = abs(x)
    z = x * x
    near = fma(magnitude, horner(z, table.near), magnitude)
    a = select(magnitude > table.limit, x.of(table.limit), magnitude)
    far = 1.0 - moderate_exp(-(a * horner(a, table.far)))
    return with_sign(select(magnitude < table.split, near, far), x)
