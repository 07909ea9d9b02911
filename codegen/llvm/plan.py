"""How barriers cut a kernel: what is done once for a workgroup, and the segments between.

A region around a barrier becomes pieces in order:

* values that are the same in the whole workgroup and need nothing from the segment at hand;
* an ``if`` or ``loop`` that has a barrier inside, or is left by way of one such; all invocations
  go through it together, or the kernel would not have been recorded;
* segments of everything else, up to the next barrier.

What one segment computes and another reads is either computed again, where that is cheap (ids and
arithmetic on them), or kept: in one scalar where the whole workgroup agrees on it, else in memory
per subgroup. What varies and flows to the parameters or results of a loop or conditional of the
workgroup moves there at the end of a segment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Final, TypeAlias, final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.flow import position
from khaljit.codegen.llvm.loops import own_ends
from khaljit.tracer.ir import Region, Value, effects, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.uniformity import Scope

__all__ = ["Plan", "Segment", "has_barrier"]

# Operations that are cheaper to do again than to load what they gave.
CHEAP: Final = 6

_LEAVES: Final = frozenset({Op.CONST, Op.MEMORY, Op.SCALAR, Op.SHAPE, Op.STRIDE})


@final
@dataclass(slots=True, eq=False)
class Segment:
    """What each subgroup does between two barriers.

    Attributes:
        items: values and effects in order.
        moves: (parameter or result, value that flows there), done at the end.
    """

    items: list[Value] = field(default_factory=list)
    moves: list[tuple[Value, Value]] = field(default_factory=list)


Piece: TypeAlias = Segment | Value


def has_barrier(region: Region) -> bool:
    """Whether a region has a barrier that subgroups wait at."""
    return any(effect.op is Op.BARRIER and effect.attr != "subgroup" for effect in effects(region))


@final
class Plan:
    """The pieces of a kernel.

    Attributes:
        pieces: of each region on the level of the workgroup.
        needs: of each segment, what it reads from outside, operands before users.
        kept: of each segment, what others read of it.
        spilled: the values that live in memory per subgroup.
    """

    def __init__(self, code: Code) -> None:
        self.pieces: Final[dict[Region, list[Piece]]] = {}
        self.needs: Final[dict[Segment, list[Value]]] = {}
        self.kept: Final[dict[Segment, list[Value]]] = {}
        self.spilled: Final[set[Value]] = set()
        self._code: Final = code
        self._homes: Final[dict[Value, Segment]] = {}
        self._group: Final[set[Value]] = set()  # computed on the level of the workgroup
        self._costs: Final[dict[Value, int]] = {}
        self._uses: Final = Counter(
            arg for value in values(code.trace.body) for arg in dict.fromkeys(value.args)
        )
        self._region(code.trace.body, None, None)
        for segment in self._segments():
            self.kept[segment] = []
        for pieces in self.pieces.values():
            self._find_uses(pieces)

    def _segments(self) -> list[Segment]:
        return [
            piece
            for pieces in self.pieces.values()
            for piece in pieces
            if isinstance(piece, Segment)
        ]

    def is_shared(self, value: Value) -> bool:
        """Whether the whole workgroup has one value."""
        return self._code.uniformity.scope[value] <= Scope.WORKGROUP

    # Cutting.

    def _region(self, region: Region, node: Value | None, loop: Value | None) -> None:
        """Cut a region; ``node`` owns it, ``loop`` is the innermost of the workgroup's level."""
        pieces: list[Piece] = []
        self.pieces[region] = pieces
        current: Segment | None = None
        for item in self._code.items[region]:
            if item.op is Op.BARRIER:
                current = None if item.attr != "subgroup" else current
            elif item.regions and self._splits(item):
                if item.op is Op.LOOP:
                    self._move(pieces, list(item.regions[0].params), item)
                current = None
                pieces.append(item)
                self._own(item)
                for inner in item.regions:
                    self._region(inner, item, item if item.op is Op.LOOP else loop)
            elif not item.is_effect and self._is_group_value(item, current):
                self._group.add(item)
                pieces.insert(len(pieces) - (current is not None), item)
            elif not item.is_effect and (earlier := self._earlier(item, pieces)) is not None:
                earlier.items.append(item)
                self._settle(item, earlier)
            else:
                if current is None:
                    current = Segment()
                    pieces.append(current)
                current.items.append(item)
                self._settle(item, current)
        end = region.end
        if end.op is Op.CONTINUE and loop is not None:
            self._move(pieces, list(loop.regions[0].params), end)
        elif end.op is Op.BREAK and loop is not None:
            self._move(pieces, self._code.results.get(loop, []), end)
        elif end.op is Op.YIELD and node is not None:
            self._move(pieces, self._code.results.get(node, []), end)

    def _splits(self, item: Value) -> bool:
        """Whether a conditional or loop stands on the level of the workgroup."""
        if any(has_barrier(region) for region in item.regions):
            return True
        uniformity = self._code.uniformity
        together = uniformity.exits[item] if item.op is Op.LOOP else uniformity.scope[item.args[0]]
        return together <= Scope.WORKGROUP and _leaves(item)

    def _own(self, node: Value) -> None:
        """What a conditional or loop of the workgroup defines and is no scalar lives in memory."""
        defined = list(self._code.results.get(node, []))
        if node.op is Op.LOOP:
            defined += node.regions[0].params
        for value in defined:
            if self._code.uniformity.scope.get(value, Scope.CONSTANT) <= Scope.WORKGROUP:
                self._group.add(value)
            else:
                self.spilled.add(value)

    def _settle(self, item: Value, segment: Segment) -> None:
        """Everything that an item defines, at any depth, belongs to a segment."""
        self._homes[item] = segment
        for result in self._code.results.get(item, []):
            self._homes[result] = segment
        for region in item.regions:
            for param in region.params:
                self._homes[param] = segment
            for inner in self._code.items[region]:
                self._settle(inner, segment)

    def _is_group_value(self, value: Value, current: Segment | None) -> bool:
        if not self.is_shared(value):
            return False
        return all(
            arg.op in _LEAVES
            or arg in self._group
            or (self.is_shared(arg) and self._homes.get(arg) not in (None, current))
            for arg in value.args
        )

    def _earlier(self, value: Value, pieces: list[Piece]) -> Segment | None:
        """The segment before the one at hand in which to compute a value rather than keep operands.

        That is where its last operand is, if some operand from a segment has no other use and none
        comes from the level of the workgroup behind that segment.
        """
        homes = [home for arg in value.args if (home := self._homes.get(arg)) is not None]
        segments = [piece for piece in pieces if isinstance(piece, Segment) and piece in homes]
        if not segments or not any(
            self._uses[arg] == 1 and not self.is_shared(arg)
            for arg in value.args
            if arg in self._homes
        ):
            return None
        behind = pieces[pieces.index(segments[-1]) + 1 :]
        sources = (arg.args[0] if arg.op is Op.RESULT else arg for arg in value.args)
        if any(source in behind for source in sources):
            return None
        return segments[-1]

    def _move(self, pieces: list[Piece], targets: list[Value], flow: Value) -> None:
        """What varies flows to parameters or results at the end of the last segment."""
        used = self._code.used
        moves = [
            (target, flow.args[position(target)])
            for target in targets
            if target in used and not self.is_shared(target)
        ]
        if not moves:
            return
        if not pieces or not isinstance(pieces[-1], Segment):
            pieces.append(Segment())
        last = pieces[-1]
        assert isinstance(last, Segment)
        last.moves += moves

    # What is read across segments.

    def _find_uses(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Segment):
                self._find_needs(piece)
                continue
            self._read_by_group(piece.args)
            for region in piece.regions:
                self._read_by_group(region.end.args)

    def _read_by_group(self, operands: tuple[Value, ...]) -> None:
        for operand in operands:
            if operand in self._homes and self.is_shared(operand):
                self._keep(operand)

    def _keep(self, value: Value) -> None:
        """A segment's value is read elsewhere."""
        kept = self.kept[self._homes[value]]
        if value not in kept:
            kept.append(value)

    def _find_needs(self, segment: Segment) -> None:
        needs: dict[Value, None] = {}
        for item in segment.items:
            self._need_of(item, segment, needs)
        for _, source in segment.moves:
            self._need(source, segment, needs)
        self.needs[segment] = list(needs)

    def _need_of(self, item: Value, segment: Segment, needs: dict[Value, None]) -> None:
        for arg in item.args:
            self._need(arg, segment, needs)
        for region in item.regions:
            for inner in (*self._code.items[region], region.end):
                self._need_of(inner, segment, needs)

    def _need(self, value: Value, segment: Segment, needs: dict[Value, None]) -> None:
        """A segment reads a value: find where it gets it from."""
        home = self._homes.get(value)
        if value.op in _LEAVES or value in self._group or home is segment or value in needs:
            return
        if home is not None and self.is_shared(value):
            self._keep(value)
        elif value in self.spilled or self._cost(value) > CHEAP:
            if home is not None:
                self._keep(value)
            self.spilled.add(value)
            needs[value] = None
        else:
            for arg in value.args:
                self._need(arg, segment, needs)
            needs[value] = None

    def _cost(self, value: Value) -> int:
        """Operations that computing a value again takes; more than `CHEAP` where it cannot be."""
        if value.op in _LEAVES or value in self._group:
            return 0
        home = self._homes.get(value)
        if home is not None and self.is_shared(value):
            return 0
        if value.is_effect or value.op in (Op.PARAM, Op.RESULT):
            return CHEAP + 1
        if value not in self._costs:
            costs = sum(self._cost(arg) for arg in value.args)
            self._costs[value] = min(CHEAP + 1, costs + (value.op is not Op.ID))
        return self._costs[value]


def _leaves(node: Value) -> bool:
    """Whether control may leave a conditional or loop for somewhere else than what follows it."""
    if any(effect.op is Op.RETURN for region in node.regions for effect in effects(region)):
        return True
    return node.op is Op.IF and any(own_ends(region) for region in node.regions)
