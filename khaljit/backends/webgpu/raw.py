"""The native library behind the package wgpu, called without the package's checks on every call.

Everything that depends on the inside of that package stands here. The package wraps each call to
catch errors; commands of a pass report theirs when the encoder is finished, so for them the
wrapping catches nothing, and is most of the cost of recording a dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

__all__ = ["Commands", "Recorder", "timestamp_period", "trusted_module"]

NO_CHECKS: Final = 0


@final
class Recorder:
    """Dispatches into one compute pass; what is set already is not set again."""

    __slots__ = ("_group", "_handle", "_library", "_offset", "_offsets", "_pipeline", "handle")

    def __init__(self, handle: Any) -> None:
        from wgpu.backends.wgpu_native import ffi, lib

        self.handle: Final = handle
        self._handle: Final = handle._internal
        self._library: Final = lib
        self._offsets: Final = ffi.new("uint32_t[1]")
        self._pipeline: Any = None
        self._group: Any = None
        self._offset = -1

    def dispatch(
        self, pipeline: Any, group: Any, offset: int, block: bytes | None, x: int, y: int, z: int
    ) -> None:
        """Record a dispatch.

        Args:
            offset: of the parameters in their uniform buffer; -1 where they are immediates.
            block: the immediates.
        """
        self._bind(pipeline, group, offset, block)
        self._library.wgpuComputePassEncoderDispatchWorkgroups(self._handle, x, y, z)

    def dispatch_indirect(
        self, pipeline: Any, group: Any, offset: int, block: bytes | None, counts: Any, at: int
    ) -> None:
        """Record a dispatch whose counts stand in a buffer."""
        self._bind(pipeline, group, offset, block)
        self._library.wgpuComputePassEncoderDispatchWorkgroupsIndirect(
            self._handle, counts._internal, at
        )

    def _bind(self, pipeline: Any, group: Any, offset: int, block: bytes | None) -> None:
        library, handle = self._library, self._handle
        if pipeline is not self._pipeline:
            library.wgpuComputePassEncoderSetPipeline(handle, pipeline._internal)
            self._pipeline = pipeline
        if group is not self._group or offset != self._offset:
            offsets = self._offsets
            offsets[0] = max(offset, 0)
            library.wgpuComputePassEncoderSetBindGroup(
                handle, 0, group._internal, offset >= 0, offsets
            )
            self._group, self._offset = group, offset
        if block:
            library.wgpuComputePassEncoderSetImmediates(handle, 0, block, len(block))

    def issue(self, commands: Commands) -> None:
        """Record a list of dispatches; nothing of what was set before is taken to stand."""
        handle = self._handle
        for function, arguments in commands.calls:
            function(handle, *arguments)
        self._pipeline = self._group = None


@final
class Commands:
    """Dispatches that are recorded again and again: calls whose arguments are all made."""

    def __init__(self) -> None:
        from wgpu.backends.wgpu_native import ffi, lib

        self.calls: Final[list[tuple[Any, tuple[Any, ...]]]] = []
        self._ffi: Final = ffi
        self._library: Final = lib
        self._keep: Final[list[Any]] = []  # what the calls point to
        self._pipeline: Any = None
        self._group: Any = None
        self._block = b""

    def dispatch(self, pipeline: Any, group: Any, block: bytes, counts: Sequence[Any]) -> None:
        """Add a dispatch: of workgroups, or of a buffer that holds them and an offset."""
        library, keep, calls = self._library, self._keep, self.calls
        if pipeline is not self._pipeline:
            calls.append((library.wgpuComputePassEncoderSetPipeline, (pipeline._internal,)))
            self._pipeline, self._block = pipeline, b""
            keep.append(pipeline)
        if group is not self._group:
            whole = (0, group._internal, 0, self._ffi.NULL)
            calls.append((library.wgpuComputePassEncoderSetBindGroup, whole))
            self._group = group
            keep.append(group)
        if block != self._block:
            there = self._ffi.new("uint8_t[]", block)
            calls.append((library.wgpuComputePassEncoderSetImmediates, (0, there, len(block))))
            self._block = block
        if len(counts) == 3:
            calls.append((library.wgpuComputePassEncoderDispatchWorkgroups, tuple(counts)))
        else:
            buffer, at = counts
            where = (buffer._internal, at)
            calls.append((library.wgpuComputePassEncoderDispatchWorkgroupsIndirect, where))
            keep.append(buffer)


def timestamp_period(queue: Any) -> float:
    """Nanoseconds of one tick of a queue's timestamps."""
    from wgpu.backends.wgpu_native import lib

    return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))


def trusted_module(device: Any, code: bytes, label: str) -> Any:
    """A shader module of SPIR-V to which wgpu adds no checks of bounds and no ends of loops.

    Validation is as for any module; left out is what would stand in the code.
    """
    from wgpu.backends.wgpu_native._api import GPUShaderModule, ffi, lib, libf

    words = ffi.new("uint8_t[]", code)
    source = ffi.new("WGPUShaderSourceSPIRV *")
    source.chain.sType = lib.WGPUSType_ShaderSourceSPIRV
    source.codeSize = len(code) // 4
    source.code = ffi.cast("uint32_t *", words)
    name = ffi.new("char[]", label.encode())
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    descriptor.label.data = name
    descriptor.label.length = len(label.encode())
    handle = libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, NO_CHECKS)
    return GPUShaderModule(label, handle, device)
