"""Refuses barriers and subgroup operations that not all invocations of their scope reach together.

The law: a workgroup or storage barrier is reached under control flow that is uniform over the
workgroup, a subgroup operation or subgroup barrier under control flow that is uniform over the
subgroup (`khaljit.tracer.uniformity` says what that is). So they may not stand

* in a branch on a condition that may differ in the scope;
* in a loop that the invocations of the scope may leave at different iterations;
* after a ``return``, or a ``break`` or ``continue`` of an enclosing loop, that only some take.
  After the loop those that broke out are together again.

The rule must not depend on the target. So the lanes of a subgroup count as sharing y and z only
where the workgroup's x size is a multiple of `WIDEST_SUBGROUP`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.ir import Trace, Value, effects
from khaljit.tracer.nesting import Place, places
from khaljit.tracer.ops import Op
from khaljit.tracer.uniformity import Scope, Uniformity, analyse

__all__ = ["WIDEST_SUBGROUP", "check"]

WIDEST_SUBGROUP: Final = 32

_BARRIER_NAMES: Final = {
    "workgroup": "barrier()",
    "storage": "storage_barrier()",
    "subgroup": "subgroup_barrier()",
}
_APART: Final = "let all invocations take the same way and guard the accesses instead"


def check(trace: Trace) -> None:
    """TraceError for the first barrier or subgroup operation that may be reached apart."""
    if not any(
        effect.op is Op.BARRIER or effect.op is Op.SUBGROUP for effect in effects(trace.body)
    ):
        return
    rows = trace.workgroup is None or trace.workgroup[0] % WIDEST_SUBGROUP == 0
    uniformity = analyse(trace, rows=rows)
    tree = places(trace.body)
    for place in tree:
        for position, effect in enumerate(place.region.body):
            limit = _limit(effect)
            if limit is not None and uniformity.reach[effect] > limit:
                raise _Blame(tree, uniformity, limit).error(effect, place, position)


def _limit(effect: Value) -> Scope | None:
    """The scope whose invocations have to reach an effect together; None for most effects."""
    if effect.op is Op.BARRIER and effect.attr != "subgroup":
        return Scope.WORKGROUP
    return Scope.SUBGROUP if effect.op is Op.BARRIER or effect.op is Op.SUBGROUP else None


@final
class _Blame:
    """Finds out why control flow is not uniform: the way out from an effect, step by step."""

    def __init__(self, tree: Sequence[Place], uniformity: Uniformity, limit: Scope) -> None:
        self._tree: Final = tree
        self._uniformity: Final = uniformity
        self._limit: Final = limit

    def error(self, effect: Value, place: Place, position: int) -> TraceError:
        if effect.op is Op.BARRIER:
            name = _BARRIER_NAMES[str(effect.attr)]
        else:
            name = f"the subgroup operation {effect.attr!r}"
        group = "workgroup" if self._limit is Scope.WORKGROUP else "subgroup"
        reason, mend = self._reason(effect, place, position)
        return TraceError(
            f"{name} is not reached by all invocations of a {group} together: {reason}",
            at=effect.at,
            mend=mend,
        )

    def _reason(self, effect: Value, place: Place, position: int) -> tuple[str, str]:
        """The innermost cause, in words, with its mend."""
        what = "barrier" if effect.op is Op.BARRIER else "operation"
        while place.owner is not None and place.parent is not None:
            found = self._left_before(place, position)
            if found is not None:
                return found
            owner = place.owner
            if self._splits(owner):
                if not place.is_loop:
                    return (
                        f"it stands in a branch on the condition at {_cite(owner.at)}, "
                        f"which may differ between them",
                        f"move the {what} out of the branch",
                    )
                return (
                    "it stands in a loop that they may leave at different iterations"
                    f"{self._left_by(place)}",
                    _APART,
                )
            position = place.position
            place = place.parent
        found = self._left_before(place, position)
        assert found is not None, "control flow is lost somewhere on the way"
        return found

    def _splits(self, node: Value) -> bool:
        """Whether invocations that come to an ``if`` or ``loop`` together may part there."""
        if node.op is Op.LOOP:
            return self._uniformity.exits[node] > self._limit
        return self._uniformity.scope[node.args[0]] > self._limit

    def _left_before(self, place: Place, position: int) -> tuple[str, str] | None:
        """A ``return`` or ``continue`` before a position that only some take.

        A ``break`` is told of when the way out comes to its loop.
        """
        for inner in self._tree:
            end = inner.region.end
            leaves = end.op is Op.RETURN or end.op is Op.CONTINUE
            if not leaves or not _inside(inner, place, position):
                continue
            parting = self._parting(inner, place)
            if parting is None or (end.op is Op.CONTINUE and _in_loop(inner, place)):
                continue
            cited = _cite(parting.at)
            reason = f"some of them {end.op.value} before it, by the condition at {cited}"
            mend = "guard the accesses, not the return" if end.op is Op.RETURN else _APART
            return reason, mend
        return None

    def _left_by(self, body: Place) -> str:
        """The condition by which the invocations part in the body of a loop, in words."""
        for inner in self._tree:
            end = inner.region.end
            if end.op is Op.YIELD or not _inside(inner, body, len(body.region.body)):
                continue
            parting = self._parting(inner, body)
            if parting is not None and (end.op is Op.RETURN or not _in_loop(inner, body)):
                return f", by the condition at {_cite(parting.at)}"
        return ""

    def _parting(self, inner: Place, outer: Place) -> Value | None:
        """Where invocations that are together in a place may part on the way to an inner one."""
        while inner is not outer:
            assert inner.owner is not None
            assert inner.parent is not None
            if self._splits(inner.owner):
                return inner.owner
            inner = inner.parent
        return None


def _inside(inner: Place, outer: Place, position: int) -> bool:
    """Whether a place is in an effect that stands before a position of another place."""
    while inner.depth > outer.depth + 1:
        assert inner.parent is not None
        inner = inner.parent
    return inner.parent is outer and inner.position < position


def _in_loop(inner: Place, outer: Place) -> bool:
    """Whether there is a loop between two places, the inner one included."""
    while inner is not outer:
        if inner.is_loop:
            return True
        assert inner.parent is not None
        inner = inner.parent
    return False


def _cite(site: Site | None) -> str:
    """A place in the source with its text, where there is one."""
    if site is None:
        return "an unknown line"
    source = site.excerpt().strip().split("\n")[0]
    return f"{site} ({source})" if source else str(site)
