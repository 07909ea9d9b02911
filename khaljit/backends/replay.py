"""What a device makes of a captured graph.

A `Recorder` takes the nodes while they are captured; what it gives in the end is a `Replay`. Most
devices look at the nodes only when all are there; CUDA's driver captures them one by one, and with
them what other libraries do in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.backends.reporting import Reporting

if TYPE_CHECKING:
    from khaljit.backends.base import Device
    from khaljit.graphs.nodes import Node

__all__ = ["ListRecorder", "ListReplay", "Recorder", "Replay", "Slots", "reporting"]


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

    @abstractmethod
    def add(self, node: Node) -> None:
        """The next node."""

    @abstractmethod
    def finish(self) -> Replay:
        """All nodes are there."""

    def abandon(self) -> None:  # noqa: B027  # nothing to do for most
        """The capture failed; nothing of it shall remain."""


def reporting(nodes: Sequence[Node]) -> list[Reporting]:
    """The kernels of a graph that print or assert."""
    found: dict[int, Reporting] = {}
    for node in nodes:
        dispatch = getattr(node, "dispatch", None)
        if dispatch is not None and isinstance(dispatch.loaded, Reporting):
            found[id(dispatch.loaded)] = dispatch.loaded
    return list(found.values())


@final
class ListRecorder(Recorder):
    """Collects nodes."""

    def __init__(self, device: Device) -> None:
        self._device: Final = device
        self._nodes: Final[list[Node]] = []

    def add(self, node: Node) -> None:
        """Collect it."""
        self._nodes.append(node)

    def finish(self) -> Replay:
        """What the device makes of them."""
        return self._device.replay_of(self._nodes)


@final
class ListReplay(Replay):
    """Runs each node as it was launched."""

    def launch(self, repeat: int) -> None:
        """Run them all."""
        for _ in range(repeat):
            for node in self.nodes:
                node.run()
