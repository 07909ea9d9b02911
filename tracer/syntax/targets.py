"""What assignments become.

Names are assigned as they are. Items and attributes go through a hook, which stores to arrays and
gives what the root's name is to hold: ``v.x = s`` is ``v = _kj.assign(v, "a", s, "x")``, as a
vector is a value, and changing a part gives its name a new one.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from khaljit.tracer.syntax.expressions import Expressions
from khaljit.tracer.syntax.nodes import (
    STORE,
    assign,
    constant,
    do,
    hook,
    name,
    put,
    target,
)

__all__ = ["Targets"]


class Targets(Expressions):
    """Rewrites the assignments of one function."""

    def __init__(
        self, filename: str, owner: str | None, arguments: ast.arguments, local: set[str]
    ) -> None:
        super().__init__(filename, owner, arguments)
        self._local = local

    def _do_Assign(self, node: ast.Assign) -> list[ast.stmt]:  # noqa: N802
        if all(map(_is_plain, node.targets)):
            node.value = self.visit(node.value)
            return [node]
        value = self._fresh("value")
        self._local.add(value)
        new: list[ast.stmt] = [assign(value, self.visit(node.value), node)]
        for one in node.targets:
            new += self._store(one, name(value, one))
        return new

    def _do_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:  # noqa: N802
        if node.value is None:
            return [put(ast.Pass(), node)]
        return self._do_Assign(put(ast.Assign([node.target], node.value), node))

    def _do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:  # noqa: N802
        kind = constant(type(node.op).__name__, node)
        if isinstance(node.target, ast.Name):
            own = name(node.target.id, node.target)
            combined = hook("augmented", kind, own, self.visit(node.value), at=node)
            return [assign(node.target.id, combined, node)]
        new: list[ast.stmt] = []
        once = self._once(node.target, new)
        value = self._fresh("value")
        combined = hook("augmented", kind, self.visit(once), self.visit(node.value), at=node)
        new.append(assign(value, combined, node))
        return [*new, *self._store(self._once(once, []), name(value, node))]

    def _once(self, node: ast.expr, new: list[ast.stmt]) -> ast.expr:
        """A target whose root and keys are names; ``new`` gets the statements that set them.

        What is made of nothing but names is copied, since visiting changes it.
        """
        if isinstance(node, ast.Attribute):
            inner = self._once(node.value, new)
            return put(ast.Attribute(inner, node.attr, ast.Load()), node)
        if isinstance(node, ast.Subscript):
            inner = self._once(node.value, new)
            if isinstance(node.slice, ast.Name):
                key = node.slice.id
            else:
                key = self._fresh("key")
                new.append(assign(key, self._key(node.slice), node.slice))
            return put(ast.Subscript(inner, name(key, node.slice), ast.Load()), node)
        if isinstance(node, ast.Name):
            return name(node.id, node)
        owner = self._fresh("owner")
        new.append(assign(owner, self.visit(node), node))
        return name(owner, node)

    def _store(self, to: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Assign to any target."""
        if isinstance(to, ast.Tuple | ast.List):
            return self._spread(to, to.elts, value)
        if isinstance(to, ast.Name):
            return [assign(to, value, to)]
        root, form, steps = self._steps(to)
        if not isinstance(root, ast.Name):
            call = hook("assign", self.visit(root), constant(form, to), value, *steps, at=to)
            return [do(call, to)]
        call = hook("assign", name(root.id, root), constant(form, to), value, *steps, at=to)
        if root.id in self._local:
            return [assign(root.id, call, to)]
        return [do(hook("captured", name(root.id, to), call, at=to), to)]

    def _spread(self, to: ast.expr, parts: Sequence[ast.expr], value: ast.expr) -> list[ast.stmt]:
        """Assign to several targets."""
        if any(isinstance(one, ast.Starred) for one in parts):
            return [assign(to, value, to)]
        fresh = [self._fresh("part") for _ in parts]
        spread = put(ast.Tuple([target(one, to) for one in fresh], STORE), to)
        new: list[ast.stmt] = [assign(spread, value, to)]
        for one, part in zip(parts, fresh, strict=True):
            new += self._store(one, name(part, one))
        return new


def _is_plain(to: ast.expr) -> bool:
    """Whether a target is made of names alone."""
    if isinstance(to, ast.Tuple | ast.List):
        return all(map(_is_plain, to.elts))
    return isinstance(to, ast.Name | ast.Starred)
