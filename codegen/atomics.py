"""Atomic operations that a target lacks: through those on the bits.

What only moves a value (load, store, exchange, compare-exchange, which compares bits) moves its
bits. What combines becomes a loop around compare-exchange::

    %seen = atomic load bits
    %old = loop (%expected = %seen) {
        %found = atomic compare_exchange bits %expected (encode (combine (decode %expected) %x))
        if (eq %found %expected) { break %found } else { yield }
        continue %found
    }

Where the access is guarded and the guard is false, both atomics give 0, so the loop ends at once
with the 0 that such an access has to give.

A scalar of a memory that is accessed so is an unsigned integer for every other access, too: loads
decode it, stores encode it. A bool is a byte, of which any bit means true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.caps import Caps
from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.dtypes import DType, bool_, u8
from khaljit.tracer.ir import AtomicAccess, Element, Memory, Trace, Value, effects
from khaljit.tracer.ops import COMBINE, Op
from khaljit.tracer.records import dataclass, replace
from khaljit.tracer.rewriting import Rewriter

__all__ = ["Encoding", "atomics_on_bits", "through_bits"]


@final
@dataclass(frozen=True, slots=True)
class Encoding:
    """How values of a type relate to the integers that stand for them in memory.

    Attributes:
        unit: the integer type, of the same size.
        encode, decode: from values to integers and back.
        combine: an operation on two values.
    """

    unit: DType
    encode: Callable[[Value], Value]
    decode: Callable[[Value], Value]
    combine: Callable[[Op, Value, Value], Value]


def through_bits(
    w: Writer,
    access: AtomicAccess,
    place: tuple[Value, ...],
    operands: tuple[Value, ...],
    encoding: Encoding,
) -> Value:
    """Build an atomic on integers in place of one on values; gives the old value.

    ``place`` is the memory with the offset and the guard, if any; ``operands`` are values.
    """
    if access.kind not in COMBINE:
        moved = tuple(encoding.encode(operand) for operand in operands)
        old = w.builder.effect(Op.ATOMIC, (*place, *moved), access, encoding.unit)
        return encoding.decode(old)
    return encoding.decode(_loop(w, access, place, operands[0], encoding))


def _loop(
    w: Writer, access: AtomicAccess, place: tuple[Value, ...], operand: Value, encoding: Encoding
) -> Value:
    builder, unit = w.builder, encoding.unit
    load = replace(access, kind="load", order="relaxed")
    exchange = replace(access, kind="compare_exchange")
    seen = builder.effect(Op.ATOMIC, place, load, unit)
    (expected,) = builder.open((unit,))
    combined = encoding.combine(COMBINE[access.kind], encoding.decode(expected), operand)
    desired = encoding.encode(combined)
    found = builder.effect(Op.ATOMIC, (*place, expected, desired), exchange, unit)
    builder.open()
    builder.end(Op.BREAK, (found,))
    done = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(w.eq(found, expected), done, builder.close())
    builder.end(Op.CONTINUE, (found,))
    (old,) = builder.loop((seen,), builder.close(), (unit,))
    return old


def atomics_on_bits(trace: Trace, caps: Caps) -> Trace:
    """Give the scalars with atomics that the target lacks, but has on their bits, those."""
    moved: dict[Memory, dict[int, DType]] = {}
    for effect in effects(trace.body):
        if effect.op is not Op.ATOMIC or not isinstance(effect.attr, AtomicAccess):
            continue
        kind, unit = effect.attr.kind, _unit(effect.type)
        needed = "compare_exchange" if kind in COMBINE else kind
        if (kind, effect.type) not in caps.atomics and (needed, unit) in caps.atomics:
            moved.setdefault(effect.memory, {})[effect.access.leaf] = effect.type
    return _OnBits(trace, moved).run() if moved else trace


def _unit(dtype: DType) -> DType:
    return u8 if dtype is bool_ else UNSIGNED[dtype.bits]


class _OnBits(Rewriter):
    """``moved``: the scalars that become integers, by memory and byte, with their old types."""

    def __init__(self, trace: Trace, moved: dict[Memory, dict[int, DType]]) -> None:
        super().__init__(trace)
        self._moved: Final = moved
        self._write: Final = Writer(self.builder, self._plain)

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)

    def run(self) -> Trace:
        trace = super().run()
        arrays = tuple(replace(a, memory=self._memory(a.memory)) for a in trace.arrays)
        return replace(trace, arrays=arrays)

    def _memory(self, memory: Memory) -> Memory:
        moved = self._moved.get(memory, {})
        element = memory.element
        leaves = tuple((at, _unit(t) if at in moved else t) for at, t in element.leaves)
        return replace(memory, element=Element(element.size, element.align, leaves))

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if isinstance(value.attr, Memory):
            return self.builder.memory(self._memory(value.attr))
        return self.copy(value, args)

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op not in (Op.LOAD, Op.STORE, Op.ATOMIC):
            return super().effect(value, args)
        dtype = self._moved.get(value.memory, {}).get(value.access.leaf)
        if dtype is None:
            return super().effect(value, args)
        encoding = self._encoding(dtype)
        start = len(args) - len(value.operands)
        place, operands = args[:start], args[start:]
        if isinstance(value.attr, AtomicAccess):
            return through_bits(self._write, value.attr, place, operands, encoding)
        if value.op is Op.LOAD:
            return encoding.decode(self.builder.effect(Op.LOAD, place, value.attr, encoding.unit))
        return self.builder.effect(Op.STORE, (*place, encoding.encode(operands[0])), value.attr)

    def _encoding(self, dtype: DType) -> Encoding:
        w, unit = self._write, _unit(dtype)
        return Encoding(
            unit=unit,
            encode=lambda x: w.cast(x, unit) if dtype is bool_ else w.bitcast(x, unit),
            decode=lambda x: w.ne(x, 0) if dtype is bool_ else w.bitcast(x, dtype),
            combine=lambda op, x, y: w.op(op, x, y),
        )
