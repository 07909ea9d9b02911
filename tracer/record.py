"""Records a kernel: runs its function once on proxies and gives the trace."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, FunctionType, TracebackType
from typing import Any, Final, final

from khaljit.tracer import hooks
from khaljit.tracer.calls import prepare
from khaljit.tracer.dtypes import DType
from khaljit.tracer.elements import ElementType, element_of, scalar_names
from khaljit.tracer.errors import KhaljitError, Site, TraceError, TraceWarning
from khaljit.tracer.identity import Keeper
from khaljit.tracer.ir import (
    IDS,
    ArrayParam,
    Memory,
    Options,
    ScalarParam,
    Space,
    Trace,
    Value,
    effects,
    values,
)
from khaljit.tracer.memory import Array
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar
from khaljit.tracer.recorder import Guard, Recorder, installed, is_own
from khaljit.tracer.records import dataclass
from khaljit.tracer.values import assemble
from khaljit.tracer.vectors import VectorType

__all__ = [
    "ArrayArgument",
    "ConstArgument",
    "GroupArgument",
    "Parameters",
    "Recording",
    "ScalarArgument",
    "ValueArgument",
    "passed",
    "record",
    "site_of",
]


@final
@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """An array parameter; see `ArrayParam` for the facts of the launch signature."""

    kind: ElementType
    ndim: int
    contiguous: bool = True
    aligned: bool = False
    same_shape: int | None = None  # number of an earlier array; None when there is none
    same_view: int | None = None


@final
@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A run-time number."""

    dtype: DType


@final
@dataclass(frozen=True, slots=True)
class ValueArgument:
    """A run-time vector or struct, passed as its scalars."""

    kind: VectorType | type[Any]


@final
@dataclass(frozen=True, slots=True)
class ConstArgument:
    """A value that specialises the kernel."""

    value: Any


@final
@dataclass(frozen=True, slots=True)
class GroupArgument:
    """A tuple, or a dataclass, of arguments.

    Attributes:
        make: the tuple type (``tuple`` or a NamedTuple) or the dataclass.
        names: field names of a dataclass; positions of a tuple.
        parts: the arguments inside.
    """

    make: Any
    names: tuple[str, ...]
    parts: tuple[Argument, ...]


Argument = ArrayArgument | ScalarArgument | ValueArgument | ConstArgument | GroupArgument


@final
@dataclass(frozen=True, slots=True)
class Recording:
    """A trace, and what was seen of it while it was recorded.

    Attributes:
        guards: what it depends on beyond its arguments.
        strides: the numbers of the array parameters whose strides it reads.
    """

    trace: Trace
    guards: tuple[Guard, ...]
    strides: frozenset[int]


# Ids that only a kernel with a fixed workgroup can ask for.
_OBSERVING_IDS: Final = frozenset(IDS) - {"global", "num_workgroups"}
_WHOLE_NAMES: Final = frozenset({"local_index", "num_subgroups", "subgroup_size"})


def record(
    function: FunctionType,
    arguments: Sequence[tuple[str, Argument]],
    *,
    bound: Sequence[Any] = (),
    workgroup: tuple[int, int, int] | None = None,
    options: Options | None = None,
    index_bits: int = 32,
    name: str | None = None,
    quiet: bool = False,
    keeper: Keeper | None = None,
) -> Recording:
    """Record a kernel for one launch signature.

    Args:
        function: the user's function.
        arguments: name and kind of each parameter.
        bound: host objects passed before the arguments (``self`` of a method).
        workgroup: its size; None lets the backend choose, if nothing in the kernel sees it.
        options: how to compute.
        index_bits: width of ``index``, 32 or 64.
        name: the kernel's name, for people.
        quiet: what the function prints of host values is not shown, since it will run again.
        keeper: who keeps the rewritten code of functions from one process to the next.

    Raises TraceError for what cannot be recorded.
    """
    recorder = Recorder(hooks, keeper=keeper, workgroup=workgroup, quiet=quiet)
    params = Parameters(recorder)
    with installed(recorder):
        recorder.builder.open()
        for value in bound:
            recorder.reach(value)
        proxies = [params.make(label, argument) for label, argument in arguments]
        runnable = prepare(recorder, function)
        recorder.calls.append(function)
        args, keywords = passed(function, arguments, proxies)
        _run(recorder, runnable, (*bound, *args), keywords)
        if not recorder.builder.ended:
            recorder.builder.end(Op.YIELD)
        trace = Trace(
            name or function.__name__,
            tuple(params.arrays),
            tuple(params.scalars),
            workgroup,
            index_bits,
            options or Options(),
            recorder.builder.close(),
            tuple(recorder.sites),
        )
        if workgroup is None:
            _check_unobserved(trace, recorder.builder.built)
        _warn_of_unread(recorder)
        if trace.options.debug:
            from khaljit.tracer.passes.report_bounds import report_bounds  # for debug mode

            trace = report_bounds(trace)
        strides = _strides_read(trace, recorder.builder.built)
        return Recording(trace, tuple(recorder.guards.values()), strides)


def passed(
    function: FunctionType, arguments: Sequence[tuple[str, Argument]], proxies: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a kernel's function is called with: by position, and by keyword where it has to be."""
    positional = len(proxies) - function.__code__.co_kwonlyargcount
    names = (label for label, _ in arguments[positional:])
    return tuple(proxies[:positional]), dict(zip(names, proxies[positional:], strict=True))


@final
class Parameters:
    """Makes the proxies of the parameters, and lists them as the trace has them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.arrays: list[ArrayParam] = []
        self.scalars: list[ScalarParam] = []

    def make(self, name: str, argument: Argument) -> Any:
        if isinstance(argument, ConstArgument):
            self._recorder.reach(argument.value)
            return argument.value
        if isinstance(argument, ScalarArgument):
            return self._scalar(name, argument.dtype)
        if isinstance(argument, ValueArgument):
            labels = scalar_names(argument.kind, name)
            leaves = element_of(argument.kind).leaves
            scalars = [
                self._scalar(label, dtype) for label, (_, dtype) in zip(labels, leaves, strict=True)
            ]
            return assemble(self._recorder, argument.kind, iter(scalars))
        if isinstance(argument, ArrayArgument):
            return self._array(name, argument)
        return self._group(name, argument)

    def _group(self, name: str, group: GroupArgument) -> Any:
        parts = []
        for label, part in zip(group.names, group.parts, strict=True):
            inner = f"{name}[{label}]" if label.isdigit() else f"{name}.{label}"
            parts.append(self.make(inner, part))
        make: Callable[..., Any] = group.make
        if dataclasses.is_dataclass(group.make):
            return make(**dict(zip(group.names, parts, strict=True)))
        return tuple(parts) if make is tuple else make(*parts)

    def _scalar(self, name: str, dtype: DType) -> Scalar:
        self.scalars.append(ScalarParam(name, dtype))
        value = self._recorder.builder.scalar(len(self.scalars) - 1, dtype)
        return Scalar(self._recorder, value)

    def _array(self, name: str, argument: ArrayArgument) -> Array:
        number = len(self.arrays)
        element = element_of(argument.kind)
        memory = Memory(Space.ARRAY, number, element, (None,) * argument.ndim)
        same_shape = number if argument.same_shape is None else argument.same_shape
        same_view = number if argument.same_view is None else argument.same_view
        self.arrays.append(
            ArrayParam(name, memory, argument.contiguous, argument.aligned, same_shape, same_view)
        )
        value = self._recorder.builder.memory(memory)
        return Array.whole(self._recorder, value, argument.kind, name)


def _run(
    recorder: Recorder,
    function: FunctionType,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> None:
    """Run the function; what Python reports of unset variables is explained."""
    try:
        result = function(*args, **keywords)
    except NameError as error:
        unset = _unset_variable(recorder, error)
        if unset is None:
            raise
        raise unset from None
    except RecursionError:
        raise TraceError(
            "the kernel nests too deeply to be recorded",
            mend="shorten chains of helper calls, nested branches, or loops over tuples",
        ) from None
    if result is not None and not isinstance(result, KhaljitError):
        raise TraceError(
            "a kernel returns a value",
            at=Site(function.__code__.co_filename, function.__code__.co_firstlineno),
            mend="kernels return None: store results to an array",
        )


def _unset_variable(recorder: Recorder, error: NameError) -> TraceError | None:
    """The error for a variable that was set on one path only; None for other names."""
    name = error.name or _quoted(str(error))
    if name is None or name not in recorder.unset:
        return None
    at = site_of(error.__traceback__)
    branch = recorder.unset[name]
    where = f" that begins at line {branch.line}" if branch is not None else ""
    return TraceError(
        f"{name} may have no value here: it is set on one path only of the branch or loop{where}",
        at=at,
        mend=f"give {name} a value before the branch or loop",
    )


def _quoted(text: str) -> str | None:
    parts = text.split("'")
    return parts[1] if len(parts) > 1 else None


def site_of(traceback: TracebackType | None) -> Site | None:
    found: tuple[FrameType, int] | None = None
    while traceback is not None:
        if not is_own(traceback.tb_frame):
            found = traceback.tb_frame, traceback.tb_lasti
        traceback = traceback.tb_next
    return None if found is None else Site.of_instruction(found[0].f_code, found[1])


def _warn_of_unread(recorder: Recorder) -> None:
    """A copy that is changed and never read: the kernel likely means to change what it is of."""
    for change in recorder.changes:
        if not change.read:
            site = change.at or Site("<unknown>", 0)
            message = (
                f"a part of a {change.what} is changed that nothing reads: what a name holds is a "
                f"copy, and changing it changes no array\n  mend: store to the element, as "
                f"a[i].x = ..., or store the whole again: a[i] = v"
            )
            warnings.warn_explicit(message, TraceWarning, site.file, site.line)


# What asks whether a trace holds something looks among all that was built first: most traces hold
# nothing of the kind, and that is seen without following what uses what.


def _check_unobserved(trace: Trace, built: Iterable[Value]) -> None:
    """A kernel without a fixed workgroup must not be able to see how it is grouped."""
    if not any(map(_observed, built)) and not any(map(_observed, effects(trace.body))):
        return
    for value in values(trace.body):
        what = _observed(value)
        if what is not None:
            raise TraceError(
                f"{trace.name} uses {what}, and its workgroup size is left to the backend",
                at=value.at,
                mend="fix the size: @kj.jit(workgroup=64) or workgroup=(16, 16)",
            )


def _observed(value: Value) -> str | None:
    """What of the workgroup a value depends on, if it does."""
    op, attr = value.op, value.attr
    if op is Op.ID and isinstance(attr, tuple) and attr[0] in _OBSERVING_IDS:
        return f"kj.{attr[0]}{'' if attr[0] in _WHOLE_NAMES else '_id'}"
    if op is Op.MEMORY and isinstance(attr, Memory) and attr.space is Space.SHARED:
        return "shared memory"
    if op is Op.BARRIER:
        return "a barrier"
    return "a subgroup operation" if op is Op.SUBGROUP else None


def _strides_read(trace: Trace, built: Iterable[Value]) -> frozenset[int]:
    """The numbers of the array parameters whose strides a trace reads."""
    if not any(value.op is Op.STRIDE for value in built):
        return frozenset()
    return frozenset(value.memory.number for value in values(trace.body) if value.op is Op.STRIDE)
