"""bf16 on the host, which NumPy lacks: arrays have its bits, in uint16, and people have numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from khaljit.tracer.dtypes import bf16
from khaljit.tracer.elements import ElementType
from khaljit.tracer.vectors import VectorType

if TYPE_CHECKING:
    from khaljit.arrays import Array

__all__ = ["is_bfloat16", "numbers_of", "stored"]


def _holds_bf16(kind: ElementType) -> bool:
    return (kind.dtype if isinstance(kind, VectorType) else kind) is bf16


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether it is the type of that name which the package ml_dtypes adds to NumPy."""
    return dtype.name == "bfloat16"


def stored(values: Any, kind: ElementType) -> Any:
    """Values as the memory of an array takes them: for bf16 the bits of the nearest numbers.

    uint16 has these bits already, as `Array.numpy` gives them. All else stays what it is.
    """
    if not _holds_bf16(kind):
        return values
    array = np.asarray(values)
    if array.dtype == np.uint16:
        return array
    if is_bfloat16(array.dtype):
        return array.view(np.uint16)
    from khaljit.tracer.floats import bf16_bits, f64_to_bf16, integer_to_bf16  # for the few

    if array.dtype.kind in "iu":
        return bf16_bits(integer_to_bf16(array))
    with np.errstate(over="ignore"):
        return bf16_bits(f64_to_bf16(array.astype(np.float64)))


def numbers_of(array: Array[Any]) -> np.ndarray[Any, Any]:
    """The elements of an array as numbers of the host: bf16 as float32."""
    host = array.numpy()
    if not _holds_bf16(array.dtype):
        return host
    from khaljit.tracer.floats import bf16_from_bits

    return bf16_from_bits(host)
