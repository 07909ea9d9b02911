"""Carried values that never change are no carried values.

Before::

    %r = loop (%p = %a, %q = 0) { ... break %p ... continue %p (add %q 1) }

After, with ``%a`` wherever ``%p`` was::

    %r = loop (%q = 0) { ... break %a ... continue (add %q 1) }
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.ir import Region, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.exits import Exits, find_exits
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["invariant"]


def invariant(trace: Trace) -> Trace:
    """Carry only what changes."""
    loops = [effect for effect in effects(trace.body) if effect.op is Op.LOOP]
    exits = find_exits(trace.body) if loops else Exits()
    changing = {loop: _changing(loop, exits) for loop in loops}
    if all(len(kept) == len(loop.regions[0].params) for loop, kept in changing.items()):
        return trace
    return _Invariant(trace, exits, changing).run()


def _changing(loop: Value, exits: Exits) -> list[int]:
    """The positions of the carried values that change."""
    continues = [end for end in exits.ends.get(loop, ()) if end.op is Op.CONTINUE]
    return [
        position
        for position, param in enumerate(loop.regions[0].params)
        if any(end.args[position] is not param for end in continues)
    ]


class _Invariant(Rewriter):
    def __init__(self, trace: Trace, exits: Exits, changing: dict[Value, list[int]]) -> None:
        super().__init__(trace)
        self._owners: Final = exits.owners
        self._changing: Final = changing

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        region = value.regions[0]
        changing = self._changing[value]
        initial = self.all(value.args)
        self.bind(region.params, initial)
        if len(changing) < len(region.params):
            region = Region(tuple(region.params[k] for k in changing), region.body, region.end)
        body = yield from self.region(region)
        self.about(value)
        return self.builder.loop(tuple(initial[k] for k in changing), body, self.types(value))

    def end(self, value: Value) -> None:
        if value.op is not Op.CONTINUE:
            super().end(value)
            return
        args = self.all(value.args[k] for k in self._changing[self._owners[value]])
        self.about(value)
        self.builder.end(value.op, args)
