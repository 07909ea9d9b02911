"""The reference interpreter: runs a trace on NumPy, all invocations in lockstep.

It is the oracle for every backend, so it means what ``ops.py`` and ``numerics.py`` say and
nothing more clever. It takes recorded, lowered and legal traces alike.

How it runs. Invocations are the lanes of arrays (`Grid`), and a mask says which are active. Every
operation is done for all lanes at once: pure values for masked-off lanes too (they are total),
effects for the active ones. Since the lanes of a workgroup go through the code together, a barrier
has nothing to do. An ``if`` runs its arms one after the other under narrower masks; a ``loop`` runs
until no lane wants another iteration. A value that all lanes share stays zero-dimensional.

A trace is compiled to closures first. A pure value belongs to the innermost region in which its
operands exist; its step stands there before the first effect that needs it, directly or inside
its own regions. So a value is computed once each time its region is entered.

Large grids run in chunks of whole workgroups, which is one of the orders in which they may run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any, Final, TypeAlias, final

import numpy as np

from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import InternalError
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import (
    AtomicAccess,
    Memory,
    Note,
    Region,
    Space,
    Trace,
    Value,
    values,
)
from khaljit.tracer.lanes import Grid, collective
from khaljit.tracer.numerics import from_bits, from_memory, held, meaning, memory_type, to_memory
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rendering import render
from khaljit.tracer.storage import (
    Cell,
    Window,
    apply_atomic,
    block_window,
    host_window,
    table_window,
)

__all__ = ["Report", "interpret"]

Number: TypeAlias = int | float | bool

# What an effect does; False when it leaves no lane active.
_Action: TypeAlias = Callable[[], "bool | None"]
# A step of a region: a function, the slot of its result, and the slots of its operands, or None
# for an action.
_Step: TypeAlias = tuple[Callable[..., Any], int, tuple[int, ...] | None]
# A region: gives what it yields, None when no lane comes out at its end.
_Run: TypeAlias = Callable[[], "list[Array] | None"]
# The positions of an access in its cell, and where it happens (None: everywhere).
_Address: TypeAlias = Callable[[], "tuple[Array, Array | None]"]

# Bytes that the values and the private memories of a chunk may take.
_BUDGET: Final = 1 << 28


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


def interpret(
    trace: Trace,
    arrays: Sequence[Array],
    scalars: Sequence[Number],
    groups: tuple[int, int, int],
    *,
    subgroup_size: int = 8,
    poison: bool = True,
    max_iterations: int = 1_000_000,
) -> Report:
    """Run a trace over a grid of workgroups, changing ``arrays`` in place.

    Args:
        trace: a recorded, lowered or legal trace.
        arrays: the host array of each array parameter; elements of several scalars are structured
            or lie in trailing axes.
        scalars: the value of each scalar parameter.
        groups: counts of workgroups; of invocations if the trace has no workgroup.
        subgroup_size: upper limit for the lanes of a subgroup.
        poison: fill shared and local memory with random bytes instead of zeros.
        max_iterations: of one loop, after which it counts as endless: an `InternalError`.
    """
    report = Report()
    workgroup = trace.workgroup or (1, 1, 1)
    total = groups[0] * groups[1] * groups[2]
    order = values(trace.body)
    owners = {value: value.attr for value in order if isinstance(value.attr, Memory)}
    memories = set(owners.values())
    step = _groups_at_once(order, memories, workgroup)
    read = {arg for value in order for arg in value.args}
    job = _Job(trace, scalars, report, max_iterations, read)
    hosts = {
        param.memory: host_window(a, param.memory)
        for param, a in zip(trace.arrays, arrays, strict=True)
    }
    with np.errstate(all="ignore"):
        for first in range(0, total, step):
            grid = Grid(workgroup, groups, first, min(step, total - first), subgroup_size)
            windows = {memory: _window(memory, hosts, grid, poison) for memory in memories}
            _Machine(job, grid, {value: windows[owners[value]] for value in owners}).run()
    return report


def _groups_at_once(
    order: list[Value], memories: set[Memory], workgroup: tuple[int, int, int]
) -> int:
    """How many workgroups make a chunk."""
    per_lane = 8 * len(order) + 64
    per_group = 0
    for memory in memories:
        if memory.space is Space.LOCAL:
            per_lane += memory.count * memory.element.size
        elif memory.space is Space.SHARED:
            per_group += memory.count * memory.element.size
    lanes = workgroup[0] * workgroup[1] * workgroup[2]
    return max(1, min((1 << 17) // lanes, _BUDGET // (lanes * per_lane + per_group)))


def _window(memory: Memory, hosts: dict[Memory, Window], grid: Grid, poison: bool) -> Window:
    if memory.space is Space.ARRAY:
        return hosts[memory]
    if memory.space is Space.TABLE:
        return table_window(memory)
    lanes = np.arange(grid.lanes, dtype=np.int64)
    if memory.space is Space.LOCAL:
        return block_window(memory, lanes, grid.lanes, poison)
    return block_window(memory, lanes // grid.size, grid.count, poison)


@final
class _Flow:
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
class _LoopFrame:
    """The innermost loop that runs: what goes on to its next iteration and what has left it."""

    __slots__ = ("left", "next")

    def __init__(self) -> None:
        self.left: Final = _Flow()
        self.next = _Flow()


@final
@dataclass(frozen=True, slots=True)
class _Job:
    """What all chunks of a run share; ``read`` holds the values that something reads."""

    trace: Trace
    scalars: Sequence[Number]
    report: Report
    max_iterations: int
    read: set[Value]


@final
class _Machine:
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

    def __init__(self, job: _Job, grid: Grid, windows: dict[Value, Window]) -> None:
        self.job: Final = job
        self.bits: Final = job.trace.index_bits
        self.grid: Final = grid
        self.windows: Final = windows
        self.report: Final = job.report
        self.active: Array = np.ones(grid.lanes, np.bool_)
        self.loop = _LoopFrame()
        self.env: Final[list[Any]] = []
        self.slots: Final[dict[Value, int]] = {}
        self.homes: Final[dict[Value, int]] = {}
        self.open: Final[list[list[_Step]]] = []
        self.cells: Final[dict[tuple[Value, int, DType], Cell]] = {}

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

    def pure(self, value: Value, out: int) -> _Step:
        """The step that computes a pure value."""
        places = tuple([self.slots[arg] for arg in value.args])
        if value.op is Op.RESULT:
            assert isinstance(value.attr, int)
            return itemgetter(value.attr), out, places
        types = tuple([arg.type for arg in value.args])
        return meaning(value.op, value.type, types, self.bits), out, places

    # Compiling: regions and control flow.

    def region(self, region: Region) -> _Run:
        """Compile a region; its parameters have their slots already."""
        steps: list[_Step] = []
        self.open.append(steps)
        for effect in region.body:
            for arg in effect.args:
                if arg not in self.slots:
                    self.place(arg)
            action = _EFFECTS[effect.op](self, effect)
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

    def end(self, value: Value) -> _Run:
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

    def if_(self, value: Value) -> _Action:
        env = self.env
        condition = self.slots[value.args[0]]
        then, orelse = value.regions
        arms = self.region(then), self.region(orelse)
        out = self.new_slot(value, len(self.open) - 1)

        def step() -> bool:
            test, before = env[condition], self.active
            if test.ndim == 0:  # one way for all
                results = arms[0 if test else 1]()
                env[out] = results
                return results is not None
            flow = _Flow()
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

    def loop_(self, value: Value) -> _Action:
        env, limit = self.env, self.job.max_iterations
        initial = [self.slots[arg] for arg in value.args]
        (inside,) = value.regions
        params = [self.new_slot(param, len(self.open)) for param in inside.params]
        body = self.region(inside)
        out = self.new_slot(value, len(self.open) - 1)

        def step() -> bool:
            outer, self.loop = self.loop, _LoopFrame()
            frame = self.loop
            frame.next.add(self.active, [env[place] for place in initial])
            for _ in range(limit):
                assert frame.next.mask is not None, "a loop is entered by some lane"
                self.active = frame.next.mask
                for place, carried in zip(params, frame.next.values, strict=True):
                    env[place] = carried
                frame.next = _Flow()
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

    # Compiling: memory.

    def cell(self, value: Value, dtype: DType) -> Cell:
        """The scalars that a memory operation is about."""
        key = value.args[0], value.access.leaf, dtype
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = self.windows[key[0]].cell(*key[1:])
        return cell

    def address(self, value: Value, cell: Cell) -> _Address:
        """Where a memory operation goes in its cell, and in which lanes it is in bounds."""
        env, access, start = self.env, value.access, cell.start
        places = [self.slots[index] for index in value.indices]
        if access.flat:
            offset, step = places[0], cell.flat_step
            guard = None if value.guard is None else self.slots[value.guard]

            def flat() -> tuple[Array, Array | None]:
                where = start + env[offset].astype(np.int64) * step
                return where, None if guard is None else env[guard]

            return flat
        extents = (*self.windows[value.args[0]].shape, *(extent for extent, _ in access.inner))
        steps = (*cell.steps, *(step // cell.unit for _, step in access.inner))
        axes = list(zip(places, extents, steps, strict=True))
        checked = access.checked

        def indexed() -> tuple[Array, Array | None]:
            where, inside = start, None
            for place, extent, step in axes:
                index = env[place].astype(np.int64)
                where = where + index * step
                if checked:  # seen as unsigned, a negative number is a large one
                    fits = index.view(np.uint64) < extent
                    inside = fits if inside is None else inside & fits
            return where, inside

        return indexed

    def lanes(self, where: Array, inside: Array | None, cell: Cell, value: Value) -> Array:
        """The lanes that an access happens in, as numbers; they must hit the memory."""
        mask = self.active if inside is None else self.active & inside
        lanes = mask.nonzero()[0]
        if len(lanes):
            touched = where[lanes] if where.ndim else where
            if touched.min() < 0 or touched.max() >= len(cell.typed):
                raise InternalError(f"{value!r} touches what is outside its memory", at=value.at)
        return lanes

    def load(self, value: Value) -> _Action:
        env, dtype, bits = self.env, value.type, self.bits
        cell = self.cell(value, dtype)
        address = self.address(value, cell)
        kind, count = memory_type(dtype), self.grid.lanes
        out = self.new_slot(value, len(self.open) - 1)

        def step() -> None:
            where, inside = address()
            lanes = self.lanes(where, inside, cell, value)
            if where.ndim == 0 and (inside is None or inside.ndim == 0):
                raw = cell.typed[where] if len(lanes) else kind.type(0)
            elif len(lanes) == count:
                raw = np.broadcast_to(cell.typed[where], (count,))
            else:
                raw = np.zeros(count, kind)
                raw[lanes] = cell.typed[where[lanes] if where.ndim else where]
            env[out] = from_memory(dtype, raw, bits)

        return step

    def store(self, value: Value) -> _Action:
        env = self.env
        (operand,) = value.operands
        dtype, source = operand.type, self.slots[operand]
        cell = self.cell(value, dtype)
        address = self.address(value, cell)

        def step() -> None:
            where, inside = address()
            lanes = self.lanes(where, inside, cell, value)
            if len(lanes):
                places = where[lanes] if where.ndim else np.broadcast_to(where, len(lanes))
                raw = to_memory(dtype, env[source])
                cell.typed[places] = raw[lanes] if raw.ndim else raw

        return step

    def atomic(self, value: Value) -> _Action:
        env, bits, count = self.env, self.bits, self.grid.lanes
        access = value.access
        assert isinstance(access, AtomicAccess)
        dtype = value.dtype or value.operands[0].type
        sources = [self.slots[operand] for operand in value.operands]
        cell = self.cell(value, dtype)
        address = self.address(value, cell)
        wanted = value in self.job.read
        out = self.new_slot(value, len(self.open) - 1)

        def step() -> None:
            where, inside = address()
            lanes = self.lanes(where, inside, cell, value)
            places = where[lanes] if where.ndim else np.broadcast_to(where, len(lanes))
            operands = [np.broadcast_to(env[source], (count,))[lanes] for source in sources]
            old = apply_atomic(access.kind, dtype, cell.typed, places, operands, wanted, bits)
            if wanted:
                env[out] = np.zeros(count, held(dtype, bits))
                env[out][lanes] = old

        return step

    # Compiling: what speaks of other lanes or to the host.

    def barrier(self, value: Value) -> None:
        """Nothing to do: the lanes of a workgroup go together."""
        self.new_slot(value, len(self.open) - 1)

    def subgroup(self, value: Value) -> _Action:
        env, bits, count, size = self.env, self.bits, self.grid.lanes, self.grid.subgroup
        places = [self.slots[arg] for arg in value.args]
        dtype = value.args[0].dtype if value.args else None
        name = str(value.attr)
        out = self.new_slot(value, len(self.open) - 1)

        def step() -> None:
            operands = [np.broadcast_to(env[place], (count,)) for place in places]
            env[out] = collective(name, dtype, operands, self.active, size, bits)

        return step

    def print_(self, value: Value) -> _Action:
        env, count = self.env, self.grid.lanes
        places = [self.slots[arg] for arg in value.args]
        note = value.attr
        assert isinstance(note, Note)

        def step() -> None:
            operands = [np.broadcast_to(env[place], (count,)) for place in places]
            for lane in self.active.nonzero()[0]:
                numbers = [operand[lane] for operand in operands]
                self.report.printed.append(render(note.text, numbers))

        return step

    def assert_(self, value: Value) -> _Action:
        env, count = self.env, self.grid.lanes
        condition, *places = (self.slots[arg] for arg in value.args)
        note = value.attr
        assert isinstance(note, Note)

        def step() -> None:
            failed = self.active & ~env[condition]
            if self.report.failure is None and failed.any():
                lane = int(failed.argmax())
                operands = (np.broadcast_to(env[place], (count,))[lane] for place in places)
                self.report.failure = note, self.grid.position(lane), tuple(operands)

        return step


_EFFECTS: Final[dict[Op, Callable[[_Machine, Value], _Action | None]]] = {
    Op.LOAD: _Machine.load,
    Op.STORE: _Machine.store,
    Op.ATOMIC: _Machine.atomic,
    Op.BARRIER: _Machine.barrier,
    Op.SUBGROUP: _Machine.subgroup,
    Op.PRINT: _Machine.print_,
    Op.ASSERT: _Machine.assert_,
    Op.IF: _Machine.if_,
    Op.LOOP: _Machine.loop_,
}
