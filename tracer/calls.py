"""Calls and attributes in a kernel: through the user's code, to what a host function means, guarded
where something from outside the kernel is read."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from khaljit.tracer import advice, host
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import TraceError
from khaljit.tracer.intrinsics.storage import guard_contents
from khaljit.tracer.memory import Array
from khaljit.tracer.proxy import Scalar, Vector, describe, fail, is_proxy
from khaljit.tracer.recorder import Attribute, Cell, Item, Recorder, current, user_site
from khaljit.tracer.rewrite import is_rewritten, rewrite
from khaljit.tracer.state import UNSET

__all__ = [
    "NUMBERS",
    "attribute",
    "call",
    "has_proxy",
    "here",
    "is_library",
    "prepare",
    "refuse_mutation",
    "traced",
]

NUMBERS: Final = frozenset({Scalar, Vector, bool, float, int})  # have no operators of the user's


def here() -> Recorder:
    """The recording that a rewritten function runs in."""
    return current("a rewritten function")


# Attributes.


def attribute(owner: Any, name: str) -> Any:
    """``owner.name``; what is read from outside the kernel is guarded."""
    if not isinstance(owner, ModuleType) and not is_proxy(owner):
        getter = getattr(type(owner), name, None)
        if isinstance(getter, property) and isinstance(getter.fget, FunctionType):
            return _call_function(getter.fget, (owner,), {})
    try:
        value = getattr(owner, name)
    except AttributeError:
        if not isinstance(owner, ModuleType):
            raise
        import difflib  # for those who misspell

        other = advice.of_name(name) if owner.__name__ == "khaljit" else None
        close = difflib.get_close_matches(name, dir(owner), 1)
        mend = f"did you mean {owner.__name__}.{close[0]}?" if close else None
        mend = f"write {other}" if other else mend
        message = f"module {owner.__name__!r} has no attribute {name!r}"
        raise TraceError(message, at=user_site(), mend=mend) from None
    if is_proxy(owner) or isinstance(owner, DType | np.generic | Enum):
        return value
    if isinstance(owner, ModuleType) and is_library(owner.__name__):
        return value
    recorder = here()
    if id(owner) not in recorder.outside:
        return value
    if isinstance(owner, np.ndarray) and name not in _DESCRIPTIONS:
        guard_contents(recorder, owner)
    elif not isinstance(value, MethodType | BuiltinMethodType):
        key = ("attribute", id(owner), name)
        recorder.guard(key, f"attribute {name!r}", Attribute(owner, name))
    return value


# What is read of a captured array without looking at its elements.
_DESCRIPTIONS: Final = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size"})


def _getattr(owner: Any, name: str, *default: Any) -> Any:
    if default and not _hasattr(owner, name):
        return default[0]
    return attribute(owner, name)


def _hasattr(owner: Any, name: str) -> bool:
    recorder = here()
    if id(owner) not in recorder.outside:
        return hasattr(owner, name)
    read = functools.partial(hasattr, owner, name)
    return bool(recorder.guard(("hasattr", id(owner), name), f"attribute {name!r}", read))


def _len(owner: Any) -> Any:
    length = traced(owner, "__len__")
    return host.ALWAYS[len](owner) if length is NotImplemented else length


def _abs(x: Any) -> Any:
    found = NotImplemented if type(x) in NUMBERS else traced(x, "__abs__")
    if found is not NotImplemented:
        return found
    return host.TABLE[abs](x) if is_proxy(x) else abs(x)


# Calls.


def traced(owner: Any, name: str, *args: Any) -> Any:
    """A method called on an object of the user's class; NotImplemented where that has none."""
    method = getattr(type(owner), name, None)
    if isinstance(method, FunctionType) and not is_library(method.__module__ or ""):
        return _call_function(method, (owner, *args), {})
    return NotImplemented


def is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in ("khaljit", "numpy") or root in sys.stdlib_module_names


_PASSING: Final = frozenset({GeneratorType, map, zip, filter})  # can be looked through once

# Functions that read from an object, which may be one from outside.
_READING: Final[dict[object, Callable[..., Any]]] = {
    getattr: _getattr,
    hasattr: _hasattr,
    len: _len,
    abs: _abs,
}


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``: traced through when it is the user's."""
    try:
        always = _READING.get(function) or host.ALWAYS.get(function)
        mapped = always or host.TABLE.get(function)
    except TypeError:  # not hashable
        always = mapped = None
    if always is not None:
        return always(*args, **kwargs)
    if mapped is not None and len(args) == 1 and type(args[0]) in _PASSING:
        args = (tuple(args[0]),)
    if mapped is not None and has_proxy(args):
        return mapped(*args, **kwargs)
    if isinstance(function, FunctionType):
        return _call_function(function, args, kwargs)
    if isinstance(function, MethodType):
        return call(function.__func__, function.__self__, *args, **kwargs)
    if isinstance(function, functools._lru_cache_wrapper):
        return call(function.__wrapped__, *args, **kwargs)  # what it remembers may be outdated
    if isinstance(function, functools.partial):
        return call(function.func, *function.args, *args, **{**function.keywords, **kwargs})
    if isinstance(function, BuiltinMethodType):
        if function.__name__ in _MUTATORS and isinstance(function.__self__, list | dict | set):
            refuse_mutation(function.__self__)
        _refuse_foreign(function, args)
        return function(*args, **kwargs)
    if is_proxy(function):
        fail(f"{describe(function)} is called", "index it with brackets: a[i]")
    inline = getattr(function, "__kj_inline__", None)
    if inline is not None:
        return call(inline(), *args, **kwargs)
    method = vars(type(function)).get("__call__")
    if isinstance(method, FunctionType) and not is_library(type(function).__module__):
        return _call_function(method, (function, *args), kwargs)
    _refuse_foreign(function, args)
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        _refuse_misfit(error, function)
        raise


def has_proxy(args: tuple[Any, ...]) -> bool:
    return any(
        is_proxy(arg) or (isinstance(arg, tuple | list) and any(map(is_proxy, arg))) for arg in args
    )


def _refuse_foreign(function: Any, args: tuple[Any, ...]) -> None:
    """A library function that knows nothing of run-time values; what it reads is guarded."""
    recorder = here()
    for arg in args:
        if isinstance(arg, np.ndarray) and id(arg) in recorder.outside:
            guard_contents(recorder, arg)
    module = getattr(function, "__module__", None) or ""
    root = module.partition(".")[0]
    if root == "khaljit":
        return
    owner = getattr(function, "__self__", None)
    place = module or ("numpy" if owner is None else type(owner).__module__)
    name = f"{place}.{getattr(function, '__name__', function)}"
    mend = advice.once(function)
    if mend is not None:
        fail(f"{name} is called once, while the kernel is recorded, for all invocations", mend)
    foreign = isinstance(function, np.ufunc) or root in _FOREIGN or name in _NOT_RECORDED
    if foreign and has_proxy(args):
        fail(
            f"{name.removeprefix('builtins.')} has no meaning in a kernel",
            advice.instead_of(name, any(isinstance(one, Array) for one in args)),
        )


_FOREIGN: Final = ("numpy", "math", "cmath")
_NOT_RECORDED: Final = frozenset(f"builtins.{name}" for name in ("hash", "sorted"))


def _call_function(function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if function.__module__ and is_library(function.__module__):
        _refuse_foreign(function, args)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            _refuse_misfit(error, function)
            raise
    recorder = here()
    if function in recorder.calls:  # not its code, which closures that call each other share
        chain = [*recorder.calls[recorder.calls.index(function) :], function]
        fail(
            f"{function.__qualname__} calls itself while it is recorded: "
            + " -> ".join(one.__code__.co_name for one in chain),
            "recursion cannot be recorded; write a loop",
        )
    bound = function if is_rewritten(function.__code__) else prepare(recorder, function)
    recorder.calls.append(function)
    try:
        return bound(*args, **kwargs)
    except TypeError as error:
        _refuse_misfit(error, function)
        raise
    finally:
        recorder.calls.pop()


def _refuse_misfit(error: TypeError, function: Any) -> None:
    """Arguments that are not a function's parameters: Python raises that outside the function."""
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return
    name = str(getattr(function, "__name__", function))
    mend = None
    with suppress(TypeError, ValueError):  # of one written in C, which need not tell
        parameters = inspect.signature(function).parameters.values()
        plain = [one.replace(annotation=one.empty) for one in parameters]
        mend = f"it is called as {name}{inspect.Signature(plain)}"
    message = str(error).replace(f"{type(function).__name__}.__call__", name)
    raise TraceError(message, at=user_site(), mend=mend) from None


def prepare(recorder: Recorder, function: FunctionType) -> FunctionType:
    """The function to run in place of the user's, and guards for what it reads from outside."""
    rewritten = rewrite(function, recorder.keeper)
    names = function.__code__.co_names if rewritten is None else rewritten.globals
    scope = function.__globals__
    for name in names:
        if name in scope:
            key = ("global", id(scope), name)
            recorder.guard(key, f"global {name!r}", Item(scope, name))
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            recorder.guard(("cell", id(cell)), f"captured {name!r}", Cell(cell))
        except ValueError:
            raise TraceError(
                f"the captured variable {name!r} of {function.__qualname__} has no value yet",
                at=user_site(),
                mend=f"assign {name} before the kernel is launched",
            ) from None
    places: list[int | str] = [*range(len(function.__defaults__ or ()))]
    for place in (*places, *(function.__kwdefaults__ or ())):
        recorder.guard(
            ("default", id(function), place),
            f"a default of {function.__name__}",
            functools.partial(_default, function, place),
        )
    return function if rewritten is None else rewritten.bind(function, recorder.hooks)


def _default(function: FunctionType, place: int | str) -> object:
    if isinstance(place, str):
        return (function.__kwdefaults__ or {}).get(place, UNSET)
    defaults = function.__defaults__ or ()
    return defaults[place] if place < len(defaults) else UNSET


_MUTATORS: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem"}
    | {"remove", "reverse", "setdefault", "sort", "update"}
)


def refuse_mutation(owner: Any) -> None:
    if here().in_traced_flow:
        fail(
            f"{describe(owner)} is changed under a traced branch or loop",
            "it would be changed once while recording; use kj.local or an array argument",
        )
