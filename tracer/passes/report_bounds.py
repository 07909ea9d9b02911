"""In debug mode an index out of bounds is reported: an assertion before each access.

Before::

    store out[%i] %x

After::

    assert (and (ge %i 0) (lt %i (shape out 0))) %i (shape out 0)
        # "index {} is out of bounds of out of shape ({},)"
    store out[%i] %x

It runs on the trace as it was recorded, for the sites that it adds to the trace's table have to be
there in each recording. Access stays checked. What `bounds` proves goes again there.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.dtypes import bool_, i64, u64
from khaljit.tracer.errors import Site
from khaljit.tracer.ir import Access, Memory, Note, Space, Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import replace
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
            shape = tuple(self.builder.extents(args[0], value.access))
            self._assert(value, args[1 : 1 + len(shape)], shape)
        return super().effect(value, args)

    def _assert(self, value: Value, indices: tuple[Value, ...], shape: tuple[Value, ...]) -> None:
        b = self.builder
        inside = b.const(bool_, True)
        for position, extent in zip(indices, shape, strict=True):
            inside = self._and(inside, self._inside(position, extent))
        fields = ", ".join(["{}"] * len(indices))
        place = fields if len(indices) == 1 else f"({fields})"
        extents = f"({fields},)" if len(indices) == 1 else f"({fields})"
        text = f"index {place} is out of bounds of {self._name(value.memory)} of shape {extents}"
        if value.at is None:
            note = Note(text)
        else:
            note = Note(text, len(self._sites))
            self._sites.append(value.at)
        b.effect(Op.ASSERT, (inside, *indices, *shape), note)

    def _inside(self, position: Value, extent: Value) -> Value:
        b = self.builder
        if position.dtype is u64:
            return b.pure(Op.LT, (position, b.cast(extent, u64)))
        wide, most = b.cast(position, i64), b.cast(extent, i64)  # every other type fits
        low = b.pure(Op.GE, (wide, b.const(i64, 0)))
        return self._and(low, b.pure(Op.LT, (wide, most)))

    def _and(self, one: Value, other: Value) -> Value:
        return other if one.op is Op.CONST else self.builder.pure(Op.AND, (one, other))

    def _name(self, memory: Memory) -> str:
        if memory.space is Space.ARRAY:
            return self.trace.arrays[memory.number].name
        return f"{memory.space.value} memory"
