"""Host functions that mean something in a kernel: Python's builtins, ``math`` and NumPy.

A call of one of these with a run-time value is recorded as khaljit's function of the same
meaning; with host values alone it runs as it is.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.arithmetic import binary, power, select
from khaljit.tracer.coerce import cast
from khaljit.tracer.dtypes import bool_, f32, i32
from khaljit.tracer.intrinsics import bits, numbers, parts, printing, vectors
from khaljit.tracer.memory import Array
from khaljit.tracer.messages import has_values
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, fail
from khaljit.tracer.ranges import Range
from khaljit.tracer.recorder import current

__all__ = ["ALWAYS", "TABLE"]


def _len(x: Any) -> Any:
    if isinstance(x, Array):
        return x.shape[0]
    return len(x)


def _min(*parts: Any) -> Any:
    items = parts if len(parts) > 1 else tuple(parts[0])
    return reduce(lambda a, b: binary(Op.MIN, a, b), items)


def _max(*parts: Any) -> Any:
    items = parts if len(parts) > 1 else tuple(parts[0])
    return reduce(lambda a, b: binary(Op.MAX, a, b), items)


def _sum(items: Any, start: Any = 0) -> Any:
    return reduce(operator.add, items, start)


def _any(items: Any) -> Any:
    return reduce(operator.or_, map(_to_bool, items), False)


def _all(items: Any) -> Any:
    return reduce(operator.and_, map(_to_bool, items), True)


def _round(x: Any, digits: Any = None) -> Any:
    if digits is not None:
        fail("round() to digits is not recorded", "scale, round and scale back")
    return cast(numbers.round(x), i32)


def _pow(x: Any, y: Any, modulus: Any = None) -> Any:
    if modulus is not None:
        fail("pow() with a modulus is not recorded", "write (x ** y) % m")
    return power(x, y)


def _isinstance(x: Any, kind: Any) -> bool:
    """Python's number types match the run-time values of that kind."""
    if not isinstance(x, Scalar):
        return isinstance(x, kind)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    dtype = x.dtype
    return (
        (bool in kinds and dtype is bool_)
        or (int in kinds and (dtype.is_integer or dtype is bool_))
        or (float in kinds and dtype.is_float)
        or isinstance(x, kinds)
    )


def _range(*ends: Any) -> Any:
    if not 1 <= len(ends) <= 3:
        return range(*ends)  # raises Python's own error
    start, stop, step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]
    numbers = [int(end) if isinstance(end, np.integer) else end for end in (start, stop, step)]
    for end in numbers:
        if not isinstance(end, Scalar):
            operator.index(end)  # raises Python's own error for what is no integer
    if type(numbers[2]) is int and numbers[2] == 0:
        fail("range() with a step of 0")
    return Range(numbers[0], numbers[1], numbers[2])


def _print(*parts: Any, **options: Any) -> None:
    if has_values(parts):
        if set(options) - {"sep", "end"}:
            fail("print() of run-time values takes only sep= and end=")
        printing.print_parts(*parts, **options)
    elif not current("print").quiet:
        builtins.print(*parts, **options)


def _breakpoint(*args: Any, **kwargs: Any) -> None:
    """A recording is not what is to be looked at; the python device runs the kernel itself."""


def _floor(x: Any) -> Any:
    """math.floor gives an int, as Python's does."""
    return cast(numbers.floor(x), i32)


def _ceil(x: Any) -> Any:
    return cast(numbers.ceil(x), i32)


def _trunc(x: Any) -> Any:
    return cast(x, i32)


def _log(x: Any, base: Any = None) -> Any:
    if base is None:
        return numbers.log(x)
    return numbers.log(x) / numbers.log(base)


def _unary(name: str) -> Callable[..., Any]:
    for module in (numbers, parts, vectors, bits):
        if hasattr(module, name):
            function: Callable[..., Any] = getattr(module, name)
            return function
    raise KeyError(name)


def _to_int(x: Any = 0) -> Any:
    return cast(x, i32)


def _to_float(x: Any = 0.0) -> Any:
    return cast(x, f32)


def _to_bool(x: Any = False) -> Any:
    return cast(x, bool_)


def _hypot(*sides: Any) -> Any:
    """math.hypot takes any number of coordinates."""
    return reduce(numbers.hypot, sides) if len(sides) > 1 else numbers.abs(*sides)


def _radians(x: Any) -> Any:
    return x * (math.pi / 180.0)


def _degrees(x: Any) -> Any:
    return x * (180.0 / math.pi)


# Called with host values too, since they mean something else in a kernel.
ALWAYS: Final[dict[object, Callable[..., Any]]] = {
    builtins.range: _range,
    builtins.isinstance: _isinstance,
    builtins.print: _print,
    builtins.len: _len,
    builtins.breakpoint: _breakpoint,
}

_ROOTS: Final = ("sqrt", "cbrt", "exp", "exp2", "expm1", "log2", "log10", "log1p")
_ANGLES: Final = ("sin", "cos", "tan", "sinh", "cosh", "tanh")
_SAME_NAME: Final = (
    *(*_ROOTS, *_ANGLES),
    *(f"a{name}" for name in _ANGLES),
    *("erf", "erfc", "gamma", "lgamma", "fma"),
    *("copysign", "fmod", "remainder", "modf", "frexp", "ldexp", "nextafter"),
)
_NUMPY_NAMES: Final = {
    **{name: name for name in (*_ROOTS, *_ANGLES, "log", "floor", "ceil", "trunc")},
    **{f"arc{name}": f"a{name}" for name in _ANGLES},
    **{name: name for name in ("isnan", "isinf", "isfinite", "hypot", "sign", "signbit")},
    **{name: name for name in ("copysign", "fmod", "modf", "frexp", "ldexp", "nextafter")},
    **{name: name for name in ("minimum", "maximum")},
    **{
        "rint": "round",
        "fix": "trunc",
        "abs": "abs",
        "absolute": "abs",
        "fabs": "abs",
        "arctan2": "atan2",
    },
    **{"fmin": "min", "fmax": "max", "clip": "clamp", "bitwise_count": "popcount"},
}

TABLE: Final[dict[object, Callable[..., Any]]] = {
    builtins.abs: numbers.abs,
    builtins.min: _min,
    builtins.max: _max,
    builtins.sum: _sum,
    builtins.any: _any,
    builtins.all: _all,
    builtins.str: format,  # the mark that stands for a value in a text
    builtins.round: _round,
    builtins.pow: _pow,
    builtins.int: _to_int,
    builtins.float: _to_float,
    builtins.bool: _to_bool,
    builtins.divmod: lambda a, b: (a // b, a % b),
    **{getattr(math, name): _unary(name) for name in _SAME_NAME if hasattr(math, name)},
    math.log: _log,
    math.pow: power,
    math.hypot: _hypot,
    math.atan2: numbers.atan2,
    math.floor: _floor,
    math.ceil: _ceil,
    math.trunc: _trunc,
    math.fabs: numbers.abs,
    math.isnan: numbers.isnan,
    math.isinf: numbers.isinf,
    math.isfinite: numbers.isfinite,
    math.radians: _radians,
    math.degrees: _degrees,
    **{getattr(np, n): _unary(t) for n, t in _NUMPY_NAMES.items() if hasattr(np, n)},
    np.where: select,
    np.power: power,
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.square: lambda x: x * x,
    np.reciprocal: lambda x: 1 / x,
    np.divmod: divmod,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.invert: operator.invert,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.radians: _radians,
    np.deg2rad: _radians,
    np.degrees: _degrees,
    np.rad2deg: _degrees,
    np.bool_: _to_bool,
    **{
        dtype.numpy.type: (lambda x, dtype=dtype: cast(x, dtype))
        for dtype in dtypes.ALL
        if dtype not in (bool_, dtypes.bf16)
    },
}
