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
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn, TypeVar, final
from weakref import WeakKeyDictionary

from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.records import dataclass
from khaljit.tracer.scopes import assigned, bound, jumps
from khaljit.tracer.source import (
    FunctionNode,
    codes,
    compile_inside,
    fields,
    find,
    make_function,
    no_arguments,
    owner_of,
)

__all__ = ["Rewritten", "is_rewritten", "rewrite"]

HOOKS: Final = "_kj"
_A = TypeVar("_A", bound=ast.AST)


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


def _compile(function: FunctionType, node: FunctionNode, filename: str) -> Rewritten:
    code = function.__code__.replace(co_filename=filename)
    rewriter = _Rewriter(filename, owner_of(code), node.args)
    arguments = _stripped(node.args)
    local = {*code.co_varnames, *code.co_cellvars}
    loads = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    names = {one.id for one in loads} - local - set(code.co_freevars)
    if isinstance(node, ast.Lambda):
        new: FunctionNode = ast.Lambda(arguments, rewriter.expression(node.body, local))
    else:
        body = rewriter.function_body(node.body, local)
        new = make_function(node.name, arguments, body)
    ast.copy_location(new, node)
    try:
        compiled = compile_inside(new, code, (*code.co_freevars, HOOKS))
    except SyntaxError as error:  # each construct is a loop, and Python nests twenty of them
        raise TraceError(
            f"{function.__qualname__} nests too many branches and loops in each other",
            at=Site(filename, error.lineno or code.co_firstlineno),
            mend="move the inner ones to a helper function",
        ) from None
    return Rewritten(compiled, tuple(sorted(names)))


def _stripped(arguments: ast.arguments) -> ast.arguments:
    """Parameters without defaults and annotations: those live on the function object."""

    def plain(argument: ast.arg) -> ast.arg:
        return ast.copy_location(ast.arg(argument.arg), argument)

    return ast.arguments(
        [plain(one) for one in arguments.posonlyargs],
        [plain(one) for one in arguments.args],
        plain(arguments.vararg) if arguments.vararg else None,
        [plain(one) for one in arguments.kwonlyargs],
        [None] * len(arguments.kwonlyargs),
        plain(arguments.kwarg) if arguments.kwarg else None,
        [],
    )


# The rewriting.

_UNSUPPORTED: Final[dict[type[ast.AST], tuple[str, str]]] = {
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
if hasattr(ast, "TryStar"):
    _UNSUPPORTED[ast.TryStar] = _UNSUPPORTED[ast.Try]


@final
class _Rewriter:
    """Rewrites the body of one function."""

    def __init__(self, filename: str, owner: str | None, arguments: ast.arguments) -> None:
        self._filename = filename
        self._owner = owner
        self._arguments = arguments
        self._count = 0
        # Of each loop around the statement: what `break` leaves, what `continue` goes on with.
        self._loops: list[tuple[str, str]] = []
        self._block: str | None = None  # the construct of the function, when it returns early
        self._local: set[str] = set()

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

    def _carried(self, *nodes: ast.AST) -> tuple[str, ...]:
        """The variables of this function that some statements assign."""
        return tuple(name for name in assigned(*nodes) if name in self._local)

    # Functions.

    def function_body(self, body: list[ast.stmt], local: set[str]) -> list[ast.stmt]:
        """The statements of a function; as a block when it returns anywhere but at its end."""
        self._local = local
        tail = isinstance(body[-1], ast.Return)
        if "return" not in jumps(body[:-1] if tail else body):
            return self.statements(body)
        name = self._block = self._fresh("block")
        first, names = body[0], self._carried(*body)
        inner = [*self._load(name, names, first), *self.statements(body)]
        return [
            self._assign(name, self._hook("block", _names(names), at=first), first),
            self._call_statement(name, "start", first, scope=True),
            self._while_next(name, inner, first),
            self._at(ast.Return(self._attribute(name, "result", first)), body[-1]),
        ]

    def _nested(self, node: ast.FunctionDef) -> ast.stmt:
        """A function defined in the kernel: rewritten in its own right, where it stands."""
        if node.decorator_list:
            self._refuse(node, "a decorated function inside a kernel", "define it outside")
        for inner in ast.walk(node):
            if isinstance(inner, ast.Yield | ast.YieldFrom):
                self._refuse(inner, "yield", _UNSUPPORTED[ast.Yield][1])
        arguments = node.args
        rewriter = _Rewriter(self._filename, self._owner, arguments)
        arguments.defaults = [self.visit(one) for one in arguments.defaults]
        local = {*_argument_names(arguments), *bound(*node.body)}
        body = rewriter.function_body(node.body, local)
        new = ast.FunctionDef(**{**fields(node), "body": body, "returns": None})
        for argument in (*new.args.posonlyargs, *new.args.args, *new.args.kwonlyargs):
            argument.annotation = None
        return self._at(new, node)

    # Statements.

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            new += self.statement(statement)
        return new

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        refused = _UNSUPPORTED.get(type(node))
        if refused is not None:
            self._refuse(node, *refused)
        method = getattr(self, f"_do_{type(node).__name__}", None)
        if method is not None:
            result: list[ast.stmt] = method(node)
            return result
        return [self.visit(node)]

    def _do_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:  # noqa: N802
        return [self._nested(node)]

    def _do_If(self, node: ast.If) -> list[ast.stmt]:  # noqa: N802
        name = self._fresh("if")
        names = self._carried(*node.body, *node.orelse)
        chained = _elif_of(node) is not None
        hook = "elif_" if chained else "if_"
        test = self._hook(hook, self.visit(node.test), _names(names), at=node.test)
        if chained:
            arms = self._chained_arms(name, node)
        else:
            arms = ast.If(
                self._attribute(name, "arm", node),
                self.statements(node.body),
                self.statements(node.orelse),
            )
        return [
            self._assign(name, test, node.test),
            self._call_statement(name, "start", node.test, scope=True),
            self._while_next(
                name,
                [
                    *self._load(name, names, node),
                    self._at(arms, node),
                    self._call_statement(name, "leave", node, scope=True),
                ],
                node.test,
            ),
            *self._load(name, names, node),
            *self._leave_if_dead(jumps([node]), node),
        ]

    def _chained_arms(self, name: str, node: ast.If) -> ast.If:
        """What each step of a chain of ``elif`` does (`khaljit.tracer.flow.Chain`)."""
        steps = [self.statements(node.body)]
        inner = _elif_of(node)
        orelse = node.orelse
        while inner is not None:
            value = self._hook("test", self.visit(inner.test), at=inner.test)
            call = self._method(name, "test", inner.test, value, self._locals(inner.test))
            steps.append([self._at(ast.Expr(call), inner.test)])
            steps.append(self.statements(inner.body))
            orelse, inner = inner.orelse, _elif_of(inner)
        rest = self.statements(orelse)
        for place in range(len(steps) - 1, -1, -1):
            step = self._attribute(name, "step", node)
            test = ast.Compare(step, [ast.Eq()], [ast.Constant(place)])
            arms = ast.If(test, steps[place], rest)
            rest = [self._at(arms, node)]
        return arms

    def _do_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        return self._with_else(node) if node.orelse else self._while(node)

    def _while(self, node: ast.While, around: str | None = None) -> list[ast.stmt]:
        name = self._fresh("while")
        names = self._carried(node.test, *node.body)
        test = self._method(name, "test", node.test, self.visit(node.test), self._locals(node))
        body = self._loop_body(node, name, around)
        body.append(self._call_statement(name, "leave", node, scope=True))
        return [
            self._assign(name, self._hook("while_", _names(names), at=node), node),
            self._call_statement(name, "start", node, scope=True),
            self._while_next(
                name,
                [*self._load(name, names, node), self._at(ast.If(test, body, []), node)],
                node,
            ),
            *self._load(name, names, node),
            *self._leave_if_dead(jumps([node]), node),
        ]

    def _do_For(self, node: ast.For) -> list[ast.stmt]:  # noqa: N802
        return self._with_else(node) if node.orelse else self._for(node)

    def _for(self, node: ast.For, around: str | None = None) -> list[ast.stmt]:
        name = self._fresh("for")
        names = self._carried(node.target, *node.body)
        continues = ast.Constant("continue" in jumps(node.body))
        counter = ast.Constant(None)
        if isinstance(node.target, ast.Name) and node.target.id not in assigned(*node.body):
            counter = ast.Constant(node.target.id)
        iterable = self._hook(
            "for_", self.visit(node.iter), _names(names), continues, counter, at=node.iter
        )
        body = self._loop_body(node, name, around)
        item = self._attribute(name, "item", node.target)
        return [
            self._assign(name, iterable, node),
            self._call_statement(name, "start", node, scope=True),
            self._while_next(
                name,
                [
                    *self._load(name, names, node),
                    *self._store(node.target, item),
                    *body,
                    self._call_statement(name, "leave", node, scope=True),
                ],
                node,
            ),
            *self._load(name, names, node),
            *self._leave_if_dead(jumps([node]), node),
        ]

    def _loop_body(
        self, node: ast.While | ast.For, name: str, around: str | None
    ) -> list[ast.stmt]:
        """The statements of a loop, whose `break` leaves what is around it, if there is such."""
        self._loops.append((around or name, name))
        body = self.statements(node.body)
        self._loops.pop()
        return body

    def _with_else(self, node: ast.While | ast.For) -> list[ast.stmt]:
        """A loop and its ``else`` inside a ``for`` of one round, which `break` leaves."""
        name = self._fresh("for")
        names = self._carried(node)
        # A copy: what is around the loop still looks for the jumps in its ``else``.
        bare = self._at(type(node)(**{**fields(node), "orelse": []}), node)
        loop = self._for(bare, name) if isinstance(bare, ast.For) else self._while(bare, name)
        once = ast.Tuple([ast.Constant(None)], ast.Load())
        return [
            self._assign(name, self._hook("for_", once, _names(names), at=node), node),
            self._call_statement(name, "start", node, scope=True),
            self._while_next(
                name,
                [
                    *self._load(name, names, node),
                    *loop,
                    *([self._continue_if_dead(node)] if "break" in jumps(node.body) else []),
                    *self.statements(node.orelse),
                    self._call_statement(name, "leave", node, scope=True),
                ],
                node,
            ),
            *self._load(name, names, node),
            *self._leave_if_dead(jumps([node]), node),
        ]

    def _do_Break(self, node: ast.Break) -> list[ast.stmt]:  # noqa: N802
        return self._jump(self._loops[-1][0], "break_", node, self._locals(node))

    def _do_Continue(self, node: ast.Continue) -> list[ast.stmt]:  # noqa: N802
        return self._jump(self._loops[-1][1], "continue_", node, self._locals(node))

    def _do_Return(self, node: ast.Return) -> list[ast.stmt]:  # noqa: N802
        value = ast.Constant(None) if node.value is None else self.visit(node.value)
        if self._block is None:
            return [self._at(ast.Return(self._hook("result", value, at=node)), node)]
        return self._jump(self._block, "return_", node, value)

    def _jump(self, name: str, method: str, node: ast.stmt, *args: ast.expr) -> list[ast.stmt]:
        """Every construct is a Python loop, so `continue` ends whatever the jump stands in."""
        call = self._at(ast.Expr(self._method(name, method, node, *args)), node)
        return [call, self._at(ast.Continue(), node)]

    def _leave_if_dead(self, found: set[str], node: ast.stmt) -> list[ast.stmt]:
        """Behind a construct that jumps may leave: go on only where something can follow."""
        if not found:
            return []
        if not self._loops and self._block is None:
            return []
        return [self._continue_if_dead(node)]

    def _continue_if_dead(self, node: ast.stmt) -> ast.stmt:
        dead = ast.If(self._hook("dead", at=node), [self._at(ast.Continue(), node)], [])
        return self._at(dead, node)

    def _do_Assert(self, node: ast.Assert) -> list[ast.stmt]:  # noqa: N802
        message = ast.Constant(None) if node.msg is None else self._thunk(node.msg)
        text = ast.Constant(ast.unparse(node.test))
        call = self._hook("assert_", self.visit(node.test), message, text, at=node)
        return [self._at(ast.Expr(call), node)]

    def _do_Raise(self, node: ast.Raise) -> list[ast.stmt]:  # noqa: N802
        check = self._at(ast.Expr(self._hook("check_raise", at=node)), node)
        return [check, node]

    def _do_Assign(self, node: ast.Assign) -> list[ast.stmt]:  # noqa: N802
        simple = all(_is_plain_target(target) for target in node.targets)
        if simple:
            return [self.visit(node)]
        value = self._fresh("value")
        self._local.add(value)
        new = [self._assign(value, self.visit(node.value), node)]
        for target in node.targets:
            new += self._store(target, self._at(ast.Name(value, ast.Load()), target))
        return new

    def _store(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Assign to any target; items and attributes go through hooks."""
        if isinstance(target, ast.Tuple | ast.List):
            if any(isinstance(one, ast.Starred) for one in target.elts):
                return [self._at(ast.Assign([target], value), target)]
            parts = [self._fresh("part") for _ in target.elts]
            spread = ast.Tuple([ast.Name(part, ast.Store()) for part in parts], ast.Store())
            new: list[ast.stmt] = [self._at(ast.Assign([spread], value), target)]
            for one, part in zip(target.elts, parts, strict=True):
                new += self._store(one, self._at(ast.Name(part, ast.Load()), one))
            return new
        if isinstance(target, ast.Name):
            return [self._at(ast.Assign([target], value), target)]
        root, form, steps = self._steps(target)
        owner = self._load_name(root) if isinstance(root, ast.Name) else self.visit(root)
        call = self._hook("assign", owner, ast.Constant(form), value, *steps, at=target)
        if isinstance(root, ast.Name):
            return [self._rebind(root.id, call, target)]
        return [self._at(ast.Expr(call), target)]

    def _steps(self, node: ast.expr) -> tuple[ast.expr, str, list[ast.expr]]:
        """``a[i].vel`` as its root, the form ``ka`` of its steps, and i and "vel"."""
        form = ""
        parts: list[ast.expr] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                form = f"a{form}"
                parts.append(self._at(ast.Constant(self._mangled(node.attr)), node))
            else:
                form = f"k{form}"
                parts.append(self._key(node.slice))
            node = node.value
        return node, form, parts[::-1]

    def _rebind(self, name: str, call: ast.expr, at: ast.expr) -> ast.stmt:
        """A vector is a value: changing a part gives its name a new one."""
        if name not in self._local:
            owner = self._at(ast.Name(name, ast.Load()), at)
            return self._at(ast.Expr(self._hook("captured", owner, call, at=at)), at)
        return self._assign(name, call, at)

    def _do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:  # noqa: N802
        hook, operator = "augmented", ast.Constant(type(node.op).__name__)
        if isinstance(node.target, ast.Name):
            own = self._load_name(node.target)
            combined = self._hook(hook, operator, own, self.visit(node.value), at=node)
            return [self._assign(node.target.id, combined, node)]
        new: list[ast.stmt] = []
        target = self._once(node.target, new)
        value = self._fresh("value")
        combined = self._hook(hook, operator, self.visit(target), self.visit(node.value), at=node)
        new.append(self._assign(value, combined, node))
        return [
            *new,
            *self._store(self._once(target, []), self._at(ast.Name(value, ast.Load()), node)),
        ]

    def _once(self, target: ast.expr, new: list[ast.stmt]) -> ast.expr:
        """A target whose root and keys are names; ``new`` gets the statements that set them.

        What is made of nothing but names is copied, since visiting changes it.
        """
        if isinstance(target, ast.Attribute):
            inner = self._once(target.value, new)
            return self._at(ast.Attribute(inner, target.attr, ast.Load()), target)
        if isinstance(target, ast.Subscript):
            inner = self._once(target.value, new)
            if isinstance(target.slice, ast.Name):
                key = target.slice.id
            else:
                key = self._fresh("key")
                new.append(self._assign(key, self._key(target.slice), target.slice))
            name = self._at(ast.Name(key, ast.Load()), target.slice)
            return self._at(ast.Subscript(inner, name, ast.Load()), target)
        if isinstance(target, ast.Name):
            return self._at(ast.Name(target.id, ast.Load()), target)
        owner = self._fresh("owner")
        new.append(self._assign(owner, self.visit(target), target))
        return self._at(ast.Name(owner, ast.Load()), target)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:  # noqa: N802
        if node.value is None:
            return [self._at(ast.Pass(), node)]
        return self.statement(self._at(ast.Assign([node.target], node.value), node))

    # Expressions.

    def expression(self, node: ast.expr, local: set[str]) -> ast.expr:
        self._local = local
        rewritten: ast.expr = self.visit(node)
        return rewritten

    def visit(self, node: Any) -> Any:
        """A node with its expressions rewritten."""
        refused = _UNSUPPORTED.get(type(node))
        if refused is not None:
            self._refuse(node, *refused)
        method = getattr(self, f"_ex_{type(node).__name__}", None)
        if method is not None:
            return method(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif isinstance(value, list):
                setattr(
                    node,
                    name,
                    [self.visit(one) if isinstance(one, ast.AST) else one for one in value],
                )
        return node

    def _ex_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        return self._hook(
            "choose",
            self.visit(node.test),
            self._thunk(node.body),
            self._thunk(node.orelse),
            at=node,
        )

    def _ex_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        hook = "and_" if isinstance(node.op, ast.And) else "or_"
        first, *rest = node.values
        return self._hook(hook, self.visit(first), *map(self._thunk, rest), at=node)

    def _ex_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802
        if isinstance(node.op, ast.Not):
            return self._hook("not_", self.visit(node.operand), at=node)
        if isinstance(node.operand, ast.Constant):
            return node
        name = ast.Constant(type(node.op).__name__)
        return self._hook("unary", name, self.visit(node.operand), at=node)

    def _ex_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802
        name = ast.Constant(type(node.op).__name__)
        return self._hook("binary", name, self.visit(node.left), self.visit(node.right), at=node)

    def _ex_Compare(self, node: ast.Compare) -> ast.expr:  # noqa: N802
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot):
            node.left = self.visit(node.left)
            node.comparators = [self.visit(node.comparators[0])]
            return node
        if len(node.ops) == 1 and not isinstance(node.ops[0], ast.In | ast.NotIn):
            name = ast.Constant(type(node.ops[0]).__name__)
            right = self.visit(node.comparators[0])
            return self._hook("binary", name, self.visit(node.left), right, at=node)
        names = ast.Tuple([ast.Constant(type(op).__name__) for op in node.ops], ast.Load())
        return self._hook(
            "chain", names, self.visit(node.left), *map(self._thunk, node.comparators), at=node
        )

    def _ex_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            # Python finds these by the calling frame, which is a hook's.
            names = ["__class__", *_argument_names(self._arguments)[:1]]
            node.args = [self._at(ast.Name(name, ast.Load()), node) for name in names]
        function = self.visit(node.func)
        new = self._hook("call", function, *(self.visit(one) for one in node.args), at=node)
        new.keywords = [self.visit(one) for one in node.keywords]
        return new

    def _ex_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        if not isinstance(node.ctx, ast.Load):
            return node
        if _is_path(node):
            return self._path(node)
        name = ast.Constant(self._mangled(node.attr))
        return self._hook("attribute", self.visit(node.value), name, at=node)

    def _mangled(self, name: str) -> str:
        """An attribute's name as a class's body has it."""
        if name.startswith("__") and not name.endswith("__") and self._owner:
            return f"_{self._owner.lstrip('_')}{name}"
        return name

    def _path(self, node: ast.expr) -> ast.expr:
        root, form, parts = self._steps(node)
        return self._hook("path", self.visit(root), ast.Constant(form), *parts, at=node)

    def _ex_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802
        if not isinstance(node.ctx, ast.Load):
            return node
        if _is_path(node):
            return self._path(node)
        return self._hook("item", self.visit(node.value), self._key(node.slice), at=node)

    def _key(self, node: ast.expr) -> ast.expr:
        """What stands between brackets, as an expression that can stand elsewhere."""
        if isinstance(node, ast.Slice):
            ends = [
                ast.Constant(None) if end is None else self.visit(end)
                for end in (node.lower, node.upper, node.step)
            ]
            return self._hook("slice", *ends, at=node)
        if isinstance(node, ast.Tuple):
            return self._at(ast.Tuple([self._key(one) for one in node.elts], ast.Load()), node)
        key: ast.expr = self.visit(node)
        return key

    def _ex_Lambda(self, node: ast.Lambda) -> ast.expr:  # noqa: N802
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        node.body = self.visit(node.body)
        return node

    def _thunk(self, node: ast.expr) -> ast.expr:
        """An expression to be evaluated only when it is asked for."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self._refuse(inner, ":=", "assign in a statement before this expression")
        return self._at(ast.Lambda(no_arguments(), self.visit(node)), node)

    # Making nodes.

    def _at(self, node: _A, at: ast.AST) -> _A:
        """Give a node and everything new below it a place in the source."""
        ast.copy_location(node, at)
        for inner in ast.iter_child_nodes(node):
            if not hasattr(inner, "lineno") and "lineno" in inner._attributes:
                self._at(inner, at)
            elif not inner._attributes:
                for below in ast.iter_child_nodes(inner):
                    if not hasattr(below, "lineno") and "lineno" in below._attributes:
                        self._at(below, at)
        return node

    def _hook(self, name: str, *args: ast.expr, at: ast.AST) -> ast.Call:
        function = ast.Attribute(ast.Name(HOOKS, ast.Load()), name, ast.Load())
        return self._at(ast.Call(function, list(args), []), at)

    def _method(self, name: str, method: str, at: ast.AST, *args: ast.expr) -> ast.expr:
        call: ast.expr = self._at(ast.Call(self._attribute(name, method, at), list(args), []), at)
        return call

    def _call_statement(
        self, name: str, method: str, at: ast.AST, *, scope: bool = False
    ) -> ast.stmt:
        args = [self._locals(at)] if scope else []
        statement: ast.stmt = self._at(ast.Expr(self._method(name, method, at, *args)), at)
        return statement

    def _locals(self, at: ast.AST) -> ast.expr:
        call: ast.expr = self._at(ast.Call(ast.Name("locals", ast.Load()), [], []), at)
        return call

    def _attribute(self, name: str, attribute: str, at: ast.AST) -> ast.expr:
        node: ast.expr = self._at(
            ast.Attribute(ast.Name(name, ast.Load()), attribute, ast.Load()), at
        )
        return node

    def _assign(self, name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
        node: ast.stmt = self._at(ast.Assign([ast.Name(name, ast.Store())], value), at)
        return node

    def _load_name(self, node: ast.Name) -> ast.expr:
        name: ast.expr = self._at(ast.Name(node.id, ast.Load()), node)
        return name

    def _while_next(self, name: str, body: list[ast.stmt], at: ast.AST) -> ast.stmt:
        test = ast.Call(self._attribute(name, "next", at), [], [])
        node: ast.stmt = self._at(ast.While(test, body, []), at)
        return node

    def _load(self, name: str, names: Sequence[str], at: ast.AST) -> list[ast.stmt]:
        """Read the variables from the construct; one without a value becomes unbound again."""
        if not names:
            return []
        targets = ast.Tuple([ast.Name(one, ast.Store()) for one in names], ast.Store())
        body: list[ast.stmt] = [ast.Assign([targets], self._attribute(name, "values", at))]
        for one in names:
            unset = ast.Compare(
                ast.Name(one, ast.Load()),
                [ast.Is()],
                [ast.Attribute(ast.Name(HOOKS, ast.Load()), "UNSET", ast.Load())],
            )
            body.append(ast.If(unset, [ast.Delete([ast.Name(one, ast.Del())])], []))
        load = ast.If(self._attribute(name, "load", at), body, [])
        ast.copy_location(load, at)
        for inner in ast.walk(load):
            if not hasattr(inner, "lineno") and "lineno" in inner._attributes:
                ast.copy_location(inner, at)
        return [load]


def _elif_of(node: ast.If) -> ast.If | None:
    """The ``elif`` of an ``if``, when that is all that stands in its ``else``."""
    inner = node.orelse[0] if len(node.orelse) == 1 else None
    return inner if isinstance(inner, ast.If) else None


def _names(names: Sequence[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def _argument_names(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [one.arg for one in every]


def _is_plain_target(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(_is_plain_target(one) for one in target.elts)
    return isinstance(target, ast.Name | ast.Starred)


def _is_path(node: ast.expr) -> bool:
    """Whether something stands behind an item: ``a[i].vel``, ``a[i].rows[j]``, ``a[i][j]``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
        if isinstance(node, ast.Subscript):
            return True
    return False
