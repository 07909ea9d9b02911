"""Capturing a graph on a GPU: the driver does, on a stream.

The driver captures what is enqueued on the stream, of khaljit's and of other libraries'. It is the
stream of `kj.stream` where there is one, else one of the capture's own, which ``graph.stream``
gives to others. Streams of other threads are left alone (the driver's thread-local mode).

For a body, the capture on the stream goes on in the body's own graph, so that other libraries' work
is part of it, too. A driver without loops in graphs runs the nodes as they were launched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from khaljit.backends.cuda import driver
from khaljit.backends.cuda.conditional import Condition, has_conditionals
from khaljit.backends.cuda.driver import DriverError
from khaljit.backends.cuda.graph import Changeable, CudaReplay, Launch, count_nodes
from khaljit.backends.cuda.streams import CHOSEN, Captured, Stream, stream_of
from khaljit.backends.replay import ListReplay, Recorder, Replay
from khaljit.backends.reporting import Reporting
from khaljit.graphs.capture import unwatched
from khaljit.graphs.nodes import ConditionalNode, CopyNode, KernelNode, Node
from khaljit.tracer.errors import GraphError

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice

__all__ = ["CudaRecorder"]

INVALID: Final = (
    "something in the capture did what no graph can hold, such as waiting or allocating by another "
    "library"
)


class Around(NamedTuple):
    """What a body is in: a graph, its node for the body, and what that waits for."""

    graph: Any
    node: Any
    condition: Condition


@final
class CudaRecorder(Recorder):
    """A capture on a stream."""

    def __init__(self, device: CudaDevice) -> None:
        device.enter()
        chosen = CHOSEN.get()
        if chosen is not None and chosen.captured is not None:
            raise GraphError(
                "a graph is captured already on this stream",
                mend="capture on another one: leave out kj.stream, or give another stream",
            )
        self._device: Final = device
        self._position = 0  # of the next node
        self._changeable: Final[dict[int, Changeable]] = {}
        self._around: Final[list[Around]] = []  # the bodies that are captured now
        self._inside = 0  # commands in bodies that are complete
        self._is_list = False
        self._captured: Final = Captured()
        self._own: Final[Any] = None if chosen is not None else device.new_stream()
        self._stream: Final = chosen or stream_of(int(self._own or 0))
        self.thread: Final = threading.get_ident()
        self._mode: Final = driver.library().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._suspended: tuple[Any, Sequence[Any], Sequence[Any]] | None = None
        self._call("cuStreamBeginCapture", self._mode)
        device.recording(self)
        self._stream.captured = self._captured

    def _call(self, function: str, *args: Any) -> Any:
        return self._device.call(function, self._stream.handle, *args, what="capturing a graph")

    def suspend(self) -> None:
        """End the driver's capture for a while; what it has stays."""
        if self._suspended is None:
            _, _, _, before, edges, *_ = self._call("cuStreamGetCaptureInfo")
            before = list(before or ())
            tail = before, list(edges or _edges(len(before)))
            self._stream.captured = None
            self._suspended = self._call("cuStreamEndCapture"), *tail

    def resume(self) -> None:
        """Go on behind what the driver has."""
        if self._suspended is not None:
            graph, before, edges = self._suspended
            given = before, edges, len(before), self._mode
            self._call("cuStreamBeginCaptureToGraph", graph, *given)
            self._suspended = None
            self._stream.captured = self._captured

    def _expect_resumed(self) -> None:
        """Nothing may be enqueued, as part of no graph, where the driver did not go on."""
        if self._suspended is not None:
            raise GraphError(
                "a graph is incomplete: its capture could not be resumed",
                mend="capture it again, in another graph",
            )

    @property
    def stream(self) -> Stream | None:
        """What other libraries enqueue there becomes part of the graph; None where nothing does."""
        return None if self._is_list else self._stream

    @contextmanager
    def _enqueued(self) -> Iterator[None]:
        """What is launched in a block goes to the stream."""
        self._expect_resumed()
        token = CHOSEN.set(self._stream)
        try:
            with unwatched():
                yield
        finally:
            CHOSEN.reset(token)

    def add(self, node: KernelNode | CopyNode) -> None:
        """Enqueue it on the stream."""
        if self._is_list:
            return
        with self._enqueued():
            if isinstance(node, KernelNode) and node.is_changeable:
                launch, numbers = _bound(node)
                launch(numbers)
                is_inside = bool(self._around)
                change = Changeable(self._device, self._last(), launch, is_inside)
                self._changeable[self._position] = change
            else:
                node.run()
        self._position += 1

    def open(self, node: ConditionalNode) -> None:
        """Go on in the body of a node of the driver's."""
        self._expect_resumed()
        if not self._is_list and not has_conditionals():
            self._become_list()
        if self._is_list:
            return
        condition = Condition(self._device, node)
        with self._enqueued():
            condition.begin(self._graph())
        self.suspend()
        try:
            assert self._suspended is not None
            graph = self._suspended[0]
            made, body = condition.add_node(*self._suspended)
            self._around.append(Around(graph, made, condition))
            self._captured.commands += 1
            self._suspended = body, [], []
        finally:
            self.resume()
        self._position += 1

    def close(self) -> None:
        """Go on behind the node."""
        if self._is_list:
            return
        graph, node, condition = self._around[-1]
        with self._enqueued():
            condition.end()
        self.suspend()
        assert self._suspended is not None
        self._inside += count_nodes(self._device, self._suspended[0])
        self._around.pop()
        self._suspended = graph, [node], _edges(1)
        self.resume()

    def _become_list(self) -> None:
        """Run the nodes as they were launched, which includes those that are captured already."""
        if count_nodes(self._device, self._graph()) > self._captured.commands:
            raise GraphError(
                "a graph has a loop or a branch and work of other libraries, and the driver has no "
                "such nodes",
                mend="update the NVIDIA driver: CUDA 12.4 has them",
            )
        self.abandon()
        self._is_list = True

    def _graph(self) -> Any:
        """What is captured into now."""
        return self._call("cuStreamGetCaptureInfo")[2]

    def _last(self) -> Any:
        """The driver's node for what was enqueued last."""
        _, _, _, before, *_ = self._call("cuStreamGetCaptureInfo")
        return before[0]

    def finish(self, nodes: Sequence[Node]) -> Replay:
        """End the capture and make the graph ready."""
        if self._is_list:
            return ListReplay(nodes)
        try:
            self._expect_resumed()
        except GraphError:
            self.abandon()
            raise
        graph = self._end()
        inside = self._inside
        return CudaReplay(self._device, graph, nodes, self._captured, self._changeable, inside)

    def abandon(self) -> None:
        """End the capture and drop the graph, with all bodies."""
        if self._is_list:
            return
        graphs = [one.graph for one in self._around]
        with suppress(DriverError):  # where the driver has dropped it already
            graphs.append(self._end())
        for graph in graphs[:1]:  # the whole one
            self._device.drop("cuGraphDestroy", graph)

    def _end(self) -> Any:
        device = self._device
        device.enter()
        self._stream.captured = None
        try:
            if self._suspended is not None:
                return self._suspended[0]
            return self._call("cuStreamEndCapture")
        except DriverError as error:
            error.mend = error.mend or INVALID
            raise
        finally:
            device.recorded(self)
            if self._own is not None:
                device.drop("cuStreamDestroy", self._own)


def _edges(count: int) -> list[Any]:
    """Edges as all are, of which the binding wants one for each node that is waited for."""
    return [driver.library().CUgraphEdgeData() for _ in range(count)]


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
