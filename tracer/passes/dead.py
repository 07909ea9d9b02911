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
from khaljit.tracer.nesting import Place, is_unreachable
from khaljit.tracer.ops import ENDS, Op
from khaljit.tracer.passes.exits import Exits, find_exits
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["dead"]

_KEPT: Final = frozenset({Op.STORE, Op.ATOMIC, Op.BARRIER, Op.PRINT, Op.ASSERT})


def dead(trace: Trace) -> Trace:
    """Keep only what the kernel's effects depend on."""
    dropping = _Dead(trace)
    return trace if dropping.keeps_all() else dropping.run()


def _live(exits: Exits) -> set[Value]:
    """The effects, ends and values that are needed, from the kept effects backwards."""
    owners, ends, around = exits.owners, exits.ends, exits.around
    live: set[Value] = set()
    needed = [value for value, place in around.items() if _is_kept(value, place)]
    while needed:
        value = needed.pop()
        if value in live:
            continue
        live.add(value)
        op, position = value.op, value.attr
        if op is Op.PARAM and isinstance(position, int):
            loop = owners[value]
            needed.append(loop.args[position])
            needed += [end.args[position] for end in ends.get(loop, ()) if end.op is Op.CONTINUE]
        elif op is Op.RESULT and isinstance(position, int):
            (node,) = value.args
            needed.append(node)
            flows = ends.get(node, ())
            needed += [end.args[position] for end in flows if end.op is not Op.CONTINUE]
        elif value in around:
            owner = around[value].owner
            if owner is not None:
                needed.append(owner)
            if op is Op.LOOP:
                needed += ends.get(value, ())
            elif op is Op.IF or not (op is Op.YIELD or value in owners):
                needed += value.args
        else:
            needed += value.args
    return live


def _is_kept(value: Value, place: Place) -> bool:
    return value.op in _KEPT or (value.op is Op.RETURN and not is_unreachable(place.region))


class _Dead(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._exits: Final = find_exits(trace.body)
        self._live: Final = _live(self._exits)
        # By if or loop: the positions of the results and parameters that are needed.
        self._kept_results: Final[dict[Value, list[int]]] = {}
        self._kept_params: Final[dict[Value, list[int]]] = {}
        for value in self._live:
            op, position = value.op, value.attr
            if op is Op.RESULT and isinstance(position, int):
                self._kept_results.setdefault(value.args[0], []).append(position)
            elif op is Op.PARAM and isinstance(position, int):
                self._kept_params.setdefault(self._exits.owners[value], []).append(position)
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
