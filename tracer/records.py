"""`dataclass` as the standard library's, made in a twentieth of the time.

The standard decorator writes the source of six methods and compiles it, for each class and in each
process; the sixty classes that every process of khaljit imports took half of its start. Here one
slot class is made. Its methods are general ones, which go through the fields, until they are called
often: then they are written as the standard library's are. What is taken: ``frozen``, ``eq``,
fields with defaults, factories and ``compare=False``, ``__post_init__``, other such classes as
bases; always with slots. `dataclasses.fields` and `dataclasses.replace` work on the classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

__all__ = ["dataclass", "replace"]

C = TypeVar("C", bound=type)

OFTEN: Final = 50
"""Calls of a method that take as long, beyond what a written one takes, as writing it."""

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def replace(one: C, /, **changes: Any) -> C:
        """The same but for some fields, of one of these classes; nothing runs after making it."""
        made = object.__new__(type(one))
        for name, member in _members(type(one)):
            member.__set__(made, changes[name] if name in changes else member.__get__(one))
        return made

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True) -> Callable[[C], C]:
        """Make a dataclass of a class."""
        assert slots
        return lambda owner: _made(owner, frozen, eq)


def _made(owner: Any, frozen: bool, eq: bool) -> Any:
    own = {name: _field(owner, name, kind) for name, kind in owner.__annotations__.items()}
    fields: dict[str, Field[Any]] = {}
    for base in reversed(owner.__mro__):
        fields |= vars(base).get("__dataclass_fields__", {})
    body = {name: one for name, one in vars(owner).items() if name not in own}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body["__slots__"] = tuple(name for name in own if name not in fields)
    fields |= own
    body["__match_args__"] = tuple(fields)
    body["__dataclass_fields__"] = fields
    body.setdefault("__repr__", _repr)
    found: list[Any] = []  # the class, once it is made
    if eq:
        body.setdefault("__eq__", _later(_general_eq, _write_eq, found))
        body.setdefault("__hash__", _later(_general_hash, _write_hash, found) if frozen else None)
    if frozen:
        body |= _FROZEN
    body.setdefault("__init__", _later(_general_init, _write_init, found))
    made = type(owner)(owner.__name__, owner.__bases__, body)
    made.__qualname__ = owner.__qualname__
    found.append(made)
    return made


@cache
def _members(owner: Any) -> tuple[tuple[str, Any], ...]:
    """The fields with what gets and sets them."""
    return tuple((name, getattr(owner, name)) for name in owner.__dataclass_fields__)


def _field(owner: Any, name: str, kind: object) -> Field[Any]:
    default = vars(owner).get(name, MISSING)
    one: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
    one.name, one.type = name, kind
    one._field_type = _FIELD  # what `fields` and `replace` look for
    one.kw_only = False
    return one  # type: ignore[no-any-return]  # `field` says that it gives the default


_FIELD: Final = dataclasses._FIELD  # type: ignore[attr-defined]  # private there


# Methods that are general at first: a stub that puts a written one in its place.

Method = Callable[..., Any]


def _later(
    make: Callable[[Any], Method], write: Callable[[Any], Method], found: list[Any]
) -> Method:
    name = f"__{write.__name__.removeprefix('_write_')}__"
    general: Method | None = None
    calls = 0

    def stub(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal general, calls
        calls += 1
        if calls > OFTEN:
            (owner,) = found
            setattr(owner, name, write(owner))  # by two threads at once: either is right
        if general is None:
            general = make(found[0])
        return general(self, *args, **named)

    return stub


def _general_init(owner: Any) -> Method:
    fields = owner.__dataclass_fields__
    setters = tuple(getattr(owner, name).__set__ for name in fields)
    count = len(setters)
    finish = getattr(owner, "__post_init__", None)

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
        if named or len(values) != count:
            values = _completed(owner, values, named)
        for setter, value in zip(setters, values, strict=True):
            setter(self, value)
        if finish is not None:
            finish(self)

    return __init__


def _completed(owner: Any, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The values of all fields; what does not fit is refused in Python's words."""
    fields = owner.__dataclass_fields__
    found, given = list(values), 0
    for name in tuple(fields)[len(values) :]:
        one = fields[name]
        if name in named:
            found.append(named[name])
            given += 1
        elif one.default is not MISSING:
            found.append(one.default)
        elif one.default_factory is not MISSING:
            found.append(one.default_factory())
        else:
            break
    if given != len(named) or len(found) != len(fields):
        _write_init(owner)(object.__new__(owner), *values, **named)
    return tuple(found)


def _general_eq(owner: Any) -> Method:
    values = _getter(owner)

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _general_hash(owner: Any) -> Method:
    values = _getter(owner)
    return lambda self: hash(values(self))


def _getter(owner: Any) -> Callable[[Any], object]:
    """What gives the values that are compared: a tuple, whose hash is the written method's too."""
    names = [name for name, one in owner.__dataclass_fields__.items() if one.compare]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


# Methods that are written.


def _write_init(owner: Any) -> Method:
    fields = owner.__dataclass_fields__
    setters = [getattr(owner, name).__set__ for name in fields]
    defaults = tuple(one.default for one in fields.values() if one.default is not MISSING)
    factories = any(one.default_factory is not MISSING for one in fields.values())
    if not factories and not hasattr(owner, "__post_init__"):
        plain = _plain(len(fields))(*setters)
        code = plain.__code__.replace(co_varnames=("self", *fields))
        return FunctionType(code, plain.__globals__, "__init__", defaults, plain.__closure__)
    scope: dict[str, Any] = {"MISSING": MISSING}
    params, lines = ["self"], []
    for (name, one), setter in zip(fields.items(), setters, strict=True):
        scope[f"set_{name}"] = setter
        value = name
        if one.default is not MISSING:
            scope[f"default_{name}"] = one.default
            params.append(f"{name}=default_{name}")
        elif one.default_factory is not MISSING:
            scope[f"factory_{name}"] = one.default_factory
            params.append(f"{name}=MISSING")
            value = f"factory_{name}() if {name} is MISSING else {name}"
        else:
            params.append(name)
        lines.append(f"set_{name}(self, {value})")
    if hasattr(owner, "__post_init__"):
        lines.append("self.__post_init__()")
    return _compiled("__init__", params, lines, scope)


@cache
def _plain(count: int) -> Callable[..., FunctionType]:
    """What makes an initialiser of so many fields from what sets them. It is compiled for one class
    and serves all: only the names of parameters differ."""
    setters = [f"set{place}" for place in range(count)]
    values = [f"value{place}" for place in range(count)]
    lines = [f" {setter}(self, {value})" for setter, value in zip(setters, values, strict=True)]
    inner = [f"def __init__({', '.join(['self', *values])}):", *(lines or [" pass"])]
    return _compiled("make", setters, [*inner, "return __init__"], {})


def _write_eq(owner: Any) -> Method:
    lines = [
        "if other.__class__ is not self.__class__: return NotImplemented",
        f"return {_values(owner, 'self')} == {_values(owner, 'other')}",
    ]
    return _compiled("__eq__", ["self", "other"], lines, {})


def _write_hash(owner: Any) -> Method:
    return _compiled("__hash__", ["self"], [f"return hash({_values(owner, 'self')})"], {})


def _values(owner: Any, token: str) -> str:
    fields = owner.__dataclass_fields__.items()
    return f"({''.join(f'{token}.{name}, ' for name, one in fields if one.compare)})"


def _compiled(name: str, params: list[str], lines: list[str], scope: dict[str, Any]) -> Method:
    exec(f"def {name}({', '.join(params)}):\n " + "\n ".join(lines), scope)
    method: Method = scope[name]
    return method


# Methods that are the same for all classes.


def _repr(self: Any) -> str:
    parts = (f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _refuse_setting(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _restore(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


_FROZEN: Final = {
    "__setattr__": _refuse_setting,
    "__delattr__": _refuse_deleting,
    "__getstate__": _state,
    "__setstate__": _restore,
}
