"""The nodes of a graph.

A graph is a list of them, in the order of capture. The body of a loop or a branch stands behind its
node, which knows how many nodes that are; `outline` gives the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, final

from khaljit.arrays import Array
from khaljit.dispatch import Dispatch
from khaljit.graphs.params import ArrayParam, Slot
from khaljit.grids import Indirect
from khaljit.operands import Operand, views
from khaljit.tracer.records import dataclass

__all__ = [
    "UNBOUNDED",
    "ConditionalNode",
    "CopyNode",
    "Item",
    "KernelNode",
    "Node",
    "Use",
    "outline",
    "rebound",
    "uses_of",
    "views_of",
]

UNBOUNDED: Final = (1 << 63) - 1  # turns of a loop that only its flag ends

Use = tuple["Array[Any]", bool]  # an array, and whether the node writes it


@final
@dataclass(frozen=True, slots=True)
class KernelNode:
    """A launch. Its numbers are plain ones; which of them are parameters is in `slots`."""

    label: str
    dispatch: Dispatch
    slots: tuple[tuple[int, Slot], ...] = ()  # with their positions among the numbers

    @property
    def is_changeable(self) -> bool:
        """Whether it uses parameters."""
        return bool(self.slots) or any(array.param is not None for array, _ in self.uses())

    def run(self) -> None:
        """Enqueue it."""
        dispatch = self.dispatch
        dispatch.loaded.launch(dispatch.operands, dispatch.numbers, dispatch.groups)

    def uses(self) -> Iterator[Use]:
        """Every array that it reads or writes."""
        dispatch = self.dispatch
        for operand, written in zip(dispatch.operands, dispatch.written, strict=True):
            assert isinstance(operand.owner, Array)
            yield operand.owner, written
        if isinstance(dispatch.groups, Indirect) and isinstance(dispatch.groups.array, Array):
            yield dispatch.groups.array, False


@final
@dataclass(frozen=True, slots=True)
class CopyNode:
    """A copy between two contiguous arrays that share no memory, and are no parameters."""

    source: Array[Any]
    target: Array[Any]

    label: ClassVar[str] = "copy"

    def run(self) -> None:
        """Enqueue it."""
        source, target = self.source, self.target
        device: Any = target.device
        device.copy_bytes(source.buffer, source.offset, target.buffer, target.offset, source.nbytes)

    def uses(self) -> Iterator[Use]:
        """Every array that it reads or writes."""
        yield self.source, False
        yield self.target, True


@final
@dataclass(frozen=True, slots=True)
class ConditionalNode:
    """A loop, or a branch, which is a loop of one turn at most.

    Attributes:
        flag: one element; a turn is made if it is not zero then.
        limit: most turns.
        size: how many of the nodes behind it are its body, with all that is inside of inner ones.
    """

    flag: Array[Any]
    limit: int
    size: int = 0

    @property
    def label(self) -> str:
        """What it is called in the statement that captured it."""
        return "if" if self.limit == 1 else "while"

    def uses(self) -> Iterator[Use]:
        """What it reads by itself."""
        yield self.flag, False


Node = KernelNode | CopyNode | ConditionalNode


class Item(NamedTuple):
    """A node by its position, with what is in its body."""

    position: int
    body: Sequence[Item] = ()


def outline(nodes: Sequence[Node], start: int = 0, stop: int | None = None) -> list[Item]:
    """The nodes of a part of a graph that are in no body there, each with its own body."""
    stop = len(nodes) if stop is None else stop
    found = []
    while start < stop:
        node, position = nodes[start], start
        start += 1 + (node.size if isinstance(node, ConditionalNode) else 0)
        found.append(Item(position, outline(nodes, position + 1, start)))
    return found


def uses_of(nodes: Sequence[Node], item: Item) -> Iterator[Use]:
    """Every array that a node and its body read or write."""
    yield from nodes[item.position].uses()
    for inner in item.body:
        yield from uses_of(nodes, inner)


def rebound(node: KernelNode, arrays: Mapping[str, Array[Any]], keep: bool) -> KernelNode:
    """A launch with other arrays for its parameters; they stand for the parameters still if `keep`,
    else for what the new ones stand for."""

    def place(array: Array[Any]) -> Array[Any]:
        param = array.param
        if param is None:
            return array
        to = arrays[param.name]
        # where this view of the parameter's array begins, counted from that array
        moved = array.offset - param.offset
        stands_for = ArrayParam(param.owner, param.name, to.offset) if keep else to.param
        return Array(
            to.device,
            to.buffer,
            array.dtype,
            array.shape,
            array.strides,
            to.offset + moved,
            stands_for,
        )

    operands = []
    for operand in node.dispatch.operands:
        owner = operand.owner
        assert isinstance(owner, Array)
        if owner.param is not None:
            array = place(owner)
            operand = Operand(
                operand.name, array, operand.dtype, operand.shape, operand.strides, array.address
            )
        operands.append(operand)
    return KernelNode(node.label, node.dispatch.with_operands(operands), node.slots)


def views_of(node: KernelNode) -> tuple[int, ...]:
    """Per array of a launch the first that is the very same view: code is made for that."""
    return views(node.dispatch.operands)
