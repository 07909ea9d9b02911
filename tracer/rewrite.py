"""Source rewriting: control flow and calls of a kernel become hooks; everything else stays.

What is rewritten: ``if``, conditional expressions, ``and or not``, chained comparisons, ``while``,
``for``, ``break``, ``continue``, early ``return``, ``assert``, ``raise``, calls, attribute and item
reads and writes. The hooks (``hooks.py``) act when a run-time value is involved and are plain
Python otherwise. Line and column numbers survive, so tracebacks and errors point at the user's
source.

A function's code is rewritten once per code object, and kept for the next process where there is
somebody who keeps it (`identity.Keeper`). The rewritten function shares the globals, the closure
cells and the defaults of the original.
"""

from __future__ import annotations

import marshal
import threading
from types import CodeType, FunctionType
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from khaljit.tracer.identity import Keeper, codes, identify
from khaljit.tracer.records import dataclass
from khaljit.tracer.syntax import HOOKS

__all__ = ["Rewritten", "is_rewritten", "rewrite"]


@final
@dataclass(frozen=True, slots=True)
class Rewritten:
    """Rewritten code, with what it reads from outside itself.

    Attributes:
        code: the code object; its free variables are the original's and the hooks.
        globals: names that it (or a function nested in it) may read from its globals.
    """

    code: CodeType
    globals: tuple[str, ...]

    def bind(self, original: FunctionType, hooks: object) -> FunctionType:
        """The rewritten function with the surroundings of the original."""
        cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
        closure = tuple(
            _cell(hooks) if name == HOOKS else cells[name] for name in self.code.co_freevars
        )
        function = FunctionType(
            self.code, original.__globals__, original.__name__, original.__defaults__, closure
        )
        function.__kwdefaults__ = original.__kwdefaults__
        function.__qualname__ = original.__qualname__
        return function


def _cell(value: object) -> Any:
    def holder() -> object:
        return value

    assert holder.__closure__ is not None
    return holder.__closure__[0]


# Code objects are equal when they do the same, wherever they were written: hence the file
_CACHE: Final[WeakKeyDictionary[CodeType, dict[str, Rewritten | None]]] = WeakKeyDictionary()
_REWRITTEN: Final[WeakKeyDictionary[CodeType, bool]] = WeakKeyDictionary()
_LOCK: Final = threading.Lock()


def is_rewritten(code: CodeType) -> bool:
    """Whether a code object came out of `rewrite`, itself or nested in one that did."""
    return code in _REWRITTEN


def rewrite(function: FunctionType, keeper: Keeper | None = None) -> Rewritten | None:
    """The rewritten code of a function; None when its source is not to be had.

    Raises TraceError for statements that a kernel cannot contain.
    """
    code = function.__code__
    with _LOCK:
        known = _CACHE.setdefault(code, {})
        if code.co_filename in known:
            return known[code.co_filename]
    result = _made(function) if keeper is None else _kept(function, keeper)
    with _LOCK:
        known[code.co_filename] = result
        if result is not None:
            for inner in codes(result.code):
                _REWRITTEN[inner] = True
    return result


def _made(function: FunctionType) -> Rewritten | None:
    from khaljit.tracer.syntax.functions import rewritten

    made = rewritten(function)
    return None if made is None else Rewritten(*made)


def _kept(function: FunctionType, keeper: Keeper) -> Rewritten | None:
    """What an earlier process made of the same, else what is made now, for later ones."""
    identity = identify(function.__code__)
    data = None if identity is None else keeper.get(identity)
    if data is not None:
        return Rewritten(*marshal.loads(data))
    made = _made(function)
    if identity is not None and made is not None:
        from khaljit.tracer.syntax.source import is_read_from

        if is_read_from(function.__code__.co_filename, identity.text):
            keeper.put(identity, marshal.dumps((made.code, made.globals)))
    return made
