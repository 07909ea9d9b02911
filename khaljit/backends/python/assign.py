"""Assigning to a part of a vector or struct, as in ``v.x = s``, where the code is not rewritten.

They are values: ``w = v; w.x = s`` leaves ``v`` as it is. So the assignment gives the name a new
value, and ``a[i].vel.x = s`` stores to the array. What stands there is read from the line itself;
its indices are evaluated once more.
"""

from __future__ import annotations

import ast
import ctypes
import linecache
import sys
from itertools import islice
from types import FrameType
from typing import Any, NoReturn, final

from khaljit.tracer import hooks
from khaljit.tracer.proxy import fail
from khaljit.tracer.recorder import user_frame

__all__ = ["Items", "assign"]


@final
class Items(tuple[Any, ...]):
    """The items of a fixed array in a struct."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> None:
        assign(value)


def assign(value: object) -> None:
    """Do what the line that runs says: assign to a part of something."""
    frame = user_frame()
    assert frame is not None
    target = _target(frame)
    form = ""
    parts: list[Any] = []
    while not isinstance(target, ast.Name):
        if isinstance(target, ast.Attribute):
            form, parts = f"a{form}", [target.attr, *parts]
        elif isinstance(target, ast.Subscript):
            form, parts = f"k{form}", [_evaluated(frame, target.slice), *parts]
        else:
            _refuse()
        target = target.value
    root = _evaluated(frame, target)
    changed = hooks.assign(root, form, value, *parts)
    if changed is not root:
        _rebind(frame, target.id, changed)


def _target(frame: FrameType) -> ast.expr:
    """The expression that is assigned to."""
    code = frame.f_code
    line, last, start, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    if line is None or last is None:
        _refuse()
    lines = [
        linecache.getline(code.co_filename, number).encode() for number in range(line, last + 1)
    ]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(b"".join(lines).decode(), mode="eval").body
    except SyntaxError:
        _refuse()


def _refuse() -> NoReturn:
    fail(
        "khaljit cannot tell what is assigned to here",
        "give the value a name, or make a new one: v = kj.vec3(x, v.y, v.z)",
    )


def _evaluated(frame: FrameType, expression: ast.expr) -> Any:
    code = compile(ast.Expression(expression), frame.f_code.co_filename, "eval")
    return eval(code, frame.f_globals, frame.f_locals)


def _rebind(frame: FrameType, name: str, value: object) -> None:
    """Give a local variable of a running function another value."""
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):  # where f_locals is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
