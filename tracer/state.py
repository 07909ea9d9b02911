"""Variables at branches and loops: what they hold, flattened to scalars, and how paths merge.

A variable may hold a scalar, a vector, a struct, a tuple, list or dataclass of such, or any host
object. Scalars and literals are its leaves; everything else must be the same object on all paths.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.coerce import fits, literal_type, to_scalar, unsettled_type
from khaljit.tracer.dtypes import DType, bool_, f32, i32, index
from khaljit.tracer.errors import TraceError
from khaljit.tracer.hostvectors import HostVector
from khaljit.tracer.instances import field_values, is_instance, make
from khaljit.tracer.ir import Value
from khaljit.tracer.proxy import Scalar, Vector, describe, is_literal
from khaljit.tracer.recorder import Recorder, recording, user_site
from khaljit.tracer.records import dataclass

__all__ = ["UNSET", "ChangedError", "Shape", "convert", "flatten", "merge", "same", "unflatten"]


@final
class _Unset:
    """Stands for a variable without a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = _Unset()

Leaf = object  # a Scalar, a literal, or a NumPy scalar


class ChangedError(Exception):
    """Paths disagree about what a variable is; the message says how.

    ``host`` marks two objects of the host, which no cast makes one; ``start`` is what a variable
    could start as instead.
    """

    host = False
    start = "kj.f32(0)"


# What stand for variables where functions end, and of conditional expressions.
RETURNED: Final = "the returned value"
CHOICE: Final = "the choice"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """How the leaves of a variable are put together.

    Attributes:
        kind: ``leaf``, ``vector``, ``sequence``, ``struct``, ``record`` (a dataclass) or
            ``static``.
        parts: of a sequence, struct or record; a vector has as many leaves as ``count`` says.
        count: leaves of a vector.
        make: the type of a sequence, struct or record, or the static object itself.
    """

    kind: str
    parts: tuple[Shape, ...] = ()
    count: int = 1
    make: object = None

    def fits(self, other: Shape) -> bool:
        if self.kind != other.kind or self.count != other.count:
            return False
        if self.kind == "static":
            return self.make is other.make or (
                isinstance(self.make, str) and self.make == other.make
            )
        return (
            self.make is other.make
            and len(self.parts) == len(other.parts)
            and all(map(Shape.fits, self.parts, other.parts))
        )


_LEAF: Final = Shape("leaf")


def flatten(value: object) -> tuple[list[Leaf], Shape]:
    """The leaves of what a variable holds, and their shape."""
    if isinstance(value, Scalar | np.generic) or is_literal(value):
        return [value], _LEAF
    if isinstance(value, Vector | HostVector):
        return list(value.items), Shape("vector", count=len(value.items))
    if is_instance(value):
        return _flatten_all(field_values(value), "struct", type(value))
    if type(value) is list or isinstance(value, tuple):
        make = type(value) if type(value) is list or hasattr(value, "_make") else tuple
        return _flatten_all(value, "sequence", make)
    if is_record(value):
        return _flatten_all(_fields(value), "record", type(value))
    return [], Shape("static", count=0, make=value)


def _flatten_all(values: Iterable[object], kind: str, make: type) -> tuple[list[Leaf], Shape]:
    leaves: list[Leaf] = []
    parts = []
    for value in values:
        inner, shape = flatten(value)
        leaves += inner
        parts.append(shape)
    return leaves, Shape(kind, tuple(parts), len(leaves), make)


def is_record(value: object) -> bool:
    """Whether a value is an object of the user's dataclass, with no attributes but its fields."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and not type(value).__module__.startswith("khaljit.")
        and len(getattr(value, "__dict__", ())) in (0, len(dataclasses.fields(value)))
    )


def _fields(record: Any) -> list[object]:
    """The fields of a dataclass; what is read of one from outside the kernel is guarded."""
    recorder = recording()
    found = []
    for field in dataclasses.fields(record):
        found.append(getattr(record, field.name))
        if recorder is not None and id(record) in recorder.outside:
            read = functools.partial(getattr, record, field.name, None)
            recorder.guard(("attribute", id(record), field.name), f"attribute {field.name!r}", read)
    return found


def unflatten(shape: Shape, leaves: Sequence[Leaf], recorder: Recorder) -> object:
    """Put a variable together again."""
    if shape.kind == "leaf":
        return leaves[0]
    if shape.kind == "static":
        return shape.make
    if shape.kind == "vector":
        return Vector(recorder, tuple(to_scalar(recorder, leaf) for leaf in leaves))
    items, start = [], 0
    for part in shape.parts:
        items.append(unflatten(part, leaves[start : start + part.count], recorder))
        start += part.count
    if shape.kind == "struct":
        assert isinstance(shape.make, type)
        return make(shape.make, items)
    if shape.kind == "record":
        return _record(shape.make, items)
    maker = getattr(shape.make, "_make", shape.make)
    return maker(items)  # type: ignore[operator]  # a sequence type


def _record(make: Any, items: Sequence[object]) -> object:
    """A dataclass with other fields, whatever its constructor does and whether it is frozen."""
    record = object.__new__(make)
    for field, item in zip(dataclasses.fields(make), items, strict=True):
        object.__setattr__(record, field.name, item)
    return record


def same(a: Leaf, b: Leaf) -> bool:
    """Whether two leaves are one value, so that nothing need flow out of a branch."""
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return a.value is b.value and a.tentative == b.tentative
    return type(a) is type(b) and not isinstance(a, Scalar) and repr(a) == repr(b)


def convert(recorder: Recorder, leaf: Leaf, dtype: DType) -> Value:
    """A leaf as a value of the type that its paths agreed on."""
    scalar = to_scalar(recorder, leaf, dtype)
    return recorder.builder.cast(scalar.value, dtype)


def merge(leaves: Sequence[Leaf]) -> tuple[DType, bool]:
    """The type that the leaves of several paths agree on, and whether it is unsettled.

    Strong types must be one type, except that ``index`` gives way; literals take it.
    Raises `ChangedError` where they do not agree.
    """
    strong: DType | None = None
    for leaf in leaves:
        dtype = _strong_type(leaf)
        if dtype is None or dtype is strong:
            continue
        if strong is None:
            strong = dtype
        elif index in (strong, dtype) and bool_ not in (strong, dtype):
            strong = dtypes.promote(strong, dtype)
        else:
            error = ChangedError(f"{strong.name} on one path and {dtype.name} on another")
            wide = max(strong, dtype, key=lambda one: (one.is_float, one.bits))
            error.start = f"kj.{wide.name}(0)"
            raise error
    loose = [leaf for leaf in leaves if isinstance(leaf, Scalar) and leaf.tentative]
    literals = [leaf for leaf in leaves if is_literal(leaf)]
    if strong is None:
        kinds = {leaf.dtype for leaf in loose} | {literal_type(leaf) for leaf in literals}  # type: ignore[arg-type]  # literals
        if len(kinds) == 1:
            return kinds.pop(), bool(loose)
        return (f32 if f32 in kinds else i32), bool(loose)
    for scalar in loose:
        if unsettled_type(scalar, strong) is not strong:
            raise ChangedError(f"{scalar.dtype.name} on one path and {strong.name} on another")
    for literal in literals:
        if not fits(literal, strong):  # type: ignore[arg-type]  # a literal
            raise ChangedError(f"{strong.name} on one path and the literal {literal!r} on another")
    return strong, False


def _strong_type(leaf: Leaf) -> DType | None:
    if isinstance(leaf, Scalar):
        return None if leaf.tentative else leaf.dtype
    if isinstance(leaf, np.generic):
        return dtypes.by_numpy(leaf.dtype)
    return None


def disagreement(name: str, error: ChangedError, where: str) -> TraceError:
    """The error for a variable whose paths disagree."""
    if error.host:
        return TraceError(
            f"{name} is another object on each path {where}: {error}",
            at=user_site(),
            mend="only numbers, vectors, and tuples and dataclasses of these are chosen when the "
            "kernel runs: do on each path what the object is for",
        )
    if name == RETURNED:
        return TraceError(
            f"a function returns values of two types: {error}",
            at=user_site(),
            mend="return a value of one type at every end, the last one included; cast if need be",
        )
    if name == CHOICE:
        return TraceError(
            f"a choice is between two types: {error}",
            at=user_site(),
            mend="cast both sides to one type",
        )
    return TraceError(
        f"the type of {name} changes {where}: {error}",
        at=user_site(),
        mend=f"give {name} one type: start it as {error.start}, or cast what is assigned to it",
    )


def different(a: object, b: object) -> ChangedError:
    """For two values of different shape."""
    error = ChangedError(f"{describe(a)} on one path and {describe(b)} on another")
    for one in (a, b):
        if isinstance(one, Vector):
            error.start = f"kj.{one.type_name}(0)"
    error.host = type(a) is type(b) and not isinstance(a, Scalar | Vector | tuple | list)
    return error
