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

from khaljit.arrays import Array, extent, host_dtype, host_shape, overlap
from khaljit.backends.base import READING, WRITING, Device, Pending
from khaljit.graphs.capture import capture_of, refuse
from khaljit.operands import Operand
from khaljit.stored import stored

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
        refuse(self, "an array is read", READING)
        whole = [array if array.is_contiguous else self._gathered(array) for array in arrays]
        return _Reads(
            [(array, self.download(array.buffer, array.offset, array.nbytes)) for array in whole]
        )

    def write(self, array: Array[Any], values: Any) -> None:
        """Enqueue writing elements."""
        refuse(self, "values of the host are written to an array", WRITING)
        if array.size == 0:
            return
        dtype = host_dtype(array.dtype)
        numbers = np.asarray(stored(values, array.dtype)).astype(dtype, copy=False)
        host = np.broadcast_to(numbers, host_shape(array))
        data = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        if array.is_contiguous:
            self.upload(array.buffer, array.offset, data)
            return
        whole = self.scratch(array.shape, array.dtype)
        self.upload(whole.buffer, whole.offset, data)
        self.copy(whole, array)

    def fill(self, array: Array[Any], value: Any) -> None:
        """Enqueue setting every element to a number; vectors and structs in each scalar."""
        from khaljit.backends import strided  # kernels, which need devices first

        if strided.fills(array.dtype, value):
            strided.fill(array, value)
        else:
            self.write(array, np.asarray(stored(value, array.dtype), host_dtype(array.dtype)))

    def copy(self, source: Array[Any], target: Array[Any]) -> None:
        """Enqueue copying elements; overlapping views as if by way of a third array."""
        from khaljit.backends import strided

        if target.size == 0:
            return
        if overlap(source, target):
            middle = self.scratch(source.shape, source.dtype)
            self.copy(source, middle)
            source = middle
        whole = source.is_contiguous and target.is_contiguous
        fixed = source.param is None and target.param is None  # else a kernel, whose arrays change
        if whole and fixed and self.can_copy_bytes(source, target):
            capture = capture_of(self)
            if capture is None or not capture.copy(source, target):
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
            start, stop = extent(array)
            array.buffer, array.offset = self.allocate(stop - start), -start
        self.write(array, host)
        return array

    def _gathered(self, array: Array[Any]) -> Array[Any]:
        whole = self.scratch(array.shape, array.dtype)
        self.copy(array, whole)
        return whole


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
