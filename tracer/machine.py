"""A trace as closures over NumPy arrays, for the workgroups of one chunk.

How it runs. Invocations are the lanes of arrays (`Grid`), and a mask says which are active. Every
operation is done for all lanes at once: pure values for masked-off lanes too (they are total),
effects for the active ones. Since the lanes of a workgroup go through the code together, a barrier
has nothing to do. An ``if`` runs its arms one after the other under narrower masks; a ``loop`` runs
until no lane wants another iteration. A value that all lanes share stays zero-dimensional.

A pure value belongs to the innermost region in which its operands exist; its step stands there
before the first effect that needs it, directly or inside its own regions. So a value is computed
once each time its region is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any, Final, TypeAlias, final

import numpy as np

from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import InternalError
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Note, Region, Trace, Value
from khaljit.tracer.lanes import Grid
from khaljit.tracer.numerics import from_bits, held, meaning
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.storage import Cell, Window

__all__ = ["Action", "Job", "Machine", "Number", "Report"]

Number: TypeAlias = int | float | bool

# What an effect does; False when it leaves no lane active.
Action: TypeAlias = Callable[[], "bool | None"]
# A step of a region: a function, the slot of its result, and the slots of its operands, or None
# for an action.
Step: TypeAlias = tuple[Callable[..., Any], int, tuple[int, ...] | None]
# A region: gives what it yields, None when no lane comes out at its end.
Run: TypeAlias = Callable[[], "list[Array] | None"]


@final
@dataclass(slots=True)
class Report:
    """What a run said besides what it wrote.

    Attributes:
        failure: of the first assert that failed, in the order of execution and then of lanes: its
            note, the invocation's global id, the values of its operands.
        printed: a text per print and invocation.
    """

    failure: tuple[Note, tuple[int, int, int], tuple[Any, ...]] | None = None
    printed: list[str] = field(default_factory=list)


@final
class Flow:
    """Values that lanes bring to one place, each in its own time."""

    __slots__ = ("mask", "values")

    def __init__(self) -> None:
        self.mask: Array | None = None
        self.values: list[Array] = []

    def add(self, mask: Array, brought: list[Array]) -> None:
        if self.mask is None:
            self.mask, self.values = mask, brought
            return
        self.mask = self.mask | mask
        self.values = [
            old if old is new else np.where(mask, new, old)
            for old, new in zip(self.values, brought, strict=True)
        ]


@final
class LoopFrame:
    """The innermost loop that runs: what goes on to its next iteration and what has left it."""

    __slots__ = ("left", "next")

    def __init__(self) -> None:
        self.left: Final = Flow()
        self.next = Flow()


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What all chunks of a run share; ``read`` holds the values that something reads."""

    trace: Trace
    scalars: Sequence[Number]
    report: Report
    max_iterations: int
    read: set[Value]


@final
class Machine:
    """Compiles a trace for some workgroups and runs it.

    Attributes:
        windows: the memories, by the values that stand for them.
        active: the mask of active lanes; masks are never changed in place.
        loop: the innermost loop that runs.
        slots: place of each compiled value in ``env``.
        homes: depth of the region that each compiled value belongs to.
        open: the steps of the regions being compiled, outermost first.
        cells: the cells made of the windows.
    """

    def __init__(
        self,
        job: Job,
        grid: Grid,
        windows: dict[Value, Window],
        actions: Mapping[Op, Callable[[Machine, Value], Action | None]],
    ) -> None:
        self.job: Final = job
        self.bits: Final = job.trace.index_bits
        self.grid: Final = grid
        self.windows: Final = windows
        self.report: Final = job.report
        self.active: Array = np.ones(grid.lanes, np.bool_)
        self.loop = LoopFrame()
        self.env: Final[list[Any]] = []
        self.slots: Final[dict[Value, int]] = {}
        self.homes: Final[dict[Value, int]] = {}
        self.open: Final[list[list[Step]]] = []
        self.cells: Final[dict[tuple[Value, int, DType], Cell]] = {}
        self._actions: Final = {**actions, Op.IF: Machine.if_, Op.LOOP: Machine.loop_}

    def run(self) -> None:
        try:
            self.region(self.job.trace.body)()
        finally:  # the closures are in cycles with the machine, which may live on for a while
            self.env.clear()

    # Compiling: values.

    def new_slot(self, value: Value, home: int, content: Any = None) -> int:
        slot = len(self.env)
        self.slots[value] = slot
        self.homes[value] = home
        self.env.append(content)
        return slot

    def result(self, value: Value) -> int:
        """The slot of what an effect gives, in the region being compiled."""
        return self.new_slot(value, len(self.open) - 1)

    def place(self, value: Value) -> int:
        """The slot of a value, after the steps that compute it and its operands are in place."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self.slots:
                stack.pop()
                continue
            missing = [arg for arg in top.args if arg not in self.slots]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if top.is_effect or top.op is Op.PARAM:
                raise InternalError(f"{top!r} is used where it does not exist", at=top.at)
            home = max((self.homes[arg] for arg in top.args), default=0)
            leaf = self.leaf(top)
            slot = self.new_slot(top, home, leaf)
            if leaf is None and top.op is not Op.MEMORY:
                self.open[home].append(self.pure(top, slot))
        return self.slots[value]

    def leaf(self, value: Value) -> Array | None:
        """The value of what is known before the run; None for everything else."""
        attr: Any = value.attr
        if value.op is Op.CONST:
            return from_bits(value.type, attr, self.bits)
        if value.op is Op.SCALAR:
            bits = to_bits(value.type, self.job.scalars[attr])
            return from_bits(value.type, bits, self.bits)
        if value.op is Op.ID:
            return self.grid.id(*attr).astype(held(value.type, self.bits))
        if value.op is Op.SHAPE:
            extent = self.windows[value.args[0]].shape[attr]
            return np.array(extent).astype(held(value.type, self.bits))
        if value.op is Op.STRIDE:
            window = self.windows[value.args[0]]
            stride = window.strides[attr] // window.align
            return np.array(stride).astype(held(value.type, self.bits))
        return None

    def pure(self, value: Value, out: int) -> Step:
        """The step that computes a pure value."""
        places = tuple([self.slots[arg] for arg in value.args])
        if value.op is Op.RESULT:
            assert isinstance(value.attr, int)
            return itemgetter(value.attr), out, places
        types = tuple([arg.type for arg in value.args])
        return meaning(value.op, value.type, types, self.bits), out, places

    # Compiling: regions and control flow.

    def region(self, region: Region) -> Run:
        """Compile a region; its parameters have their slots already."""
        steps: list[Step] = []
        self.open.append(steps)
        for effect in region.body:
            for arg in effect.args:
                if arg not in self.slots:
                    self.place(arg)
            action = self._actions[effect.op](self, effect)
            if action is not None:
                steps.append((action, 0, None))
        end = self.end(region.end)
        self.open.pop()
        env = self.env

        def run() -> list[Array] | None:
            for function, out, places in steps:
                if places is None:
                    if function() is False:
                        return None
                elif len(places) == 2:
                    env[out] = function(env[places[0]], env[places[1]])
                else:
                    env[out] = function(*[env[place] for place in places])
            return end()

        return run

    def end(self, value: Value) -> Run:
        env = self.env
        places = [self.place(arg) for arg in value.args]
        if value.op is Op.YIELD:
            return lambda: [env[place] for place in places]
        if value.op is Op.RETURN:
            return lambda: None
        breaks = value.op is Op.BREAK

        def leave() -> None:
            flow = self.loop.left if breaks else self.loop.next
            flow.add(self.active, [env[place] for place in places])

        return leave

    def if_(self, value: Value) -> Action:
        env = self.env
        condition = self.slots[value.args[0]]
        then, orelse = value.regions
        arms = self.region(then), self.region(orelse)
        out = self.result(value)

        def step() -> bool:
            test, before = env[condition], self.active
            if test.ndim == 0:  # one way for all
                results = arms[0 if test else 1]()
                env[out] = results
                return results is not None
            flow = Flow()
            for arm, mask in zip(arms, (before & test, before & ~test), strict=True):
                if mask.any():
                    self.active = mask
                    results = arm()
                    if results is not None:
                        flow.add(self.active, results)
            if flow.mask is None:
                return False
            self.active, env[out] = flow.mask, flow.values
            return True

        return step

    def loop_(self, value: Value) -> Action:
        env, limit = self.env, self.job.max_iterations
        initial = [self.slots[arg] for arg in value.args]
        (inside,) = value.regions
        params = [self.new_slot(param, len(self.open)) for param in inside.params]
        body = self.region(inside)
        out = self.result(value)

        def step() -> bool:
            outer, self.loop = self.loop, LoopFrame()
            frame = self.loop
            frame.next.add(self.active, [env[place] for place in initial])
            for _ in range(limit):
                assert frame.next.mask is not None, "a loop is entered by some lane"
                self.active = frame.next.mask
                for place, carried in zip(params, frame.next.values, strict=True):
                    env[place] = carried
                frame.next = Flow()
                body()
                if frame.next.mask is None:
                    break
            else:
                raise InternalError(f"a loop has not ended after {limit} iterations", at=value.at)
            self.loop = outer
            if frame.left.mask is None:
                return False
            self.active, env[out] = frame.left.mask, frame.left.values
            return True

        return step
