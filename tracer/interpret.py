"""The reference interpreter: runs a trace on NumPy, all invocations in lockstep.

It is the oracle for every backend, so it means what ``ops.py`` and ``numerics.py`` say and
nothing more clever. It takes recorded, lowered and legal traces alike.

Large grids run in chunks of whole workgroups, which is one of the orders in which they may run.
A chunk's trace is compiled to closures: values and control flow in ``machine.py``, effects in
``actions.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from khaljit.tracer.actions import ACTIONS
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Memory, Space, Trace, Value, values
from khaljit.tracer.lanes import Grid
from khaljit.tracer.machine import Job, Machine, Number, Report
from khaljit.tracer.storage import Window, block_window, host_window, table_window

__all__ = ["Report", "interpret"]

# Bytes that the values and the private memories of a chunk may take.
_BUDGET: Final = 1 << 28


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
    job = Job(trace, scalars, report, max_iterations, read)
    hosts = {
        param.memory: host_window(a, param.memory)
        for param, a in zip(trace.arrays, arrays, strict=True)
    }
    with np.errstate(all="ignore"):
        for first in range(0, total, step):
            grid = Grid(workgroup, groups, first, min(step, total - first), subgroup_size)
            windows = {memory: _window(memory, hosts, grid, poison) for memory in memories}
            reached = {value: windows[owners[value]] for value in owners}
            Machine(job, grid, reached, ACTIONS).run()
    return report


def _groups_at_once(
    order: Sequence[Value], memories: set[Memory], workgroup: tuple[int, int, int]
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
