"""Expansions of floor division and modulo of f32 and f64, exact whatever the quotient.

The remainder of magnitudes is long division on the significands: their difference in exponents is
brought down as many bits at a time as a 64-bit integer has to spare. The first step is straight
code and does for quotients below 2^40 (f32) or 2^11 (f64); a loop does the rest. What is made of
the remainder follows NumPy's ``divmod`` step by step, roundings included.
"""

from __future__ import annotations

from khaljit.codegen.rounding import copysign
from khaljit.codegen.writing import UNSIGNED, Writer, format_of
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import i64, u64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["floordiv", "mod"]


def floordiv(w: Writer, x: Value, y: Value) -> Value:
    """x // y as NumPy computes it; the infinity or NaN of x / y where y is 0."""
    remainder = _truncated(w, x, y)
    quotient = w.op(Op.DIV, w.sub(x, remainder), y)
    quotient = w.select(_astray(w, remainder, y), w.sub(quotient, 1.0), quotient)
    whole = w.op(Op.FLOOR, quotient)
    whole = w.select(w.gt(w.sub(quotient, whole), 0.5), w.add(whole, 1.0), whole)
    plain = w.op(Op.DIV, x, y)
    zero = copysign(w, w.const(x.type, 0.0), plain)
    result = w.select(w.eq(quotient, 0.0), zero, whole)
    return w.select(w.eq(y, 0.0), plain, result)


def mod(w: Writer, x: Value, y: Value) -> Value:
    """x % y with the sign of y; NaN where y is 0."""
    remainder = _truncated(w, x, y)
    adjusted = w.select(_astray(w, remainder, y), w.add(remainder, y), remainder)
    zero = copysign(w, w.const(x.type, 0.0), y)
    return w.select(w.eq(remainder, 0.0), zero, adjusted)


def _astray(w: Writer, remainder: Value, y: Value) -> Value:
    """Whether a remainder is left and its sign is not the divisor's."""
    differ = w.xor(w.lt(y, 0.0), w.lt(remainder, 0.0))
    return w.and_(w.ne(remainder, 0.0), differ)


def _truncated(w: Writer, x: Value, y: Value) -> Value:
    """C's fmod: the exact remainder of x / y truncated, with the sign of x."""
    infinity = w.const(x.type, float("inf"))
    x_size, y_size = w.abs(x), w.abs(y)
    nan = w.const(x.type, float("nan"))
    proper = w.and_(w.lt(x_size, infinity), w.gt(y_size, 0.0))  # false for NaN of either
    divides = w.and_(proper, w.and_(w.ge(x_size, y_size), w.lt(y_size, infinity)))
    remainder = _long_division(w, x_size, y_size, divides)
    result = w.select(divides, remainder, w.select(proper, x_size, nan))
    return copysign(w, result, x)


def _parts(w: Writer, x: Value) -> tuple[Value, Value]:
    """Significand and exponent field of a positive number; the field of a subnormal counts 1."""
    form = format_of(x.type)
    bits = w.cast(w.bits(x), u64)
    field = w.shr(bits, form.mantissa)
    hidden = w.select(w.ne(field, 0), w.const(u64, 1 << form.mantissa), 0)
    significand = w.or_(w.and_(bits, (1 << form.mantissa) - 1), hidden)
    return significand, w.bitcast(w.max(field, 1), i64)


def _long_division(w: Writer, x: Value, y: Value, divides: Value) -> Value:
    """The remainder of positive numbers, x at least y. (Anything unless ``divides``.)"""
    form = format_of(x.type)
    spare = 63 - form.mantissa
    x_part, x_field = _parts(w, x)
    y_part, y_field = _parts(w, y)
    y_part = w.select(divides, y_part, 1)
    ahead = w.select(divides, w.sub(x_field, y_field), 0)
    first = w.min(ahead, spare)
    rest = w.sub(ahead, first)
    remainder = w.op(Op.TRUNCMOD, _shifted(w, x_part, first), y_part)
    remainder = _brought_down(w, remainder, y_part, rest, spare)
    return _float(w, remainder, y_field, x)


def _shifted(w: Writer, x: Value, amount: Value) -> Value:
    return w.shl(x, w.and_(w.bitcast(amount, u64), 63))


def _brought_down(w: Writer, start: Value, divisor: Value, count: Value, spare: int) -> Value:
    """start * 2^count modulo divisor, ``spare`` bits at a time."""
    builder: Builder = w.builder
    remainder, left = builder.open((u64, i64))
    done = w.le(left, 0)
    builder.open()
    builder.end(Op.BREAK, (remainder,))
    leave = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(done, leave, builder.close())
    step = w.min(left, spare)
    below = w.op(Op.TRUNCMOD, _shifted(w, remainder, step), divisor)
    builder.end(Op.CONTINUE, (below, w.sub(left, step)))
    (result,) = builder.loop((start, count), builder.close(), (u64,))
    return result


def _float(w: Writer, significand: Value, field: Value, like: Value) -> Value:
    """The float with a significand of too few bits; 0 if it is 0."""
    form = format_of(like.type)
    short = w.sub(w.cast(w.op(Op.CLZ, significand), i64), 63 - form.mantissa)
    shift = w.min(short, w.sub(field, 1))  # a subnormal number keeps its leading zeros
    scale = w.shl(w.bitcast(w.sub(w.sub(field, shift), 1), u64), form.mantissa)
    bits = w.add(_shifted(w, significand, shift), scale)
    bits = w.select(w.eq(significand, 0), 0, bits)
    return w.bitcast(w.cast(bits, UNSIGNED[form.bits]), like.type)
