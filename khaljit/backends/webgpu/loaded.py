"""Kernels on a WebGPU device: what a launch binds, packs and records."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

from khaljit import compiler
from khaljit.arrays import Array
from khaljit.backends.base import Loaded, NativeTarget
from khaljit.backends.webgpu.buffers import Memory
from khaljit.backends.webgpu.packing import NumberPacker, Pack, packer
from khaljit.backends.webgpu.pipeline import Pipeline, Prepared, Range, bindings_of
from khaljit.backends.webgpu.target import WebGpu, interface_of
from khaljit.cache.artifact import Artifact
from khaljit.codegen.layout import SLOT
from khaljit.codegen.webgpu.interface import Interface
from khaljit.extension import NATIVE
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.ir import Trace
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["MAX_GROUPS", "WebGpuLoaded"]

MAX_GROUPS: Final = 65535  # workgroups on an axis
MAX_TOTAL: Final = (1 << 32) - 1  # code that counts them along a line does so in 32 bits
_NUMBERS: Final = itertools.count()  # of kernels, for what is kept of their launches
NO_GRID: Final = (0, 0, 0)  # where the device reads it, the code does not ask the host


if NATIVE is not None:
    NATIVE.know_memory(Memory, False)


@final
class _Variant:
    """One program of a kernel: for which arrays share a buffer, whether all begin where their
    buffers do, and for small or large grids."""

    def __init__(self, device: WebGpuDevice, artifact: Artifact, trace: Trace) -> None:
        plan = artifact.plan
        interface = interface_of(plan)
        self.interface: Final[Interface] = interface
        self.block: Final[tuple[int, int, int]] = tuple(plan["workgroup"])
        units = [array.memory.element.align for array in trace.arrays]
        self.pack: Final[Pack] = packer(interface, units)
        self.numbers: Final = NumberPacker(interface, units)
        self._device: Final = device
        self._artifact: Final = artifact
        self._trace: Final = trace

    @cached_property
    def pipeline(self) -> Pipeline:
        """Made when it is first needed: arrays may all be views, which want another variant."""
        interface, trace = self.interface, self._trace
        uniform = None if interface.uniform is None else (interface.uniform, interface.size)
        return Pipeline(
            self._device,
            trace.name,
            self._device.module(self._artifact.payload, trace),
            self._artifact.plan["entry"],
            bindings_of(interface),
            uniform,
            interface.size if uniform is None else 0,
        )


@final
@dataclass(frozen=True, slots=True)
class _Grid:
    """A launch's grid: as the user gave it, in workgroups, and as it is dispatched."""

    extents: Grid
    groups: Grid
    counts: Grid | tuple[Memory, int]
    folded: bool


@final
class WebGpuLoaded(Loaded):
    """A kernel with its variants."""

    def __init__(self, device: WebGpuDevice, artifact: Artifact, trace: Trace) -> None:
        self._number: Final = next(_NUMBERS)
        self._device: Final = device
        self._trace: Final = trace
        apart = tuple(range(len(trace.arrays)))
        self._plain: Final = _Variant(device, artifact, trace)
        self._variants: Final = {(apart, True, False): self._plain}

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Record a dispatch."""
        if isinstance(groups, Indirect) and self._must_read_grid:
            groups = groups.read()
            if 0 in groups:
                return
        grid = self._grid(groups)
        with self._device.lock:
            variant, group = self._bound(operands, grid.folded)
            packed = variant.pack(operands, numbers, grid.extents, grid.groups)
            variant.pipeline.record(group, packed, grid.counts)

    def prepare(self, operands: Sequence[Operand], groups: Grid | Indirect) -> Prepared | None:
        """A dispatch of these arrays, ready but for its numbers; None where the host must read the
        grid first."""
        if isinstance(groups, Indirect) and self._must_read_grid:
            return None
        grid = self._grid(groups)
        with self._device.lock:
            variant, group = self._bound(operands, grid.folded)
        pack = variant.numbers.bind(operands, grid.extents, grid.groups)
        return Prepared(variant.pipeline, group, pack, grid.counts)

    def native(self) -> NativeTarget:
        """By `repeat`."""
        return NativeTarget("called", (self.repeat,))

    def repeat(self, key: bytes, arrays: Sequence[Array[Any]], numbers: Sequence[Any]) -> None:
        """Record what was prepared for such arrays on such a grid."""
        device = self._device
        prepared = device.groups.get((self._number, key))
        if prepared is None:
            prepared = self._prepare_by(key, arrays)
        with device.lock:
            prepared.record(numbers)

    def _prepare_by(self, key: bytes, arrays: Sequence[Array[Any]]) -> Prepared:
        *slots, x, y, z = struct.unpack(f"={len(key) // SLOT}q", key)
        operands = []
        for array in arrays:
            end = 1 + array.ndim
            address, shape, strides = slots[0], slots[1:end], slots[end : end + array.ndim]
            del slots[: end + array.ndim]
            operands.append(Operand("", array, array.dtype, tuple(shape), tuple(strides), address))
        prepared = self.prepare(operands, (x, y, z))
        assert prepared is not None
        self._device.groups.add((self._number, key), prepared, [array.buffer for array in arrays])
        return prepared

    def _bound(self, operands: Sequence[Operand], folded: bool) -> tuple[_Variant, Any]:
        """The program for these arrays, and the bind group of their buffers."""
        arrays: list[Any] = [operand.owner for operand in operands]
        buffers: list[Memory] = [array.buffer for array in arrays]
        at_origin = not any(array.offset for array in arrays)
        variant = self._plain
        if folded or not at_origin or len(set(buffers)) != len(buffers):
            variant = self._variant(buffers, at_origin, folded)
        pipeline = variant.pipeline
        key = (pipeline.number, *[buffer.address for buffer in buffers])
        group = self._device.groups.get(key)
        if group is None:
            group = pipeline.bind(key, self._ranges(variant, buffers))
        return variant, group

    def _ranges(self, variant: _Variant, buffers: Sequence[Memory]) -> dict[int, Range]:
        """What to bind: whole buffers, since views are offsets in the code."""
        distinct = list(dict.fromkeys(buffers))
        found: dict[int, Range] = {
            number: (distinct[number], 0, self._bindable(distinct[number]))
            for number, one in enumerate(variant.interface.bindings)
            if one.used
        }
        return found

    def _bindable(self, buffer: Memory) -> int:
        limit = self._device.limits["max-storage-buffer-binding-size"]
        if buffer.nbytes > limit:
            raise ArgumentValueError(
                f"kernel {self._trace.name}: a buffer of {buffer.nbytes} bytes cannot be bound",
                mend=f"{self._device} binds at most {limit} bytes",
            )
        return buffer.nbytes

    @property
    def _must_read_grid(self) -> bool:
        """Whether the code must know a grid that the device has: its invocations."""
        return self._trace.workgroup is None

    def _grid(self, groups: Grid | Indirect) -> _Grid:
        if isinstance(groups, Indirect):
            array = groups.array
            counts = (array.buffer, array.offset + 4 * groups.offset)
            return _Grid(NO_GRID, NO_GRID, counts, folded=False)
        own = self._own_groups(groups)
        folded = max(own) > MAX_GROUPS
        return _Grid(groups, own, self._folded(own) if folded else own, folded)

    def _own_groups(self, groups: Grid) -> Grid:
        """Workgroups per axis: the launch's, or the backend's that hold its invocations."""
        if self._trace.workgroup is not None:
            return groups
        x, y, z = self._plain.block
        return -(-groups[0] // x), -(-groups[1] // y), -(-groups[2] // z)

    def _folded(self, groups: Grid) -> Grid:
        """What to dispatch for more workgroups than an axis takes: at least as many, in any shape,
        for code that counts them along a line."""
        total = groups[0] * groups[1] * groups[2]
        if total > MAX_TOTAL:
            raise ArgumentValueError(
                f"kernel {self._trace.name}: {total} workgroups are too many for one launch",
                mend="launch it in parts, or loop with kj.grid_stride",
            )
        x = min(total, MAX_GROUPS)
        y = min(-(-total // x), MAX_GROUPS)
        return x, y, -(-total // (x * y))

    def _variant(self, buffers: Sequence[Memory], at_origin: bool, folded: bool) -> _Variant:
        distinct = list(dict.fromkeys(buffers))
        bindings = tuple(distinct.index(buffer) for buffer in buffers)
        found = self._variants.get((bindings, at_origin, folded))
        if found is None:
            target = self._device.target
            assert isinstance(target, WebGpu)
            compiled = compiler.compile_trace(
                self._trace,
                target.varied(bindings=bindings, at_origin=at_origin, fold=folded),
                self.origin,
            )
            found = _Variant(self._device, compiled.artifact, self._trace)
            self._variants[bindings, at_origin, folded] = found
        return found
