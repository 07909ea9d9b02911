"""Where the regions of a trace stand in one another: the tree that analyses climb.

Regions know what is inside them; a `Place` knows what a region is inside of.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.tracer.ir import Region, Value, analysis
from khaljit.tracer.ops import Op

__all__ = ["Place", "is_unreachable", "places"]


@final
class Place:
    """A region and where it stands. Equality is identity.

    Attributes:
        region: the region.
        parent: the place of the region that holds it; None for the top region.
        owner: the ``if`` or ``loop`` that it is an arm or the body of; None for the top region.
        position: of the owner in the parent's body.
        depth: number of regions around it.
    """

    __slots__ = ("depth", "owner", "parent", "position", "region")

    def __init__(
        self,
        region: Region,
        parent: Place | None = None,
        owner: Value | None = None,
        position: int = 0,
        depth: int = 0,
    ) -> None:
        self.region: Final = region
        self.parent: Final = parent
        self.owner: Final = owner
        self.position: Final = position
        self.depth: Final = depth

    @property
    def is_loop(self) -> bool:
        """Whether the region is the body of a loop."""
        return self.owner is not None and self.owner.op is Op.LOOP


@analysis
def places(top: Region) -> tuple[Place, ...]:
    """The places of a region and of all regions nested in it, outer before inner, in order."""
    found: list[Place] = []
    stack = [Place(top)]
    while stack:
        place = stack.pop()
        found.append(place)
        inner = [
            Place(region, place, effect, position, place.depth + 1)
            for position, effect in enumerate(place.region.body)
            if effect.regions
            for region in effect.regions
        ]
        inner.reverse()
        stack += inner
    return tuple(found)


def is_unreachable(region: Region) -> bool:
    """Whether a region's end cannot be reached: the effect before it goes on nowhere.

    That is a branch with no ``yield``, or a loop with no ``break``.
    """
    last = region.body[-1] if region.body else None
    if last is None or not last.regions:
        return False
    if last.op is Op.IF:
        return all(arm.end.op is not Op.YIELD for arm in last.regions)
    stack = list(last.regions)
    while stack:
        inner = stack.pop()
        if inner.end.op is Op.BREAK:
            return False
        stack.extend(arm for one in inner.body if one.op is Op.IF for arm in one.regions)
    return True
