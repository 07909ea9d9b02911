"""What a device makes of a captured graph.

A `Recorder` takes the nodes while they are captured; what it gives in the end is a `Replay`. Most
devices look at the nodes only when all are there; CUDA's driver captures them one by one, and with
them what other libraries do in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from khaljit.backends.reporting import Reporting
from khaljit.graphs.capture import unwatched
from khaljit.graphs.nodes import ConditionalNode, CopyNode, Item, KernelNode, Node, outline
from khaljit.tracer.errors import GraphError

if TYPE_CHECKING:
    from khaljit.backends.base import Device

__all__ = [
    "ListRecorder",
    "ListReplay",
    "Recorder",
    "Replay",
    "Slots",
    "Spoiled",
    "reporting",
    "turns",
]


Slots = Sequence[tuple[int, int, int]]  # a node, among its numbers, which component of a parameter


class Replay(ABC):
    """The nodes of a graph, ready to be run."""

    foreign: int = 0  # commands of other libraries that it holds, which are no nodes

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: Final = list(nodes)

    @abstractmethod
    def launch(self, repeat: int) -> None:
        """Run all nodes in order, so many times."""

    def update(self, position: int, node: Node) -> None:
        """Put a node with other arrays in the place of one."""
        self.nodes[position] = node

    def set_numbers(self, slots: Slots, numbers: Sequence[Any], bits: Sequence[int]) -> None:
        """Give nodes the numbers of a parameter, which are also there as bits."""
        del bits
        for position, index, component in slots:
            self.nodes[position].dispatch.numbers[index] = numbers[component]  # type: ignore[union-attr, index]  # a kernel's own list
            self.changed(position)

    def changed(self, position: int) -> None:  # noqa: B027  # nothing to do for a list
        """A node has other numbers."""

    def facts(self) -> Mapping[str, str]:
        """What there is to say about it, for people."""
        return {}


class Recorder(ABC):
    """Takes the nodes of a graph while it is captured."""

    def add(self, node: KernelNode | CopyNode) -> None:  # noqa: B027  # most look at all in the end
        """The next node."""

    def open(self, node: ConditionalNode) -> None:  # noqa: B027
        """A loop or a branch; what comes next is its body."""

    def close(self) -> None:  # noqa: B027
        """The body that was opened last is complete."""

    @abstractmethod
    def finish(self, nodes: Sequence[Node]) -> Replay:
        """These are all nodes."""

    def abandon(self) -> None:  # noqa: B027  # nothing to do for most
        """The capture failed; nothing of it shall remain."""


@final
class Spoiled(Recorder):
    """In place of one whose graph cannot be completed any more."""

    def __init__(self, why: str) -> None:
        self._why: Final = why

    def finish(self, nodes: Sequence[Node]) -> NoReturn:
        """There is no graph."""
        del nodes
        raise GraphError(
            f"a graph is incomplete: {self._why}", mend="capture it again, in another graph"
        )


def reporting(nodes: Sequence[Node]) -> list[Reporting]:
    """The kernels of a graph that print or assert."""
    found: dict[int, Reporting] = {}
    for node in nodes:
        if isinstance(node, KernelNode) and isinstance(node.dispatch.loaded, Reporting):
            found[id(node.dispatch.loaded)] = node.dispatch.loaded
    return list(found.values())


def turns(node: ConditionalNode) -> Iterator[None]:
    """The turns of a loop or branch, whose flag the host reads before each."""
    flag = node.flag
    for _ in range(node.limit):
        with unwatched():
            goes_on = flag.device.read(flag).any()
        if not goes_on:
            return
        yield


@final
class ListRecorder(Recorder):
    """Leaves it to the device what it makes of the nodes."""

    def __init__(self, device: Device) -> None:
        self._device: Final = device

    def finish(self, nodes: Sequence[Node]) -> Replay:
        """What the device makes of them."""
        return self._device.replay_of(nodes)


@final
class ListReplay(Replay):
    """Runs each node as it was launched."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self._outline: Final = outline(nodes)

    def launch(self, repeat: int) -> None:
        """Run them all."""
        for _ in range(repeat):
            self._run(self._outline)

    def _run(self, items: Sequence[Item]) -> None:
        for item in items:
            node = self.nodes[item.position]
            if isinstance(node, ConditionalNode):
                for _ in turns(node):
                    self._run(item.body)
            else:
                node.run()
