"""Decides where pure values are computed: global code motion in Click's manner.

A pure value may be computed wherever its operands exist. It is placed

* in the innermost region that holds all its uses (so an arm that is not taken costs nothing),
* then raised out of loop bodies as far as its operands exist, out of the arms of an ``if`` only
  on the way out of a loop;
* in that region just before the first effect that needs it, operands before users. What a nested
  region needs is needed by the ``if`` or ``loop`` that holds it.

Since pure values are total, raising one out of a loop that never runs only costs its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from khaljit.tracer.ir import Region, Trace, Value, values
from khaljit.tracer.nesting import Place, meet, places
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["CODELESS", "Schedule", "schedule"]

# Leaves that need no code; no item of a schedule.
CODELESS: Final = frozenset({Op.CONST, Op.MEMORY, Op.PARAM, Op.RESULT})


@final
@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Where everything is computed.

    Attributes:
        items: for each region its pure values and effects in the order in which they are
            computed; without the region's end and without what needs no code (`CODELESS`).
        order: every value, as `values` gives them.
    """

    items: dict[Region, tuple[Value, ...]]
    order: Sequence[Value]


def schedule(trace: Trace) -> Schedule:
    """Place every pure value of a trace; near linear in the trace's size."""
    tree = places(trace.body)
    stands = _stands(tree)
    order = values(trace.body)
    earliest = _earliest(order, stands, tree)
    # For each value its uses: the place of the user and its position there, or the position of
    # the effect before which it is computed.
    uses: dict[Value, list[tuple[Place, int]]] = {}
    before: dict[Place, dict[int, list[Value]]] = {place: {} for place in tree}
    for value in reversed(order):  # users before operands
        use = stands.get(value)
        if use is None:
            if value.op in CODELESS:
                continue
            use = place, position = _settle(uses[value], earliest[value])
            before[place].setdefault(position, []).append(value)
        for operand in value.args:
            if operand not in stands:
                uses.setdefault(operand, []).append(use)
    items = {place.region: _merge(place.region, before[place]) for place in tree}
    return Schedule(items, order)


def _stands(tree: Sequence[Place]) -> dict[Value, tuple[Place, int]]:
    """Where each effect stands; the end of a region comes after its body."""
    stands: dict[Value, tuple[Place, int]] = {}
    for place in tree:
        for position, effect in enumerate(place.region.body):
            stands[effect] = (place, position)
        stands[place.region.end] = (place, len(place.region.body))
    return stands


def _earliest(
    order: Sequence[Value], stands: dict[Value, tuple[Place, int]], tree: Sequence[Place]
) -> dict[Value, Place]:
    """The outermost place where the operands of each value exist."""
    top = tree[0]
    earliest = {param: place for place in tree for param in place.region.params}
    for value in order:
        if value in stands:
            earliest[value] = stands[value][0]
        elif value not in earliest:
            deepest = top
            for operand in value.args:
                place = earliest[operand]
                if place.depth > deepest.depth:
                    deepest = place
            earliest[value] = deepest
    return earliest


def _settle(uses: list[tuple[Place, int]], earliest: Place) -> tuple[Place, int]:
    """Where a value is computed: a place and the position before which."""
    latest = uses[0][0]
    for place, _ in uses:
        if place is not latest:
            latest = meet(latest, place)
    best = climbing = latest
    while climbing is not earliest:
        assert climbing.parent is not None, "operands exist where a value is used"
        if climbing.is_loop:
            best = climbing.parent
        climbing = climbing.parent
    return best, min(_position(place, position, best) for place, position in uses)


def _position(place: Place, position: int, within: Place) -> int:
    """A position inside ``within`` or nested in it as one in ``within`` itself."""
    while place is not within:
        position = place.position
        assert place.parent is not None, "a use stands in or below its value's place"
        place = place.parent
    return position


def _merge(region: Region, before: dict[int, list[Value]]) -> tuple[Value, ...]:
    """The effects of a region with what is computed before each, collected users first."""
    items: list[Value] = []
    for position, effect in enumerate(region.body):
        items.extend(reversed(before.get(position, ())))
        items.append(effect)
    items.extend(reversed(before.get(len(region.body), ())))
    return tuple(items)
