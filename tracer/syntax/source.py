"""Finding the syntax tree of a function that runs, and compiling one in its place.

The tree must be that of the code: a file that was edited since the process began is believed only
where it compiles to the very bytecode that runs.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Sequence
from importlib.util import decode_source
from types import CodeType
from typing import Final

from khaljit.tracer.identity import codes, is_newer
from khaljit.tracer.syntax.nodes import Function, assign, constant, do, fields, function, put
from khaljit.tracer.syntax.unsaved import candidates, keep

__all__ = ["compile_inside", "find", "is_read_from", "owner_of"]

_PLACEHOLDER: Final = "_kj_function"
_FUTURE: Final = 0x1FF0000  # the compiler flags of `from __future__` imports


def find(code: CodeType) -> tuple[Function, str] | None:
    """The syntax tree of a code object with its line numbers, and the file that has the lines."""
    if code.co_filename.startswith("<frozen"):
        return None
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return _find_unsaved(code)
    node = _find_node(code, lines)
    if node is None:
        return None
    if _changed_since_start(code.co_filename) and not _matches(node, code, _imports(lines)):
        return None
    return node, code.co_filename


def is_read_from(filename: str, text: bytes) -> bool:
    """Whether the lines in which functions of a file are found are those of a text."""
    try:
        decoded = decode_source(text)
    except (SyntaxError, UnicodeDecodeError):
        return False
    lines = "".join(linecache.getlines(filename))
    return lines in (decoded, f"{decoded}\n")


def owner_of(code: CodeType) -> str | None:
    """The class that a function is defined in, for name mangling."""
    path = code.co_qualname.split(".")
    return path[-2] if len(path) > 1 and path[-2] != "<locals>" else None


def _find_node(code: CodeType, lines: Sequence[str]) -> Function | None:
    if code.co_firstlineno > len(lines):
        return None
    return _find_lambda(code, lines) if code.co_name == "<lambda>" else _find_def(code, lines)


def _find_unsaved(code: CodeType) -> tuple[Function, str] | None:
    """The same for source that is in no file: where it compiles to the code, it is kept."""
    for name, lines in candidates(code):
        node = _find_node(code, lines)
        if node is not None and _matches(node, code, _imports(lines)):
            keep(name, lines)
            return node, name
    return None


def _find_def(code: CodeType, lines: Sequence[str]) -> Function | None:
    """Parse only the lines of the function: parsing a whole module would be slow."""
    first = code.co_firstlineno
    last = max(
        (line for inner in codes(code) for _, line, _, _ in inner.co_positions() if line),
        default=first,
    )
    end, most = last, min(len(lines), last + 100)
    while end <= most:
        end = _end_of_block(lines, first, end)
        tree = _parse_block(lines[first - 1 : end], first)
        if tree is not None:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                    return node
            return None
        end += 1  # a call or string may close on a line that holds no instruction
    return None


def _end_of_block(lines: Sequence[str], first: int, end: int) -> int:
    """The last line of a function, after one that is in it: statements that are never reached
    hold no instruction, either, but the variables in them count."""
    margin = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    for number in range(end, len(lines)):
        text = lines[number].lstrip()
        if text and not text.startswith("#"):
            if len(lines[number]) - len(text) <= margin:
                break
            end = number + 1
    return end


def _parse_block(lines: Sequence[str], first: int) -> ast.Module | None:
    """Parse a block that begins at a line. What comes before it is empty but for the `if` of an
    indented one, so that lines and columns are right."""
    indented = lines[0][0].isspace()
    above = "\n" * (first - 2) + "if 1:\n" if indented else "\n" * (first - 1)
    try:
        tree = ast.parse(above + "".join(lines))
    except SyntaxError:
        return None
    return ast.increment_lineno(tree, -1) if indented and first == 1 else tree


def _find_lambda(code: CodeType, lines: Sequence[str]) -> Function | None:
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
    imports = _imports(lines)
    same = [node for node in candidates if _matches(node, code, imports)]
    return same[0] if same else None


def _changed_since_start(filename: str) -> bool:
    """Whether a file was edited after this process began, so that it may not be what runs."""
    try:
        return is_newer(os.stat(filename))
    except OSError:
        return False  # no file: a notebook cell or a registered string


def _matches(node: Function, code: CodeType, imports: Sequence[ast.stmt]) -> bool:
    """Whether source compiles to a given code object."""
    return _same(compile_inside(node, code, code.co_freevars, imports), code)


def _same(compiled: CodeType, code: CodeType) -> bool:
    """Whether two code objects do the same."""
    return (
        compiled.co_code == code.co_code
        and compiled.co_names == code.co_names
        and len(compiled.co_consts) == len(code.co_consts)
        and all(map(_same_constant, compiled.co_consts, code.co_consts))
    )


def _same_constant(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same(a, b)
    if isinstance(a, frozenset):
        return a == b
    return repr(a) == repr(b)  # tells 1 from 1.0 and True, and 0.0 from -0.0


def _imports(lines: Sequence[str]) -> list[ast.stmt]:
    """The imports of a module: CPython compiles `name.f()` otherwise where `name` is imported."""
    try:
        pending: list[ast.AST] = [ast.parse("".join(lines))]
    except SyntaxError:
        return []
    found: list[ast.stmt] = []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not isinstance(node, Function | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    return [one for one in found if not (isinstance(one, ast.ImportFrom) and _special(one))]


def _special(node: ast.ImportFrom) -> bool:
    """Imports that may stand at one place only."""
    return node.module == "__future__" or any(name.name == "*" for name in node.names)


def compile_inside(
    node: Function, code: CodeType, free: Sequence[str], imports: Sequence[ast.stmt] = ()
) -> CodeType:
    """Compile a function inside one that has its free variables, in a module with some imports."""
    body: ast.stmt
    if isinstance(node, ast.Lambda):
        body = do(node, node)
    else:
        # Under a name that the function cannot mean: its own may be a global to it.
        bare = {**fields(node), "decorator_list": [], "name": _PLACEHOLDER}
        body = put(ast.FunctionDef(**bare), node)
    known = [assign(name, constant(None, node), node) for name in free]
    nothing = ast.arguments([], [], None, [], [], None, [])
    factory = function("_factory", nothing, [*known, body], node)
    module = ast.Module([*imports, factory], [])
    flags = code.co_flags & _FUTURE
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    for outer in compiled.co_consts:
        if isinstance(outer, CodeType):
            for inner in outer.co_consts:
                if isinstance(inner, CodeType) and inner.co_name in (_PLACEHOLDER, "<lambda>"):
                    named = inner.replace(co_name=code.co_name)
                    return _within(named, inner.co_qualname, code.co_qualname)
    raise AssertionError("a compiled factory holds its function")


def _within(code: CodeType, before: str, after: str) -> CodeType:
    """A code object, and those in it, with another beginning of their qualified names."""
    constants = tuple(
        _within(one, before, after) if isinstance(one, CodeType) else one for one in code.co_consts
    )
    name = code.co_qualname.replace(before, after, 1)
    return code.replace(co_qualname=name, co_consts=constants)
