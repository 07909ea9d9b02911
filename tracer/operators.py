"""Python's operators, by the names of their nodes in a syntax tree, and how one finds its method.

In rewritten source an operator of a class that the user wrote is a call like any other: its
branches are recorded. Numbers, proxies and the classes of libraries take Python's own way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, final

from khaljit.tracer.memory import Array
from khaljit.tracer.proxy import Proxy, describe, fail
from khaljit.tracer.records import dataclass

__all__ = ["BINARY", "UNARY", "Binary", "Traced", "in_place", "two"]

# Calls a method of an object's class; NotImplemented where the class is not the user's.
Traced = Callable[..., Any]


@final
@dataclass(frozen=True, slots=True)
class Binary:
    """An operator of two operands: what Python does, and the methods it looks for."""

    function: Callable[[Any, Any], Any]
    method: str
    mirrored: str


def _arithmetic(name: str, function: Callable[[Any, Any], Any]) -> Binary:
    return Binary(function, f"__{name}__", f"__r{name}__")


BINARY: Final = {
    "Add": _arithmetic("add", operator.add),
    "Sub": _arithmetic("sub", operator.sub),
    "Mult": _arithmetic("mul", operator.mul),
    "MatMult": _arithmetic("matmul", operator.matmul),
    "Div": _arithmetic("truediv", operator.truediv),
    "FloorDiv": _arithmetic("floordiv", operator.floordiv),
    "Mod": _arithmetic("mod", operator.mod),
    "Pow": _arithmetic("pow", operator.pow),
    "LShift": _arithmetic("lshift", operator.lshift),
    "RShift": _arithmetic("rshift", operator.rshift),
    "BitAnd": _arithmetic("and", operator.and_),
    "BitOr": _arithmetic("or", operator.or_),
    "BitXor": _arithmetic("xor", operator.xor),
    "Eq": Binary(operator.eq, "__eq__", "__eq__"),
    "NotEq": Binary(operator.ne, "__ne__", "__ne__"),
    "Lt": Binary(operator.lt, "__lt__", "__gt__"),
    "LtE": Binary(operator.le, "__le__", "__ge__"),
    "Gt": Binary(operator.gt, "__gt__", "__lt__"),
    "GtE": Binary(operator.ge, "__ge__", "__le__"),
}
UNARY: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "USub": (operator.neg, "__neg__"),
    "UAdd": (operator.pos, "__pos__"),
    "Invert": (operator.invert, "__invert__"),
}


def two(row: Binary, a: Any, b: Any, traced: Traced) -> Any:
    """``a + b`` and the like: the left operand's method, then the right one's mirrored one.

    The class of b goes first where it derives from that of a, as in Python.
    """
    ways = [(a, row.method, b), (b, row.mirrored, a)]
    if type(b) is not type(a) and issubclass(type(b), type(a)):
        ways.reverse()
    for owner, method, other in ways:
        result = traced(owner, method, other)
        if result is not NotImplemented:
            return result
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Array) and other is not None:
            fail(
                f"{describe(one)} is an operand as a whole",
                "compute element by element: a[i] + b[i]",
            )
    if isinstance(a, str) and isinstance(b, Proxy | tuple):
        fail("% puts no run-time values into a text", 'write an f-string: f"{x}"')
    return row.function(a, b)


def in_place(row: Binary, a: Any, b: Any, traced: Traced) -> Any:
    """``a += b`` and the like: a method of its own, else that of ``a + b``."""
    name = row.method.strip("_")
    result = traced(a, f"__i{name}__", b)
    if result is not NotImplemented:
        return result
    if hasattr(type(a), f"__i{name}__"):  # a list, say, which is changed
        return getattr(operator, f"__i{name}__")(a, b)
    return two(row, a, b, traced)
