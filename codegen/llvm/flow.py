"""Values that flow from one block to another: through joins, and through stack slots around loops.

A parameter or result is one scalar or vectors, as the analysis says, whatever the values that
flow to it are held as.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import TYPES, literal
from khaljit.codegen.llvm.values import Held, Mask
from khaljit.codegen.llvm.writer import Writer
from khaljit.tracer.dtypes import f32, f64
from khaljit.tracer.ir import Value
from khaljit.tracer.records import dataclass

__all__ = ["Edge", "Escape", "Flow", "Names", "position"]

Names = tuple[str, ...]  # of one scalar, or of the vectors of a value


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """One way into a join: from a block, with these lanes active and these values."""

    block: str
    mask: Mask
    values: tuple[Names, ...]


@final
@dataclass(slots=True)
class Escape:
    """Where control goes when no lane is left; ``blocks`` are those that it comes from."""

    label: str
    blocks: list[str] = field(default_factory=list)


@final
class Flow:
    """Brings values to the form of what they flow to."""

    def __init__(self, code: Code) -> None:
        self.code: Final = code
        self.w: Final[Writer] = code.w

    def type(self, value: Value) -> str:
        lanes = self.code.lanes
        return TYPES[value.type] if self.told_by_one(value) else lanes.width.type(value.type)

    def told_by_one(self, value: Value) -> bool:
        return self.code.told(value) is not None

    def names(self, target: Value, held: Held) -> Names:
        """A value in the form that the parameter or result it flows to has."""
        if not self.told_by_one(target):
            return self.code.values.vector(held)
        if held.affine:
            return (held.base,)
        return (self.code.one_of(held, self.code.lanes.first(self.code.mask)),)

    def nothing(self, target: Value) -> Names:
        """What flows where no lane does."""
        if self.told_by_one(target):
            return ("0.0" if target.type in (f32, f64) else literal(target.type, 0),)
        return ("zeroinitializer",) * self.code.lanes.parts

    def held(self, target: Value, names: Names) -> Held:
        if self.told_by_one(target):
            return Held(target.type, names[0], self.code.told(target) or 0)
        return Held(target.type, parts=names)

    def results(self, node: Value) -> list[Value]:
        return self.code.results.get(node, [])

    def yielded(self, node: Value, values: tuple[Held, ...]) -> tuple[Names, ...]:
        """What an arm yields, in the form that the results of its ``if`` have."""
        return tuple(self.names(result, values[position(result)]) for result in self.results(node))

    def no_values(self, node: Value) -> tuple[Names, ...]:
        return tuple(self.nothing(result) for result in self.results(node))

    def join(self, node: Value, label: str, edges: list[Edge]) -> tuple[Names, ...]:
        """Open a join; gives the results and leaves the mask of the edge that control came by."""
        self.w.open(label)
        self.code.mask = self.join_masks(edges)
        return tuple(
            self.phis(self.type(result), edges, [edge.values[k] for edge in edges])
            for k, result in enumerate(self.results(node))
        )

    def join_masks(self, edges: list[Edge]) -> Mask:
        masks = [edge.mask for edge in edges]
        if all(mask is masks[0] for mask in masks):
            return masks[0]
        lanes = self.code.lanes
        written = [lanes.full() if mask is None else mask for mask in masks]
        return self.phis(lanes.mask, edges, written)

    def phis(self, type_: str, edges: list[Edge], names: list[Names]) -> Names:
        blocks = [edge.block for edge in edges]
        return tuple(
            self.w.phi(type_, list(zip(part, blocks, strict=True)))
            for part in zip(*names, strict=True)
        )

    def hold_results(self, node: Value, names: tuple[Names, ...]) -> None:
        for result, name in zip(self.results(node), names, strict=True):
            self.code.values.hold(result, self.held(result, name))

    def slots(self, type_: str, names: Names) -> Names:
        slots = tuple(self.w.slot(type_) for _ in names)
        self.to_slots(slots, type_, names)
        return slots

    def to_slots(self, slots: Names, type_: str, names: Names) -> None:
        for slot, name in zip(slots, names, strict=True):
            self.w.do(f"store {type_} {name}, ptr {slot}")

    def from_slots(self, slots: Names, type_: str) -> Names:
        return tuple(self.w.let(f"load {type_}, ptr {slot}") for slot in slots)


def position(value: Value) -> int:
    """Which result or parameter a value is."""
    assert isinstance(value.attr, int)
    return value.attr
