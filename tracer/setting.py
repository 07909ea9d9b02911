"""Initialisers by their number of fields: what makes one from what sets each field.

They are written out, as compiling one takes longer than all that a process makes of its records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

__all__ = ["setting"]

Setter = Callable[[Any, Any], None]
Initialiser = Any  # a function, whose code is copied


def setting(count: int) -> Callable[..., Initialiser]:
    """What makes an initialiser of ``count`` fields from as many setters.

    >>> class Point:
    ...     __slots__ = ("x", "y")
    >>> point = Point()
    >>> setting(2)(Point.x.__set__, Point.y.__set__)(point, 3, 4)
    >>> point.x, point.y
    (3, 4)
    """
    return _WRITTEN[count] if count < len(_WRITTEN) else _compiled(count)


@cache
def _compiled(count: int) -> Callable[..., Initialiser]:
    """One of a size that few records have."""
    values = [f"v{place}" for place in range(count)]
    setters = [f"s{place}" for place in range(count)]
    lines = [f"  {setter}(self, {value})" for setter, value in zip(setters, values, strict=True)]
    head = [f"def make({', '.join(setters)}):", f" def init(self, {', '.join(values)}):"]
    scope: dict[str, Any] = {}
    exec("\n".join([*head, *lines, " return init"]), scope)
    made: Callable[..., Initialiser] = scope["make"]
    return made


def _set0() -> Initialiser:
    def init(self: Any) -> None:
        pass

    return init


def _set1(a: Setter) -> Initialiser:
    def init(self: Any, v0: Any) -> None:
        a(self, v0)

    return init


def _set2(a: Setter, b: Setter) -> Initialiser:
    def init(self: Any, v0: Any, v1: Any) -> None:
        a(self, v0)
        b(self, v1)

    return init


def _set3(a: Setter, b: Setter, c: Setter) -> Initialiser:
    def init(self: Any, v0: Any, v1: Any, v2: Any) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)

    return init


def _set4(a: Setter, b: Setter, c: Setter, d: Setter) -> Initialiser:
    def init(self: Any, v0: Any, v1: Any, v2: Any, v3: Any) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)

    return init


def _set5(a: Setter, b: Setter, c: Setter, d: Setter, e: Setter) -> Initialiser:
    def init(self: Any, v0: Any, v1: Any, v2: Any, v3: Any, v4: Any) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)
        e(self, v4)

    return init


def _set6(a: Setter, b: Setter, c: Setter, d: Setter, e: Setter, f: Setter) -> Initialiser:
    def init(self: Any, v0: Any, v1: Any, v2: Any, v3: Any, v4: Any, v5: Any) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)
        e(self, v4)
        f(self, v5)

    return init


def _set7(*setters: Setter) -> Initialiser:
    a, b, c, d, e, f, g = setters

    def init(self: Any, v0: Any, v1: Any, v2: Any, v3: Any, v4: Any, v5: Any, v6: Any) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)
        e(self, v4)
        f(self, v5)
        g(self, v6)

    return init


def _set8(*setters: Setter) -> Initialiser:
    a, b, c, d, e, f, g, h = setters

    def init(
        self: Any, v0: Any, v1: Any, v2: Any, v3: Any, v4: Any, v5: Any, v6: Any, v7: Any
    ) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)
        e(self, v4)
        f(self, v5)
        g(self, v6)
        h(self, v7)

    return init


def _set9(*setters: Setter) -> Initialiser:
    a, b, c, d, e, f, g, h, i = setters

    def init(
        self: Any, v0: Any, v1: Any, v2: Any, v3: Any, v4: Any, v5: Any, v6: Any, v7: Any, v8: Any
    ) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)
        e(self, v4)
        f(self, v5)
        g(self, v6)
        h(self, v7)
        i(self, v8)

    return init


def _set10(*setters: Setter) -> Initialiser:
    a, b, c, d, e, f, g, h, i, j = setters

    def init(
        self: Any,
        v0: Any,
        v1: Any,
        v2: Any,
        v3: Any,
        v4: Any,
        v5: Any,
        v6: Any,
        v7: Any,
        v8: Any,
        v9: Any,
    ) -> None:
        a(self, v0)
        b(self, v1)
        c(self, v2)
        d(self, v3)
        e(self, v4)
        f(self, v5)
        g(self, v6)
        h(self, v7)
        i(self, v8)
        j(self, v9)

    return init


_WRITTEN: Final = (_set0, _set1, _set2, _set3, _set4, _set5, _set6, _set7, _set8, _set9, _set10)
