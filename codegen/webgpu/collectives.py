"""Subgroup operations that the machine lacks, from those that it has or through workgroup memory.

With subgroups, what is not native is composed of shuffles: a scan doubles its distance step by
step, a reduction is the last lane's scan. All lanes of a subgroup come to a subgroup operation
together; the last subgroup of a workgroup may have fewer.

Without subgroups they are emulated: a subgroup is a run of consecutive invocations, as many as
the largest power of two that divides the workgroup's x size up to 32, and speaks through an array
in workgroup memory between two barriers. That needs control flow which is the same over the
workgroup, so what stands elsewhere is refused.

A lane that asks for the value of one outside its subgroup gets its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from khaljit.codegen.caps import Caps
from khaljit.codegen.webgpu.expansions import halves, joined
from khaljit.codegen.webgpu.folding import folding
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, bool_, f16, f32, i32, i64, u32
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.ir import Access, Element, Memory, Space, Trace, Value, values
from khaljit.tracer.ops import COMBINE, Op
from khaljit.tracer.rewriting import Rewriter
from khaljit.tracer.uniformity import Scope, analyse

__all__ = ["compose_collectives"]

_WIDEST: Final = 128  # lanes of a machine's subgroup
_EMULATED: Final = 32
# The lane that each lane reads from, by its own and the operand.
_SOURCES: Final[dict[str, Callable[[Writer, Value, Value], Value]]] = {
    "broadcast": lambda w, lane, operand: operand,
    "shuffle": lambda w, lane, operand: operand,
    "shuffle_xor": lambda w, lane, operand: w.xor(lane, operand),
    "shuffle_up": lambda w, lane, operand: w.sub(lane, operand),
    "shuffle_down": lambda w, lane, operand: w.add(lane, operand),
}
_PLAIN: Final = Access(checked=False, flat=True)
_IDS: Final = frozenset({"subgroup", "lane", "num_subgroups", "subgroup_size"})


def compose_collectives(trace: Trace, caps: Caps) -> Trace:
    """Rewrite what the trace does with subgroups; its workgroup is known."""
    if not any(_about_subgroups(value) for value in values(trace.body)):
        return trace
    rewriter = _Composed if "shuffle" in caps.collectives else _Emulated
    return rewriter(trace, caps).run()


def _about_subgroups(value: Value) -> bool:
    if value.op is Op.ID:
        return isinstance(value.attr, tuple) and value.attr[0] in _IDS
    return value.op is Op.SUBGROUP or (value.op is Op.BARRIER and value.attr == "subgroup")


def _identity(name: str, dtype: DType) -> float | int:
    """What a scan that leaves its own lane out begins with."""
    if name in ("min", "max"):
        if dtype.is_float:
            return float("inf") if name == "min" else float("-inf")
        return dtype.limits[1 if name == "min" else 0]
    return {"mul": 1, "and": -1}.get(name, 0)


class _Collectives(Rewriter, ABC):
    """What both ways have in common."""

    def __init__(self, trace: Trace, caps: Caps) -> None:
        super().__init__(trace)
        assert trace.workgroup is not None
        self.caps: Final = caps
        self.write: Final = Writer(self.builder, folding(self.builder))
        self.count: Final = trace.workgroup[0] * trace.workgroup[1] * trace.workgroup[2]
        self._uniformity: Final = analyse(trace, rows=False)

    # What a way provides. Lanes are u32.

    @abstractmethod
    def lane(self) -> Value:
        """The lane that asks."""

    @abstractmethod
    def size(self) -> Value:
        """Lanes of a whole subgroup."""

    @abstractmethod
    def members(self) -> Value:
        """Lanes of this subgroup, which may be the last and lack some."""

    @abstractmethod
    def vote(self, value: Value, operand: Value) -> Value:
        """``any``, ``all`` or ``ballot``."""

    @abstractmethod
    def moved(self, value: Value, operand: Value, source: Value) -> Value:
        """The operand as another lane has it."""

    @abstractmethod
    def combined(self, value: Value, operand: Value, prefix: str, name: str) -> Value:
        """A reduction or scan."""

    # Common.

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op is Op.BARRIER and value.attr == "subgroup":
            return self._barrier(value)
        if value.op is not Op.SUBGROUP:
            return super().effect(value, args)
        w, name = self.write, str(value.attr)
        if name == "elect":
            return w.eq(self.lane(), 0)
        operand = args[0]
        if name in ("any", "all", "ballot"):
            return self.vote(value, operand)
        if operand.dtype is bool_:
            return w.ne(self._collective(value, w.cast(operand, u32), args[1:]), 0)
        if operand.dtype is f16:
            return w.cast(self._collective(value, w.cast(operand, f32), args[1:]), f16)
        return self._collective(value, operand, args[1:])

    def _collective(self, value: Value, operand: Value, more: tuple[Value, ...]) -> Value:
        name = str(value.attr)
        if name == "broadcast_first":
            return self.moved(value, operand, self.write.const(u32, 0))
        if name in _SOURCES:
            return self.moved(value, operand, self._source(name, more[0]))
        prefix, _, name = name.rpartition("_")
        return self.combined(value, operand, prefix, name)

    def _source(self, name: str, operand: Value) -> Value:
        """The lane to read from: its own where the other is outside."""
        w, lane = self.write, self.lane()
        other = _SOURCES[name](w, lane, self._distance(operand))
        return w.select(w.lt(other, self.members()), other, lane)

    def _distance(self, operand: Value) -> Value:
        """A lane or distance modulo 2^32, brought to where no sum with a lane wraps inside."""
        w = self.write
        if not operand.type.is_signed:
            return w.cast(w.min(operand, 255), u32)
        if operand.type.bits == 64:
            operand = w.max(w.min(operand, 255), -256)
        return w.bits(w.cast(operand, i32))

    def _barrier(self, value: Value) -> Value:
        if "barrier" in self.caps.collectives:
            return self.builder.effect(Op.BARRIER, (), value.attr)
        self.together(value)
        return self.builder.effect(Op.BARRIER, (), "workgroup")

    def together(self, value: Value) -> None:
        """Refuse what not all of the workgroup reach together."""
        if self._uniformity.reach[value] > Scope.WORKGROUP:
            raise CapabilityError(
                f"{self.caps.name} has no {value.attr} of a subgroup, and can make up for it "
                "only where the whole workgroup comes together",
                at=value.at,
                mend="move it out of the branch or loop",
            )


class _Composed(_Collectives):
    """By the machine's own subgroups."""

    def _id(self, name: str) -> Value:
        return self.write.bits(self.builder.pure(Op.ID, attr=(name, 0), dtype=i32))

    def lane(self) -> Value:
        return self._id("lane")

    def size(self) -> Value:
        return self._id("subgroup_size")

    def members(self) -> Value:
        w, size = self.write, self.size()
        if self.count % _WIDEST == 0:
            return size
        return w.min(w.sub(self.count, w.mul(self._id("subgroup"), size)), size)

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        """Subgroups are counted here: Mesa 22.3 leaves out one that lacks lanes."""
        if value.op is Op.ID and value.attr == ("num_subgroups", 0):
            w, size = self.write, self.size()
            whole = w.op(Op.TRUNCDIV, w.sub(w.add(size, self.count), 1), size)
            return w.bitcast(whole, value.type)
        return self.copy(value, args)

    def vote(self, value: Value, operand: Value) -> Value:
        return self.builder.effect(Op.SUBGROUP, (operand,), value.attr, value.dtype)

    def moved(self, value: Value, operand: Value, source: Value) -> Value:
        w = self.write
        if operand.type.bits < 64:
            return self.builder.effect(Op.SUBGROUP, (operand, source), "shuffle", operand.dtype)
        parts = (self.moved(value, half, source) for half in halves(w, w.bits(operand)))
        return w.bitcast(joined(w, *parts), operand.type)

    def combined(self, value: Value, operand: Value, prefix: str, name: str) -> Value:
        native = value.attr in self.caps.collectives and operand.type.bits < 64
        if native and not (operand.type.is_float and name in ("min", "max")):
            return self.builder.effect(Op.SUBGROUP, (operand,), value.attr, operand.dtype)
        w, lane = self.write, self.lane()
        total, distance = operand, 1
        while distance < _WIDEST:
            inside = w.ge(lane, distance)
            before = self.moved(value, total, w.select(inside, w.sub(lane, distance), lane))
            total = w.select(inside, w.op(COMBINE[name], before, total), total)
            distance *= 2
        if prefix == "inclusive":
            return total
        if prefix == "exclusive":
            first = w.eq(lane, 0)
            before = self.moved(value, total, w.select(first, lane, w.sub(lane, 1)))
            return w.select(first, _identity(name, operand.type), before)
        return self.moved(value, total, w.sub(self.members(), 1))


class _Emulated(_Collectives):
    """Through workgroup memory."""

    def __init__(self, trace: Trace, caps: Caps) -> None:
        super().__init__(trace, caps)
        assert trace.workgroup is not None
        size = trace.workgroup[0] & -trace.workgroup[0]
        self._size: Final = min(size, _EMULATED)
        self._scratch: Final[dict[DType, Value]] = {}
        self._number = 1 + max(
            (
                value.attr.number
                for value in values(trace.body)
                if isinstance(value.attr, Memory) and value.attr.space is Space.SHARED
            ),
            default=-1,
        )

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is not Op.ID or not isinstance(value.attr, tuple):
            return self.copy(value, args)
        name = value.attr[0]
        if name not in _IDS:
            return self.copy(value, args)
        ids = {
            "lane": self.lane,
            "subgroup": lambda: self.write.op(Op.TRUNCDIV, self._index(), self._size),
            "num_subgroups": lambda: self.write.const(u32, self.count // self._size),
            "subgroup_size": self.size,
        }
        return self.write.bitcast(ids[name](), value.type)

    def _index(self) -> Value:
        return self.write.bits(self.builder.pure(Op.ID, attr=("local_index", 0), dtype=i32))

    def lane(self) -> Value:
        return self.write.and_(self._index(), self._size - 1)

    def size(self) -> Value:
        return self.write.const(u32, self._size)

    def members(self) -> Value:
        return self.size()

    def _shown(self, value: Value, operand: Value) -> Value:
        """The scratch array after every lane has put its operand there."""
        self.together(value)
        dtype = operand.type
        if dtype not in self._scratch:
            number = self._number + len(self._scratch)
            memory = Memory(Space.SHARED, number, Element.scalar(dtype), (self.count,))
            self._scratch[dtype] = self.builder.memory(memory)
        scratch = self._scratch[dtype]
        self.builder.effect(Op.BARRIER, (), "workgroup")
        self.builder.store(scratch, (self._place(self._index()),), operand, _PLAIN)
        self.builder.effect(Op.BARRIER, (), "workgroup")
        return scratch

    def _place(self, position: Value) -> Value:
        """A position in the scratch array as an offset."""
        width = i32 if self.trace.index_bits == 32 else i64
        return self.write.cast(self.write.bitcast(position, i32), width)

    def _read(self, scratch: Value, lane: Value, dtype: DType) -> Value:
        first = self.write.and_(self._index(), ~(self._size - 1) & 0xFFFFFFFF)
        place = self._place(self.write.add(first, lane))
        return self.builder.load(scratch, (place,), dtype, _PLAIN)

    def moved(self, value: Value, operand: Value, source: Value) -> Value:
        return self._read(self._shown(value, operand), source, operand.type)

    def vote(self, value: Value, operand: Value) -> Value:
        w, name = self.write, str(value.attr)
        bits = w.cast(operand, u32)
        if name == "ballot":
            return self._over(value, w.shl(bits, self.lane()), Op.OR, "", 0)
        found = self._over(value, bits, Op.OR if name == "any" else Op.AND, "", 0)
        return w.ne(found, 0)

    def combined(self, value: Value, operand: Value, prefix: str, name: str) -> Value:
        return self._over(value, operand, COMBINE[name], prefix, _identity(name, operand.type))

    def _over(self, value: Value, operand: Value, op: Op, prefix: str, start: float | int) -> Value:
        """Go through the lanes in order: all, or those up to or below the one that asks."""
        w, dtype = self.write, operand.type
        scratch = self._shown(value, operand)
        begun = prefix != "exclusive"
        zero = w.const(u32, 0)
        initial = self._read(scratch, zero, dtype) if begun else w.const(dtype, start)
        lane, total = self.builder.open((u32, dtype))
        self._leave_if(w.ge(lane, self._size), total)
        one = self._read(scratch, lane, dtype)
        taken = {
            "": w.ge(lane, 0),
            "inclusive": w.le(lane, self.lane()),
            "exclusive": w.lt(lane, self.lane()),
        }[prefix]
        following = w.select(taken, w.op(op, total, one), total)
        self.builder.end(Op.CONTINUE, (w.add(lane, 1), following))
        first = (w.const(u32, int(begun)), initial)
        (result,) = self.builder.loop(first, self.builder.close(), (dtype,))
        return result

    def _leave_if(self, condition: Value, result: Value) -> None:
        self.builder.open()
        self.builder.end(Op.BREAK, (result,))
        leave = self.builder.close()
        self.builder.open()
        self.builder.end(Op.YIELD)
        self.builder.if_(condition, leave, self.builder.close())
