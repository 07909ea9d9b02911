"""Which ends and parameters belong to which ``if`` or ``loop``."""

from __future__ import annotations

from dataclasses import field
from typing import final

from khaljit.tracer.ir import Region, Value, analysis
from khaljit.tracer.nesting import Place, places
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["Exits", "find_exits"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Exits:
    """Found by `find_exits`.

    Attributes:
        owners: of a ``yield`` the ``if``, of a ``break``, ``continue`` or parameter the ``loop``.
        ends: of an ``if`` its yields, of a ``loop`` its breaks and continues, in order.
        around: the place of each effect and end.
    """

    owners: dict[Value, Value] = field(default_factory=dict)
    ends: dict[Value, list[Value]] = field(default_factory=dict)
    around: dict[Value, Place] = field(default_factory=dict)


@analysis
def find_exits(top: Region) -> Exits:
    """What belongs to what in a region and those nested in it."""
    found = Exits()
    loops: dict[Place, Value | None] = {}  # the innermost loop around what stands in a place
    for place in places(top):
        region, owner = place.region, place.owner
        outer = loops[place.parent] if place.parent is not None else None
        loops[place] = owner if place.is_loop else outer
        for effect in (*region.body, region.end):
            found.around[effect] = place
        for param in region.params:
            assert owner is not None
            found.owners[param] = owner
        target = owner if region.end.op is Op.YIELD else loops[place]
        if region.end.op is not Op.RETURN and target is not None:
            found.owners[region.end] = target
            found.ends.setdefault(target, []).append(region.end)
    return found
