"""Arithmetic of 64-bit integers on pairs of words, lower word first."""

from __future__ import annotations

from typing import TypeAlias

from khaljit.codegen.webgpu.expansions import multiply_high
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import f32, i32, u32
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = [
    "Pair",
    "add",
    "divide",
    "from_float",
    "is_negative",
    "less",
    "multiply",
    "negate",
    "select",
    "shift_left",
    "shift_right",
    "subtract",
    "to_float",
]

Pair: TypeAlias = tuple[Value, Value]


def _flag(w: Writer, condition: Value) -> Value:
    """1 where a condition holds."""
    return w.select(condition, w.const(u32, 1), 0)


def add(w: Writer, x: Pair, y: Pair) -> Pair:
    low = w.add(x[0], y[0])
    return low, w.add(w.add(x[1], y[1]), _flag(w, w.lt(low, x[0])))


def subtract(w: Writer, x: Pair, y: Pair) -> Pair:
    borrow = _flag(w, w.lt(x[0], y[0]))
    return w.sub(x[0], y[0]), w.sub(w.sub(x[1], y[1]), borrow)


def negate(w: Writer, x: Pair) -> Pair:
    return w.sub(0, x[0]), w.add(w.not_(x[1]), _flag(w, w.eq(x[0], 0)))


def multiply(w: Writer, x: Pair, y: Pair) -> Pair:
    crossed = w.add(w.mul(x[0], y[1]), w.mul(y[0], x[1]))
    return w.mul(x[0], y[0]), w.add(multiply_high(w, x[0], y[0]), crossed)


def select(w: Writer, condition: Value, yes: Pair, no: Pair) -> Pair:
    return w.select(condition, yes[0], no[0]), w.select(condition, yes[1], no[1])


def is_negative(w: Writer, x: Pair) -> Value:
    return w.lt(w.bitcast(x[1], i32), 0)


def less(w: Writer, x: Pair, y: Pair, signed: bool) -> Value:
    first = w.lt(w.bitcast(x[1], i32), w.bitcast(y[1], i32)) if signed else w.lt(x[1], y[1])
    return w.or_(first, w.and_(w.eq(x[1], y[1]), w.lt(x[0], y[0])))


def shift_left(w: Writer, x: Pair, amount: Value) -> Pair:
    """Shifted by less than 64."""
    whole, part = w.ge(amount, 32), w.and_(amount, 31)
    low = w.shl(x[0], part)
    moved = w.shr(w.shr(x[0], 1), w.xor(part, 31))  # what leaves the lower word
    high = w.or_(w.shl(x[1], part), moved)
    return w.select(whole, w.const(u32, 0), low), w.select(whole, low, high)


def shift_right(w: Writer, x: Pair, amount: Value, signed: bool) -> Pair:
    """Shifted by less than 64."""
    whole, part = w.ge(amount, 32), w.and_(amount, 31)
    top = w.bitcast(x[1], i32) if signed else x[1]
    high = w.bits(w.shr(top, w.bitcast(part, top.type)))
    moved = w.shl(w.shl(x[1], 1), w.xor(part, 31))  # what leaves the upper word
    low = w.or_(w.shr(x[0], part), moved)
    sign = w.bits(w.shr(top, 31)) if signed else w.const(u32, 0)
    return w.select(whole, high, low), w.select(whole, sign, high)


# Division.


def divide(w: Writer, x: Pair, y: Pair, signed: bool) -> tuple[Pair, Pair]:
    """Quotient and remainder of truncating division by what is not 0."""
    if not signed:
        return _divide_unsigned(w, x, y)
    x_negative, y_negative = is_negative(w, x), is_negative(w, y)
    quotient, remainder = _divide_unsigned(
        w, select(w, x_negative, negate(w, x), x), select(w, y_negative, negate(w, y), y)
    )
    differ = w.xor(x_negative, y_negative)
    return (
        select(w, differ, negate(w, quotient), quotient),
        select(w, x_negative, negate(w, remainder), remainder),
    )


def _divide_unsigned(w: Writer, x: Pair, y: Pair) -> tuple[Pair, Pair]:
    builder, zero = w.builder, w.const(u32, 0)
    builder.open()
    quotient = w.op(Op.TRUNCDIV, x[0], y[0])
    rest = w.sub(x[0], w.mul(quotient, y[0]))
    builder.end(Op.YIELD, (quotient, zero, rest, zero))
    short = builder.close()
    builder.open()
    builder.end(Op.YIELD, _long_division(w, x, y))
    fits = w.eq(w.or_(x[1], y[1]), 0)
    low, high, rest_low, rest_high = builder.if_(fits, short, builder.close())
    return (low, high), (rest_low, rest_high)


def _long_division(w: Writer, x: Pair, y: Pair) -> tuple[Value, ...]:
    """Quotient and remainder, a bit at a time: the quotient replaces what is divided."""
    builder, zero = w.builder, w.const(u32, 0)
    left, low, high, rest_low, rest_high = builder.open((u32,) * 5)
    builder.open()
    builder.end(Op.BREAK, (low, high, rest_low, rest_high))
    leave = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(w.eq(left, 0), leave, builder.close())
    over = w.shr(rest_high, 31)
    rest = (
        w.or_(w.shl(rest_low, 1), w.shr(high, 31)),
        w.or_(w.shl(rest_high, 1), w.shr(rest_low, 31)),
    )
    takes = w.or_(w.ne(over, 0), w.not_(less(w, rest, y, signed=False)))
    rest = select(w, takes, subtract(w, rest, y), rest)
    shifted = w.or_(w.shl(low, 1), _flag(w, takes)), w.or_(w.shl(high, 1), w.shr(low, 31))
    builder.end(Op.CONTINUE, (w.sub(left, 1), *shifted, *rest))
    initial = (w.const(u32, 64), *x, zero, zero)
    return builder.loop(initial, builder.close(), (u32,) * 4)


# Floats.


def to_float(w: Writer, x: Pair, signed: bool) -> Value:
    """f32, rounded once: the leading 32 bits, the last one set if any is lost, then scaled."""
    if signed:
        negative = is_negative(w, x)
        magnitude = to_float(w, select(w, negative, negate(w, x), x), signed=False)
        return w.select(negative, w.neg(magnitude), magnitude)
    below = w.add(w.op(Op.CLZ, x[0]), 32)
    zeros = w.bits(w.select(w.eq(x[1], 0), below, w.op(Op.CLZ, x[1])))
    low, high = shift_left(w, x, w.and_(zeros, 63))
    leading = w.or_(high, _flag(w, w.ne(low, 0)))
    scale = w.shl(w.sub(127 + 32, zeros), 23)
    return w.mul(w.cast(leading, f32), w.bitcast(scale, f32))


def from_float(w: Writer, x: Value, signed: bool) -> Pair:
    """An f32 within the limits, truncated."""
    magnitude = w.abs(x)
    high = w.cast(w.mul(magnitude, 2.0**-32), u32)
    low = w.cast(w.sub(magnitude, w.mul(w.cast(high, f32), 2.0**32)), u32)
    return select(w, w.lt(x, 0.0), negate(w, (low, high)), (low, high)) if signed else (low, high)
