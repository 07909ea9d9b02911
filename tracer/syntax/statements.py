"""What statements become: branches, loops and early returns are Python loops over a construct.

``if c: x = 1`` is, where ``_kj_if1`` is a `khaljit.tracer.flow.If`::

    _kj_if1 = _kj.if_(c, ("x",))
    _kj_if1.start(locals())
    while _kj_if1.next():
        x = ...                     # what it has before this arm, where `_kj_if1.load` says so
        if _kj_if1.arm:
            x = 1
        _kj_if1.leave(locals())
    x = ...                         # what it has behind the branch

The loop runs once where the host decides, else once for each arm. A ``for`` and a ``while`` have
the same frame with their body in it, and a function that returns early stands in a whole in one.
As every construct is a Python loop, ``continue`` leaves it from whatever stands inside.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, final

from khaljit.tracer.syntax import HOOKS
from khaljit.tracer.syntax.expressions import UNSUPPORTED, argument_names
from khaljit.tracer.syntax.nodes import (
    STORE,
    Node,
    assign,
    attribute,
    branch,
    constant,
    delete,
    do,
    fields,
    hook,
    jump_on,
    local_variables,
    method,
    name,
    names,
    put,
    repeat,
    target,
    tuple_of,
)
from khaljit.tracer.syntax.scopes import assigned, bound, jumps
from khaljit.tracer.syntax.targets import Targets

__all__ = ["Statements"]


@final
class Statements(Targets):
    """Rewrites the body of one function."""

    def __init__(
        self, filename: str, owner: str | None, arguments: ast.arguments, local: set[str]
    ) -> None:
        super().__init__(filename, owner, arguments, local)
        # Of each loop around the statement: what `break` leaves, what `continue` goes on with.
        self._loops: list[tuple[str, str]] = []
        self._block: str | None = None  # the construct of the function, when it returns early

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            new += self._statement(statement)
        return new

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        refused = UNSUPPORTED.get(type(node))
        if refused is not None:
            self._refuse(node, *refused)
        rewrite: Callable[[Any], list[ast.stmt]] | None
        rewrite = getattr(self, f"_do_{type(node).__name__}", None)
        return [self.visit(node)] if rewrite is None else rewrite(node)

    # Functions.

    def function_body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function; as a block when it returns anywhere but at its end."""
        tail = isinstance(body[-1], ast.Return)
        if "return" not in jumps(body[:-1] if tail else body):
            return self.statements(body)
        at, variables = body[0], self._carried(*body)
        block = self._block = self._fresh("block")
        made = hook("block", names(variables, at), at=at)
        inside = [*self._load(block, variables, at), *self.statements(body)]
        result = put(ast.Return(attribute(block, "result", at)), body[-1])
        return [*self._frame(block, made, at, inside), result]

    def _do_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:  # noqa: N802
        """A function defined in the kernel: rewritten in its own right, where it stands."""
        if node.decorator_list:
            self._refuse(node, "a decorated function inside a kernel", "define it outside")
        for inner in ast.walk(node):
            if isinstance(inner, ast.Yield | ast.YieldFrom):
                self._refuse(inner, "yield", UNSUPPORTED[ast.Yield][1])
        arguments = node.args
        local = {*argument_names(arguments), *bound(*node.body)}
        arguments.defaults = [self.visit(one) for one in arguments.defaults]
        inside = Statements(self._filename, self._owner, arguments, local)
        body = inside.function_body(node.body)
        new = ast.FunctionDef(**{**fields(node), "body": body, "returns": None})
        for argument in (*new.args.posonlyargs, *new.args.args, *new.args.kwonlyargs):
            argument.annotation = None
        return [put(new, node)]

    def _do_Return(self, node: ast.Return) -> list[ast.stmt]:  # noqa: N802
        value = constant(None, node) if node.value is None else self.visit(node.value)
        if self._block is None:
            return [put(ast.Return(hook("result", value, at=node)), node)]
        return self._jump(self._block, "return_", node, value)

    # Branches.

    def _do_If(self, node: ast.If) -> list[ast.stmt]:  # noqa: N802
        construct = self._fresh("if")
        variables = self._carried(*node.body, *node.orelse)
        test = self.visit(node.test)
        if _elif_of(node) is None:
            made = hook("if_", test, names(variables, node.test), at=node.test)
            then, orelse = self.statements(node.body), self.statements(node.orelse)
            arms = branch(attribute(construct, "arm", node), then, node, orelse)
        else:
            made = hook("elif_", test, names(variables, node.test), at=node.test)
            arms = self._chained_arms(construct, node)
        body = [arms, self._leave(construct, node)]
        return self._construct(construct, made, node, node.test, variables, body)

    def _chained_arms(self, construct: str, node: ast.If) -> ast.If:
        """What each step of a chain of ``elif`` does (`khaljit.tracer.flow.Chain`)."""
        steps = [self.statements(node.body)]
        inner = _elif_of(node)
        orelse = node.orelse
        while inner is not None:
            at = inner.test
            value = hook("test", self.visit(at), at=at)
            steps.append([do(method(construct, "test", value, local_variables(at), at=at), at)])
            steps.append(self.statements(inner.body))
            orelse, inner = inner.orelse, _elif_of(inner)
        rest = self.statements(orelse)
        for place in range(len(steps) - 1, -1, -1):
            step = attribute(construct, "step", node)
            test = put(ast.Compare(step, [ast.Eq()], [constant(place, node)]), node)
            arms = branch(test, steps[place], node, rest)
            rest = [arms]
        return arms

    # Loops.

    def _do_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        return self._with_else(node) if node.orelse else self._while(node)

    def _while(self, node: ast.While, around: str | None = None) -> list[ast.stmt]:
        construct = self._fresh("while")
        variables = self._carried(node.test, *node.body)
        made = hook("while_", names(variables, node), at=node)
        value = self.visit(node.test)
        test = method(construct, "test", value, local_variables(node), at=node.test)
        body = self._loop_body(node, construct, around)
        body.append(self._leave(construct, node))
        return self._construct(construct, made, node, node, variables, [branch(test, body, node)])

    def _do_For(self, node: ast.For) -> list[ast.stmt]:  # noqa: N802
        return self._with_else(node) if node.orelse else self._for(node)

    def _for(self, node: ast.For, around: str | None = None) -> list[ast.stmt]:
        construct = self._fresh("for")
        variables = self._carried(node.target, *node.body)
        counter = None
        if isinstance(node.target, ast.Name) and node.target.id not in assigned(*node.body):
            counter = node.target.id
        at = node.iter
        continues = constant("continue" in jumps(node.body), at)
        iterable = self.visit(at)
        made = hook("for_", iterable, names(variables, at), continues, constant(counter, at), at=at)
        body = self._loop_body(node, construct, around)
        item = self._store(node.target, attribute(construct, "item", node.target))
        body = [*item, *body, self._leave(construct, node)]
        return self._construct(construct, made, node, node, variables, body)

    def _loop_body(
        self, node: ast.While | ast.For, construct: str, around: str | None
    ) -> list[ast.stmt]:
        """The statements of a loop, whose `break` leaves what is around it, if there is such."""
        self._loops.append((around or construct, construct))
        body = self.statements(node.body)
        self._loops.pop()
        return body

    def _with_else(self, node: ast.While | ast.For) -> list[ast.stmt]:
        """A loop and its ``else`` inside a ``for`` of one round, which `break` leaves."""
        construct = self._fresh("for")
        variables = self._carried(node)
        # A copy: what is around the loop still looks for the jumps in its ``else``.
        bare = put(type(node)(**{**fields(node), "orelse": []}), node)
        if isinstance(bare, ast.For):
            loop = self._for(bare, construct)
        else:
            loop = self._while(bare, construct)
        once = tuple_of([constant(None, node)], node)
        made = hook("for_", once, names(variables, node), at=node)
        if "break" in jumps(node.body):
            loop.append(jump_on(hook("dead", at=node), node))
        body = [*loop, *self.statements(node.orelse), self._leave(construct, node)]
        return self._construct(construct, made, node, node, variables, body)

    def _do_Break(self, node: ast.Break) -> list[ast.stmt]:  # noqa: N802
        return self._jump(self._loops[-1][0], "break_", node, local_variables(node))

    def _do_Continue(self, node: ast.Continue) -> list[ast.stmt]:  # noqa: N802
        return self._jump(self._loops[-1][1], "continue_", node, local_variables(node))

    def _jump(self, construct: str, text: str, at: ast.stmt, *args: ast.expr) -> list[ast.stmt]:
        return [do(method(construct, text, *args, at=at), at), put(ast.Continue(), at)]

    # The frame of a construct.

    def _construct(
        self,
        construct: str,
        made: ast.expr,
        node: ast.stmt,
        at: Node,
        variables: Sequence[str],
        body: Sequence[ast.stmt],
    ) -> list[ast.stmt]:
        """A branch or loop.

        Args:
            construct: the variable that holds it.
            made: what makes it.
            node: the user's statement.
            at: the place of the frame.
            variables: what it may assign.
            body: what each round does.
        """
        load = self._load(construct, variables, node)
        new = [*self._frame(construct, made, at, [*load, *body]), *load]
        if jumps([node]) and (self._loops or self._block is not None):
            new.append(jump_on(hook("dead", at=node), node))  # where nothing can follow
        return new

    def _frame(
        self, construct: str, made: ast.expr, at: Node, body: Sequence[ast.stmt]
    ) -> list[ast.stmt]:
        return [
            assign(construct, made, at),
            do(method(construct, "start", local_variables(at), at=at), at),
            repeat(method(construct, "next", at=at), body, at),
        ]

    def _leave(self, construct: str, at: Node) -> ast.stmt:
        return do(method(construct, "leave", local_variables(at), at=at), at)

    def _load(self, construct: str, variables: Sequence[str], at: Node) -> list[ast.stmt]:
        """Read the variables from the construct; one without a value becomes unbound again."""
        if not variables:
            return []
        all_of_them = put(ast.Tuple([target(one, at) for one in variables], STORE), at)
        body: list[ast.stmt] = [assign(all_of_them, attribute(construct, "values", at), at)]
        for one in variables:
            unset = attribute(HOOKS, "UNSET", at)
            test = put(ast.Compare(name(one, at), [ast.Is()], [unset]), at)
            body.append(branch(test, [delete(one, at)], at))
        return [branch(attribute(construct, "load", at), body, at)]

    def _carried(self, *nodes: ast.AST) -> tuple[str, ...]:
        """The variables of this function that some statements assign."""
        return tuple(one for one in assigned(*nodes) if one in self._local)

    # What may fail.

    def _do_Assert(self, node: ast.Assert) -> list[ast.stmt]:  # noqa: N802
        message = constant(None, node) if node.msg is None else self._thunk(node.msg)
        text = constant(ast.unparse(node.test), node)
        return [do(hook("assert_", self.visit(node.test), message, text, at=node), node)]

    def _do_Raise(self, node: ast.Raise) -> list[ast.stmt]:  # noqa: N802
        return [do(hook("check_raise", at=node), node), node]


def _elif_of(node: ast.If) -> ast.If | None:
    """The ``elif`` of an ``if``, when that is all that stands in its ``else``."""
    inner = node.orelse[0] if len(node.orelse) == 1 else None
    return inner if isinstance(inner, ast.If) else None
