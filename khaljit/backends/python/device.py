"""The debugger's device: the user's own function, run invocation by invocation.

The function is not rewritten, so breakpoints, stepping, ``print`` and tracebacks are those of any
Python code. The kernel is recorded all the same, once, which finds what no device takes, and tells
which sums are contracted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Final, final

import numpy as np

from khaljit.backends.base import Loaded
from khaljit.backends.host import HostDevice, host_array
from khaljit.backends.python.invocation import Invocation, Job, Stepping
from khaljit.backends.python.names import with_meanings
from khaljit.backends.python.workgroup import Workgroup
from khaljit.backends.reference import TraceTarget
from khaljit.cache.artifact import Artifact
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer import hooks
from khaljit.tracer.errors import ArgumentValueError, KernelError, Site
from khaljit.tracer.ir import Note, Trace, effects, values
from khaljit.tracer.ops import Op
from khaljit.tracer.record import Argument, Parameters, passed, site_of
from khaljit.tracer.recorder import installed
from khaljit.tracer.rendering import render
from khaljit.tracer.storage import host_window

__all__ = ["PythonDevice", "Stepped"]


@final
class PythonDevice(HostDevice):
    """Python itself, on NumPy scalars.

    Args:
        seed: shuffles the order of workgroups and invocations, the same way for the same seed; by
            default they go by their index.
    """

    kind: ClassVar[str] = "python"
    steps: ClassVar[bool] = True

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and type(seed) is not int:
            raise ArgumentValueError(f"kj.device('python', seed={seed!r})", mend="seed is an int")
        self.name = "python"
        self.target = TraceTarget("python")
        self._seed: Final = seed

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """A kernel is its function here; see `load_function`."""
        raise AssertionError("the python device loads functions")

    def load_function(
        self,
        function: FunctionType,
        arguments: Sequence[tuple[str, Argument]],
        bound: Sequence[Any],
        trace: Trace,
    ) -> Loaded:
        """A function with what it takes and its recording."""
        return Stepped(function, arguments, bound, trace, self._seed)

    def describe(self) -> Mapping[str, str]:
        """What it is."""
        order = "by index" if self._seed is None else f"shuffled by seed {self._seed}"
        return {"engine": f"Python on NumPy {np.__version__}", "order": order}


@final
class Stepped(Loaded):
    """A kernel that runs as Python; ``trace`` is its recording."""

    def __init__(
        self,
        function: FunctionType,
        arguments: Sequence[tuple[str, Argument]],
        bound: Sequence[Any],
        trace: Trace,
        seed: int | None,
    ) -> None:
        self._function, self._arguments = with_meanings(function, arguments)
        self._bound: Final = bound
        self.trace: Final = trace
        self._seed: Final = seed
        self._together: Final = any(
            effect.op is Op.BARRIER or effect.op is Op.SUBGROUP for effect in effects(trace.body)
        )
        self._sums: Final[dict[Site, set[int | None]]] = {}
        for value in values(trace.body):
            if value.op in (Op.ADD, Op.SUB) and value.at is not None:
                sides = [side for side in (1, 0) if value.args[side].op is Op.MUL]
                self._sums.setdefault(value.at, set()).add(sides[0] if sides else None)

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Run the function once per invocation."""
        groups = groups.read() if isinstance(groups, Indirect) else groups
        trace = self.trace
        windows = [
            host_window(host_array(operand), param.memory)
            for operand, param in zip(operands, trace.arrays, strict=True)
        ]
        job = Job(trace, numbers, windows, self._sums)
        size = trace.workgroup or (1, 1, 1)
        order = list(range(groups[0] * groups[1] * groups[2]))
        shuffle = None if self._seed is None else random.Random(self._seed)
        if shuffle is not None:
            shuffle.shuffle(order)
        for number in order:
            group = Workgroup(size, groups, number, trace.index_bits, shuffle)
            group.run(partial(self._step, job, group), together=self._together)

    def _step(self, job: Job, group: Workgroup, lane: int) -> None:
        """One invocation."""
        builder = Invocation(job, group, lane)
        recorder = Stepping(
            hooks, builder, workgroup=job.trace.workgroup, index_bits=job.trace.index_bits
        )
        with installed(recorder), np.errstate(all="ignore"):
            made = Parameters(recorder)
            proxies = [made.make(label, argument) for label, argument in self._arguments]
            args, keywords = passed(self._function, self._arguments, proxies)
            try:
                self._function(*self._bound, *args, **keywords)
            except AssertionError as error:  # its traceback is what a debugger wants to see
                found = self._assertion(builder, error)
                raise found.with_traceback(error.__traceback__) from None

    def _assertion(self, builder: Invocation, error: AssertionError) -> KernelError:
        """What an assertion of the user's becomes: the error that other devices raise."""
        at = site_of(error.__traceback__)
        text = "an assertion failed"
        for effect in effects(self.trace.body):
            if effect.op is Op.ASSERT and isinstance(effect.attr, Note) and at is not None:
                there = self.trace.sites[effect.attr.site]
                if (there.file, there.line) == (at.file, at.line):
                    head = effect.attr.text.partition(" failed")[0]
                    text = f"{render(head, ())} failed"
        said = str(error)
        return builder.failed(f"{text}: {said}" if said else text, at)
