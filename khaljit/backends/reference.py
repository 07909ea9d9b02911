"""The interpreter as a device: NumPy runs the recorded trace, all invocations in lockstep.

It is slow, needs no compiler, and is what every other backend is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, final

import numpy as np

from khaljit.backends.base import Loaded, Target, idle
from khaljit.backends.host import HostDevice, host_array
from khaljit.backends.reporting import failure
from khaljit.cache.artifact import Artifact
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.rendering import render
from khaljit.tracer.text import print_trace

__all__ = ["InterpreterDevice", "TraceTarget"]


@final
class TraceTarget(Target):
    """The trace itself is the code.

    Args:
        kept: whether uses of it are counted and recorded as those of other targets are.
    """

    reports: ClassVar[bool] = False

    def __init__(self, name: str, *, kept: bool = True) -> None:
        self.name = name
        self.kept = kept

    def key_parts(self) -> Mapping[str, object]:
        """The trace is all."""
        return {"kind": self.name}

    def compile(self, trace: Trace, emitted: Callable[[], None] = idle) -> Artifact:
        """There is nothing to compile; only `load` sees the trace."""
        del trace, emitted
        return Artifact(b"", {}, None)

    def show(self, trace: Trace, stage: str) -> str:
        """The trace as text."""
        if stage != "trace":
            raise ArgumentValueError(f"{self.name} has no stage {stage!r}", mend="trace")
        return print_trace(trace)


@final
class InterpreterDevice(HostDevice):
    """The reference interpreter."""

    kind: ClassVar[str] = "interpreter"

    def __init__(self) -> None:
        self.name = "interpreter"
        self.target = TraceTarget("interpreter")

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Nothing to load."""
        del artifact
        return _Loaded(contract(trace))

    def describe(self) -> Mapping[str, str]:
        """What it is."""
        return {"engine": f"NumPy {np.__version__}"}


@final
class _Loaded(Loaded):
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Interpret the trace."""
        groups = groups.read() if isinstance(groups, Indirect) else groups
        report = interpret(self._trace, [host_array(one) for one in operands], numbers, groups)
        for line in report.printed:
            print(line, end="")
        if report.failure is not None:
            note, invocation, operands = report.failure
            sites = self._trace.sites
            at = sites[note.site] if note.site < len(sites) else None
            raise failure(self._trace.name, render(note.text, operands), at, invocation)
