"""The types and constants of a module, and what its memories are."""

from __future__ import annotations

import struct
from typing import Final, final

from khaljit.codegen.spirv.module import Id, Instruction, Module, Number
from khaljit.codegen.webgpu.lower import Lowered
from khaljit.tracer.build import to_bits, to_number
from khaljit.tracer.dtypes import DType, Kind, bool_, f16, f32, f64, u32, u64
from khaljit.tracer.ir import Memory, Space
from khaljit.tracer.records import dataclass

__all__ = ["Array", "Types"]

_NEEDS: Final = {f16: "Float16", f64: "Float64"}
_CLASSES: Final = {
    Space.ARRAY: "StorageBuffer",
    Space.SHARED: "Workgroup",
    Space.LOCAL: "Function",
    Space.TABLE: "Private",
}
_FORMATS: Final = {2: "<H", 4: "<I", 8: "<Q"}


@final
@dataclass(frozen=True, slots=True)
class Array:
    """A memory in the module.

    Attributes:
        variable: a pointer to it.
        cell: the type of a pointer to one of its cells.
        member: it is the first member of a struct.
    """

    variable: Id
    cell: Id
    member: bool


@final
class Types:
    """Makes types, constants and variables of a module."""

    def __init__(self, module: Module) -> None:
        self._module: Final = module
        self._patterns: Final[dict[tuple[DType, int], Id]] = {}

    def of(self, dtype: DType) -> Id:
        """The type of a value."""
        if dtype is bool_:
            return self._module.type("OpTypeBool")
        if dtype in _NEEDS:
            self._module.needs(_NEEDS[dtype])
        if dtype.is_float:
            return self._module.type("OpTypeFloat", dtype.bits)
        if dtype.bits == 64:
            self._module.needs("Int64")
        return self._module.type("OpTypeInt", dtype.bits, int(dtype.kind is Kind.SIGNED))

    def pointer(self, storage: str, target: Id) -> Id:
        return self._module.type("OpTypePointer", storage, target)

    def word(self, number: int) -> Id:
        """A constant of u32."""
        return self.constant(u32, number)

    def constant(self, dtype: DType, bits: int) -> Id:
        """A constant by its bits."""
        type_ = self.of(dtype)
        if dtype is bool_:
            return self._module.constant(f"OpConstant{bool(bits)}", type_)
        if dtype.is_float and not _finite(dtype, bits):
            return self._pattern(dtype, bits)
        return self._module.constant("OpConstant", type_, Number(dtype, bits))

    def _pattern(self, dtype: DType, bits: int) -> Id:
        """A NaN or infinity, which are no constants here, from its bits."""
        key = dtype, bits
        if key not in self._patterns:
            result = self._module.id()
            if dtype is f16:  # through f32, since there may be no integers of 16 bits
                wide = self._pattern(f32, to_bits(f32, to_number(f16, bits)))
                instruction = Instruction("OpFConvert", (wide,), self.of(dtype), result)
            else:
                whole = self.constant(u64 if dtype.bits == 64 else u32, bits)
                instruction = Instruction("OpBitcast", (whole,), self.of(dtype), result)
            self._module.prelude.append(instruction)
            self._patterns[key] = result
        return self._patterns[key]

    # Memories.

    def array(self, memory: Memory, lowered: Lowered) -> Array:
        """The variable of a memory."""
        (_, dtype), *_ = memory.element.leaves
        storage = _CLASSES[memory.space]
        cell = self.pointer(storage, self.of(dtype))
        if memory.space is Space.ARRAY:
            return Array(self._buffer(memory, dtype, memory in lowered.written), cell, True)
        module = self._module
        length = self.word(memory.count)
        type_ = module.type("OpTypeArray", self.of(dtype), length)
        pointer = self.pointer(storage, type_)
        if memory.space is Space.LOCAL:
            return Array(module.own_variable(pointer), cell, False)
        if memory.space is Space.SHARED:
            return Array(module.variable(pointer, storage), cell, False)
        assert memory.data is not None
        items = struct.unpack(f"<{memory.count}{_FORMATS[dtype.size][1]}", memory.data)
        contents = module.constant(
            "OpConstantComposite", type_, *(self.constant(dtype, bits) for bits in items)
        )
        return Array(module.variable(pointer, storage, contents), cell, False)

    def _buffer(self, memory: Memory, dtype: DType, written: bool) -> Id:
        module = self._module
        if dtype is f16:
            module.needs("StorageBuffer16BitAccess")
        items = module.apart("OpTypeRuntimeArray", self.of(dtype))
        module.decorate(items, "ArrayStride", dtype.size)
        block = module.apart("OpTypeStruct", items)
        # Types that differ in nothing would become one, and some drivers then take what is said of
        # one variable (that it is only read) for true of all.
        module.name(block, f"Array{memory.number}")
        variable = self._block(block, (0,), "StorageBuffer")
        module.decorate(variable, "DescriptorSet", 0)
        module.decorate(variable, "Binding", memory.number)
        if not written:
            module.decorate(variable, "NonWritable")
        module.name(variable, f"array{memory.number}")
        return variable

    def _block(self, block: Id, offsets: tuple[int, ...], storage: str) -> Id:
        """A variable of a struct whose members stand at these offsets."""
        self._module.decorate(block, "Block")
        for member, offset in enumerate(offsets):
            self._module.decorate_member(block, member, "Offset", offset)
        return self._module.variable(self.pointer(storage, block), storage)

    def parameters(self, members: list[tuple[DType, int]], binding: int | None) -> Id:
        """The block of parameters; members are types with their offsets."""
        module = self._module
        block = module.apart("OpTypeStruct", *(self.of(dtype) for dtype, _ in members))
        storage = "PushConstant" if binding is None else "Uniform"
        variable = self._block(block, tuple(offset for _, offset in members), storage)
        if binding is not None:
            module.decorate(variable, "DescriptorSet", 0)
            module.decorate(variable, "Binding", binding)
        module.name(variable, "parameters")
        return variable


def _finite(dtype: DType, bits: int) -> bool:
    number = float(to_number(dtype, bits))
    return number - number == 0.0
