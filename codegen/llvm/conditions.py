"""Conditions that all lanes meet, told by scalar comparisons at the ends of the subgroup.

``i < n`` for ids is true in nearly every subgroup. Code that is generated for that case, without
masks, begins with a scalar check, and control goes back to the general code where it fails.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import TYPES
from khaljit.codegen.llvm.values import Held
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["all_lanes", "demand"]

_OPPOSITE: Final = {Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
_PREDICATE: Final = {Op.LT: "lt", Op.LE: "le", Op.GT: "gt", Op.GE: "ge"}


def demand(code: Code, condition: Value) -> bool:
    """Go on only where all lanes meet a condition, else back; False where that cannot be done."""
    if not code.may_bail():
        return False
    check = all_lanes(code, condition, holds=True)
    if check is None:
        return False
    assert code.bail is not None
    code.w.fork(check, yes=False, to=code.bail)
    code.bailed = True
    code.values.learn(condition, holds=True)
    return True


def all_lanes(code: Code, condition: Value, *, holds: bool) -> str | None:
    """An i1 that is true only if all lanes meet a condition (or, without ``holds``, none does).

    It may be false where it need not be. None where scalars cannot tell.
    """
    if not code.values.has(condition):  # it was kept from before, its operands were not
        return None
    held = code.values.get(condition)
    if held.linear:
        told = [
            base if holds else code.w.let(f"xor i1 {base}, true")
            for base in dict.fromkeys(held.bases or (held.base,))
        ]
        return _combined(code, list(told), every=True)
    op = condition.op
    if op is Op.NOT:
        return all_lanes(code, condition.args[0], holds=not holds)
    if op in (Op.AND, Op.OR) and condition.args[0].dtype is bool_:
        parts = [all_lanes(code, part, holds=holds) for part in condition.args]
        return _combined(code, parts, every=(op is Op.AND) is holds)
    if op in _OPPOSITE and condition.args[0].type.is_integer:
        return _comparison(code, op if holds else _OPPOSITE[op], condition.args)
    return None


def _combined(code: Code, parts: list[str | None], *, every: bool) -> str | None:
    told = [part for part in parts if part is not None]
    if not told or (every and len(told) < len(parts)):
        return None
    total = told[0]
    for part in told[1:]:
        total = code.w.let(f"{'and' if every else 'or'} i1 {total}, {part}")
    return total


def _comparison(code: Code, op: Op, operands: tuple[Value, ...]) -> str | None:
    """Where nothing wraps, both sides are straight lines and one end of the subgroup decides."""
    if not all(code.values.has(operand) for operand in operands):
        return None
    a, b = (code.values.get(operand) for operand in operands)
    if not (a.linear and b.linear):
        return None
    if not (a.bases or b.bases):
        return _ends_compared(code, op, operands, (a, b), code.lanes.across)
    told: list[str | None] = []
    bases = zip(code.values.bases(a), code.values.bases(b), strict=True)
    for first, second in dict.fromkeys(bases):
        sides = Held(a.dtype, first, a.stride), Held(b.dtype, second, b.stride)
        told.append(_ends_compared(code, op, operands, sides, code.lanes.per_part))
    return _combined(code, told, every=True)


def _ends_compared(
    code: Code, op: Op, operands: tuple[Value, ...], sides: tuple[Held, Held], lanes: int
) -> str:
    """Whether a comparison holds in some lanes that follow one another."""
    a, b = sides
    grows = a.stride > b.stride
    at_last = grows is (op in (Op.LT, Op.LE))
    ends = [_end(code, side, lanes) if at_last else side.base for side in sides]
    sign = "s" if operands[0].type.is_signed else "u"
    type_ = TYPES[operands[0].type]
    check = code.w.let(f"icmp {sign}{_PREDICATE[op]} {type_} {ends[0]}, {ends[1]}")
    for side, operand in zip(sides, operands, strict=True):
        if side.stride and not _is_id(operand):
            order = "le" if side.stride > 0 else "ge"
            last = _end(code, side, lanes)
            straight = code.w.let(f"icmp {sign}{order} {type_} {side.base}, {last}")
            check = code.w.let(f"and i1 {check}, {straight}")
    return check


def _end(code: Code, side: Held, lanes: int) -> str:
    """What the last of some lanes has."""
    span = side.stride * (lanes - 1)
    return code.w.let(f"add {TYPES[side.dtype]} {side.base}, {span}") if span else side.base


def _is_id(value: Value) -> bool:
    """Whether a value is an id, perhaps with another sign: those do not wrap in a subgroup."""
    while value.op is Op.BITCAST:
        value = value.args[0]
    return value.op is Op.ID
