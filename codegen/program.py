"""What a code generator makes of a trace, and what every code generator looks like.

An `Emitter` is pure: it opens no device and imports no driver, so it runs, and is tested,
everywhere. A `Program` holds all that a backend needs to assemble, load and launch the code.
"""

from __future__ import annotations

from typing import Protocol, final

from khaljit.codegen.webgpu.interface import Interface
from khaljit.tracer.ir import Trace
from khaljit.tracer.records import dataclass

__all__ = ["Emitter", "Program"]


@final
@dataclass(frozen=True, slots=True)
class Program:
    """Code for one target, with the facts that its launch needs.

    Attributes:
        target: name of the code generator that made it: ``llvm``, ``ptx``, ``spirv``, ``wgsl``.
        entry: symbol of the entry point.
        text: the code as text; what an assembler takes, or what shows a binary to people.
        binary: the code where a driver takes bytes; else empty.
        workgroup: invocations of a workgroup in x, y, z.
        item: invocations of one work item in x, y, z (CPU: what is counted by the entry point).
        lanes: invocations that run as one: the subgroup size where the target decides it.
        shared: bytes of workgroup memory where a driver allots it.
        arena: bytes of scratch memory that each worker thread passes in, aligned to 64.
        interface: the buffers to bind and where each parameter stands, on targets that do not
            take the parameter block of ``layout.py``.
    """

    target: str
    entry: str
    text: str
    binary: bytes = b""
    workgroup: tuple[int, int, int] = (1, 1, 1)
    item: tuple[int, int, int] = (1, 1, 1)
    lanes: int = 1
    shared: int = 0
    arena: int = 0
    interface: Interface | None = None


class Emitter(Protocol):
    """Turns a legal trace into a program for its target."""

    @property
    def name(self) -> str:
        """The target's name, as in `Program.target`."""

    def emit(self, trace: Trace) -> Program:
        """The program that does what the trace says."""
