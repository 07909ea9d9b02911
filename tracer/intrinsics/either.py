"""Functions that mean the same in a kernel and outside it, on run-time values or NumPy scalars.

What matrices, quaternions and poses are computed with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from khaljit.tracer import arithmetic
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import ArgumentTypeError
from khaljit.tracer.intrinsics import numbers
from khaljit.tracer.proxy import fail
from khaljit.tracer.recorder import recording
from khaljit.tracer.vectors import vec

__all__ = [
    "acos",
    "atan2",
    "cos",
    "cross",
    "dot",
    "length",
    "maximum",
    "minimum",
    "normalize",
    "refuse",
    "select",
    "sin",
    "sqrt",
    "tan",
    "vector",
]


def _either(recorded: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        return recorded(*args) if recording() is not None else plain(*args)

    return function


sqrt = _either(numbers.sqrt, np.sqrt)
sin = _either(numbers.sin, np.sin)
cos = _either(numbers.cos, np.cos)
tan = _either(numbers.tan, np.tan)
acos = _either(numbers.acos, np.arccos)
atan2 = _either(numbers.atan2, np.arctan2)
minimum = _either(numbers.min, np.fmin)
maximum = _either(numbers.max, np.fmax)
select = _either(arithmetic.select, lambda condition, yes, no: yes if condition else no)


def vector(dtype: DType, *items: Any) -> Any:
    """A vector of some numbers."""
    return vec(len(items), dtype)(*items)


def dot(a: Any, b: Any) -> Any:
    """The scalar product, summed in the order of the components."""
    first, *rest = a * b
    return sum(rest, start=first)


def cross(a: Any, b: Any) -> Any:
    """The vector product."""
    return vector(a.dtype, a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x)


def length(v: Any) -> Any:
    """The Euclidean length."""
    return sqrt(dot(v, v))


def normalize(v: Any) -> Any:
    """The vector divided by its length."""
    return v / length(v)


def refuse(message: str, mend: str) -> NoReturn:
    """Raise the error for operands that do not fit: of the kernel, or of the call outside."""
    if recording() is not None:
        fail(message, mend)
    raise ArgumentTypeError(message, mend=mend)
