"""Numbers as arguments: the type that they are passed as, and whether they fit it."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import numpy as np

from khaljit.annotations import Annotation
from khaljit.arrays import Array
from khaljit.tracer.build import to_number
from khaljit.tracer.dtypes import DType, bf16, bool_, by_numpy, f16, f32, f64, i32
from khaljit.tracer.errors import ArgumentError, ArgumentOverflowError, ArgumentTypeError

__all__ = ["NUMBERS", "Number", "describe", "read_number"]

Number = int | float | bool
NUMBERS: Final = frozenset({int, float, bool})
_LARGEST: Final = {
    dtype: to_number(dtype, bits)
    for dtype, bits in ((f16, 0x7BFF), (bf16, 0x7F7F), (f32, 0x7F7FFFFF), (f64, 0x7FEFFFFFFFFFFFFF))
}


class Refuse(Protocol):
    """Makes the error for an argument that a parameter does not take."""

    def __call__(
        self,
        name: str,
        annotation: object,
        got: str,
        mend: str,
        kind: type[ArgumentError] = ArgumentTypeError,
    ) -> ArgumentError: ...


def read_number(
    name: str, annotation: Annotation | None, value: Any, refuse: Refuse
) -> tuple[DType, Number]:
    """A number of Python's or NumPy's, and the type that its parameter passes it as."""
    if isinstance(annotation, DType):
        return annotation, _as(name, annotation, value, refuse)
    if annotation is not None:
        raise refuse(name, annotation, describe(value), "pass an array: np.array([value])")
    if isinstance(value, np.generic):
        dtype = by_numpy(value.dtype)
        if dtype is None:
            raise refuse(name, None, describe(value), "convert it: float(x) or int(x)")
        return dtype, value.item()
    if type(value) is int:
        if not -(1 << 31) <= value < 1 << 31:
            raise refuse(
                name,
                None,
                f"{value}, and a Python int is passed as i32, which cannot hold it",
                f"annotate the parameter ({name}: kj.i64), or pass kj.i64({value})",
                ArgumentOverflowError,
            )
        return i32, value
    return bool_ if type(value) is bool else f32, value


def _as(name: str, dtype: DType, value: Any, refuse: Refuse) -> Number:
    """A number as an annotated dtype; it must fit."""
    number = value.item() if isinstance(value, np.generic) else value
    if dtype.is_float:
        number = float(number)
        largest = _LARGEST[dtype]
        if abs(number) > largest and not math.isinf(number):
            raise refuse(name, dtype, repr(value), "use kj.f64", ArgumentOverflowError)
        return number
    if isinstance(number, float):
        raise refuse(name, dtype, f"the float {value!r}", "pass an int: int(x)")
    if dtype is bool_:
        if not isinstance(number, bool):
            raise refuse(name, dtype, f"the int {value!r}", "pass True or False")
        return number
    low, high = dtype.limits
    if not low <= number <= high:
        wider = f"annotate it with a wider type: {name}: kj.i64"
        raise refuse(
            name,
            dtype,
            f"{value}, which is not between {low} and {high}",
            wider if dtype.bits < 64 else "no type holds it",
            ArgumentOverflowError,
        )
    return int(number)


def describe(value: Any) -> str:
    """What an argument is, for messages."""
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype}"
    if isinstance(value, Array):
        return f"an array of {value.dtype!r} on {value.device}"
    if type(value) in NUMBERS:
        return f"the {type(value).__name__} {value!r}"
    return f"a {type(value).__name__}"
