"""Clears the checks of accesses that are provably in bounds, and takes branches that are provable.

Before::

    if (or (ge %x (shape out 1)) (ge %y (shape out 0))) { return } else { yield }
    store out[%y, %x] %v                        # checked

After::

    store out[%y, %x] %v                        # unchecked

What is proven, and from what, is in ``linear.py``: conditions on the way, ranges of types and ids,
what ``%``, ``min`` and the like imply, equal shapes. Shapes of other memories are constants. Where
some axes are proven and others are not, lowering is told which (``Access.inside``). A
carried value that is an integer is tried for three invariants: never below what it starts as, never
above it, never negative. All are assumed first; what some ``continue`` does not keep is given up
and the whole is done again, so that what remains in the end holds by induction.

With ``unchecked`` all checks go, but in debug mode. Assertions that are proven go, too.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.build import constant
from khaljit.tracer.ir import Access, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.exits import Exits, find_exits
from khaljit.tracer.passes.linear import Linear, Prover
from khaljit.tracer.passes.paths import PathRewriter
from khaljit.tracer.records import replace
from khaljit.tracer.rewriting import Walk

__all__ = ["bounds"]

# After so many rounds all invariants are given up.
_MOST_ROUNDS: Final = 8

# A loop, the position of a carried value, and the number of the invariant.
_Claim = tuple[Value, int, int]


def bounds(trace: Trace) -> Trace:
    """Clear ``checked`` where it is proven unnecessary, or not wanted."""
    refuted: set[_Claim] = set()
    for count in range(_MOST_ROUNDS + 1):
        claiming = count < _MOST_ROUNDS
        if claiming and _is_unsure(trace):  # accesses are looked at once that is settled
            attempt = _Invariants(trace, refuted, claiming)
            attempt.run()
            if attempt.refuted:
                refuted |= attempt.refuted
                continue
        attempt = _Bounds(trace, refuted, claiming)
        done = attempt.run()
        if not attempt.refuted:
            return done
        refuted |= attempt.refuted
    raise AssertionError("nothing is refuted where nothing is claimed")


class _Invariants(PathRewriter):
    """Takes the branches that are proven, and finds out which invariants of loops do not hold."""

    def __init__(self, trace: Trace, given_up: set[_Claim], claiming: bool) -> None:
        super().__init__(trace)
        self.refuted: Final[set[_Claim]] = set()
        self._given_up: Final = given_up
        self._claiming: Final = claiming
        self._prover: Final = Prover(trace, self.builder)
        self._exits: Final = find_exits(trace.body)
        # By loop and position: the invariants, as functions of the carried value's form.
        self._claims: Final[dict[tuple[Value, int], list[tuple[_Claim, int, Linear]]]] = {}

    def assume(self, condition: Value, truth: bool) -> None:
        self._prover.assume(condition, truth)

    def mark(self) -> int:
        return self._prover.mark()

    def forget(self, mark: int) -> None:
        self._prover.forget(mark)

    # Branches whose condition is proven or refuted.

    def if_(self, value: Value) -> Walk[tuple[Value, ...]]:
        decided = self._prover.decides(self.value(value.args[0]))
        if decided is not None:
            return (yield from self.taken(value, decided))
        return (yield from super().if_(value))

    # Invariants of loops.

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        mark = self.mark()
        initial = self.all(value.args)
        region = value.regions[0]
        params = self.enter(region)
        for position, (param, start) in enumerate(zip(params, initial, strict=True)):
            if self._claiming and param.type.is_integer:
                self._claim(value, position, param, start)
        yield from self.contents(region)
        body = self.leave(region)
        self.forget(mark)
        self.about(value)
        return self.builder.loop(initial, body, self.types(value))

    def _claim(self, loop: Value, position: int, param: Value, start: Value) -> None:
        """Assume the invariants that hold at the start and have not been given up."""
        first, own = self._prover.form(start), self._prover.atom(param)
        # Each is sign * value + rest, not negative.
        forms = [(1, first.times(-1)), (-1, first)]
        if self._prover.proves(first):
            forms.append((1, Linear(0)))
        claims = self._claims.setdefault((loop, position), [])
        counts = _counts(loop, position, self._exits)
        for number, (sign, rest) in enumerate(forms):
            claim = (loop, position, number)
            if claim not in self._given_up and counts * sign >= 0:
                claims.append((claim, sign, rest))
                self._prover.axioms.setdefault(param, []).append(own.times(sign).plus(rest))

    def end(self, value: Value) -> None:
        if value.op is Op.CONTINUE:
            loop = self._exits.owners[value]
            for position, old in enumerate(value.args):
                for claim, sign, rest in self._claims.get((loop, position), ()):
                    if not self._keeps(self.value(old), sign, rest):
                        self.refuted.add(claim)
        super().end(value)

    def _keeps(self, carried: Value, sign: int, rest: Linear) -> bool:
        """Whether an invariant holds of the value that the next iteration starts with."""
        return any(
            self._prover.proves(form.times(sign).plus(rest)) for form in self._prover.forms(carried)
        )


class _Bounds(_Invariants):
    """Clears the checks of accesses, too."""

    def __init__(self, trace: Trace, given_up: set[_Claim], claiming: bool) -> None:
        super().__init__(trace, given_up, claiming)
        self._extents: Final[dict[Value, list[Value]]] = {}
        self._accesses: Final[dict[tuple[int, bool, frozenset[int]], Access]] = {}

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        attr = value.attr
        if value.op is Op.ASSERT and self._prover.decides(args[0]):
            return None  # it never fails
        if not isinstance(attr, Access) or not attr.checked or attr.flat:
            return super().effect(value, args)
        extents = self._extents_of(args[0], attr)
        inside = frozenset(range(len(extents)))
        if not self.trace.options.unchecked or self.trace.options.debug:
            inside = frozenset(
                axis
                for axis, extent in enumerate(extents)
                if self._prover.is_within(args[1 + axis], extent)
            )
        attr = self._told(attr, len(inside) < len(extents), inside)
        return self.builder.effect(value.op, args, attr, value.dtype)

    def _extents_of(self, memory: Value, access: Access) -> list[Value]:
        if access.inner:
            return self.builder.extents(memory, access)
        if memory not in self._extents:
            self._extents[memory] = self.builder.extents(memory, access)
        return self._extents[memory]

    def _told(self, access: Access, checked: bool, inside: frozenset[int]) -> Access:
        """An access with what is proven of it; one for all effects that have the old one."""
        if access.checked is checked and access.inside == inside:
            return access
        key = (id(access), checked, inside)
        if key not in self._accesses:
            self._accesses[key] = replace(access, checked=checked, inside=inside)
        return self._accesses[key]


def _is_unsure(trace: Trace) -> bool:
    """Whether a loop carries an integer of which `_counts` says nothing."""
    loops = [effect for effect in effects(trace.body) if effect.op is Op.LOOP]
    if not loops:
        return False
    exits = find_exits(trace.body)
    return any(
        param.type.is_integer and not _counts(loop, position, exits)
        for loop in loops
        for position, param in enumerate(loop.regions[0].params)
    )


def _counts(loop: Value, position: int, exits: Exits) -> int:
    """Which way a carried value counts: by a number above or below 0, else 0.

    Only to save a round: the invariant that it breaks would be given up after the first. Of loops
    with more exits nothing is said, since it may be proven that they never go on.
    """
    param, ends = loop.regions[0].params[position], exits.ends.get(loop, ())
    if [end.op for end in ends] not in ([Op.BREAK, Op.CONTINUE], [Op.CONTINUE, Op.BREAK]):
        return 0
    (following,) = (end.args[position] for end in ends if end.op is Op.CONTINUE)
    if following.op is Op.ADD and following.args[0] is param:
        return int(constant(following.args[1]) or 0)
    return 0
