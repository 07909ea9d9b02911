"""NVIDIA GPUs through the driver API: stream-ordered memory, copies, events, errors.

Work goes to the device's own stream, to the one of `kj.stream`, or, where an array of another
library is among the arguments, to the stream on which that library works. What is on several
streams is ordered by the memory that it uses (`memory.py`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np

from khaljit.arrays import Array, contiguous, host_dtype, host_shape
from khaljit.backends.base import READING, WAITING, Device, Loaded, Timer
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.assemble import TOOLS
from khaljit.backends.cuda.driver import Context, DriverError, call
from khaljit.backends.cuda.foreign import ForeignLoaded
from khaljit.backends.cuda.kernel import CudaKernel, Module, chosen_stream, hand_back
from khaljit.backends.cuda.memory import Events, Memory, MemoryInfo, Pinned
from khaljit.backends.cuda.streams import CHOSEN, Stream, stream_of
from khaljit.backends.cuda.target import Cuda, architecture_for
from khaljit.backends.memory import MemoryDevice
from khaljit.cache.artifact import Artifact
from khaljit.graphs.capture import refuse
from khaljit.tracer.errors import DeviceError
from khaljit.tracer.ir import Trace

if TYPE_CHECKING:
    from khaljit.backends.cuda.recorder import CudaRecorder
    from khaljit.backends.replay import Recorder
    from khaljit.foreign import CodeInterface

__all__ = ["CudaDevice"]

MASK: Final = (1 << 64) - 1
STAGED: Final = 8 << 20  # bytes up to which an upload goes through pinned memory
DIRECT: Final = 64 << 20  # bytes from which a blocking read goes straight to its array
RECENT: Final = 4  # kernels that an error names
BLOCKS_PER_MULTIPROCESSOR: Final = 16  # of a launch whose grid the GPU reads
_WORD: Final = 8  # bytes that memory is allotted in
_SWAPPED: Final = 4  # bytes of the smallest word that atomics swap
NOT_READY: Final = "CUDA_ERROR_NOT_READY"
OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"


@final
class CudaDevice(MemoryDevice):
    """One GPU.

    Args:
        number: which, as the driver counts them.
        wait: makes the call that the driver takes its time for, and gives what that gives.
    """

    kind: ClassVar[str] = "cuda"
    __slots__ = ("dead", "timing")  # what native launches look at first; the rest is in a dict

    def __init__(
        self,
        number: int = 0,
        *,
        wait: Callable[[Callable[[], Context]], Context] = lambda call: call(),
    ) -> None:
        found = driver.count()
        if number >= found:
            raise DeviceError(
                f"there is no GPU {number}: {found} are here", mend="khaljit devices lists them"
            )
        self.number: Final = number
        self.name = f"cuda:{number}"
        self._process: Final = os.getpid()
        self.dead: DeviceError | None = None
        self._library: Final = driver.library()  # at hand for what is freed last of all
        self.context: Final[Context] = wait(lambda: Context(number))
        self.context.enter()
        major = self.context.attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = self.context.attribute("COMPUTE_CAPABILITY_MINOR")
        self.capability: Final = (major, minor)
        self.architecture: Final = architecture_for(major, minor)
        self.target = Cuda(self.architecture)
        self.target.tool_version(TOOLS[0])  # looked up once: not while a first kernel waits for it
        self.functions: Final = (  # for native code
            driver.address("cuCtxSetCurrent"),
            driver.address("cuLaunchKernel"),
        )
        self.resident_blocks: Final = _per_multiprocessor() * self.context.attribute(
            "MULTIPROCESSOR_COUNT"
        )
        self.most_shared: Final = self.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.most_registers: Final = self.context.attribute("MAX_REGISTERS_PER_BLOCK")
        self.own: Final = stream_of(int(self.new_stream()))
        self._pool: Final = call("cuDeviceGetDefaultMemPool", self.context.device)
        self._keep_freed_memory()
        self.events: Final = Events(self)
        self.pinned: Final = Pinned(self)
        self.recent: Final[deque[str]] = deque(maxlen=RECENT)  # kernels not yet waited for
        self.others: Final[set[Stream]] = set()  # streams with work, besides the device's own
        self.timing: EventTimer | None = None
        self.setter: Module | None = None  # of the conditions of graphs, once one has any
        self._recorders: Final[list[CudaRecorder]] = []  # of captures now, by any thread
        self._dropped: Final[list[tuple[str, Any]]] = []  # what went meanwhile
        self._lock: Final = threading.Lock()
        self.clock: Final = call("cuEventCreate", 0)  # when the device was opened
        call("cuEventRecord", self.clock, self.own.handle)

    def _keep_freed_memory(self) -> None:
        """Let the driver's pool keep what is given back, for the next allocation."""
        kind = driver.library().CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", self._pool, kind, driver.library().cuuint64_t(MASK))

    # Calls in the device's context.

    def enter(self) -> None:
        """Ready this thread for calls; a device that failed for good says so again."""
        if self.dead is not None:
            raise DeviceError(
                f"{self} failed earlier and cannot be used: {self.dead.message}",
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
        except DriverError as error:
            raise self.explained(error) from None

    def explained(self, error: DriverError) -> DeviceError:
        """The error to raise; where the context is lost, it names the kernels that may be why."""
        if not error.sticky:
            return error
        if self.dead is None:
            names = list(dict.fromkeys(self.recent))
            blame = f"kernel {names[0]}" if len(names) == 1 else f"one of {', '.join(names)}"
            self.dead = DeviceError(
                f"{blame if names else 'a kernel of another library'} failed on {self}: "
                f"{error.message}",
                mend="find the access with @kj.jit(debug=True) or compute-sanitizer, and restart "
                "the process",
            )
        return self.dead

    def new_stream(self) -> Any:
        """A stream of the driver's."""
        return call("cuStreamCreate", self._library.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def current(self) -> Stream:
        """The stream that work goes to: the one of `kj.stream`, or the device's own."""
        return CHOSEN.get() or self.own

    @contextmanager
    def use(self, *memories: Memory) -> Iterator[int]:
        """The handle of the stream for work on some memory, in the order of all who use that."""
        stream = chosen_stream(self, memories)
        yield stream.handle
        hand_back(self, memories, stream)
        if stream.captured is not None:
            stream.captured.commands += 1

    def order(self, memory: Memory, stream: Stream) -> None:
        """Let a stream wait for the one that used a piece of memory last."""
        if stream is not self.own:
            self.others.add(stream)
        if memory.stream is not stream:
            self.wait(memory.stream, stream)
            memory.stream = stream

    def wait(self, before: Stream, after: Stream) -> None:
        """Let a stream wait for all that is on another."""
        event = self.events.take()
        self.call("cuEventRecord", event, before.handle)
        self.call("cuStreamWaitEvent", after.handle, event, 0)
        self.events.give(event)

    def is_past(self, event: Any) -> bool:
        """Whether what was enqueued before an event is done."""
        try:
            call("cuEventQuery", event)
        except DriverError as error:
            if error.code == NOT_READY:
                return False
            raise self.explained(error) from None
        return True

    # Memory.

    def allocate(self, nbytes: int) -> Memory:
        """Memory of the pool, in the order of the stream.

        Whole words of 8 bytes: atomics on small elements swap the word that they are in. What is
        behind the last of them is therefore read, and set.
        """
        self.enter()
        size, stream = -(-max(nbytes, 1) // _WORD) * _WORD, self.current()
        what = f"allocating {size} bytes on {self}"
        try:
            address = self.call("cuMemAllocAsync", size, stream.handle, what=what)
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            address = self._allocate_again(size, stream)
        if nbytes % _SWAPPED:
            self.call("cuMemsetD32Async", int(address) + size - _WORD, 0, 2, stream.handle)
        return Memory(int(address), size, stream, device=self)

    def _allocate_again(self, size: int, stream: Stream) -> Any:
        """Try once more, after everything that nobody uses went back to the driver."""
        gc.collect()
        self.call("cuStreamSynchronize", stream.handle, what="waiting for the GPU")
        self.call("cuMemPoolTrimTo", self._pool, 0)
        try:
            return self.call("cuMemAllocAsync", size, stream.handle)
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        found = self.memory_info()
        raise DriverError(
            f"{self} has no room for {size:,} bytes: {found.free:,} of {found.total:,} are free, "
            f"and arrays of this process hold {found.used:,}",
            OUT_OF_MEMORY,
            mend="delete arrays that are done with, or work in parts; what is left is held by "
            "other libraries and processes",
        )

    def give_back(self, memory: Memory) -> None:
        """Free memory in the order of the stream that used it last."""
        self.drop("cuMemFreeAsync", memory.address, memory.stream.handle)

    def memory_info(self) -> MemoryInfo:
        """How the GPU's memory is used."""
        self.enter()
        free, total = self.call("cuMemGetInfo")
        kinds = driver.library().CUmemPool_attribute
        used, reserved = (
            int(self.call("cuMemPoolGetAttribute", self._pool, kind))
            for kind in (
                kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
            )
        )
        return MemoryInfo(int(total), int(free), used, reserved, self.pinned.kept)

    def address_of(self, buffer: Memory) -> int:
        """The device address."""
        return buffer.address

    def upload(self, buffer: Memory, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Copy from the host, whose memory is read before this returns."""
        self.enter()
        to, size = buffer.address + offset, data.nbytes
        with self.use(buffer) as stream:
            if size > STAGED:
                self.call("cuMemcpyHtoDAsync", to, data.ctypes.data, size, stream)
                return
            piece = self.pinned.take(size)
            ctypes.memmove(piece.address, data.ctypes.data, size)
            self.call("cuMemcpyHtoDAsync", to, piece.address, size, stream)
            event = self.events.take()
            self.call("cuEventRecord", event, stream)
            self.pinned.give_after(event, piece)

    def download(self, buffer: Memory, offset: int, nbytes: int) -> Fetch:
        """Copy to pinned memory, behind what the stream holds."""
        self.enter()
        return Fetch(self, buffer, offset, nbytes)

    def read(self, array: Array[Any]) -> np.ndarray[Any, Any]:
        """The elements, once all work on them is done; much of them without a stop between."""
        if array.nbytes < DIRECT or not array.is_contiguous:
            return super().read(array)
        refuse(self, "an array is read", READING)
        self.enter()
        host = np.empty(host_shape(array), host_dtype(array.dtype))
        with self.use(array.buffer) as stream:
            self.call("cuMemcpyDtoHAsync", host.ctypes.data, array.address, host.nbytes, stream)
            self.call("cuStreamSynchronize", stream, what="waiting for the GPU")
        return host

    def copy_bytes(
        self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> None:
        """Copy on the device."""
        self.enter()
        to, start = target.address + target_offset, source.address + source_offset
        with self.use(source, target) as stream:
            self.call("cuMemcpyDtoDAsync", to, start, nbytes, stream)

    # Other GPUs.

    def reaches(self, other: Device) -> bool:
        """Arrays of all GPUs can be copied here."""
        return isinstance(other, CudaDevice)

    def copy(self, source: Array[Any], target: Array[Any]) -> None:
        """Copy elements; also between two GPUs, one of which is this."""
        if source.device is target.device or target.size == 0:
            super().copy(source, target)
            return
        refuse(self, "arrays of two devices are copied", "copy them before or after the launch")
        whole = source
        if not source.is_contiguous:
            whole = source.device.empty(source.shape, source.dtype)
            source.device.copy(source, whole)
        landing = target
        if not target.is_contiguous:
            landing = target.device.empty(target.shape, target.dtype)
        self._copy_from_peer(whole, landing)
        if landing is not target:
            target.device.copy(landing, target)

    def _copy_from_peer(self, source: Array[Any], target: Array[Any]) -> None:
        """Bytes of one GPU's memory to another's, in the order of both."""
        before, after = source.device, target.device
        assert isinstance(before, CudaDevice)
        assert isinstance(after, CudaDevice)
        before.enter()
        event = before.events.take()
        before.call("cuEventRecord", event, source.buffer.stream.handle)
        after.enter()
        with after.use(target.buffer) as stream:
            after.call("cuStreamWaitEvent", stream, event, 0)
            after.call(
                "cuMemcpyPeerAsync",
                target.address,
                after.context.handle,
                source.address,
                before.context.handle,
                source.nbytes,
                stream,
                what=f"copying from {before} to {after}",
            )
            done = after.events.take()
            after.call("cuEventRecord", done, stream)
        before.events.give(event)
        before.enter()
        for one in {source.buffer.stream, source.buffer.home or source.buffer.stream}:
            before.call("cuStreamWaitEvent", one.handle, done, 0)
        after.events.give(done)

    def adopt_memory(
        self,
        address: int,
        nbytes: int,
        dtype: Any,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        stream: Stream | None,
        owner: object,
        *,
        read_only: bool = False,
    ) -> Array[Any]:
        """An array in memory of another library, which works on a stream; its own if None."""
        home = stream or self.own
        memory = Memory(address, nbytes, home, home=stream, owner=owner, read_only=read_only)
        if strides is None:
            return contiguous(self, memory, dtype, shape)
        return Array(self, memory, dtype, shape, strides)

    # Order.

    def synchronize(self) -> None:
        """Wait for all that was enqueued, and raise what kernels reported."""
        refuse(self, "the device is waited for", WAITING)
        self.enter()
        streams = {self.current(), self.own, *self.others}
        for stream in streams:
            self.call("cuStreamSynchronize", stream.handle, what="waiting for the GPU")
        self.others.difference_update(streams)
        self.recent.clear()
        self.observe()

    def poll(self) -> None:
        """The driver works by itself."""

    def timer(self) -> Timer:
        """A pair of events."""
        return EventTimer(self)

    def drop(self, destroy: str, *args: Any) -> None:
        """Destroy what nobody uses any more by a function of the driver, unless all is lost anyhow.

        It runs wherever the last reference goes, so the thread's own context is put back; and not
        while a graph is captured, which it may break.
        """
        if self.dead is not None or os.getpid() != self._process or sys.is_finalizing():
            return
        if self._recorders:
            self._dropped.append((destroy, *args))
            return
        library = self._library
        library.cuCtxPushCurrent(self.context.handle)
        getattr(library, destroy)(*args)
        library.cuCtxPopCurrent()

    # Graphs.

    def graph_recorder(self) -> Recorder:
        """What the driver captures on a stream."""
        from khaljit.backends.cuda.recorder import CudaRecorder

        return CudaRecorder(self)

    def recording(self, recorder: CudaRecorder) -> None:
        """What goes from here on goes when no capture is left."""
        with self._lock:
            self._recorders.append(recorder)

    def recorded(self, recorder: CudaRecorder) -> None:
        """A capture is over."""
        with self._lock:
            self._recorders.remove(recorder)
        while not self._recorders and self._dropped:
            self.drop(*self._dropped.pop())

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Work goes to the device's own stream; captures of this thread are suspended.

        Relaxed capture modes are not enough: what the driver loads may break a capture there, too.
        """
        thread = threading.get_ident()
        mine = [one for one in self._recorders if one.thread == thread]
        token = CHOSEN.set(None)
        try:
            for one in mine:
                one.suspend()
            yield
        finally:
            try:
                for one in mine:
                    one.resume()
            finally:
                CHOSEN.reset(token)

    # Kernels.

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Load a cubin, or have the driver compile PTX."""
        self.enter()
        return CudaKernel(self, artifact, trace)

    def load_code(self, code: bytes | str, interface: CodeInterface) -> Loaded:
        """Load PTX or a cubin that was written by hand."""
        self.enter()
        return ForeignLoaded(self, code, interface)

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


def _per_multiprocessor() -> int:
    """Blocks per multiprocessor of a launch whose grid the GPU reads."""
    chosen = os.environ.get("KHALJIT_CUDA_PERSISTENT_BLOCKS", "")
    if not chosen:
        return BLOCKS_PER_MULTIPROCESSOR
    if not chosen.isdecimal() or not 0 < int(chosen) <= 1024:
        raise DeviceError(
            f"KHALJIT_CUDA_PERSISTENT_BLOCKS is {chosen!r}",
            mend="a number of blocks per multiprocessor, 1 to 1024",
        )
    return int(chosen)


@final
class Fetch:
    """Bytes on their way through pinned memory; they stay there as long as this does."""

    def __init__(self, device: CudaDevice, buffer: Memory, offset: int, nbytes: int) -> None:
        self._device: Final = device
        self._keep: Final = buffer
        self._nbytes: Final = nbytes
        self._piece: Final = device.pinned.take(max(nbytes, 1))
        event, to, start = device.events.take(), self._piece.address, buffer.address + offset
        with device.use(buffer) as stream:
            if nbytes:
                device.call("cuMemcpyDtoHAsync", to, start, nbytes, stream)
            device.call("cuEventRecord", event, stream)
        self._event: Final = event

    def __del__(self) -> None:
        event = getattr(self, "_event", None)
        if event is not None:
            self._device.pinned.give_after(event, self._piece)

    def ready(self) -> bool:
        """Whether `take` would not wait."""
        self._device.enter()
        return self._device.is_past(self._event)

    def take(self) -> np.ndarray[Any, Any]:
        """A view of the bytes."""
        self._device.enter()
        self._device.call("cuEventSynchronize", self._event, what="waiting for the GPU")
        memory = (ctypes.c_ubyte * self._nbytes).from_address(self._piece.address)
        return np.ctypeslib.as_array(memory)


@final
class EventTimer(Timer):
    """Readings of the GPU's clock by events, on the stream to which the work goes."""

    def __init__(self, device: CudaDevice) -> None:
        self._device: Final = device
        device.enter()
        self._events: Final = [device.call("cuEventCreate", 0) for _ in range(2)]
        self._stream = device.current()

    def __del__(self) -> None:
        for event in getattr(self, "_events", ()):
            self._device.drop("cuEventDestroy", event)

    def start(self) -> None:
        """Enqueue the first reading."""
        self._device.timing = self
        self._device.call("cuEventRecord", self._events[0], self._stream.handle)

    def on(self, stream: Stream) -> None:
        """What is timed goes to another stream."""
        if stream is not self._stream:
            self._stream = stream
            self._device.call("cuEventRecord", self._events[0], stream.handle)

    def stop(self) -> None:
        """Enqueue the second reading."""
        self._device.timing = None
        self._device.call("cuEventRecord", self._events[1], self._stream.handle)

    def ready(self) -> bool:
        """Whether both have been taken."""
        self._device.enter()
        return self._device.is_past(self._events[1])

    def interval(self) -> tuple[float, float]:
        """Both readings in seconds since the device was opened."""
        self._device.enter()
        self._device.call("cuEventSynchronize", self._events[1], what="waiting for the GPU")
        clock = self._device.clock
        start, stop = (call("cuEventElapsedTime", clock, event) for event in self._events)
        return start / 1e3, stop / 1e3
