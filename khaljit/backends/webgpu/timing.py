"""Timestamps: pairs of them in query sets, resolved and read many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from khaljit.backends.base import Timer
from khaljit.backends.webgpu import raw
from khaljit.backends.webgpu.buffers import Download, Memory

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["PassTimer", "Queries"]

PAIRS: Final = 256  # timers that share a query set
TICK: Final = 8  # bytes of a timestamp


@final
class Queries:
    """A query set; closed for new timers once it is read."""

    def __init__(self, device: WebGpuDevice) -> None:
        self._device: Final = device
        self.handle: Final = device.guarded(
            "making a query set",
            lambda: device.handle.create_query_set(type="timestamp", count=2 * PAIRS),
        )
        self._used = 0
        self._download: Download | None = None
        self._seconds: np.ndarray[Any, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is room for another timer."""
        return self._used < PAIRS and self._download is None

    def pair(self) -> int:
        """The number of the first of two timestamps."""
        self._used += 1
        return 2 * self._used - 2

    def ready(self) -> bool:
        """Whether all timestamps are on the host; asks for them at the first call."""
        return self._seconds is not None or self._request().ready()

    def seconds(self) -> np.ndarray[Any, Any]:
        """All timestamps, waiting if need be."""
        if self._seconds is None:
            ticks = self._request().take().view(np.uint64)
            period = raw.timestamp_period(self._device.handle.queue)
            self._seconds = ticks.astype(np.float64) * (period * 1e-9)
        return self._seconds

    def _request(self) -> Download:
        if self._download is None:
            device = self._device
            usage = device.wgpu.BufferUsage
            nbytes = 2 * self._used * TICK
            handle = device.handle.create_buffer(
                size=nbytes, usage=usage.QUERY_RESOLVE | usage.COPY_SRC
            )
            with device.lock:
                device.batch.encoder().resolve_query_set(self.handle, 0, 2 * self._used, handle, 0)
                self._download = Download(device, Memory(handle, nbytes), 0, nbytes)
        return self._download


@final
class PassTimer(Timer):
    """Timestamps at both ends of a pass of its own."""

    def __init__(self, device: WebGpuDevice, queries: Queries) -> None:
        self._device: Final = device
        self._queries: Final = queries
        self._first: Final = queries.pair()

    def start(self) -> None:
        """Begin a pass."""
        with self._device.lock:
            self._device.batch.stamp((self._queries.handle, self._first))

    def stop(self) -> None:
        """End it; one without dispatches has timestamps too."""
        with self._device.lock:
            self._device.batch.recorder()
            self._device.batch.stamp(None)

    def ready(self) -> bool:
        """Whether both timestamps are on the host."""
        return self._queries.ready()

    def interval(self) -> tuple[float, float]:
        """Both in seconds."""
        start, stop = self._queries.seconds()[self._first : self._first + 2].tolist()
        return start, stop
