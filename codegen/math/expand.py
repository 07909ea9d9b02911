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
from khaljit.codegen.math.reduction import reduce
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["BRANCHING", "BRANCHING_LANES", "Reduced", "expand"]

_PLAIN: Final[dict[Op, Callable[..., Num]]] = {
    Op.EXPM1: exponential.expm1,
    Op.CBRT: power.cbrt,
    Op.HYPOT: power.hypot,
    Op.ASIN: inverse.asin,
    Op.ACOS: inverse.acos,
    Op.ATAN: inverse.atan,
    Op.ATAN2: inverse.atan2,
    Op.SINH: hyperbolic.sinh,
    Op.COSH: hyperbolic.cosh,
    Op.TANH: hyperbolic.tanh,
    Op.ATANH: hyperbolic.atanh,
    Op.ERF: error.erf,
    Op.ERFC: error.erfc,
}
_UNEVEN: Final[dict[Op, Callable[..., Num]]] = {
    Op.EXP: exponential.exp,
    Op.EXP2: exponential.exp2,
    Op.EXP10: exponential.exp10,
    Op.TAN: trigonometric.tan,
    Op.LOG: logarithm.log,
    Op.LOG2: logarithm.log2,
    Op.LOG10: logarithm.log10,
    Op.LOG1P: logarithm.log1p,
    Op.POW: power.pow_,
    Op.LGAMMA: gamma.lgamma,
    Op.ASINH: hyperbolic.asinh,
    Op.ACOSH: hyperbolic.acosh,
    Op.TGAMMA: gamma.tgamma,
    Op.RSQRT: power.rsqrt,
}

# What `expand` can make cheaper by a branch in which type.
_CLAMPED: Final = frozenset({Op.EXP, Op.EXP2, Op.EXP10})
BRANCHING: Final = frozenset(
    {(op, dtype) for op in (Op.SIN, Op.COS, *_UNEVEN) for dtype in (f32, f64)}
    - {(op, f32) for op in _CLAMPED}
)
# The same where lanes of vectors may have to take both arms.
BRANCHING_LANES: Final = frozenset(
    (op, dtype) for op, dtype in BRANCHING if op not in _CLAMPED | {Op.RSQRT}
)

# Angles that are already reduced, for sine and cosine of the same angle.
Reduced = dict[Value, tuple[Num, Num]]


def expand(
    builder: Builder,
    op: Op,
    args: tuple[Value, ...],
    fastmath: bool,
    branching: frozenset[tuple[Op, DType]] = frozenset(),
    reduced: Reduced | None = None,
) -> Value:
    """The value of an elementary function (one of `MATH`) of f32 or f64 operands.

    Pure values only; but functions in ``branching``, some of `BRANCHING`, append an ``if`` to the
    open region of the builder, so their results belong to that region, and what they add to
    ``reduced`` does. With ``fastmath`` sin, cos and tan are meaningful up to arguments of 2**17
    in f32 and 2**32 in f64 only.
    """
    numbers = tuple(Num(builder, arg) for arg in args)
    rare = Rare.BRANCHED if (op, args[0].type) in branching else Rare.SELECTED
    angles = Rare.IGNORED if fastmath else rare
    if op in (Op.SIN, Op.COS):
        known = {} if reduced is None else reduced
        if args[0] not in known:
            known[args[0]] = reduce(abs(numbers[0]), angles)
        parts = known[args[0]]
        wave = trigonometric.sin(numbers[0], parts) if op is Op.SIN else trigonometric.cos(parts)
        return wave.value
    if op in _UNEVEN:
        return _UNEVEN[op](*numbers, angles if op is Op.TAN else rare).value
    return _PLAIN[op](*numbers).value
