"""What all parts of the code generator share: the module, and where things are in it."""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.spirv.module import Id, Instruction, Module
from khaljit.codegen.spirv.types import Array, Types
from khaljit.codegen.webgpu.lower import Lowered
from khaljit.tracer.ir import Memory, Value, values
from khaljit.tracer.ops import Op

__all__ = ["Code"]


@final
class Code:
    """The one function of a module while it is written.

    Attributes:
        lowered: what it is written from.
        ids: of the values that are there already; constants have theirs from `id`.
        arrays: the memories.
        builtins: the variables of ids and sizes, by their names in SPIR-V.
        parameters: the block of the scalars; None where there is none.
        members: places in that block, by number of scalar.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.lowered: Final = lowered
        self.module: Final = Module()
        self.types: Final = Types(self.module)
        self.ids: Final[dict[Value, Id]] = {}
        self.arrays: Final[dict[Memory, Array]] = {}
        self.builtins: Final[dict[str, Id]] = {}
        self.parameters: Id | None = None
        self.members: Final[dict[int, int]] = {}
        self._declare()

    def id(self, value: Value) -> Id:
        """The id of a value."""
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            return self.types.constant(value.type, value.attr)
        return self.ids[value]

    def _declare(self) -> None:
        """The workgroup's size, the memories, and the block of the scalars."""
        module, trace = self.module, self.lowered.trace
        module.needs("Shader")
        assert trace.workgroup is not None
        module.modes.append(Instruction("OpExecutionMode", ("LocalSize", *trace.workgroup)))
        types = {}
        for value in values(trace.body):
            if value.op is Op.MEMORY:
                assert isinstance(value.attr, Memory)
                self.arrays[value.attr] = self.types.array(value.attr, self.lowered)
            elif value.op is Op.SCALAR:
                types[value.attr] = value.type
        slots = sorted(self.lowered.slots.items(), key=lambda item: item[1].at)
        if slots:
            self.members.update({number: k for k, (number, _) in enumerate(slots)})
            members = [(types[number], slot.at) for number, slot in slots]
            self.parameters = self.types.parameters(members, self.lowered.interface.uniform)
