"""Elementary functions on NumPy arrays: an oracle for error bounds, not bit for bit.

What kernels compute is what the legaliser expands these functions into. Here they are evaluated
in a wider type than the one asked for (float64, and for f64 the machine's ``long double``, which
may be no wider) and rounded at the end. Callers silence floating-point warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from khaljit.tracer.floats import Array
from khaljit.tracer.ops import Op

__all__ = ["ELEMENTARY", "wide_type"]


def wide_type(source: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which functions of a type are evaluated."""
    return np.dtype(np.longdouble if source == np.float64 else np.float64)


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of one number, applied to all elements."""

    def apply(x: Array) -> Array:
        results = [function(value) for value in x.astype(np.float64).ravel().tolist()]
        return np.array(results, dtype=np.float64).reshape(np.shape(x))

    return apply


def _gamma(x: float) -> float:
    """Gamma with C's answers at the poles: infinity at zeros, NaN at negative integers."""
    if x == 0.0:
        return math.copysign(math.inf, x)
    try:
        return math.gamma(x)
    except ValueError:
        return math.nan
    except OverflowError:  # the poles aside, only large positive numbers and those next to 0
        return math.copysign(math.inf, x)


def _lgamma(x: float) -> float:
    """The logarithm of the absolute value of gamma, infinite at the poles."""
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


ELEMENTARY: Final[dict[Op, Callable[..., Array]]] = {
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.EXP10: lambda x: np.power(x.dtype.type(10), x),
    Op.EXPM1: np.expm1,
    Op.LOG: np.log,
    Op.LOG2: np.log2,
    Op.LOG10: np.log10,
    Op.LOG1P: np.log1p,
    Op.POW: np.power,
    Op.RSQRT: lambda x: 1 / np.sqrt(x),
    Op.CBRT: np.cbrt,
    Op.HYPOT: np.hypot,
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.TAN: np.tan,
    Op.ASIN: np.arcsin,
    Op.ACOS: np.arccos,
    Op.ATAN: np.arctan,
    Op.ATAN2: np.arctan2,
    Op.SINH: np.sinh,
    Op.COSH: np.cosh,
    Op.TANH: np.tanh,
    Op.ASINH: np.arcsinh,
    Op.ACOSH: np.arccosh,
    Op.ATANH: np.arctanh,
    Op.ERF: _each(math.erf),
    Op.ERFC: _each(math.erfc),
    Op.TGAMMA: _each(_gamma),
    Op.LGAMMA: _each(_lgamma),
}
