"""A device that checks and records everything and runs nothing: for tests of host code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from khaljit.backends.base import Loaded
from khaljit.backends.host import HostDevice
from khaljit.backends.reference import TraceTarget
from khaljit.backends.replay import Replay
from khaljit.cache.artifact import Artifact
from khaljit.graphs.nodes import Node
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.ir import Trace

__all__ = ["NullDevice"]


@final
class NullDevice(HostDevice):
    """Arrays are host memory; launches do nothing."""

    kind: ClassVar[str] = "null"

    def __init__(self) -> None:
        self.name = "null"
        self.target = TraceTarget("null", kept=False)

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Nothing to load."""
        del artifact, trace
        return _Nothing()

    def replay_of(self, nodes: Sequence[Node]) -> Replay:
        """What does nothing: no flag of a loop would ever change."""
        return _NoReplay(nodes)

    def describe(self) -> Mapping[str, str]:
        """What it is."""
        return {"engine": "none: launches are checked and recorded only"}


@final
class _Nothing(Loaded):
    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Do nothing."""


@final
class _NoReplay(Replay):
    def launch(self, repeat: int) -> None:
        """Do nothing."""
