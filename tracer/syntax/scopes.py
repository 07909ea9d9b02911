"""What statements assign and where they jump: scope analysis for the rewriter."""

from __future__ import annotations

import ast
from collections.abc import Sequence

__all__ = ["assigned", "bound", "jumps"]


class _Assigned(ast.NodeVisitor):
    """Names that statements assign in their own function: nested functions, lambdas and
    comprehensions have their own. With ``parts``, a name whose item or attribute is assigned is
    one too: it may hold a vector or struct, which is then another."""

    def __init__(self, parts: bool) -> None:
        self.names: dict[str, None] = {}
        self._parts = parts

    def visit_Name(self, node: ast.Name) -> None:  # named by the ast module
        if not isinstance(node.ctx, ast.Load):
            self.names[node.id] = None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.names[node.name] = None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._visit_target(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._visit_target(node)

    def _visit_target(self, node: ast.Attribute | ast.Subscript) -> None:
        """``v.x = s`` and ``v[0] = s`` give the name v a new vector."""
        if self._parts and isinstance(node.ctx, ast.Store):
            root = _root_name(node)
            if root is not None:
                self.names[root.id] = None
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        del node

    def _comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):  # a walrus inside assigns to the function's variable
            if isinstance(inner, ast.NamedExpr):
                self.visit(inner.target)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815


def _root_name(node: ast.expr) -> ast.Name | None:
    """The name that ``name.x.y`` or ``name[i]`` starts with; None where it is something else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _visited(nodes: Sequence[ast.AST], parts: bool) -> tuple[str, ...]:
    visitor = _Assigned(parts)
    for node in nodes:
        visitor.visit(node)
    return tuple(visitor.names)


def assigned(*nodes: ast.AST) -> tuple[str, ...]:
    """Names that some statements or expressions assign, whole or in part, in order."""
    return _visited(nodes, True)


def bound(*nodes: ast.AST) -> tuple[str, ...]:
    """Names that are assigned as a whole, which makes them local to their function."""
    return _visited(nodes, False)


class _Jumps(ast.NodeVisitor):
    """Which jumps leave a list of statements: ``break`` and ``continue`` of the loop around
    them, and ``return``."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._depth = 0

    def visit_Break(self, node: ast.Break) -> None:
        if self._depth == 0:
            self.found.add("break")
        del node

    def visit_Continue(self, node: ast.Continue) -> None:
        if self._depth == 0:
            self.found.add("continue")
        del node

    def visit_Return(self, node: ast.Return) -> None:
        self.found.add("return")
        del node

    def _loop(self, node: ast.For | ast.While) -> None:
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        for statement in node.orelse:
            self.visit(statement)

    visit_For = visit_While = _loop  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        del node

    visit_Lambda = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815


def jumps(statements: Sequence[ast.stmt]) -> set[str]:
    visitor = _Jumps()
    for statement in statements:
        visitor.visit(statement)
    return visitor.found
