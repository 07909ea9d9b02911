"""Source rewriting: control flow and calls of a kernel become hooks; everything else stays.

What is rewritten: ``if``, conditional expressions, ``and or not``, chained comparisons, ``while``,
``for``, ``break``, ``continue``, early ``return``, ``assert``, ``raise``, calls, attribute and item
reads and writes. The hooks (``hooks.py``) act when a run-time value is involved and are plain
Python otherwise. Line and column numbers survive, so tracebacks and errors point at the user's
source.

A function's code is rewritten once per code object. The rewritten function shares the globals,
the closure cells and the defaults of the original.
"""

from __future__ import annotations

import ast
import threading
from types import CodeType, FunctionType
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.records import dataclass
from khaljit.tracer.syntax.nodes import HOOKS, Function, function, put
from khaljit.tracer.syntax.source import codes, compile_inside, find, owner_of
from khaljit.tracer.syntax.statements import Statements

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


def rewrite(function: FunctionType) -> Rewritten | None:
    """The rewritten code of a function; None when its source is not to be had.

    Raises TraceError for statements that a kernel cannot contain.
    """
    code = function.__code__
    with _LOCK:
        known = _CACHE.setdefault(code, {})
        if code.co_filename in known:
            return known[code.co_filename]
    found = find(code)
    result = None if found is None else _compile(function, *found)
    with _LOCK:
        known[code.co_filename] = result
        if result is not None:
            for inner in codes(result.code):
                _REWRITTEN[inner] = True
    return result


def _compile(original: FunctionType, node: Function, filename: str) -> Rewritten:
    code = original.__code__.replace(co_filename=filename)
    local = {*code.co_varnames, *code.co_cellvars}
    loads = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    names = {one.id for one in loads} - local - set(code.co_freevars)
    rewriter = Statements(filename, owner_of(code), node.args, local)
    arguments = _stripped(node.args)
    new: Function
    if isinstance(node, ast.Lambda):
        new = put(ast.Lambda(arguments, rewriter.visit(node.body)), node)
    else:
        new = function(node.name, arguments, rewriter.function_body(node.body), node)
    try:
        compiled = compile_inside(new, code, (*code.co_freevars, HOOKS))
    except SyntaxError as error:  # each construct is a loop, and Python nests twenty of them
        raise TraceError(
            f"{original.__qualname__} nests too many branches and loops in each other",
            at=Site(filename, error.lineno or code.co_firstlineno),
            mend="move the inner ones to a helper function",
        ) from None
    return Rewritten(compiled, tuple(sorted(names)))


def _stripped(arguments: ast.arguments) -> ast.arguments:
    """Parameters without defaults and annotations: those live on the function object."""

    def plain(argument: ast.arg) -> ast.arg:
        return put(ast.arg(argument.arg), argument)

    return ast.arguments(
        [plain(one) for one in arguments.posonlyargs],
        [plain(one) for one in arguments.args],
        plain(arguments.vararg) if arguments.vararg else None,
        [plain(one) for one in arguments.kwonlyargs],
        [None] * len(arguments.kwonlyargs),
        plain(arguments.kwarg) if arguments.kwarg else None,
        [],
    )
