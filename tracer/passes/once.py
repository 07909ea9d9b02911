"""Loops that run once become branches.

A loop whose body never continues is a block that is left by ``break``: helper functions with early
returns are recorded so. Before::

    %r = loop {
        if %c { break %a } else { yield }
        store out[%i] %x
        break %b
    }

After::

    %r = if %c { yield %a } else { store out[%i] %x  yield %b }

What follows a branch that leaves the block moves into the arm that goes on. Where both arms of such
a branch go on, it would have to be put in two places; that loop is left as it is.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.tracer.ir import Region, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["once"]


def once(trace: Trace) -> Trace:
    """Turn blocks into branches where nothing has to be duplicated."""
    blocks = {
        effect: leaving
        for effect in effects(trace.body)
        if effect.op is Op.LOOP and (leaving := _leaving(effect.regions[0])) is not None
    }
    return _Once(trace, blocks).run() if blocks else trace


@final
@dataclass(frozen=True, slots=True)
class _Rest:
    """What comes after the end of an arm: the rest of the region around it, and so on outwards."""

    region: Region
    position: int
    branch: Value
    outer: _Rest | None


class _Once(Rewriter):
    """``blocks``: the loops that are one, each with the branches in it that hold its breaks."""

    def __init__(self, trace: Trace, blocks: dict[Value, set[Value]]) -> None:
        super().__init__(trace)
        self._blocks: Final = blocks

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        leaving = self._blocks.get(value)
        if leaving is None:
            return (yield from super().loop(value))
        params = value.regions[0].params
        self.bind(params, self.all(value.args))
        outcome = yield self._flow(value.regions[0], 0, None, leaving)
        reached: tuple[Value, ...] = outcome or ()
        return reached

    def _flow(
        self, region: Region, start: int, rest: _Rest | None, leaving: set[Value]
    ) -> Walk[tuple[Value, ...] | None]:
        """Rebuild a region of the block and what follows.

        Gives the block's results, or None if the innermost open region has got its end.
        """
        while True:
            for position in range(start, len(region.body)):
                effect = region.body[position]
                if effect in leaving:
                    after = _Rest(region, position + 1, effect, rest)
                    outcome: tuple[Value, ...] | None = yield self._branch(effect, after, leaving)
                    return outcome
                if effect.regions:
                    self.gives(effect, (yield self.structure(effect)))
                else:
                    self.simple(effect)
                if self.builder.ended:
                    return None
            if region.end.op is Op.BREAK:
                return self.all(region.end.args)
            if region.end.op is not Op.YIELD:
                self.end(region.end)
                return None
            assert rest is not None, "a loop's body does not yield"
            self.gives(rest.branch, self.all(region.end.args))
            region, start, rest = rest.region, rest.position, rest.outer

    def _branch(
        self, branch: Value, rest: _Rest, leaving: set[Value]
    ) -> Walk[tuple[Value, ...] | None]:
        """A branch that leaves the block in one arm or deeper in it."""
        condition = self.value(branch.args[0])
        arms = []
        for region in branch.regions:
            self.builder.open()
            outcome = yield self._flow(region, 0, rest, leaving)
            if outcome is not None:
                self.builder.end(Op.YIELD, outcome)
            arms.append(self.builder.close())
        self.about(branch)
        results = self.branch(condition, arms[0], arms[1])
        return None if self.builder.ended else results


def _leaving(body: Region) -> set[Value] | None:
    """The branches of a block that hold its breaks; None unless it is one that can be unfolded.

    Each of them must go on in one arm at most.
    """
    found: set[Value] = set()
    around: dict[Value, Value | None] = {}
    stack: list[tuple[Region, Value | None]] = [(body, None)]
    while stack:
        region, owner = stack.pop()
        if region.end.op is Op.CONTINUE:
            return None
        if region.end.op is Op.BREAK:
            branch = owner
            while branch is not None and branch not in found:
                found.add(branch)
                branch = around[branch]
        for effect in region.body:
            if effect.op is Op.IF:
                around[effect] = owner
                stack.extend((arm, effect) for arm in effect.regions)
    for branch in found:
        if all(arm.end.op is Op.YIELD for arm in branch.regions):
            return None
    return found
