"""Expansions of fused multiply-add for targets without it, exact over the whole range.

f32 and narrower go through f64: the product is exact there, the sum is rounded to odd, and
rounding that again is as good as rounding once. f64 is computed with integers: a product of 128
bits, an addend aligned to it, one rounding at the end, subnormal results included; f32 can be, too,
with 64 bits.
"""

from __future__ import annotations

from typing import NamedTuple

from khaljit.codegen.rounding import sum_to_odd
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import f32, f64, i32, i64, u32, u64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["fma", "fma_in_f64", "fma_in_integers"]

_MANTISSA = (1 << 52) - 1
_INFINITY = 0x7FF << 52


def fma(w: Writer, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of f32 or f64, rounded once."""
    if a.dtype is f32:
        return w.cast(fma_in_f64(w, a, b, c), f32)
    return _fma_f64(w, a, b, c)


def fma_in_f64(w: Writer, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of f32 operands, as f64 rounded to odd."""
    return sum_to_odd(w, w.mul(w.cast(a, f64), w.cast(b, f64)), w.cast(c, f64))


class _Wide(NamedTuple):
    """An unsigned integer of 128 bits."""

    high: Value
    low: Value


def _fma_f64(w: Writer, a: Value, b: Value, c: Value) -> Value:
    product = w.mul(a, b)
    # Where an operand is 0, infinite or NaN the plain sum is right, with two exceptions: a product
    # that overflows must not meet an infinity, one that rounds to 0 must not lose its sign.
    plain = w.add(product, c)
    plain = w.select(_nonfinite(w, c), c, w.select(w.eq(c, 0.0), product, plain))
    factors_special = w.or_(_special(w, a), _special(w, b))
    plain = w.select(factors_special, w.add(product, c), plain)
    special = w.or_(factors_special, _special(w, c))
    return w.select(special, plain, _fma_finite(w, a, b, c))


def _nonfinite(w: Writer, x: Value) -> Value:
    return w.ge(w.and_(w.bits(x), (1 << 63) - 1), _INFINITY)


def _special(w: Writer, x: Value) -> Value:
    return w.or_(w.eq(x, 0.0), _nonfinite(w, x))


def _parts(w: Writer, x: Value) -> tuple[Value, Value]:
    """Significand in 2^52 .. 2^53 - 1 and exponent field of a finite number other than 0.

    The exponent goes below 1 for subnormal numbers.
    """
    bits = w.bits(x)
    field = w.and_(w.shr(bits, 52), 0x7FF)
    normal = w.ne(field, 0)
    hidden = w.select(normal, w.const(u64, 1 << 52), 0)
    significand = w.or_(w.and_(bits, _MANTISSA), hidden)
    shift = w.sub(w.cast(w.op(Op.CLZ, significand), u64), 11)
    exponent = w.sub(w.max(field, 1), shift)
    return w.shl(significand, w.and_(shift, 63)), w.bitcast(exponent, i64)


def _fma_finite(w: Writer, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of finite numbers other than 0. (Anything for others.)"""
    (a_part, a_exponent), (b_part, b_exponent), (c_part, c_exponent) = (
        _parts(w, x) for x in (a, b, c)
    )
    # Both terms in 2^124 .. 2^126: the product shifted up by 20, the addend by 73.
    x, y = w.shl(a_part, 10), w.shl(b_part, 10)
    product = _Wide(w.op(Op.MULHI, x, y), w.mul(x, y))
    addend = _Wide(w.shl(c_part, 9), w.const(u64, 0))
    product_exponent = w.sub(w.add(a_exponent, b_exponent), 2170)
    addend_exponent = w.sub(c_exponent, 1148)
    ahead = w.sub(product_exponent, addend_exponent)
    product = _shift_right(w, product, w.max(w.neg(ahead), 0))
    addend = _shift_right(w, addend, w.max(ahead, 0))
    exponent = w.max(product_exponent, addend_exponent)

    product_sign = w.xor(w.bits(a), w.bits(b))
    differ = w.lt(w.bitcast(w.xor(product_sign, w.bits(c)), i64), 0)
    total = _sum(w, product, addend)
    difference, negative = _difference(w, product, addend)
    high = w.select(differ, difference.high, total.high)
    low = w.select(differ, difference.low, total.low)
    sign = w.select(w.and_(differ, negative), w.bits(c), product_sign)
    bits = _round(w, _Wide(high, low), exponent)
    # An exact 0 of numbers with different signs is +0.
    zero = w.eq(w.or_(high, low), 0)
    bits = w.select(zero, 0, w.or_(bits, w.and_(sign, 1 << 63)))
    return w.bitcast(bits, f64)


def _sum(w: Writer, x: _Wide, y: _Wide) -> _Wide:
    low = w.add(x.low, y.low)
    carry = w.cast(w.lt(low, x.low), u64)
    return _Wide(w.add(w.add(x.high, y.high), carry), low)


def _difference(w: Writer, x: _Wide, y: _Wide) -> tuple[_Wide, Value]:
    """|x - y| and whether y is greater; both are below 2^127."""
    low = w.sub(x.low, y.low)
    borrow = w.cast(w.lt(x.low, y.low), u64)
    high = w.sub(w.sub(x.high, y.high), borrow)
    negative = w.lt(w.bitcast(high, i64), 0)
    negated = w.add(w.not_(high), w.cast(w.eq(low, 0), u64))
    magnitude = _Wide(w.select(negative, negated, high), w.select(negative, w.neg(low), low))
    return magnitude, negative


def _shift_right(w: Writer, x: _Wide, shift: Value) -> _Wide:
    """x >> shift with the last bit set if any was lost; ``shift`` is an i64, at least 0."""
    shift = w.bitcast(w.min(shift, 127), u64)
    whole = w.ge(shift, 64)
    # By 64 first, then by the rest.
    high, low = w.select(whole, 0, x.high), w.select(whole, x.high, x.low)
    lost = w.select(whole, x.low, 0)
    rest = w.and_(shift, 63)
    above = w.shl(w.shl(high, 1), w.sub(63, rest))
    lost = w.or_(lost, w.shl(w.shl(low, 1), w.sub(63, rest)))
    sticky = w.cast(w.ne(lost, 0), u64)
    return _Wide(w.shr(high, rest), w.or_(w.or_(w.shr(low, rest), above), sticky))


def _round(w: Writer, x: _Wide, exponent: Value) -> Value:
    """The bits of x * 2^exponent as a positive f64, rounded once."""
    # The leading one moves to bit 127.
    empty = w.eq(x.high, 0)
    high, low = w.select(empty, x.low, x.high), w.select(empty, 0, x.low)
    shift = w.cast(w.op(Op.CLZ, high), u64)
    part = w.and_(shift, 63)
    high = w.or_(w.shl(high, part), w.shr(w.shr(low, 1), w.sub(63, part)))
    high = w.or_(high, w.cast(w.ne(w.shl(low, part), 0), u64))
    moved = w.add(w.bitcast(shift, i64), w.select(empty, w.const(i64, 64), 0))
    field = w.add(w.sub(exponent, moved), 127 + 1023)
    # A subnormal result gives up as many bits more.
    extra = w.bitcast(w.min(w.max(w.sub(1, field), 0), 63), u64)
    extra = w.and_(extra, 63)
    lost = w.shl(w.shl(high, 1), w.sub(63, extra))
    high = w.or_(w.shr(high, extra), w.cast(w.ne(lost, 0), u64))
    kept = w.shr(high, 11)
    up = w.gt(w.add(w.and_(high, 0x7FF), w.and_(kept, 1)), 0x400)
    significand = w.add(kept, w.cast(up, u64))
    scale = w.shl(w.bitcast(w.sub(w.max(field, 1), 1), u64), 52)
    return w.min(w.add(scale, significand), _INFINITY)


# f32 by integers of 64 bits, the same way.


def fma_in_integers(w: Writer, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of f32, rounded once, without f64."""
    product = w.mul(a, b)
    plain = w.select(_is_special(w, c), c, w.add(product, c))
    plain = w.select(w.eq(c, 0.0), product, plain)
    factors_special = w.or_(_is_special(w, a, zero=True), _is_special(w, b, zero=True))
    plain = w.select(factors_special, w.add(product, c), plain)
    special = w.or_(factors_special, _is_special(w, c, zero=True))
    return w.select(special, plain, _finite_f32(w, a, b, c))


def _is_special(w: Writer, x: Value, zero: bool = False) -> Value:
    special = w.ge(w.and_(w.bits(x), 0x7FFFFFFF), 0x7F800000)
    return w.or_(special, w.eq(x, 0.0)) if zero else special


def _parts_f32(w: Writer, x: Value) -> tuple[Value, Value]:
    """Significand in 2^23 .. 2^24 - 1, as u64, and exponent field of a finite number but 0."""
    bits = w.bits(x)
    field = w.and_(w.shr(bits, 23), 0xFF)
    hidden = w.select(w.ne(field, 0), w.const(u32, 1 << 23), 0)
    significand = w.or_(w.and_(bits, 0x7FFFFF), hidden)
    shift = w.sub(w.cast(w.op(Op.CLZ, significand), u32), 8)
    exponent = w.bitcast(w.sub(w.max(field, 1), shift), i32)
    return w.cast(w.shl(significand, w.and_(shift, 31)), u64), exponent


def _finite_f32(w: Writer, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of finite numbers other than 0. (Anything for others.)"""
    (a_part, a_exponent), (b_part, b_exponent), (c_part, c_exponent) = (
        _parts_f32(w, x) for x in (a, b, c)
    )
    # Both terms in 2^60 .. 2^62.
    product = w.shl(w.mul(a_part, b_part), 14)
    addend = w.shl(c_part, 38)
    product_exponent = w.sub(w.add(a_exponent, b_exponent), 314)
    addend_exponent = w.sub(c_exponent, 188)
    ahead = w.sub(product_exponent, addend_exponent)
    product = _shifted_to_odd(w, product, w.max(w.neg(ahead), 0))
    addend = _shifted_to_odd(w, addend, w.max(ahead, 0))
    product_sign = w.xor(w.bits(a), w.bits(b))
    differ = w.lt(w.bitcast(w.xor(product_sign, w.bits(c)), i32), 0)
    less = w.lt(product, addend)
    difference = w.select(less, w.sub(addend, product), w.sub(product, addend))
    total = w.select(differ, difference, w.add(product, addend))
    sign = w.select(w.and_(differ, less), w.bits(c), product_sign)
    bits = _rounded_f32(w, total, w.max(product_exponent, addend_exponent))
    # An exact 0 of numbers with different signs is +0.
    bits = w.select(w.eq(total, 0), 0, w.or_(bits, w.and_(sign, 1 << 31)))
    return w.bitcast(bits, f32)


def _shifted_to_odd(w: Writer, x: Value, shift: Value) -> Value:
    """x >> shift of u64 with the last bit set if any was lost; ``shift`` is an i32, at least 0."""
    amount = w.and_(w.cast(w.bitcast(w.min(shift, 63), u32), u64), 63)
    lost = w.shl(w.shl(x, 1), w.sub(63, amount))
    return w.or_(w.shr(x, amount), w.cast(w.ne(lost, 0), u64))


def _rounded_f32(w: Writer, x: Value, exponent: Value) -> Value:
    """The bits of x * 2^exponent as a positive f32, rounded once."""
    zeros = w.op(Op.CLZ, x)
    leading = w.shl(x, w.and_(w.cast(zeros, u64), 63))
    field = w.add(w.sub(exponent, zeros), 63 + 127)
    leading = _shifted_to_odd(w, leading, w.max(w.sub(1, field), 0))  # subnormal: fewer bits
    kept = w.cast(w.shr(leading, 40), u32)
    tie = w.add(w.and_(leading, (1 << 40) - 1), w.cast(w.and_(kept, 1), u64))
    significand = w.add(kept, w.cast(w.gt(tie, 1 << 39), u32))
    scale = w.shl(w.bitcast(w.sub(w.max(field, 1), 1), u32), 23)
    return w.min(w.add(scale, significand), 0x7F800000)
