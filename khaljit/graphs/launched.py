"""Nodes with the values that a launch of their graph gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from khaljit.arrays import Array
from khaljit.graphs.capture import Capture
from khaljit.graphs.declared import Value
from khaljit.graphs.nodes import (
    ConditionalNode,
    CopyNode,
    Item,
    KernelNode,
    Node,
    outline,
    rebound,
    views_of,
)
from khaljit.graphs.params import Slot
from khaljit.operands import check_operands
from khaljit.tracer.errors import ArgumentValueError

__all__ = ["as_launched", "filled", "give", "moved"]


def filled(
    numbers: Sequence[Any], slots: Sequence[tuple[int, Slot]], value: Callable[[Slot], Any]
) -> list[Any]:
    """Numbers with those of parameters in their places."""
    found = list(numbers)
    for position, slot in slots:
        found[position] = value(slot)
    return found


def moved(node: Node, arrays: Mapping[str, Array[Any]], keep: bool = True) -> Node:
    """A node with other arrays for its parameters, if its code is right for them."""
    if not isinstance(node, KernelNode):
        return node
    made = rebound(node, arrays, keep)
    dispatch = made.dispatch
    check_operands(dispatch.kernel, dispatch.operands, dispatch.written)
    if views_of(made) != views_of(node):
        raise ArgumentValueError(
            f"kernel {dispatch.kernel}: arrays of this launch of the graph are the same view "
            "that were not when it was captured, or the other way round",
            mend="capture another graph for that case",
        )
    return made


def as_launched(node: Node, values: Mapping[str, Value]) -> Node:
    """A node with the values of a launch, which are no parameters of its graph any more."""
    arrays = {name: one for name, one in values.items() if isinstance(one, Array)}
    made = moved(node, arrays, keep=False)
    if not isinstance(made, KernelNode) or not made.slots:
        return made

    def value(slot: Slot) -> Any:
        numbers = values[slot.param.name]
        assert isinstance(numbers, tuple)
        return numbers[slot.component]

    numbers = filled(made.dispatch.numbers, made.slots, value)
    return KernelNode(made.label, made.dispatch.with_numbers(numbers))


def give(nodes: Sequence[Node], to: Capture, items: Sequence[Item] | None = None) -> None:
    """Let somebody who takes launches have nodes, one after the other."""
    for item in outline(nodes) if items is None else items:
        node = nodes[item.position]
        if isinstance(node, ConditionalNode):
            with to.body(node):
                give(nodes, to, item.body)
        elif isinstance(node, CopyNode):
            to.copy(node.source, node.target)
        else:
            to.kernel(node.dispatch, node.label)
