"""What every device offers: arrays, and running compiled kernels.

A backend is two things. A `Target` turns a recorded trace into an artifact, without a device: the
command line compiles for machines that are not there. A `Device` wraps one driver: it holds
memory, loads artifacts and launches them, and knows no operation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, final

import numpy as np

from khaljit.arrays import Array, contiguous, host_dtype
from khaljit.cache.artifact import Artifact
from khaljit.graphs.capture import apart, capture_of, refuse
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.profiling import Profile
from khaljit.stored import is_bfloat16, numbers_of, stored
from khaljit.tracer.dtypes import bf16, by_numpy, f32, i32, meant
from khaljit.tracer.elements import ElementType, element_of, is_kind, name_of, tail
from khaljit.tracer.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CapabilityError,
    GraphError,
    InternalError,
)
from khaljit.tracer.instances import is_instance
from khaljit.tracer.ir import Trace
from khaljit.tracer.recorder import Guard
from khaljit.tracer.records import dataclass
from khaljit.tracer.structs import as_elements, numpy_struct

if TYPE_CHECKING:
    from khaljit.backends.replay import Recorder, Replay
    from khaljit.backends.reporting import Reports
    from khaljit.encoders import Encoder
    from khaljit.foreign import CodeInterface, ForeignKernel
    from khaljit.graphs.graph import Graph
    from khaljit.graphs.nodes import Node
    from khaljit.loading import Modules
    from khaljit.origin import Origin
    from khaljit.tracer.record import Argument

__all__ = [
    "READING",
    "WAITING",
    "WRITING",
    "Device",
    "Loaded",
    "NativeTarget",
    "Pending",
    "Target",
    "Timer",
    "idle",
]

# What to do instead of what a capture refuses.
ALLOCATING: Final = "make it before the capture, and let the graph use it"
READING: Final = "read it after graph.launch()"
WRITING: Final = "write it before graph.launch(), or copy from an array of the device"
WAITING: Final = "wait after graph.launch()"


def idle() -> None:
    """Use no time of an assembler's."""


class Target(ABC):
    """What code is made for: an instruction set, its capabilities, and the tools to assemble it."""

    name: str
    reports: ClassVar[bool] = True  # its code keeps what a kernel says for the host to read
    kept: bool = True  # its code, in the cache

    @property
    def text(self) -> str:
        """What `khaljit.devices.target` makes this target of, on any machine."""
        return self.name

    @property
    def remark(self) -> str:
        """What users should know who compile for it; empty if there is nothing."""
        return ""

    @abstractmethod
    def key_parts(self) -> Mapping[str, object]:
        """Everything about the target that the code depends on, as `cache.keys.described` takes
        it."""

    @abstractmethod
    def compile(self, trace: Trace, emitted: Callable[[], None] = idle) -> Artifact:
        """Optimise, legalise, emit and assemble a canonical trace.

        Args:
            emitted: called when only the assembler is left to run, which leaves the interpreter
                alone. Targets that have none do not call it.
        """

    @abstractmethod
    def show(self, trace: Trace, stage: str) -> str:
        """The code at a stage, as text."""

    def substitutes(self) -> Sequence[Target]:
        """Targets whose code runs here too, best first, where this one's cannot be made: what an
        imported cache holds of them is better than nothing."""
        return ()

    def load_tools(self) -> None:  # noqa: B027  # most load none
        """Load what assembles here, which else the first compilation does."""

    def tool_version(self, name: str) -> str | None:
        """The version of an assembling tool that is installed here; None where none is."""
        del name
        return None


@final
@dataclass(frozen=True, slots=True)
class NativeTarget:
    """How native code calls a loaded kernel.

    Attributes:
        kind: ``"cpu"``, ``"cuda"``, or ``"called"`` where `Loaded.repeat` is.
        values: what `khaljit/native/target.c` takes of that kind.
        guards: what has to be as it is.
    """

    kind: str
    values: tuple[object, ...]
    guards: tuple[Guard, ...] = ()


class Loaded(ABC):
    """An artifact that a device has loaded."""

    origin: Origin | None = None  # for what is compiled later: other programs of the same trace

    @abstractmethod
    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Enqueue the kernel; arrays and numbers by position in the trace. A grid of counts has no
        zero in it; one that the device reads may have."""

    def native(self) -> NativeTarget | None:
        """How native code calls the kernel; None where only `launch` does."""
        return None

    def repeat(self, key: bytes, arrays: Sequence[Array[Any]], numbers: Sequence[Any]) -> None:
        """Enqueue the kernel, for native code that has checked the arguments: the target of kind
        ``"called"``.

        Args:
            key: slots of the parameter block: of the arrays, and of the grid in workgroups.
        """
        raise InternalError(f"{self} is not launched so")


class Timer(ABC):
    """Times what is enqueued between its start and its stop, on the device's own clock."""

    @abstractmethod
    def start(self) -> None:
        """Enqueue the first reading."""

    @abstractmethod
    def stop(self) -> None:
        """Enqueue the second reading."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether both have been taken, without waiting."""

    @abstractmethod
    def interval(self) -> tuple[float, float]:
        """Both readings in seconds, once they are taken."""


class Pending(Protocol):
    """Reads under way."""

    def ready(self) -> bool:
        """Whether `take` would not wait."""

    def take(self) -> list[np.ndarray[Any, Any]]:
        """What was read, waiting if need be."""


class Device(ABC):
    """A device that kernels run on."""

    kind: ClassVar[str]
    steps: ClassVar[bool] = False  # runs the user's own function; see `load_function`
    has_own_memory: ClassVar[bool] = True  # else it works on NumPy arrays where they are
    name: str
    target: Target
    lost: bool = False  # it failed for good; `kj.device` opens it anew
    reason: str = ""  # why `auto` took it
    modules: Modules | None = None  # what is loaded; see `loading`
    reports: Reports | None = None  # of its kernels, once one is loaded that prints or asserts

    @staticmethod
    def from_wgpu(handle: Any) -> Device:
        """The device that works on a ``wgpu.GPUDevice`` of another library's, such as a renderer's.

        ``device.adopt(buffer, kj.f32)`` makes an array of one of its buffers, and ``array.native``
        gives the ``wgpu.GPUBuffer`` of an array. Commands of khaljit's are in the queue after
        ``array.native``, ``device.poll()`` or anything that waits.
        """
        from khaljit.backends.webgpu.device import adopt_device

        return adopt_device(handle)

    def __repr__(self) -> str:
        return f"kj.device({self.name!r})"

    def __str__(self) -> str:
        return self.name

    # What a backend implements.

    @abstractmethod
    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Make an artifact ready to launch."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """A new buffer of at least so many bytes."""

    @abstractmethod
    def address_of(self, buffer: Any) -> int:
        """Where a buffer begins; a number that tells its alignment."""

    @abstractmethod
    def read(self, array: Array[Any]) -> np.ndarray[Any, Any]:
        """The elements of an array, once all work on them is done."""

    @abstractmethod
    def write(self, array: Array[Any], values: Any) -> None:
        """Replace the elements of an array."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything that was enqueued is done; raises what it reported."""

    def observe(self) -> None:
        """Show what kernels printed, and raise the first failure that one reported, if the device
        has done all work: nothing is waited for but the report itself."""
        if self.reports is not None:
            self.reports.observe()

    @abstractmethod
    def begin_read(self, arrays: Sequence[Array[Any]]) -> Pending:
        """Enqueue reading some arrays as they are at this point."""

    @abstractmethod
    def copy(self, source: Array[Any], target: Array[Any]) -> None:
        """Enqueue copying the elements of an array to one of the same shape and type."""

    @abstractmethod
    def fill(self, array: Array[Any], value: Any) -> None:
        """Enqueue setting every element to one value."""

    @abstractmethod
    def timer(self) -> Timer:
        """A new timer."""

    def stage(self, host: np.ndarray[Any, Any], operand: Operand, keep_strides: bool) -> Array[Any]:
        """An array on the device with the elements of a NumPy argument; contiguous, unless its
        strides are to be kept."""
        raise InternalError(f"{self} works on NumPy arrays as they are")

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """What the device is, for people."""

    # What a backend may have.

    def load_function(
        self,
        function: FunctionType,
        arguments: Sequence[tuple[str, Argument]],
        bound: Sequence[Any],
        trace: Trace,
    ) -> Loaded:
        """Make a function ready to launch, on devices that run it as it is."""
        raise InternalError(f"{self} runs no Python")

    def load_code(self, code: bytes | str, interface: CodeInterface) -> Loaded:
        """Make hand-written code ready to launch."""
        raise CapabilityError(
            f"{self} runs no hand-written code, and kernel {interface.name} is",
            mend="WebGPU devices take WGSL and SPIR-V, CUDA devices PTX and cubins",
        )

    def reaches(self, other: Device) -> bool:
        """Whether `copy` takes arrays of another device beside its own."""
        return other is self

    def allocate_for(self, nbytes: int, usage: int | str) -> Any:
        """A new buffer that others use too, in ways that the device has to be told of."""
        del usage  # memory that needs no permission
        return self.allocate(nbytes)

    def adopt(
        self,
        buffer: Any,
        dtype: Any,
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> Array[Any]:
        """An array in a foreign buffer."""
        raise CapabilityError(
            f"{self} adopts no buffer such as {type(buffer).__name__}",
            mend="copy it: device.array(values)",
        )

    def native_of(self, array: Array[Any]) -> Any:
        """The device's own handle of an array's memory."""
        return array.buffer

    def graph_recorder(self) -> Recorder:
        """What takes the nodes of a graph while it is captured."""
        from khaljit.backends.replay import ListRecorder

        return ListRecorder(self)

    def replay_of(self, nodes: Sequence[Node]) -> Replay:
        """The nodes of a graph, ready to be run again and again."""
        from khaljit.backends.replay import ListReplay

        return ListReplay(nodes)

    def uncaptured(self) -> AbstractContextManager[None]:
        """For a block, what the driver captures is suspended in this thread."""
        return nullcontext()

    # What follows from that.

    def capture(self) -> Graph:
        """A graph of what a ``with`` block launches, copies and fills: it is recorded, not run.

        ::

            with device.capture() as graph:
                dt = graph.param("dt", kj.f32, default=0.1)
                step[x.size](x, y, dt)
                step[x.size](y, x, dt)
            graph.launch(repeat=500, dt=0.05)

        What a graph cannot hold raises GraphError at once: making arrays, reading or writing them
        from the host, waiting. A kernel that is first met inside is compiled there.
        """
        from khaljit.graphs.graph import Graph

        return Graph(self)

    def begin_capture(self) -> Graph:
        """The same without a block: capture until `end_capture`."""
        graph = self.capture()
        graph.begin()
        return graph

    def end_capture(self) -> Graph:
        """End the capture that `begin_capture` began in this context; the graph."""
        from khaljit.graphs.graph import Graph

        graph = capture_of(self)
        if not isinstance(graph, Graph):
            raise GraphError(
                f"no graph is captured on {self}", mend="call device.begin_capture() first"
            )
        graph.end()
        return graph

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Array[Any]:
        """A new array for what the device does by itself, while a graph is captured too."""
        with apart(self):
            array = self.empty(shape, dtype)
        capture = capture_of(self)
        if capture is not None:
            capture.made(array)
        return array

    @abstractmethod
    def poll(self) -> None:
        """Let work that is done be noticed, without waiting."""

    def encoder(self) -> Encoder:
        """A new list of commands for this device."""
        from khaljit.encoders import Encoder  # for those who record

        return Encoder(self)

    def submit(self, *encoders: Encoder) -> None:
        """Enqueue the commands of encoders, in order."""
        for encoder in encoders:
            if encoder.device is not self:
                raise ArgumentValueError(
                    f"an encoder of {encoder.device} is submitted to {self}",
                    mend="submit it to its own device",
                )
            encoder.run()

    def load(
        self,
        code: bytes | str,
        entry: str = "main",
        params: str = "",
        *,
        workgroup: int | tuple[int, ...],
        uniform: int | None = None,
        name: str | None = None,
    ) -> ForeignKernel:
        """A kernel of hand-written code, launched as any other: ``kernel[grid](*args)``.

        Args:
            code: WGSL as text or SPIR-V as bytes on WebGPU, PTX as text or a cubin as bytes on
                CUDA.
            entry: the name of the entry point.
            params: what it takes, in the grammar of signatures: ``"const f32[:], f32[:], u32"``.
                ``khaljit/foreign.py`` says how each reaches the code.
            workgroup: invocations of a workgroup, which the code has as well.
            uniform: WebGPU: the binding of a uniform buffer with the numbers; None for immediates.
            name: what the kernel is called in messages; ``entry`` if None.
        """
        from khaljit.foreign import CodeInterface, ForeignKernel

        interface = CodeInterface.parse(params, entry, workgroup, uniform, name or entry)
        return ForeignKernel(self, interface, self.load_code(code, interface))

    def profile(self) -> Profile:
        """Time every dispatch inside a ``with`` block."""
        return Profile(self)

    def empty(
        self, shape: int | tuple[int, ...], dtype: Any = f32, usage: int | str = 0
    ) -> Array[Any]:
        """A new array whose elements are undefined.

        Args:
            dtype: a dtype, a vector or matrix type, or a struct.
            usage: what others do with the buffer, where a device has to know: on WebGPU wgpu's
                flags or their names, such as ``"VERTEX|INDEX"``.
        """
        refuse(self, "an array is made", ALLOCATING)
        extents = _shape(shape)
        if not is_kind(dtype):
            raise _no_type(dtype)
        nbytes = element_of(dtype).size * math.prod(extents)
        buffer = self.allocate_for(nbytes, usage) if usage else self.allocate(nbytes)
        return contiguous(self, buffer, dtype, extents)

    def zeros(
        self, shape: int | tuple[int, ...], dtype: Any = f32, usage: int | str = 0
    ) -> Array[Any]:
        """A new array of zeros."""
        return self.full(shape, 0, dtype, usage)

    def full(
        self, shape: int | tuple[int, ...], value: Any, dtype: Any = f32, usage: int | str = 0
    ) -> Array[Any]:
        """A new array with one value in every element."""
        array = self.empty(shape, dtype, usage)
        array.fill(value)
        return array

    def array(self, values: Any, dtype: Any = None, usage: int | str = 0) -> Array[Any]:
        """A new array with the elements of an array-like; of a vector type its last axis.

        Python floats become f32 and Python ints i32, as in kernels; NumPy arrays keep their type.
        A structured array is one of structs. An array of a device is copied, and keeps its type.
        For bf16, which NumPy lacks, numbers are rounded, and uint16 has its bits.
        """
        refuse(self, "an array is made", ALLOCATING)
        if dtype is not None and not is_kind(dtype):
            raise _no_type(dtype)
        if isinstance(values, Array):
            if dtype in (None, values.dtype):
                return self._copied(values, usage)
            values = numbers_of(values)
        if isinstance(values, list | tuple) and any(map(is_instance, values)):
            values = [np.asarray(one) for one in values]
        host = as_elements(np.asarray(values), dtype)
        kind = dtype or _dtype_of(values, host)
        axes = tail(kind)
        outer = host.ndim - len(axes)
        if outer < 0 or host.shape[outer:] != axes:
            raise ArgumentValueError(
                f"an array of shape {host.shape} holds no {name_of(kind)}",
                mend=f"its last axes are those of an element: {axes}",
            )
        array = self.empty(host.shape[:outer], kind, usage)
        array.write(np.asarray(stored(host, kind)).astype(host_dtype(kind), copy=False))
        return array

    def _copied(self, source: Array[Any], usage: int | str) -> Array[Any]:
        array = self.empty(source.shape, source.dtype, usage)
        if self.reaches(source.device):
            self.copy(source, array)
        else:
            array.write(source.numpy())
        return array


def _no_type(dtype: Any) -> ArgumentTypeError:
    found = meant(dtype)
    mend = "use kj.f32, a vector type such as kj.vec3, or a struct"
    if isinstance(dtype, int):
        mend = "a shape of several axes is a tuple: zeros((3, 4))"
    return ArgumentTypeError(
        f"{dtype!r} is no type of elements", mend=f"write {found}" if found else mend
    )


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    extents = shape if isinstance(shape, tuple) else (shape,)
    for extent in extents:
        if not isinstance(extent, int | np.integer) or isinstance(extent, bool) or extent < 0:
            raise ArgumentValueError(
                f"{shape!r} is no shape", mend="a shape is an int or a tuple of ints, 0 or more"
            )
    return tuple(int(extent) for extent in extents)


_OF_LITERALS: Final = {np.dtype(np.float64): f32, np.dtype(np.int64): i32}
_PYTHON: Final = (bool, int, float, list, tuple, range)  # what else there is has a type of its own


def _dtype_of(values: Any, host: np.ndarray[Any, Any]) -> ElementType:
    literal = isinstance(values, _PYTHON) and not isinstance(values, np.generic)
    if literal and host.dtype in _OF_LITERALS:
        return _OF_LITERALS[host.dtype]
    if is_bfloat16(host.dtype):
        return bf16
    found = by_numpy(host.dtype) or numpy_struct(host.dtype)
    if found is None:
        raise ArgumentTypeError(
            f"a NumPy array of {host.dtype} has no khaljit dtype",
            mend="convert it: values.astype(np.float32); lay fields out as C does: align=True",
        )
    return found
