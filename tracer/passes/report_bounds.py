"""In debug mode an index out of bounds is reported: an assertion per axis before each access.

Before::

    store out[%i] %x

After::

    assert (and (ge %i 0) (lt %i (shape out 0))) %i (shape out 0)    # "index 0 of out is in bounds"
    store out[%i] %x

It runs on the trace as it was recorded, for the sites that it adds to the trace's table have to be
there in each recording. Access stays checked. What `bounds` proves goes again there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from khaljit.tracer.dtypes import i64, u64
from khaljit.tracer.errors import Site
from khaljit.tracer.ir import Access, Memory, Note, Space, Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["report_bounds"]


def report_bounds(trace: Trace) -> Trace:
    """Assert before each checked access that its indices are in bounds."""
    return _ReportBounds(trace).run()


class _ReportBounds(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._sites: Final[list[Site]] = list(trace.sites)

    def run(self) -> Trace:
        return replace(super().run(), sites=tuple(self._sites))

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if isinstance(value.attr, Access) and value.attr.checked:
            for axis, position in enumerate(args[1 : 1 + value.memory.ndim]):
                self._assert(value, axis, position, self.builder.shape(args[0], axis))
        return super().effect(value, args)

    def _assert(self, value: Value, axis: int, position: Value, extent: Value) -> None:
        b = self.builder
        if position.dtype is u64:
            inside = b.pure(Op.LT, (position, b.cast(extent, u64)))
        else:  # every other type fits
            wide, most = b.cast(position, i64), b.cast(extent, i64)
            low = b.pure(Op.GE, (wide, b.const(i64, 0)))
            inside = b.pure(Op.AND, (low, b.pure(Op.LT, (wide, most))))
        text = f"index {axis} of {self._name(value.memory)} is in bounds"
        if value.at is None:
            note = Note(text)
        else:
            note = Note(text, len(self._sites))
            self._sites.append(value.at)
        b.effect(Op.ASSERT, (inside, position, extent), note)

    def _name(self, memory: Memory) -> str:
        if memory.space is Space.ARRAY:
            return self.trace.arrays[memory.number].name
        shape = ", ".join(map(str, memory.shape))
        return f"{memory.space.value} memory of shape ({shape})"
