"""What all parts of the code generator share: the trace, its analyses, and where things are.

The arena, which the caller passes in, is laid out here: shared memory, local arrays, scratch for
what goes lane by lane, and what lives across barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Final, final

from khaljit.codegen.layout import ParameterBlock
from khaljit.codegen.llvm.forms import STORED, TYPES
from khaljit.codegen.llvm.target import Level
from khaljit.codegen.llvm.values import Held, Lanes, Mask, Values
from khaljit.codegen.llvm.writer import Writer
from khaljit.tracer.dtypes import DType, bool_, i32, i64
from khaljit.tracer.ir import Memory, Region, Space, Trace, Value, effects, values
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.uniformity import Scope, Uniformity

__all__ = ["Arena", "Code", "Place"]


_WRITES: Final = frozenset({Op.STORE, Op.ATOMIC})


@final
class Arena:
    """Hands out the bytes of the arena, each piece aligned to a cache line.

    Attributes:
        size: bytes handed out so far.
    """

    def __init__(self) -> None:
        self.size = 0

    def take(self, size: int) -> int:
        """The offset of a new piece."""
        at = self.size
        self.size += -(-size // 64) * 64
        return at


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a memory is: a pointer, and the metadata that says what it does not alias."""

    pointer: str
    metadata: str


@final
@dataclass(slots=True)
class Code:
    """The state of one function's generation.

    Attributes:
        trace: what is generated.
        level: facts about the processor.
        block: where parameters are.
        w: writes the text.
        lanes: how a subgroup is split into vectors.
        values: what is held so far.
        uniformity: what is equal over which invocations, a row of lanes being a subgroup.
        whole: the same, all rows together being a subgroup.
        items: for each region what is computed there, in order.
        arena: hands out scratch memory.
        places: where each memory is.
        used: the values that something reads.
        clamps: the clamped numbers that indices of loads are made of.
        ids: names of the scalars of lane 0 for each id, as (name, axis).
        row_ids: names of the scalars of each part for the ids that differ from row to row.
        mask: the active lanes; at least one is.
        bail: label of the general version of the code that is being generated, to which control
            may go back as long as nothing has been written; None where there is no way back.
        bailed: whether any way back was used.
        globals: module-level definitions.
        local_copies: how many subgroups have local arrays at once.
        local_sizes: bytes of each local array of one subgroup.
        results: the results of each ``if`` and ``loop`` that something reads, by position.
        has_barriers: whether the workgroup runs in sections with barriers between them.
    """

    trace: Trace
    level: Level
    block: ParameterBlock
    w: Writer
    lanes: Lanes
    values: Values
    uniformity: Uniformity
    whole: Uniformity
    items: dict[Region, tuple[Value, ...]]
    arena: Arena = field(default_factory=Arena)
    places: dict[tuple[Space, int], Place] = field(default_factory=dict)
    used: frozenset[Value] = frozenset()
    clamps: frozenset[Value] = frozenset()
    ids: dict[tuple[str, int], str] = field(default_factory=dict)
    row_ids: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    mask: Mask = None
    bail: str | None = None
    bailed: bool = False
    globals: list[str] = field(default_factory=list)
    local_copies: int = 1
    local_sizes: dict[tuple[Space, int], int] = field(default_factory=dict)
    results: dict[Value, list[Value]] = field(default_factory=dict)
    has_barriers: bool = False
    _scratch: dict[str, int] = field(default_factory=dict)
    _writes: dict[Region, bool] = field(default_factory=dict)

    @property
    def index(self) -> DType:
        """The type of ids and shapes."""
        return i32 if self.trace.index_bits == 32 else i64

    @property
    def scalar(self) -> bool:
        """Whether a subgroup is one invocation, so that everything is uniform."""
        return self.lanes.count == 1

    def stride(self, value: Value) -> int | None:
        """How a value grows along a row; 0 where it is the same, None where it varies."""
        return 0 if self.scalar else self.uniformity.stride[value]

    def uniform(self, value: Value) -> bool:
        """Whether a value is the same in all active lanes."""
        return self.scalar or self.whole.scope[value] <= Scope.SUBGROUP

    def told(self, value: Value) -> int | None:
        """The stride of a value that one scalar tells wherever it flows; None for all others."""
        if self.lanes.rows == 1 or self.scalar:
            return self.stride(value)
        return 0 if self.uniform(value) else None

    def place(self, memory: Memory) -> Place:
        return self.places[memory.space, memory.number]

    def scratch(self, name: str) -> str:
        """A pointer to 8 bytes per lane of scratch memory, for one purpose."""
        if name not in self._scratch:
            self._scratch[name] = self.arena.take(8 * self.lanes.count)
        return self.at("%arena", self._scratch[name])

    def at(self, pointer: str, offset: int | str) -> str:
        """A pointer some bytes further."""
        if offset == 0:
            return pointer
        return self.w.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load_slot(self, pointer: str, dtype: DType) -> str:
        """A scalar from memory, a bool from its byte."""
        found = self.w.let(f"load {STORED[dtype]}, ptr {pointer}, align {dtype.size}")
        return self.w.let(f"icmp ne i8 {found}, 0") if dtype is bool_ else found

    def store_scalar(self, pointer: str, dtype: DType, name: str, more: str = "") -> None:
        """A scalar to memory, a bool as a byte."""
        if dtype is bool_:
            name = self.w.let(f"zext i1 {name} to i8")
        self.w.do(f"store {STORED[dtype]} {name}, ptr {pointer}, align {dtype.size}{more}")

    # Parts of values in memory, lane by lane next to each other.

    def store_parts(self, pointer: str, held: Held) -> None:
        """All lanes of a value to consecutive memory."""
        dtype, lanes = held.dtype, self.lanes
        for part, name in enumerate(self.values.vector(held)):
            at = self.at(pointer, part * lanes.per_part * dtype.size)
            stored, t = name, lanes.width.of(STORED[dtype])
            if dtype is bool_:
                stored = self.w.let(f"zext {lanes.width.of('i1')} {name} to {t}")
            self.w.do(f"store {t} {stored}, ptr {at}, align {dtype.size}")

    def load_parts(self, pointer: str, dtype: DType) -> Held:
        """All lanes of a value from consecutive memory."""
        lanes = self.lanes
        parts = []
        for part in range(lanes.parts):
            at = self.at(pointer, part * lanes.per_part * dtype.size)
            t = lanes.width.of(STORED[dtype])
            name = self.w.let(f"load {t}, ptr {at}, align {dtype.size}")
            if dtype is bool_:
                name = self.w.let(f"icmp ne {t} {name}, zeroinitializer")
            parts.append(name)
        return Held(dtype, parts=tuple(parts))

    def lane_of(self, pointer: str, dtype: DType, lane: str) -> str:
        """The scalar of one lane, by an i64 number, from what `store_parts` wrote."""
        at = self.w.let(f"getelementptr {STORED[dtype]}, ptr {pointer}, i64 {lane}")
        return self.load_slot(at, dtype)

    def one_of(self, held: Held, lane: str) -> str:
        """The scalar of one lane, whose number is an i64 or a constant."""
        if held.uniform:
            return held.base
        return self.lanes.extract(TYPES[held.dtype], self.values.vector(held), lane)

    @contextmanager
    def only_if(self, condition: str) -> Iterator[None]:
        """Run what is generated inside only if an i1 holds; always if it is empty."""
        if not condition:
            yield
            return
        after = self.w.label()
        self.w.fork(condition, yes=False, to=after)
        self.values.enter()
        yield
        self.values.leave()
        self.w.open(after)

    # Going back to the general version.

    def may_bail(self) -> bool:
        return self.bail is not None and self.mask is None

    def writes(self, region: Region) -> bool:
        """Whether a region writes what running it again would not."""
        if region not in self._writes:
            self._writes[region] = any(
                effect.op in _WRITES and not self.is_passing(effect) for effect in effects(region)
            )
        return self._writes[region]

    def is_passing(self, effect: Value) -> bool:
        """Whether an effect is a store that going back undoes: local, in code without barriers.

        Behind a barrier, what a store replaces may be what the general version is to read.
        """
        return (
            effect.op is Op.STORE and effect.memory.space is Space.LOCAL and not self.has_barriers
        )

    def wrote(self) -> None:
        """Something was written for good: from here on there is no way back."""
        self.bail = None


def find_uses(code: Code) -> None:
    """Find which values something reads, and the results of each ``if`` and ``loop``."""
    order = values(code.trace.body)
    code.used = frozenset(arg for value in order for arg in value.args)
    for value in order:
        if value.op is Op.RESULT:
            code.results.setdefault(value.args[0], []).append(value)


def find_parameters(code: Code) -> None:
    """Load every parameter that the trace reads, once, where the function begins."""
    for value in values(code.trace.body):
        offset = _parameter(code.block, value)
        if offset is not None:
            name = code.load_slot(code.at("%params", offset), value.type)
            code.values.hold(value, Held(value.type, name))


def _parameter(block: ParameterBlock, value: Value) -> int | None:
    """Where a leaf stands in the parameter block."""
    if value.op is Op.SCALAR:
        assert isinstance(value.attr, int)
        return block.scalars[value.attr]
    if value.op is Op.SHAPE or value.op is Op.STRIDE:
        assert isinstance(value.attr, int)
        table = block.shapes if value.op is Op.SHAPE else block.strides
        return table[value.memory.number][value.attr]
    return None


def find_memories(code: Code) -> None:
    """Find every memory that the trace touches, and tell LLVM that they are apart."""
    memories: dict[tuple[Space, int], Memory] = {}
    for value in values(code.trace.body):
        if value.op is Op.MEMORY:
            assert isinstance(value.attr, Memory)
            memories[value.attr.space, value.attr.number] = value.attr
    groups: dict[tuple[Space, int], int] = {}
    for key, memory in memories.items():
        views = (key[0], code.trace.arrays[key[1]].same_view) if _is_array(memory) else key
        groups.setdefault(views, len(groups))
        code.places[key] = Place(_base(code, memory), _apart(groups[views]))
    _describe(code, len(groups))


def _is_array(memory: Memory) -> bool:
    return memory.space is Space.ARRAY


def _base(code: Code, memory: Memory) -> str:
    if memory.space is Space.ARRAY:
        at = code.at("%params", code.block.pointers[memory.number])
        return code.w.let(f"load ptr, ptr {at}, align 8")
    if memory.space is Space.TABLE:
        assert memory.data is not None
        data = "".join(f"\\{byte:02X}" for byte in memory.data)
        name = f"@table{memory.number}"
        code.globals.append(
            f'{name} = private unnamed_addr constant [{len(memory.data)} x i8] c"{data}", align 64'
        )
        return name
    size = memory.count * memory.element.size
    if memory.space is Space.LOCAL:
        size *= code.lanes.count
        code.local_sizes[memory.space, memory.number] = size
        size *= code.local_copies
    return code.at("%arena", code.arena.take(size))


# Metadata: one scope per group of memories that may overlap; an access is in its own scope and
# apart from all others. Numbers: 0 is the domain; group k has 3k + 1, 3k + 2 and 3k + 3.


def _apart(group: int) -> str:
    return f", !alias.scope !{3 * group + 2}, !noalias !{3 * group + 3}"


def _describe(code: Code, groups: int) -> None:
    code.globals.append("!0 = distinct !{!0}")
    for k in range(groups):
        others = ", ".join(f"!{3 * other + 1}" for other in range(groups) if other != k)
        code.globals.append(f"!{3 * k + 1} = distinct !{{!{3 * k + 1}, !0}}")
        code.globals.append(f"!{3 * k + 2} = !{{!{3 * k + 1}}}")
        code.globals.append(f"!{3 * k + 3} = !{{{others}}}")
