"""Kernels of khaljit's own: copying and filling arrays of any strides on any device."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np

import khaljit as kj
from khaljit.arrays import Array, overlap
from khaljit.graphs.params import ScalarParam
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, bf16, u16
from khaljit.tracer.elements import ElementType
from khaljit.tracer.vectors import VectorType

__all__ = ["copy", "fill", "fills", "transfer"]


@kj.jit(name="copy")
def _copy1(source: Any, target: Any) -> None:
    x = kj.global_id(0)
    if x < target.shape[0]:
        target[x] = source[x]


@kj.jit(name="copy")
def _copy2(source: Any, target: Any) -> None:
    y, x = kj.index(2)
    if y < target.shape[0] and x < target.shape[1]:
        target[y, x] = source[y, x]


@kj.jit(name="copy")
def _copy3(source: Any, target: Any) -> None:
    z, y, x = kj.index(3)
    if z < target.shape[0] and y < target.shape[1] and x < target.shape[2]:
        target[z, y, x] = source[z, y, x]


@kj.jit(name="fill")
def _fill1(target: Any, value: Any) -> None:
    x = kj.global_id(0)
    if x < target.shape[0]:
        target[x] = value


@kj.jit(name="fill")
def _fill2(target: Any, value: Any) -> None:
    y, x = kj.index(2)
    if y < target.shape[0] and x < target.shape[1]:
        target[y, x] = value


@kj.jit(name="fill")
def _fill3(target: Any, value: Any) -> None:
    z, y, x = kj.index(3)
    if z < target.shape[0] and y < target.shape[1] and x < target.shape[2]:
        target[z, y, x] = value


_COPIES: Final = {1: _copy1, 2: _copy2, 3: _copy3}
_FILLS: Final = {1: _fill1, 2: _fill2, 3: _fill3}


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


def fills(dtype: ElementType, value: Any) -> bool:
    """Whether `fill` takes a value for elements of a type: one number, or a graph's parameter for
    one, in numbers or vectors."""
    if not isinstance(dtype, DType | VectorType):
        return False
    return isinstance(value, ScalarParam) or np.ndim(value) == 0


def fill(target: Array[Any], value: Any) -> None:
    """Set every element to a number, vectors in each component; enqueued."""
    if target.size == 0:
        return
    numbers = _scalars(target)
    if not isinstance(value, ScalarParam):
        numbers, value = _as_stored(numbers, value)
    if numbers.is_contiguous:
        size = math.prod(numbers.shape)
        flat = numbers.seen_as(numbers.dtype, (size,), (numbers.itemsize,))
        _fill1[size](flat, value)
    else:
        _fill(numbers, value)


def _fill(target: Array[Any], value: Any) -> None:
    if target.ndim <= 3:
        _FILLS[target.ndim][kj.over(target)](target, value)
    else:  # the leading axes on the host
        for place in itertools.product(*map(range, target.shape[:-3])):
            _fill(target[place], value)


def _as_stored(numbers: Array[Any], value: Any) -> tuple[Array[Any], Any]:
    """A value as kernels take it, and the array as one of its type: bf16 by its bits."""
    dtype = numbers.dtype
    assert isinstance(dtype, DType)
    if dtype is bf16:
        return numbers.view(u16), np.uint16(to_bits(bf16, float(value)))
    return numbers, dtype.numpy.type(value)


def _scalars(array: Array[Any]) -> Array[Any]:
    """The numbers of an array of vectors, with an axis more."""
    dtype = array.dtype
    if not isinstance(dtype, VectorType):
        return array
    shape, strides = (*array.shape, dtype.count), (*array.strides, dtype.dtype.size)
    return array.seen_as(dtype.dtype, shape, strides)


def transfer(source: Array[Any], target: Array[Any]) -> None:
    """Copy elements by kernels alone; overlapping views as if by way of a third array."""
    if overlap(source, target):
        middle = target.device.scratch(source.shape, source.dtype)
        copy(source, middle)
        source = middle
    copy(source, target)
