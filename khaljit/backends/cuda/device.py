"""NVIDIA GPUs through the driver API: stream-ordered memory, cubins, launches."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np

from khaljit import compiler
from khaljit.arguments import Operand
from khaljit.backends.base import Loaded, Timer, failed_assertion
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.driver import Context, call
from khaljit.backends.cuda.target import Cuda, architecture_for
from khaljit.backends.memory import MemoryDevice
from khaljit.cache.artifact import Artifact
from khaljit.codegen.layout import REPORT_SLOTS, ParameterBlock
from khaljit.grids import Grid, Indirect
from khaljit.tracer.build import to_bits
from khaljit.tracer.errors import ArgumentValueError, DeviceError
from khaljit.tracer.ir import Trace

if TYPE_CHECKING:
    from khaljit.foreign import CodeInterface

__all__ = ["CudaDevice", "stream"]

MAX_X: Final = (1 << 31) - 1
MAX_YZ: Final = 65535
ALIGNMENT: Final = 256  # of what the driver allocates
MASK: Final = (1 << 64) - 1


@final
class Memory:
    """A piece of a GPU's memory; given back to the pool when nobody uses it any more."""

    __slots__ = ("__weakref__", "address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: object = None) -> None:
        self.address: Final = address
        self.nbytes: Final = nbytes
        self.owner: Final = owner  # keeps memory of another library alive


@final
class CudaDevice(MemoryDevice):
    """One GPU.

    Args:
        number: which, as the driver counts them.
    """

    kind: ClassVar[str] = "cuda"

    def __init__(self, number: int = 0) -> None:
        found = driver.count()
        if number >= found:
            raise DeviceError(
                f"there is no GPU {number}: {found} are here", mend="khaljit devices lists them"
            )
        self.number: Final = number
        self.name = f"cuda:{number}"
        self.context: Final = Context(number)
        self.context.enter()
        major = self.context.attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = self.context.attribute("COMPUTE_CAPABILITY_MINOR")
        self.capability: Final = (major, minor)
        self.architecture: Final = architecture_for(major, minor)
        self.target = Cuda(self.architecture)
        self._flags = driver.library().CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream: Final = int(call("cuStreamCreate", self._flags))
        self._keep_freed_memory()
        self._reporting: list[_Loaded] = []
        self._lock: Final = threading.Lock()
        self._dead: DeviceError | None = None
        self._process: Final = os.getpid()
        self._base: Final = self._event()

    def _keep_freed_memory(self) -> None:
        """Let the driver's pool keep what is given back, for the next allocation."""
        pool = call("cuDeviceGetDefaultMemPool", self.context.device)
        kind = driver.library().CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        value = driver.library().cuuint64_t(MASK)
        call("cuMemPoolSetAttribute", pool, kind, value)

    # Calls in the device's context.

    def enter(self) -> None:
        """Ready this thread for calls; a device that failed for good says so again."""
        if self._dead is not None:
            raise DeviceError(
                f"{self} failed earlier and cannot be used: {self._dead.message}",
                mend="restart the process",
            )
        if os.getpid() != self._process:
            raise DeviceError(
                f"{self} was opened before the process forked",
                mend="open devices after forking, or start processes with spawn",
            )
        self.context.enter()

    def call(self, name: str, *args: Any, what: str | None = None) -> Any:
        """A call of the driver; an error that loses the context marks the device dead."""
        try:
            return call(name, *args, what=what)
        except DeviceError as error:
            if getattr(error, "sticky", False):
                self._dead = error
            raise

    @property
    def stream(self) -> int:
        """The stream that work goes to: the one of `kj.stream`, or the device's own."""
        chosen = _STREAM.get()
        return self._stream if chosen is None else chosen

    # Memory.

    def allocate(self, nbytes: int) -> Memory:
        """Memory of the pool, in the order of the stream."""
        self.enter()
        size = max(nbytes, 1)
        address = int(
            self.call("cuMemAllocAsync", size, self.stream, what=f"allocating {size} bytes")
        )
        memory = Memory(address, size)
        weakref.finalize(memory, _free, self, address, self.stream)
        return memory

    def address_of(self, buffer: Memory) -> int:
        """The device address."""
        return buffer.address

    def upload(self, buffer: Memory, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Copy from the host; pageable memory is read before this returns."""
        self.enter()
        self.call(
            "cuMemcpyHtoDAsync",
            buffer.address + offset,
            data.ctypes.data,
            data.nbytes,
            self.stream,
        )

    def download(self, buffer: Memory, offset: int, nbytes: int) -> _Download:
        """Copy to pinned memory, behind what the stream holds."""
        self.enter()
        return _Download(self, buffer, offset, nbytes)

    def copy_bytes(
        self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> None:
        """Copy on the device."""
        self.enter()
        self.call(
            "cuMemcpyDtoDAsync",
            target.address + target_offset,
            source.address + source_offset,
            nbytes,
            self.stream,
        )

    # Order.

    def synchronize(self) -> None:
        """Wait for the stream, and raise what kernels reported."""
        self.enter()
        self.call("cuStreamSynchronize", self.stream, what="waiting for the GPU")
        with self._lock:
            reporting, self._reporting = self._reporting, []
        for loaded in reporting:
            loaded.raise_report()

    def poll(self) -> None:
        """The driver works by itself."""

    def timer(self) -> Timer:
        """A pair of events."""
        return _EventTimer(self)

    def _event(self) -> Any:
        event = call("cuEventCreate", 0)
        call("cuEventRecord", event, self._stream)
        return event

    def expect_report(self, loaded: _Loaded) -> None:
        """Look at a kernel's report at the next synchronisation."""
        with self._lock:
            if loaded not in self._reporting:
                self._reporting.append(loaded)

    # Kernels.

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Load a cubin, or have the driver compile PTX."""
        self.enter()
        return _Loaded(self, artifact, trace)

    def load_code(self, code: bytes | str, interface: CodeInterface) -> Loaded:
        """Load hand-written PTX or a cubin."""
        from khaljit.backends.cuda.foreign import ForeignLoaded

        self.enter()
        return ForeignLoaded(self, code, interface)

    def unload(self, module: Any) -> None:
        """Forget a module, unless all is lost anyhow."""
        _unload(self, module)

    def native_of(self, array: Array[Any]) -> int:
        """The address of the first element."""
        return array.address

    def describe(self) -> Mapping[str, str]:
        """Name, capability, memory, driver."""
        version = int(call("cuDriverGetVersion"))
        return {
            "GPU": self.context.name(),
            "compute capability": ".".join(map(str, self.capability)),
            "code": self.target.name,
            "memory": f"{self.context.total_memory() >> 30} GiB",
            "CUDA": f"{version // 1000}.{version % 1000 // 10}",
        }


def _free(device: CudaDevice, address: int, stream: int) -> None:
    """Give memory back in the order of its stream, unless all is lost anyhow."""
    if device._dead is None and os.getpid() == device._process:
        device.context.enter()
        driver.library().cuMemFreeAsync(address, stream)


@final
class _Download:
    """Bytes on their way through pinned memory."""

    def __init__(self, device: CudaDevice, buffer: Memory, offset: int, nbytes: int) -> None:
        self._device: Final = device
        self._keep: Final = buffer
        self._nbytes: Final = nbytes
        self._host: Final = int(device.call("cuMemAllocHost", max(nbytes, 1)))
        weakref.finalize(self, _free_host, device, self._host)
        if nbytes:
            device.call(
                "cuMemcpyDtoHAsync", self._host, buffer.address + offset, nbytes, device.stream
            )
        self._event: Final = device.call("cuEventCreate", 2)
        device.call("cuEventRecord", self._event, device.stream)

    def ready(self) -> bool:
        self._device.enter()
        status = driver.library().cuEventQuery(self._event)[0]
        return int(status) == 0

    def take(self) -> np.ndarray[Any, Any]:
        self._device.enter()
        self._device.call("cuEventSynchronize", self._event, what="waiting for the GPU")
        if not self._nbytes:
            return np.empty(0, np.uint8)
        memory = (ctypes.c_ubyte * self._nbytes).from_address(self._host)
        return np.array(np.ctypeslib.as_array(memory))


def _free_host(device: CudaDevice, address: int) -> None:
    if device._dead is None and os.getpid() == device._process:
        device.context.enter()
        driver.library().cuMemFreeHost(address)


@final
class _EventTimer(Timer):
    """Readings of the GPU's clock by events."""

    def __init__(self, device: CudaDevice) -> None:
        self._device: Final = device
        device.enter()
        self._events: Final = [device.call("cuEventCreate", 0) for _ in range(2)]

    def start(self) -> None:
        self._device.call("cuEventRecord", self._events[0], self._device.stream)

    def stop(self) -> None:
        self._device.call("cuEventRecord", self._events[1], self._device.stream)

    def ready(self) -> bool:
        self._device.enter()
        return int(driver.library().cuEventQuery(self._events[1])[0]) == 0

    def interval(self) -> tuple[float, float]:
        self._device.enter()
        self._device.call("cuEventSynchronize", self._events[1])
        start, stop = (
            call("cuEventElapsedTime", self._device._base, event) for event in self._events
        )
        return start / 1e3, stop / 1e3


@final
class _Loaded(Loaded):
    """A kernel on a GPU."""

    def __init__(self, device: CudaDevice, artifact: Artifact, trace: Trace) -> None:
        plan = artifact.plan
        self._device: Final = device
        self._trace: Final = trace
        self._folded: _Loaded | None = None
        payload = artifact.payload
        image = payload if payload.startswith(b"\x7fELF") else payload + b"\0"
        what = f"loading kernel {trace.name}"
        self._module: Final = device.call("cuModuleLoadData", image, what=what)
        weakref.finalize(self, _unload, device, self._module)
        entry = plan["entry"].encode()
        self._function: Final = device.call("cuModuleGetFunction", self._module, entry, what=what)
        self._block: Final[tuple[int, int, int]] = tuple(plan["workgroup"])
        self._item: Final[tuple[int, int, int]] = tuple(plan["item"])
        self._shared: Final[int] = plan["shared"]
        if self._shared:
            kind = driver.library().CUfunction_attribute
            device.call(
                "cuFuncSetAttribute",
                self._function,
                kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self._shared,
                what=f"asking for {self._shared} bytes of shared memory for {trace.name}",
            )
        layout = ParameterBlock.of(trace)
        self._pack: Final = struct.Struct(f"<{layout.size // 8}Q").pack
        self._types: Final = tuple(scalar.dtype for scalar in trace.scalars)
        self._report: Final = device.allocate(8 * REPORT_SLOTS) if plan["reports"] else None
        if self._report is not None:
            self._clear_report()
        self._what: Final = f"launching kernel {trace.name}"

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Enqueue on the stream."""
        device = self._device
        device.enter()
        if isinstance(groups, Indirect):
            groups = groups.read()
            if 0 in groups:
                return
        workgroup = self._trace.workgroup or (1, 1, 1)
        blocks = [
            -(-count * size // (block * item))
            for count, size, block, item in zip(
                groups, workgroup, self._block, self._item, strict=True
            )
        ]
        if blocks[0] > MAX_X or blocks[1] > MAX_YZ or blocks[2] > MAX_YZ:
            self._launch_folded(operands, numbers, groups, math.prod(blocks))
            return
        self._enqueue(operands, numbers, groups, blocks)

    def _launch_folded(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid,
        blocks: int,
    ) -> None:
        """With all blocks along x, by code that takes them apart again."""
        if blocks > MAX_X:
            raise ArgumentValueError(
                f"kernel {self._trace.name}: {blocks} workgroups are too many for one launch",
                mend=f"at most {MAX_X}: launch it in parts, or loop with kj.grid_stride",
            )
        if self._folded is None:
            target = Cuda(self._device.architecture, folded=True)
            compiled = compiler.compile_trace(self._trace, target)
            loaded = self._device.load_artifact(compiled.artifact, self._trace)
            assert isinstance(loaded, _Loaded)
            self._folded = loaded
        self._folded._enqueue(operands, numbers, groups, (blocks, 1, 1))

    def _enqueue(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid,
        blocks: Sequence[int],
    ) -> None:
        slots: list[int] = []
        for operand in operands:
            slots.append(operand.address)
            slots += operand.shape
            slots += operand.strides
        slots += map(to_bits, self._types, numbers)
        slots += groups
        slots.append(self._report.address if self._report is not None else 0)
        packed = ctypes.create_string_buffer(self._pack(*[slot & MASK for slot in slots]))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
        self._device.call(
            "cuLaunchKernel",
            self._function,
            *blocks,
            *self._block,
            self._shared,
            self._device.stream,
            ctypes.addressof(pointers),
            0,
            what=self._what,
        )
        if self._report is not None:
            self._device.expect_report(self)

    def _clear_report(self) -> None:
        assert self._report is not None
        self._device.upload(self._report, 0, np.zeros(REPORT_SLOTS, np.int64))

    def raise_report(self) -> None:
        """Raise what the kernel reported, if it did."""
        assert self._report is not None
        raw = self._device.download(self._report, 0, 8 * REPORT_SLOTS).take()
        flag, site, x, y, z, *_ = raw.view(np.int64).tolist()
        if flag:
            self._clear_report()
            raise failed_assertion(self._trace, site, (x, y, z))


def _unload(device: CudaDevice, module: Any) -> None:
    if device._dead is None and os.getpid() == device._process:
        device.context.enter()
        driver.library().cuModuleUnload(module)


_STREAM: Final[ContextVar[int | None]] = ContextVar("khaljit_stream", default=None)


class stream:  # noqa: N801  # called like a function
    """Work of a block goes to a CUDA stream of another library: ``with kj.stream(s): ...``.

    Args:
        handle: a stream's address, or an object with ``__cuda_stream__`` or ``cuda_stream``
            (PyTorch's and CuPy's streams).
    """

    def __init__(self, handle: Any) -> None:
        found = getattr(handle, "__cuda_stream__", None)
        if callable(found):
            handle = found()[1]
        for name in ("cuda_stream", "ptr"):
            handle = getattr(handle, name, handle)
        if not isinstance(handle, int):
            raise ArgumentValueError(
                f"{handle!r} is no CUDA stream", mend="pass its address or an object that has one"
            )
        self._handle: Final = handle
        self._token: Token[int | None] | None = None

    def __enter__(self) -> stream:
        self._token = _STREAM.set(self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._token is not None
        _STREAM.reset(self._token)
