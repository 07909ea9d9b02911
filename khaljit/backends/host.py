"""Devices whose arrays are host memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from khaljit.arrays import Array, host_dtype, host_shape, host_strides, overlap
from khaljit.backends.base import READING, WAITING, WRITING, Device, Pending, Timer
from khaljit.graphs.capture import capture_of, refuse
from khaljit.operands import Operand
from khaljit.stored import stored

__all__ = ["HostDevice", "HostTimer", "host_array", "view"]

CACHE_LINE = 64


class HostDevice(Device):
    """A device that works on host memory; its buffers are NumPy arrays of bytes."""

    has_own_memory: ClassVar[bool] = False

    def allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes of host memory, aligned to a cache line."""
        memory = np.empty(nbytes + CACHE_LINE, np.uint8)
        start = -memory.ctypes.data % CACHE_LINE
        return memory[start : start + nbytes]

    def address_of(self, buffer: Any) -> int:
        """The address of the first byte."""
        return int(buffer.ctypes.data)

    def read(self, array: Array[Any]) -> np.ndarray[Any, Any]:
        """A copy of the elements."""
        refuse(self, "an array is read", READING)
        return view(array).copy()

    def write(self, array: Array[Any], values: Any) -> None:
        """Copy elements in."""
        refuse(self, "values of the host are written to an array", WRITING)
        view(array)[...] = stored(values, array.dtype)

    def begin_read(self, arrays: Sequence[Array[Any]]) -> Pending:
        """Read now: there is nothing to wait for."""
        from khaljit.readback import Immediate  # for those who ask for that

        return Immediate([self.read(array) for array in arrays])

    def copy(self, source: Array[Any], target: Array[Any]) -> None:
        """Copy elements; overlapping views as if by way of a third array."""
        if capture_of(self) is None:
            values = view(source)
            # NumPy itself reads what it wrote where strides differ
            view(target)[...] = values.copy() if overlap(source, target) else values
            return
        from khaljit.backends import strided  # kernels, which need devices first

        strided.transfer(source, target)

    def fill(self, array: Array[Any], value: Any) -> None:
        """Set every element."""
        if capture_of(self) is None:
            view(array)[...] = stored(value, array.dtype)
            return
        from khaljit.backends import strided

        if strided.fills(array.dtype, value):
            strided.fill(array, value)
        else:
            self.write(array, value)

    def timer(self) -> Timer:
        """The wall clock: launches on the host run inside."""
        return HostTimer()

    def poll(self) -> None:
        """Nothing is ever under way."""

    def synchronize(self) -> None:
        """Nothing to wait for: a launch on the host returns when it is done."""
        refuse(self, "the device is waited for", WAITING)


@final
class HostTimer(Timer):
    """Reads the host's clock."""

    def start(self) -> None:
        """Read the clock."""
        self._start = time.perf_counter()

    def stop(self) -> None:
        """Read it again."""
        self._stop = time.perf_counter()

    def ready(self) -> bool:
        """It always is."""
        return True

    def interval(self) -> tuple[float, float]:
        """Both readings in seconds."""
        return self._start, self._stop


def view(array: Array[Any]) -> np.ndarray[Any, Any]:
    """A khaljit array in host memory as NumPy sees it, on the same memory."""
    return np.ndarray(
        host_shape(array),
        host_dtype(array.dtype),
        buffer=array.buffer,
        offset=array.offset,
        strides=host_strides(array),
    )


def host_array(operand: Operand) -> np.ndarray[Any, Any]:
    """The NumPy array of an argument."""
    owner = operand.owner
    return view(owner) if isinstance(owner, Array) else owner
