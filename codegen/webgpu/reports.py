"""Asserts: the first invocation to fail fills in the report.

Before::

    assert %condition %value

After, with the report as an array of 32-bit words::

    if (not %condition) {
        %old = atomic exchange report[0] 1
        if (eq %old 0) { store report[2] site ... }
    }

The report has 8 slots of 64 bits: flag, site, x, y, z of the invocation and up to three values.
A value takes one: an integer extended by its sign, a float's bits in the low bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from khaljit.codegen.layout import REPORT_SLOTS
from khaljit.codegen.webgpu.folding import folding
from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.dtypes import bool_, i32, i64, u32, u64
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Space,
    Trace,
    Value,
    effects,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["asserts", "write_reports"]

_PLACE: Final = Access(checked=False, flat=True)
_CLAIM: Final = AtomicAccess(checked=False, flat=True, kind="exchange")
_FIRST_VALUE: Final = 5


def asserts(trace: Trace) -> bool:
    """Whether a trace may write the report."""
    return any(effect.op is Op.ASSERT for effect in effects(trace.body))


def write_reports(trace: Trace) -> Trace:
    """Replace asserts; if there are any, the report becomes the last array parameter."""
    return _Reports(trace).run() if asserts(trace) else trace


class _Reports(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._number: Final = len(trace.arrays)
        self._memory: Final = Memory(Space.ARRAY, self._number, Element.scalar(u32), (None,))
        self._width: Final = i32 if trace.index_bits == 32 else i64
        self._write: Final = Writer(self.builder, folding(self.builder))

    def run(self) -> Trace:
        trace = super().run()
        report = ArrayParam("report", self._memory, True, True, self._number, self._number)
        return replace(trace, arrays=(*trace.arrays, report))

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op is not Op.ASSERT:
            return super().effect(value, args)
        self._when(self.builder.logical_not(args[0]), lambda: self._claim(value, args[1:]))
        return None

    def _when(self, condition: Value, build: Callable[[], None]) -> None:
        self.builder.open()
        build()
        self.builder.end(Op.YIELD)
        then = self.builder.close()
        self.builder.open()
        self.builder.end(Op.YIELD)
        self.builder.if_(condition, then, self.builder.close())

    def _claim(self, value: Value, operands: tuple[Value, ...]) -> None:
        builder = self.builder
        place = (builder.memory(self._memory), builder.const(self._width, 0))
        old = builder.effect(Op.ATOMIC, (*place, builder.const(u32, 1)), _CLAIM, u32)
        self._when(self._write.eq(old, 0), lambda: self._fill(value, operands))

    def _fill(self, value: Value, operands: tuple[Value, ...]) -> None:
        assert isinstance(value.attr, Note)
        site = self.builder.const(u32, value.attr.site)
        where = (self.builder.pure(Op.ID, attr=("global", k), dtype=self._width) for k in range(3))
        shown = operands[: REPORT_SLOTS - _FIRST_VALUE]
        for number, content in enumerate((site, *where, *shown), start=1):
            for half, word in enumerate(self._words(content)):
                at = self.builder.const(self._width, 2 * number + half)
                self.builder.store(self.builder.memory(self._memory), (at,), word, _PLACE)

    def _words(self, value: Value) -> tuple[Value, Value]:
        """A value as the two halves of a slot."""
        w = self._write
        if value.dtype is bool_:
            value = w.cast(value, u32)
        if value.type.is_float:
            value = w.cast(w.bits(value), UNSIGNED[max(32, value.type.bits)])
        if value.type.bits == 64:
            bits = w.bitcast(value, u64)
            return w.cast(bits, u32), w.cast(w.shr(bits, 32), u32)
        signed = value.type.is_signed
        value = w.cast(value, i32 if signed else u32)
        high = w.bits(w.shr(value, 31)) if signed else self.builder.const(u32, 0)
        return w.bits(value), high
