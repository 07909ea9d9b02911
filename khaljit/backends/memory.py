"""Devices with memory of their own: what moving arrays takes beyond moving bytes.

A backend moves contiguous bytes. Strided arrays go by way of a contiguous one, and kernels of
khaljit's own gather and scatter (``strided.py``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Protocol, final

import numpy as np

from khaljit.arguments import Operand
from khaljit.arrays import Array, host_dtype, host_shape
from khaljit.backends.base import Device, Pending
from khaljit.tracer.dtypes import bf16
from khaljit.tracer.intrinsics.vectors import VectorType

__all__ = ["Download", "MemoryDevice"]


class Download(Protocol):
    """Bytes on their way to the host."""

    def ready(self) -> bool:
        """Whether `take` would not wait."""

    def take(self) -> bytes | memoryview | np.ndarray[Any, Any]:
        """The bytes, waiting if need be."""


class MemoryDevice(Device):
    """A device whose arrays are not in the host's memory."""

    @abstractmethod
    def upload(self, buffer: Any, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Enqueue writing bytes; the host's may change afterwards."""

    @abstractmethod
    def download(self, buffer: Any, offset: int, nbytes: int) -> Download:
        """Enqueue reading bytes as they are at this point."""

    @abstractmethod
    def copy_bytes(
        self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int
    ) -> None:
        """Enqueue copying bytes that do not overlap."""

    def can_copy_bytes(self, source: Array[Any], target: Array[Any]) -> bool:
        """Whether `copy_bytes` takes these; any, unless a backend says otherwise."""
        del source, target
        return True

    def read(self, array: Array[Any]) -> np.ndarray[Any, Any]:
        """The elements, once all work on them is done."""
        return self.begin_read((array,)).take()[0]

    def begin_read(self, arrays: Sequence[Array[Any]]) -> Pending:
        """Enqueue reading arrays, gathered first where they are strided."""
        whole = [array if array.is_contiguous else self._gathered(array) for array in arrays]
        return _Reads(
            [(array, self.download(array.buffer, array.offset, array.nbytes)) for array in whole]
        )

    def write(self, array: Array[Any], values: Any) -> None:
        """Enqueue writing elements."""
        if array.size == 0:
            return
        dtype = host_dtype(array.dtype)
        host = np.broadcast_to(np.asarray(values).astype(dtype, copy=False), host_shape(array))
        data = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        if array.is_contiguous:
            self.upload(array.buffer, array.offset, data)
            return
        whole = self.empty(array.shape, array.dtype)
        self.upload(whole.buffer, whole.offset, data)
        self.copy(whole, array)

    def fill(self, array: Array[Any], value: Any) -> None:
        """Enqueue setting every element to a number; vectors in each component."""
        from khaljit.backends import strided  # kernels, which need devices first

        dtype = array.dtype.dtype if isinstance(array.dtype, VectorType) else array.dtype
        if not array.is_contiguous or dtype is bf16 or np.ndim(value):
            self.write(array, np.asarray(value, host_dtype(array.dtype)))
        else:
            strided.fill(strided.scalars(array), dtype.numpy.type(value))

    def copy(self, source: Array[Any], target: Array[Any]) -> None:
        """Enqueue copying elements; overlapping views as if by way of a third array."""
        from khaljit.backends import strided

        if target.size == 0:
            return
        if _overlap(source, target):
            middle = self.empty(source.shape, source.dtype)
            self.copy(source, middle)
            source = middle
        whole = source.is_contiguous and target.is_contiguous
        if whole and self.can_copy_bytes(source, target):
            self.copy_bytes(
                source.buffer, source.offset, target.buffer, target.offset, source.nbytes
            )
        else:
            strided.copy(source, target)

    def stage(self, host: np.ndarray[Any, Any], operand: Operand, keep_strides: bool) -> Array[Any]:
        """An array with the elements of a NumPy argument."""
        array: Array[Any] = self.empty(operand.shape, operand.dtype)
        if keep_strides:
            strides = host.strides[: len(operand.shape)]
            array = Array(self, None, operand.dtype, operand.shape, strides)
            start, stop = _span(array)
            array.buffer, array.offset = self.allocate(stop - start), -start
        self.write(array, host)
        return array

    def _gathered(self, array: Array[Any]) -> Array[Any]:
        whole = self.empty(array.shape, array.dtype)
        self.copy(array, whole)
        return whole


def _overlap(a: Array[Any], b: Array[Any]) -> bool:
    """Whether two arrays may touch the same bytes."""
    if a.buffer is not b.buffer:
        return False
    (start, stop), (other_start, other_stop) = _span(a), _span(b)
    return start < other_stop and other_start < stop


def _span(array: Array[Any]) -> tuple[int, int]:
    """The bytes of its buffer between which an array lies."""
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if n]
    start = array.offset + sum(span for span in spans if span < 0)
    stop = array.offset + sum(span for span in spans if span > 0) + array.itemsize
    return start, stop


@final
class _Reads:
    """Arrays on their way to the host."""

    def __init__(self, downloads: list[tuple[Array[Any], Download]]) -> None:
        self._downloads: Final = downloads

    def ready(self) -> bool:
        """Whether all are there."""
        return all(download.ready() for _, download in self._downloads)

    def take(self) -> list[np.ndarray[Any, Any]]:
        """The elements of each."""
        found = []
        for array, download in self._downloads:
            shape = host_shape(array)
            count = math.prod(shape)
            values = np.frombuffer(download.take(), host_dtype(array.dtype), count)
            found.append(values.reshape(shape).copy())
        return found
