"""Graphs as text: a summary for people, and DOT for Graphviz."""

from __future__ import annotations

import html as escape
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from khaljit.arrays import Array
from khaljit.graphs.declared import Declared
from khaljit.graphs.dependence import dependencies
from khaljit.graphs.nodes import (
    UNBOUNDED,
    ConditionalNode,
    CopyNode,
    Item,
    Node,
    outline,
    uses_of,
)
from khaljit.grids import Indirect

if TYPE_CHECKING:
    from khaljit.backends.base import Device

__all__ = ["dot", "html", "summary"]


def summary(
    device: Device, nodes: Sequence[Node], params: Iterable[Declared], facts: Mapping[str, str]
) -> str:
    """What a graph holds, as a table; bodies are indented."""
    buffers = {id(array.buffer): array for node in nodes for array, _ in node.uses()}
    lines = [f"graph on {device}: {len(nodes)} nodes, {len(buffers)} buffers"]
    lines += [f"  parameter {param.name}: {param}" for param in params]
    lines += [f"  {name}: {fact}" for name, fact in facts.items()]
    if nodes:
        lines.append(f"{'#':>5}  {'node':<20} {'workgroups':<18} {'after':<12} arrays")
    lines += _rows(nodes, outline(nodes), "")
    return "\n".join(lines)


def _rows(nodes: Sequence[Node], items: Sequence[Item], indent: str) -> Iterator[str]:
    """The lines of some nodes and of their bodies."""
    for item, before in zip(items, _before(nodes, items), strict=True):
        node, after = nodes[item.position], ", ".join(map(str, before))
        arrays = ", ".join(_array(array, written) for array, written in node.uses())
        label = indent + node.label
        yield f"{item.position:>5}  {label:<20} {_extent(node):<18} {after:<12} {arrays}"
        yield from _rows(nodes, item.body, indent + "  ")


def _before(nodes: Sequence[Node], items: Sequence[Item]) -> list[list[int]]:
    """Per node which of the others it must come after."""
    found = dependencies([tuple(uses_of(nodes, item)) for item in items])
    return [[items[one].position for one in sorted(before)] for before in found]


def _extent(node: Node) -> str:
    """How much a node does."""
    if isinstance(node, ConditionalNode):
        return "" if node.limit in (1, UNBOUNDED) else f"{node.limit} turns at most"
    if isinstance(node, CopyNode):
        return f"{node.source.nbytes} bytes"
    groups = node.dispatch.groups
    return "on the device" if isinstance(groups, Indirect) else str(groups)


def _array(array: Array[object], written: bool) -> str:
    name = "" if array.param is None else f"{array.param.name} "
    return f"{name}{array.dtype!r}{list(array.shape)}{' (written)' if written else ''}"


def dot(nodes: Sequence[Node]) -> str:
    """A directed graph in the DOT language; bodies are clusters."""
    return "\n".join(("digraph {", "  node [shape=box];", *_dot(nodes, outline(nodes), "  "), "}"))


def _dot(nodes: Sequence[Node], items: Sequence[Item], indent: str) -> Iterator[str]:
    """The statements of some nodes and of their bodies."""
    for item in items:
        at, node = item.position, nodes[item.position]
        label = "\\n".join(filter(None, (f"{at}: {node.label}", _extent(node)))).replace('"', '\\"')
        if not isinstance(node, ConditionalNode):
            yield f'{indent}n{at} [label="{label}"];'
            continue
        yield f'{indent}n{at} [label="{label}", shape=diamond];'
        yield f"{indent}subgraph cluster_{at} {{"
        yield f'{indent}  label="body of {at}";'
        yield from _dot(nodes, item.body, indent + "  ")
        yield f"{indent}}}"
    for item, before in zip(items, _before(nodes, items), strict=True):
        yield from (f"{indent}n{one} -> n{item.position};" for one in before)


def html(text: str) -> str:
    """Text as notebooks show it."""
    return f"<pre>{escape.escape(text)}</pre>"
