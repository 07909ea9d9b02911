"""Subgroup operations: a subgroup is a warp, all of whose lanes come here together.

Where the workgroup's size is no multiple of 32, its last warp lacks lanes. Masks may name those
anyway; what would be read from them is replaced. A lane that asks for the value of one that is
not there gets its own.

Sums and the like exchange values in steps of 16, 8, 4, 2, 1 lanes; so floats are added as a tree.
16-bit floats are combined in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.ptx.arithmetic import cast, combine, regular
from khaljit.codegen.ptx.code import FULL_WARP, WARP, Code
from khaljit.codegen.ptx.forms import TYPES, literal
from khaljit.codegen.ptx.ids import lane, members
from khaljit.tracer.build import constant, to_bits
from khaljit.tracer.dtypes import DType, bf16, bool_, f16, f32
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import COMBINE, Op

__all__ = ["collective"]

_LAST: Final = WARP - 1
_STEPS: Final = (16, 8, 4, 2, 1)
_REDUX: Final = {"add": "s32", "min": None, "max": None, "and": "b32", "or": "b32", "xor": "b32"}


def collective(code: Code, value: Value) -> None:
    """A subgroup operation."""
    name = str(value.attr)
    direct = _DIRECT.get(name)
    if direct is not None:
        code.operands[value] = direct(code, value)
        return
    prefix, _, kind = name.rpartition("_")
    dtype, operand = value.type, code.register(value.args[0])
    wide = f32 if dtype in (f16, bf16) else dtype
    if wide is not dtype:
        operand = cast(code.w, operand, dtype, wide)
    result = (
        _scan(code, kind, wide, operand, inclusive=prefix == "inclusive")
        if prefix
        else _reduced(code, kind, wide, operand)
    )
    code.operands[value] = result if wide is dtype else cast(code.w, result, wide, dtype)


# Moving values between lanes.


def _shuffle(
    code: Code, mode: str, dtype: DType, operand: str, by: str, clamp: str, inside: str = ""
) -> str:
    """A value of another lane; ``inside`` names the predicate that says whether there is one."""
    w, kind = code.w, TYPES[dtype].register
    if kind == "b64":
        low, high = w.register("b32"), w.register("b32")
        w.do(f"mov.b64 {{{low}, {high}}}, {operand};")
        low, high = (
            _shuffle_word(code, mode, word, by, clamp, flag)
            for word, flag in ((low, inside), (high, ""))
        )
        return w.let("b64", f"mov.b64 {{d}}, {{{low}, {high}}};")
    if kind == "b16":
        word = w.let("b32", f"cvt.u32.u16 {{d}}, {operand};")
        word = _shuffle_word(code, mode, word, by, clamp, inside)
        return w.let("b16", f"cvt.u16.u32 {{d}}, {word};")
    if kind == "pred":
        word = w.let("b32", f"selp.b32 {{d}}, 1, 0, {operand};")
        word = _shuffle_word(code, mode, word, by, clamp, inside)
        return w.let("pred", f"setp.ne.u32 {{d}}, {word}, 0;")
    return _shuffle_word(code, mode, operand, by, clamp, inside)


def _shuffle_word(code: Code, mode: str, word: str, by: str, clamp: str, inside: str) -> str:
    flag = f"|{inside}" if inside else ""
    return code.w.let(
        "b32", f"shfl.sync.{mode}.b32 {{d}}{flag}, {word}, {by}, {clamp}, {FULL_WARP};"
    )


def _selected(code: Code, condition: str, dtype: DType, yes: str, no: str) -> str:
    return regular(code.w, code.architecture, Op.SELECT, dtype, (condition, yes, no))


# Combining over lanes.


def _identity(kind: str, dtype: DType) -> str:
    """What leaves the other operand as it is."""
    if kind in ("min", "max"):
        if dtype.is_float:
            bits = to_bits(dtype, float("inf" if kind == "min" else "-inf"))
        else:
            bits = to_bits(dtype, dtype.limits[1 if kind == "min" else 0])
    else:
        bits = to_bits(dtype, {"mul": 1, "and": -1}.get(kind, 0))
    return literal(dtype, bits)


def _reduced(code: Code, kind: str, dtype: DType, operand: str) -> str:
    """All lanes' values combined, for all lanes."""
    if dtype is bool_:
        return _votes(code, kind, operand)
    if code.architecture.reduces and kind in _REDUX and TYPES[dtype].number in ("s32", "u32"):
        return _redux(code, kind, dtype, operand)
    if code.partial:
        total = _tree(code, kind, dtype, operand)
        return _shuffle(code, "idx", dtype, total, "0", str(_LAST))
    for step in _STEPS:
        other = _shuffle(code, "bfly", dtype, operand, str(step), str(_LAST))
        operand = combine(code.w, code.architecture, kind, dtype, operand, other)
    return operand


def _tree(code: Code, kind: str, dtype: DType, operand: str) -> str:
    """All lanes' values combined in the first lane of a warp that may lack some."""
    last = code.w.let("b32", f"sub.u32 {{d}}, {members(code)}, 1;")
    for step in _STEPS:
        inside = code.w.register("pred")
        other = _shuffle(code, "down", dtype, operand, str(step), last, inside)
        total = combine(code.w, code.architecture, kind, dtype, operand, other)
        operand = _selected(code, inside, dtype, total, operand)
    return operand


def _redux(code: Code, kind: str, dtype: DType, operand: str) -> str:
    """By one instruction; it sees the lanes that are there."""
    type_ = _REDUX[kind] or TYPES[dtype].number
    result = code.w.let("b32", f"redux.sync.{kind}.{type_} {{d}}, {operand}, {_mask(code)};")
    narrow = TYPES[dtype].narrow
    return code.w.let("b32", f"{narrow} {{d}}, {result};") if narrow else result


def _votes(code: Code, kind: str, operand: str) -> str:
    """``and``, ``or`` and ``xor`` of bools."""
    if kind == "xor":
        ballot = code.w.let("b32", f"vote.sync.ballot.b32 {{d}}, {operand}, {_mask(code)};")
        count = code.w.let("b32", f"popc.b32 {{d}}, {ballot};")
        odd = code.w.let("b32", f"and.b32 {{d}}, {count}, 1;")
        return code.w.let("pred", f"setp.ne.u32 {{d}}, {odd}, 0;")
    return _vote(code, "all" if kind == "and" else "any", operand)


def _vote(code: Code, name: str, operand: str) -> str:
    return code.w.let("pred", f"vote.sync.{name}.pred {{d}}, {operand}, {_mask(code)};")


def _mask(code: Code) -> str:
    """The lanes that are there, as a mask."""
    if not code.partial:
        return FULL_WARP
    missing = code.w.let("b32", f"sub.u32 {{d}}, {WARP}, {members(code)};")
    return code.w.let("b32", f"shr.u32 {{d}}, {FULL_WARP}, {missing};")


def _scan(code: Code, kind: str, dtype: DType, operand: str, *, inclusive: bool) -> str:
    """For each lane the values of those up to it combined, or of those below it."""
    for step in reversed(_STEPS):
        inside = code.w.register("pred")
        other = _shuffle(code, "up", dtype, operand, str(step), "0", inside)
        total = combine(code.w, code.architecture, kind, dtype, other, operand)
        operand = _selected(code, inside, dtype, total, operand)
    if inclusive:
        return operand
    inside = code.w.register("pred")
    below = _shuffle(code, "up", dtype, operand, "1", "0", inside)
    first = _identity(kind, dtype)
    if dtype is bool_:
        first = code.w.held("pred", first)
    return _selected(code, inside, dtype, below, first)


# The others.


def _from_lane(code: Code, value: Value) -> str:
    """``broadcast`` and ``shuffle``: of the lane that is named."""
    return _of_lane(code, value, code.operand(value.args[1]))


def _of_lane(code: Code, value: Value, source: str) -> str:
    """The value of a lane, whose number has the type of the second operand."""
    w, (x, number) = code.w, value.args
    operand, bits = code.register(x), number.type.bits
    there = str(WARP)
    if code.partial:
        there = members(code)
        if bits == 64:
            there = w.let("b64", f"cvt.u64.u32 {{d}}, {there};")
    source = w.held(f"b{max(bits, 32)}", source)
    inside = w.let("pred", f"setp.lt.u{max(bits, 32)} {{d}}, {source}, {there};")
    if bits == 64:
        source = w.let("b32", f"cvt.u32.u64 {{d}}, {source};")
    other = _shuffle(code, "idx", value.type, operand, source, str(_LAST))
    return _selected(code, inside, value.type, other, operand)


def _relative(op: str, mode: str) -> Callable[[Code, Value], str]:
    """The value of a lane some way up or down, or with a number that differs in some bits."""

    def relative(code: Code, value: Value) -> str:
        w, (x, by) = code.w, value.args
        distance = constant(by)
        if distance is not None and 0 <= distance < WARP and not code.partial:
            clamp = "0" if mode == "up" else str(_LAST)
            return _shuffle(code, mode, value.type, code.register(x), str(distance), clamp)
        own, bits = lane(code), max(by.type.bits, 32)
        if bits == 64:
            own = w.let("b64", f"cvt.u64.u32 {{d}}, {own};")
        source = w.let(f"b{bits}", f"{op.format(bits=bits)} {{d}}, {own}, {code.operand(by)};")
        return _of_lane(code, value, source)

    return relative


def _first(code: Code, value: Value) -> str:
    return _shuffle(code, "idx", value.type, code.register(value.args[0]), "0", str(_LAST))


def _elect(code: Code, value: Value) -> str:
    return code.w.let("pred", f"setp.eq.u32 {{d}}, {lane(code)}, 0;")


def _ballot(code: Code, value: Value) -> str:
    operand = code.register(value.args[0])
    return code.w.let("b32", f"vote.sync.ballot.b32 {{d}}, {operand}, {_mask(code)};")


_DIRECT: Final[dict[str, Callable[[Code, Value], str]]] = {
    "broadcast": _from_lane,
    "shuffle": _from_lane,
    "shuffle_xor": _relative("xor.b{bits}", "bfly"),
    "shuffle_up": _relative("sub.s{bits}", "up"),
    "shuffle_down": _relative("add.s{bits}", "down"),
    "broadcast_first": _first,
    "elect": _elect,
    "ballot": _ballot,
    "any": lambda code, value: _vote(code, "any", code.register(value.args[0])),
    "all": lambda code, value: _vote(code, "all", code.register(value.args[0])),
}
assert set(_REDUX) < set(COMBINE)
