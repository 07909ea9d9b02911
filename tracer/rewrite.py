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
import linecache
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn, TypeVar, final
from weakref import WeakKeyDictionary

from khaljit.tracer.errors import Site, TraceError

__all__ = ["Rewritten", "is_rewritten", "rewrite"]

HOOKS: Final = "_kj"
_PLACEHOLDER: Final = "_kj_function"
_STARTED: Final = time.time()
_FUTURE: Final = 0x1FF0000  # the compiler flags of `from __future__` imports


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


_CACHE: Final[WeakKeyDictionary[CodeType, Rewritten | None]] = WeakKeyDictionary()
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
        if code in _CACHE:
            return _CACHE[code]
    found = _find(code)
    result = None if found is None else _compile(function, *found)
    with _LOCK:
        _CACHE[code] = result
        if result is not None:
            for inner in _codes(result.code):
                _REWRITTEN[inner] = True
    return result


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


# Finding the source.

_Node = ast.FunctionDef | ast.Lambda
_A = TypeVar("_A", bound=ast.AST)


def _find(code: CodeType) -> tuple[_Node, str | None] | None:
    """The syntax tree of a code object with its line numbers, and its class for name mangling."""
    if code.co_filename.startswith("<frozen"):
        return None
    lines = linecache.getlines(code.co_filename)
    if not lines or code.co_firstlineno > len(lines):
        return None
    node = _find_lambda(code, lines) if code.co_name == "<lambda>" else _find_def(code, lines)
    if node is None or (_changed_since_start(code.co_filename) and not _matches(node, code)):
        return None
    path = code.co_qualname.split(".")
    owner = path[-2] if len(path) > 1 and path[-2] != "<locals>" else None
    return node, owner


def _find_def(code: CodeType, lines: Sequence[str]) -> _Node | None:
    """Parse only the lines of the function: parsing a whole module would be slow."""
    first = code.co_firstlineno
    last = max(
        (line for inner in _codes(code) for _, line, _, _ in inner.co_positions() if line),
        default=first,
    )
    for end in range(last, min(len(lines), last + 100) + 1):
        # A call or string may close on lines that hold no instruction: take more until it parses.
        tree = _parse_block(lines[first - 1 : end])
        if tree is not None:
            ast.increment_lineno(tree, first - 1)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                    return node
            return None
    return None


def _parse_block(lines: Sequence[str]) -> ast.Module | None:
    """Parse an indented block. Columns stay right: the block is put under an `if` of one line."""
    text = "".join(lines)
    indent = len(lines[0]) - len(lines[0].lstrip())
    if indent == 0:
        try:
            return ast.parse(text)
        except SyntaxError:
            return None
    try:
        tree = ast.parse("if 1:\n" + text)
    except SyntaxError:
        return None
    ast.increment_lineno(tree, -1)
    return tree


def _find_lambda(code: CodeType, lines: Sequence[str]) -> _Node | None:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    candidates = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
    ]
    if len(candidates) == 1:
        return candidates[0]
    same = [node for node in candidates if _matches(node, code)]
    return same[0] if same else None


def _changed_since_start(filename: str) -> bool:
    """Whether a file was edited after this process began, so that it may not be what runs."""
    try:
        return os.stat(filename).st_mtime > _STARTED
    except OSError:
        return False  # no file: a notebook cell or a registered string


def _matches(node: _Node, code: CodeType) -> bool:
    """Whether source compiles to a given code object."""
    compiled = _compile_factory(node, code, code.co_freevars)
    return compiled.co_code == code.co_code and compiled.co_names == code.co_names


def _compile_factory(node: _Node, code: CodeType, free: Sequence[str]) -> CodeType:
    """Compile a function inside one that has its free variables."""
    body: list[ast.stmt]
    if isinstance(node, ast.Lambda):
        body = [ast.Expr(node)]
    else:
        # Under a name that the function cannot mean: its own may be a global to it.
        bare = ast.FunctionDef(**{**_fields(node), "decorator_list": [], "name": _PLACEHOLDER})
        body = [ast.copy_location(bare, node)]
    assigned = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in free]
    factory = _function("_factory", _no_arguments(), [*assigned, *body])
    module = ast.Module([factory], [])
    ast.fix_missing_locations(module)
    flags = code.co_flags & _FUTURE
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    for outer in compiled.co_consts:
        if isinstance(outer, CodeType):
            for inner in outer.co_consts:
                if isinstance(inner, CodeType) and inner.co_name in (_PLACEHOLDER, "<lambda>"):
                    return inner.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    raise AssertionError("a compiled factory holds its function")


def _fields(node: ast.AST) -> dict[str, Any]:
    return {name: getattr(node, name) for name in node._fields if hasattr(node, name)}


def _function(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    fields: dict[str, Any] = {"name": name, "args": arguments, "body": body, "decorator_list": []}
    if "type_params" in ast.FunctionDef._fields:  # Python 3.12
        fields["type_params"] = []
    return ast.FunctionDef(**fields)


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])


def _compile(function: FunctionType, node: _Node, owner: str | None) -> Rewritten:
    code = function.__code__
    rewriter = _Rewriter(code.co_filename, owner)
    arguments = _stripped(node.args)
    local = {*code.co_varnames, *code.co_cellvars}
    loads = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    names = {one.id for one in loads} - local - set(code.co_freevars)
    if isinstance(node, ast.Lambda):
        new: _Node = ast.Lambda(arguments, rewriter.expression(node.body, local))
    else:
        body = rewriter.function_body(node.body, local)
        new = _function(node.name, arguments, body)
    ast.copy_location(new, node)
    compiled = _compile_factory(new, code, (*code.co_freevars, HOOKS))
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


# Scopes.


class _Assigned(ast.NodeVisitor):
    """Names that statements assign in their own function: nested functions, lambdas and
    comprehensions have their own."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

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
        if isinstance(node.ctx, ast.Store):
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
    """The name that ``name.x.y`` or ``name[i]`` starts with; None when it stands in an array."""
    if isinstance(node, ast.Attribute):
        return _root_name(node.value)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return node.value
    return node if isinstance(node, ast.Name) else None


def assigned(*parts: ast.AST) -> tuple[str, ...]:
    """Names that some statements or expressions assign, in order of appearance."""
    visitor = _Assigned()
    for part in parts:
        visitor.visit(part)
    return tuple(visitor.names)


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

    def __init__(self, filename: str, owner: str | None) -> None:
        self._filename = filename
        self._owner = owner
        self._count = 0
        self._loops: list[str] = []  # the construct of each loop around the statement
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

    # Functions.

    def function_body(self, body: list[ast.stmt], local: set[str]) -> list[ast.stmt]:
        """The statements of a function; as a block when it returns anywhere but at its end."""
        self._local = local
        tail = isinstance(body[-1], ast.Return)
        if "return" not in jumps(body[:-1] if tail else body):
            return self.statements(body)
        name = self._block = self._fresh("block")
        first, names = body[0], assigned(*body)
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
        rewriter = _Rewriter(self._filename, self._owner)
        arguments = node.args
        arguments.defaults = [self.visit(one) for one in arguments.defaults]
        local = {*_argument_names(arguments), *assigned(*node.body)}
        body = rewriter.function_body(node.body, local)
        new = ast.FunctionDef(**{**_fields(node), "body": body, "returns": None})
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
        names = assigned(*node.body, *node.orelse)
        test = self._hook("if_", self.visit(node.test), _names(names), at=node.test)
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

    def _do_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        if node.orelse:
            return self._with_else(node)
        name = self._fresh("while")
        names = assigned(node.test, *node.body)
        test = self._method(name, "test", node.test, self.visit(node.test), self._locals(node))
        self._loops.append(name)
        body = self.statements(node.body)
        self._loops.pop()
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
        if node.orelse:
            return self._with_else(node)
        name = self._fresh("for")
        names = assigned(node.target, *node.body)
        continues = ast.Constant("continue" in jumps(node.body))
        iterable = self._hook("for_", self.visit(node.iter), _names(names), continues, at=node.iter)
        self._loops.append(name)
        body = self.statements(node.body)
        self._loops.pop()
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

    def _with_else(self, node: ast.While | ast.For) -> list[ast.stmt]:
        """``else`` of a loop: a flag that `break` sets, and an ``if`` behind the loop."""
        flag = self._fresh("broke")
        orelse, node.orelse = node.orelse, []
        node.body = _flag_breaks(node.body, flag)
        start = self._assign(flag, ast.Constant(False), node)
        test = self._at(ast.UnaryOp(ast.Not(), self._at(ast.Name(flag, ast.Load()), node)), node)
        behind = self._at(ast.If(test, orelse, []), orelse[0])
        self._local.add(flag)
        return [start, *self.statement(node), *self.statement(behind)]

    def _do_Break(self, node: ast.Break) -> list[ast.stmt]:  # noqa: N802
        return self._jump(self._loops[-1], "break_", node, self._locals(node))

    def _do_Continue(self, node: ast.Continue) -> list[ast.stmt]:  # noqa: N802
        return self._jump(self._loops[-1], "continue_", node, self._locals(node))

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
        dead = ast.If(self._hook("dead", at=node), [self._at(ast.Continue(), node)], [])
        return [self._at(dead, node)]

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
        path, place = _path(target)
        if isinstance(place, ast.Subscript) and not isinstance(place.value, ast.Name):
            return [self._store_item(place, path, value, None)]
        if isinstance(place, ast.Subscript):
            assert isinstance(place.value, ast.Name)
            return [self._store_item(place, path, value, place.value.id)]
        assert isinstance(place, ast.Name)
        call = self._hook("replaced", self._load_name(place), _names(path), value, at=target)
        return [self._rebind(place.id, call, target)]

    def _store_item(
        self, place: ast.Subscript, path: tuple[str, ...], value: ast.expr, root: str | None
    ) -> ast.stmt:
        call = self._hook(
            "store", self.visit(place.value), self._key(place.slice), _names(path), value, at=place
        )
        if root is None:
            return self._at(ast.Expr(call), place)
        return self._rebind(root, call, place)

    def _rebind(self, name: str, call: ast.expr, at: ast.expr) -> ast.stmt:
        """A vector is a value: changing a part gives its name a new one."""
        if name not in self._local:
            return self._at(ast.Expr(call), at)
        return self._assign(name, call, at)

    def _do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:  # noqa: N802
        if isinstance(node.target, ast.Name):
            return [self.visit(node)]
        path, place = _path(node.target)
        new: list[ast.stmt] = []
        if isinstance(place, ast.Subscript):  # its parts are evaluated once
            owner, key = self._fresh("owner"), self._fresh("key")
            root = place.value
            if not isinstance(root, ast.Name):
                new.append(self._assign(owner, self.visit(root), root))
                root = self._at(ast.Name(owner, ast.Load()), root)
            new.append(self._assign(key, self._key(place.slice), place.slice))
            name = self._at(ast.Name(key, ast.Load()), place.slice)
            place = self._at(ast.Subscript(root, name, ast.Load()), place)
        target: ast.expr = place
        for part in path:
            target = self._at(ast.Attribute(target, part, ast.Load()), node.target)
        value = self._fresh("value")
        combined = self._at(ast.BinOp(self.visit(target), node.op, self.visit(node.value)), node)
        new.append(self._assign(value, combined, node))
        return [*new, *self._store(target, self._at(ast.Name(value, ast.Load()), node))]

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
        node.operand = self.visit(node.operand)
        return node

    def _ex_Compare(self, node: ast.Compare) -> ast.expr:  # noqa: N802
        if len(node.ops) == 1:
            node.left = self.visit(node.left)
            node.comparators = [self.visit(node.comparators[0])]
            return node
        names = ast.Tuple([ast.Constant(type(op).__name__) for op in node.ops], ast.Load())
        return self._hook(
            "chain", names, self.visit(node.left), *map(self._thunk, node.comparators), at=node
        )

    def _ex_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        function = self.visit(node.func)
        new = self._hook("call", function, *(self.visit(one) for one in node.args), at=node)
        new.keywords = [self.visit(one) for one in node.keywords]
        return new

    def _ex_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        if not isinstance(node.ctx, ast.Load):
            return node
        name = node.attr
        if name.startswith("__") and not name.endswith("__") and self._owner:
            name = f"_{self._owner.lstrip('_')}{name}"
        return self._hook("attribute", self.visit(node.value), ast.Constant(name), at=node)

    def _ex_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802
        if not isinstance(node.ctx, ast.Load):
            return node
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
        return self._at(ast.Lambda(_no_arguments(), self.visit(node)), node)

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


def _path(target: ast.expr) -> tuple[tuple[str, ...], ast.expr]:
    """``a[i].vel.x`` as (("vel", "x"), a[i]); the attributes and what they are of."""
    parts: list[str] = []
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    return tuple(reversed(parts)), target


class _FlagBreaks(ast.NodeTransformer):
    """Sets a flag before every ``break`` of one loop."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        flag = ast.Assign([ast.Name(self._flag, ast.Store())], ast.Constant(True))
        for inner in ast.walk(flag):
            if "lineno" in inner._attributes:
                ast.copy_location(inner, node)
        return [flag, node]

    def _keep(self, node: Any) -> Any:
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        node.orelse = [self.visit(one) for one in node.orelse]
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        node.orelse = [self.visit(one) for one in node.orelse]
        return node

    visit_FunctionDef = visit_Lambda = _keep  # noqa: N815


def _flag_breaks(body: list[ast.stmt], flag: str) -> list[ast.stmt]:
    transformer = _FlagBreaks(flag)
    new: list[ast.stmt] = []
    for statement in body:
        result = transformer.visit(statement)
        new += result if isinstance(result, list) else [result]
    return new
