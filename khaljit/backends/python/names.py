"""What the names in a kernel mean when its function runs as it is.

A recording rewrites calls, so that ``min``, ``math.sin`` or a helper function get their meaning in
a kernel. Here the code stays the user's, and is given other names to look up instead: its function
is made anew from the same code object with globals and cells in which what means something else in
a kernel is replaced. A debugger sees the same lines, and the user's own module is not touched.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Sequence
from types import CellType, FunctionType, ModuleType
from typing import Any, Final, final

from khaljit.tracer import host
from khaljit.tracer.calls import has_proxy, is_library
from khaljit.tracer.record import Argument, ConstArgument

__all__ = ["with_meanings"]

_MODULES: Final = ("math", "cmath", "numpy")
# Python's own does what it should: numbers are there to be printed.
_LEFT_ALONE: Final = (builtins.print, builtins.bool, builtins.breakpoint)


def with_meanings(
    function: FunctionType, arguments: Sequence[tuple[str, Argument]]
) -> tuple[FunctionType, list[tuple[str, Argument]]]:
    """A function with the same code, whose names mean what they mean in a kernel, and its
    arguments, the functions among them likewise."""
    meanings = _Meanings()
    made = [
        (name, ConstArgument(meanings.replaced(one.value)) if type(one) is ConstArgument else one)
        for name, one in arguments
    ]
    return meanings.function(function), made


@final
class _Meanings:
    """The replacements of one kernel; each is made once."""

    def __init__(self) -> None:
        self._functions: Final[dict[int, tuple[FunctionType, FunctionType]]] = {}
        self._containers: Final[dict[int, tuple[Any, Any]]] = {}
        self._modules: Final[dict[int, tuple[ModuleType, _Module]]] = {}

    def function(self, function: FunctionType) -> FunctionType:
        found = self._functions.get(id(function))
        if found is not None:
            return found[1]
        globals_ = _Globals(self, function.__globals__)
        made = FunctionType(
            function.__code__,
            globals_,
            function.__name__,
            function.__defaults__,
            tuple(function.__closure__ or ()),
        )
        self._functions[id(function)] = function, made  # before its cells, which may hold it
        if function.__closure__:
            cells = tuple(map(self._cell, function.__closure__))
            made = FunctionType(
                function.__code__, globals_, function.__name__, function.__defaults__, cells
            )
            self._functions[id(function)] = function, made
        functools.update_wrapper(made, function)
        made.__kwdefaults__ = function.__kwdefaults__
        del made.__dict__["__wrapped__"]
        return made

    def _container(self, value: Any) -> Any:
        """A container of functions with what replaces them; any other as it is. It is looked
        through once, since the plan of a kernel is made anew when one is changed."""
        found = self._containers.get(id(value))
        if found is None:
            found = self._containers[id(value)] = value, value  # in case it holds itself
            items = list(value.values() if isinstance(value, dict) else value)
            new = [self.replaced(one) for one in items]
            if any(map(operator.is_not, new, items)):
                made = zip(value, new, strict=True) if isinstance(value, dict) else new
                found = self._containers[id(value)] = value, type(value)(made)
        return found[1]

    def _cell(self, cell: CellType) -> CellType:
        """The cell itself, or one with what replaces its contents."""
        try:
            contents = cell.cell_contents
        except ValueError:  # it is empty
            return cell
        replaced = self.replaced(contents)
        return cell if replaced is contents else CellType(replaced)

    def replaced(self, value: Any) -> Any:
        """What stands for a value in a kernel; most often the value itself."""
        if isinstance(value, FunctionType):
            own = is_library(value.__module__ or "") or hasattr(value, "__kj_inline__")
            return _mapped(value) if own else self.function(value)
        if type(value) in (tuple, list, dict):
            return self._container(value)
        if isinstance(value, functools._lru_cache_wrapper):
            return self.replaced(value.__wrapped__)  # what it remembers may be outdated
        if isinstance(value, functools.partial):
            return functools.partial(self.replaced(value.func), *value.args, **value.keywords)
        if isinstance(value, ModuleType):
            name = value.__name__
            if name.partition(".")[0] not in _MODULES and is_library(name):
                return value
            found = self._modules.get(id(value))
            if found is None:
                found = self._modules[id(value)] = value, _Module(self, value)
            return found[1]
        return _mapped(value)


def _mapped(value: Any) -> Any:
    """A function of the host's that has a meaning in kernels, with that meaning."""
    try:
        always, mapped = host.ALWAYS.get(value), host.TABLE.get(value)
    except TypeError:  # not hashable
        return value
    if (always is None and mapped is None) or value in _LEFT_ALONE:
        return value
    if value is builtins.isinstance:
        return lambda x, kind: host.ALWAYS[value](x, _unmapped(kind))
    return _Mapped(value, always, mapped)


def _unmapped(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return tuple(map(_unmapped, kind))
    return kind.original if isinstance(kind, _Mapped) else kind


@final
class _Mapped:
    """A host function, or a type used as one."""

    __slots__ = ("_always", "_mapped", "original")

    def __init__(self, original: Any, always: Any, mapped: Any) -> None:
        self.original: Final = original
        self._always: Final = always
        self._mapped: Final = mapped

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._always is not None:
            return self._always(*args, **kwargs)
        if has_proxy(args):
            return self._mapped(*args, **kwargs)
        return self.original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __repr__(self) -> str:
        return repr(self.original)


@final
class _Module:
    """A module whose functions have their meaning in kernels."""

    def __init__(self, meanings: _Meanings, module: ModuleType) -> None:
        self._meanings = meanings
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return self._meanings.replaced(getattr(self._module, name))

    def __repr__(self) -> str:
        return repr(self._module)


@final
class _Globals(dict[str, Any]):
    """A module's globals. A copy of them is inside too, for debuggers that evaluate expressions,
    which do not ask through ``__getitem__``."""

    def __init__(self, meanings: _Meanings, real: dict[str, Any]) -> None:
        super().__init__(real)
        self.setdefault("__builtins__", builtins)
        self._meanings = meanings
        self._real = real

    def __getitem__(self, name: str) -> Any:
        try:
            value = self._real[name]
        except KeyError:
            try:
                value = getattr(builtins, name)
            except AttributeError:
                raise KeyError(name) from None
        return self._meanings.replaced(value)

    def __setitem__(self, name: str, value: Any) -> None:
        """Debuggers keep their own variables among the globals of a frame."""
        self._real[name] = value
        super().__setitem__(name, value)
