"""Asserts and prints become stores to the report; see ``reports.py`` for its layout.

Before::

    assert %condition %value
    print %value

After::

    if (not %condition) {
        if (eq (atomic exchange report[FAILED] 1) 0) { store report[FAILURE] ... }
    }
    %at = atomic add report[USED] <words>
    if (le (add %at <words>) %capacity) { store report[%at] ... }
    else { atomic sub report[USED] <words>; atomic add report[DROPPED] 1 }

What did not fit is given back, so that the count of used words neither wraps nor has holes: while
it is above the capacity nobody else gets room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.reports import DROPPED, FAILED, FAILURE, HEADER, USED, has_report, words_of
from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.dtypes import bool_, i32, i64, u32, u64
from khaljit.tracer.ir import Access, AtomicAccess, Note, Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["write_reports"]

_PLACE: Final = Access(checked=False, flat=True)


def write_reports(trace: Trace) -> Trace:
    """Replace the notes of a lowered trace that has the hidden parameters."""
    return _Reports(trace).run() if has_report(trace) else trace


class _Reports(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._width: Final = i32 if trace.index_bits == 32 else i64
        self._write: Final = Writer(
            self.builder, lambda op, args, dtype: self.builder.pure(op, args, dtype=dtype)
        )

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        note = value.attr
        if not isinstance(note, Note):
            return super().effect(value, args)
        if value.op is Op.ASSERT:
            failed = self.builder.logical_not(args[0])
            self._if(failed, lambda: self._claim(note, args[1:]))
        else:
            self._log(note, args)
        return None

    def _claim(self, note: Note, operands: tuple[Value, ...]) -> None:
        """The first failure of all fills in its record."""
        w = self._write
        first = w.eq(self._atomic("exchange", FAILED, 1), 0)
        self._if(first, lambda: self._fill(None, FAILURE, note, operands))

    def _log(self, note: Note, operands: tuple[Value, ...]) -> None:
        types = (self._width, self._width, self._width, *(one.type for one in operands))
        w, size = self._write, 2 + words_of(types)
        start = self._atomic("add", USED, size)
        words = self.builder.pure(Op.SHAPE, (self._report,), 0, self._width)
        fits = w.le(w.add(start, size), w.cast(w.sub(words, HEADER), u32))
        at = w.cast(start, self._width)

        def drop() -> None:
            self._atomic("sub", USED, size)
            self._atomic("add", DROPPED, 1)

        self._if(fits, lambda: self._fill(at, HEADER, note, operands), drop)

    def _fill(
        self, base: Value | None, offset: int, note: Note, operands: tuple[Value, ...]
    ) -> None:
        """Write a record, so many words behind a place, or behind the start."""
        b, w = self.builder, self._write
        number = b.scalar(len(self.trace.scalars) - 1, u32)
        where = (b.pure(Op.ID, attr=("global", axis), dtype=self._width) for axis in range(3))
        contents = [number, b.const(u32, note.site)]
        for operand in (*where, *operands):
            contents += self._words(operand)
        for place, word in enumerate(contents, offset):
            at = b.const(self._width, place) if base is None else w.add(base, place)
            b.store(self._report, (at,), word, _PLACE)

    @property
    def _report(self) -> Value:
        return self.builder.memory(self.trace.arrays[-1].memory)

    def _atomic(self, kind: str, place: int, number: int) -> Value:
        """An atomic on a word of the header; gives the old value."""
        b = self.builder
        args = (self._report, b.const(self._width, place), b.const(u32, number))
        return b.effect(Op.ATOMIC, args, AtomicAccess(checked=False, flat=True, kind=kind), u32)

    def _words(self, value: Value) -> list[Value]:
        """The bits of a value, lowest word first."""
        w = self._write
        if value.dtype is bool_:
            return [w.cast(value, u32)]
        if value.type.bits == 64:
            bits = w.bitcast(value, u64)
            return [w.cast(bits, u32), w.cast(w.shr(bits, 32), u32)]
        return [w.cast(w.bitcast(value, UNSIGNED[value.type.bits]), u32)]

    def _if(
        self,
        condition: Value,
        then: Callable[[], None],
        orelse: Callable[[], None] = lambda: None,
    ) -> None:
        regions = []
        for build in (then, orelse):
            self.builder.open()
            build()
            self.builder.end(Op.YIELD)
            regions.append(self.builder.close())
        self.builder.if_(condition, *regions)
