"""Pure values: ids, parameters and arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.spirv.code import Code
from khaljit.codegen.spirv.forms import BUILTINS, CASTS, EXTENDED, PLAIN, kind_of
from khaljit.codegen.spirv.module import Id
from khaljit.tracer.dtypes import bool_, i32, u32
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["pure"]


def pure(code: Code, value: Value) -> Id:
    if value.op is Op.ID:
        return _builtin(code, value)
    if value.op is Op.SCALAR:
        return _parameter(code, value)
    args = tuple(code.id(arg) for arg in value.args)
    operand = value.args[-1].type
    special = _SPECIAL.get(value.op)
    if special is not None:
        built = special(code, value, args)
        if built is not None:
            return built
    type_, key = code.types.of(value.type), (value.op, kind_of(operand))
    if key in EXTENDED:
        return code.module.extended(EXTENDED[key], type_, *args)
    return code.module.let(PLAIN[key], type_, *args)


def _builtin(code: Code, value: Value) -> Id:
    """An id, as i32."""
    assert isinstance(value.attr, tuple)
    name, axis = value.attr
    builtin, vector = BUILTINS[name]
    module, word = code.module, code.types.of(u32)
    type_ = module.type("OpTypeVector", word, 3) if vector else word
    if builtin not in code.builtins:
        if name in ("subgroup", "lane", "num_subgroups", "subgroup_size"):
            module.needs("GroupNonUniform")
        variable = module.variable(code.types.pointer("Input", type_), "Input")
        module.decorate(variable, "BuiltIn", builtin)
        module.interface.append(variable)
        code.builtins[builtin] = variable
    found = module.let("OpLoad", type_, code.builtins[builtin])
    if vector:
        found = module.let("OpCompositeExtract", word, found, axis)
    return module.let("OpBitcast", code.types.of(value.type), found)


def _parameter(code: Code, value: Value) -> Id:
    assert isinstance(value.attr, int)
    assert code.parameters is not None, "what is read has a slot"
    type_ = code.types.of(value.type)
    storage = "PushConstant" if code.lowered.interface.uniform is None else "Uniform"
    member = code.types.word(code.members[value.attr])
    pointer = code.types.pointer(storage, type_)
    chain = code.module.let("OpAccessChain", pointer, code.parameters, member)
    return code.module.let("OpLoad", type_, chain)


def _not_equal(code: Code, value: Value, args: tuple[Id, ...]) -> Id | None:
    if not value.args[0].type.is_float:
        return None
    type_ = code.types.of(bool_)
    equal = code.module.let("OpFOrdEqual", type_, *args)
    return code.module.let("OpLogicalNot", type_, equal)


def _negated(code: Code, value: Value, args: tuple[Id, ...]) -> Id | None:
    if value.type.is_float:
        return None
    zero = code.types.constant(value.type, 0)
    return code.module.let("OpISub", code.types.of(value.type), zero, *args)


def _absolute(code: Code, value: Value, args: tuple[Id, ...]) -> Id | None:
    if value.type.is_float:
        return None
    if not value.type.is_signed:
        return args[0]
    negated = _negated(code, value, args)
    assert negated is not None
    return code.module.extended("SMax", code.types.of(value.type), args[0], negated)


def _shift(code: Code, value: Value, args: tuple[Id, ...]) -> Id:
    op = "OpShiftLeftLogical"
    if value.op is Op.SHR:
        op = f"OpShiftRight{'Arithmetic' if value.type.is_signed else 'Logical'}"
    amount = _as_word(code, value.args[1], args[1])
    return code.module.let(op, code.types.of(value.type), args[0], amount)


def _as_word(code: Code, value: Value, id_: Id) -> Id:
    """A small non-negative integer as u32."""
    if value.op is Op.CONST:
        assert isinstance(value.attr, int)
        return code.types.word(value.attr)
    if value.dtype is u32:
        return id_
    if value.type.bits == 32:
        return code.module.let("OpBitcast", code.types.of(u32), id_)
    if not value.type.is_signed:
        return code.module.let("OpUConvert", code.types.of(u32), id_)
    narrow = code.module.let("OpSConvert", code.types.of(i32), id_)
    return code.module.let("OpBitcast", code.types.of(u32), narrow)


def _count(code: Code, value: Value, args: tuple[Id, ...]) -> Id:
    """A bit count, in u32 and then as i32."""
    module, word = code.module, code.types.of(u32)
    operand = _as_word(code, value.args[0], args[0])
    if value.op is Op.POPCOUNT:
        found = module.let("OpBitCount", word, operand)
    elif value.op is Op.CLZ:  # of 0 the highest bit is -1
        highest = module.extended("FindUMsb", word, operand)
        found = module.let("OpISub", word, code.types.word(31), highest)
    else:
        lowest = module.extended("FindILsb", word, operand)
        found = module.extended("UMin", word, lowest, code.types.word(32))
    return module.let("OpBitcast", code.types.of(value.type), found)


def _cast(code: Code, value: Value, args: tuple[Id, ...]) -> Id:
    kinds = kind_of(value.args[0].type), kind_of(value.type)
    return code.module.let(CASTS[kinds], code.types.of(value.type), *args)


_SPECIAL: Final[dict[Op, Callable[[Code, Value, tuple[Id, ...]], Id | None]]] = {
    Op.NE: _not_equal,
    Op.NEG: _negated,
    Op.ABS: _absolute,
    Op.SHL: _shift,
    Op.SHR: _shift,
    Op.POPCOUNT: _count,
    Op.CLZ: _count,
    Op.CTZ: _count,
    Op.CAST: _cast,
}
