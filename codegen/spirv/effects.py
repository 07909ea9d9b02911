"""Effects: memory, barriers, and what a subgroup does together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.spirv.code import Code
from khaljit.codegen.spirv.forms import ATOMICS, COLLECTIVES, kind_of
from khaljit.codegen.spirv.module import Id
from khaljit.tracer.dtypes import u32
from khaljit.tracer.ir import AtomicAccess, Space, Value
from khaljit.tracer.ops import Op

__all__ = ["effect"]

_DEVICE: Final = 1
_WORKGROUP: Final = 2
_SUBGROUP: Final = 3
_RELAXED: Final = 0
# Acquire and release, of which memory: storage buffers 0x40, the subgroup's 0x80, workgroup 0x100.
_ACQUIRE_RELEASE: Final = 0x8
_BARRIERS: Final = {"workgroup": 0x100, "storage": 0x40, "subgroup": 0x80}


def effect(code: Code, value: Value) -> None:
    """A load, store, atomic, barrier or collective."""
    built = _EFFECTS[value.op](code, value)
    if built is not None:
        code.ids[value] = built


def _cell(code: Code, value: Value) -> Id:
    """A pointer to the cell that an access is about."""
    array = code.arrays[value.memory]
    index = code.id(value.args[1])
    first = (code.types.word(0),) if array.member else ()
    return code.module.let("OpAccessChain", array.cell, array.variable, *first, index)


def _load(code: Code, value: Value) -> Id:
    return code.module.let("OpLoad", code.types.of(value.type), _cell(code, value))


def _store(code: Code, value: Value) -> None:
    code.module.do("OpStore", _cell(code, value), code.id(value.args[2]))


def _atomic(code: Code, value: Value) -> Id | None:
    assert isinstance(value.attr, AtomicAccess)
    module, kind, letter = code.module, value.attr.kind, kind_of(value.type)
    scope = _WORKGROUP if value.memory.space is Space.SHARED else _DEVICE
    place = (_cell(code, value), code.types.word(scope), code.types.word(_RELAXED))
    operands = tuple(code.id(operand) for operand in value.args[2:])
    type_ = code.types.of(value.type)
    if value.type.bits == 64:
        module.needs("Int64Atomics")
    if kind == "store":
        module.do("OpAtomicStore", *place, *operands)
        return None
    if kind == "load":
        return module.let("OpAtomicLoad", type_, *place)
    if kind == "compare_exchange":
        expected, desired = operands
        relaxed = code.types.word(_RELAXED)
        operands = (relaxed, desired, expected)
        return module.let("OpAtomicCompareExchange", type_, *place, *operands)
    op = ATOMICS[kind, letter]
    if op == "OpAtomicFAddEXT":
        module.needs("AtomicFloat32AddEXT")
        module.extensions["SPV_EXT_shader_atomic_float_add"] = None
    return module.let(op, type_, *place, *operands)


def _barrier(code: Code, value: Value) -> None:
    scope = _SUBGROUP if value.attr == "subgroup" else _WORKGROUP
    memory = _ACQUIRE_RELEASE | _BARRIERS[str(value.attr)]
    if value.attr == "workgroup" and code.lowered.hands_over:
        memory |= _BARRIERS["storage"]
    words = (code.types.word(number) for number in (scope, _WORKGROUP, memory))
    code.module.do("OpControlBarrier", *words)


def _collective(code: Code, value: Value) -> Id:
    module, name = code.module, str(value.attr)
    scope, type_ = code.types.word(_SUBGROUP), code.types.of(value.type)
    args = tuple(code.id(arg) for arg in value.args)
    module.needs("GroupNonUniform")
    if name in ("any", "all"):
        module.needs("GroupNonUniformVote")
        return module.let(f"OpGroupNonUniform{name.capitalize()}", type_, scope, *args)
    if name == "ballot":
        module.needs("GroupNonUniformBallot")
        vector = module.type("OpTypeVector", code.types.of(u32), 4)
        mask = module.let("OpGroupNonUniformBallot", vector, scope, *args)
        return module.let("OpCompositeExtract", type_, mask, 0)
    if name == "broadcast_first":
        module.needs("GroupNonUniformBallot")
        return module.let("OpGroupNonUniformBroadcastFirst", type_, scope, *args)
    if name == "shuffle":
        module.needs("GroupNonUniformShuffle")
        return module.let("OpGroupNonUniformShuffle", type_, scope, *args)
    module.needs("GroupNonUniformArithmetic")
    prefix, _, suffix = name.rpartition("_")
    group = f"{prefix.capitalize()}Scan" if prefix else "Reduce"
    return module.let(COLLECTIVES[suffix, kind_of(value.type)], type_, scope, group, *args)


_EFFECTS: Final[dict[Op, Callable[[Code, Value], Id | None]]] = {
    Op.LOAD: _load,
    Op.STORE: _store,
    Op.ATOMIC: _atomic,
    Op.BARRIER: _barrier,
    Op.SUBGROUP: _collective,
}
