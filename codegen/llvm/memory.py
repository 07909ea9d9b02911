"""Loads and stores: one scalar, consecutive lanes, or lanes apart.

* An address that is the same in all lanes is one scalar access. Where it is not sure to be in
  bounds, a load reads from a block of zeros instead.
* Lanes whose addresses follow one another are vector accesses, masked where lanes are inactive,
  so that nothing outside the memory is touched.
* All others are gathers and scatters.

Local arrays belong to one invocation. They are laid out with the lanes next to each other for
each unit of the element's alignment, so that accesses at the same offset are consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.conditions import demand
from khaljit.codegen.llvm.forms import STORED, TYPES
from khaljit.codegen.llvm.values import Held, Mask
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import Memory, Space, Value

__all__ = ["Address", "Guard", "address", "guard", "load", "narrowed", "scalar_pointer", "store"]

ZEROS: Final = "@zeros"
ZEROS_DEFINITION: Final = "@zeros = private unnamed_addr constant [64 x i8] zeroinitializer, align 64"

_UNITS: Final = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """When an access happens: in the lanes of ``mask``, and only if ``condition``, an i1, holds.

    ``condition`` is empty where it surely holds. ``mask`` has at least one lane unless ``checked``
    says that it need not.
    """

    mask: Mask
    condition: str = ""
    checked: bool = False


def guard(code: Code, value: Value) -> Guard:
    """When a memory operation happens."""
    wanted = value.guard
    if wanted is None or code.values.knows(wanted) or demand(code, wanted):
        return Guard(code.mask)
    held = code.values.get(wanted)
    if held.uniform:
        return Guard(code.mask, held.base)
    return Guard(code.lanes.narrowed(code.mask, code.values.vector(held)), checked=True)


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where a memory operation goes.

    Attributes:
        pointer: of lane 0, where the address is uniform or consecutive.
        uniform: all lanes go to one place.
        vectors: pointers of all lanes, where they are apart.
    """

    pointer: str = ""
    uniform: bool = False
    vectors: tuple[str, ...] = ()


def address(code: Code, value: Value) -> Address:
    """Where a load, store or atomic goes."""
    memory, leaf = value.memory, value.access.leaf
    offset = code.values.get(value.indices[0])
    if memory.space is Space.LOCAL and not code.scalar:
        return _local_address(code, memory, leaf, offset, _leaf_type(value))
    if offset.affine:
        step = offset.stride * memory.element.align
        if step == 0 or step == _leaf_type(value).size:
            pointer = scalar_pointer(code, memory, leaf, offset.dtype, offset.base)
            return Address(pointer, uniform=step == 0)
    pointer = code.at(code.place(memory).pointer, leaf)
    return Address(vectors=_pointers(code, memory, pointer, offset))


def _leaf_type(value: Value) -> DType:
    """The type of the scalar in memory."""
    leaves = dict(value.memory.element.leaves)
    return leaves[value.access.leaf]


def _unit(align: int) -> str:
    """A type as large as an alignment, which offsets count."""
    return _UNITS.get(align, f"[{align} x i8]")


def scalar_pointer(code: Code, memory: Memory, leaf: int, dtype: DType, offset: str) -> str:
    """The pointer to a leaf at a scalar offset."""
    base, unit = code.place(memory).pointer, _unit(memory.element.align)
    if offset != "0":
        base = code.w.let(f"getelementptr {unit}, ptr {base}, {TYPES[dtype]} {offset}")
    return code.at(base, leaf)


def _pointers(code: Code, memory: Memory, base: str, offset: Held) -> tuple[str, ...]:
    unit, t = _unit(memory.element.align), code.lanes.width.type(offset.dtype)
    return tuple(
        code.w.let(f"getelementptr {unit}, ptr {base}, {t} {part}")
        for part in code.values.vector(offset)
    )


def _local_address(
    code: Code, memory: Memory, leaf: int, offset: Held, dtype: DType
) -> Address:
    """In a local array: the lanes' units lie side by side."""
    align, lanes = memory.element.align, code.lanes
    base = code.at(
        code.place(memory).pointer, leaf // align * align * lanes.count + leaf % align
    )
    if offset.uniform and dtype.size == align:
        row = f"[{align * lanes.count} x i8]"
        pointer = code.w.let(
            f"getelementptr {row}, ptr {base}, {TYPES[offset.dtype]} {offset.base}"
        )
        return Address(pointer)
    t, type_ = lanes.width.type(offset.dtype), TYPES[offset.dtype]
    count = lanes.width.const(type_, str(lanes.count))
    scaled = []
    for part, name in enumerate(code.values.vector(offset)):
        row = code.w.let(f"mul {t} {name}, {count}")
        scaled.append(code.w.let(f"add {t} {row}, {lanes.iota(type_, part)}"))
    return Address(vectors=_pointers(code, memory, base, Held(offset.dtype, parts=tuple(scaled))))


# Loads.


def load(code: Code, value: Value) -> Held:
    """The value of a load; 0 in lanes where it does not happen."""
    where, when = address(code, value), guard(code, value)
    more = code.place(value.memory).metadata
    if where.uniform:
        return _load_scalar(code, value.type, where.pointer, when, more)
    mask = narrowed(code, when)
    if where.vectors:
        parts = _gather(code, value.type, where.vectors, mask, more)
    else:
        parts = _load_consecutive(code, value.type, where.pointer, mask, more)
    return Held(value.type, parts=_to_register(code, value.type, parts))


def narrowed(code: Code, when: Guard) -> Mask:
    """A guard as a mask alone."""
    if not when.condition:
        return when.mask
    condition = (code.lanes.splat("i1", when.condition),) * code.lanes.parts
    return code.lanes.narrowed(when.mask, condition)


def _load_scalar(code: Code, dtype: DType, pointer: str, when: Guard, more: str) -> Held:
    condition = when.condition
    if when.checked:
        assert when.mask is not None
        condition = code.lanes.any(when.mask)
    if condition:
        pointer = code.w.let(f"select i1 {condition}, ptr {pointer}, ptr {ZEROS}")
        more = ""  # it may be the zeros, which are in no scope
    name = code.w.let(f"load {STORED[dtype]}, ptr {pointer}, align {dtype.size}{more}")
    if dtype is bool_:
        name = code.w.let(f"icmp ne i8 {name}, 0")
    held = Held(dtype, name)
    if not when.checked:
        return held
    parts = code.values.vector(held)
    nothing = ("zeroinitializer",) * code.lanes.parts
    return Held(dtype, parts=code.lanes.blend(when.mask, dtype, parts, nothing))


def _load_consecutive(
    code: Code, dtype: DType, pointer: str, mask: Mask, more: str
) -> tuple[str, ...]:
    lanes, type_ = code.lanes, STORED[dtype]
    t, mangled = lanes.width.of(type_), lanes.width.mangle(type_)
    active = lanes.active(mask)
    parts = []
    for part in range(lanes.parts):
        at = code.at(pointer, part * lanes.per_part * dtype.size)
        if mask is None:
            text = f"load {t}, ptr {at}, align {dtype.size}{more}"
        else:
            text = (
                f"call {t} @llvm.masked.load.{mangled}.p0(ptr align {dtype.size} {at}, "
                f"{lanes.width.of('i1')} {active[part]}, {t} zeroinitializer){more}"
            )
        parts.append(code.w.let(text))
    return tuple(parts)


def _gather(
    code: Code, dtype: DType, pointers: tuple[str, ...], mask: Mask, more: str
) -> tuple[str, ...]:
    lanes, type_ = code.lanes, STORED[dtype]
    t, mangled = lanes.width.of(type_), lanes.width.mangle(type_)
    return tuple(
        code.w.let(
            f"call {t} @llvm.masked.gather.{mangled}.{lanes.width.mangle('p0')}"
            f"({lanes.width.of('ptr')} align {dtype.size} {at}, {lanes.width.of('i1')} {active}, "
            f"{t} zeroinitializer){more}"
        )
        for at, active in zip(pointers, lanes.active(mask), strict=True)
    )


def _to_register(code: Code, dtype: DType, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Bytes become bools."""
    if dtype is not bool_:
        return parts
    t = code.lanes.width.of("i8")
    return tuple(code.w.let(f"icmp ne {t} {part}, zeroinitializer") for part in parts)


def _to_memory(code: Code, held: Held) -> tuple[str, ...]:
    """The vectors of a value as they stand in memory: bools become bytes."""
    parts = code.values.vector(held)
    if held.dtype is not bool_:
        return parts
    i1, i8 = code.lanes.width.of("i1"), code.lanes.width.of("i8")
    return tuple(code.w.let(f"zext {i1} {part} to {i8}") for part in parts)


# Stores.


def store(code: Code, value: Value) -> None:
    """A store, in the lanes where it happens."""
    where, when = address(code, value), guard(code, value)
    held = code.values.get(value.operands[0])
    more = code.place(value.memory).metadata
    if where.uniform:
        _store_scalar(code, held, where.pointer, when, more)
    else:
        mask = narrowed(code, when)
        parts = _to_memory(code, held)
        if where.vectors:
            _scatter(code, held.dtype, parts, where.vectors, mask, more)
        else:
            _store_consecutive(code, held.dtype, parts, where.pointer, mask, more)
    if value.memory.space is not Space.LOCAL:
        code.wrote()


def _store_scalar(code: Code, held: Held, pointer: str, when: Guard, more: str) -> None:
    """Several lanes store to one place: the last one stays."""
    condition = when.condition
    if when.checked:
        assert when.mask is not None
        condition = code.lanes.any(when.mask)
    with code.only_if(condition):
        name = held.base if held.uniform else code.one_of(held, code.lanes.last(when.mask))
        code.store_scalar(pointer, held.dtype, name, more)


def _store_consecutive(
    code: Code, dtype: DType, parts: tuple[str, ...], pointer: str, mask: Mask, more: str
) -> None:
    lanes, type_ = code.lanes, STORED[dtype]
    t, mangled = lanes.width.of(type_), lanes.width.mangle(type_)
    active = lanes.active(mask)
    for part, name in enumerate(parts):
        at = code.at(pointer, part * lanes.per_part * dtype.size)
        if mask is None:
            code.w.do(f"store {t} {name}, ptr {at}, align {dtype.size}{more}")
        else:
            code.w.do(
                f"call void @llvm.masked.store.{mangled}.p0({t} {name}, ptr align {dtype.size} "
                f"{at}, {lanes.width.of('i1')} {active[part]}){more}"
            )


def _scatter(
    code: Code,
    dtype: DType,
    parts: tuple[str, ...],
    pointers: tuple[str, ...],
    mask: Mask,
    more: str,
) -> None:
    lanes, type_ = code.lanes, STORED[dtype]
    t, mangled = lanes.width.of(type_), lanes.width.mangle(type_)
    active = lanes.active(mask)
    for name, at, part in zip(parts, pointers, active, strict=True):
        code.w.do(
            f"call void @llvm.masked.scatter.{mangled}.{lanes.width.mangle('p0')}({t} {name}, "
            f"{lanes.width.of('ptr')} align {dtype.size} {at}, "
            f"{lanes.width.of('i1')} {part}){more}"
        )
