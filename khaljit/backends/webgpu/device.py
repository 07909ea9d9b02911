"""GPUs through WebGPU: adapters, buffers, pipelines, and commands batched until observed.

Commands go into one command encoder, in order; it is submitted when something is read, written
from the host, timed or waited for, or when it holds many commands.

Shader modules go through wgpu's own validation. khaljit's bounds checks stand in the code, so
what a validated module adds is only what the API demands.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Final, final

import numpy as np

from khaljit import compiler
from khaljit.arguments import Operand
from khaljit.arrays import Array
from khaljit.backends.base import Loaded, Timer, failed_assertion
from khaljit.backends.memory import MemoryDevice
from khaljit.backends.webgpu.target import WebGpu, interface_of
from khaljit.cache.artifact import Artifact
from khaljit.codegen.caps import webgpu
from khaljit.codegen.layout import REPORT_SLOTS
from khaljit.codegen.webgpu.interface import Interface, Source
from khaljit.grids import Grid, Indirect
from khaljit.tracer.errors import ArgumentValueError, DeviceError
from khaljit.tracer.ir import Trace

__all__ = ["WebGpuDevice"]

# Features that khaljit uses where an adapter has them. Never all that are listed: some that are
# cannot be had.
FEATURES: Final = (
    *("immediates", "timestamp-query", "shader-f16", "shader-int64", "shader-f64"),
    *("shader-float32-atomic", "shader-int64-atomic-all-ops", "subgroup", "subgroup-barrier"),
)
IMMEDIATES: Final = 128  # bytes of parameters that travel with a dispatch
MAX_BATCH: Final = 512  # commands in one submission
MAX_GROUPS: Final = 65535  # workgroups on an axis
BIND_GROUPS: Final = 256  # kept per kernel


@final
class Memory:
    """A buffer of the device, with a number that stands for an address."""

    __slots__ = ("__weakref__", "address", "handle", "nbytes")
    _addresses: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, handle: Any, nbytes: int) -> None:
        self.handle: Final = handle
        self.nbytes: Final = nbytes
        self.address: Final = next(self._addresses) << 40  # no buffer is a TiB large


def _wgpu() -> Any:
    """The binding; DeviceError where it is missing."""
    if find_spec("wgpu") is None:
        raise DeviceError("the package wgpu is not installed", mend="pip install wgpu")
    import wgpu

    return wgpu


@final
class WebGpuDevice(MemoryDevice):
    """A GPU through Vulkan, Metal or Direct3D 12.

    Args:
        number: which adapter, in the order that wgpu lists them; the fastest if None.
        hardware: refuse adapters that compute on the CPU.
        adopted: a foreign ``wgpu.GPUDevice`` to work on.
    """

    kind: ClassVar[str] = "webgpu"

    def __init__(
        self, number: int | None = None, *, hardware: bool = False, adopted: Any = None
    ) -> None:
        self._wgpu: Final = _wgpu()
        if adopted is None:
            adapter = self._adapter(number)
            if hardware and adapter.info["adapter_type"] == "CPU":
                raise DeviceError(f"the only adapter, {adapter.info['device']}, is a CPU")
            features = [name for name in FEATURES if name in adapter.features]
            limits = dict(adapter.limits)
            if "immediates" in features:
                limits["max-immediate-size"] = min(IMMEDIATES, limits["max-immediate-size"])
            adopted = adapter.request_device_sync(
                required_features=features, required_limits=_requested(limits)
            )
        self.name = "webgpu" if number is None else f"webgpu:{number}"
        self.handle: Final = adopted
        self.info: Final = dict(adopted.adapter.info)
        self.limits: Final = dict(adopted.limits)
        self.features: Final = frozenset(adopted.features)
        limit = self.limits.get("max-immediate-size", 0) if "immediates" in self.features else 0
        self.target = WebGpu(
            webgpu(
                self.features,
                max_workgroup=self.limits["max-compute-invocations-per-workgroup"],
                max_workgroup_size=(
                    self.limits["max-compute-workgroup-size-x"],
                    self.limits["max-compute-workgroup-size-y"],
                    self.limits["max-compute-workgroup-size-z"],
                ),
                shared_bytes=self.limits["max-compute-workgroup-storage-size"],
                immediates=limit,
            )
        )
        self._lock: Final = threading.RLock()
        self._encoder: Any = None
        self._pass: Any = None
        self._commands = 0
        self._reporting: list[_Loaded] = []
        self._stamps: tuple[Any, int] | None = None

    def _adapter(self, number: int | None) -> Any:
        mend = (
            "install a Vulkan driver: mesa-vulkan-drivers on Debian and Ubuntu has one that needs "
            "no GPU"
        )
        # Without this variable, which is about windows, drivers complain on stderr.
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        try:
            if number is None:
                return self._wgpu.gpu.request_adapter_sync(power_preference="high-performance")
            adapters = self._wgpu.gpu.enumerate_adapters_sync()
        except RuntimeError as error:
            raise DeviceError(f"there is no WebGPU adapter: {error}", mend=mend) from None
        if number >= len(adapters):
            raise DeviceError(f"there is no adapter {number}: {len(adapters)} are here", mend=mend)
        return adapters[number]

    def describe(self) -> Mapping[str, str]:
        """Adapter, features and limits."""
        wanted = [name for name in FEATURES if name not in self.features]
        return {
            "adapter": f"{self.info['device']} ({self.info['adapter_type']})",
            "through": self.info["backend_type"],
            "driver": self.info.get("description", ""),
            "missing": ", ".join(wanted) or "nothing",
            "largest array": f"{self.limits['max-storage-buffer-binding-size']} bytes",
        }

    # Commands.

    def encoder_handle(self) -> Any:
        """The open command encoder, outside any pass."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        if self._encoder is None:
            self._encoder = self.handle.create_command_encoder()
        return self._encoder

    def pass_handle(self) -> Any:
        """The open compute pass."""
        if self._pass is None:
            stamps = None
            if self._stamps is not None:
                queries, first = self._stamps
                stamps = {
                    "query_set": queries,
                    "beginning_of_pass_write_index": first,
                    "end_of_pass_write_index": first + 1,
                }
            self._pass = self.encoder_handle().begin_compute_pass(timestamp_writes=stamps)
        return self._pass

    def count(self) -> None:
        """A command was added; many are submitted at once."""
        self._commands += 1
        if self._commands >= MAX_BATCH:
            self.flush()

    def flush(self) -> None:
        """Submit what was recorded."""
        with self._lock:
            if self._encoder is None:
                return
            encoder = self.encoder_handle()
            self._encoder, self._commands = None, 0
            self._guarded(
                "submitting commands", lambda: self.handle.queue.submit([encoder.finish()])
            )

    def _guarded(self, what: str, action: Any) -> Any:
        """Errors of wgpu become errors of khaljit."""
        try:
            return action()
        except self._wgpu.GPUError as error:
            raise DeviceError(f"{self}: {what}: {error}") from None

    # Memory.

    def allocate(self, nbytes: int) -> Memory:
        """A buffer for kernels, copies and indirect grids."""
        size = max(16, -(-nbytes // 4) * 4)
        limit = self.limits["max-storage-buffer-binding-size"]
        if size > min(limit, self.limits["max-buffer-size"]):
            raise DeviceError(
                f"{self}: an array of {nbytes} bytes is too large", mend=f"at most {limit} bytes"
            )
        usage = self._wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST | usage.INDIRECT
        handle = self._guarded(
            f"allocating {size} bytes", lambda: self.handle.create_buffer(size=size, usage=flags)
        )
        return Memory(handle, size)

    def address_of(self, buffer: Memory) -> int:
        """A number of its own for every buffer, far from all others."""
        return buffer.address

    def upload(self, buffer: Memory, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Write in the order of the queue. WebGPU writes whole words, so the bytes beside a part
        of a word are read first."""
        start, stop = offset & ~3, -(-(offset + data.nbytes) // 4) * 4
        if (start, stop) != (offset, offset + data.nbytes):
            whole = self.download(buffer, start, stop - start).take().copy()
            whole[offset - start : offset - start + data.nbytes] = data
            data = whole
        with self._lock:
            self.flush()
            self._guarded(
                "writing", lambda: self.handle.queue.write_buffer(buffer.handle, start, data)
            )

    def download(self, buffer: Memory, offset: int, nbytes: int) -> _Download:
        """Copy to a buffer that the host can map, behind what was recorded."""
        return _Download(self, buffer, offset, nbytes)

    def copy_bytes(
        self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> None:
        """Copy between two buffers, whole words."""
        with self._lock:
            self.encoder_handle().copy_buffer_to_buffer(
                source.handle, source_offset, target.handle, target_offset, nbytes
            )
            self.count()

    def can_copy_bytes(self, source: Array[Any], target: Array[Any]) -> bool:
        """Only whole words, and only between different buffers."""
        words = not (source.offset | target.offset | source.nbytes) & 3
        return words and source.buffer is not target.buffer

    # Order.

    def synchronize(self) -> None:
        """Wait for everything that was recorded, and raise what kernels reported."""
        self.flush()
        self._guarded("waiting", self.handle._poll_wait)
        with self._lock:
            reporting, self._reporting = self._reporting, []
        for loaded in reporting:
            loaded.raise_report()

    def poll(self) -> None:
        """Submit, and let wgpu notice what is done."""
        self.flush()
        self.handle._poll()

    def expect_report(self, loaded: _Loaded) -> None:
        """Look at a kernel's report at the next synchronisation."""
        with self._lock:
            if loaded not in self._reporting:
                self._reporting.append(loaded)

    def timer(self) -> Timer:
        """Timestamps at both ends of a pass."""
        if "timestamp-query" not in self.features:
            raise DeviceError(
                f"{self} cannot time dispatches", mend="its adapter lacks timestamp-query"
            )
        return _PassTimer(self)

    def stamp(self, stamps: tuple[Any, int] | None) -> None:
        """Write timestamps at both ends of the next pass."""
        with self._lock:
            self.encoder_handle()  # ends the pass before
            self._stamps = stamps

    # Kernels.

    def load(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Make a pipeline."""
        return _Loaded(self, artifact, trace)


def _requested(limits: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of an adapter, as a device is asked for them."""
    return {name: value for name, value in limits.items() if isinstance(value, int)}


@final
class _Download:
    """Bytes on their way to the host."""

    def __init__(self, device: WebGpuDevice, buffer: Memory, offset: int, nbytes: int) -> None:
        self._device: Final = device
        self._skip: Final = offset & 3
        self._nbytes: Final = nbytes
        size = max(4, -(-(self._skip + nbytes) // 4) * 4)
        usage = device._wgpu.BufferUsage
        self._staging: Final = device.handle.create_buffer(
            size=size, usage=usage.COPY_DST | usage.MAP_READ
        )
        with device._lock:
            if nbytes:
                device.encoder_handle().copy_buffer_to_buffer(
                    buffer.handle, offset & ~3, self._staging, 0, size
                )
            device.flush()
        self._mapping: Final = self._staging.map_async("READ")

    def ready(self) -> bool:
        self._device.poll()
        return bool(self._mapping._state != "pending")  # no public name tells without waiting

    def take(self) -> np.ndarray[Any, Any]:
        if self._staging.map_state != "mapped":
            self._device._guarded("reading", self._mapping.sync_wait)
        raw = np.frombuffer(self._staging.read_mapped(copy=True), np.uint8)
        self._staging.unmap()
        return raw[self._skip : self._skip + self._nbytes]


@final
class _PassTimer(Timer):
    """Two timestamps."""

    def __init__(self, device: WebGpuDevice) -> None:
        self._device: Final = device
        usage = device._wgpu.BufferUsage
        self._queries: Final = device.handle.create_query_set(type="timestamp", count=2)
        self._resolved: Final = Memory(
            device.handle.create_buffer(size=256, usage=usage.QUERY_RESOLVE | usage.COPY_SRC), 256
        )
        self._download: _Download | None = None

    def start(self) -> None:
        self._device.stamp((self._queries, 0))

    def stop(self) -> None:
        device = self._device
        with device._lock:
            device.pass_handle()  # a pass without dispatches has timestamps too
            encoder = device.encoder_handle()
            device.stamp(None)
            encoder.resolve_query_set(self._queries, 0, 2, self._resolved.handle, 0)
            self._download = device.download(self._resolved, 0, 16)

    def ready(self) -> bool:
        return self._download is not None and self._download.ready()

    def interval(self) -> tuple[float, float]:
        assert self._download is not None
        start, stop = self._download.take().view(np.uint64).tolist()
        self._taken = start * 1e-9, stop * 1e-9
        self._download = _Taken(self._taken)  # type: ignore[assignment]  # the same from here on
        return self._taken


@final
class _Taken:
    """Timestamps that were read before."""

    def __init__(self, interval: tuple[float, float]) -> None:
        self._nanoseconds: Final = np.array([round(one * 1e9) for one in interval], np.uint64)

    def ready(self) -> bool:
        return True

    def take(self) -> np.ndarray[Any, Any]:
        return self._nanoseconds.view(np.uint8)


@final
class _Pipeline:
    """One variant of a kernel on a device."""

    def __init__(self, device: WebGpuDevice, artifact: Artifact, name: str) -> None:
        plan = artifact.plan
        self.interface: Final = interface_of(plan)
        self.block: Final[tuple[int, int, int]] = tuple(plan["workgroup"])
        self._device: Final = device
        handle = device.handle
        stage = device._wgpu.ShaderStage.COMPUTE
        entries = [
            {"binding": number, "visibility": stage, "buffer": {"type": kind}}
            for number, kind in _layout(self.interface)
        ]
        immediates = self.interface.size if self.interface.uniform is None else 0
        what = f"making a pipeline of kernel {name}"
        self._group_layout: Final = handle.create_bind_group_layout(entries=entries)
        extra = {"immediate_size": immediates} if immediates else {}
        layout = handle.create_pipeline_layout(bind_group_layouts=[self._group_layout], **extra)
        module = device._guarded(
            what, lambda: handle.create_shader_module(code=artifact.payload, label=name)
        )
        self._pipeline: Final = device._guarded(
            what,
            lambda: handle.create_compute_pipeline(
                layout=layout, compute={"module": module, "entry_point": plan["entry"]}, label=name
            ),
        )
        self._groups: Final[OrderedDict[tuple[int, ...], tuple[Any, Any]]] = OrderedDict()

    def bind_group(self, buffers: Mapping[int, Memory]) -> Any:
        """The bind group of some buffers, made once while they are used."""
        key = tuple(buffer.address for buffer in buffers.values())
        found = self._groups.get(key)
        if found is None:
            entries = [
                {
                    "binding": number,
                    "resource": {"buffer": buffer.handle, "offset": 0, "size": buffer.nbytes},
                }
                for number, buffer in buffers.items()
            ]
            group = self._device.handle.create_bind_group(
                layout=self._group_layout, entries=entries
            )
            found = self._groups[key] = (group, buffers)
            if len(self._groups) > BIND_GROUPS:
                self._groups.popitem(last=False)
        else:
            self._groups.move_to_end(key)
        return found[0]

    def dispatch(self, group: Any, block: bytes, counts: Grid | tuple[Any, int]) -> None:
        """Record a dispatch; ``counts`` are workgroups, or a buffer and an offset of them."""
        open_pass = self._device.pass_handle()
        open_pass.set_pipeline(self._pipeline)
        open_pass.set_bind_group(0, group)
        if block and self.interface.uniform is None:
            open_pass.set_immediates(0, block, 0, len(block))
        if len(counts) == 2:
            open_pass.dispatch_workgroups_indirect(*counts)
        else:
            open_pass.dispatch_workgroups(*counts)
        self._device.count()


def _layout(interface: Interface) -> list[tuple[int, str]]:
    """Binding numbers and kinds."""
    found = [
        (number, "storage" if one.writable else "read-only-storage")
        for number, one in enumerate(interface.bindings)
        if one.used
    ]
    if interface.report is not None:
        found.append((interface.report, "storage"))
    if interface.uniform is not None:
        found.append((interface.uniform, "uniform"))
    return found


@final
class _Loaded(Loaded):
    """A kernel: pipelines by which arrays share a buffer, and by the size of the grid."""

    def __init__(self, device: WebGpuDevice, artifact: Artifact, trace: Trace) -> None:
        self._device: Final = device
        self._trace: Final = trace
        plain = tuple(range(len(trace.arrays)))
        self._pipelines: Final = {(plain, False): _Pipeline(device, artifact, trace.name)}
        self._report: Memory | None = None
        if artifact.plan["report"] is not None:
            self._report = device.allocate(8 * REPORT_SLOTS)
            self._clear_report()

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Record a dispatch."""
        bindings, buffers = _shared_buffers(operands)
        counts: Grid | tuple[Any, int]
        if isinstance(groups, Indirect) and self._trace.workgroup is None:
            groups = groups.read()  # the code must know the grid's invocations
            if 0 in groups:
                return
        with self._device._lock:
            if isinstance(groups, Indirect):
                pipeline = self._pipeline(bindings, False)
                array = groups.array
                counts = (array.buffer.handle, array.offset + 4 * groups.offset)
                grid = (0, 0, 0)
            else:
                pipeline, counts, grid = self._sized(bindings, groups)
            interface = pipeline.interface
            block = interface.pack(lambda source: _number(source, operands, numbers, grid))
            bound = {
                number: buffers[number] for number, one in enumerate(interface.bindings) if one.used
            }
            if interface.report is not None:
                assert self._report is not None
                bound[interface.report] = self._report
                self._device.expect_report(self)
            if interface.uniform is not None:
                bound[interface.uniform] = self._uniform(block)
            pipeline.dispatch(pipeline.bind_group(bound), block, counts)

    def _sized(
        self, bindings: tuple[int, ...], groups: Grid
    ) -> tuple[_Pipeline, Grid, tuple[int, int, int]]:
        """The pipeline for a grid, the workgroups to dispatch, and what the code is told."""
        pipeline = self._pipeline(bindings, False)
        workgroup = self._trace.workgroup or (1, 1, 1)
        counts = [
            -(-count * size // block)
            for count, size, block in zip(groups, workgroup, pipeline.block, strict=True)
        ]
        if max(counts) <= MAX_GROUPS:
            return pipeline, (counts[0], counts[1], counts[2]), groups
        total = math.prod(counts)
        if total > MAX_GROUPS**3:
            raise ArgumentValueError(
                f"kernel {self._trace.name}: {total} workgroups are too many for one launch",
                mend="launch it in parts, or loop with kj.grid_stride",
            )
        x = min(total, MAX_GROUPS)
        y = min(-(-total // x), MAX_GROUPS)
        return self._pipeline(bindings, True), (x, y, -(-total // (x * y))), groups

    def _pipeline(self, bindings: tuple[int, ...], folded: bool) -> _Pipeline:
        found = self._pipelines.get((bindings, folded))
        if found is None:
            target = self._device.target
            assert isinstance(target, WebGpu)
            compiled = compiler.compile_trace(
                self._trace, target.varied(bindings=bindings, fold=folded)
            )
            found = _Pipeline(self._device, compiled.artifact, self._trace.name)
            self._pipelines[bindings, folded] = found
        return found

    def _uniform(self, block: bytes) -> Memory:
        usage = self._device._wgpu.BufferUsage
        handle = self._device.handle.create_buffer_with_data(data=block, usage=usage.UNIFORM)
        return Memory(handle, len(block))

    def _clear_report(self) -> None:
        assert self._report is not None
        self._device.upload(self._report, 0, np.zeros(8 * REPORT_SLOTS, np.uint8))

    def raise_report(self) -> None:
        """Raise what the kernel reported, if it did."""
        assert self._report is not None
        raw = self._device.download(self._report, 0, 8 * REPORT_SLOTS).take()
        flag, site, x, y, z, *_ = raw.view(np.int64).tolist()
        if flag:
            self._clear_report()
            raise failed_assertion(self._trace, site, (x, y, z))


def _shared_buffers(operands: Sequence[Operand]) -> tuple[tuple[int, ...], list[Memory]]:
    """For each array the binding of its buffer, and the buffers by binding."""
    buffers: list[Memory] = []
    bindings = []
    for operand in operands:
        assert isinstance(operand.owner, Array)
        buffer = operand.owner.buffer
        if buffer not in buffers:
            buffers.append(buffer)
        bindings.append(buffers.index(buffer))
    return tuple(bindings), buffers


def _number(
    source: Source,
    operands: Sequence[Operand],
    numbers: Sequence[int | float | bool],
    grid: Grid,
) -> int | float | bool:
    """What a parameter of the code is, at this launch."""
    if source.kind == "scalar":
        return numbers[source.number]
    if source.kind in ("extent", "groups"):
        return grid[source.axis]
    operand = operands[source.number]
    if source.kind == "shape":
        return operand.shape[source.axis]
    if source.kind == "stride":
        return operand.strides[source.axis]
    assert isinstance(operand.owner, Array)
    return operand.owner.offset // operand.owner.alignment
