"""Carried values that never change are no carried values.

Before::

    %r = loop (%p = %a, %q = 0) { ... break %p ... continue %p (add %q 1) }

After, with ``%a`` wherever ``%p`` was::

    %r = loop (%q = 0) { ... break %a ... continue (add %q 1) }
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.ir import Region, Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.exits import find_exits
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["invariant"]


def invariant(trace: Trace) -> Trace:
    """Carry only what changes."""
    return _Invariant(trace).run()


class _Invariant(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        exits = find_exits(trace.body)
        self._owners: Final = exits.owners
        # By loop: the positions of the values that change.
        self._changing: Final[dict[Value, list[int]]] = {}
        for loop, ends in exits.ends.items():
            if loop.op is Op.LOOP:
                params = loop.regions[0].params
                continues = [end for end in ends if end.op is Op.CONTINUE]
                self._changing[loop] = [
                    k
                    for k, param in enumerate(params)
                    if any(end.args[k] is not param for end in continues)
                ]

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        region = value.regions[0]
        changing = self._changing.get(value, [])
        initial = self.all(value.args)
        for param, start in zip(region.params, initial, strict=True):
            self.values[param] = start
        carried = Region(tuple(region.params[k] for k in changing), region.body, region.end)
        body = yield self.region(carried)
        self.builder.at = value.at
        return self.builder.loop(tuple(initial[k] for k in changing), body, self.types(value))

    def end(self, value: Value) -> None:
        if value.op is not Op.CONTINUE:
            super().end(value)
            return
        args = self.all(value.args[k] for k in self._changing[self._owners[value]])
        self.builder.at = value.at
        self.builder.end(value.op, args)
