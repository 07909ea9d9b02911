"""What each memory is made of in the machine's terms, and where in it an access goes.

SPIR-V and WGSL know arrays of one type and no pointers into the middle of anything. So each memory
becomes an array of *cells* of one machine type:

* natural: if every access to it has one type that the machine stores and that the atomics on it
  are taken in, cells of that type;
* words: else cells of ``u32``. An access takes part of a word, a word, or two words;
* spread: local and shared memory of single scalars narrower than a word takes a word for each, if
  that still fits.

Array parameters on one binding are one memory. The binding's array number is its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import field
from typing import final

import numpy as np

from khaljit.codegen.caps import Caps
from khaljit.codegen.writing import Writer
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType, i32, u32
from khaljit.tracer.ir import AtomicAccess, Element, Memory, Space, Trace, Value, effects, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["Cell", "Form", "Part", "find_cells", "part_of"]

_Key = tuple[Space, int]


class Form(enum.Enum):
    """How scalars stand in the cells."""

    NATURAL = "natural"
    WORDS = "words"
    SPREAD = "spread"


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A memory as the machine has it.

    Attributes:
        form: how scalars stand in it.
        dtype: of a cell.
        memory: the array of cells.
    """

    form: Form
    dtype: DType
    memory: Memory


@final
@dataclass(slots=True)
class _Use:
    """How a memory is accessed."""

    memories: dict[Memory, None] = field(default_factory=dict)
    accesses: list[Value] = field(default_factory=list)


def find_cells(trace: Trace, caps: Caps, bindings: tuple[int, ...]) -> dict[_Key, Cell]:
    """The cells of every memory of a trace, by space and number (of the array parameter)."""
    uses: dict[_Key, _Use] = {}
    for value in values(trace.body):
        if value.op is Op.MEMORY:
            assert isinstance(value.attr, Memory)
            uses.setdefault(_key(value.attr, bindings), _Use()).memories[value.attr] = None
    for effect in effects(trace.body):
        if effect.op in (Op.LOAD, Op.STORE, Op.ATOMIC):
            uses[_key(effect.memory, bindings)].accesses.append(effect)
    budget = caps.shared_bytes - sum(_bytes(key, use) for key, use in uses.items())
    cells: dict[_Key, Cell] = {}
    for key, use in uses.items():
        cell = _cell(key, use, caps, budget)
        if cell.form is Form.SPREAD and key[0] is Space.SHARED:
            budget -= 4 * cell.memory.count - _bytes(key, use)
        for memory in use.memories:
            cells[memory.space, memory.number] = cell
    return cells


def _key(memory: Memory, bindings: tuple[int, ...]) -> _Key:
    if memory.space is Space.ARRAY:
        return memory.space, bindings[memory.number]
    return memory.space, memory.number


def _bytes(key: _Key, use: _Use) -> int:
    """Bytes of shared memory that a memory takes as it is."""
    if key[0] is not Space.SHARED:
        return 0
    (memory,) = use.memories
    return memory.element.size * memory.count


def _cell(key: _Key, use: _Use, caps: Caps, budget: int) -> Cell:
    space, number = key
    dtype = _natural(use, caps)
    form = Form.WORDS if dtype is None else Form.NATURAL
    if form is Form.WORDS and _spreads(use, caps, budget):
        form = Form.SPREAD
    dtype = dtype or u32
    if space is Space.ARRAY:
        return Cell(form, dtype, Memory(space, number, Element.scalar(dtype), (None,)))
    (memory,) = use.memories
    size = memory.element.size * memory.count
    count = memory.count if form is Form.SPREAD else -(-size // dtype.size)
    data = memory.data
    if data is not None:
        data = data.ljust(count * dtype.size, b"\0")
    return Cell(form, dtype, Memory(space, number, Element.scalar(dtype), (max(1, count),), data))


def _natural(use: _Use, caps: Caps) -> DType | None:
    """The one type that a memory's cells can have; None where there is none."""
    types = {_accessed(access) for access in use.accesses}
    if len(types) != 1:
        return None if types else u32
    (dtype,) = types
    if dtype not in caps.machine or dtype.size < 2:
        return None
    for memory in use.memories:
        if memory.element.align % dtype.size or not _can_be_constants(memory, dtype):
            return None
    for access in use.accesses:
        if access.access.leaf % dtype.size or not _has_atomic(access, caps):
            return None
    return dtype


def _can_be_constants(memory: Memory, dtype: DType) -> bool:
    """Whether a table can be written in its own type: there are no constants past the finite."""
    if memory.data is None or not dtype.is_float:
        return True
    return bool(np.isfinite(np.frombuffer(memory.data, dtype.numpy)).all())


def _accessed(access: Value) -> DType:
    return access.operands[0].type if access.op is Op.STORE else access.type


def _has_atomic(access: Value, caps: Caps) -> bool:
    """Whether the machine does an access in cells of its own type."""
    if not isinstance(access.attr, AtomicAccess):
        return True
    if access.type in (i32, u32):
        return True
    # The optional ones are those on storage buffers.
    native = (access.attr.kind, access.type) in caps.atomics
    return native and access.memory.space is Space.ARRAY


def _spreads(use: _Use, caps: Caps, budget: int) -> bool:
    """Whether narrow scalars take a word each."""
    (memory, *others) = use.memories
    if others or memory.space not in (Space.LOCAL, Space.SHARED):
        return False
    if len(memory.element.leaves) != 1 or memory.element.size >= 4:
        return False
    more = (4 - memory.element.size) * memory.count
    return memory.space is Space.LOCAL or more <= budget


# Addresses.


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Where a scalar stands: from cell ``index`` on, some bits up from its lowest.

    ``shift`` is None where the scalar is whole cells.
    """

    index: Value
    shift: Value | None = None


def part_of(w: Writer, cell: Cell, memory: Memory, offset: Value, leaf: int, dtype: DType) -> Part:
    """Where an access goes: ``offset`` is a u32 that counts units of the element's alignment."""
    align = memory.element.align
    if cell.form is Form.SPREAD:
        return Part(offset)
    if cell.form is Form.NATURAL:
        return Part(_plus(w, _times(w, offset, align // dtype.size), leaf // dtype.size))
    if align >= 4:
        index = _plus(w, _times(w, offset, align // 4), leaf // 4)
        return Part(index, w.const(u32, 8 * (leaf % 4)) if dtype.size < 4 else None)
    byte = _plus(w, _times(w, offset, align), leaf)
    return Part(w.shr(byte, 2), w.shl(w.and_(byte, 3), 3) if dtype.size < 4 else None)


def _times(w: Writer, x: Value, factor: int) -> Value:
    return _folded(w, x, lambda number: number * factor) or (x if factor == 1 else w.mul(x, factor))


def _plus(w: Writer, x: Value, number: int) -> Value:
    return _folded(w, x, lambda known: known + number) or (x if number == 0 else w.add(x, number))


def _folded(w: Writer, x: Value, function: Callable[[int], int]) -> Value | None:
    known = constant(x)
    return None if known is None else w.const(x.type, function(int(known)))
