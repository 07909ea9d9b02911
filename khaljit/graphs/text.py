"""Graphs as text: a summary for people, and DOT for Graphviz."""

from __future__ import annotations

import html as escape
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from khaljit.arrays import Array
from khaljit.graphs.declared import Declared
from khaljit.graphs.dependence import dependencies
from khaljit.graphs.nodes import KernelNode, Node
from khaljit.grids import Indirect

if TYPE_CHECKING:
    from khaljit.backends.base import Device

__all__ = ["dot", "html", "summary"]


def summary(
    device: Device, nodes: Sequence[Node], params: Iterable[Declared], facts: Mapping[str, str]
) -> str:
    """What a graph holds, as a table."""
    buffers = {id(array.buffer): array for node in nodes for array, _ in node.uses()}
    lines = [f"graph on {device}: {len(nodes)} nodes, {len(buffers)} buffers"]
    lines += [f"  parameter {param.name}: {param}" for param in params]
    lines += [f"  {name}: {fact}" for name, fact in facts.items()]
    if nodes:
        lines.append(f"{'#':>5}  {'node':<20} {'workgroups':<18} {'after':<12} arrays")
    for number, (node, before) in enumerate(zip(nodes, dependencies(nodes), strict=True)):
        after = ", ".join(map(str, sorted(before)))
        arrays = ", ".join(_array(array, written) for array, written in node.uses())
        lines.append(f"{number:>5}  {node.label:<20} {_grid(node):<18} {after:<12} {arrays}")
    return "\n".join(lines)


def _grid(node: Node) -> str:
    if not isinstance(node, KernelNode):
        return f"{node.source.nbytes} bytes"
    groups = node.dispatch.groups
    return "on the device" if isinstance(groups, Indirect) else str(groups)


def _array(array: Array[object], written: bool) -> str:
    name = "" if array.param is None else f"{array.param.name} "
    return f"{name}{array.dtype!r}{list(array.shape)}{' (written)' if written else ''}"


def dot(nodes: Sequence[Node]) -> str:
    """A directed graph in the DOT language."""
    lines = ["digraph {", "  node [shape=box];"]
    for number, node in enumerate(nodes):
        label = f"{number}: {node.label}\\n{_grid(node)}".replace('"', '\\"')
        lines.append(f'  n{number} [label="{label}"];')
    for number, before in enumerate(dependencies(nodes)):
        lines += [f"  n{one} -> n{number};" for one in sorted(before)]
    return "\n".join((*lines, "}"))


def html(text: str) -> str:
    """Text as notebooks show it."""
    return f"<pre>{escape.escape(text)}</pre>"
