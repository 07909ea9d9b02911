"""Graphs on a GPU: the driver's own, which `CudaRecorder` captured on a stream.

Memory that the graph uses is in order with all other work at each launch, as that of a kernel is.
Nodes with parameters are changed in the executable graph; nothing is captured or made anew. Where
some are in bodies of loops and branches, which cannot be changed there, all are changed in the
graph that it was made of, and it is brought up to date with that.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from khaljit.backends.cuda import driver
from khaljit.backends.cuda.driver import DriverError
from khaljit.backends.cuda.kernel import chosen_stream, hand_back
from khaljit.backends.cuda.memory import Memory
from khaljit.backends.cuda.streams import Captured
from khaljit.backends.replay import Replay, reporting
from khaljit.backends.reporting import Reporting, launching
from khaljit.graphs.nodes import KernelNode, Node
from khaljit.operands import Operand

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice

__all__ = ["Changeable", "CudaReplay", "Launch", "count_nodes"]


class Launch(Protocol):
    """A launch with all read but the numbers, of a kernel or of hand-written code."""

    @property
    def memories(self) -> Sequence[Memory]: ...

    def __call__(self, numbers: Sequence[Any]) -> None: ...

    def on(self, operands: Sequence[Operand]) -> Launch: ...

    def new_block(self) -> Any: ...

    def fill(self, block: Any, numbers: Sequence[Any]) -> None: ...

    def node_params(self, block: Any) -> Any: ...


@final
class Changeable:
    """A kernel in the driver's graph whose arguments change.

    Attributes:
        is_inside: whether it is in the body of a loop or branch.
        launch: as it is now.
    """

    def __init__(self, device: CudaDevice, handle: Any, launch: Launch, is_inside: bool) -> None:
        self._device: Final = device
        self._handle: Final = handle
        self.is_inside: Final = is_inside
        self.launch = launch
        self._block: Final = launch.new_block()
        self._params: Final = launch.node_params(self._block)

    def change(self, executable: Any, node: KernelNode) -> None:
        """Pack what the kernel takes now, and give it to the driver: for an executable graph, or
        for the one that such are made of if None."""
        loaded, numbers = node.dispatch.loaded, node.dispatch.numbers
        if isinstance(loaded, Reporting):
            _, numbers = loaded.passed((), numbers)
        self.launch.fill(self._block, numbers)
        if executable is None:
            self._device.call("cuGraphKernelNodeSetParams", self._handle, self._params)
        else:
            given = executable, self._handle, self._params
            self._device.call("cuGraphExecKernelNodeSetParams", *given)

    def move(self, node: KernelNode) -> None:
        """The kernel works on other arrays now."""
        loaded, operands = node.dispatch.loaded, node.dispatch.operands
        if isinstance(loaded, Reporting):
            operands, _ = loaded.passed(operands, ())
        self.launch = self.launch.on(operands)


@final
class CudaReplay(Replay):
    """An executable graph of the driver's."""

    def __init__(
        self,
        device: CudaDevice,
        graph: Any,
        nodes: Sequence[Node],
        captured: Captured,
        changeable: Mapping[int, Changeable],
        inside: int,
    ) -> None:
        super().__init__(nodes)
        self._device: Final = device
        self._graph: Final = graph
        self._executable: Any = None
        self._changeable: Final = changeable
        self._is_remade: Final = any(one.is_inside for one in changeable.values())
        self._outdated: Final[set[int]] = set()
        self._has_moved = False
        self._captured: Final = list(captured.memories)
        self._memories = self._captured  # those of arrays that nodes were given since, too
        self._reporting: Final = reporting(nodes)
        self._names: Final = list(dict.fromkeys(node.label for node in nodes))
        self._commands: Final = count_nodes(device, graph) + inside
        self.foreign = self._commands - captured.commands
        if self._commands:
            self._make()
            stream = device.current().handle
            device.call("cuGraphUpload", self._executable, stream, what="uploading a graph")
        self._launch: Final = driver.library().cuGraphLaunch

    def __del__(self) -> None:
        if getattr(self, "_executable", None) is not None:
            self._device.drop("cuGraphExecDestroy", self._executable)
        self._device.drop("cuGraphDestroy", self._graph)

    def launch(self, repeat: int) -> None:
        """Enqueue it, in order with all work on its memory."""
        device = self._device
        if self._executable is None:
            return
        device.enter()
        if self._outdated:
            self._change()
        executable, memories = self._executable, self._memories
        with launching(self._reporting):
            stream = chosen_stream(device, memories)
            for _ in range(repeat):
                (status,) = self._launch(executable, stream.handle)
                if status:
                    raise device.explained(driver.fail(status, "launching a graph"))
            hand_back(device, memories, stream)
        device.recent.extend(self._names)

    def _make(self) -> None:
        """The executable graph."""
        graph = self._graph
        self._executable = self._device.call("cuGraphInstantiate", graph, 0, what="making a graph")

    def _change(self) -> None:
        """Give the driver what nodes take now."""
        executable = None if self._is_remade else self._executable
        for position in sorted(self._outdated):
            node = self.nodes[position]
            assert isinstance(node, KernelNode)
            self._changeable[position].change(executable, node)
        if executable is None:
            self._remake()
        self._outdated.clear()
        if self._has_moved:
            used = (one.launch.memories for one in self._changeable.values())
            self._memories = list(dict.fromkeys(itertools.chain(self._captured, *used)))
            self._has_moved = False

    def _remake(self) -> None:
        """Bring the executable graph up to date, or make another where the driver cannot."""
        old = self._executable
        try:
            self._device.call("cuGraphExecUpdate", old, self._graph)
        except DriverError:
            self._make()
            self._device.drop("cuGraphExecDestroy", old)

    def update(self, position: int, node: Node) -> None:
        """Its node is changed before the next launch."""
        super().update(position, node)
        assert isinstance(node, KernelNode)
        self._changeable[position].move(node)
        self._has_moved = True
        self._outdated.add(position)

    def changed(self, position: int) -> None:
        """Its node is changed before the next launch."""
        self._outdated.add(position)

    def facts(self) -> Mapping[str, str]:
        """What the driver made of it."""
        of_others = f", {self.foreign} of them of other libraries" if self.foreign else ""
        return {"driver's graph": f"{self._commands} nodes{of_others}"}


def count_nodes(device: CudaDevice, graph: Any) -> int:
    """How many nodes a graph of the driver's has, without those in bodies."""
    _, count = device.call("cuGraphGetNodes", graph)
    return int(count)
