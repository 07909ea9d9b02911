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
from khaljit.codegen.math.kit import Num, Rare
from khaljit.tracer.build import Builder
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["BRANCHING", "expand"]

_PLAIN: Final[dict[Op, Callable[..., Num]]] = {
    Op.EXP: exponential.exp,
    Op.EXP2: exponential.exp2,
    Op.EXP10: exponential.exp10,
    Op.EXPM1: exponential.expm1,
    Op.LOG1P: logarithm.log1p,
    Op.RSQRT: power.rsqrt,
    Op.CBRT: power.cbrt,
    Op.HYPOT: power.hypot,
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
_PERIODIC: Final[dict[Op, Callable[..., Num]]] = {
    Op.SIN: trigonometric.sin,
    Op.COS: trigonometric.cos,
    Op.TAN: trigonometric.tan,
}
_UNEVEN: Final[dict[Op, Callable[..., Num]]] = {
    **_PERIODIC,
    Op.LOG: logarithm.log,
    Op.LOG2: logarithm.log2,
    Op.LOG10: logarithm.log10,
    Op.POW: power.pow_,
}

# What `expand` can make cheaper by a branch.
BRANCHING: Final = frozenset(_UNEVEN)


def expand(
    builder: Builder, op: Op, args: tuple[Value, ...], fastmath: bool, branch: bool = False
) -> Value:
    """The value of an elementary function (one of `MATH`) of f32 or f64 operands.

    Pure values only; but with ``branch`` the functions in `BRANCHING` append an ``if`` to the
    open region of the builder, so their results belong to that region. With ``fastmath`` sin, cos
    and tan are meaningful up to arguments of 2**17 in f32 and 2**32 in f64 only.
    """
    numbers = tuple(Num(builder, arg) for arg in args)
    if op in _UNEVEN:
        rare = Rare.BRANCHED if branch else Rare.SELECTED
        if fastmath and op in _PERIODIC:
            rare = Rare.IGNORED
        return _UNEVEN[op](*numbers, rare).value
    return _PLAIN[op](*numbers).value
