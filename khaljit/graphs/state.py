"""What a host function sees, as text to compare: arguments, and what it reads from outside.

Two calls whose texts are equal launch the same, as far as their inputs say. Arrays are told apart
by place, shape and type, numbers by type and bits, containers and instances by what they hold,
functions by themselves and by what they read. What cannot be looked into, such as a generator of
random numbers, is `UnseenError`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, final

import numpy as np

from khaljit.arrays import Array
from khaljit.exchange import adopt
from khaljit.tracer.dtypes import DType
from khaljit.tracer.intrinsics.vectors import VectorType

__all__ = ["State", "UnseenError"]

MOST: Final = 10_000  # things that are looked at
_MISSING: Final = object()
_PLAIN: Final = frozenset({int, str, bytes, bool, type(None), type(...)})
# Told apart by identity: they do not change, or what they change is looked at elsewhere.
_FIXED: Final = (
    *(ModuleType, Enum, type, DType, VectorType, BuiltinFunctionType, np.ufunc, np.dtype),
    *(slice, range),
)


class UnseenError(Exception):
    """Something that cannot be compared; the message says what."""


@final
class State:
    """What one call sees; made part by part.

    Attributes:
        parts: the text of each thing that was entered, by name.
        kept: objects whose identity is in the texts.
    """

    def __init__(self) -> None:
        self.parts: Final[dict[str, tuple[object, ...]]] = {}
        self.kept: Final[list[Any]] = []
        self._found: list[object] = []
        self._seen: set[int] = set()

    def enter(self, name: str, value: Any) -> None:
        """Look at a value; raises UnseenError."""
        self._found = []
        self._look(name, value)
        self.parts[name] = tuple(self._found)

    @property
    def key(self) -> tuple[object, ...]:
        """All parts, hashable."""
        return tuple(self.parts.items())

    def _look(self, name: str, value: Any) -> None:
        add = self._found.append
        kind: Any = type(value)
        if kind in _PLAIN:
            add(kind)
            add(value)
        elif kind is float:
            add(value.hex())
        elif kind is Array:
            self._array(value)
        elif id(value) in self._seen:
            add(id(value))
        else:
            self._seen.add(id(value))
            self.kept.append(value)
            if len(self.kept) > MOST:
                raise UnseenError(f"{name} holds more than {MOST} things")
            add(kind)
            add(id(value))
            look = _ways(kind)
            if look is not None:
                look(self, name, value)

    def _array(self, array: Array[Any]) -> None:
        self.kept.append(array.buffer)
        place = (id(array.buffer), array.offset, array.shape, array.strides)
        self._found.append((*place, id(array.dtype), id(array.device)))

    def _number(self, name: str, value: Any) -> None:
        del name
        self._found[-1] = repr(value)  # not the same object each time

    def _numpy(self, name: str, value: Any) -> None:
        raise UnseenError(f"{name} is a NumPy array, and graphs hold arrays of a device")

    def _sequence(self, name: str, value: Any) -> None:
        self._found[-1] = len(value)
        for number, item in enumerate(value):
            self._look(f"{name}[{number}]", item)

    def _mapping(self, name: str, value: Any) -> None:
        for key, item in value.items():
            self._look(f"a key of {name}", key)
            self._look(f"{name}[{key!r}]", item)

    def _set(self, name: str, value: Any) -> None:
        del name
        self._found.append(tuple(sorted(map(repr, value))))

    def _method(self, name: str, value: Any) -> None:
        self._found[-1] = "method"  # made anew at each reading
        self._look(f"{name}.__self__", value.__self__)
        self._look(name, value.__func__)

    def _graph_function(self, name: str, value: Any) -> None:
        """Another one, which runs as a part of this one; of the rest of khaljit's nothing."""
        inner = getattr(value, "host_function", None)
        if inner is not None:
            self._look(name, inner)

    def _instance(self, name: str, value: Any) -> None:
        """An object by its attributes; an array of another library by its place."""
        foreign = adopt(value)
        if foreign is not None:
            self._look(name, foreign)
            return
        found = list(_attributes(value))
        if not found and not hasattr(value, "__dict__") and type(value) is not object:
            raise UnseenError(f"{name} is a {type(value).__qualname__}, whose state cannot be seen")
        for attribute, item in found:
            self._look(f"{name}.{attribute}", item)

    def _function(self, name: str, function: FunctionType) -> None:
        """A function by what it reads."""
        del name
        if _is_known(function.__module__):
            return
        for name, value in outside(function):
            self._look(name, value)
        for number, default in enumerate(function.__defaults__ or ()):
            self._look(f"default {number} of {function.__name__}", default)


@lru_cache(maxsize=1024)
def _ways(kind: Any) -> Callable[[State, str, Any], None] | None:
    """How to look at values of a type; None where identity is all."""
    if issubclass(kind, _FIXED):
        return None
    if kind.__module__.partition(".")[0] == "khaljit":
        return State._graph_function
    for base, way in (
        ((complex, np.generic), State._number),
        (np.ndarray, State._numpy),
        ((tuple, list), State._sequence),
        (dict, State._mapping),
        ((set, frozenset), State._set),
        (FunctionType, State._function),
        (MethodType, State._method),
    ):
        if issubclass(kind, base):
            return way
    return State._instance


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                item = getattr(value, name, _MISSING)
                if item is not _MISSING:
                    yield name, item


def _is_known(module: str | None) -> bool:
    """Whether a module is khaljit's, NumPy's or Python's, whose functions are taken as fixed."""
    name = (module or "").partition(".")[0]
    return name in ("khaljit", "numpy") or (name in sys.stdlib_module_names and name != "__main__")


def outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads from outside: cells, globals, and attributes of modules."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    space: Mapping[str, Any] = function.__globals__
    for path in _paths(function.__code__):
        value = space.get(path[0], _MISSING)
        for attribute in path[1:]:
            if not isinstance(value, ModuleType):
                break
            value = getattr(value, attribute, _MISSING)
        if value is not _MISSING:
            yield ".".join(path), value


@lru_cache(maxsize=1024)
def _paths(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """The globals that code reads, with the attributes that follow: ``("config", "dt")``."""
    found: dict[tuple[str, ...], None] = {}
    path: list[str] = []
    for one in dis.get_instructions(code):
        if path and one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path.append(one.argval)
            continue
        if path:
            found[tuple(path)] = None
            path = []
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            path = [one.argval]
        elif isinstance(one.argval, CodeType):
            found.update(dict.fromkeys(_paths(one.argval)))
    if path:
        found[tuple(path)] = None
    return tuple(found)
