"""What the loops and branches of a graph are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from khaljit.arrays import Array
from khaljit.exchange import adopt
from khaljit.graphs.capture import capture_of
from khaljit.graphs.nodes import UNBOUNDED, ConditionalNode
from khaljit.tracer.dtypes import bool_, i32, u32
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError, GraphError
from khaljit.tracer.recorder import user_site

if TYPE_CHECKING:
    from khaljit.graphs.graph import Graph

__all__ = ["conditional"]

_TYPES: Final = (i32, u32, bool_)


def conditional(statement: str, graph: Graph, flag: Any, limit: int | None) -> ConditionalNode:
    """The node of a loop or branch, whose body is not there yet; raises GraphError outside of the
    graph's capture, and ArgumentError."""
    device = graph.device
    if capture_of(device) is not graph:
        raise GraphError(
            f"graph.{statement} is used outside of the graph's capture",
            at=user_site(),
            mend="use it inside: with device.capture() as graph: ...",
        )
    given, flag = flag, flag if isinstance(flag, Array) else adopt(flag)
    if not isinstance(flag, Array):
        raise ArgumentTypeError(
            f"graph.{statement} got a {type(given).__name__} as its flag",
            mend="pass an array that kernels write: device.zeros(1, kj.i32)",
        )
    if flag.device is not device:
        raise ArgumentValueError(
            f"the flag of graph.{statement} is on {flag.device}, and the graph on {device}",
            mend="give an array of the graph's device",
        )
    if flag.dtype not in _TYPES:
        raise ArgumentTypeError(
            f"the flag of graph.{statement} is of {flag.dtype!r}",
            mend="a flag is of kj.i32, kj.u32 or kj.bool; compare in a kernel, and store what "
            "comes of it",
        )
    if flag.size != 1:
        raise ArgumentValueError(
            f"the flag of graph.{statement} has shape {flag.shape}",
            mend="a flag is one element, as flag[:1] is",
        )
    if limit is not None and (type(limit) is not int or not 0 < limit <= UNBOUNDED):
        raise ArgumentValueError(
            f"graph.{statement} has limit={limit!r}", mend="limit is an int, 1 or more"
        )
    if flag.param is not None:
        raise GraphError(
            f"the flag of graph.{statement} is the graph parameter {flag.param.name}",
            at=user_site(),
            mend="use an array of the graph's own, and copy the parameter there",
        )
    return ConditionalNode(flag, UNBOUNDED if limit is None else limit)
