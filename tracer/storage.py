"""Memories of the interpreter: bytes, where each lane's elements lie in them, and atomics.

Whatever a memory is (a strided view of a host array, a table, one block per workgroup or per
invocation), it becomes a `Window`: a flat array of bytes, the byte at which element 0 lies (one
number, or one per lane) and a byte stride per axis. A `Cell` is one scalar of the elements: the
window seen as an array of that scalar's type, so that an access is one fancy index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.dtypes import DType, bf16, bool_
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Memory
from khaljit.tracer.numerics import from_memory, meaning, memory_type, to_memory
from khaljit.tracer.ops import COMBINE
from khaljit.tracer.records import dataclass

__all__ = ["Cell", "Window", "apply_atomic", "block_window", "host_window", "table_window"]


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One scalar of every element of a memory.

    Attributes:
        typed: the window as an array of `memory_type`.
        start: position of element 0's scalar in it; a number per lane for shared and local memory.
        steps: positions from one element to the next, per axis.
        flat_step: positions per unit of a flat offset.
        unit: bytes per position.
    """

    typed: Array
    start: Array
    steps: tuple[int, ...]
    flat_step: int
    unit: int


@final
@dataclass(frozen=True, slots=True)
class Window:
    """The bytes of a memory and how its elements lie in them, all in bytes."""

    data: Array
    base: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int

    def cell(self, leaf: int, dtype: DType) -> Cell:
        """The scalar at byte ``leaf`` of each element.

        Positions count scalars where everything is a multiple of their size; else bytes, through
        a view in which neighbours overlap.
        """
        kind = memory_type(dtype)
        start = self.base + leaf
        unit = kind.itemsize
        if any(place % unit for place in (leaf, self.align, *self.strides)):
            unit = 1
        count = max(0, (self.data.size - kind.itemsize) // unit + 1)
        typed: Array = np.ndarray((count,), kind, self.data, 0, (unit,))
        steps = tuple(stride // unit for stride in self.strides)
        return Cell(typed, start // unit, steps, self.align // unit, unit)


class _Exposed:
    """Memory at an address, for ``np.asarray``; keeps its owner alive."""

    def __init__(self, owner: Array, low: int, size: int) -> None:
        self.owner: Final = owner
        self.__array_interface__: Final[dict[str, Any]] = {
            "data": (low, not owner.flags.writeable),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def host_window(array: Array, memory: Memory) -> Window:
    """A host array as a memory sees it: any strides, elements structured or in trailing axes."""
    ndim, size = memory.ndim, memory.element.size
    tail = array.shape[ndim:]
    whole = array.itemsize * int(np.prod(tail, dtype=np.int64))
    tight = np.empty(tail, array.dtype).strides
    loose = any(
        extent > 1 and stride != wanted
        for extent, stride, wanted in zip(tail, array.strides[ndim:], tight, strict=True)
    )
    if array.ndim < ndim or whole != size or (array.size and loose):
        raise ArgumentValueError(
            f"an array of {array.dtype} and shape {array.shape} has no {ndim} axes of elements "
            f"of {size} bytes"
        )
    low, high = (0, 0) if array.size == 0 else np.lib.array_utils.byte_bounds(array)
    data = np.asarray(_Exposed(array, low, high - low)) if high > low else np.empty(0, np.uint8)
    start = array.__array_interface__["data"][0] - low if high > low else 0
    base = np.array(start, np.int64)
    return Window(data, base, array.shape[:ndim], array.strides[:ndim], memory.element.align)


def table_window(memory: Memory) -> Window:
    """The constant bytes of a table."""
    assert memory.data is not None, "a table has data"
    data = np.frombuffer(memory.data, np.uint8)
    return Window(data, np.array(0, np.int64), *_layout(memory))


def block_window(memory: Memory, block_of_lane: Array, blocks: int, poison: bool) -> Window:
    """Memory of which there is one block per workgroup or invocation.

    It is filled with random bytes where reading what was never written is to be noticed.
    """
    size = memory.count * memory.element.size
    if poison:
        data = np.random.default_rng().integers(0, 256, blocks * size, np.uint8)
    else:
        data = np.zeros(blocks * size, np.uint8)
    return Window(data, block_of_lane * size, *_layout(memory))


def _layout(memory: Memory) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides in bytes and alignment of a memory in array order."""
    shape = tuple(extent or 0 for extent in memory.shape)
    strides: list[int] = []
    stride = memory.element.size
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride *= extent
    return shape, tuple(strides), memory.element.align


# Atomics. `places` holds the positions that the lanes access, in the order of the lanes.


# Kinds that NumPy applies one after the other by itself, where the old values are not wanted.
_IN_PLACE: Final[dict[str, Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def apply_atomic(
    kind: str,
    dtype: DType,
    typed: Array,
    places: Array,
    operands: list[Array],
    wants_old: bool,
    index_bits: int,
) -> Array:
    """Apply an atomic lane after lane; gives the old values (any values if they are not wanted).

    Operands have an element per place. Compare-exchange compares bits.
    """
    if kind == "load":
        return from_memory(dtype, typed[places], index_bits)
    raw = [to_memory(dtype, operand) for operand in operands]
    if not wants_old:
        if kind in ("store", "exchange"):
            typed[places] = raw[0]  # of several lanes the last one stays, as NumPy promises
            return operands[0]
        sums = kind in ("add", "sub") and dtype not in (bf16, bool_)
        if kind in _IN_PLACE and (dtype.is_integer or sums):
            _IN_PLACE[kind].at(typed, places, raw[0])
            return operands[0]
    order = np.argsort(places, kind="stable")
    starts = _starts(places[order])
    if kind in ("add", "sub") and dtype.is_integer:
        old = _sums_before(typed, places[order], raw[0][order], starts, kind)
        return from_memory(dtype, _in_order(old, order), index_bits)
    update = _updater(kind, dtype, index_bits)
    old = np.empty(len(places), typed.dtype)
    for lanes in _rounds(order, starts):
        old[lanes] = typed[places[lanes]]
        typed[places[lanes]] = update(old[lanes], *(operand[lanes] for operand in raw))
    return from_memory(dtype, old, index_bits)


def _starts(ordered: Array) -> Array:
    """For each of some sorted numbers the position of the first one that equals it."""
    positions = np.arange(len(ordered))
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return np.maximum.accumulate(np.where(first, positions, 0))


def _in_order(values: Array, order: Array) -> Array:
    """Undo a sort."""
    result = np.empty_like(values)
    result[order] = values
    return result


def _sums_before(typed: Array, places: Array, added: Array, starts: Array, kind: str) -> Array:
    """Old values of integer additions, all at once: what was there and the sum of those before."""
    added = np.negative(added) if kind == "sub" else added
    sums = np.cumsum(added, dtype=added.dtype)
    before = sums - added
    old: Array = typed[places] + (before - before[starts])
    typed[places] = old + added  # the last lane of a place holds the whole sum
    return old


def _rounds(order: Array, starts: Array) -> list[Array]:
    """Lanes in rounds: the n-th lane of every place in round n."""
    rank = np.arange(len(order)) - starts
    by_rank = np.argsort(rank, kind="stable")
    cuts = np.flatnonzero(np.diff(rank[by_rank])) + 1
    return np.split(order[by_rank], cuts)


def _updater(kind: str, dtype: DType, index_bits: int) -> Callable[..., Array]:
    """The new raw value from the old one and the operands, all as memory holds them."""
    if kind in ("store", "exchange"):
        return lambda old, new: new
    if kind == "compare_exchange":
        bits = np.dtype(f"u{dtype.size}")

        def exchange(old: Array, expected: Array, new: Array) -> Array:
            return np.where(old.view(bits) == expected.view(bits), new, old)

        return exchange
    combine = meaning(COMBINE[kind], dtype, (dtype, dtype), index_bits)

    def update(old: Array, operand: Array) -> Array:
        values = combine(
            from_memory(dtype, old, index_bits), from_memory(dtype, operand, index_bits)
        )
        return to_memory(dtype, values)

    return update
