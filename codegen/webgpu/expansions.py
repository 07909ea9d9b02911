"""Pure operations that SPIR-V and WGSL lack, or give another meaning, in terms of others.

Laws: minima and maxima follow IEEE 754-2019 with -0 below +0 and do not ask the machine for more
than comparisons; a float that is converted to an integer is brought into its range first; bits
are counted in words of 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.writing import Writer
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType, i32, i64, u32, u64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = [
    "COUNTS",
    "EXTREMES",
    "count_narrow",
    "halves",
    "is_nan",
    "joined",
    "multiply_high",
    "saturated",
    "wrapped",
]


def is_nan(w: Writer, x: Value) -> Value:
    """By the bits: a driver may believe that every number is equal to itself."""
    bits = x.type.bits
    infinity = {32: 0x7F800000, 64: 0x7FF << 52}[bits]
    return w.gt(w.and_(w.bits(x), (1 << bits - 1) - 1), infinity)


def _of_equal(w: Writer, op: Op, x: Value, y: Value) -> Value:
    """The lesser (OR) or greater (AND) of equal floats: only zeros differ, by their signs."""
    return w.bitcast(w.op(op, w.bits(x), w.bits(y)), x.type)


def _extreme(before: Op, zeros: Op, propagate: bool) -> Callable[[Writer, Value, Value], Value]:
    def build(w: Writer, x: Value, y: Value) -> Value:
        first = w.or_(w.op(before, x, y), is_nan(w, x if propagate else y))
        chosen = w.select(first, x, y)
        if constant(y):  # which is not 0: equal numbers are the same
            return chosen
        return w.select(w.eq(x, y), _of_equal(w, zeros, x, y), chosen)

    return build


# Of floats of 32 and 64 bits.
EXTREMES: Final[dict[Op, Callable[[Writer, Value, Value], Value]]] = {
    Op.MIN: _extreme(Op.LT, Op.OR, propagate=False),
    Op.MAX: _extreme(Op.GT, Op.AND, propagate=False),
    Op.MINIMUM: _extreme(Op.LT, Op.OR, propagate=True),
    Op.MAXIMUM: _extreme(Op.GT, Op.AND, propagate=True),
}


def multiply_high(w: Writer, x: Value, y: Value) -> Value:
    """The upper half of the product of 32- or 64-bit integers, from products of halves."""
    dtype, half = x.type, x.type.bits // 2
    mask = (1 << half) - 1
    a, b = w.bits(x), w.bits(y)
    a_low, a_high = w.and_(a, mask), w.shr(a, half)
    b_low, b_high = w.and_(b, mask), w.shr(b, half)
    middle = w.add(w.mul(a_high, b_low), w.shr(w.mul(a_low, b_low), half))
    other = w.add(w.mul(a_low, b_high), w.and_(middle, mask))
    upper = w.add(w.mul(a_high, b_high), w.add(w.shr(middle, half), w.shr(other, half)))
    if not dtype.is_signed:
        return upper
    upper = w.bitcast(upper, dtype)
    upper = w.sub(upper, w.select(w.lt(x, 0), y, 0))
    return w.sub(upper, w.select(w.lt(y, 0), x, 0))


def saturated(w: Writer, x: Value, dtype: DType) -> Value:
    """A float as an integer of 32 or 64 bits: truncated, held within the limits, 0 for NaN.

    What the machine converts is within the limits; the greatest integer is at least one less than
    the first float past it.
    """
    low, high = dtype.limits
    past = float(high + 1)
    inside = w.and_(w.gt(x, -1.0) if low == 0 else w.ge(x, float(low)), w.lt(x, past))
    converted = w.cast(w.select(inside, x, 0.0), dtype)
    below = w.select(w.lt(x, float(low)), w.const(dtype, low), converted) if low else converted
    return w.select(w.ge(x, past), high, below)


def halves(w: Writer, x: Value) -> tuple[Value, Value]:
    """The lower and upper 32 bits of an integer of 64."""
    bits = w.bitcast(x, u64)
    return w.cast(bits, u32), w.cast(w.shr(bits, 32), u32)


def joined(w: Writer, low: Value, high: Value) -> Value:
    """u64 from its halves."""
    return w.or_(w.cast(low, u64), w.shl(w.cast(high, u64), 32))


# Bit operations of integers by width. The counts are i32.


def _popcount(w: Writer, x: Value) -> Value:
    low, high = halves(w, x)
    return w.add(w.op(Op.POPCOUNT, low), w.op(Op.POPCOUNT, high))


def _clz(w: Writer, x: Value) -> Value:
    low, high = halves(w, x)
    below = w.add(w.op(Op.CLZ, low), 32)
    return w.select(w.eq(high, 0), below, w.op(Op.CLZ, high))


def _ctz(w: Writer, x: Value) -> Value:
    low, high = halves(w, x)
    above = w.add(w.op(Op.CTZ, high), 32)
    return w.select(w.eq(low, 0), above, w.op(Op.CTZ, low))


def _reverse(w: Writer, x: Value) -> Value:
    low, high = halves(w, x)
    turned = joined(w, w.op(Op.REVERSE_BITS, high), w.op(Op.REVERSE_BITS, low))
    return turned if x.dtype is u64 else w.bitcast(turned, i64)


# Of 64-bit integers, on words.
COUNTS: Final[dict[Op, Callable[[Writer, Value], Value]]] = {
    Op.POPCOUNT: _popcount,
    Op.CLZ: _clz,
    Op.CTZ: _ctz,
    Op.REVERSE_BITS: _reverse,
}


def count_narrow(w: Writer, op: Op, x: Value, bits: int) -> Value:
    """A bit operation on the low ``bits`` of a 32-bit integer, which is extended by its sign."""
    unsigned = w.and_(w.bits(x), (1 << bits) - 1)
    if op is Op.POPCOUNT:
        return w.op(op, unsigned)
    if op is Op.CLZ:
        return w.sub(w.op(op, unsigned), 32 - bits)
    if op is Op.CTZ:
        return w.op(op, w.or_(unsigned, 1 << bits))
    turned = w.bitcast(w.op(Op.REVERSE_BITS, unsigned), x.type)
    return w.shr(turned, 32 - bits)


def wrapped(w: Writer, x: Value, dtype: DType) -> Value:
    """The low bits of a 32-bit integer as a narrow type, held in ``i32`` or ``u32``."""
    held = i32 if dtype.is_signed else u32
    x = w.bitcast(x, held)
    if not dtype.is_signed:
        return w.and_(x, (1 << dtype.bits) - 1)
    spare = held.bits - dtype.bits
    return w.shr(w.shl(x, spare), spare)
