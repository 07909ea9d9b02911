"""Pipelines: a module, its layout, and the bind groups that were made for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from khaljit.backends.webgpu.buffers import Memory
from khaljit.backends.webgpu.raw import Commands
from khaljit.codegen.webgpu.interface import Interface
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["Pipeline", "Prepared", "Range", "bindings_of"]

Range = tuple[Memory, int, int]  # a buffer, an offset, and bytes from there
STORAGE: Final = {True: "storage", False: "read-only-storage"}


@final
@dataclass(frozen=True, slots=True)
class Prepared:
    """A dispatch with everything looked up but its numbers.

    Attributes:
        pack: makes the block of parameters from the numbers.
        counts: workgroups, or a buffer and an offset of them.
    """

    pipeline: Pipeline
    group: Any
    pack: Callable[[Sequence[int | float | bool]], bytes]
    counts: Sequence[int] | tuple[Memory, int]

    def record(self, numbers: Sequence[int | float | bool]) -> None:
        """Record it."""
        self.pipeline.record(self.group, self.pack(numbers), self.counts)

    def add_to(self, commands: Commands, numbers: Sequence[int | float | bool]) -> None:
        """Add it to a list that is recorded as a whole."""
        counts: Sequence[Any] = self.counts
        if len(counts) == 2:
            counts = (counts[0].handle, counts[1])
        commands.dispatch(self.pipeline.handle, self.group, self.pack(numbers), counts)


@final
class Pipeline:
    """One program on a device.

    Args:
        module: of the program; made by the caller, who knows how far to trust it.
        bindings: numbers and types of the storage buffers of group 0.
        uniform: the binding of the uniform buffer with the parameters, and its bytes.
        immediates: bytes of parameters that travel with the dispatch.
    """

    _numbers: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(
        self,
        device: WebGpuDevice,
        name: str,
        module: Any,
        entry: str,
        bindings: Mapping[int, str],
        uniform: tuple[int, int] | None,
        immediates: int,
    ) -> None:
        handle = device.handle
        stage = device.wgpu.ShaderStage.COMPUTE
        self.number: Final = next(self._numbers)
        self.name: Final = name
        self._device: Final = device
        self._uniform: Final = uniform
        layout: list[dict[str, Any]] = [{"type": kind} for kind in bindings.values()]
        numbers = list(bindings)
        if uniform is not None:
            numbers.append(uniform[0])
            layout.append({"type": "uniform", "has_dynamic_offset": True})
        entries = [
            {"binding": number, "visibility": stage, "buffer": one}
            for number, one in zip(numbers, layout, strict=True)
        ]
        extra = {"immediate_size": immediates} if immediates else {}

        def make() -> tuple[Any, Any]:
            group = handle.create_bind_group_layout(entries=entries, label=name)
            whole = handle.create_pipeline_layout(bind_group_layouts=[group], **extra)
            compute = {"module": module, "entry_point": entry}
            return group, handle.create_compute_pipeline(layout=whole, compute=compute, label=name)

        made = device.guarded(f"making a pipeline of kernel {name}", make)
        self._layout: Final = made[0]
        self.handle: Final = made[1]

    @property
    def has_immediates(self) -> bool:
        """Whether parameters travel with the dispatch, if there are any."""
        return self._uniform is None

    def bind(self, key: tuple[int, ...], ranges: Mapping[int, Range]) -> Any:
        """A new bind group, kept under a key while its buffers live."""
        device = self._device
        whole = dict(ranges)
        if self._uniform is not None:
            number, size = self._uniform
            whole[number] = (device.batch.ring().memory, 0, size)
        entries = [
            {
                "binding": number,
                "resource": {"buffer": buffer.handle, "offset": offset, "size": nbytes},
            }
            for number, (buffer, offset, nbytes) in whole.items()
        ]
        group = device.guarded(
            f"binding the arrays of kernel {self.name}",
            lambda: device.handle.create_bind_group(layout=self._layout, entries=entries),
        )
        device.groups.add(key, group, [buffer for buffer, _, _ in whole.values()])
        return group

    def record(self, group: Any, block: bytes, counts: Sequence[int] | tuple[Memory, int]) -> None:
        """Record a dispatch; ``counts`` are workgroups, or a buffer and an offset of them."""
        device = self._device
        offset = -1 if self._uniform is None else device.batch.ring().put(block)
        immediates = block if self._uniform is None else None
        recorder = device.batch.recorder()
        if len(counts) == 3:
            recorder.dispatch(self.handle, group, offset, immediates, *counts)
        else:
            memory, at = counts
            assert isinstance(memory, Memory)
            recorder.dispatch_indirect(self.handle, group, offset, immediates, memory.handle, at)
        device.batch.count(self.name)


def bindings_of(interface: Interface) -> dict[int, str]:
    """Numbers and types of a program's storage buffers."""
    found = {
        number: STORAGE[one.writable] for number, one in enumerate(interface.bindings) if one.used
    }
    return found
