"""`dataclass` as the standard library's, made in a twentieth of the time.

The standard decorator writes the source of six methods and compiles it, for each class and in each
process; the sixty classes that every process of khaljit imports took half of its start. Here one
slot class is made, and nothing is compiled: an initialiser is a copy of one in `setting`, with the
names of the class, when the first instance is made. What is taken: ``frozen``, ``eq``, fields with
defaults, factories and ``compare=False``, ``__post_init__``, other such classes as bases; always
with slots. `dataclasses.fields` and `dataclasses.replace` work on the classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from khaljit.tracer.setting import setting

__all__ = ["dataclass", "replace"]

C = TypeVar("C", bound=type)

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
        body.setdefault("__eq__", _later(_make_eq, found))
        body.setdefault("__hash__", _later(_make_hash, found) if frozen else None)
    if frozen:
        body |= _FROZEN
    body.setdefault("__init__", _later(_make_init, found))
    made = type(owner)(owner.__name__, owner.__bases__, body)
    made.__qualname__ = owner.__qualname__
    found.append(made)
    return made


def _field(owner: Any, name: str, kind: object) -> Field[Any]:
    default = vars(owner).get(name, MISSING)
    one: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
    one.name, one.type = name, kind
    one._field_type = _FIELD  # what `fields` and `replace` look for
    one.kw_only = False
    return one  # type: ignore[no-any-return]  # `field` says that it gives the default


_FIELD: Final = dataclasses._FIELD  # type: ignore[attr-defined]  # private there


@cache
def _members(owner: Any) -> tuple[tuple[str, Any], ...]:
    """The fields with what gets and sets them."""
    return tuple((name, getattr(owner, name)) for name in owner.__dataclass_fields__)


# Methods that are made when they are first called: a stub puts them in its place.

Method = Callable[..., Any]


def _later(make: Callable[[Any], Method], found: list[Any]) -> Method:
    name = f"__{make.__name__.removeprefix('_make_')}__"

    def stub(self: Any, *args: Any, **named: Any) -> Any:
        (owner,) = found
        method = make(owner)
        setattr(owner, name, method)  # by two threads at once: either is right
        return method(self, *args, **named)

    return stub


def _make_init(owner: Any) -> Method:
    fields = owner.__dataclass_fields__
    setters: list[Method] = []
    usual: list[object] = []
    for name, one in fields.items():
        setter = getattr(owner, name).__set__
        if one.default is not MISSING:
            usual.append(one.default)
        elif one.default_factory is not MISSING:
            usual.append(MISSING)
            setter = _making(setter, one.default_factory)
        setters.append(setter)
    if hasattr(owner, "__post_init__"):
        setters[-1] = _finishing(setters[-1])
    plain = setting(len(fields))(*setters)
    code = plain.__code__.replace(
        co_name="__init__",
        co_qualname=f"{owner.__qualname__}.__init__",
        co_varnames=("self", *fields),
    )
    return FunctionType(code, plain.__globals__, "__init__", tuple(usual), plain.__closure__)


def _making(setter: Method, factory: Callable[[], Any]) -> Method:
    """What sets a field to what its factory makes, where nothing is given."""
    return lambda self, value: setter(self, factory() if value is MISSING else value)


def _finishing(setter: Method) -> Method:
    """What sets the last field."""

    def finish(self: Any, value: Any) -> None:
        setter(self, value)
        self.__post_init__()

    return finish


def _make_eq(owner: Any) -> Method:
    values = _getter(owner)

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _make_hash(owner: Any) -> Method:
    values = _getter(owner)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _getter(owner: Any) -> Callable[[Any], object]:
    """What gives the values that are compared, as a tuple."""
    names = [name for name, one in owner.__dataclass_fields__.items() if one.compare]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])


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
