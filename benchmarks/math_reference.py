"""Errors of f64 functions against wider arithmetic on the host.

The references are NumPy's functions of long double where that is wider than 64 bits, mpmath's for
the others; mpmath is slow, so it sees every hundredth argument only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import mpmath
import numpy as np

from khaljit.tracer.ops import Op

__all__ = ["errors"]

Array = np.ndarray[Any, Any]

_EACH: Final = 100  # of the arguments that mpmath sees one
_REACH: Final = 200.0  # mpmath sees no arguments of the gamma functions beyond
_NUMPY_NAMES: Final = {
    "pow": "power",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
_SLOW: Final = frozenset({Op.ERF, Op.ERFC, Op.TGAMMA, Op.LGAMMA})
_WIDE: Final = np.finfo(np.longdouble).nmant > 60


def errors(op: Op, args: tuple[Array, ...], out: Array) -> tuple[Array, tuple[Array, ...], int]:
    """Errors in ulps of those arguments that were looked at, these arguments, and what was wrong.

    Wrong are NaN, infinities and signs of zero that should not be, or should; next to overflow
    and underflow either neighbour is right.
    """
    function = _reference(op)
    if function is None:
        function = _by_mpmath(op)
        args, out = tuple(a[::_EACH] for a in args), out[::_EACH]
    with np.errstate(all="ignore"):
        exact = function(*(a.astype(np.longdouble) for a in args))
        rounded = exact.astype(np.float64)
        special = ~np.isfinite(rounded) | (rounded == 0)
        alike = (out == rounded) & (np.signbit(out) == np.signbit(rounded))
        wrong = special & ~alike & ~(np.isnan(out) & np.isnan(rounded))
        wrong &= ~np.isfinite(exact) | (exact == 0)
        scale = abs(exact)
        if op is Op.LGAMMA:
            reflected = abs(function(*(abs(a).astype(np.longdouble) for a in args)))
            scale = np.where(args[0] < 0, np.maximum(np.maximum(scale, reflected), 1), scale)
        _, exponent = np.frexp(np.maximum(scale, np.finfo(np.float64).tiny))
        ulp = np.ldexp(np.longdouble(1), exponent - 53)
        finite = np.isfinite(out) & np.isfinite(exact)
        off = np.where(finite, abs(out.astype(np.longdouble) - exact) / ulp, 0)
    return off.astype(np.float64), args, 0 if op in _SLOW else int(wrong.sum())


def _reference(op: Op) -> Callable[..., Array] | None:
    """The function of long double, where there is one."""
    if op in _SLOW or not _WIDE:
        return None
    if op is Op.RSQRT:
        return lambda x: 1 / np.sqrt(x)
    if op is Op.EXP10:
        return lambda x: np.power(x.dtype.type(10), x)
    function: Callable[..., Array] = getattr(np, _NUMPY_NAMES.get(op.value, op.value))
    return function


def _by_mpmath(op: Op) -> Callable[..., Array]:
    exact: dict[str, Callable[..., Any]] = {
        "exp2": lambda x: mpmath.mpf(2) ** x,
        "exp10": lambda x: mpmath.mpf(10) ** x,
        "log2": lambda x: mpmath.log(x, 2),
        "rsqrt": lambda x: 1 / mpmath.sqrt(x),
        "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
        "tgamma": mpmath.gamma,
        "lgamma": mpmath.loggamma,
        "pow": mpmath.power,
    }
    function = exact.get(op.value) or getattr(mpmath, op.value)

    def one(*args: Any) -> Any:
        if op in _SLOW and not abs(args[0]) < _REACH:
            return np.longdouble("nan")
        try:
            value = function(*(mpmath.mpf(float(arg)) for arg in args))
        except (ValueError, ZeroDivisionError):  # poles and NaN: the special values have tests
            return np.longdouble("nan")
        if mpmath.im(value) != 0 and op is not Op.LGAMMA:
            return np.longdouble("nan")
        with mpmath.workprec(64):
            return np.longdouble(mpmath.nstr(+mpmath.re(value), 25))

    def apply(*args: Array) -> Array:
        with mpmath.workprec(120):
            return np.array([one(*row) for row in zip(*args, strict=True)], np.longdouble)

    return apply
