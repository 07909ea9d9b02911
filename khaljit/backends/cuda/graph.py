"""Graphs on a GPU: the driver's own, captured on a stream.

The driver captures what is enqueued on the stream, of khaljit's and of other libraries'. It is the
stream of `kj.stream` where there is one, else one of the capture's own, which ``graph.stream``
gives to others. Streams of other threads are left alone (the driver's thread-local mode).

Memory that the graph uses is in order with all other work at each launch, as that of a kernel is.
Nodes with parameters are changed in the executable graph; nothing is captured or made anew.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from khaljit.backends.cuda import driver
from khaljit.backends.cuda.driver import DriverError
from khaljit.backends.cuda.kernel import chosen_stream, hand_back
from khaljit.backends.cuda.memory import Memory
from khaljit.backends.cuda.streams import CHOSEN, Captured, stream_of
from khaljit.backends.replay import Recorder, Replay, reporting
from khaljit.backends.reporting import Reporting, launching
from khaljit.graphs.capture import unwatched
from khaljit.graphs.nodes import KernelNode, Node
from khaljit.operands import Operand
from khaljit.tracer.errors import GraphError

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice

__all__ = ["CudaRecorder", "CudaReplay"]

INVALID: Final = (
    "something in the capture did what no graph can hold, such as waiting or allocating by another "
    "library"
)


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
class CudaRecorder(Recorder):
    """A capture on a stream.

    Attributes:
        stream: what other libraries enqueue there becomes part of the graph.
    """

    def __init__(self, device: CudaDevice) -> None:
        device.enter()
        chosen = CHOSEN.get()
        if chosen is not None and chosen.captured is not None:
            raise GraphError(
                "a graph is captured already on this stream",
                mend="capture on another one: leave out kj.stream, or give another stream",
            )
        self._device: Final = device
        self._nodes: Final[list[Node]] = []
        self._changeable: Final[dict[int, Changeable]] = {}
        self._captured: Final = Captured()
        self._own: Final[Any] = None if chosen is not None else device.new_stream()
        self.stream: Final = chosen or stream_of(int(self._own or 0))
        self.thread: Final = threading.get_ident()
        self._mode: Final = driver.library().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._suspended: tuple[Any, Sequence[Any], Sequence[Any]] | None = None
        self._call("cuStreamBeginCapture", self._mode)
        device.recording(self)
        self.stream.captured = self._captured

    def _call(self, function: str, *args: Any) -> Any:
        return self._device.call(function, self.stream.handle, *args, what="capturing a graph")

    def suspend(self) -> None:
        """End the driver's capture for a while; what it has stays."""
        if self._suspended is None:
            _, _, _, before, edges, *_ = self._call("cuStreamGetCaptureInfo")
            tail = list(before or ()), list(edges or ())
            self.stream.captured = None
            self._suspended = self._call("cuStreamEndCapture"), *tail

    def resume(self) -> None:
        """Go on behind what the driver has."""
        if self._suspended is not None:
            graph, before, edges = self._suspended
            self._suspended = None
            given = before, edges, len(before), self._mode
            self._call("cuStreamBeginCaptureToGraph", graph, *given)
            self.stream.captured = self._captured

    def add(self, node: Node) -> None:
        """Enqueue it on the stream."""
        token = CHOSEN.set(self.stream)
        try:
            with unwatched():
                if isinstance(node, KernelNode) and node.is_changeable:
                    launch, numbers = _bound(node)
                    launch(numbers)
                    change = Changeable(self._device, self._last(), launch)
                    self._changeable[len(self._nodes)] = change
                else:
                    node.run()
        finally:
            CHOSEN.reset(token)
        self._nodes.append(node)

    def _last(self) -> Any:
        """The driver's node for what was enqueued last."""
        _, _, _, before, *_ = self._call("cuStreamGetCaptureInfo")
        return before[0]

    def finish(self) -> CudaReplay:
        """End the capture and make the graph ready."""
        graph = self._end()
        return CudaReplay(self._device, graph, self._nodes, self._captured, self._changeable)

    def abandon(self) -> None:
        """End the capture and drop the graph."""
        with suppress(DriverError):  # where the driver has dropped it already
            self._device.drop("cuGraphDestroy", self._end())

    def _end(self) -> Any:
        device = self._device
        device.enter()
        self.stream.captured = None
        try:
            return self._call("cuStreamEndCapture")
        except DriverError as error:
            error.mend = error.mend or INVALID
            raise
        finally:
            device.recorded(self)
            if self._own is not None:
                device.drop("cuStreamDestroy", self._own)


def _bound(node: KernelNode) -> tuple[Launch, Sequence[Any]]:
    """A launch as the device takes it, and its numbers."""
    dispatch = node.dispatch
    loaded: Any = dispatch.loaded
    operands, numbers = dispatch.operands, dispatch.numbers
    if isinstance(loaded, Reporting):
        operands, numbers = loaded.passed(operands, numbers)
        loaded = loaded.code
    launch: Launch = loaded.bind(operands, dispatch.groups)
    return launch, numbers


@final
class Changeable:
    """A kernel in the driver's graph whose arguments change.

    Attributes:
        launch: as it is now.
    """

    def __init__(self, device: CudaDevice, handle: Any, launch: Launch) -> None:
        self._device: Final = device
        self._handle: Final = handle
        self.launch = launch
        self._block: Final = launch.new_block()
        self._params: Final = launch.node_params(self._block)

    def change(self, executable: Any, node: KernelNode) -> None:
        """Pack what the kernel takes now, and give it to the driver."""
        loaded, numbers = node.dispatch.loaded, node.dispatch.numbers
        if isinstance(loaded, Reporting):
            _, numbers = loaded.passed((), numbers)
        self.launch.fill(self._block, numbers)
        self._device.call("cuGraphExecKernelNodeSetParams", executable, self._handle, self._params)

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
    ) -> None:
        super().__init__(nodes)
        self._device: Final = device
        self._graph: Final = graph
        self._executable: Any = None
        self._changeable: Final = changeable
        self._outdated: Final[set[int]] = set()
        self._has_moved = False
        self._captured: Final = list(captured.memories)
        self._memories = self._captured  # those of arrays that nodes were given since, too
        self._reporting: Final = reporting(nodes)
        self._names: Final = list(dict.fromkeys(node.label for node in nodes))
        _, count = device.call("cuGraphGetNodes", graph)
        self._commands: Final = int(count)
        self.foreign = self._commands - captured.commands
        if self._commands:
            self._executable = device.call("cuGraphInstantiate", graph, 0, what="making a graph")
            stream = device.current().handle
            device.call("cuGraphUpload", self._executable, stream, what="uploading a graph")
        self._launch: Final = driver.library().cuGraphLaunch

    def __del__(self) -> None:
        if getattr(self, "_executable", None) is not None:
            self._device.drop("cuGraphExecDestroy", self._executable)
        self._device.drop("cuGraphDestroy", self._graph)

    def launch(self, repeat: int) -> None:
        """Enqueue it, in order with all work on its memory."""
        device, executable = self._device, self._executable
        if executable is None:
            return
        device.enter()
        if self._outdated:
            self._change()
        memories = self._memories
        with launching(self._reporting):
            stream = chosen_stream(device, memories)
            for _ in range(repeat):
                (status,) = self._launch(executable, stream.handle)
                if status:
                    raise device.explained(driver.fail(status, "launching a graph"))
            hand_back(device, memories, stream)
        device.recent.extend(self._names)

    def _change(self) -> None:
        """Give the driver what nodes take now."""
        for position in sorted(self._outdated):
            node = self.nodes[position]
            assert isinstance(node, KernelNode)
            self._changeable[position].change(self._executable, node)
        self._outdated.clear()
        if self._has_moved:
            used = (one.launch.memories for one in self._changeable.values())
            self._memories = list(dict.fromkeys(itertools.chain(self._captured, *used)))
            self._has_moved = False

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
