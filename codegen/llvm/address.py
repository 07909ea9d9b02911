"""Where and when a memory operation happens: its address and its guard.

Local arrays belong to one invocation. They are laid out with the lanes next to each other for
each unit of the element's alignment, so that accesses at the same offset are consecutive.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.conditions import demand
from khaljit.codegen.llvm.forms import TYPES
from khaljit.codegen.llvm.values import Held, Mask
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Memory, Space, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["Address", "Guard", "address", "guard", "leaf_type", "narrowed", "part_pointers"]

_UNITS: Final = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """When an access happens: in the lanes of ``mask``, and only if ``condition``, an i1, holds.

    ``condition`` is empty where it surely holds. ``mask`` has at least one lane unless ``checked``
    says that it need not.
    """

    mask: Mask
    condition: str = ""
    checked: bool = False


def guard(code: Code, value: Value) -> Guard:
    """When a memory operation happens."""
    wanted = value.guard
    if wanted is None or code.values.knows(wanted) or demand(code, wanted):
        return Guard(code.mask)
    held = code.values.get(wanted)
    if held.uniform:
        return Guard(code.mask, held.base)
    return Guard(code.lanes.narrowed(code.mask, code.values.vector(held)), checked=True)


def narrowed(code: Code, when: Guard) -> Mask:
    """A guard as a mask alone."""
    if not when.condition:
        return when.mask
    condition = (code.lanes.splat("i1", when.condition),) * code.lanes.parts
    return code.lanes.narrowed(when.mask, condition)


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where a memory operation goes.

    Attributes:
        pointer: where all lanes go, if that is one place.
        singles: where the lanes of each part go, if each goes to one place.
        starts: where the first lane of each part goes, if the others of the part follow it.
        vectors: pointers of all lanes, where they are apart.
        straight: an i1 for each part, where both are there: whether its lanes follow one another.
    """

    pointer: str = ""
    singles: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    straight: tuple[str, ...] = ()


def address(code: Code, value: Value) -> Address:
    """Where a load, store or atomic goes."""
    memory, leaf = value.memory, value.access.leaf
    offset = code.values.get(value.indices[0])
    if memory.space is Space.LOCAL and not code.scalar:
        return _local_address(code, memory, leaf, offset, leaf_type(value))
    if offset.uniform:
        return Address(scalar_pointer(code, memory, leaf, offset.dtype, offset.base))
    step, consecutive = offset.stride * memory.element.align, leaf_type(value).size
    if offset.linear and step == consecutive:
        return Address(starts=part_pointers(code, memory, leaf, offset))
    if offset.linear and step == 0 and value.op is Op.LOAD:
        return Address(singles=part_pointers(code, memory, leaf, offset))
    pointer = code.at(code.place(memory).pointer, leaf)
    vectors = _pointers(code, memory, pointer, offset)
    if offset.straight and step == consecutive and value.op is Op.LOAD:
        starts = part_pointers(code, memory, leaf, offset)
        return Address(starts=starts, vectors=vectors, straight=offset.straight)
    return Address(vectors=vectors)


def part_pointers(code: Code, memory: Memory, leaf: int, offset: Held) -> tuple[str, ...]:
    """The pointer of the first lane of each part, at an offset that is linear."""
    if offset.bases:
        made = {
            base: scalar_pointer(code, memory, leaf, offset.dtype, base)
            for base in dict.fromkeys(offset.bases)
        }
        return tuple(made[base] for base in offset.bases)
    first = scalar_pointer(code, memory, leaf, offset.dtype, offset.base)
    step = offset.stride * memory.element.align
    alongs = [code.lanes.along(part) for part in range(code.lanes.parts)]
    along_made = {along: code.at(first, along * step) for along in dict.fromkeys(alongs)}
    return tuple(along_made[along] for along in alongs)


def leaf_type(value: Value) -> DType:
    """The type of the scalar in memory."""
    leaves = dict(value.memory.element.leaves)
    return leaves[value.access.leaf]


def _unit(align: int) -> str:
    """A type as large as an alignment, which offsets count."""
    return _UNITS.get(align, f"[{align} x i8]")


def scalar_pointer(code: Code, memory: Memory, leaf: int, dtype: DType, offset: str) -> str:
    """The pointer to a leaf at a scalar offset."""
    base, unit = code.place(memory).pointer, _unit(memory.element.align)
    if offset != "0":
        base = code.w.let(f"getelementptr {unit}, ptr {base}, {TYPES[dtype]} {offset}")
    return code.at(base, leaf)


def _pointers(code: Code, memory: Memory, base: str, offset: Held) -> tuple[str, ...]:
    unit, t = _unit(memory.element.align), code.lanes.width.type(offset.dtype)
    return tuple(
        code.w.let(f"getelementptr {unit}, ptr {base}, {t} {part}")
        for part in code.values.vector(offset)
    )


def _local_address(code: Code, memory: Memory, leaf: int, offset: Held, dtype: DType) -> Address:
    """In a local array: the lanes' units lie side by side."""
    align, lanes = memory.element.align, code.lanes
    base = code.at(code.place(memory).pointer, leaf // align * align * lanes.count + leaf % align)
    if offset.uniform and dtype.size == align:
        row = f"[{align * lanes.count} x i8]"
        pointer = code.w.let(
            f"getelementptr {row}, ptr {base}, {TYPES[offset.dtype]} {offset.base}"
        )
        size = lanes.per_part * dtype.size
        return Address(starts=tuple(code.at(pointer, k * size) for k in range(lanes.parts)))
    t, type_ = lanes.width.type(offset.dtype), TYPES[offset.dtype]
    count = lanes.width.const(type_, str(lanes.count))
    scaled = []
    for part, name in enumerate(code.values.vector(offset)):
        row = code.w.let(f"mul {t} {name}, {count}")
        scaled.append(code.w.let(f"add {t} {row}, {lanes.iota(type_, part)}"))
    return Address(vectors=_pointers(code, memory, base, Held(offset.dtype, parts=tuple(scaled))))
