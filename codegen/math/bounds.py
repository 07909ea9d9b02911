"""What the expansions promise: the largest error of each function, in units in the last place.

An error is |result - exact| in ulps of the exact result: the distance between neighbouring floats
there, subnormals included. The bounds stand a little above the worst that was measured: over all
f32 inputs, 2^30 inputs or pairs of the others, and of f64 what a search around the worst of them
found (see ``docs/math.md``). For negative x, lgamma's error counts in ulps of lgamma(|x|) or 1 if
those are larger: next to its zeros between negative integers only the absolute error is small.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op

__all__ = ["BOUNDS", "bound"]

# Of f32 and of f64.
BOUNDS: Final[dict[Op, tuple[float, float]]] = {
    Op.EXP: (1.15, 1.1),
    Op.EXP2: (0.95, 0.95),
    Op.EXP10: (1.2, 1.1),
    Op.EXPM1: (1.1, 1.2),
    Op.LOG: (0.95, 0.95),
    Op.LOG2: (1.0, 1.05),
    Op.LOG10: (1.0, 1.0),
    Op.LOG1P: (0.95, 1.0),
    Op.POW: (1.5, 1.25),
    Op.RSQRT: (1.5, 1.55),
    Op.CBRT: (0.8, 0.9),
    Op.HYPOT: (1.25, 1.25),
    Op.SIN: (1.6, 1.6),
    Op.COS: (1.6, 1.6),
    Op.TAN: (1.3, 1.35),
    Op.ASIN: (1.2, 1.2),
    Op.ACOS: (1.2, 1.2),
    Op.ATAN: (1.7, 1.8),
    Op.ATAN2: (1.8, 1.85),
    Op.SINH: (1.3, 1.35),
    Op.COSH: (1.75, 1.45),
    Op.TANH: (1.5, 1.6),
    Op.ASINH: (1.4, 1.35),
    Op.ACOSH: (1.0, 1.05),
    Op.ATANH: (1.0, 1.15),
    Op.ERF: (1.8, 1.2),
    Op.ERFC: (1.7, 1.8),
    Op.TGAMMA: (3.5, 2.5),
    Op.LGAMMA: (3.0, 2.75),
}


def bound(op: Op, dtype: DType) -> float:
    """The largest error of an elementary function of f32 or f64 operands, in ulps."""
    return BOUNDS[op][(f32, f64).index(dtype)]
