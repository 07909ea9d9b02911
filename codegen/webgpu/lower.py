"""From a legal trace to one in the machine's own terms, which SPIR-V and WGSL spell out.

WebGPU has arrays of one type at bindings, no pointers, 32-bit integers and, where a device says
so, a few types more. So what the row of the target takes (``codegen/caps.py``) is more than the
machine has, and the difference is rewritten here, in this order:

1. ``launch``: the workgroup, the edge of the grid, workgroups counted along a line;
2. ``collectives``: subgroup operations by others, or through workgroup memory;
3. ``words``: memory in cells, narrow integers in words, guards as control flow, parameters;
4. ``wide``: 64-bit integers in pairs, where the machine has none.

This comes after the legaliser and not in it because it needs to know which arrays share a
binding, which is no part of the trace.

What comes out: values of the machine's types; accesses without guards, at offsets that count cells;
parameters as ``SCALAR`` values alone, which have slots; ids of type ``i32``; TRUNCDIV and TRUNCMOD
with good divisors, shifts in range, casts between machine types with operands in range; ``shuffle``
with a lane in range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from khaljit.codegen.caps import Caps
from khaljit.codegen.webgpu.collectives import compose_collectives
from khaljit.codegen.webgpu.interface import Binding, Interface, Slot
from khaljit.codegen.webgpu.launch import launch
from khaljit.codegen.webgpu.parameters import Parameters
from khaljit.codegen.webgpu.wide import in_pairs
from khaljit.codegen.webgpu.words import in_words
from khaljit.tracer.dtypes import u64
from khaljit.tracer.ir import Memory, Region, Space, Trace, effects, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["PLAIN_VARIANT", "Lowered", "Variant", "lower"]

_ACCESSES: Final = frozenset({Op.LOAD, Op.STORE, Op.ATOMIC})


@final
@dataclass(frozen=True, slots=True)
class Variant:
    """What else a program depends on.

    Attributes:
        bindings: for each array parameter its binding, numbered from 0 without gaps; None gives
            each its own. The host maps those that live in one buffer to one binding.
        fold: see `Interface.folded`.
        group: the workgroup of kernels that leave it to the backend.
        at_origin: every array begins where its binding does, so that no offset is added.
    """

    bindings: tuple[int, ...] | None = None
    fold: bool = False
    group: tuple[int, int, int] = (64, 1, 1)
    at_origin: bool = False


PLAIN_VARIANT: Final = Variant()


@final
@dataclass(frozen=True, slots=True)
class Lowered:
    """A trace in the machine's terms.

    Attributes:
        trace: it; ``arrays`` are the bindings.
        slots: where each ``SCALAR`` stands in the block of parameters, by number.
        interface: what the host has to do.
        written: memories that are stored to.
        atomic: memories with atomics on them.
        shared: bytes of workgroup memory.
        hands_over: arrays are changed and touched on both sides of a barrier, which then has to
            wait for them, too.
    """

    trace: Trace
    slots: dict[int, Slot]
    interface: Interface
    written: frozenset[Memory]
    atomic: frozenset[Memory]
    shared: int
    hands_over: bool


def lower(trace: Trace, caps: Caps, variant: Variant) -> Lowered:
    """Rewrite a legal trace for a device with the capabilities of ``caps``."""
    whole, arrays = trace.workgroup is None, len(trace.arrays)
    bindings = variant.bindings
    if bindings is None:
        bindings = tuple(range(arrays))
    count = 1 + max(bindings, default=-1)
    parameters = Parameters(trace)
    trace = launch(trace, parameters, variant.group, variant.fold)
    trace = compose_collectives(trace, caps)
    with_offset = 0 if variant.at_origin else arrays
    trace = in_words(trace, caps, parameters, bindings, with_offset)
    if u64 not in caps.machine:
        trace = in_pairs(trace, parameters)
    trace = replace(trace, scalars=parameters.list(trace))
    slots, size = parameters.slots(trace)
    atomic = _touched(trace, Op.ATOMIC)
    written = _touched(trace, Op.STORE) | atomic
    interface = Interface(
        bindings=_bindings(trace, bindings, count, written),
        uniform=count if size > caps.immediates else None,
        slots=tuple(sorted(slots.values(), key=lambda slot: slot.at)),
        size=size,
        folded=variant.fold,
        whole=whole,
    )
    return Lowered(
        trace, slots, interface, written, atomic, _shared(trace), _hands_over(trace.body, written)
    )


def _touched(trace: Trace, op: Op) -> frozenset[Memory]:
    return frozenset(effect.memory for effect in effects(trace.body) if effect.op is op)


def _hands_over(top: Region, written: frozenset[Memory]) -> bool:
    """Whether some array that is written is touched before a barrier and after one.

    A waiting for arrays is one for the whole device: a third of the time of a product of tiles.
    """
    inside = [
        (effect, *(inner for region in effect.regions for inner in effects(region)))
        for effect in top.body
    ]
    barriers = [k for k, group in enumerate(inside) if any(one.op is Op.BARRIER for one in group)]
    if not barriers:
        return False
    places: dict[Memory, list[int]] = {}
    for k, group in enumerate(inside):
        for one in group:
            if one.op in _ACCESSES and one.memory in written and one.memory.space is Space.ARRAY:
                places.setdefault(one.memory, []).append(k)
    return any(
        min(found) <= barriers[-1] and max(found) >= barriers[0] for found in places.values()
    )


def _bindings(
    trace: Trace, bindings: tuple[int, ...], count: int, written: frozenset[Memory]
) -> tuple[Binding, ...]:
    touched = {value.attr for value in values(trace.body) if value.op is Op.MEMORY}
    return tuple(
        Binding(
            arrays=tuple(number for number, own in enumerate(bindings) if own == binding),
            writable=array.memory in written,
            size=max(4, array.memory.element.size),
            used=array.memory in touched,
        )
        for binding, array in enumerate(trace.arrays[:count])
    )


def _shared(trace: Trace) -> int:
    shared = {
        value.attr
        for value in values(trace.body)
        if isinstance(value.attr, Memory) and value.attr.space is Space.SHARED
    }
    return sum(memory.element.size * memory.count for memory in shared)
