"""Atomic operations.

The legaliser leaves what the hardware does on 32 and 64 bits, float addition where there is one,
and moves and compare-exchange of 8 and 16 bits. Bytes go through compare-exchange of the word
that they are in, whose other bytes stay as they are.

Where the old value is not read, a reduction (``red``) does.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.ptx.code import Code
from khaljit.codegen.ptx.forms import TYPES
from khaljit.codegen.ptx.memory import address, address_register, leaf_type, predicate
from khaljit.tracer.dtypes import DType, Kind, bf16, f16
from khaljit.tracer.ir import AtomicAccess, Space, Value

__all__ = ["atomic"]

# Read-modify-write, by kind: {a} is the type that adds, {s} that with its sign, {b} that without.
_OPERATIONS: Final = {
    "add": "add.{a}",
    "sub": "add.{a}",
    "min": "min.{s}",
    "max": "max.{s}",
    "and": "and.{b}",
    "or": "or.{b}",
    "xor": "xor.{b}",
    "exchange": "exch.{b}",
    "compare_exchange": "cas.{b}",
}
_REDUCES: Final = frozenset({"add", "sub", "min", "max", "and", "or", "xor"})
# Orders that a load or a store alone can have.
_LOAD_ORDERS: Final = {"relaxed": "relaxed", "release": "relaxed"}
_STORE_ORDERS: Final = {"relaxed": "relaxed", "acquire": "relaxed"}


def atomic(code: Code, value: Value) -> None:
    """An atomic operation; what it gives where its guard does not hold is 0."""
    assert isinstance(value.attr, AtomicAccess)
    kind, dtype = value.attr.kind, leaf_type(value)
    if kind == "load":
        _load(code, value, dtype, value.attr.order)
    elif kind == "store":
        _store(code, value, dtype, value.attr.order)
    elif dtype.bits < 32 and not dtype.is_float:
        _in_word(code, value, kind, dtype)
    else:
        _whole(code, value, kind, dtype)


def _scope(code: Code, value: Value) -> str:
    """Who takes part, and the state space."""
    return "cta.shared" if value.memory.space is Space.SHARED else f"gpu.{code.space(value.memory)}"


def _cleared(code: Code, kind: str, when: str) -> str:
    """A register for a result, 0 where the operation may not happen."""
    name = code.w.register(kind)
    if when:
        code.w.do(f"mov.{kind} {name}, 0;")
    return name


def _load(code: Code, value: Value, dtype: DType, order: str) -> None:
    when = predicate(code, value)
    name, at = _cleared(code, TYPES[dtype].register, when), address(code, value)
    semantics = _LOAD_ORDERS.get(order, "acquire")
    code.w.do(f"{when}ld.{semantics}.{_scope(code, value)}.{TYPES[dtype].memory} {name}, {at};")
    code.operands[value] = name


def _store(code: Code, value: Value, dtype: DType, order: str) -> None:
    operand = code.register(value.operands[0])
    when, at = predicate(code, value), address(code, value)
    semantics = _STORE_ORDERS.get(order, "release")
    code.w.do(f"{when}st.{semantics}.{_scope(code, value)}.{TYPES[dtype].memory} {at}, {operand};")


def _whole(code: Code, value: Value, kind: str, dtype: DType) -> None:
    """An instruction does it."""
    assert isinstance(value.attr, AtomicAccess)
    w = code.w
    operands = [code.register(operand) for operand in value.operands]
    if kind == "sub":
        operands = [_negated(code, dtype, operands[0])]
    when, at = predicate(code, value), address(code, value)
    operation = _operation(kind, dtype)
    read = code.is_used(value)
    tail = f"{value.attr.order}.{_scope(code, value)}.{operation}"
    given = ", ".join(operands)
    if not read and kind in _REDUCES and value.attr.order in ("relaxed", "release"):
        w.do(f"{when}red.{tail} {at}, {given};")
        return
    name = _cleared(code, TYPES[dtype].register, when) if read else "_"
    w.do(f"{when}atom.{tail} {name}, {at}, {given};")
    if read:
        code.operands[value] = name


def _operation(kind: str, dtype: DType) -> str:
    number = TYPES[dtype].number
    added = f"noftz.{number}" if dtype in (f16, bf16) else number
    if dtype.is_integer:
        added = f"u{dtype.bits}"
    return _OPERATIONS[kind].format(a=added, s=number, b=TYPES[dtype].register)


def _negated(code: Code, dtype: DType, operand: str) -> str:
    """What to add in order to subtract."""
    kind = TYPES[dtype].register
    if dtype is f16 or dtype is bf16:
        return code.w.let(kind, f"xor.b16 {{d}}, {operand}, 0x8000;")
    type_ = TYPES[dtype].number if dtype.is_float else f"s{dtype.bits}"
    return code.w.let(kind, f"neg.{type_} {{d}}, {operand};")


# Bytes and pairs of bytes.


def _in_word(code: Code, value: Value, kind: str, dtype: DType) -> None:
    """An exchange or compare-exchange on part of a word: a loop until nobody came in between."""
    assert isinstance(value.attr, AtomicAccess)
    w, order, scope = code.w, value.attr.order, _scope(code, value)
    operands = [_bits(code, dtype, operand) for operand in value.operands]
    after, again, done = w.label(), w.label(), w.label()
    result = _cleared(code, "b32", "guarded" if value.guard is not None else "")
    if value.guard is not None:
        guard = code.operand(value.guard)
    register = address_register(code, value)
    if value.guard is not None:
        w.branch(guard, after, yes=False)
    word, shift = _word_of(code, value, register)
    mask = w.let("b32", f"shl.b32 {{d}}, {(1 << dtype.bits) - 1}, {shift};")
    desired = w.let("b32", f"shl.b32 {{d}}, {operands[-1]}, {shift};")
    kept = w.let("b32", f"not.b32 {{d}}, {mask};")
    seen = w.let("b32", f"ld.relaxed.{scope}.b32 {{d}}, [{word}];")
    w.open(again)
    part = w.let("b32", f"shr.u32 {{d}}, {seen}, {shift};")
    w.do(f"and.b32 {result}, {part}, {(1 << dtype.bits) - 1};")
    if kind == "compare_exchange":
        differs = w.let("pred", f"setp.ne.u32 {{d}}, {result}, {operands[0]};")
        w.branch(differs, done)
    rest = w.let("b32", f"and.b32 {{d}}, {seen}, {kept};")
    wanted = w.let("b32", f"or.b32 {{d}}, {rest}, {desired};")
    found = w.let("b32", f"atom.{order}.{scope}.cas.b32 {{d}}, [{word}], {seen}, {wanted};")
    lost = w.let("pred", f"setp.ne.u32 {{d}}, {found}, {seen};")
    w.do(f"mov.b32 {seen}, {found};")
    w.branch(lost, again)
    w.open(done)
    w.open(after)
    code.operands[value] = _from_bits(code, dtype, result)


def _bits(code: Code, dtype: DType, operand: Value) -> str:
    """A small integer, extended by zeros."""
    name = code.register(operand)
    if dtype.kind is Kind.UNSIGNED:
        return name
    return code.w.let("b32", f"cvt.u32.u{dtype.bits} {{d}}, {name};")


def _from_bits(code: Code, dtype: DType, name: str) -> str:
    if dtype.kind is Kind.UNSIGNED:
        return name
    return code.w.let("b32", f"{TYPES[dtype].narrow} {{d}}, {name};")


def _word_of(code: Code, value: Value, register: str) -> tuple[str, str]:
    """The address of the word around one, and by how many bits it is inside."""
    w = code.w
    short = value.memory.space is Space.SHARED
    low = register if short else w.let("b32", f"cvt.u32.u64 {{d}}, {register};")
    kind = "b32" if short else "b64"
    word = w.let(kind, f"and.{kind} {{d}}, {register}, -4;")
    inside = w.let("b32", f"and.b32 {{d}}, {low}, 3;")
    return word, w.let("b32", f"shl.b32 {{d}}, {inside}, 3;")
