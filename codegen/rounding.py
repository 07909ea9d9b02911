"""Expansions of rounding: to integers, to narrower floats, and of products and sums fused.

Laws: every result is the exact one rounded once, to nearest even. Where the way leads through a
wider type, the value is first *rounded to odd* there (truncated, the last bit set if anything was
lost), which makes the second rounding as good as the only one as long as two more bits are kept.
Nothing here may be contracted or reassociated afterwards.
"""

from __future__ import annotations

from khaljit.codegen.writing import Writer, format_of
from khaljit.tracer.dtypes import f32, f64, u16, u32
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = [
    "ceil",
    "copysign",
    "f16_to_f32",
    "f32_to_bf16",
    "f32_to_f16",
    "f64_to_f32_odd",
    "floor",
    "integer_to_f32_odd",
    "integer_to_f32_odd_by_bits",
    "round_to_even",
    "rounded_to_f16",
    "sum_to_odd",
    "trunc",
]


def copysign(w: Writer, magnitude: Value, sign: Value) -> Value:
    """|magnitude| with the sign of another float."""
    top = format_of(magnitude.type).sign
    bits = w.or_(w.and_(w.bits(magnitude), top - 1), w.and_(w.bits(sign), top))
    return w.bitcast(bits, magnitude.type)


# Rounding to integers. From 2^mantissa on every float is one; below, adding and subtracting it
# rounds to nearest even.


def _rounded_magnitude(w: Writer, x: Value) -> Value:
    magnitude = w.abs(x)
    shift = 2.0 ** format_of(x.type).mantissa
    return w.select(w.lt(magnitude, shift), w.sub(w.add(magnitude, shift), shift), magnitude)


def round_to_even(w: Writer, x: Value) -> Value:
    return copysign(w, _rounded_magnitude(w, x), x)


def trunc(w: Writer, x: Value) -> Value:
    rounded = _rounded_magnitude(w, x)
    return copysign(w, _less_one(w, rounded, w.gt(rounded, w.abs(x))), x)


def floor(w: Writer, x: Value) -> Value:
    rounded = round_to_even(w, x)
    return copysign(w, _less_one(w, rounded, w.gt(rounded, x)), x)


def ceil(w: Writer, x: Value) -> Value:
    rounded = round_to_even(w, x)
    return copysign(w, w.select(w.lt(rounded, x), w.add(rounded, 1.0), rounded), x)


def _less_one(w: Writer, x: Value, condition: Value) -> Value:
    return w.select(condition, w.sub(x, 1.0), x)


# Rounding to odd.


def sum_to_odd(w: Writer, a: Value, b: Value) -> Value:
    """a + b rounded to odd, where it does not overflow; infinities and NaN add as ever."""
    total = w.add(a, b)
    part = w.sub(total, a)
    error = w.add(w.sub(a, w.sub(total, part)), w.sub(b, part))
    # The error is NaN where the sum is not finite: neither comparison holds then.
    up, down = w.gt(error, 0.0), w.lt(error, 0.0)
    bits = w.bits(total)
    even = w.eq(w.and_(bits, 1), 0)
    away = w.eq(up, w.gt(total, 0.0))
    moved = w.select(away, w.add(bits, 1), w.sub(bits, 1))
    return w.bitcast(w.select(w.and_(w.or_(up, down), even), moved, bits), a.type)


def f64_to_f32_odd(w: Writer, x: Value) -> Value:
    """f64 rounded to odd in f32; past the largest number that is the largest number."""
    near = w.cast(x, f32)
    back, magnitude = w.abs(w.cast(near, f64)), w.abs(x)
    bits = w.bits(near)
    even = w.eq(w.and_(bits, 1), 0)
    bits = w.select(w.and_(w.gt(back, magnitude), even), w.sub(bits, 1), bits)
    bits = w.select(w.and_(w.lt(back, magnitude), even), w.add(bits, 1), bits)
    return w.bitcast(bits, f32)


def integer_to_f32_odd(w: Writer, x: Value) -> Value:
    """Any integer rounded to odd in f32."""
    if x.type.bits <= 16:
        return w.cast(x, f32)
    if x.type.bits == 64:
        # Rounded to odd at 2^11, it fits the 53 bits of f64; needed where it did not fit before.
        low = w.ne(w.and_(x, 0x7FF), 0)
        odd = w.or_(w.shl(w.shr(x, 11), 11), w.select(low, w.const(x.type, 1 << 11), 0))
        wide = w.gt(w.abs(w.cast(x, f64)), 2.0**52)
        return f64_to_f32_odd(w, w.select(wide, w.cast(odd, f64), w.cast(x, f64)))
    return f64_to_f32_odd(w, w.cast(x, f64))


def integer_to_f32_odd_by_bits(w: Writer, x: Value) -> Value:
    """The same of an integer of 32 or 64 bits without f64: its 24 leading bits, then scaled."""
    bits, width = w.bits(x), x.type.bits
    negative = None
    if x.type.is_signed:
        negative = w.lt(x, 0)
        bits = w.bits(w.abs(x))
    zeros = w.cast(w.op(Op.CLZ, bits), bits.type)
    shifted = w.shl(bits, w.and_(zeros, width - 1))
    lost = w.ne(w.and_(shifted, (1 << width - 24) - 1), 0)
    leading = w.cast(w.shr(shifted, width - 24), u32)
    leading = w.or_(leading, w.select(lost, w.const(u32, 1), 0))
    scale = w.shl(w.sub(127 + width - 24, w.cast(zeros, u32)), 23)
    result = w.mul(w.cast(leading, f32), w.bitcast(scale, f32))
    return result if negative is None else w.select(negative, w.neg(result), result)


# The 16-bit floats as integers.


def f32_to_bf16(w: Writer, x: Value) -> Value:
    """The bits of f32 rounded to bf16."""
    bits = w.bits(x)
    rounded = w.shr(w.add(w.add(bits, 0x7FFF), w.and_(w.shr(bits, 16), 1)), 16)
    return w.cast(w.select(w.eq(x, x), rounded, 0x7FC0), u16)


def f32_to_f16(w: Writer, x: Value) -> Value:
    """The bits of f32 rounded to f16, by integers alone but for the subnormal results."""
    bits = w.bits(x)
    magnitude = w.and_(bits, 0x7FFFFFFF)
    sign = w.shr(w.and_(bits, 0x80000000), 16)
    # Normal: 13 bits go, the exponent's bias changes from 127 to 15. A carry ends in infinity.
    odd = w.and_(w.shr(magnitude, 13), 1)
    normal = w.sub(w.shr(w.add(w.add(magnitude, 0xFFF), odd), 13), 112 << 10)
    normal = w.min(normal, 0x7C00)
    # Subnormal: 0.5 has its last bit where these have theirs, so that adding it rounds.
    half = w.add(w.bitcast(magnitude, f32), 0.5)
    subnormal = w.sub(w.bits(half), 0x3F000000)
    result = w.select(w.lt(magnitude, 0x38800000), subnormal, normal)
    result = w.select(w.gt(magnitude, 0x7F800000), w.const(u32, 0x7E00), result)
    return w.cast(w.or_(result, sign), u16)


def rounded_to_f16(w: Writer, x: Value) -> Value:
    """f32 rounded to a number that f16 holds, and still an f32, by integers alone."""
    bits = w.bits(x)
    magnitude = w.and_(bits, 0x7FFFFFFF)
    odd = w.and_(w.shr(magnitude, 13), 1)
    normal = w.and_(w.add(w.add(magnitude, 0xFFF), odd), 0x7FFFE000)
    normal = w.select(w.gt(normal, 0x477FE000), w.const(u32, 0x7F800000), normal)
    # Subnormal: the last bit of 0.5 counts the smallest numbers of f16.
    count = w.sub(w.bits(w.add(w.bitcast(magnitude, f32), 0.5)), 0x3F000000)
    subnormal = w.bits(w.mul(w.cast(count, f32), 2.0**-24))
    result = w.select(w.lt(magnitude, 0x38800000), subnormal, normal)
    result = w.select(w.gt(magnitude, 0x7F800000), w.const(u32, 0x7FC00000), result)
    return w.bitcast(w.or_(result, w.and_(bits, 0x80000000)), f32)


def f16_to_f32(w: Writer, half: Value) -> Value:
    """The f32 of the bits of an f16."""
    bits = w.cast(half, u32)
    magnitude = w.and_(bits, 0x7FFF)
    normal = w.add(w.shl(magnitude, 13), 112 << 23)
    special = w.or_(w.shl(magnitude, 13), 0x7F800000)
    subnormal = w.bits(w.mul(w.cast(magnitude, f32), 2.0**-24))
    result = w.select(w.lt(magnitude, 0x400), subnormal, normal)
    result = w.select(w.ge(magnitude, 0x7C00), special, result)
    return w.bitcast(w.or_(result, w.shl(w.and_(bits, 0x8000), 16)), f32)
