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

from collections.abc import Callable
from typing import Final

from khaljit.codegen.caps import Caps
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, bool_, i32, i64, u32
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.ir import Access, Element, Memory, Space, Trace, Value, effects, values
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter
from khaljit.tracer.uniformity import Scope, Uniformity, analyse

__all__ = ["compose_collectives"]

_WIDEST: Final = 128  # lanes of a machine's subgroup
_EMULATED: Final = 32
_OPS: Final = {
    "add": Op.ADD,
    "mul": Op.MUL,
    "min": Op.MIN,
    "max": Op.MAX,
    "and": Op.AND,
    "or": Op.OR,
    "xor": Op.XOR,
}
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


class _Collectives(Rewriter):
    """What both ways have in common: `taken` gives the value of another lane."""

    def __init__(self, trace: Trace, caps: Caps) -> None:
        super().__init__(trace)
        assert trace.workgroup is not None
        self.caps: Final = caps
        self.write: Final = Writer(self.builder, self._plain)
        self.count: Final = trace.workgroup[0] * trace.workgroup[1] * trace.workgroup[2]

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)

    def id(self, name: str) -> Value:
        """An id of the machine, as u32."""
        return self.write.bits(self.builder.pure(Op.ID, attr=(name, 0), dtype=i32))

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op is not Op.SUBGROUP:
            return super().effect(value, args)
        name = str(value.attr)
        if name == "elect":
            return self.write.eq(self.lane(), 0)
        operand = args[0]
        if name in ("any", "all", "ballot"):
            return self.vote(value, operand)
        if operand.dtype is bool_:
            moved = self.collective(value, self.write.cast(operand, u32), args[1:])
            return self.write.ne(moved, 0)
        return self.collective(value, operand, args[1:])

    def source(self, name: str, operand: Value) -> Value:
        """The lane to read from, as u32: its own where the other is outside."""
        w, lane = self.write, self.lane()
        if operand.type.bits == 32:
            other = _SOURCES[name](w, lane, w.bits(operand))
            return w.select(w.lt(other, self.size()), other, lane)
        signed = operand.type.is_signed
        wide = w.cast(w.cast(lane, i32), i64)
        other = _SOURCES[name](w, wide, w.cast(operand, i64) if signed else w.bits64(operand))
        inside = w.and_(w.ge(other, 0), w.lt(other, w.cast(self.size(), i64)))
        return w.select(inside, w.cast(other, u32), lane)

    def lane(self) -> Value:
        raise NotImplementedError

    def size(self) -> Value:
        raise NotImplementedError

    def vote(self, value: Value, operand: Value) -> Value:
        raise NotImplementedError

    def collective(self, value: Value, operand: Value, more: tuple[Value, ...]) -> Value:
        raise NotImplementedError
