"""What the effects of a trace do in the interpreter: each compiles one to a closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import InternalError
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import AtomicAccess, Note, Value
from khaljit.tracer.lanes import collective
from khaljit.tracer.machine import Action, Machine
from khaljit.tracer.numerics import from_memory, held, memory_type, to_memory
from khaljit.tracer.ops import Op
from khaljit.tracer.rendering import render
from khaljit.tracer.storage import Cell, apply_atomic

__all__ = ["ACTIONS"]

# The positions of an access in its cell, and where it happens (None: everywhere).
Address: TypeAlias = Callable[[], "tuple[Array, Array | None]"]


# Memory.


def _cell(machine: Machine, value: Value, dtype: DType) -> Cell:
    """The scalars that a memory operation is about."""
    key = value.args[0], value.access.leaf, dtype
    cell = machine.cells.get(key)
    if cell is None:
        cell = machine.cells[key] = machine.windows[key[0]].cell(*key[1:])
    return cell


def _address(machine: Machine, value: Value, cell: Cell) -> Address:
    """Where a memory operation goes in its cell, and in which lanes it is in bounds."""
    env, access, start = machine.env, value.access, cell.start
    places = [machine.slots[index] for index in value.indices]
    if access.flat:
        offset, step = places[0], cell.flat_step
        guard = None if value.guard is None else machine.slots[value.guard]

        def flat() -> tuple[Array, Array | None]:
            where = start + env[offset].astype(np.int64) * step
            return where, None if guard is None else env[guard]

        return flat
    extents = (*machine.windows[value.args[0]].shape, *(extent for extent, _ in access.inner))
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


def _lanes(machine: Machine, where: Array, inside: Array | None, cell: Cell, value: Value) -> Array:
    """The lanes that an access happens in, as numbers; they must hit the memory."""
    mask = machine.active if inside is None else machine.active & inside
    lanes = mask.nonzero()[0]
    if len(lanes):
        touched = where[lanes] if where.ndim else where
        if touched.min() < 0 or touched.max() >= len(cell.typed):
            raise InternalError(f"{value!r} touches what is outside its memory", at=value.at)
    return lanes


def _load(machine: Machine, value: Value) -> Action:
    env, dtype, bits = machine.env, value.type, machine.bits
    cell = _cell(machine, value, dtype)
    address = _address(machine, value, cell)
    kind, count = memory_type(dtype), machine.grid.lanes
    out = machine.result(value)

    def step() -> None:
        where, inside = address()
        lanes = _lanes(machine, where, inside, cell, value)
        if where.ndim == 0 and (inside is None or inside.ndim == 0):
            raw = cell.typed[where] if len(lanes) else kind.type(0)
        elif len(lanes) == count:
            raw = np.broadcast_to(cell.typed[where], (count,))
        else:
            raw = np.zeros(count, kind)
            raw[lanes] = cell.typed[where[lanes] if where.ndim else where]
        env[out] = from_memory(dtype, raw, bits)

    return step


def _store(machine: Machine, value: Value) -> Action:
    env = machine.env
    (operand,) = value.operands
    dtype, source = operand.type, machine.slots[operand]
    cell = _cell(machine, value, dtype)
    address = _address(machine, value, cell)

    def step() -> None:
        where, inside = address()
        lanes = _lanes(machine, where, inside, cell, value)
        if len(lanes):
            places = where[lanes] if where.ndim else np.broadcast_to(where, len(lanes))
            raw = to_memory(dtype, env[source])
            cell.typed[places] = raw[lanes] if raw.ndim else raw

    return step


def _atomic(machine: Machine, value: Value) -> Action:
    env, bits, count = machine.env, machine.bits, machine.grid.lanes
    access = value.access
    assert isinstance(access, AtomicAccess)
    dtype = value.dtype or value.operands[0].type
    sources = [machine.slots[operand] for operand in value.operands]
    cell = _cell(machine, value, dtype)
    address = _address(machine, value, cell)
    wanted = value in machine.job.read
    out = machine.result(value)

    def step() -> None:
        where, inside = address()
        lanes = _lanes(machine, where, inside, cell, value)
        places = where[lanes] if where.ndim else np.broadcast_to(where, len(lanes))
        operands = [np.broadcast_to(env[source], (count,))[lanes] for source in sources]
        old = apply_atomic(access.kind, dtype, cell.typed, places, operands, wanted, bits)
        if wanted:
            env[out] = np.zeros(count, held(dtype, bits))
            env[out][lanes] = old

    return step


# What speaks of other lanes or to the host.


def _barrier(machine: Machine, value: Value) -> None:
    """Nothing to do: the lanes of a workgroup go together."""
    machine.result(value)


def _subgroup(machine: Machine, value: Value) -> Action:
    env, bits, count, size = machine.env, machine.bits, machine.grid.lanes, machine.grid.subgroup
    places = [machine.slots[arg] for arg in value.args]
    dtype = value.args[0].dtype if value.args else None
    name = str(value.attr)
    out = machine.result(value)

    def step() -> None:
        operands = [np.broadcast_to(env[place], (count,)) for place in places]
        env[out] = collective(name, dtype, operands, machine.active, size, bits)

    return step


def _print(machine: Machine, value: Value) -> Action:
    env, count = machine.env, machine.grid.lanes
    places = [machine.slots[arg] for arg in value.args]
    note = value.attr
    assert isinstance(note, Note)

    def step() -> None:
        operands = [np.broadcast_to(env[place], (count,)) for place in places]
        for lane in machine.active.nonzero()[0]:
            numbers = [operand[lane] for operand in operands]
            machine.report.printed.append(render(note.text, numbers))

    return step


def _assert(machine: Machine, value: Value) -> Action:
    env, count = machine.env, machine.grid.lanes
    condition, *places = (machine.slots[arg] for arg in value.args)
    note = value.attr
    assert isinstance(note, Note)

    def step() -> None:
        failed = machine.active & ~env[condition]
        if machine.report.failure is None and failed.any():
            lane = int(failed.argmax())
            operands = (np.broadcast_to(env[place], (count,))[lane] for place in places)
            machine.report.failure = note, machine.grid.position(lane), tuple(operands)

    return step


ACTIONS: Final[dict[Op, Callable[[Machine, Value], Action | None]]] = {
    Op.LOAD: _load,
    Op.STORE: _store,
    Op.ATOMIC: _atomic,
    Op.BARRIER: _barrier,
    Op.SUBGROUP: _subgroup,
    Op.PRINT: _print,
    Op.ASSERT: _assert,
}
