"""The state of one recording: the builder, who is being traced, and what was read on the way.

One recording runs in one thread and one context; `current` finds it. Nothing here is shared
between recordings.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CellType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.ir import Element, Memory, Space, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.tracer.flow import Construct
    from khaljit.tracer.frames import Frame
    from khaljit.tracer.identity import Keeper

__all__ = [
    "Attribute",
    "Cell",
    "Change",
    "Guard",
    "Item",
    "Recorder",
    "current",
    "installed",
    "recording",
    "user_frame",
    "user_site",
]

MAX_OPERATIONS: Final = 500_000


def is_own(frame: FrameType) -> bool:
    """Whether a frame runs khaljit's code, so that errors point at the user's line above it."""
    name = frame.f_globals.get("__name__", "")
    return (name == "khaljit" or name.startswith("khaljit.")) and not (
        frame.f_code.co_filename.startswith("<doctest")
    )


def user_frame() -> FrameType | None:
    """The innermost frame that is not khaljit's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back
    return frame


def user_site() -> Site | None:
    """The place in the user's source that is being executed."""
    frame = user_frame()
    return None if frame is None else Site.of_instruction(frame.f_code, frame.f_lasti)


# Where something is read from outside, for those who read it without calling.


@final
@dataclass(frozen=True, slots=True)
class Item:
    """An item of a dict; None where it is missing."""

    owner: dict[Any, Any]
    name: object

    def __call__(self) -> object:
        return self.owner.get(self.name)


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """What a closure's cell holds; ValueError where it is empty."""

    owner: CellType

    def __call__(self) -> object:
        return self.owner.cell_contents


@final
@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an object; None where it is missing."""

    owner: object
    name: str

    def __call__(self) -> object:
        return getattr(self.owner, self.name, None)


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """Something read from outside the kernel while tracing.

    ``read()`` reads it again; while it gives the very same object or an equal plain value, the
    recording still holds. ``name`` is how the user calls it.
    """

    name: str
    read: Callable[[], object]
    seen: object

    def holds(self) -> bool:
        found = self.read()
        return found is self.seen or _equal(found, self.seen)


def _equal(a: object, b: object) -> bool:
    """Whether two objects are one plain value: numbers and text made anew at each reading."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(x is y or _equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float | complex | np.generic):
        return repr(a) == repr(b)  # tells 0.0 from -0.0, and takes NaN for itself
    return isinstance(a, int | str | bytes | np.dtype) and a == b


@final
@dataclass(slots=True)
class Change:
    """A part of a name's value was changed; ``read`` when anything of it was used after."""

    what: str
    at: Site | None
    read: bool = False


_CONTAINERS: Final = (list, dict, set, deque)
# Special methods that Python calls without a hook's knowledge.
_OPERATORS: Final = {
    *({*dir(int), *dir(list)} - {*dir(object), "__getitem__", "__len__"}),
    *("__matmul__", "__rmatmul__", "__lt__", "__le__", "__gt__", "__ge__"),
}


_BY_PYTHON: Final = 1 << 9  # of a class's flags; functions and modules are none of such a class


def _has_operators(kind: type) -> bool:
    """Whether a class of the user's has operators of its own, which run without hooks."""
    return (
        kind.__flags__ & _BY_PYTHON != 0
        and kind.__module__.partition(".")[0] not in ("khaljit", "numpy")
        and any(
            name.startswith("__") and isinstance(getattr(kind, name, None), FunctionType)
            for name in _OPERATORS
        )
    )


def _guarded_whole(value: object) -> bool:
    """Whether what is read of an object from outside is not seen to be read."""
    return isinstance(value, _CONTAINERS) or (
        hasattr(value, "__dict__") and _has_operators(type(value))
    )


def _contents(value: Any) -> tuple[object, ...]:
    if not isinstance(value, _CONTAINERS):
        value = vars(value)
    if isinstance(value, dict):
        return (*value, *value.values())
    return tuple(value)


def _unchanged(container: object, contents: tuple[object, ...]) -> bool:
    """Whether a captured container or object still holds the very same items."""
    now = _contents(container)
    return len(now) == len(contents) and all(map(operator.is_, now, contents))


class Recorder:
    """What a recording knows.

    Attributes:
        hooks: the module that rewritten source calls.
        keeper: who keeps rewritten source from one process to the next, if somebody does.
        builder: makes the trace's values and regions.
        calls: the functions being traced, outermost first.
        guards: what was read from outside, by what it is.
        constructs: open control-flow constructs of the rewritten source, innermost last.
        frames: open recorded loops, innermost last.
        jump: the construct and kind that a pending jump of the host's control flow unwinds to.
        counts: number of shared, local and table memories so far, and by dtype the number of the
            shared memory that collectives of a workgroup speak through.
        outside: objects that were read from outside, by id; those made while tracing are not.
        sites: places in the source that notes point into.
        formatted: run-time values that an f-string asked for a text, with their formats.
        changes: copies of which a part was changed.
        quiet: prints of host values are not shown.
        unset: where a variable was left without a value on some path, by name.
        unsettled: a loop variable of no settled type met a type that its default would not have
            given way to, so that its loop must be recorded again.
    """

    steps = False  # kernels are run as they are, by a recorder of their own kind

    def __init__(
        self,
        hooks: ModuleType,
        builder: Builder | None = None,
        *,
        keeper: Keeper | None = None,
        workgroup: tuple[int, int, int] | None = None,
        quiet: bool = False,
    ) -> None:
        self.hooks: Final = hooks
        self.keeper: Final = keeper
        self.builder: Final = builder or Builder()
        self.calls: list[FunctionType] = []
        self.guards: dict[tuple[object, ...], Guard] = {}
        self.constructs: list[Construct] = []
        self.frames: list[Frame] = []
        self.jump: tuple[Construct, str] | None = None
        self.counts: dict[Space | DType, int] = {}
        self.outside: dict[int, object] = {}
        self.sites: list[Site] = []
        self.formatted: list[tuple[object, str]] = []
        self.changes: list[Change] = []
        self.unset: dict[str, Site | None] = {}
        self.workgroup: Final = workgroup
        self.quiet: Final = quiet
        self.operations = 0
        self.unsettled = False
        self.finished = False

    def mark(self) -> None:
        """Give what is built next the place in the user's source being executed."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and is_own(frame):
            frame = frame.f_back
        if frame is not None:
            self.builder.at = Site.of_instruction(frame.f_code, frame.f_lasti)
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise TraceError(
                f"the kernel has recorded more than {MAX_OPERATIONS} operations",
                at=user_site(),
                mend="loop with `for ... in range(...)`, which records the body once; kj.unroll, "
                "loops over tuples, and `while` on what is known now, as `while True`, repeat it",
            )

    def known(self, value: Value) -> Any:
        """The number of a value as a NumPy scalar, where kernels are run as they are; else None."""
        del value
        return None

    def items(self, items: Iterable[Any]) -> tuple[Any, ...]:
        """What a fixed array of a struct is read as."""
        return tuple(items)

    def assign(self, value: object) -> None:
        """Assign to a part of a vector or struct, in code that was not rewritten."""
        del value
        raise TraceError(
            "a part of a vector or struct is assigned where khaljit cannot read the source",
            at=user_site(),
            mend="make a new one: v = kj.vec3(x, v.y, v.z)",
        )

    def note_site(self) -> int:
        """Enter the current place into the table of sites; gives its position."""
        site = user_site() or Site("<unknown>", 0)
        if site in self.sites:
            return self.sites.index(site)
        self.sites.append(site)
        return len(self.sites) - 1

    def when(self, condition: Value, build: Callable[[], None]) -> None:
        """Record what happens under a condition; ``build`` records it, and gives no values."""
        builder = self.builder
        builder.open()
        build()
        builder.end(Op.YIELD)
        then = builder.close()
        builder.open()
        builder.end(Op.YIELD)
        builder.if_(condition, then, builder.close())

    def declare(
        self, space: Space, element: Element, shape: tuple[int, ...], data: bytes | None = None
    ) -> Value:
        """A new shared or local memory, or the table with this data."""
        number = self.counts.get(space, 0)
        self.counts[space] = number + 1
        return self.builder.memory(Memory(space, number, element, shape, data))

    def scratch(self, dtype: DType, count: int) -> Value:
        """Shared memory with an element per invocation of a workgroup: one for all uses."""
        if dtype not in self.counts:
            self.counts[dtype] = self.counts.get(Space.SHARED, 0)
            return self.declare(Space.SHARED, Element.scalar(dtype), (count,))
        memory = Memory(Space.SHARED, self.counts[dtype], Element.scalar(dtype), (count,))
        return self.builder.memory(memory)

    def changed(self, before: Change | None, what: str) -> Change:
        """Remember that a part of a value is changed, whose last change nobody may have read."""
        if before is not None and not before.read:
            return before
        self.changes.append(Change(what, user_site()))
        return self.changes[-1]

    def guard(self, key: tuple[object, ...], name: str, read: Callable[[], object]) -> object:
        """Read something from outside and remember what it was."""
        found = self.guards.get(key)
        if found is None:
            found = self.guards[key] = Guard(name, read, read())
            self.reach(found.seen)
        return found.seen

    def reach(self, value: object) -> None:
        """Remember that an object came from outside, so that what is read of it is guarded.

        Containers, and objects with operators of their own, are guarded as a whole, since not
        every way of reading one passes a hook.
        """
        pending = [value]
        while pending:
            one = pending.pop()
            if id(one) in self.outside:
                continue
            self.outside[id(one)] = one
            contents_of = getattr(type(one), "__kj_bytes__", None)
            if contents_of is not None:  # a vector or struct of the host
                read = functools.partial(contents_of, one)
                self.guards["items", id(one)] = Guard(f"a {type(one).__name__}", read, read())
            elif _guarded_whole(one):
                contents = _contents(one)
                key, read = ("items", id(one)), functools.partial(_unchanged, one, contents)
                self.guards[key] = Guard(f"a captured {type(one).__name__}", read, True)
                pending += contents
            elif isinstance(one, tuple):
                pending += one
            elif isinstance(one, functools.partial):
                pending += (one.func, *one.args, *one.keywords.values())

    @property
    def in_traced_flow(self) -> bool:
        """Whether what runs now stands under a recorded branch or loop."""
        return any(construct.traced for construct in self.constructs)


_CURRENT: Final[ContextVar[Recorder | None]] = ContextVar("khaljit_recorder", default=None)


@contextmanager
def installed(recorder: Recorder) -> Iterator[None]:
    """Make a recorder the one of this context, until its recording ends."""
    token = _CURRENT.set(recorder)
    try:
        yield
    finally:
        recorder.finished = True
        _CURRENT.reset(token)


def recording() -> Recorder | None:
    """The recording that runs in this context, if one does."""
    return _CURRENT.get()


def current(what: str) -> Recorder:
    """The running recording; a TraceError that names ``what`` when there is none."""
    recorder = _CURRENT.get()
    if recorder is None:
        raise TraceError(
            f"{what} has a meaning only inside a kernel that is being recorded",
            at=user_site(),
            mend="call it in a function decorated with @kj.jit, or in a function that one calls",
        )
    return recorder
