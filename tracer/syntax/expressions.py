"""What expressions become: calls of hooks, with what may not be evaluated at all in a lambda.

``a + b`` is ``_kj.binary("Add", a, b)``, ``x if c else y`` is ``_kj.choose(c, lambda: x, lambda:
y)``, ``a[i].vel`` is ``_kj.path(a, "ka", i, "vel")``.
"""

from __future__ import annotations

import ast
from typing import Any, Final, NoReturn

from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.syntax.nodes import (
    Node,
    constant,
    hook,
    name,
    names,
    thunk,
    tuple_of,
)

__all__ = ["UNSUPPORTED", "Expressions", "argument_names"]

UNSUPPORTED: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Try: ("try", "test the condition instead; kernels have no exceptions"),
    ast.With: ("with", "take what stands inside out of the kernel"),
    ast.AsyncFor: ("async for", "kernels run at once; use `for`"),
    ast.AsyncWith: ("async with", "take what stands inside out of the kernel"),
    ast.AsyncFunctionDef: ("async def", "write a plain function"),
    ast.ClassDef: ("class", "define it outside the kernel"),
    ast.Delete: ("del", "leave the name alone; unused values cost nothing"),
    ast.Global: ("global", "pass the value as an argument, write results to an array"),
    ast.Nonlocal: ("nonlocal", "return the value from the helper function"),
    ast.Match: ("match", "write if/elif/else"),
    ast.Yield: ("yield", "store to an array; a kernel is no generator"),
    ast.YieldFrom: ("yield from", "store to an array; a kernel is no generator"),
    ast.Await: ("await", "kernels run at once"),
}
"""What no kernel can contain: how it is called, and what to write instead."""

if hasattr(ast, "TryStar"):
    UNSUPPORTED[ast.TryStar] = UNSUPPORTED[ast.Try]

LEAVES: Final = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop)


class Expressions:
    """Rewrites the expressions of one function.

    Args:
        filename: of the source, for messages.
        owner: the class that the function stands in, as private names are mangled by it.
        arguments: the function's parameters.
    """

    def __init__(self, filename: str, owner: str | None, arguments: ast.arguments) -> None:
        self._filename: Final = filename
        self._owner: Final = owner
        self._arguments: Final = arguments
        self._count = 0

    def _refuse(self, node: ast.AST, what: str, mend: str) -> NoReturn:
        line, start = getattr(node, "lineno", 0), getattr(node, "col_offset", None)
        end = getattr(node, "end_col_offset", None)
        if getattr(node, "end_lineno", line) != line:
            end = None
        at = Site(self._filename, line, start, end)
        raise TraceError(f"`{what}` cannot be recorded", at=at, mend=mend)

    def _fresh(self, kind: str) -> str:
        self._count += 1
        return f"_kj_{kind}{self._count}"

    def visit(self, node: Any) -> Any:
        """A node with its expressions rewritten."""
        if isinstance(node, LEAVES):
            return node
        refused = UNSUPPORTED.get(type(node))
        if refused is not None:
            self._refuse(node, *refused)
        method = getattr(self, f"_ex_{type(node).__name__}", None)
        if method is not None:
            return method(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
            elif isinstance(value, list):
                visited = [self.visit(one) if isinstance(one, ast.AST) else one for one in value]
                setattr(node, field, visited)
        return node

    def _thunk(self, node: ast.expr) -> ast.expr:
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self._refuse(inner, ":=", "assign in a statement before this expression")
        return thunk(self.visit(node), node)

    # What may not be evaluated.

    def _ex_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        test = self.visit(node.test)
        return hook("choose", test, self._thunk(node.body), self._thunk(node.orelse), at=node)

    def _ex_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        first, *rest = node.values
        text = "and_" if isinstance(node.op, ast.And) else "or_"
        return hook(text, self.visit(first), *map(self._thunk, rest), at=node)

    def _ex_Lambda(self, node: ast.Lambda) -> ast.expr:  # noqa: N802
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        node.body = self.visit(node.body)
        return node

    # Operators.

    def _ex_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802
        if isinstance(node.op, ast.Not):
            return hook("not_", self.visit(node.operand), at=node)
        if isinstance(node.operand, ast.Constant):
            return node
        return hook("unary", _kind(node.op, node), self.visit(node.operand), at=node)

    def _ex_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802
        left, right = self.visit(node.left), self.visit(node.right)
        return hook("binary", _kind(node.op, node), left, right, at=node)

    def _ex_Compare(self, node: ast.Compare) -> ast.expr:  # noqa: N802
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot):
            node.left = self.visit(node.left)
            node.comparators = [self.visit(node.comparators[0])]
            return node
        if len(node.ops) == 1 and not isinstance(node.ops[0], ast.In | ast.NotIn):
            left, right = self.visit(node.left), self.visit(node.comparators[0])
            return hook("binary", _kind(node.ops[0], node), left, right, at=node)
        kinds = names([type(op).__name__ for op in node.ops], node)
        rest = map(self._thunk, node.comparators)
        return hook("chain", kinds, self.visit(node.left), *rest, at=node)

    # Calls, attributes and items.

    def _ex_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            # Python finds these by the calling frame, which is a hook's.
            texts = ["__class__", *argument_names(self._arguments)[:1]]
            node.args = [name(text, node) for text in texts]
        function = self.visit(node.func)
        new = hook("call", function, *(self.visit(one) for one in node.args), at=node)
        new.keywords = [self.visit(one) for one in node.keywords]
        return new

    def _ex_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        if not isinstance(node.ctx, ast.Load):
            return node
        if _is_path(node):
            return self._path(node)
        text = constant(self._mangled(node.attr), node)
        return hook("attribute", self.visit(node.value), text, at=node)

    def _ex_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802
        if not isinstance(node.ctx, ast.Load):
            return node
        if _is_path(node):
            return self._path(node)
        return hook("item", self.visit(node.value), self._key(node.slice), at=node)

    def _path(self, node: ast.expr) -> ast.expr:
        root, form, parts = self._steps(node)
        return hook("path", self.visit(root), constant(form, node), *parts, at=node)

    def _steps(self, node: ast.expr) -> tuple[ast.expr, str, list[ast.expr]]:
        """``a[i].vel`` as its root, the form ``ka`` of its steps, and i and "vel"."""
        form = ""
        parts: list[ast.expr] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                form = f"a{form}"
                parts.append(constant(self._mangled(node.attr), node))
            else:
                form = f"k{form}"
                parts.append(self._key(node.slice))
            node = node.value
        return node, form, parts[::-1]

    def _mangled(self, text: str) -> str:
        """An attribute's name as a class's body has it."""
        if text.startswith("__") and not text.endswith("__") and self._owner:
            return f"_{self._owner.lstrip('_')}{text}"
        return text

    def _key(self, node: ast.expr) -> ast.expr:
        """What stands between brackets, as an expression that can stand elsewhere."""
        if isinstance(node, ast.Slice):
            ends = (node.lower, node.upper, node.step)
            made = [constant(None, node) if end is None else self.visit(end) for end in ends]
            return hook("slice", *made, at=node)
        if isinstance(node, ast.Tuple):
            return tuple_of([self._key(one) for one in node.elts], node)
        key: ast.expr = self.visit(node)
        return key


def _kind(operator: ast.AST, at: Node) -> ast.Constant:
    return constant(type(operator).__name__, at)


def _is_path(node: ast.expr) -> bool:
    """Whether something stands behind an item: ``a[i].vel``, ``a[i].rows[j]``, ``a[i][j]``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
        if isinstance(node, ast.Subscript):
            return True
    return False


def argument_names(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [one.arg for one in every]
