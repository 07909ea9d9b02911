"""A whole function: found, its statements rewritten, compiled."""

from __future__ import annotations

import ast
from types import CodeType, FunctionType

from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.syntax import HOOKS
from khaljit.tracer.syntax.nodes import Function, function, put
from khaljit.tracer.syntax.source import compile_inside, find, owner_of
from khaljit.tracer.syntax.statements import Statements

__all__ = ["rewritten"]


def rewritten(original: FunctionType) -> tuple[CodeType, tuple[str, ...]] | None:
    """The code of a function with hooks, and the names that it (or a function nested in it) may
    read from its globals; None when its source is not to be had.

    Raises TraceError for statements that a kernel cannot contain.
    """
    found = find(original.__code__)
    return None if found is None else _compile(original, *found)


def _compile(
    original: FunctionType, node: Function, filename: str
) -> tuple[CodeType, tuple[str, ...]]:
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
    return compiled, tuple(sorted(names))


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
