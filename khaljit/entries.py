"""What a signature holds: per argument an interned description, so that signatures compare fast.

A description is what the recorder needs of an argument (`khaljit.tracer.record`). What the arrays
of a call have in common stands beside them: which have equal shapes, and which are the same view.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Final, NamedTuple, final

from khaljit.tracer.dtypes import ALL, DType
from khaljit.tracer.elements import ElementType
from khaljit.tracer.record import ArrayArgument, ConstArgument, ScalarArgument, ValueArgument
from khaljit.tracer.records import dataclass
from khaljit.tracer.vectors import VectorType

__all__ = [
    "ArrayEntry",
    "ConstEntry",
    "Group",
    "Signature",
    "array_entry",
    "const_entry",
    "fields_of",
    "scalar_entry",
]


class Signature(NamedTuple):
    """What a plan is made for.

    Attributes:
        arguments: an interned description per parameter.
        index_bits: width of ``index``: 64 where an array or the grid needs it.
        shapes: per array the first one with an equal shape.
        views: per array the first one that is the very same view.
    """

    arguments: tuple[object, ...]
    index_bits: int
    shapes: tuple[int, ...]
    views: tuple[int, ...]


@final
class ArrayEntry:
    __slots__ = ("argument",)

    def __init__(self, argument: ArrayArgument) -> None:
        self.argument: Final = argument


def array_entry(kind: ElementType, ndim: int, contiguous: bool, aligned: bool) -> ArrayEntry:
    """The description of an array."""
    return _interned(ArrayArgument(kind, ndim, contiguous, aligned))


@cache
def _interned(argument: ArrayArgument) -> ArrayEntry:
    return ArrayEntry(argument)


@final
class ConstEntry:
    """A constant, told apart by its exact type and value: 1, True and 1.0 are three."""

    __slots__ = ("_key", "argument")

    def __init__(self, value: Any) -> None:
        self.argument: Final = ConstArgument(value)
        self._key: Final = (type(value), repr(value) if isinstance(value, float) else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstEntry) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@final
@dataclass(frozen=True, slots=True)
class Group:
    """A tuple, named tuple or dataclass of descriptions."""

    make: Any
    names: tuple[str, ...]
    parts: tuple[object, ...]


_NONE: Final = ConstEntry(None)
_SCALARS: Final = {dtype: ScalarArgument(dtype) for dtype in ALL}


def const_entry(value: Any) -> object:
    """The description of a constant."""
    return _NONE if value is None else ConstEntry(value)


def scalar_entry(kind: ElementType) -> object:
    """The description of a run-time number, vector or struct."""
    if isinstance(kind, DType):
        return _SCALARS[kind]
    assert isinstance(kind, VectorType | type)
    return ValueArgument(kind)


def fields_of(make: Any, count: int) -> tuple[str, ...]:
    """What the parts of a dataclass or named tuple are called; of a tuple with so many parts, their
    positions."""
    if dataclasses.is_dataclass(make):
        return tuple(one.name for one in dataclasses.fields(make))
    return getattr(make, "_fields", None) or tuple(str(k) for k in range(count))
