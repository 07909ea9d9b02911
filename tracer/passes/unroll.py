"""Small loops with a known number of iterations become as many copies of their body.

Before::

    %s = loop (%k = 0, %t = 0.0) {
        if (ge %k 2) { break %t } else { yield }
        %v = load a[%k]
        continue (add %k 1) (add %t %v)
    }

After::

    %v0 = load a[0]
    %v1 = load a[1]
    %s is (add (add 0.0 %v0) %v1)

The loop has its only ``break`` in a guard at the top that compares a counter with a constant; the
counter starts at a constant and each iteration adds another to it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Final, final

from khaljit.tracer.build import constant
from khaljit.tracer.ir import Region, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.exits import Exits, find_exits
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["unroll"]

# Most iterations of a loop that is unrolled, and most operations that may come of it.
_MOST_TRIPS: Final = 16
_MOST_OPERATIONS: Final = 256

_COMPARISONS: Final[dict[Op, Callable[[int, int], bool]]] = {
    Op.LT: lt,
    Op.LE: le,
    Op.GT: gt,
    Op.GE: ge,
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
}


def unroll(trace: Trace) -> Trace:
    """Unroll what is small enough."""
    loops = [effect for effect in effects(trace.body) if effect.op is Op.LOOP]
    if not loops:
        return trace
    exits = find_exits(trace.body)
    found = {
        loop: counted
        for loop in loops
        if (counted := _counted(loop, exits, trace.index_bits)) is not None
    }
    return _Unroll(trace, found).run() if found else trace


@final
@dataclass(frozen=True, slots=True)
class _Counted:
    """A loop of which the number of iterations is known: its guard, which is the first effect."""

    trips: int
    leave: Value


class _Unroll(Rewriter):
    def __init__(self, trace: Trace, found: dict[Value, _Counted]) -> None:
        super().__init__(trace)
        self._found: Final = found

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        counted = self._found.get(value)
        if counted is None:
            return (yield from super().loop(value))
        region = value.regions[0]
        carried = self.all(value.args)
        copied = Region((), region.body[1:], region.end)
        outer, self.copying = self.copying, True
        for _ in range(counted.trips):
            known = len(self.values)
            self.bind(region.params, carried)
            yield from self.body(copied)
            if self.builder.ended:
                break
            carried = self.all(region.end.args)
            self.forget(known)
        self.copying = outer
        if self.builder.ended:
            return ()
        known = len(self.values)
        self.bind(region.params, carried)
        outcome = self.all(counted.leave.args)
        self.forget(known)
        return outcome


def _counted(loop: Value, exits: Exits, index_bits: int) -> _Counted | None:
    """What is known of a loop, if it is one to unroll."""
    region = loop.regions[0]
    ends = exits.ends.get(loop, [])
    if len(ends) != 2 or region.end.op is not Op.CONTINUE or not region.body:
        return None
    guard = region.body[0]
    if guard.op is not Op.IF or guard.regions[0].body or guard.regions[1].body:
        return None
    leave, stay = guard.regions[0].end, guard.regions[1].end
    if leave.op is not Op.BREAK or stay.op is not Op.YIELD or stay.args:
        return None
    trips = _trips(loop, guard.args[0], index_bits)
    if trips is None or trips * _size(region) > _MOST_OPERATIONS:
        return None
    return _Counted(trips, leave)


def _trips(loop: Value, condition: Value, index_bits: int) -> int | None:
    """The number of iterations until the condition holds, if it is small and known."""
    compare = _COMPARISONS.get(condition.op)
    if compare is None:
        return None
    counter, limit = condition.args[0], constant(condition.args[1])
    region = loop.regions[0]
    if counter not in region.params or not counter.type.is_integer or limit is None:
        return None
    position = region.params.index(counter)
    start, after = constant(loop.args[position]), region.end.args[position]
    if after.op is not Op.ADD or after.args[0] is not counter or start is None:
        return None
    step = constant(after.args[1])
    if step is None:
        return None
    bits = counter.type.bits or index_bits
    least = -(1 << bits - 1) if counter.type.is_signed else 0
    number = int(start)
    for trips in range(_MOST_TRIPS + 1):
        if compare(number, int(limit)):
            return trips
        number = (number + int(step) - least) % (1 << bits) + least
    return None


def _size(region: Region) -> int:
    """Operations under a region's effects, as far as the budget reaches."""
    seen: set[Value] = set()
    stack: list[Value] = []
    pending = [region]
    while pending:
        inner = pending.pop()
        for effect in (*inner.body, inner.end):
            stack.append(effect)
            pending.extend(effect.regions)
        while stack and len(seen) <= _MOST_OPERATIONS:
            value = stack.pop()
            if value not in seen and value.op not in (Op.CONST, Op.MEMORY):
                seen.add(value)
                stack.extend(value.args)
        if len(seen) > _MOST_OPERATIONS:
            break
    return len(seen)
