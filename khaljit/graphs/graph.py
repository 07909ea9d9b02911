"""Graphs: launches, copies and fills that are recorded once and replayed with one call.

A graph holds what was recorded, with the sizes, addresses and numbers of that time; only its
parameters vary. It keeps alive what it uses. Before each launch it looks at what its kernels read
from outside while they were recorded: a graph that does not hold any longer says so and does not
run.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from khaljit.arrays import Array
from khaljit.backends.replay import Recorder, Replay, Spoiled
from khaljit.dispatch import Dispatch
from khaljit.graphs import text
from khaljit.graphs.capture import capture_of, captured
from khaljit.graphs.conditions import conditional
from khaljit.graphs.declared import Declarations, Declared, Value
from khaljit.graphs.launched import as_launched, filled, give, moved
from khaljit.graphs.nodes import ConditionalNode, CopyNode, KernelNode, Node
from khaljit.graphs.params import ArrayParam, ScalarParam, Slot
from khaljit.grids import Indirect
from khaljit.profiling import profile_of
from khaljit.tracer.errors import ArgumentValueError, GraphError
from khaljit.tracer.recorder import Guard, user_site

if TYPE_CHECKING:
    from khaljit.backends.base import Device

__all__ = ["Graph"]


@final
class Graph:
    """Launches, copies and fills of one device, replayed with one call; see ``device.capture``."""

    def __init__(self, device: Device) -> None:
        self.device: Final = device
        self._nodes: list[Node] = []
        self._open: Final[list[int]] = []  # loops and branches whose bodies are captured now
        self._params: Final = Declarations(device)
        self._values: dict[str, Value] = {}  # that the replay's nodes have now
        self._guards: tuple[tuple[str, Guard], ...] = ()
        self._recorder: Recorder | None = None
        self._replay: Replay | None = None
        self._missing = "it was never captured"
        self._lock = threading.Lock()
        # Whose the parameters are; not the graph, whose nodes have them.
        self._owner: Final = object()
        _ALL.add(self)

    def __repr__(self) -> str:
        return f"<khaljit graph of {len(self._nodes)} nodes on {self.device}>"

    # Capturing.

    def __enter__(self) -> Graph:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.end()
        else:
            self._abandon(f"a {kind.__name__} ended its capture")

    def begin(self) -> None:
        """Begin to capture; called by ``with`` and by ``device.begin_capture``."""
        around = capture_of(self.device)
        if isinstance(around, Graph):
            raise GraphError(
                f"a graph is captured on {self.device} while another is",
                at=user_site(),
                mend="end the first capture; a graph that is launched in a capture becomes part "
                "of it",
            )
        if around is not None:
            around.refuse(self.device, "a graph is captured", "capture it before")
        if self._replay is not None or self._nodes:
            raise GraphError("a graph is captured twice", mend="make another one: device.capture()")
        self._recorder = self.device.graph_recorder()
        captured(self.device, self)

    def end(self) -> None:
        """All is captured; called by ``with`` and by ``device.end_capture``."""
        recorder = self._recorder
        assert recorder is not None
        if self._open:
            raise GraphError(
                f"a capture ends in the body of graph.{self._nodes[self._open[-1]].label}_",
                at=user_site(),
                mend="end it behind the with statement of the body",
            )
        captured(self.device, None)
        self._recorder = None
        try:
            self._adopt(recorder.finish(self._nodes))
        except BaseException as error:
            self._missing = f"its capture failed: {error}"
            raise

    @classmethod
    def of(cls, device: Device, nodes: Sequence[Node]) -> Graph:
        """The graph of nodes that were noted elsewhere."""
        found, recorder = cls(device), device.graph_recorder()
        found._recorder = recorder
        try:
            give(nodes, found)
        except BaseException:
            recorder.abandon()
            raise
        found._recorder = None
        found._adopt(recorder.finish(found._nodes))
        return found

    def _adopt(self, replay: Replay) -> None:
        """Be the graph of the nodes, which the device made ready."""
        nodes = self._nodes
        self._replay = replay
        for position, node in enumerate(nodes):
            if not isinstance(node, KernelNode):
                continue
            for name in {one.param.name for one, _ in node.uses() if one.param is not None}:
                self._params[name].nodes.append(position)
            for index, slot in node.slots:
                self._params[slot.param.name].slots.append((position, index, slot.component))
        self._values = {one.name: one.default for one in self._params if one.default is not None}
        kernels = {id(one.dispatch.guards): one for one in nodes if isinstance(one, KernelNode)}
        self._guards = tuple(
            (node.label, guard) for node in kernels.values() for guard in node.dispatch.guards
        )

    def _abandon(self, why: str) -> None:
        recorder, self._recorder = self._recorder, None
        captured(self.device, None)
        self._missing = why
        self._nodes = []
        self._open.clear()
        if recorder is not None:
            recorder.abandon()

    def param(self, name: str, dtype: Any = None, default: Any = None) -> Any:
        """Something that each launch sets, to be passed to kernels inside the capture.

        Args:
            name: the keyword of ``launch``.
            dtype: a dtype, a vector type, or an array's annotation such as ``kj.Array1[kj.f32]``,
                which may be left out for an array.
            default: what a launch uses that gives none. For an array it is needed: launches give
                arrays of the same shape, strides and type.

        Returns:
            For an array, an array: its views belong to the parameter too. For a number, something
            that kernels and ``fill`` take in its place.
        """
        if self._recorder is None:
            raise GraphError(
                f"the parameter {name} is made outside of the graph's capture",
                mend="make it inside: with device.capture() as graph: ...",
            )
        declared = self._params.declare(name, dtype, default)
        array = declared.default
        if not isinstance(array, Array):
            return ScalarParam(self._owner, name, declared.kind)  # type: ignore[arg-type]  # no array's
        whole = array.seen_as(array.dtype, array.shape, array.strides)
        whole.param = ArrayParam(self._owner, name, array.offset)
        return whole

    def while_(self, flag: Any, *, limit: int | None = None) -> AbstractContextManager[None]:
        """A loop: what a ``with`` block launches is run again and again, as long as ``flag[0]`` is
        not zero, which the device looks at before each turn.

        ::

            with device.capture() as graph:
                with graph.while_(flag):
                    step[x.size](x, y)
                    check[1](y, flag)

        Args:
            flag: an array of this device with one element, of i32, u32 or bool.
            limit: most turns; a loop whose flag never falls runs for ever without.

        Raises:
            GraphError: the graph is not captured now.
            ArgumentError: the flag is none.
        """
        return self.body(conditional("while_", self, flag, limit))

    def if_(self, flag: Any) -> AbstractContextManager[None]:
        """A branch: what a ``with`` block launches is run if ``flag[0]`` is not zero when the
        device comes to it; arguments and errors as of `while_`."""
        return self.body(conditional("if_", self, flag, 1))

    @property
    def stream(self) -> Any:
        """While it is captured, on CUDA: the stream, for other libraries whose work shall be part
        of the graph (``torch.cuda.ExternalStream(graph.stream.handle)``)."""
        found = getattr(self._recorder, "stream", None)
        if found is None:
            raise GraphError(
                f"a graph on {self.device} has no stream now",
                mend="it has one inside its capture, on CUDA",
            )
        return found

    # What a capture takes.

    def kernel(self, dispatch: Dispatch, label: str) -> bool:
        """Note a launch."""
        numbers: Sequence[Any] = dispatch.numbers
        slots = tuple((at, one) for at, one in enumerate(numbers) if isinstance(one, Slot))
        for _, slot in slots:
            self._expect_own(slot.param)
        groups = dispatch.groups
        if isinstance(groups, Indirect) and groups.array.param is not None:
            raise GraphError(
                f"kernel {label}: the grid is read from the graph parameter "
                f"{groups.array.param.name}",
                at=user_site(),
                mend="read it from an array of the graph's own, and copy the counts there",
            )
        if slots:
            dispatch = dispatch.with_numbers(filled(numbers, slots, self._first))
        self._add(KernelNode(label, dispatch, slots))
        return True

    def copy(self, source: Array[Any], target: Array[Any]) -> bool:
        """Note a copy of bytes."""
        self._add(CopyNode(source, target))
        return True

    @contextmanager
    def body(self, node: ConditionalNode) -> Iterator[None]:
        """Note a loop or a branch, and in the block its body."""
        assert self._recorder is not None
        self._recorder.open(node)
        at = len(self._nodes)
        self._open.append(at)
        self._nodes.append(node)
        try:
            yield
            self._nodes[at] = dataclasses.replace(node, size=len(self._nodes) - at - 1)
            self._recorder.close()
        except BaseException as error:
            self._recorder.abandon()
            why = f"a {type(error).__name__} ended the body of its graph.{node.label}_"
            self._recorder = Spoiled(why)
            raise
        finally:
            self._open.pop()

    def made(self, array: Array[Any]) -> None:
        """The nodes that use it keep it."""

    def refuse(self, device: Device, what: str, mend: str) -> NoReturn:
        """No graph can hold it."""
        raise GraphError(f"{what} while a graph is captured on {device}", at=user_site(), mend=mend)

    def _add(self, node: KernelNode | CopyNode) -> None:
        recorder = self._recorder
        assert recorder is not None
        for array, _ in node.uses():
            if array.param is not None:
                self._expect_own(array.param)
        recorder.add(node)
        self._nodes.append(node)

    def _expect_own(self, param: ScalarParam | ArrayParam) -> None:
        if param.owner is not self._owner:
            raise GraphError(
                f"the parameter {param.name} belongs to another graph",
                at=user_site(),
                mend="make one of this graph: graph.param(...)",
            )

    def _first(self, slot: Slot) -> Any:
        """The number that a node is captured with."""
        default = self._params[slot.param.name].default
        return default[slot.component] if isinstance(default, tuple) else 0

    # Launching.

    def launch(self, repeat: int = 1, **values: Any) -> None:
        """Run all that was captured, in order, ``repeat`` times; enqueued as launches are.

        Args:
            values: of parameters; those left out have their defaults.

        Raises:
            GraphError: the graph was not captured, or does not hold any longer.
            ArgumentError: a value does not fit its parameter.
        """
        replay = self._replay
        if replay is None:
            raise GraphError(
                f"a graph is launched that holds nothing: {self._missing}",
                at=user_site(),
                mend="capture it: with device.capture() as graph: ...",
            )
        if type(repeat) is not int or repeat < 0:
            raise ArgumentValueError(
                f"a graph is launched with repeat={repeat!r}", mend="repeat is an int, 0 or more"
            )
        if capture_of(self.device) is not None and self._inline(replay, repeat, values):
            return
        self._expect_holds()
        with self._lock:
            if self._params or values:
                self._set(replay, values)
            profile = profile_of(self.device)
            if profile is None:
                replay.launch(repeat)
                return
            with profile.timed("graph"):
                replay.launch(repeat)

    def holds(self) -> bool:
        """Whether all is still as it was captured."""
        return all(guard.holds() for _, guard in self._guards)

    def _expect_holds(self) -> None:
        for kernel, guard in self._guards:
            if not guard.holds():
                raise GraphError(
                    f"kernel {kernel} reads {guard.name}, which is not what it was when the graph "
                    "was captured",
                    at=user_site(),
                    mend="capture the graph again, or pass the value as graph.param(...)",
                )

    def _set(self, replay: Replay, values: Mapping[str, Any]) -> None:
        """Let the nodes have the values of a launch."""
        wanted = self._params.read(values)
        changed = [one for one in self._params if not self._has(one, wanted[one.name])]
        if not changed:
            return
        arrays = {name: one for name, one in wanted.items() if isinstance(one, Array)}
        positions = {at for one in changed for at in one.nodes}
        changes = [(at, moved(self._nodes[at], arrays)) for at in sorted(positions)]
        self._values = {}  # should the device refuse one of them, all are set anew the next time
        for position, node in changes:
            self._nodes[position] = node
            replay.update(position, node)
        for one in changed:
            value = wanted[one.name]
            if one.slots and isinstance(value, tuple):
                replay.set_numbers(one.slots, value, one.bits(value))
        self._values = wanted

    def _has(self, param: Declared, value: Value) -> bool:
        """Whether a parameter has a value already."""
        return param.is_same(value, self._values.get(param.name))

    def _inline(self, replay: Replay, repeat: int, values: Mapping[str, Any]) -> bool:
        """Become part of what is captured around; whether nothing is to run now."""
        around = capture_of(self.device)
        assert around is not None
        self._expect_holds()
        if replay.foreign:
            around.refuse(
                self.device,
                "a graph that holds work of other libraries is launched",
                "capture that work in one graph",
            )
        wanted = self._params.read(values)
        nodes = [as_launched(node, wanted) for node in self._nodes]
        give(nodes * repeat, around)
        return isinstance(around, Graph)

    # Looking.

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What was captured, in order."""
        return tuple(self._nodes)

    def summary(self) -> str:
        """Nodes, parameters and memory as text, a node a line."""
        facts = {} if self._replay is None else self._replay.facts()
        return text.summary(self.device, self._nodes, self._params, facts)

    def dot(self) -> str:
        """The graph in DOT, for Graphviz: edges say which node must come after which."""
        return text.dot(self._nodes)

    def _repr_html_(self) -> str:
        return text.html(self.summary())


_ALL: Final[weakref.WeakSet[Graph]] = weakref.WeakSet()


def _after_fork() -> None:
    """A child has no thread that would release a lock."""
    for graph in list(_ALL):
        graph._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # systems with fork
    os.register_at_fork(after_in_child=_after_fork)
