"""Buffers of a WebGPU device: memory of arrays, staging for reads, and parameters on their way.

Writes go through the queue, which has staging buffers of its own. Reads copy to buffers that the
host can map; these are pooled.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["BindGroups", "Download", "Memory", "ParameterRing", "StagingPool"]

SMALLEST: Final = 256  # bytes of a staging buffer
POOLED: Final = 1 << 26  # bytes of staging buffers that are kept for reuse
RING: Final = 1 << 16  # bytes of parameters in one submission
BIND_GROUPS: Final = 1024  # kept per device


@final
class Memory:
    """A buffer of the device, with a number that stands for an address."""

    __slots__ = ("__weakref__", "address", "groups", "handle", "nbytes", "usage")
    _addresses: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, handle: Any, nbytes: int) -> None:
        self.handle: Final = handle
        self.nbytes: Final = nbytes
        self.usage: Final = int(handle.usage)
        self.address: Final = next(self._addresses) << 40  # no buffer is a TiB large
        self.groups: BindGroups | None = None

    def __del__(self) -> None:
        if self.groups is not None:
            self.groups.forget(self.address)


@final
class BindGroups:
    """Bind groups, and what is made with them, by what is bound; they go when a buffer does.

    Keys hold numbers of buffers, so an entry keeps none alive but through the bind group itself,
    and that is dropped with the first of its buffers.
    """

    def __init__(self) -> None:
        self._groups: Final[OrderedDict[Hashable, tuple[Any, list[int]]]] = OrderedDict()
        self._keys: Final[dict[int, set[Hashable]]] = {}
        self._lock: Final = threading.RLock()  # a buffer may go while one is added

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, key: Hashable) -> Any:
        """What stands there, or None."""
        found = self._groups.get(key)
        return None if found is None else found[0]

    def add(self, key: Hashable, group: Any, buffers: Sequence[Memory]) -> None:
        """Keep a bind group while all its buffers live, and while it is one of the last."""
        with self._lock:
            self._groups[key] = group, [buffer.address for buffer in buffers]
            for buffer in buffers:
                buffer.groups = self
                self._keys.setdefault(buffer.address, set()).add(key)
            if len(self._groups) > BIND_GROUPS:
                old, (_, addresses) = self._groups.popitem(last=False)
                for address in addresses:
                    self._keys.get(address, set()).discard(old)

    def forget(self, address: int) -> None:
        """Drop those of a buffer that is gone."""
        with self._lock:
            for key in self._keys.pop(address, ()):
                self._groups.pop(key, None)


@final
class ParameterRing:
    """Parameters of dispatches that do not fit in immediates: slots of one uniform buffer.

    The slots of a batch are written at once before it is submitted, and free again after that:
    the queue orders the next write behind the dispatches that read this one.
    """

    def __init__(self, device: WebGpuDevice) -> None:
        self._device: Final = device
        self._alignment: Final[int] = device.limits["min-uniform-buffer-offset-alignment"]
        usage = device.wgpu.BufferUsage
        handle = device.handle.create_buffer(size=RING, usage=usage.UNIFORM | usage.COPY_DST)
        self.memory: Final = Memory(handle, RING)
        self._block: Final = bytearray(RING)
        self._used = 0

    def put(self, block: bytes) -> int:
        """The offset where a block will stand; submits the batch if the buffer is full."""
        if self._used + len(block) > RING:
            self._device.flush()
        at = self._used
        self._block[at : at + len(block)] = block
        self._used = -(-(at + len(block)) // self._alignment) * self._alignment
        return at

    def write(self) -> None:
        """Enqueue writing the slots of this batch."""
        if self._used:
            view = memoryview(self._block)[: self._used]
            self._device.handle.queue.write_buffer(self.memory.handle, 0, view)
            self._used = 0


@final
class StagingPool:
    """Buffers that the host can map, by size: powers of two."""

    def __init__(self, device: WebGpuDevice) -> None:
        self._device: Final = device
        self._free: Final[dict[int, list[Any]]] = {}
        self._bytes = 0

    def take(self, nbytes: int) -> Any:
        """A buffer of at least so many bytes."""
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length() if nbytes else 0)
        if size > POOLED:
            size = nbytes
        free = self._free.get(size)
        if free:
            self._bytes -= size
            return free.pop()
        usage = self._device.wgpu.BufferUsage
        return self._device.guarded(
            f"allocating {size} bytes for reading",
            lambda: self._device.handle.create_buffer(
                size=size, usage=usage.COPY_DST | usage.MAP_READ
            ),
        )

    def give(self, buffer: Any) -> None:
        """Give an unmapped buffer back."""
        if self._bytes + buffer.size <= POOLED:
            self._bytes += buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)


@final
class Download:
    """Bytes on their way to the host."""

    def __init__(self, device: WebGpuDevice, buffer: Memory, offset: int, nbytes: int) -> None:
        self._device: Final = device
        self._skip: Final = offset & 3
        self._nbytes: Final = nbytes
        self._size: Final = max(4, -(-(self._skip + nbytes) // 4) * 4)
        with device.lock:
            self._staging: Final = device.staging.take(self._size)
            if nbytes:
                device.batch.encoder().copy_buffer_to_buffer(
                    buffer.handle, offset & ~3, self._staging, 0, self._size
                )
            device.flush()
            self._mapping: Final = device.guarded(
                "reading", lambda: self._staging.map_async("READ", 0, self._size)
            )

    def ready(self) -> bool:
        """Whether the bytes are there; lets wgpu notice."""
        self._device.poll()
        return bool(self._mapping._state != "pending")  # no public name tells without waiting

    def take(self) -> np.ndarray[Any, Any]:
        """The bytes, waiting if need be; once."""
        device = self._device
        if self._staging.map_state != "mapped":
            device.guarded("reading", self._mapping.sync_wait)
        whole = self._staging.read_mapped(0, self._size, copy=True)
        self._staging.unmap()
        with device.lock:
            device.staging.give(self._staging)
        return np.frombuffer(whole, np.uint8)[self._skip : self._skip + self._nbytes]
