"""Loads and stores: one scalar, consecutive lanes, or lanes apart.

* An address that is the same in all lanes is one scalar access. Where it is not sure to be in
  bounds, a load reads from a block of zeros instead.
* Lanes whose addresses follow one another are vector accesses, masked where lanes are inactive,
  so that nothing outside the memory is touched.
* Lanes a few elements apart, as in an array of vectors, are wide accesses and shuffles
  (``strided.py``), where all lanes are active.
* Lanes that follow one another but where an index is clamped (``clamped.py``) are either; a branch
  for each vector decides.
* All others are gathers and scatters.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.llvm.address import Address, Guard, address, guard, narrowed
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import STORED
from khaljit.codegen.llvm.strided import find_steps, load_strided
from khaljit.codegen.llvm.values import Held, Mask
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import Value

__all__ = ["ZEROS_DEFINITION", "load", "store"]

ZEROS: Final = "@zeros"
ZEROS_DEFINITION: Final = (
    f"{ZEROS} = private unnamed_addr constant [64 x i8] zeroinitializer, align 64"
)

# Loads.


def load(code: Code, value: Value) -> Held:
    """The value of a load; 0 in lanes where it does not happen."""
    when = guard(code, value)
    mask = narrowed(code, when)
    steps = find_steps(code, value) if mask is None else None
    if steps is not None:
        parts = load_strided(code, value, steps)
        return Held(value.type, parts=_to_register(code, value.type, parts))
    where, more = address(code, value), code.place(value.memory).metadata
    if where.pointer:
        return _load_scalar(code, value.type, where.pointer, when, more)
    if where.singles:
        return _load_singles(code, value.type, where.singles, when, more)
    if where.straight:
        parts = _load_straight(code, value.type, where, mask, more)
    elif where.vectors:
        parts = tuple(
            _gather(code, value.type, at, active, more)
            for at, active in zip(where.vectors, code.lanes.active(mask), strict=True)
        )
    else:
        parts = _load_consecutive(code, value.type, where.starts, mask, more)
    return Held(value.type, parts=_to_register(code, value.type, parts))


def _load_scalar(code: Code, dtype: DType, pointer: str, when: Guard, more: str) -> Held:
    condition = when.condition
    if when.checked:
        assert when.mask is not None
        condition = code.lanes.any(when.mask)
    held = Held(dtype, _load_one(code, dtype, pointer, condition, more))
    if not when.checked:
        return held
    parts = code.values.vector(held)
    nothing = ("zeroinitializer",) * code.lanes.parts
    return Held(dtype, parts=code.lanes.blend(when.mask, dtype, parts, nothing))


def _load_one(code: Code, dtype: DType, pointer: str, condition: str, more: str) -> str:
    """One scalar, 0 where a condition does not hold; there is none if that is empty."""
    if condition:
        pointer = code.w.let(f"select i1 {condition}, ptr {pointer}, ptr {ZEROS}")
        more = ""  # it may be the zeros, which are in no scope
    name = code.w.let(f"load {STORED[dtype]}, ptr {pointer}, align {dtype.size}{more}")
    return code.w.let(f"icmp ne i8 {name}, 0") if dtype is bool_ else name


def _load_singles(
    code: Code, dtype: DType, pointers: tuple[str, ...], when: Guard, more: str
) -> Held:
    """A scalar for each part, from a place that all its lanes share, if it has any lane."""
    lanes, made = code.lanes, dict[tuple[str, str], str]()
    bases = []
    for part, pointer in enumerate(pointers):
        condition = when.condition
        if when.mask is not None:
            condition = lanes.any(when.mask[part : part + 1])
            if when.condition:
                condition = code.w.let(f"and i1 {condition}, {when.condition}")
        if (pointer, condition) not in made:
            made[pointer, condition] = _load_one(code, dtype, pointer, condition, more)
        bases.append(made[pointer, condition])
    held = Held(dtype, bases=tuple(bases))
    if not when.checked:
        return held
    nothing = ("zeroinitializer",) * lanes.parts
    parts = lanes.blend(when.mask, dtype, code.values.vector(held), nothing)
    return Held(dtype, parts=parts)


def _load_consecutive(
    code: Code, dtype: DType, pointers: tuple[str, ...], mask: Mask, more: str
) -> tuple[str, ...]:
    active = code.lanes.active(mask)
    made: dict[str, str] = {}  # rows may share what they read
    parts = []
    for part, at in enumerate(pointers):
        if mask is None and at in made:
            parts.append(made[at])
            continue
        made[at] = _read(code, dtype, at, "" if mask is None else active[part], more)
        parts.append(made[at])
    return tuple(parts)


def _load_straight(
    code: Code, dtype: DType, where: Address, mask: Mask, more: str
) -> tuple[str, ...]:
    """Each part as a vector of memory where its lanes follow one another, else lane by lane."""
    w, active = code.w, code.lanes.active(mask)
    parts = []
    for part, straight in enumerate(where.straight):
        line, apart, join = w.label(), w.label(), w.label()
        w.branch(straight, line, apart)
        w.open(line)
        there = "" if mask is None else active[part]
        read = _read(code, dtype, where.starts[part], there, more)
        w.jump(join)
        w.open(apart)
        gathered = _gather(code, dtype, where.vectors[part], active[part], more)
        w.open(join)
        t = code.lanes.width.of(STORED[dtype])
        parts.append(w.phi(t, [(read, line), (gathered, apart)]))
    return tuple(parts)


def _read(code: Code, dtype: DType, at: str, active: str, more: str) -> str:
    """One vector of memory, in the active lanes if any are told."""
    width, type_ = code.lanes.width, STORED[dtype]
    t = width.of(type_)
    if not active:
        return code.w.let(f"load {t}, ptr {at}, align {dtype.size}{more}")
    return code.w.let(
        f"call {t} @llvm.masked.load.{width.mangle(type_)}.p0(ptr align {dtype.size} {at}, "
        f"{width.of('i1')} {active}, {t} zeroinitializer){more}"
    )


def _gather(code: Code, dtype: DType, at: str, active: str, more: str) -> str:
    """One vector, from a pointer for each lane."""
    width, type_ = code.lanes.width, STORED[dtype]
    t = width.of(type_)
    return code.w.let(
        f"call {t} @llvm.masked.gather.{width.mangle(type_)}.{width.mangle('p0')}"
        f"({width.of('ptr')} align {dtype.size} {at}, {width.of('i1')} {active}, "
        f"{t} zeroinitializer){more}"
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
    if where.pointer:
        _store_scalar(code, held, where.pointer, when, more)
    else:
        mask = narrowed(code, when)
        parts = _to_memory(code, held)
        if where.vectors:
            _scatter(code, held.dtype, parts, where.vectors, mask, more)
        else:
            _store_consecutive(code, held.dtype, parts, where.starts, mask, more)
    if not code.is_passing(value):
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
    for part, (name, at) in enumerate(zip(parts, pointers, strict=True)):
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
