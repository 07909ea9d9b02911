"""Graphs: launches, copies and fills that are recorded once and replayed with one call.

A graph holds what was recorded, with the sizes, addresses and numbers of that time; only its
parameters vary. It keeps alive what it uses. Before each launch it looks at what its kernels read
from outside while they were recorded: a graph that does not hold any longer says so and does not
run.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from khaljit.annotations import Annotation, ArrayOf, parse
from khaljit.arguments import Parameters
from khaljit.arrays import Array
from khaljit.backends.replay import Recorder, Replay
from khaljit.dispatch import Dispatch
from khaljit.graphs import text
from khaljit.graphs.capture import capture_of, captured
from khaljit.graphs.nodes import CopyNode, KernelNode, Node, rebound, views_of
from khaljit.graphs.params import ArrayParam, ScalarParam, Slot
from khaljit.grids import Indirect
from khaljit.jit import check_operands
from khaljit.profiling import profile_of
from khaljit.tracer.build import to_bits
from khaljit.tracer.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    GraphError,
)
from khaljit.tracer.recorder import Guard, user_site
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.base import Device

__all__ = ["Graph"]

Numbers = tuple[Any, ...]  # Python numbers, or slots of a graph that is captured around


@final
@dataclass(slots=True)
class _Declared:
    """A parameter of a graph.

    Attributes:
        default: numbers, or an array; None where every launch gives it.
        nodes: the positions of the nodes that use it.
        slots: of a number its places: a node, among that node's numbers, which component.
    """

    name: str
    kind: Annotation
    reader: Parameters
    default: Numbers | Array[Any] | None
    nodes: list[int] = field(default_factory=list)
    slots: list[tuple[int, int, int]] = field(default_factory=list)

    def read(self, value: Any) -> Numbers | Array[Any]:
        """A value that `Graph.launch` got."""
        call = self.reader.read((value,))
        return value if isinstance(self.kind, ArrayOf) else tuple(call.numbers)


@final
class Graph:
    """Launches, copies and fills of one device, replayed with one call; see ``device.capture``."""

    def __init__(self, device: Device) -> None:
        self.device: Final = device
        self._nodes: list[Node] = []
        self._params: Final[dict[str, _Declared]] = {}
        self._values: dict[str, Numbers | Array[Any]] = {}  # that the replay's nodes have now
        self._guards: tuple[tuple[str, Guard], ...] = ()
        self._recorder: Recorder | None = None
        self._replay: Replay | None = None
        self._missing = "it was never captured"
        self._lock = threading.Lock()
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
        captured(self.device, None)
        self._recorder = None
        try:
            self._adopt(self._nodes, recorder.finish())
        except BaseException as error:
            self._missing = f"its capture failed: {error}"
            raise

    @classmethod
    def of(cls, device: Device, nodes: Sequence[Node]) -> Graph:
        """The graph of nodes that were noted elsewhere."""
        recorder = device.graph_recorder()
        try:
            for node in nodes:
                recorder.add(node)
        except BaseException:
            recorder.abandon()
            raise
        found = cls(device)
        found._adopt(nodes, recorder.finish())
        return found

    def _adopt(self, nodes: Sequence[Node], replay: Replay) -> None:
        """Be the graph of some nodes, which a device made ready."""
        self._nodes = list(nodes)
        self._replay = replay
        for position, node in enumerate(nodes):
            for array, _ in node.uses():
                if array.param is not None and position not in self._params[array.param.name].nodes:
                    self._params[array.param.name].nodes.append(position)
            for index, slot in node.slots if isinstance(node, KernelNode) else ():
                self._params[slot.param.name].slots.append((position, index, slot.component))
        self._values = {
            name: one.default for name, one in self._params.items() if one.default is not None
        }
        kernels = {id(one.dispatch.guards): one for one in nodes if isinstance(one, KernelNode)}
        self._guards = tuple(
            (node.label, guard) for node in kernels.values() for guard in node.dispatch.guards
        )

    def _abandon(self, why: str) -> None:
        recorder, self._recorder = self._recorder, None
        captured(self.device, None)
        self._missing = why
        self._nodes = []
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
        if not name.isidentifier() or name in ("self", "repeat") or name in self._params:
            raise ArgumentValueError(
                f"a graph's parameter cannot be called {name!r}"
                + (": there is one already" if name in self._params else ""),
                mend="names of parameters are Python's, each differs, and repeat is taken",
            )
        if isinstance(default, Array):
            return self._array_param(name, dtype, default)
        kind = None if dtype is None else parse(dtype, f"graph parameter {name}")
        if kind is None or isinstance(kind, ArrayOf):
            raise ArgumentTypeError(
                f"the graph parameter {name} has neither the type of a number nor an array",
                mend="graph.param(name, kj.f32, default=0.5), or default= an array of the device",
            )
        reader = self._reader(name, kind)
        value = None if default is None else tuple(reader.read((default,)).numbers)
        self._params[name] = _Declared(name, kind, reader, value)
        return ScalarParam(self, name, kind)  # type: ignore[arg-type]  # checked by the reader

    def _array_param(self, name: str, dtype: Any, default: Array[Any]) -> Array[Any]:
        whole = ArrayOf(default.dtype, default.ndim)
        kind = whole if dtype is None else parse(dtype, f"graph parameter {name}")
        if not isinstance(kind, ArrayOf):
            kind = ArrayOf(kind, default.ndim)  # type: ignore[arg-type]  # the reader checks it
        self._reader(name, kind).read((default,))
        if default.device is not self.device:
            raise ArgumentValueError(
                f"the graph parameter {name} is on {default.device}, and the graph on "
                f"{self.device}",
                mend="give an array of the graph's device",
            )
        self._params[name] = _Declared(name, whole, self._reader(name, whole), default)
        param = ArrayParam(self, name, default.offset)
        return Array(
            self.device,
            default.buffer,
            default.dtype,
            default.shape,
            default.strides,
            default.offset,
            param,
        )

    def _reader(self, name: str, kind: Annotation) -> Parameters:
        one = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        return Parameters("", [one], [kind], subject="graph")

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
            dispatch = dispatch.with_numbers(_filled(numbers, slots, self._first))
        self._add(KernelNode(label, dispatch, slots))
        return True

    def copy(self, source: Array[Any], target: Array[Any]) -> bool:
        """Note a copy of bytes."""
        self._add(CopyNode(source, target))
        return True

    def made(self, array: Array[Any]) -> None:
        """The nodes that use it keep it."""

    def refuse(self, device: Device, what: str, mend: str) -> NoReturn:
        """No graph can hold it."""
        raise GraphError(f"{what} while a graph is captured on {device}", at=user_site(), mend=mend)

    def _add(self, node: Node) -> None:
        recorder = self._recorder
        assert recorder is not None
        for array, _ in node.uses():
            if array.param is not None:
                self._expect_own(array.param)
        recorder.add(node)
        self._nodes.append(node)

    def _expect_own(self, param: ScalarParam | ArrayParam) -> None:
        if param.graph is not self:
            raise GraphError(
                f"the parameter {param.name} belongs to another graph",
                at=user_site(),
                mend="make one of this graph: graph.param(...)",
            )

    def _first(self, slot: Slot) -> Any:
        """The number that a node is captured with."""
        default = self._params[slot.param.name].default
        return 0 if default is None else default[slot.component]

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
        wanted = self._read(values)
        changed = [name for name, value in wanted.items() if not self._has(name, value)]
        if not changed:
            return
        arrays = {name: one for name, one in wanted.items() if isinstance(one, Array)}
        positions = {at for name in changed if name in arrays for at in self._params[name].nodes}
        moved = [(at, _moved(self._nodes[at], arrays)) for at in sorted(positions)]
        self._values = {}  # should the device refuse one of them, all are set anew the next time
        for position, node in moved:
            self._nodes[position] = node
            replay.update(position, node)
        for name in changed:
            if name not in arrays:
                self._set_numbers(replay, name, wanted[name])
        self._values = wanted

    def _set_numbers(self, replay: Replay, name: str, numbers: Any) -> None:
        param, bits = self._params[name], self._bits(name, numbers)
        for position, index, component in param.slots:
            dispatch = self._nodes[position].dispatch  # type: ignore[union-attr]  # a kernel's
            dispatch.numbers[index] = numbers[component]  # type: ignore[index]  # a list, of its own
            replay.set_number(position, index, bits[component])

    def _has(self, name: str, value: Numbers | Array[Any]) -> bool:
        """Whether a parameter has a value already."""
        now = self._values.get(name)
        if isinstance(value, Array) or now is None or isinstance(now, Array):
            return now is value
        return self._bits(name, now) == self._bits(name, value)

    def _bits(self, name: str, numbers: Numbers) -> list[int]:
        kind: Any = self._params[name].kind
        dtype = getattr(kind, "dtype", kind)
        return [to_bits(dtype, number) for number in numbers]

    def _read(self, values: Mapping[str, Any]) -> dict[str, Numbers | Array[Any]]:
        """The values of all parameters at a launch."""
        unknown = set(values) - set(self._params)
        if unknown:
            raise ArgumentTypeError(
                f"the graph has no parameter {', '.join(sorted(unknown))}",
                mend=f"its parameters are {', '.join(self._params)}"
                if self._params
                else "make it in the capture: graph.param(name, dtype)",
            )
        found: dict[str, Numbers | Array[Any]] = {}
        for name, param in self._params.items():
            if name in values:
                value = param.read(values[name])
                if isinstance(value, Array):
                    assert isinstance(param.default, Array)
                    _expect_alike(name, value, param.default)
            elif param.default is not None:
                value = param.default
            else:
                raise ArgumentTypeError(
                    f"the graph's parameter {name} has no default and is not given",
                    mend=f"graph.launch({name}=...)",
                )
            found[name] = value
        return found

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
        wanted = self._read(values)
        nodes = [self._as_launched(node, wanted) for node in self._nodes]
        taken = isinstance(around, Graph)
        for node in nodes * repeat:
            if isinstance(node, CopyNode):
                around.copy(node.source, node.target)
            else:
                around.kernel(node.dispatch, node.label)
        return taken

    @staticmethod
    def _as_launched(node: Node, values: Mapping[str, Any]) -> Node:
        """A node with the values of a launch, which are no parameters of this graph any more."""
        arrays = {name: one for name, one in values.items() if isinstance(one, Array)}
        made = _moved(node, arrays, keep=False)
        if isinstance(made, KernelNode) and made.slots:
            numbers = _filled(
                made.dispatch.numbers,
                made.slots,
                lambda slot: values[slot.param.name][slot.component],
            )
            return KernelNode(made.label, made.dispatch.with_numbers(numbers))
        return made

    # Looking.

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What was captured, in order."""
        return tuple(self._nodes)

    def summary(self) -> str:
        """Nodes, parameters and memory as text, a node a line."""
        facts = {} if self._replay is None else self._replay.facts()
        return text.summary(self.device, self._nodes, dict(self._shown()), facts)

    def dot(self) -> str:
        """The graph in DOT, for Graphviz: edges say which node must come after which."""
        return text.dot(self._nodes)

    def _repr_html_(self) -> str:
        return text.html(self.summary())

    def _shown(self) -> Iterator[tuple[str, str]]:
        for name, param in self._params.items():
            default = param.default
            if isinstance(default, tuple):
                shown = default[0] if len(default) == 1 else default
                yield name, f"{param.kind!r} = {shown!r}"
            else:
                yield name, f"{param.kind!r}" if default is None else repr(default)


_ALL: Final[weakref.WeakSet[Graph]] = weakref.WeakSet()


def _after_fork() -> None:
    """A child has no thread that would release a lock."""
    for graph in list(_ALL):
        graph._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # systems with fork
    os.register_at_fork(after_in_child=_after_fork)


def _filled(numbers: Sequence[Any], slots: Sequence[tuple[int, Slot]], value: Any) -> list[Any]:
    """Numbers with those of parameters in their places."""
    found = list(numbers)
    for position, slot in slots:
        found[position] = value(slot)
    return found


def _moved(node: Node, arrays: Mapping[str, Array[Any]], keep: bool = True) -> Node:
    """A node with other arrays for its parameters, if its code is right for them."""
    made = rebound(node, arrays, keep)
    if isinstance(made, KernelNode) and isinstance(node, KernelNode):
        dispatch = made.dispatch
        check_operands(dispatch.kernel, dispatch.operands, dispatch.written)
        if views_of(made) != views_of(node):
            raise ArgumentValueError(
                f"kernel {dispatch.kernel}: arrays of this launch of the graph are the same view "
                "that were not when it was captured, or the other way round",
                mend="capture another graph for that case",
            )
    return made


def _expect_alike(name: str, value: Array[Any], default: Array[Any]) -> None:
    """An array can stand in for another one: the code was chosen for it."""
    if value.device is not default.device:
        what = f"is on {value.device}, and the graph on {default.device}"
    elif (value.shape, value.strides) != (default.shape, default.strides):
        what = (
            f"has shape {value.shape} and strides {value.strides}, and the graph was captured "
            f"with {default.shape} and {default.strides}"
        )
    elif value.address % 16 and not default.address % 16:
        what = "does not begin at a multiple of 16 bytes, as the captured one does"
    else:
        return
    raise ArgumentValueError(
        f"the array for the graph's parameter {name} {what}",
        mend="give an array like the default, or capture a graph for this one",
    )
