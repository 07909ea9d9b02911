"""Drops what nothing depends on: loads nobody reads, branches and loops that do nothing.

Before::

    %v = load a[%i]
    %x, %y = loop (%p = 0, %q = 0) { ... continue (add %p 1) (add %q %p) }
    store out[%i] %x

After, if x does not depend on q::

    %x = loop (%p = 0) { ... continue (add %p 1) }
    store out[%i] %x

What stays: stores, atomics, barriers, prints, asserts, every ``return`` that may be reached, and
what those depend on: the operands, the branches and loops around them, their conditions and exits.
Carried values, results of loops and of branches are looked at one by one. A loop without effects
whose results nobody reads goes, whether it would have ended or not.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.ir import Region, Trace, Value
from khaljit.tracer.nesting import is_unreachable
from khaljit.tracer.ops import ENDS, Op
from khaljit.tracer.passes.exits import Exits, find_exits
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["dead"]

_KEPT: Final = frozenset({Op.STORE, Op.ATOMIC, Op.BARRIER, Op.PRINT, Op.ASSERT})


def dead(trace: Trace) -> Trace:
    """Keep only what the kernel's effects depend on."""
    dropping = _Dead(trace)
    return trace if dropping.keeps_all() else dropping.run()


class _Liveness:
    """Marks what is needed, from the kept effects backwards.

    Attributes:
        live: the effects, ends and values that are needed.
    """

    def __init__(self, exits: Exits) -> None:
        self.live: Final[set[Value]] = set()
        self._exits: Final = exits
        self._stack: Final[list[Value]] = []
        for value, place in exits.around.items():
            returns = value.op is Op.RETURN and not is_unreachable(place.region)
            if value.op in _KEPT or returns:
                self._need(value)
        while self._stack:
            self._visit(self._stack.pop())

    def _need(self, value: Value) -> None:
        if value not in self.live:
            self.live.add(value)
            self._stack.append(value)

    def _visit(self, value: Value) -> None:
        if value in self._exits.around:
            self._visit_standing(value)
        elif value.op is Op.RESULT:
            self._need(value.args[0])
            self._need_flow(value, (Op.YIELD, Op.BREAK))
        elif value.op is Op.PARAM:
            assert isinstance(value.attr, int)
            owner = self._exits.owners[value]
            self._need(owner.args[value.attr])
            self._need_flow(value, (Op.CONTINUE,))
        else:
            for arg in value.args:
                self._need(arg)

    def _need_flow(self, value: Value, kinds: tuple[Op, ...]) -> None:
        """What becomes a result or parameter is needed."""
        assert isinstance(value.attr, int)
        owner = value.args[0] if value.op is Op.RESULT else self._exits.owners[value]
        for end in self._exits.ends.get(owner, ()):
            if end.op in kinds:
                self._need(end.args[value.attr])

    def _visit_standing(self, value: Value) -> None:
        """An effect or end is needed: so is what is around it."""
        place = self._exits.around[value]
        if place.owner is not None:
            self._need(place.owner)
        if value.op is Op.LOOP:
            for end in self._exits.ends.get(value, ()):
                self._need(end)
        elif value.op is Op.IF or not (value.op is Op.YIELD or value in self._exits.owners):
            for arg in value.args:
                self._need(arg)


class _Dead(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._exits: Final = find_exits(trace.body)
        self._live: Final = _Liveness(self._exits).live
        # By if or loop: the positions of the results and parameters that are needed.
        self._kept_results: Final[dict[Value, list[int]]] = {}
        self._kept_params: Final[dict[Value, list[int]]] = {}
        for value in self._live:
            if value.op is Op.RESULT and isinstance(value.attr, int):
                self._kept_results.setdefault(value.args[0], []).append(value.attr)
            elif value.op is Op.PARAM and isinstance(value.attr, int):
                self._kept_params.setdefault(self._exits.owners[value], []).append(value.attr)
        for positions in (*self._kept_results.values(), *self._kept_params.values()):
            positions.sort()

    def keeps_all(self) -> bool:
        """Whether nothing is dropped."""
        for effect in self._exits.around:
            if effect.op in ENDS:
                continue
            if effect not in self._live or self._goes_nowhere(effect):
                return False
            results, params = self._kept_results.get(effect, ()), self._kept_params.get(effect, ())
            if effect.regions and len(results) < len(self.types(effect)):
                return False
            if len(params) < sum(len(region.params) for region in effect.regions):
                return False
        return True

    def _goes_nowhere(self, effect: Value) -> bool:
        """Whether it is a branch that nothing can follow: what does is dropped."""
        return effect.op is Op.IF and not self._exits.ends.get(effect)

    def keeps(self, value: Value) -> bool:
        return value in self._live

    def if_(self, value: Value) -> Walk[tuple[Value, ...]]:
        results = yield from super().if_(value)
        return self._spread(value, results)

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        params = self._kept_params.get(value, [])
        initial = self.all(value.args[k] for k in params)
        region = value.regions[0]
        if len(params) < len(region.params):
            region = Region(tuple(region.params[k] for k in params), region.body, region.end)
        body = yield from self.region(region)
        self.about(value)
        types = self.types(value)
        kept = tuple(types[k] for k in self._kept_results.get(value, []))
        return self._spread(value, self.builder.loop(initial, body, kept))

    def _spread(self, value: Value, results: tuple[Value, ...]) -> tuple[Value, ...]:
        """Results at their old positions; the others are filled up, since nobody reads them."""
        kept = self._kept_results.get(value, [])
        if not kept or not results:  # those of a branch that goes on nowhere are read nowhere
            return ()
        spread = [results[0]] * (kept[-1] + 1)
        for position, result in zip(kept, results, strict=True):
            spread[position] = result
        return tuple(spread)

    def end(self, value: Value) -> None:
        owner = self._exits.owners.get(value)
        args: tuple[Value, ...] = ()
        if owner is not None and value.op is not Op.RETURN:
            kept = self._kept_params if value.op is Op.CONTINUE else self._kept_results
            args = self.all(value.args[k] for k in kept.get(owner, []))
        self.about(value)
        self.builder.end(value.op, args)
