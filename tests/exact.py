"""The exact values of the elementary functions, by mpmath, to many more digits than f64 has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import mpmath

from khaljit.tracer.ops import Op

__all__ = ["EXACT", "MP"]

MP: Final[Any] = mpmath.mp.clone()
MP.prec = 160

# Exact values of finite arguments inside the domain.
EXACT: Final[dict[Op, Callable[..., Any]]] = {
    Op.EXP: MP.exp,
    Op.EXP2: lambda x: MP.mpf(2) ** x,
    Op.EXP10: lambda x: MP.mpf(10) ** x,
    Op.EXPM1: MP.expm1,
    Op.LOG: MP.log,
    Op.LOG2: lambda x: MP.log(x) / MP.log(2),
    Op.LOG10: lambda x: MP.log(x) / MP.log(10),
    Op.LOG1P: MP.log1p,
    Op.POW: lambda x, y: MP.power(x, y),
    Op.RSQRT: lambda x: 1 / MP.sqrt(x),
    Op.CBRT: lambda x: MP.sign(x) * MP.cbrt(abs(x)),
    Op.HYPOT: MP.hypot,
    Op.SIN: MP.sin,
    Op.COS: MP.cos,
    Op.TAN: MP.tan,
    Op.ASIN: MP.asin,
    Op.ACOS: MP.acos,
    Op.ATAN: MP.atan,
    Op.ATAN2: MP.atan2,
    Op.SINH: MP.sinh,
    Op.COSH: MP.cosh,
    Op.TANH: MP.tanh,
    Op.ASINH: MP.asinh,
    Op.ACOSH: MP.acosh,
    Op.ATANH: MP.atanh,
    Op.ERF: MP.erf,
    Op.ERFC: MP.erfc,
    Op.TGAMMA: MP.gamma,
    Op.LGAMMA: lambda x: MP.re(MP.loggamma(x)),
}
