"""A GPU's memory, and the host's pinned memory that copies go through.

Work on one piece of memory is in the order in which it was enqueued, whatever stream it is on:
`Memory` knows the stream that used it last, and another one waits for that by an event. So it is
given back in the order of that stream too.

Pinned memory is slow to make, so pieces are kept for the next copy, up to `MOST_KEPT` bytes. A
piece is free again when the event behind its copy has passed. Finalizers only hand over what
they hold, so that one that runs in the middle of something else takes no lock.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.backends.cuda.streams import Stream
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice

__all__ = ["Events", "Memory", "MemoryInfo", "Piece", "Pinned", "size_class"]

MOST_KEPT: Final = 64 << 20  # bytes of pinned memory that nobody uses
MOST_UNDER_WAY: Final = 64 << 20  # bytes of pinned memory in uploads
_SMALLEST: Final = 256


@final
class Memory:
    """A piece of a GPU's memory; given back to the pool when nobody uses it any more.

    Attributes:
        stream: the one that used it last.
        home: the stream on which another library uses it, if one does.
        read_only: whether that library forbids writing.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_owner",
        "address",
        "home",
        "nbytes",
        "read_only",
        "stream",
    )

    def __init__(
        self,
        address: int,
        nbytes: int,
        stream: Stream,
        *,
        device: CudaDevice | None = None,
        home: Stream | None = None,
        owner: object = None,
        read_only: bool = False,
    ) -> None:
        self.address: Final = address
        self.nbytes: Final = nbytes
        self.stream = stream
        self.home = home
        self.read_only: Final = read_only
        self._device: Final = device  # to give it back to; None for memory of another library
        self._owner: Final = owner  # keeps memory of another library alive

    def __del__(self) -> None:
        if self._device is not None and not sys.is_finalizing():
            self._device.give_back(self)


@final
@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a GPU's memory.

    Attributes:
        total: that the GPU has.
        free: that nobody uses, on the whole GPU.
        used: by arrays of this process that come from the driver's pool.
        reserved: that the pool holds, used or kept for the next array.
        pinned: of the host's memory that is kept for copies.
    """

    total: int
    free: int
    used: int
    reserved: int
    pinned: int


@final
class Events:
    """Events without a clock, used again and again."""

    def __init__(self, device: CudaDevice) -> None:
        self._device: Final = device
        self._free: Final[list[Any]] = []

    def take(self) -> Any:
        """An event that nobody uses."""
        try:
            return self._free.pop()
        except IndexError:
            return self._device.call("cuEventCreate", 2)

    def give(self, event: Any) -> None:
        """Let others use an event."""
        self._free.append(event)


@final
class Piece:
    """Pinned memory of the host."""

    __slots__ = ("address", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address: Final = address
        self.size: Final = size


def size_class(nbytes: int) -> int:
    """The size of the piece for so many bytes: a power of two.

    >>> size_class(300)
    512
    """
    return max(_SMALLEST, 1 << (nbytes - 1).bit_length())


@final
class Pinned:
    """Pinned memory by size."""

    def __init__(self, device: CudaDevice) -> None:
        self._device: Final = device
        self._free: Final[defaultdict[int, list[Piece]]] = defaultdict(list)
        self._under_way: Final[deque[tuple[Any, Piece]]] = deque()
        self._lock: Final = threading.Lock()
        self.kept = 0

    def take(self, nbytes: int) -> Piece:
        """A piece of at least so many bytes."""
        size = size_class(nbytes)
        with self._lock:
            self._collect()
            free = self._free[size]
            if free:
                self.kept -= size
                return free.pop()
        what = f"allocating {size} bytes of pinned host memory"
        return Piece(int(self._device.call("cuMemAllocHost", size, what=what)), size)

    def give_after(self, event: Any, piece: Piece) -> None:
        """Let others use a piece, and the event, when the event has passed."""
        self._under_way.append((event, piece))

    def _collect(self) -> None:
        """Take in what is done, waiting for the oldest where too much is under way."""
        found = list(self._under_way)  # finalizers add to it at any time
        waiting = sum(piece.size for _, piece in found)
        for _ in found:
            event, piece = self._under_way[0]
            if not self._device.is_past(event):
                if waiting <= MOST_UNDER_WAY:
                    return
                self._device.call("cuEventSynchronize", event, what="waiting for a copy")
            self._under_way.popleft()
            waiting -= piece.size
            self._device.events.give(event)
            self._keep(piece)

    def _keep(self, piece: Piece) -> None:
        if self.kept + piece.size > MOST_KEPT:
            self._device.call("cuMemFreeHost", piece.address)
            return
        self.kept += piece.size
        self._free[piece.size].append(piece)
