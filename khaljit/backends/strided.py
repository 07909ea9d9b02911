"""Kernels of khaljit's own: copying and filling arrays of any strides on any device."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import khaljit as kj
from khaljit.arrays import Array, contiguous
from khaljit.tracer.intrinsics.vectors import VectorType

__all__ = ["copy", "fill"]


@kj.jit
def _copy1(source: Any, target: Any) -> None:
    x = kj.global_id(0)
    if x < target.shape[0]:
        target[x] = source[x]


@kj.jit
def _copy2(source: Any, target: Any) -> None:
    y, x = kj.index(2)
    if y < target.shape[0] and x < target.shape[1]:
        target[y, x] = source[y, x]


@kj.jit
def _copy3(source: Any, target: Any) -> None:
    z, y, x = kj.index(3)
    if z < target.shape[0] and y < target.shape[1] and x < target.shape[2]:
        target[z, y, x] = source[z, y, x]


@kj.jit
def _fill1(target: Any, value: Any) -> None:
    x = kj.global_id(0)
    if x < target.shape[0]:
        target[x] = value


_COPIES: Final = {1: _copy1, 2: _copy2, 3: _copy3}


def copy(source: Array[Any], target: Array[Any]) -> None:
    """Copy elements between arrays of equal shape that share no memory; enqueued."""
    if target.size == 0:
        return
    if target.ndim == 0:
        copy(source[None], target[None])
    elif target.ndim <= 3:
        _COPIES[target.ndim][kj.over(target)](source, target)
    else:  # the leading axes on the host
        for place in itertools.product(*map(range, target.shape[:-3])):
            copy(source[place], target[place])


def fill(target: Array[Any], value: Any) -> None:
    """Set every element of a contiguous array of scalars; enqueued."""
    flat = contiguous(
        target.device, target.buffer, target.dtype, (math.prod(target.shape),), target.offset
    )
    if flat.size:
        _fill1[flat.size](flat, value)


def scalars(array: Array[Any]) -> Array[Any]:
    """The scalars of a contiguous array of vectors, one behind the other."""
    dtype = array.dtype
    return array.view(dtype.dtype) if isinstance(dtype, VectorType) else array
