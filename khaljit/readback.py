"""Reading without waiting: ask for ranges now, take them when they are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.arrays import Array, host_shape
from khaljit.tracer.errors import ArgumentValueError

__all__ = ["Readback"]


@final
class Readback:
    """A reader of arrays of one device.

    ``request`` enqueues copies of some arrays (or slices of them) behind what was enqueued before;
    ``poll`` tells whether they are there; ``take`` gives them, waiting if need be. A new request
    drops one that was not taken.
    """

    def __init__(self, *arrays: Array[Any]) -> None:
        self._arrays: Sequence[Array[Any]] = ()
        self._pending: Any = None
        if arrays:
            self.request(*arrays)

    def request(self, *arrays: Array[Any]) -> None:
        """Ask for the elements of arrays of one device as they are at this point."""
        if not arrays or any(array.device is not arrays[0].device for array in arrays):
            raise ArgumentValueError(
                "a readback takes arrays of one device", mend="make one Readback per device"
            )
        self._arrays = arrays
        self._pending = arrays[0].device.begin_read(arrays)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was asked for that is not taken yet."""
        return self._pending is None

    def poll(self) -> bool:
        """Whether `take` would not wait."""
        return self._pending is not None and bool(self._pending.ready())

    def take(self) -> list[np.ndarray[Any, Any]]:
        """The elements that were asked for, an array each."""
        if self._pending is None:
            raise ArgumentValueError(
                "nothing was asked for", mend="call request(array, ...) before take()"
            )
        pending, self._pending = self._pending, None
        found: list[np.ndarray[Any, Any]] = pending.take()
        assert all(
            one.shape == host_shape(array) for one, array in zip(found, self._arrays, strict=True)
        )
        return found


@final
class Immediate:
    """The pending reads of a device that had nothing to wait for."""

    def __init__(self, found: list[np.ndarray[Any, Any]]) -> None:
        self._found: Final = found

    def ready(self) -> bool:
        """It always is."""
        return True

    def take(self) -> list[np.ndarray[Any, Any]]:
        """What was read."""
        return self._found
