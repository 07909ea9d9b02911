"""Which nodes of a graph depend on which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from khaljit.arrays import span
from khaljit.graphs.nodes import Node, Use

__all__ = ["chains", "dependencies"]


def dependencies(nodes: Sequence[Iterable[Use]]) -> list[set[int]]:
    """Per node, the nodes before it whose effects it must see or not disturb, the last ones only;
    nodes are given by what they use.

    Places are told apart by the bytes that arrays lie between.
    """
    seen: list[tuple[int, int, int, bool]] = []  # start, stop, node, whether it writes
    found: list[set[int]] = []
    for number, used in enumerate(nodes):
        needs: set[int] = set()
        uses = [(*span(array), written) for array, written in used]
        for start, stop, written in uses:
            needs.update(
                other
                for begin, end, other, writes in seen
                if (written or writes) and start < end and begin < stop
            )
        writes = [(start, stop) for start, stop, written in uses if written]
        seen = [one for one in seen if not _covered(one, writes)]
        seen += [(start, stop, number, written) for start, stop, written in uses]
        found.append(needs - _ancestors(needs, found))
    return found


def _covered(one: tuple[int, int, int, bool], writes: Iterable[tuple[int, int]]) -> bool:
    """Whether all later readers of a place depend on one of the writes anyhow."""
    return any(start <= one[0] and one[1] <= stop for start, stop in writes)


def _ancestors(needs: set[int], found: Sequence[set[int]]) -> set[int]:
    """What the needed nodes depend on themselves."""
    return set().union(*(found[one] for one in needs)) if needs else set()


def chains(nodes: Sequence[Node]) -> list[list[int]]:
    """The nodes in groups that have nothing to do with each other, each in order.

    Two nodes are in one group when they touch overlapping arrays of which some node writes one.
    """
    uses = sorted(
        (*span(array), number, written)
        for number, node in enumerate(nodes)
        for array, written in node.uses()
    )
    parents = list(range(len(nodes)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def join(group: Sequence[int], written: bool) -> None:
        if written:
            for number in group:
                parents[root(number)] = root(group[0])

    group: list[int] = []
    end, any_written = -1, False
    for start, stop, number, written in uses:  # from place to place
        if start >= end:
            join(group, any_written)
            group, any_written = [], False
        group.append(number)
        end, any_written = max(end, stop), any_written or written
    join(group, any_written)
    found: dict[int, list[int]] = {}
    for number in range(len(nodes)):
        found.setdefault(root(number), []).append(number)
    return list(found.values())
