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
from khaljit.tracer.nesting import Place, places
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


# A place, and the position there before which something happens.
_Use = tuple[Place, int]


def schedule(trace: Trace) -> Schedule:
    """Place every pure value of a trace; near linear in the trace's size."""
    tree, order = places(trace.body), values(trace.body)
    stands = _stands(tree)
    earliest, top = _earliest(order, stands, tree), tree[0]
    uses: dict[Value, _Use] = {}  # of each value, as one: the place that holds all, the first
    before: dict[Place, dict[int, list[Value]]] = {place: {} for place in tree}
    for value in reversed(order):  # users before operands
        use = stands.get(value)
        if use is None:
            if value.op in CODELESS:
                continue
            use = uses[value]
            if use[0] is not earliest.get(value, top):
                use = _settle(use, earliest.get(value, top))
            before[use[0]].setdefault(use[1], []).append(value)
        for operand in value.args:
            known = uses.get(operand)
            if known is None:
                uses[operand] = use
            elif known[0] is not use[0]:
                uses[operand] = _both(known, use)
            elif known[1] > use[1]:
                uses[operand] = use
    items = {place.region: _merge(place.region, before[place]) for place in tree}
    return Schedule(items, order)


def _stands(tree: Sequence[Place]) -> dict[Value, _Use]:
    """Where each effect stands; the end of a region comes after its body."""
    stands: dict[Value, _Use] = {}
    for place in tree:
        region = place.region
        for position, effect in enumerate(region.body):
            stands[effect] = (place, position)
        stands[region.end] = (place, len(region.body))
    return stands


def _earliest(
    order: Sequence[Value], stands: dict[Value, _Use], tree: Sequence[Place]
) -> dict[Value, Place]:
    """The outermost place where the operands of each value exist, unless it is the top."""
    top, *inner = tree
    earliest: dict[Value, Place] = {}
    for place in inner:
        earliest.update(dict.fromkeys(place.region.params, place))
        earliest.update(dict.fromkeys(place.region.body, place))
    for value in order:
        if value.args and value not in stands:
            deepest = top
            for operand in value.args:
                if operand in earliest and earliest[operand].depth > deepest.depth:
                    deepest = earliest[operand]
            if deepest is not top:
                earliest[value] = deepest
    return earliest


def _both(one: _Use, other: _Use) -> _Use:
    """The place that holds two uses, and the position of the first there."""
    (a, first), (b, second) = one, other
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None, "places of one trace"
            first, a = a.position, a.parent
        else:
            assert b.parent is not None, "places of one trace"
            second, b = b.position, b.parent
    return (a, first) if first <= second else (a, second)


def _settle(latest: _Use, earliest: Place) -> _Use:
    """Where a value is computed: out of loops, as far as its operands exist."""
    best, place = latest, latest[0]
    while place is not earliest:
        assert place.parent is not None, "operands exist where a value is used"
        if place.is_loop:
            best = place.parent, place.position
        place = place.parent
    return best


def _merge(region: Region, before: dict[int, list[Value]]) -> tuple[Value, ...]:
    """The effects of a region with what is computed before each, collected users first."""
    items: list[Value] = []
    for position, effect in enumerate(region.body):
        items.extend(reversed(before.get(position, ())))
        items.append(effect)
    items.extend(reversed(before.get(len(region.body), ())))
    return tuple(items)
