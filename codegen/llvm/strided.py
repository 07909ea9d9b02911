"""Lanes a few elements apart, as in an array of vectors: wide accesses and shuffles.

An array of vec3 is read as whole vectors of memory, from which each component's lanes are picked.
It is written the same way where a kernel stores all components of its elements one after another,
so that nothing is written that the kernel does not write. Both only where all lanes are active.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from khaljit.codegen.llvm.address import guard, leaf_type, part_pointers
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import STORED
from khaljit.codegen.llvm.values import Held
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.ir import Space, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["Steps", "find_group", "find_steps", "load_strided", "store_group"]

MOST_STEPS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class Steps:
    """Lanes apart by whole scalars.

    Attributes:
        count: scalars from one lane to the next; negative where addresses fall.
        lead: scalars before the accessed one in a lane's share that may be read along, since they
            belong to the same element.
        whole: all scalars of a lane's share may be read along.
    """

    count: int
    lead: int = 0
    whole: bool = False


def find_steps(code: Code, value: Value) -> Steps | None:
    """How far apart the lanes of an access are, if by a few scalars; None for anything else."""
    memory, dtype = value.memory, leaf_type(value)
    if memory.space is Space.LOCAL or code.scalar:
        return None
    offset = code.values.get(value.indices[0])
    step = offset.stride * memory.element.align
    if not offset.linear or step % dtype.size:
        return None
    count = step // dtype.size
    if count in (0, 1) or abs(count) > MOST_STEPS:
        return None
    size = memory.element.size
    if count > 0 and step == size and value.access.leaf % dtype.size == 0:
        return Steps(count, value.access.leaf // dtype.size, whole=True)
    return Steps(count)


def load_strided(code: Code, value: Value, steps: Steps) -> tuple[str, ...]:
    """The vectors of a load, as they stand in memory."""
    lanes, type_, size = code.lanes, STORED[value.type], value.type.size
    offset = code.values.get(value.indices[0])
    leaf = value.access.leaf - steps.lead * size
    starts = part_pointers(code, value.memory, leaf, offset)
    apart = abs(steps.count)
    span = lanes.per_part * apart if steps.whole else (lanes.per_part - 1) * apart + 1
    picks = [steps.lead + lane * apart for lane in range(lanes.per_part)]
    if steps.count < 0:
        picks.reverse()
    wide = f"<{span} x {type_}>"
    # The first lane of a part has the lowest address, or the last where addresses fall.
    lowest = (lanes.per_part - 1) * steps.count * size if steps.count < 0 else 0
    made: dict[str, str] = {}
    for start in starts:
        if start not in made:
            at, more = code.at(start, lowest), code.place(value.memory).metadata
            loaded = code.w.let(f"load {wide}, ptr {at}, align {size}{more}")
            made[start] = _shuffled(code, wide, loaded, picks)
    return tuple(made[start] for start in starts)


def _shuffled(code: Code, t: str, vector: str, picks: list[int]) -> str:
    order = ", ".join(f"i32 {pick}" for pick in picks)
    return code.w.let(f"shufflevector {t} {vector}, {t} poison, <{len(picks)} x i32> <{order}>")


def find_group(code: Code, first: Value, items: Iterable[Value]) -> list[Value]:
    """The stores that write whole elements together with the first of ``items``, if any do.

    Between them stand pure values only. The guard that they share is met by all lanes.
    """
    element = first.memory.element
    steps = find_steps(code, first)
    if code.mask is not None or steps is None or not steps.whole:
        return []
    size = leaf_type(first).size
    if [at for at, _ in element.leaves] != list(range(0, element.size, size)):
        return []
    if any(dtype.size != size for _, dtype in element.leaves):
        return []
    group = _following(first, items, len(element.leaves))
    if not group or guard(code, first).mask is not None or guard(code, first).condition:
        return []
    return group


def _following(first: Value, items: Iterable[Value], count: int) -> list[Value]:
    """The first stores of an element's leaves, if they come before any other effect."""
    found: dict[int, Value] = {}
    for item in items:
        if item.op is Op.STORE and item.args[: len(item.args) - 1] == first.args[:-1]:
            if item.access.leaf in found:
                return []
            found[item.access.leaf] = item
            if len(found) == count:
                return [found[leaf] for leaf in sorted(found)]
        elif item.is_effect:
            return []
    return []


def store_group(code: Code, group: list[Value]) -> None:
    """Write whole elements, by stores of all of their leaves in order."""
    lanes, first = code.lanes, group[0]
    size, count = leaf_type(first).size, len(group)
    offset = code.values.get(first.indices[0])
    starts = part_pointers(code, first.memory, 0, offset)
    type_ = f"i{8 * size}"
    leaves = [_as_bits(code, code.values.get(store.operands[0])) for store in group]
    padded = 1 << (count - 1).bit_length()
    share = lanes.per_part
    picks = [leaf * share + lane for lane in range(share) for leaf in range(count)]
    for part, at in enumerate(starts):
        vectors = (*(leaf[part] for leaf in leaves), *["poison"] * (padded - count))
        wide = lanes.joined(type_, vectors)
        mixed = _shuffled(code, f"<{padded * share} x {type_}>", wide, picks)
        more = code.place(first.memory).metadata
        t = f"<{count * share} x {type_}>"
        code.w.do(f"store {t} {mixed}, ptr {at}, align {size}{more}")
    code.wrote()


def _as_bits(code: Code, held: Held) -> tuple[str, ...]:
    """The vectors of a value as integers, a bool as a byte."""
    lanes, stored = code.lanes, STORED[held.dtype]
    t, bits = lanes.width.type(held.dtype), lanes.width.of(f"i{held.dtype.bits}")
    if held.dtype is not bool_ and stored == f"i{held.dtype.bits}":
        return code.values.vector(held)
    op = "zext" if held.dtype is bool_ else "bitcast"
    return tuple(code.w.let(f"{op} {t} {part} to {bits}") for part in code.values.vector(held))
