"""Conditions that all lanes meet, told by scalar comparisons at the ends of the subgroup.

``i < n`` for ids is true in nearly every subgroup. Code that is generated for that case, without
masks, begins with a scalar check, and control goes back to the general code where it fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import TYPES
from khaljit.codegen.llvm.values import Held
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = [
    "Told",
    "all_lanes",
    "compared",
    "demand",
    "go_on_if",
    "lanes_of",
    "where_straight",
]

Told: TypeAlias = tuple[str, ...]  # an i1 for each part, or one for all lanes

_OPPOSITE: Final = {Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
_PREDICATE: Final = {Op.LT: "lt", Op.LE: "le", Op.GT: "gt", Op.GE: "ge"}


def demand(code: Code, condition: Value) -> bool:
    """Go on only where all lanes meet a condition, else back; False where that cannot be done."""
    if not code.may_bail():
        return False
    check = all_lanes(code, condition, holds=True)
    if check is None:
        return False
    go_on_if(code, check)
    code.values.learn(condition, holds=True)
    return True


def go_on_if(code: Code, check: str) -> None:
    """Go back to the general version unless an i1 holds."""
    assert code.bail is not None
    code.w.fork(check, yes=False, to=code.bail)
    code.bailed = True


def all_lanes(code: Code, condition: Value, *, holds: bool) -> str | None:
    """An i1 that is true only if all lanes meet a condition (or, without ``holds``, none does).

    It may be false where it need not be. None where scalars cannot tell.
    """
    told = lanes_of(code, condition, holds=holds, each=False)
    return None if told is None else told[0]


def lanes_of(code: Code, condition: Value, *, holds: bool, each: bool) -> Told | None:
    """What `all_lanes` tells, as one i1; with ``each`` one for each part, about its own lanes."""
    if not code.values.has(condition):  # it was kept from before, its operands were not
        return None
    held = code.values.get(condition)
    if held.linear:
        bases = code.values.bases(held) if each else held.bases or (held.base,)
        made = {
            base: base if holds else code.w.let(f"xor i1 {base}, true")
            for base in dict.fromkeys(bases)
        }
        return _gathered(code, [made[base] for base in bases], each=each)
    op = condition.op
    if op is Op.NOT:
        return lanes_of(code, condition.args[0], holds=not holds, each=each)
    if op in (Op.AND, Op.OR) and condition.args[0].dtype is bool_:
        sides = [lanes_of(code, part, holds=holds, each=each) for part in condition.args]
        every = (op is Op.AND) is holds
        told = [side for side in sides if side is not None]
        if not told or (every and len(told) < len(sides)):
            return None
        combined = (_combined(code, list(part), every=every) for part in zip(*told, strict=True))
        return tuple(combined)
    if op in _OPPOSITE and condition.args[0].type.is_integer:
        return compared(code, op if holds else _OPPOSITE[op], condition.args, each=each)
    return None


def _gathered(code: Code, parts: list[str], *, each: bool) -> Told:
    """What is told of parts, or of all together."""
    return tuple(parts) if each else (_combined(code, list(dict.fromkeys(parts)), every=True),)


def _combined(code: Code, told: list[str], *, every: bool) -> str:
    total = told[0]
    for part in told[1:]:
        total = code.w.let(f"{'and' if every else 'or'} i1 {total}, {part}")
    return total


def compared(code: Code, op: Op, operands: tuple[Value, ...], *, each: bool) -> Told | None:
    """Where nothing wraps, both sides are straight lines and one end of the lanes decides."""
    if not all(code.values.has(operand) for operand in operands):
        return None
    a, b = (code.values.get(operand) for operand in operands)
    if not all(side.linear or (each and side.straight) for side in (a, b)):
        return None
    if not (each or a.bases or b.bases):
        check = _ends_compared(code, op, operands, (a, b), code.lanes.across)
        return None if check is None else (check,)
    made: dict[tuple[str, str], str] = {}
    pairs = list(zip(code.values.bases(a), code.values.bases(b), strict=True))
    for first, second in dict.fromkeys(pairs):
        sides = Held(a.dtype, first, a.stride), Held(b.dtype, second, b.stride)
        check = _ends_compared(code, op, operands, sides, code.lanes.per_part)
        if check is None:
            return None
        made[first, second] = check
    told = _gathered(code, [made[pair] for pair in pairs], each=each)
    return where_straight(code, (a, b), told)


def where_straight(code: Code, held: Iterable[Held], told: Told = ()) -> Told:
    """What is told of parts, of those in which some values are straight lines."""
    for straight in (one.straight for one in held):
        if told and straight:
            pairs = zip(told, straight, strict=True)
            told = tuple(_combined(code, list(pair), every=True) for pair in pairs)
        told = told or straight
    return told


def _ends_compared(
    code: Code, op: Op, operands: tuple[Value, ...], sides: tuple[Held, Held], lanes: int
) -> str | None:
    """Whether a comparison holds in some lanes that follow one another."""
    a, b = sides
    if any(abs(side.stride) * (lanes - 1) >> side.dtype.bits for side in sides):
        return None  # so long a line is not straight, whatever its ends are
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
