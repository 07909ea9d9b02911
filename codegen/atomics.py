"""Atomic operations on types that a target has no atomics for: through those on their bits.

What only moves a value (load, store, exchange, compare-exchange, which compares bits) moves its
bits. What combines becomes a loop around compare-exchange::

    %seen = atomic load bits
    %old = loop (%expected = %seen) {
        %found = atomic compare_exchange bits %expected (encode (combine (decode %expected) %x))
        if (eq %found %expected) { break %found }
        continue %found
    }

Where the access is guarded and the guard is false, both atomics give 0, so the loop ends at once
with the 0 that such an access has to give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import AtomicAccess, Value
from khaljit.tracer.ops import Op

__all__ = ["COMBINED", "Encoding", "through_bits"]

# The kinds that combine the old value with the operand, and how.
COMBINED: Final = {
    "add": Op.ADD,
    "sub": Op.SUB,
    "min": Op.MIN,
    "max": Op.MAX,
    "and": Op.AND,
    "or": Op.OR,
    "xor": Op.XOR,
}


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
    if access.kind not in COMBINED:
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
    combined = encoding.combine(COMBINED[access.kind], encoding.decode(expected), operand)
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
