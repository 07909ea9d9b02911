"""Indices that are clamped, as at the borders of an image: straight lines nearly everywhere.

``min(max(i + 1, 0), n - 1)`` is ``i + 1`` in all lanes but for the few that it is there for, and
scalars at the ends of the lanes tell. Code for full subgroups goes on only where it is so in all of
them. Other code keeps for each part the scalar of its first lane and whether the part is straight
(``Held.straight``), by which a load decides whether it reads a vector or goes lane by lane.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.conditions import Told, compared, go_on_if, lanes_of, where_straight
from khaljit.codegen.llvm.values import Held
from khaljit.tracer.ir import Space, Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.uniformity import STRAIGHT, Uniformity, combined_stride, wrapped_stride

__all__ = ["clamped", "find_clamps", "grown", "straightened"]

_CLAMPS: Final = frozenset({Op.MIN, Op.MAX, Op.SELECT})
_MOVES: Final = frozenset({Op.CAST, Op.BITCAST})


def find_clamps(trace: Trace, uniformity: Uniformity) -> frozenset[Value]:
    """The clamped numbers that indices of loads are made of."""
    found: set[Value] = set()
    stack = [
        value.indices[0]
        for value in values(trace.body)
        if value.op is Op.LOAD and value.memory.space is not Space.LOCAL
    ]
    seen = set(stack)
    while stack:
        value = stack.pop()
        if not value.type.is_integer or uniformity.stride[value] is not None:
            continue
        if value.op in _CLAMPS:
            found.add(value)
        elif value.op not in STRAIGHT and value.op not in _MOVES:
            continue
        fresh = [arg for arg in value.args if arg not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return frozenset(found)


def grown(value: Value, operands: list[Held]) -> int | None:
    """The stride of what is made of straight lines, clamped ones among them."""
    if not (value.type.is_integer and all(held.dtype.is_integer for held in operands)):
        return None
    strides = [held.stride if held.linear or held.straight else None for held in operands]
    stride = strides[0]
    if value.op in STRAIGHT:
        stride = combined_stride(value, strides, value.type.bits)
    elif value.op not in _MOVES or value.type.bits > operands[0].dtype.bits:
        return None
    return None if stride is None else wrapped_stride(stride, value.type.bits)


def clamped(code: Code, value: Value, operands: list[Held]) -> Held | None:
    """A clamped number, where control goes on only if nothing is clamped: a straight line."""
    inner = _inner(value, operands) if code.may_bail() else None
    if inner is None:
        return None
    told = _undisturbed(code, value, inner, each=False)
    if told is None:
        return None
    go_on_if(code, told[0])
    return operands[inner]


def straightened(code: Code, value: Value, operands: list[Held], held: Held) -> Held:
    """A clamped number that is held in vectors, with the scalars that tell most of them."""
    inner = _inner(value, operands)
    told = None if inner is None else _undisturbed(code, value, inner, each=True)
    if inner is None or told is None:
        return held
    line = operands[inner]
    straight = where_straight(code, (line,), told)
    return replace(held, stride=line.stride, bases=code.values.bases(line), straight=straight)


def _inner(value: Value, operands: list[Held]) -> int | None:
    """Which operand is a straight line, where the other one is the same in all lanes."""
    chosen = range(len(operands))
    if value.op is Op.SELECT:
        if operands[0].uniform:
            return None
        chosen = range(1, 3)
    for k, other in (chosen, chosen[::-1]):
        line = operands[k]
        if (line.linear or line.straight) and line.stride and operands[other].uniform:
            return k
    return None


def _undisturbed(code: Code, value: Value, inner: int, *, each: bool) -> Told | None:
    """Whether an operand is what all lanes get, or those of each part."""
    if value.op is Op.SELECT:
        return lanes_of(code, value.args[0], holds=inner == 1, each=each)
    order = Op.LE if value.op is Op.MIN else Op.GE
    return compared(code, order, (value.args[inner], value.args[1 - inner]), each=each)
