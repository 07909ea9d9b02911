"""Expansions of integer operations into what targets have: division that rounds down, shifts.

The laws are those of the operation table: x // 0 = x % 0 = 0, the most negative integer // -1 is
itself, shifts at or past the width give 0 or the sign. Lanes that are masked off compute too, so
the divisor that reaches a machine division is never 0 and never overflows.
"""

from __future__ import annotations

from khaljit.codegen.writing import Writer
from khaljit.tracer.build import constant
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["floordiv", "in_width", "mod", "shl", "shr"]


def floordiv(w: Writer, x: Value, y: Value) -> Value:
    """x // y rounded to minus infinity."""
    quotient, remainder, divisor = _divide(w, x, y)
    if x.type.is_signed:
        quotient = w.select(_astray(w, remainder, divisor), w.sub(quotient, 1), quotient)
    return quotient if divisor is y else w.select(w.eq(y, 0), 0, quotient)


def mod(w: Writer, x: Value, y: Value) -> Value:
    """x % y with the sign of y. No case for 0: the divisor is then 1, which leaves 0."""
    _, remainder, divisor = _divide(w, x, y)
    if not x.type.is_signed:
        return remainder
    return w.select(_astray(w, remainder, divisor), w.add(remainder, divisor), remainder)


def _divide(w: Writer, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Quotient and remainder by truncating division, and the divisor made safe: 1 for a bad one."""
    divisor = y
    if constant(y) in (None, 0, -1):
        bad = w.eq(y, 0)
        if x.type.is_signed:
            overflow = w.and_(w.eq(x, x.type.limits[0]), w.eq(y, -1))
            bad = w.or_(bad, overflow)
        divisor = w.select(bad, 1, y)
    quotient = w.op(Op.TRUNCDIV, x, divisor)
    return quotient, w.sub(x, w.mul(quotient, divisor)), divisor


def _astray(w: Writer, remainder: Value, divisor: Value) -> Value:
    """Whether truncation rounded up: a remainder is left and its sign is not the divisor's."""
    return w.and_(w.ne(remainder, 0), w.lt(w.xor(remainder, divisor), 0))


def shl(w: Writer, x: Value, amount: Value) -> Value:
    """x << amount, 0 from the width on; the amount counts as unsigned."""
    width = x.type.bits
    shifted = w.shl(x, w.and_(amount, width - 1))
    return w.select(w.lt(w.bits(amount), width), shifted, 0)


def shr(w: Writer, x: Value, amount: Value) -> Value:
    """x >> amount, 0 or the sign from the width on; the amount counts as unsigned."""
    width = x.type.bits
    if x.type.is_signed:
        most = w.bitcast(w.min(w.bits(amount), width - 1), x.type)
        # The mask changes nothing but shows the amount's range to `in_width`.
        return w.shr(x, w.and_(most, width - 1))
    shifted = w.shr(x, w.and_(amount, width - 1))
    return w.select(w.lt(amount, width), shifted, 0)


def in_width(amount: Value) -> bool:
    """Whether a shift's amount is surely below its width."""
    most = _most(amount)
    return most is not None and most < amount.type.bits


def _most(amount: Value) -> int | None:
    """The most that a masked or constant amount can be; None where that is not seen at once."""
    number = constant(amount)
    if number is None and amount.op is Op.AND:  # constants stand on the right
        number = constant(amount.args[1])
    elif amount.op is Op.SUB:
        number, least = constant(amount.args[0]), _most(amount.args[1])
        if number is not None and (least is None or least > number):
            return None
    return None if number is None or number < 0 else int(number)
