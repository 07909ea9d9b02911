"""Division and square root of f32, rounded correctly on drivers that do not.

Vulkan asks for no more than 2.5 units in the last place, in a part of the range. Here the numbers
are brought next to 1, where the driver's results are good starts; fused multiply-adds give what is
left over exactly, and it is added; then the exponents are put back. Division by 0 is told by bits,
since some have 0 / 0 be 0. Other zeros, infinities, NaN, and subnormal operands, which such drivers
take for 0, are left to the driver.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import f32, i32, u32
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["divided", "root"]

_BIAS: Final = 127
_ONE: Final = _BIAS << 23
_FRACTION: Final = (1 << 23) - 1
_SIGN: Final = 1 << 31
_INFINITY: Final = 0x7F800000
_NAN: Final = 0x7FC00000


def divided(w: Writer, x: Value, y: Value) -> Value:
    """x / y."""
    plain = w.builder.pure(Op.DIV, (x, y))
    a, b = _near_one(w, x), _near_one(w, y)
    inverse = w.builder.pure(Op.DIV, (w.const(f32, 1.0), b))
    inverse = _fma(w, _fma(w, w.neg(b), inverse, w.const(f32, 1.0)), inverse, inverse)
    quotient = w.mul(a, inverse)
    for _ in range(2):
        quotient = _fma(w, _fma(w, w.neg(quotient), b, a), inverse, quotient)
    # 2 to the difference of the exponents, in two steps, since it may be out of range.
    power = w.sub(_field(w, x), _field(w, y))
    half = w.shr(power, 1)
    scaled = w.mul(w.mul(quotient, _power(w, half)), _power(w, w.sub(power, half)))
    # Infinity over a number so large that the driver multiplies by 0.
    infinite = w.bitcast(w.xor(w.bits(x), w.and_(w.bits(y), _SIGN)), f32)
    plain = w.select(w.eq(w.and_(w.bits(x), _SIGN - 1), _INFINITY), infinite, plain)
    scaled = w.select(_is_normal(w, x), scaled, plain)
    size, sign = w.and_(w.bits(x), _SIGN - 1), w.and_(w.xor(w.bits(x), w.bits(y)), _SIGN)
    without = w.select(
        w.gt(w.sub(size, 1), _INFINITY - 1), w.const(u32, _NAN), w.or_(sign, _INFINITY)
    )
    by_zero = w.eq(w.and_(w.bits(y), _SIGN - 1), 0)
    others = w.select(by_zero, w.bitcast(without, f32), w.builder.pure(Op.DIV, (x, y)))
    return w.select(_is_normal(w, y), scaled, others)


def root(w: Writer, x: Value) -> Value:
    """The square root of x."""
    plain = w.builder.pure(Op.SQRT, (x,))
    power = w.sub(_field(w, x), _BIAS)
    odd = w.and_(power, 1)
    a = w.mul(_near_one(w, x), _power(w, odd))
    start = w.builder.pure(Op.SQRT, (a,))
    inverse = w.builder.pure(Op.DIV, (w.const(f32, 0.5), start))
    found = start
    for _ in range(2):
        found = _fma(w, _fma(w, w.neg(found), found, a), inverse, found)
    scaled = w.mul(found, _power(w, w.shr(w.sub(power, odd), 1)))
    positive = w.lt(w.bits(x), _SIGN)
    return w.select(w.and_(_is_normal(w, x), positive), scaled, plain)


def _fma(w: Writer, x: Value, y: Value, z: Value) -> Value:
    return w.builder.pure(Op.FMA, (x, y, z))


def _field(w: Writer, x: Value) -> Value:
    """The exponent field, as i32."""
    return w.bitcast(w.and_(w.shr(w.bits(x), 23), 0xFF), i32)


def _is_normal(w: Writer, x: Value) -> Value:
    return w.lt(w.bits(w.sub(_field(w, x), 1)), 0xFE)


def _near_one(w: Writer, x: Value) -> Value:
    """A number with the sign and fraction of x, and the exponent of 1."""
    return w.bitcast(w.or_(w.and_(w.bits(x), _SIGN | _FRACTION), _ONE), f32)


def _power(w: Writer, exponent: Value) -> Value:
    """2 to a number in -126 .. 127."""
    return w.bitcast(w.shl(w.add(exponent, _BIAS), 23), f32)
