"""The emitter for WebGPU devices through wgpu: SPIR-V, and WGSL where wgpu reads SPIR-V wrongly.

wgpu's reader of SPIR-V (naga 29) loses the value that a compare-exchange gives: whoever uses it
takes the process down. Kernels that do so, in the source or because an atomic is made up of it,
are given to it as WGSL, where the same operation works. Both come from the same lowered trace and
have the same interface.
"""

from __future__ import annotations

from typing import final

from khaljit.codegen.caps import Caps
from khaljit.codegen.program import Program
from khaljit.codegen.spirv.emit import emit_spirv
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Lowered, Variant, lower
from khaljit.codegen.wgsl.emit import emit_wgsl
from khaljit.tracer.ir import AtomicAccess, Trace, values
from khaljit.tracer.records import dataclass

__all__ = ["WebGpuEmitter", "uses_compare_exchange"]


@final
@dataclass(frozen=True, slots=True)
class WebGpuEmitter:
    """Makes programs for a device with the capabilities of ``caps``; ``Program.target`` says which.

    Attributes:
        caps: the row that the trace is legal for.
        variant: what else the program depends on.
    """

    caps: Caps
    variant: Variant = PLAIN_VARIANT

    @property
    def name(self) -> str:
        return "webgpu"

    def emit(self, trace: Trace) -> Program:
        """The program that does what a legal trace says."""
        lowered = lower(trace, self.caps, self.variant)
        return (emit_wgsl if uses_compare_exchange(lowered) else emit_spirv)(lowered)


def uses_compare_exchange(lowered: Lowered) -> bool:
    """Whether the value of some compare-exchange is used."""
    return any(
        isinstance(arg.attr, AtomicAccess) and arg.attr.kind == "compare_exchange"
        for value in values(lowered.trace.body)
        for arg in value.args
    )
