"""What all parts of the code generator share: the trace, its analyses, and where things are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final, final

from khaljit.codegen.layout import ParameterBlock
from khaljit.codegen.ptx.arch import Architecture
from khaljit.codegen.ptx.combine import Group
from khaljit.codegen.ptx.forms import TYPES, literal
from khaljit.codegen.ptx.pointers import Plan
from khaljit.codegen.ptx.writer import Writer
from khaljit.tracer.dtypes import DType, bf16, bool_, f16, f64, i32, i64
from khaljit.tracer.ir import Memory, Region, Space, Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["CONSTANTS", "FULL_WARP", "PARAMETERS", "WARP", "Code", "Turns"]

WARP: Final = 32
FULL_WARP: Final = "0xffffffff"
PARAMETERS: Final = "params"  # the parameter block's name in the text
CONSTANTS: Final = "constants"  # what `Code.constants` is called there

_NO_IMMEDIATES: Final = frozenset({bool_, f16, bf16})
_MOST_CONSTANTS: Final = 1024  # 8 of the KiB of constant memory that tables leave


@final
@dataclass(frozen=True, slots=True)
class Turns:
    """Where a resident program is.

    Attributes:
        places: registers that hold the block of this turn, per axis; 32 bits, as the counts are.
        counts: registers that hold how many workgroups there are.
        top: label where a turn begins.
        following: label where a turn ends.
    """

    places: tuple[str, str, str]
    counts: tuple[str, str, str]
    top: str
    following: str


@final
@dataclass(slots=True)
class Code:
    """The state of one kernel's generation.

    Attributes:
        trace: what is generated.
        architecture: what it is generated for.
        folded: whether all workgroups are launched along x.
        block: where parameters are.
        w: writes the text.
        items: for each region what is computed there, in order.
        order: every value, operands before users.
        plan: the addresses of accesses.
        groups: accesses that are done by one instruction.
        written: array parameters that are written, the first of each view.
        shape: threads of a block in x, y, z.
        elements: invocations along x that a thread runs, where the trace says so (``coarsen.py``).
        operands: the registers that hold values.
        bases: the register or name where a memory begins.
        spaces: the state space that a memory is in.
        results: the results of each ``if`` and ``loop`` that something reads, by position.
        files: source files that line information has named.
        globals: definitions outside of the kernel.
        constants: what stands in constant memory: the bits of f64 constants, each once for every
            stretch without labels, with its position.
        turns: the workgroup that a resident program is at; None in others.
    """

    trace: Trace
    architecture: Architecture
    folded: bool
    block: ParameterBlock
    items: dict[Region, tuple[Value, ...]]
    order: Sequence[Value]
    plan: Plan
    groups: dict[Value, Group]
    written: frozenset[int]
    shape: tuple[int, int, int]
    elements: int = 1
    w: Writer = field(default_factory=Writer)
    operands: dict[Value, str] = field(default_factory=dict)
    bases: dict[tuple[Space, int], str] = field(default_factory=dict)
    spaces: dict[tuple[Space, int], str] = field(default_factory=dict)
    _used: frozenset[Value] = frozenset()
    results: dict[Value, list[Value]] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    globals: list[str] = field(default_factory=list)
    constants: dict[tuple[int, int], int] = field(default_factory=dict)
    turns: Turns | None = None

    def __post_init__(self) -> None:
        for value in [value for value in self.order if value.op is Op.RESULT]:
            self.results.setdefault(value.args[0], []).append(value)

    def is_used(self, value: Value) -> bool:
        """Whether something reads a value."""
        if not self._used:
            self._used = frozenset([arg for one in self.order for arg in one.args])
        return value in self._used

    @property
    def index(self) -> DType:
        """The type of ids and shapes."""
        return i32 if self.trace.index_bits == 32 else i64

    @property
    def leave(self) -> str:
        """The instruction for a thread that is done with its workgroup."""
        return "ret;" if self.turns is None else f"bra {self.turns.following};"

    @property
    def threads(self) -> int:
        """Invocations of a block."""
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def partial(self) -> bool:
        """Whether the last warp of a block lacks some lanes."""
        return self.threads % WARP != 0

    def operand(self, value: Value) -> str:
        """A value as an operand: a register or an immediate."""
        found = self.operands.get(value)
        if found is not None:
            return found
        assert value.op is Op.CONST, f"{value} is not computed yet"
        assert isinstance(value.attr, int)
        if value.dtype is f64 and value.attr & 0xFFFFFFFF and self.architecture.reads_constants:
            return self._constant(value.attr)
        text = literal(value.type, value.attr)
        if value.dtype in _NO_IMMEDIATES:
            return self.w.held(TYPES[value.type].register, text)
        self.operands[value] = text
        return text

    def _constant(self, bits: int) -> str:
        """An f64 of which the machine's immediates, upper halves, are not all.

        As a literal it would take two instructions at each use, from constant memory one or none.
        The arms of a branch share no place there: what both read would be kept in registers.
        """
        key = bits, self.w.labels
        if key not in self.constants and len(self.constants) >= _MOST_CONSTANTS:
            return literal(f64, bits)
        place = 8 * self.constants.setdefault(key, len(self.constants))
        return self.w.let("b64", f"ld.const.b64 {{d}}, [{CONSTANTS}+{place}];")

    def register(self, value: Value) -> str:
        """A value in a register."""
        return self.w.held(TYPES[value.type].register, self.operand(value))

    def base(self, memory: Memory) -> str:
        return self.bases[memory.space, memory.number]

    def space(self, memory: Memory) -> str:
        return self.spaces[memory.space, memory.number]

    def parameter(self, offset: int, kind: str, type_: str | None = None) -> str:
        """A scalar of the parameter block in a register of some kind."""
        return self.w.let(kind, f"ld.param.{type_ or kind} {{d}}, [{PARAMETERS}+{offset}];")
