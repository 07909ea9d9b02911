"""What statements assign and where they jump: scope analysis for the rewriter."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

__all__ = ["assigned", "bound", "jumps"]

# Scopes of their own. Those of comprehensions are not: a walrus inside assigns to the function's.
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES: Final = (ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)


def assigned(*nodes: ast.AST) -> tuple[str, ...]:
    """Names that some statements or expressions assign, whole or in part, in order: a name whose
    item or attribute is assigned may hold a vector or struct, which is then another."""
    return _names(nodes, True)


def bound(*nodes: ast.AST) -> tuple[str, ...]:
    """Names that are assigned as a whole, which makes them local to their function."""
    return _names(nodes, False)


def _names(nodes: Sequence[ast.AST], parts: bool) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for node in nodes:
        _collect(node, parts, names)
    return tuple(names)


def _collect(node: ast.AST, parts: bool, names: dict[str, None]) -> None:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            names[node.id] = None
        return
    if isinstance(node, _FUNCTIONS):
        if not isinstance(node, ast.Lambda):
            names[node.name] = None
        return
    if isinstance(node, _COMPREHENSIONS):
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                _collect(inner.target, parts, names)
        return
    if parts and isinstance(node, ast.Attribute | ast.Subscript):
        root = _root(node)
        if root is not None and isinstance(node.ctx, ast.Store):
            names[root.id] = None
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            for one in value:
                if isinstance(one, ast.AST) and not isinstance(one, _LEAVES):
                    _collect(one, parts, names)
        elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
            _collect(value, parts, names)


def _root(node: ast.expr) -> ast.Name | None:
    """The name that ``name.x.y`` or ``name[i]`` starts with; None where it is something else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def jumps(statements: Sequence[ast.stmt]) -> set[str]:
    """Which jumps leave a list of statements: ``break`` and ``continue`` of the loop around them,
    and ``return``."""
    found: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Break):
            found.add("break")
        elif isinstance(node, ast.Continue):
            found.add("continue")
        elif isinstance(node, ast.Return):
            found.add("return")
        elif isinstance(node, ast.If):
            found |= jumps(node.body) | jumps(node.orelse)
        elif isinstance(node, ast.For | ast.While):
            found |= jumps(node.body) & {"return"} | jumps(node.orelse)
    return found
