"""Subgroup operations: all lanes are at hand, so they are a few shuffles.

Lanes that are not active take no part: they count as what changes nothing. A lane that asks for
the value of one outside the subgroup gets its own. Sums of floats are rounded in the order of a
tree, not of the lanes.
"""

from __future__ import annotations

from khaljit.codegen.llvm.arithmetic import cast, regular
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import STORED, TYPES, Width, literal
from khaljit.codegen.llvm.values import Held
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, bool_, i64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import COMBINE

__all__ = ["collective", "combined", "neutral"]


def _identity(name: str, dtype: DType) -> str:
    """What the first lane of an exclusive scan gets."""
    if name in ("min", "max"):
        if dtype.is_float:
            return literal(dtype, to_bits(dtype, float("inf" if name == "min" else "-inf")))
        return literal(dtype, to_bits(dtype, dtype.limits[name == "min"]))
    if name == "and":
        return literal(dtype, to_bits(dtype, -1))
    return literal(dtype, to_bits(dtype, 1 if name == "mul" else 0))


def neutral(name: str, dtype: DType) -> str:
    """What changes nothing it is combined with, a NaN or -0.0 included."""
    if dtype.is_float and name in ("min", "max"):
        return literal(dtype, to_bits(dtype, float("nan")))
    if dtype.is_float and name == "add":
        return literal(dtype, to_bits(dtype, -0.0))
    return _identity(name, dtype)


def collective(code: Code, value: Value) -> Held:
    """A subgroup operation."""
    name = str(value.attr)
    operands = [code.values.get(operand) for operand in value.args]
    if code.scalar:
        return _alone(code, name, value.type, operands)
    if name in ("any", "all", "ballot", "elect"):
        return _vote(code, name, value.type, operands)
    if name in COMBINE:
        parts = _taking_part(code, name, operands[0])
        return Held(value.type, combined(code, name, value.type, parts))
    if name.startswith(("inclusive_", "exclusive_")):
        return _scan(code, name, operands[0])
    return _exchange(code, name, value, operands)


def _alone(code: Code, name: str, dtype: DType, operands: list[Held]) -> Held:
    """In a subgroup of one invocation."""
    if name == "elect":
        return Held(dtype, "true", literal=True)
    if name == "ballot":
        base = cast(code.w, Width(0), operands[0].base, bool_, dtype)
        return Held(dtype, base)
    if name.startswith("exclusive_"):
        return Held(dtype, _identity(name.removeprefix("exclusive_"), dtype), literal=True)
    return operands[0]


def _vote(code: Code, name: str, dtype: DType, operands: list[Held]) -> Held:
    lanes, w = code.lanes, code.w
    if name == "elect":
        first = lanes.splat("i64", lanes.first(code.mask))
        t = lanes.width.of("i64")
        parts = (
            w.let(f"icmp eq {t} {first}, {lanes.iota('i64', part)}") for part in range(lanes.parts)
        )
        return Held(dtype, parts=tuple(parts))
    votes = code.values.vector(operands[0])
    if name == "all":
        against = lanes.without(code.mask, votes)
        return Held(dtype, w.let(f"xor i1 {lanes.any(against)}, true"))
    cast_ = lanes.narrowed(code.mask, votes)
    if name == "any":
        return Held(dtype, lanes.any(cast_))
    bits = lanes.bits(cast_)
    return Held(dtype, w.let(f"trunc {lanes.word} {bits} to {TYPES[dtype]}"))


# Combining.


def _taking_part(code: Code, name: str, operand: Held) -> tuple[str, ...]:
    """The vectors of an operand with what changes nothing in the lanes that are not active."""
    dtype = operand.dtype
    nothing = code.lanes.width.const(TYPES[dtype], neutral(name, dtype))
    vector = code.values.vector(operand)
    return code.lanes.blend(code.mask, dtype, vector, (nothing,) * code.lanes.parts)


def combined(code: Code, name: str, dtype: DType, parts: tuple[str, ...]) -> str:
    """All lanes of all parts combined into one scalar, as a tree."""
    w, op, type_ = code.w, COMBINE[name], TYPES[dtype]
    total, width = parts[0], code.lanes.width
    for part in parts[1:]:
        total = regular(w, width, op, dtype, (total, part))
    lanes = width.lanes
    while lanes > 1:
        half = lanes // 2
        t = Width(lanes).of(type_)
        halves = [
            w.let(f"shufflevector {t} {total}, {t} poison, {_order(range(first, first + half))}")
            for first in (0, half)
        ]
        total = regular(w, Width(half), op, dtype, (halves[0], halves[1]))
        lanes = half
    return w.let(f"extractelement <1 x {type_}> {total}, i64 0")


def _order(lanes: range | list[int]) -> str:
    numbers = ", ".join(f"i32 {lane}" for lane in lanes)
    return f"<{len(lanes)} x i32> <{numbers}>"


def _scan(code: Code, name: str, operand: Held) -> Held:
    """In log2(lanes) steps, each adding what stands twice as far before."""
    w, lanes, dtype = code.w, code.lanes, operand.dtype
    kind, name = name.split("_")
    type_, whole = TYPES[dtype], Width(lanes.count)
    total = lanes.joined(type_, _taking_part(code, name, operand))
    nothing = whole.const(type_, neutral(name, dtype))
    step = 1
    while step < lanes.count:
        shifted = _shifted(code, type_, total, nothing, step)
        total = regular(w, whole, COMBINE[name], dtype, (shifted, total))
        step *= 2
    if kind == "inclusive":
        return Held(dtype, parts=lanes.split(type_, total))
    total = _shifted(code, type_, total, nothing, 1)
    # Lanes that none stands before get the identity, which may differ from what changes nothing.
    first = lanes.splat("i64", lanes.first(code.mask))
    identity = lanes.width.const(type_, _identity(name, dtype))
    t = lanes.width.type(dtype)
    parts = []
    for part, vector in enumerate(lanes.split(type_, total)):
        i64s = lanes.width.of("i64")
        has = w.let(f"icmp ult {i64s} {first}, {lanes.iota('i64', part)}")
        parts.append(w.let(f"select {lanes.width.of('i1')} {has}, {t} {vector}, {t} {identity}"))
    return Held(dtype, parts=tuple(parts))


def _shifted(code: Code, type_: str, vector: str, fill: str, step: int) -> str:
    """All lanes moved up, with ``fill`` in the first ones."""
    count = code.lanes.count
    t = Width(count).of(type_)
    order = [count + k if k < step else k - step for k in range(count)]
    return code.w.let(f"shufflevector {t} {vector}, {t} {fill}, {_order(order)}")


# Exchanging.


def _exchange(code: Code, name: str, value: Value, operands: list[Held]) -> Held:
    x = operands[0]
    if name == "broadcast_first":
        return Held(x.dtype, code.one_of(x, code.lanes.first(code.mask)))
    if x.uniform:
        return x
    other = operands[1]
    source = _source(code, name, other)
    if name == "broadcast" and other.uniform and code.uniform(value):
        lane = code.w.let(f"and i64 {source}, {code.lanes.count - 1}")
        return Held(x.dtype, code.one_of(x, lane))
    return _taken(code, x, _inside(code, source))


def _source(code: Code, name: str, other: Held) -> str | tuple[str, ...]:
    """The lanes to take from, as i64; one scalar for a broadcast from a lane that is the same."""
    w, lanes = code.w, code.lanes
    if name == "broadcast" and other.uniform:
        return cast(w, Width(0), other.base, other.dtype, i64)
    wide = [cast(w, lanes.width, part, other.dtype, i64) for part in code.values.vector(other)]
    form = {
        "shuffle_xor": "xor {t} {own}, {0}",
        "shuffle_up": "sub {t} {own}, {0}",
        "shuffle_down": "add {t} {own}, {0}",
    }.get(name)
    if form is None:
        return tuple(wide)
    t = lanes.width.of("i64")
    return tuple(
        w.let(form.format(part, t=t, own=lanes.iota("i64", k))) for k, part in enumerate(wide)
    )


def _inside(code: Code, source: str | tuple[str, ...]) -> tuple[str, ...]:
    """Where a lane is outside the subgroup, its own number."""
    w, lanes = code.w, code.lanes
    parts = (lanes.splat("i64", source),) * lanes.parts if isinstance(source, str) else source
    t, i1 = lanes.width.of("i64"), lanes.width.of("i1")
    limit = lanes.width.const("i64", str(lanes.count))
    safe = []
    for k, part in enumerate(parts):
        inside = w.let(f"icmp ult {t} {part}, {limit}")
        safe.append(w.let(f"select {i1} {inside}, {t} {part}, {t} {lanes.iota('i64', k)}"))
    return tuple(safe)


def _taken(code: Code, x: Held, source: tuple[str, ...]) -> Held:
    """Each lane's value from the lane that ``source`` says, through scratch memory."""
    w, lanes, dtype = code.w, code.lanes, x.dtype
    scratch = code.scratch("exchange")
    code.store_parts(scratch, x)
    t, mangled = lanes.width.of(STORED[dtype]), lanes.width.mangle(STORED[dtype])
    parts = []
    for part in source:
        at = w.let(f"getelementptr {STORED[dtype]}, ptr {scratch}, {lanes.width.of('i64')} {part}")
        name = w.let(
            f"call {t} @llvm.masked.gather.{mangled}.{lanes.width.mangle('p0')}"
            f"({lanes.width.of('ptr')} align {dtype.size} {at}, "
            f"{lanes.width.of('i1')} {lanes.width.const('i1', 'true')}, {t} zeroinitializer)"
        )
        if dtype is bool_:
            name = w.let(f"icmp ne {t} {name}, zeroinitializer")
        parts.append(name)
    return Held(dtype, parts=tuple(parts))
