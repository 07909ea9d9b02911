"""A SPIR-V module: sections, ids, interned types and constants, and its two forms.

There is one list of instructions. `Module.text` prints it as assembly, `Module.words` encodes it;
what ``spirv-as --preserve-numeric-ids`` makes of the text is the words. No other file packs a word.

Operands of an instruction:

* `Id`: the result of another instruction;
* a plain int: a literal number;
* a str: the name of an enumerant;
* `Text`: a literal string;
* `Number`: the literal of a constant, as wide as its type;
* `Extended`: an instruction of GLSL.std.450.
"""

from __future__ import annotations

import struct
from dataclasses import field
from typing import Final, TypeAlias, final

from khaljit.codegen.spirv.table import ENUMERANTS, EXTENDED, OPCODES
from khaljit.tracer.build import to_number
from khaljit.tracer.dtypes import DType
from khaljit.tracer.records import dataclass

__all__ = ["Extended", "Id", "Instruction", "Module", "Number", "Operand", "Text"]

_MAGIC: Final = 0x07230203
_VERSION: Final = 0x00010300  # of Vulkan 1.1, the first with subgroups


@final
@dataclass(frozen=True, slots=True)
class Id:
    """The result of an instruction."""

    number: int


@final
@dataclass(frozen=True, slots=True)
class Text:
    """A literal string."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class Number:
    """A literal of a type, by its bits; no NaN and no infinity."""

    dtype: DType
    bits: int

    @property
    def text(self) -> str:
        """As assembly has it: integers in decimal, floats in hexadecimal, which is exact."""
        number = to_number(self.dtype, self.bits)
        return float(number).hex() if self.dtype.is_float else str(int(number))

    @property
    def words(self) -> tuple[int, ...]:
        """Of two words the lower comes first."""
        if self.dtype.bits == 64:
            return self.bits & 0xFFFFFFFF, self.bits >> 32
        return (self.bits,)


@final
@dataclass(frozen=True, slots=True)
class Extended:
    """An instruction of GLSL.std.450, by its name."""

    name: str


Operand: TypeAlias = Id | int | str | Text | Number | Extended


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``type`` and ``result`` where it has them."""

    op: str
    operands: tuple[Operand, ...] = ()
    type: Id | None = None
    result: Id | None = None

    @property
    def text(self) -> str:
        parts = [self.op]
        if self.type is not None:
            parts.append(f"%{self.type.number}")
        parts += [_text(operand) for operand in self.operands]
        line = " ".join(parts)
        return line if self.result is None else f"%{self.result.number} = {line}"

    @property
    def words(self) -> tuple[int, ...]:
        body: list[int] = []
        if self.type is not None:
            body.append(self.type.number)
        if self.result is not None:
            body.append(self.result.number)
        for operand in self.operands:
            body += _words(operand)
        return len(body) + 1 << 16 | OPCODES[self.op], *body


def _text(operand: Operand) -> str:
    if isinstance(operand, Id):
        return f"%{operand.number}"
    if isinstance(operand, Text):
        return f'"{operand.text}"'
    if isinstance(operand, Number):
        return operand.text
    return operand.name if isinstance(operand, Extended) else str(operand)


def _words(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, Id):
        return (operand.number,)
    if isinstance(operand, int):
        return (operand,)
    if isinstance(operand, str):
        return (ENUMERANTS[operand],)
    if isinstance(operand, Number):
        return operand.words
    if isinstance(operand, Extended):
        return (EXTENDED[operand.name],)
    data = operand.text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


@final
@dataclass(slots=True)
class Module:
    """A module with one entry point, in the making.

    Attributes:
        capabilities, extensions: what it asks for, by name; declared once each.
        modes: execution modes.
        names: names for people.
        decorations: of types and variables.
        globals: types, constants and variables, in the order in which they were needed.
        variables: the function's own variables, which stand at its beginning.
        prelude: what every use in the function can see, after them.
        body: the rest of the function.
        interface: the built-in variables that the entry point reads.
    """

    capabilities: dict[str, None] = field(default_factory=dict)
    extensions: dict[str, None] = field(default_factory=dict)
    modes: list[Instruction] = field(default_factory=list)
    names: list[Instruction] = field(default_factory=list)
    decorations: list[Instruction] = field(default_factory=list)
    globals: list[Instruction] = field(default_factory=list)
    variables: list[Instruction] = field(default_factory=list)
    prelude: list[Instruction] = field(default_factory=list)
    body: list[Instruction] = field(default_factory=list)
    interface: list[Id] = field(default_factory=list)
    _extended: Id | None = None
    _bound: int = 1
    _interned: dict[tuple[object, ...], Id] = field(default_factory=dict)

    def id(self) -> Id:
        """A new id."""
        number = self._bound
        self._bound += 1
        return Id(number)

    def needs(self, *capabilities: str) -> None:
        self.capabilities.update(dict.fromkeys(capabilities))

    # Types, constants and global variables.

    def type(self, op: str, *operands: Operand) -> Id:
        """The one type of these operands."""
        return self._intern(op, operands, None)

    def constant(self, op: str, type_: Id, *operands: Operand) -> Id:
        """The one constant of a type and these operands."""
        return self._intern(op, operands, type_)

    def _intern(self, op: str, operands: tuple[Operand, ...], type_: Id | None) -> Id:
        key = (op, type_, operands)
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = self.id()
            self.globals.append(Instruction(op, operands, type_, found))
        return found

    def apart(self, op: str, *operands: Operand) -> Id:
        """A type of its own, even if there is one like it: it will be decorated."""
        result = self.id()
        self.globals.append(Instruction(op, operands, None, result))
        return result

    def variable(self, type_: Id, *operands: Operand) -> Id:
        """A global variable of a pointer type."""
        result = self.id()
        self.globals.append(Instruction("OpVariable", operands, type_, result))
        return result

    def decorate(self, target: Id, *operands: Operand) -> None:
        self.decorations.append(Instruction("OpDecorate", (target, *operands)))

    def decorate_member(self, target: Id, member: int, *operands: Operand) -> None:
        self.decorations.append(Instruction("OpMemberDecorate", (target, member, *operands)))

    def name(self, target: Id, text: str) -> None:
        self.names.append(Instruction("OpName", (target, Text(text))))

    # The function.

    def own_variable(self, type_: Id) -> Id:
        """A variable of the function, of a pointer type."""
        result = self.id()
        self.variables.append(Instruction("OpVariable", ("Function",), type_, result))
        return result

    def do(self, op: str, *operands: Operand) -> None:
        """An instruction without a result."""
        self.body.append(Instruction(op, operands))

    def let(self, op: str, type_: Id, *operands: Operand) -> Id:
        """An instruction with a result."""
        result = self.id()
        self.body.append(Instruction(op, operands, type_, result))
        return result

    def label(self, label: Id) -> None:
        """Begin a block."""
        self.body.append(Instruction("OpLabel", (), None, label))

    def extended(self, name: str, type_: Id, *operands: Operand) -> Id:
        """An instruction of GLSL.std.450."""
        if self._extended is None:
            self._extended = self.id()
        return self.let("OpExtInst", type_, self._extended, Extended(name), *operands)

    # The whole.

    def instructions(self, entry: str) -> list[Instruction]:
        """All instructions in the order that the specification asks for."""
        void = self.type("OpTypeVoid")
        signature = self.type("OpTypeFunction", void)
        function, first = self.id(), self.id()
        imports = []
        if self._extended is not None:
            imports = [
                Instruction("OpExtInstImport", (Text("GLSL.std.450"),), None, self._extended)
            ]
        return [
            *(Instruction("OpCapability", (name,)) for name in self.capabilities),
            *(Instruction("OpExtension", (Text(name),)) for name in self.extensions),
            *imports,
            Instruction("OpMemoryModel", ("Logical", "GLSL450")),
            Instruction("OpEntryPoint", ("GLCompute", function, Text(entry), *self.interface)),
            *(Instruction(mode.op, (function, *mode.operands)) for mode in self.modes),
            Instruction("OpName", (function, Text(entry))),
            *self.names,
            *self.decorations,
            *self.globals,
            Instruction("OpFunction", ("None", signature), void, function),
            Instruction("OpLabel", (), None, first),
            *self.variables,
            *self.prelude,
            *self.body,
            Instruction("OpFunctionEnd"),
        ]

    def text(self, instructions: list[Instruction]) -> str:
        """Assembly."""
        header = f"; SPIR-V\n; Version: 1.3\n; Generator: khaljit\n; Bound: {self._bound}\n"
        return header + "".join(f"{instruction.text}\n" for instruction in instructions)

    def words(self, instructions: list[Instruction]) -> bytes:
        """The binary form, little-endian."""
        words = [_MAGIC, _VERSION, 0, self._bound, 0]
        for instruction in instructions:
            words += instruction.words
        return struct.pack(f"<{len(words)}I", *words)
