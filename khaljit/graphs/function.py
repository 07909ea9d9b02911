"""``@kj.graph``: host functions whose launches become a graph by themselves.

A call runs as it is written, and is watched. When a second one with the same inputs launches the
same, its launches become a graph; from then on such calls replay it. What the function sees is in
`khaljit.graphs.state`; what its kernels read is guarded as in every graph. A function that does
what no graph can hold, or that launches differently though its inputs are the same, runs as it is
written for ever, and says why once.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple, final

from khaljit.arrays import Array
from khaljit.backends.base import Device
from khaljit.dispatch import Dispatch
from khaljit.graphs.capture import EVERYWHERE, captured, is_captured
from khaljit.graphs.graph import Graph
from khaljit.graphs.nodes import ConditionalNode, CopyNode, KernelNode, Node
from khaljit.graphs.state import State, UnseenError
from khaljit.tracer.errors import ArgumentTypeError, GraphError, PerformanceWarning
from khaljit.tracer.recorder import is_own, user_site
from khaljit.tracer.records import dataclass

__all__ = ["GraphFunction", "graph"]

MOST: Final = 16  # graphs of a function, those used last
PATIENCE: Final = 32  # calls, or captures, after which it should have replayed more
_RESULTS: Final = (Array, int, float, bool, str, type(None))


def graph(function: Callable[..., Any]) -> GraphFunction:
    """Replay what a host function launches: ``@kj.graph``.

    ::

        @kj.graph
        def solve(a, b, x, y, steps):
            for _ in range(steps):
                jacobi[x.size](a, b, x, y)
                jacobi[x.size](a, b, y, x)

    The first call runs as it is written; so does the second with the same arguments, which is
    captured; later ones are replayed. Arrays are the same when they lie in the same place, numbers
    when they are equal. What it reads besides (globals, closures, attributes of arguments) is
    compared as well, and so is what its kernels read.

    The function may only launch, copy and fill; it returns None, arrays or numbers. One that reads
    an array, makes one or waits is run as it is written, with a PerformanceWarning that says why.
    ``function.graph_info()`` counts.
    """
    if not isinstance(function, FunctionType):
        raise ArgumentTypeError(
            f"@kj.graph is applied to a {type(function).__name__}",
            mend="apply it to a function that launches kernels",
        )
    return GraphFunction(function)


class Launched(NamedTuple):
    """What a node does, to be compared with another call's."""

    name: str
    code: object
    numbers: tuple[str, ...]
    grid: str
    places: tuple[object, ...]


@final
class Watch:
    """Notes what a call launches, while it runs."""

    def __init__(self) -> None:
        self.nodes: Final[list[Node]] = []
        self.trouble: GraphError | None = None
        self._scratch: Final[dict[int, int]] = {}  # buffers by number of their making

    def kernel(self, dispatch: Dispatch, label: str) -> bool:
        """Note a launch, which runs."""
        self.nodes.append(KernelNode(label, dispatch))
        return False

    def copy(self, source: Array[Any], target: Array[Any]) -> bool:
        """Note a copy, which runs."""
        self.nodes.append(CopyNode(source, target))
        return False

    @contextmanager
    def body(self, node: ConditionalNode) -> Iterator[None]:
        """Note a loop or a branch of a graph that is launched, which runs."""
        self.nodes.append(node)
        yield

    def made(self, array: Array[Any]) -> None:
        """An array that khaljit needs by the way."""
        self._scratch[id(array.buffer)] = len(self._scratch)

    def refuse(self, device: Device, what: str, mend: str) -> None:
        """Note what no graph can hold, which happens."""
        del device
        if self.trouble is None:
            self.trouble = GraphError(f"{what} in it", at=user_site(), mend=mend)

    def launched(self) -> list[Launched]:
        """All nodes, to be compared."""
        return [self._launched(node) for node in self.nodes]

    def _launched(self, node: Node) -> Launched:
        places = tuple(self._place(array) for array, _ in node.uses())
        if isinstance(node, CopyNode):
            return Launched("copy", None, (), "", places)
        if isinstance(node, ConditionalNode):
            return Launched(node.label, None, (str(node.limit), str(node.size)), "", places)
        dispatch = node.dispatch
        numbers = tuple(f"{type(one).__name__} {one!r}" for one in dispatch.numbers)
        return Launched(node.label, dispatch.loaded, numbers, str(dispatch.groups), places)

    def _place(self, array: Array[Any]) -> object:
        number = self._scratch.get(id(array.buffer))
        where: object = id(array.buffer) if number is None else f"scratch {number}"
        return where, array.offset, array.shape, array.strides


@final
@dataclass(slots=True)
class _Entry:
    """What is known of calls with some inputs.

    Attributes:
        kept: what has its identity in the key.
        launched: by the first call.
        graph: from the second call on.
    """

    kept: list[Any]
    launched: list[Launched] = field(default_factory=list)
    graph: Graph | None = None
    result: Any = None


@final
class GraphFunction:
    """A host function that is replayed; see `graph`."""

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.host_function: Final = function
        self._signature: Final = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._names: Final = [f"argument {one.name}" for one in parameters]
        plain = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)
        self._positional: Final = len(self._names) if plain else -1
        self._entries: Final[OrderedDict[object, _Entry]] = OrderedDict()
        self._counts: Final[Counter[str]] = Counter()
        self._last: dict[str, tuple[object, ...]] = {}  # the inputs of the last new key
        self._varied: Final[Counter[str]] = Counter()  # which inputs made keys new
        self._refused: str | None = None
        self._lock: Final = threading.Lock()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method's: the instance is its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<khaljit graph function {self.host_function.__qualname__}>"

    def graph_info(self) -> dict[str, int | str | None]:
        """How many calls ran as they are written and were replayed, how many graphs were captured
        and how many of them again since they held no longer, and why it is not replayed."""
        names = ("eager", "captured", "recaptured", "replayed")
        return {**{name: self._counts[name] for name in names}, "refused": self._refused}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._refused is not None or is_captured():
            self._counts["eager"] += 1
            return self.host_function(*args, **kwargs)
        try:
            state = self._state(args, kwargs)
        except UnseenError as unseen:
            self._refuse(str(unseen), "pass arrays of a device, and plain values")
            return self(*args, **kwargs)
        key = state.key
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        found = None if entry is None else entry.graph
        if entry is not None and found is not None:
            if found.holds():
                found.launch()
                self._counts["replayed"] += 1
                return entry.result
            self._counts["recaptured"] += 1
            entry = None
        return self._watched(key, state, entry, args, kwargs)

    def _state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """What a call sees."""
        state = State()
        if not kwargs and len(args) == self._positional:
            for name, value in zip(self._names, args, strict=False):
                state.enter(name, value)
        else:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name, value in bound.arguments.items():
                state.enter(f"argument {name}", value)
        state.enter("what it reads", self.host_function)
        return state

    def _watched(
        self, key: object, state: State, entry: _Entry | None, args: Any, kwargs: Any
    ) -> Any:
        """Run as it is written; remember what was launched, or make a graph of it."""
        watch = Watch()
        captured(EVERYWHERE, watch)
        try:
            result = self.host_function(*args, **kwargs)
        finally:
            captured(EVERYWHERE, None)
        self._counts["eager"] += 1
        trouble = watch.trouble or _trouble_with(result)
        if trouble is not None:
            self._refuse(str(trouble), None)
        elif entry is None:
            self._remember(key, state, watch.launched())
        else:
            self._capture(entry, watch, result)
        return result

    def _remember(self, key: object, state: State, launched: list[Launched]) -> None:
        """A call with new inputs."""
        with self._lock:
            self._entries[key] = _Entry(state.kept, launched)
            self._entries.move_to_end(key)
            while len(self._entries) > MOST:
                self._entries.popitem(last=False)
            names = state.parts.keys() | self._last.keys()
            self._varied.update(
                name for name in names if state.parts.get(name) != self._last.get(name)
            )
            self._last = dict(state.parts)
            self._counts["new"] += 1
        if self._counts["new"] >= PATIENCE and self._counts["replayed"] < self._counts["new"]:
            often = ", ".join(name for name, _ in self._varied.most_common(2))
            self._refuse(
                f"{self._counts['new']} calls had inputs that were new or had changed, and "
                f"{self._counts['replayed']} could be replayed; what differs most is {often}",
                "pass what changes in an array, or capture a graph with parameters: "
                "device.capture(), graph.param(...)",
            )

    def _capture(self, entry: _Entry, watch: Watch, result: Any) -> None:
        """A second call with the same inputs: if it launched the same, it becomes a graph."""
        difference = _difference(entry.launched, watch.launched())
        if difference:
            self._refuse(
                f"{difference}, though its inputs were the same",
                "pass what it depends on as arguments: time, random numbers and files are not seen",
            )
            return
        devices = {_device_of(node) for node in watch.nodes}
        if len(devices) != 1:
            self._refuse(f"it launches on {len(devices)} devices", "one function for each device")
            return
        made = Graph.of(devices.pop(), watch.nodes)
        entry.result, entry.graph = result, made
        self._counts["captured"] += 1

    def _refuse(self, why: str, mend: str | None) -> None:
        """Never replay it, and say why."""
        self._refused = why
        with self._lock:
            self._entries.clear()
        tail = f"\n  mend: {mend}" if mend else ""
        warnings.warn(
            f"graph function {self.host_function.__qualname__} is not replayed: {why}{tail}",
            PerformanceWarning,
            stacklevel=_frames_of_khaljit() + 1,
        )


def _frames_of_khaljit() -> int:
    """How many frames of khaljit's own the caller and those above it are."""
    frame, count = sys._getframe(1), 0
    while is_own(frame) and frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


def _trouble_with(result: Any) -> GraphError | None:
    """Why a replay could not give what a call gave."""
    parts = result if type(result) is tuple else (result,)
    for part in parts:
        if type(part) not in _RESULTS:
            return GraphError(
                f"it returns a {type(part).__name__}", mend="return None, arrays or numbers"
            )
    return None


def _difference(first: list[Launched], second: list[Launched]) -> str:
    """How two calls differ in what they launched; empty if they do not."""
    if len(first) != len(second):
        return f"it launched {len(first)} kernels in one call and {len(second)} in the next"
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        if one == other:
            continue
        if one.name != other.name:
            return f"launch {number} was of {one.name} in one call and of {other.name} in the next"
        for what, before, after in (
            ("got the numbers", one.numbers, other.numbers),
            ("had the grid", one.grid, other.grid),
        ):
            if before != after:
                return (
                    f"launch {number} (kernel {one.name}) {what} {before} in one call and {after} "
                    "in the next"
                )
        return f"launch {number} (kernel {one.name}) got other arrays or code in the next call"
    return ""


def _device_of(node: Node) -> Device:
    if isinstance(node, KernelNode):
        return node.dispatch.device
    return (node.target if isinstance(node, CopyNode) else node.flag).device
