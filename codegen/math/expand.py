"""The elementary functions as expansions into trace operations: the same bits on every target.

f32 and f64 only: the legaliser computes the narrower floats in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.math import (
    error,
    exponential,
    gamma,
    hyperbolic,
    inverse,
    logarithm,
    power,
    trigonometric,
)
from khaljit.codegen.math.kit import Num
from khaljit.tracer.build import Builder
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["expand"]

_STRICT: Final[dict[Op, Callable[..., Num]]] = {
    Op.EXP: exponential.exp,
    Op.EXP2: exponential.exp2,
    Op.EXP10: exponential.exp10,
    Op.EXPM1: exponential.expm1,
    Op.LOG: logarithm.log,
    Op.LOG2: logarithm.log2,
    Op.LOG10: logarithm.log10,
    Op.LOG1P: logarithm.log1p,
    Op.POW: power.pow_,
    Op.RSQRT: power.rsqrt,
    Op.CBRT: power.cbrt,
    Op.HYPOT: power.hypot,
    Op.SIN: trigonometric.sin,
    Op.COS: trigonometric.cos,
    Op.TAN: trigonometric.tan,
    Op.ASIN: inverse.asin,
    Op.ACOS: inverse.acos,
    Op.ATAN: inverse.atan,
    Op.ATAN2: inverse.atan2,
    Op.SINH: hyperbolic.sinh,
    Op.COSH: hyperbolic.cosh,
    Op.TANH: hyperbolic.tanh,
    Op.ASINH: hyperbolic.asinh,
    Op.ACOSH: hyperbolic.acosh,
    Op.ATANH: hyperbolic.atanh,
    Op.ERF: error.erf,
    Op.ERFC: error.erfc,
    Op.TGAMMA: gamma.tgamma,
    Op.LGAMMA: gamma.lgamma,
}

# Fast maths takes these instead.
_FAST: Final[dict[Op, Callable[..., Num]]] = {
    Op.SIN: trigonometric.sin_fast,
    Op.COS: trigonometric.cos_fast,
    Op.TAN: trigonometric.tan_fast,
}


def expand(builder: Builder, op: Op, args: tuple[Value, ...], fastmath: bool) -> Value:
    """The value of an elementary function (one of `MATH`) of f32 or f64 operands."""
    function = _FAST.get(op, _STRICT[op]) if fastmath else _STRICT[op]
    return function(*(Num(builder, arg) for arg in args)).value
