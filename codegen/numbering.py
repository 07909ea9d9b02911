"""Gives a trace that asserts or prints its report (`reports`), and numbers its notes.

It runs before the key is made; that there is anything to do is seen without it.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.reports import NAME, NOTES, has_report
from khaljit.tracer.dtypes import u32
from khaljit.tracer.errors import Site
from khaljit.tracer.ir import (
    ArrayParam,
    Element,
    Memory,
    Note,
    ScalarParam,
    Space,
    Trace,
    Value,
    effects,
)
from khaljit.tracer.records import replace
from khaljit.tracer.rewriting import Rewriter

__all__ = ["with_reports"]


def with_reports(trace: Trace) -> Trace:
    """The trace with the hidden parameters, if it asserts or prints, and with numbered notes."""
    if has_report(trace) or not any(effect.op in NOTES for effect in effects(trace.body)):
        return trace
    return _Numbering(trace).run()


@final
class _Numbering(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._sites: Final[list[Site]] = []

    def run(self) -> Trace:
        trace = super().run()
        number = len(trace.arrays)
        memory = Memory(Space.ARRAY, number, Element.scalar(u32), (None,))
        return replace(
            trace,
            arrays=(*trace.arrays, ArrayParam(NAME, memory, True, True, number, number)),
            scalars=(*trace.scalars, ScalarParam(NAME, u32)),
            sites=tuple(self._sites),
        )

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        note = value.attr
        if not isinstance(note, Note):
            return super().effect(value, args)
        known = note.site < len(self.trace.sites)
        site = self.trace.sites[note.site] if known else value.at or Site("<unknown>", 0)
        self._sites.append(site)
        return self.builder.effect(value.op, args, Note(note.text, len(self._sites) - 1))
