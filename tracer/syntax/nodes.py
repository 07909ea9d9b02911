"""Makes nodes of syntax trees, each with its place in the user's source.

``at`` is the node of the user's whose line and columns the new one gets, so that tracebacks and
errors point there. Every node that can have a place gets one, here and at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from khaljit.tracer.syntax import HOOKS

__all__ = [
    "Function",
    "Node",
    "assign",
    "attribute",
    "branch",
    "call",
    "constant",
    "delete",
    "do",
    "fields",
    "function",
    "hook",
    "jump_on",
    "local_variables",
    "method",
    "name",
    "names",
    "put",
    "repeat",
    "target",
    "thunk",
    "tuple_of",
]

Node = ast.stmt | ast.expr
Function = ast.FunctionDef | ast.Lambda
N = TypeVar("N", bound=Node | ast.arg)

# What is no place in the source, the tree may hold many times.
LOAD: Final = ast.Load()
STORE: Final = ast.Store()
DELETE: Final = ast.Del()


FAR: Final = 1 << 12  # a column behind every line


def put(node: N, at: Node | ast.arg) -> N:
    """The node, with the place of another, or the first line of that place.

    CPython says of a method called over several lines that it stands at their end, which is where
    the user's expression or statement ends.
    """
    node.lineno = at.lineno
    node.col_offset = at.col_offset
    node.end_lineno = at.lineno
    node.end_col_offset = at.end_col_offset if at.end_lineno == at.lineno else FAR
    return node


# Expressions.


def name(text: str, at: Node) -> ast.Name:
    return put(ast.Name(text, LOAD), at)


def target(text: str, at: Node) -> ast.Name:
    """A name that is assigned."""
    return put(ast.Name(text, STORE), at)


def constant(value: Any, at: Node) -> ast.Constant:
    return put(ast.Constant(value), at)


def attribute(owner: str | ast.expr, text: str, at: Node) -> ast.Attribute:
    if isinstance(owner, str):
        owner = name(owner, at)
    return put(ast.Attribute(owner, text, LOAD), at)


def call(function: ast.expr, args: Sequence[ast.expr], at: Node) -> ast.Call:
    return put(ast.Call(function, list(args), []), at)


def method(owner: str, text: str, *args: ast.expr, at: Node) -> ast.Call:
    """A call of a method of what a variable holds."""
    return call(attribute(owner, text, at), args, at)


def hook(text: str, *args: ast.expr, at: Node) -> ast.Call:
    return method(HOOKS, text, *args, at=at)


def tuple_of(items: Iterable[ast.expr], at: Node) -> ast.Tuple:
    return put(ast.Tuple(list(items), LOAD), at)


def names(texts: Iterable[str], at: Node) -> ast.Tuple:
    """A tuple of the names as strings."""
    return tuple_of([constant(text, at) for text in texts], at)


def local_variables(at: Node) -> ast.Call:
    return call(name("locals", at), (), at)


def thunk(body: ast.expr, at: Node) -> ast.Lambda:
    """An expression to be evaluated only when it is asked for."""
    return put(ast.Lambda(ast.arguments([], [], None, [], [], None, []), body), at)


# Statements.


def do(value: ast.expr, at: Node) -> ast.Expr:
    return put(ast.Expr(value), at)


def assign(to: str | ast.expr, value: ast.expr, at: Node) -> ast.Assign:
    if isinstance(to, str):
        to = target(to, at)
    return put(ast.Assign([to], value), at)


def delete(text: str, at: Node) -> ast.Delete:
    return put(ast.Delete([put(ast.Name(text, DELETE), at)]), at)


def branch(
    test: ast.expr, then: Sequence[ast.stmt], at: Node, orelse: Sequence[ast.stmt] = ()
) -> ast.If:
    return put(ast.If(test, list(then), list(orelse)), at)


def jump_on(test: ast.expr, at: Node) -> ast.If:
    """``if test: continue``"""
    return branch(test, [put(ast.Continue(), at)], at)


def repeat(test: ast.expr, body: Sequence[ast.stmt], at: Node) -> ast.While:
    return put(ast.While(test, list(body), []), at)


def function(
    text: str, arguments: ast.arguments, body: Sequence[ast.stmt], at: Node
) -> ast.FunctionDef:
    parts: dict[str, Any] = {
        "name": text, "args": arguments, "body": list(body), "decorator_list": []
    }  # fmt: skip
    if "type_params" in ast.FunctionDef._fields:  # Python 3.12
        parts["type_params"] = []
    return put(ast.FunctionDef(**parts), at)


def fields(node: ast.AST) -> dict[str, Any]:
    """The fields of a node, to make one like it."""
    return {text: getattr(node, text) for text in node._fields if hasattr(node, text)}
