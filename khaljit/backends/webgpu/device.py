"""GPUs through WebGPU: buffers, pipelines, and commands in batches (``batch.py``).

**Trust.** wgpu adds checks to shaders, so that none can reach memory that is not its own. Code of
khaljit's needs none of them: an access that is not proven to be in bounds stands behind a guard of
khaljit's own, against extents that the host passes and has checked against the buffers. So such
modules are made *trusted*, without a second check, under these conditions: the kernel is not
``unchecked`` (then its guards are missing, and wgpu's stay); the backend is Vulkan, where a loop
without end is a hang and nothing worse (compilers for the others may assume that there is none);
and ``KHALJIT_WEBGPU_TRUSTED`` is not 0. Hand-written code is never trusted. wgpu's validation is
the same for both.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np

from khaljit.arrays import Array, contiguous
from khaljit.backends.base import WAITING, Loaded, Timer
from khaljit.backends.memory import MemoryDevice
from khaljit.backends.webgpu import adapters, probing, raw
from khaljit.backends.webgpu.batch import Batch
from khaljit.backends.webgpu.buffers import (
    BindGroups,
    Download,
    Memory,
    StagingPool,
)
from khaljit.backends.webgpu.loaded import WebGpuLoaded
from khaljit.backends.webgpu.target import WebGpu
from khaljit.backends.webgpu.timing import PassTimer, Queries
from khaljit.cache.artifact import Artifact
from khaljit.codegen.caps import webgpu
from khaljit.codegen.webgpu.lower import Variant
from khaljit.graphs.capture import refuse
from khaljit.tracer.errors import ArgumentValueError, DeviceError
from khaljit.tracer.ir import Trace

if TYPE_CHECKING:
    from khaljit.backends.replay import Replay
    from khaljit.foreign import CodeInterface
    from khaljit.graphs.nodes import Node

__all__ = ["WebGpuDevice", "adopt_device"]

SMALLEST: Final = 16  # bytes of a buffer
REOPEN: Final = "its arrays are gone; open it again with kj.device"
SPIRV: Final = (0x07230203).to_bytes(4, sys.byteorder)  # how a module begins


@final
class WebGpuDevice(MemoryDevice):
    """A GPU through Vulkan, Metal or Direct3D 12.

    Args:
        number: which adapter, in the order that wgpu lists them; the fastest if None.
        adopted: a foreign ``wgpu.GPUDevice`` to work on.
    """

    kind: ClassVar[str] = "webgpu"

    def __init__(self, number: int | None = None, *, adopted: Any = None) -> None:
        self.wgpu: Final = adapters.binding()
        adapters.expect_own_process()
        self.name = "webgpu" if number is None else f"webgpu:{number}"
        if adopted is None:
            adopted = adapters.open_device(adapters.choose(number))
        else:
            self.name = "webgpu:adopted"
        self.handle: Final = adopted
        self.info: Final = dict(adopted.adapter.info)
        self.limits: Final = dict(adopted.limits)
        self.features: Final = frozenset(adopted.features)
        has = "immediates" in self.features
        self.immediates: Final = self.limits.get("max-immediate-size", 0) if has else 0
        self.target = _target(self.features, self.limits, self.immediates)
        self.lock: Final = threading.RLock()
        self.groups: Final = BindGroups()
        self.staging: Final = StagingPool(self)
        self.batch: Final = Batch(self)
        self._queries: Queries | None = None
        self._adopted: Final[weakref.WeakKeyDictionary[Any, Memory]] = weakref.WeakKeyDictionary()
        self._trusting: Final = (
            self.info["backend_type"] == "Vulkan"
            and os.environ.get("KHALJIT_WEBGPU_TRUSTED") != "0"
        )
        rounding = probing.ask(self)
        self.target = _target(self.features, self.limits, self.immediates, **rounding)

    def describe(self) -> Mapping[str, str]:
        """Adapter, features and limits."""
        return adapters.facts(self.info, self.features, self.limits)

    # Commands.

    def flush(self) -> None:
        """Submit what was recorded. Others who use the same GPU see it from then on."""
        with self.lock:
            self.batch.submit()

    def expect_alive(self, what: str) -> None:
        """Raise a DeviceError where the device is known to be lost."""
        if self.lost:
            raise DeviceError(f"{self}: {what}: the device is lost", mend=REOPEN)

    def guarded(self, what: str, action: Callable[[], Any]) -> Any:
        """Errors of wgpu become errors of khaljit; a device that is lost is known to be so."""
        adapters.expect_own_process()
        try:
            return action()
        except (self.wgpu.GPUError, RuntimeError) as error:
            if "is lost" in str(error) or "DeviceLost" in str(error):
                self.lost = True
                raise DeviceError(f"{self}: {what}: the device is lost", mend=REOPEN) from error
            if isinstance(error, self.wgpu.GPUOutOfMemoryError):
                raise DeviceError(
                    f"{self}: {what}: out of memory", mend="free arrays, or work in parts"
                ) from error
            raise DeviceError(f"{self}: {what}: {error}") from error

    # Memory.

    def allocate(self, nbytes: int) -> Memory:
        """A buffer for kernels, copies and indirect grids."""
        return self._allocate(nbytes, 0)

    def allocate_for(self, nbytes: int, usage: int | str) -> Memory:
        """A buffer with more usages: wgpu's flags, or their names such as ``"VERTEX|INDEX"``."""
        flags = usage
        if isinstance(flags, str):
            flags = 0
            for name in str(usage).split("|"):
                flag = getattr(self.wgpu.BufferUsage, name.strip().upper(), None)
                if not isinstance(flag, int):
                    raise ArgumentValueError(
                        f"{name.strip()!r} is no usage of a buffer",
                        mend='wgpu has VERTEX, INDEX, UNIFORM: usage="VERTEX|INDEX"',
                    )
                flags |= flag
        return self._allocate(nbytes, flags)

    def _allocate(self, nbytes: int, more: int) -> Memory:
        size = max(SMALLEST, -(-nbytes // 4) * 4)
        limit = min(self.limits["max-storage-buffer-binding-size"], self.limits["max-buffer-size"])
        if size > limit:
            raise DeviceError(
                f"{self}: an array of {nbytes} bytes is too large",
                mend=f"at most {limit} bytes can be bound",
            )
        usage = self.wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST | usage.INDIRECT | more
        handle = self.guarded(
            f"allocating {size} bytes", lambda: self.handle.create_buffer(size=size, usage=flags)
        )
        return Memory(handle, size)

    def adopt(
        self,
        buffer: Any,
        dtype: Any,
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> Array[Any]:
        """An array in a foreign ``wgpu.GPUBuffer`` of this device; it keeps the buffer alive.

        Args:
            shape: as many elements as fit, if None.
            offset: of the first element, in bytes.
        """
        wgpu = self.wgpu
        if not isinstance(buffer, wgpu.GPUBuffer) or buffer._device is not self.handle:
            raise ArgumentValueError(
                f"{buffer!r} is no buffer of {self}",
                mend="adopt the buffer's own device: kj.Device.from_wgpu(device)",
            )
        if not buffer.usage & wgpu.BufferUsage.STORAGE:
            raise ArgumentValueError(
                "the buffer was made without the usage STORAGE, so that no kernel can touch it",
                mend="add wgpu.BufferUsage.STORAGE, and COPY_SRC and COPY_DST to read and write it",
            )
        memory = self._adopted.get(buffer)
        if memory is None:
            memory = self._adopted[buffer] = Memory(buffer, buffer.size)
        size = contiguous(self, memory, dtype, ()).itemsize
        extents = (max(0, buffer.size - offset) // size,) if shape is None else shape
        array = contiguous(
            self, memory, dtype, extents if isinstance(extents, tuple) else (extents,), offset
        )
        if offset < 0 or offset % array.alignment or offset + array.nbytes > buffer.size:
            raise ArgumentValueError(
                f"{array!r} at byte {offset} does not lie in a buffer of {buffer.size} bytes",
                mend=f"its offset is a multiple of {array.alignment}, and its end in the buffer",
            )
        return array

    def native_of(self, array: Array[Any]) -> Any:
        """The ``wgpu.GPUBuffer``; what was recorded so far is submitted."""
        self.flush()
        return array.buffer.handle

    def address_of(self, buffer: Memory) -> int:
        """A number of its own for every buffer, far from all others."""
        return buffer.address

    def upload(self, buffer: Memory, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Write in the order of the queue. WebGPU writes whole words, so the bytes beside a part
        of a word are read first."""
        self._needs(buffer, "COPY_DST", "written")
        start, stop = offset & ~3, -(-(offset + data.nbytes) // 4) * 4
        if (start, stop) != (offset, offset + data.nbytes):
            whole = self.download(buffer, start, stop - start).take().copy()
            whole[offset - start : offset - start + data.nbytes] = data
            data = whole
        with self.lock:
            self.flush()
            self.guarded(
                "writing", lambda: self.handle.queue.write_buffer(buffer.handle, start, data)
            )

    def download(self, buffer: Memory, offset: int, nbytes: int) -> Download:
        """Copy to a buffer that the host can map, behind what was recorded."""
        self._needs(buffer, "COPY_SRC", "read")
        return Download(self, buffer, offset, nbytes)

    def _needs(self, buffer: Memory, usage: str, what: str) -> None:
        if not buffer.usage & getattr(self.wgpu.BufferUsage, usage):
            raise DeviceError(
                f"{self}: an adopted buffer is {what}, and was made without the usage {usage}",
                mend=f"add wgpu.BufferUsage.{usage} where it is made",
            )

    def copy_bytes(
        self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> None:
        """Copy between two buffers, whole words."""
        with self.lock:
            self.batch.encoder().copy_buffer_to_buffer(
                source.handle, source_offset, target.handle, target_offset, nbytes
            )
            self.batch.count("copy")

    def can_copy_bytes(self, source: Array[Any], target: Array[Any]) -> bool:
        """Only whole words, and only between different buffers that allow it."""
        usage = self.wgpu.BufferUsage
        allowed = source.buffer.usage & usage.COPY_SRC and target.buffer.usage & usage.COPY_DST
        words = not (source.offset | target.offset | source.nbytes) & 3
        return bool(allowed) and words and source.buffer is not target.buffer

    # Order.

    def replay_of(self, nodes: Sequence[Node]) -> Replay:
        """Lists of dispatches, with all made that wgpu takes."""
        from khaljit.backends.webgpu.replay import WebGpuReplay

        return WebGpuReplay(self, nodes)

    def synchronize(self) -> None:
        """Wait for everything that was recorded, and raise what kernels reported."""
        refuse(self, "the device is waited for", WAITING)
        self.flush()
        self.expect_alive("waiting")
        self.guarded("waiting", self.handle._poll_wait)
        self.observe()

    def poll(self) -> None:
        """Submit, and let wgpu notice what is done."""
        self.flush()
        self.guarded("polling", self.handle._poll)

    def timer(self) -> Timer:
        """Timestamps at both ends of a pass."""
        if "timestamp-query" not in self.features:
            raise DeviceError(
                f"{self} cannot time dispatches", mend="its adapter lacks timestamp-query"
            )
        with self.lock:
            if self._queries is None or not self._queries.is_open:
                self._queries = Queries(self)
            return PassTimer(self, self._queries)

    # Kernels.

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Make a pipeline."""
        return WebGpuLoaded(self, artifact, trace)

    def load_code(self, code: bytes | str, interface: CodeInterface) -> Loaded:
        """A pipeline of hand-written WGSL or SPIR-V."""
        from khaljit.backends.webgpu.foreign import ForeignLoaded

        return ForeignLoaded(self, code, interface)

    def module(self, code: bytes, trace: Trace) -> Any:
        """A shader module of a kernel of khaljit's, trusted where that is safe."""
        what = f"loading kernel {trace.name}"
        if not code.startswith(SPIRV):
            return self.foreign_module(code.decode(), trace.name)
        if self._trusting and not trace.options.unchecked:
            return self.guarded(what, lambda: raw.trusted_module(self.handle, code, trace.name))
        return self.foreign_module(code, trace.name)

    def foreign_module(self, code: bytes | str, name: str) -> Any:
        """A shader module with all of wgpu's checks."""
        if isinstance(code, bytes) and not code.startswith(SPIRV):
            raise DeviceError(
                f"{self}: loading kernel {name}: the code is no SPIR-V",
                mend="pass SPIR-V as bytes, in the machine's byte order, and WGSL as text",
            )
        return self.guarded(
            f"loading kernel {name}",
            lambda: self.handle.create_shader_module(code=code, label=name),
        )


def _target(
    features: frozenset[str], limits: Mapping[str, int], immediates: int, **rounding: Any
) -> WebGpu:
    return WebGpu(
        webgpu(
            features,
            max_workgroup=limits["max-compute-invocations-per-workgroup"],
            max_workgroup_size=(
                limits["max-compute-workgroup-size-x"],
                limits["max-compute-workgroup-size-y"],
                limits["max-compute-workgroup-size-z"],
            ),
            shared_bytes=limits["max-compute-workgroup-storage-size"],
            immediates=immediates,
            **rounding,
        ),
        Variant(at_origin=True),
    )


_ADOPTED: Final[weakref.WeakValueDictionary[int, WebGpuDevice]] = weakref.WeakValueDictionary()


def adopt_device(handle: Any) -> WebGpuDevice:
    """The device that works on a foreign ``wgpu.GPUDevice``; one for each."""
    if not isinstance(handle, adapters.binding().GPUDevice):
        raise ArgumentValueError(
            f"{handle!r} is no wgpu device", mend="pass what adapter.request_device_sync() gives"
        )
    found = _ADOPTED.get(id(handle))  # which nobody else has while the device here lives
    if found is None:
        found = _ADOPTED[id(handle)] = WebGpuDevice(adopted=handle)
    return found
