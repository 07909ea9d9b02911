"""Functions of numbers, component by component on vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from khaljit.tracer.arithmetic import binary, compare, float_function, select
from khaljit.tracer.coerce import like, to_scalar
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, is_literal, live
from khaljit.tracer.recorder import current

__all__ = [
    "abs",
    "acos",
    "acosh",
    "all",
    "any",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "floor",
    "fma",
    "gamma",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "max",
    "maximum",
    "min",
    "minimum",
    "pow",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]


def _unary(op: Op, text: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if not is_vector(x) and not isinstance(x, Scalar):
            current(f"kj.{op.value}")
        return float_function(op, x)

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


sqrt = _unary(Op.SQRT, "Square root, correctly rounded; NaN below zero.")
rsqrt = _unary(Op.RSQRT, "One over the square root.")
cbrt = _unary(Op.CBRT, "Cube root.")
exp = _unary(Op.EXP, "e to the power x.")
exp2 = _unary(Op.EXP2, "2 to the power x.")
exp10 = _unary(Op.EXP10, "10 to the power x.")
expm1 = _unary(Op.EXPM1, "exp(x) - 1, exact near 0.")
log = _unary(Op.LOG, "Natural logarithm.")
log2 = _unary(Op.LOG2, "Logarithm to base 2.")
log10 = _unary(Op.LOG10, "Logarithm to base 10.")
log1p = _unary(Op.LOG1P, "log(1 + x), exact near 0.")
sin = _unary(Op.SIN, "Sine of an angle in radians.")
cos = _unary(Op.COS, "Cosine of an angle in radians.")
tan = _unary(Op.TAN, "Tangent of an angle in radians.")
asin = _unary(Op.ASIN, "Arc sine in radians.")
acos = _unary(Op.ACOS, "Arc cosine in radians.")
atan = _unary(Op.ATAN, "Arc tangent in radians.")
sinh = _unary(Op.SINH, "Hyperbolic sine.")
cosh = _unary(Op.COSH, "Hyperbolic cosine.")
tanh = _unary(Op.TANH, "Hyperbolic tangent.")
asinh = _unary(Op.ASINH, "Inverse hyperbolic sine.")
acosh = _unary(Op.ACOSH, "Inverse hyperbolic cosine.")
atanh = _unary(Op.ATANH, "Inverse hyperbolic tangent.")
erf = _unary(Op.ERF, "Error function.")
erfc = _unary(Op.ERFC, "1 - erf(x), exact where erf nears 1.")
gamma = _unary(Op.TGAMMA, "Gamma function.")
lgamma = _unary(Op.LGAMMA, "Logarithm of the absolute value of the gamma function.")


def _rounding(op: Op, text: str) -> Callable[[Any], Any]:
    of_floats = _unary(op, text)

    def function(x: Any) -> Any:
        if (is_vector(x) or isinstance(x, Scalar)) and x.dtype.is_integer:
            return x
        return of_floats(x)

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


floor = _rounding(Op.FLOOR, "The largest whole number not above x; a float of x's type.")
ceil = _rounding(Op.CEIL, "The smallest whole number not below x; a float of x's type.")
trunc = _rounding(Op.TRUNC, "x without its fraction; a float of x's type.")
round = _rounding(Op.ROUND, "The nearest whole number, ties to even; a float of x's type.")


def sincos(x: Any) -> Any:
    """The sine and the cosine of an angle in radians: a tuple, cheaper than one after the other."""
    return sin(x), cos(x)


def pow(x: Any, y: Any) -> Any:
    """x to the power y; for integers see ``**``."""
    if is_vector(x) or is_vector(y):
        return x**y
    recorder = current("kj.pow")
    if is_literal(x) and is_literal(y):
        return math.pow(x, y)
    return to_scalar(recorder, x) ** y if is_literal(y) else to_scalar(recorder, x, y.dtype) ** y


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x*x + y*y) without overflow on the way."""
    return _pairwise(Op.HYPOT, x, y)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), in radians from -pi to pi."""
    return _pairwise(Op.ATAN2, y, x)


def _pairwise(op: Op, a: Any, b: Any) -> Any:
    if is_vector(a) or is_vector(b):
        count = len(a) if is_vector(a) else len(b)
        left = a.items if is_vector(a) else (a,) * count
        right = b.items if is_vector(b) else (b,) * count
        items = tuple(float_function(op, x, y) for x, y in zip(left, right, strict=True))
        return Vector(live(items[0]), items)
    current(f"kj.{op.value}")
    return float_function(op, a, b)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    for one in (a, b, c):
        if is_vector(one):
            count = len(one)
            parts = [part.items if is_vector(part) else (part,) * count for part in (a, b, c)]
            return Vector(live(one), tuple(map(fma, *parts)))
    current("kj.fma")
    return float_function(Op.FMA, a, b, c)


def _extreme(op: Op, text: str) -> Callable[..., Any]:
    def function(a: Any, b: Any, *more: Any) -> Any:
        current(f"kj.{op.value}")
        result = binary(op, a, b)
        for other in more:
            result = binary(op, result, other)
        return result

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


min = _extreme(Op.MIN, "The least; NaN is skipped (IEEE 754 minimumNumber), -0 is below +0.")
max = _extreme(Op.MAX, "The greatest; NaN is skipped (IEEE 754 maximumNumber), -0 is below +0.")
minimum = _extreme(Op.MINIMUM, "The least, or NaN if any is (IEEE 754 minimum).")
maximum = _extreme(Op.MAXIMUM, "The greatest, or NaN if any is (IEEE 754 maximum).")


def abs(x: Any) -> Any:
    """Absolute value; the most negative integer is its own."""
    current("kj.abs")
    return x.__abs__()


def sign(x: Any) -> Any:
    """-1, 0 or 1 by the sign; NaN for NaN."""
    one = select(compare(Op.GT, x, 0), like(x, 1), select(compare(Op.LT, x, 0), like(x, -1), x))
    return one


def isnan(x: Any) -> Any:
    """Whether x is no number."""
    return compare(Op.NE, x, x)


def isinf(x: Any) -> Any:
    """Whether x is infinite."""
    return compare(Op.EQ, abs(x), math.inf)


def isfinite(x: Any) -> Any:
    """Whether x is a number and not infinite."""
    return compare(Op.LT, abs(x), math.inf)


def any(v: Any) -> Any:
    """Whether any component of a bool vector is true."""
    return _folded(v, Op.OR)


def all(v: Any) -> Any:
    """Whether all components of a bool vector are true."""
    return _folded(v, Op.AND)


def _folded(v: Any, op: Op) -> Any:
    if isinstance(v, Scalar):
        return v
    result = v[0]
    for item in v.items[1:]:
        result = binary(op, result, item)
    return result
