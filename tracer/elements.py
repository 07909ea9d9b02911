"""What memory, fields and arguments are made of: scalars, vectors, fixed arrays and structs.

A *kind* is a dtype, a vector type, a `FixedArray` of a kind, or a class made by ``kj.struct``.
Everything lies in memory as C has it: a field at the next multiple of its alignment, a struct's
size a multiple of its own; a vector is as tight as an array of its components.

A *slot* is a scalar of a kind without regard to fixed arrays: ``struct { f16 d; i8 qs[32]; }`` has
two. `walk` lists the scalars themselves in the order in which they lie: which slot, and which item
of each fixed array around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, cast, final

import numpy as np

from khaljit.tracer.dtypes import DType, FixedArray
from khaljit.tracer.ir import Element
from khaljit.tracer.records import dataclass
from khaljit.tracer.vectors import VectorType

__all__ = [
    "ElementType",
    "Field",
    "Layout",
    "Slot",
    "element_of",
    "host_dtype",
    "inner_strides",
    "is_kind",
    "is_struct",
    "layout",
    "name_of",
    "same_memory",
    "scalar_names",
    "slots",
    "struct_layout",
    "tail",
    "walk",
]


ElementType = DType | VectorType | FixedArray | type[Any]
_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field of a struct."""

    name: str
    kind: ElementType
    offset: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How a struct lies in memory.

    Attributes:
        size: bytes, padding included.
        alignment: bytes that its address is a multiple of.
        host: the NumPy dtype of the same memory.
        tail: axes on the host behind those of an array of it; ``host`` is then the scalars' dtype.
    """

    fields: tuple[Field, ...]
    size: int
    alignment: int
    host: np.dtype[Any]
    tail: tuple[int, ...] = ()

    def field(self, name: str) -> Field | None:
        """The field of a name."""
        return next((one for one in self.fields if one.name == name), None)

    @classmethod
    def of(cls, kinds: Mapping[str, ElementType], axes: tuple[int, ...] = ()) -> Layout:
        """C's layout of some fields; ``axes`` are the ``tail``."""
        fields: list[Field] = []
        at, alignment = 0, 1
        for name, kind in kinds.items():
            size, align = _size(kind)
            at = -(-at // align) * align
            fields.append(Field(name, kind, at))
            at += size
            alignment = max(alignment, align)
        size = -(-at // alignment) * alignment
        if axes:
            return cls(tuple(fields), size, alignment, host_dtype(fields[0].kind), axes)
        host = np.dtype(
            {
                "names": [one.name for one in fields],
                "formats": [(host_dtype(one.kind), tail(one.kind)) for one in fields],
                "offsets": [one.offset for one in fields],
                "itemsize": size,
            }
        )
        return cls(tuple(fields), size, alignment, host)


def _cached(function: Callable[[ElementType], _T]) -> Callable[[ElementType], _T]:
    """Remember what a function gives for each kind."""
    return cast(Callable[[ElementType], _T], cache(function))


def layout(kind: object) -> Layout | None:
    """The layout of a struct; None for everything else."""
    found = getattr(kind, "__kj_layout__", None) if isinstance(kind, type) else None
    assert found is None or isinstance(found, Layout)
    return found


def is_struct(kind: object) -> bool:
    """Whether something is a class made by ``kj.struct``."""
    return layout(kind) is not None


def is_kind(kind: object) -> bool:
    """Whether something says what memory holds."""
    return isinstance(kind, DType | VectorType | FixedArray) or is_struct(kind)


def struct_layout(kind: ElementType) -> Layout:
    """The layout of what is known to be a struct."""
    found = layout(kind)
    assert found is not None, kind
    return found


def name_of(kind: ElementType) -> str:
    """As users write it, without ``kj.``."""
    return kind.__name__ if isinstance(kind, type) else repr(kind)


def _size(kind: ElementType) -> tuple[int, int]:
    """Bytes and alignment."""
    if isinstance(kind, DType):
        return kind.size, kind.size
    if isinstance(kind, VectorType):
        return kind.count * kind.dtype.size, kind.dtype.size
    if isinstance(kind, FixedArray):
        size, align = _size(kind.item)
        return kind.extent * size, align
    found = struct_layout(kind)
    return found.size, found.alignment


def host_dtype(kind: ElementType) -> np.dtype[Any]:
    """The NumPy dtype of an element's memory, or of its scalars where it has axes of its own."""
    if isinstance(kind, FixedArray):
        return host_dtype(kind.item)
    if isinstance(kind, DType | VectorType):
        scalar: np.dtype[Any] = (kind.dtype if isinstance(kind, VectorType) else kind).numpy
        return scalar
    return struct_layout(kind).host


def tail(kind: ElementType) -> tuple[int, ...]:
    """The axes of an element on the host: the components of a vector, the items of an array."""
    if isinstance(kind, VectorType):
        return (kind.count,)
    if isinstance(kind, FixedArray):
        return (kind.extent, *tail(kind.item))
    return () if isinstance(kind, DType) else struct_layout(kind).tail


@_cached
def inner_strides(kind: ElementType) -> tuple[int, ...]:
    """The strides in bytes of the axes of an element on the host."""
    return np.empty(tail(kind), host_dtype(kind)).strides


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """A scalar of a kind, without regard to fixed arrays.

    Attributes:
        offset: of the first one, in bytes.
        inner: extent, and bytes from one item to the next, of each fixed array around it.
    """

    offset: int
    dtype: DType
    inner: tuple[tuple[int, int], ...] = ()


@_cached
def slots(kind: ElementType) -> tuple[Slot, ...]:
    """The slots of a kind, in order of its fields."""
    if isinstance(kind, DType):
        return (Slot(0, kind),)
    if isinstance(kind, VectorType):
        return tuple(Slot(k * kind.dtype.size, kind.dtype) for k in range(kind.count))
    if isinstance(kind, FixedArray):
        axis = (kind.extent, _size(kind.item)[0])
        return tuple(Slot(s.offset, s.dtype, (axis, *s.inner)) for s in slots(kind.item))
    return tuple(
        Slot(field.offset + slot.offset, slot.dtype, slot.inner)
        for field in struct_layout(kind).fields
        for slot in slots(field.kind)
    )


@_cached
def walk(kind: ElementType) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Slot number and items of every scalar of a kind, in the order in which they lie."""
    return tuple(_walk(kind, 0, ()))


def _walk(
    kind: ElementType, first: int, items: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    if isinstance(kind, DType):
        yield first, items
    elif isinstance(kind, VectorType):
        for k in range(kind.count):
            yield first + k, items
    elif isinstance(kind, FixedArray):
        for k in range(kind.extent):
            yield from _walk(kind.item, first, (*items, k))
    else:
        for field in struct_layout(kind).fields:
            yield from _walk(field.kind, first, items)
            first += len(slots(field.kind))


def scalar_names(kind: ElementType, name: str) -> Iterator[str]:
    """What the scalars of a value of that name are called, in the order in which they lie."""
    if isinstance(kind, DType):
        yield name
    elif isinstance(kind, VectorType):
        yield from (f"{name}.{letter}" for letter in "xyzw"[: kind.count])
    elif isinstance(kind, FixedArray):
        for k in range(kind.extent):
            yield from scalar_names(kind.item, f"{name}[{k}]")
    else:
        for field in struct_layout(kind).fields:
            yield from scalar_names(field.kind, f"{name}.{field.name}")


@_cached
def element_of(kind: ElementType) -> Element:
    """An element of an array, as the trace has it."""
    if isinstance(kind, DType):
        return Element.scalar(kind)
    size, align = _size(kind)
    leaves = []
    for number, items in walk(kind):
        slot = slots(kind)[number]
        steps = (item * step for item, (_, step) in zip(items, slot.inner, strict=True))
        leaves.append((slot.offset + sum(steps), slot.dtype))
    steps = (step for slot in slots(kind) for _, step in slot.inner)
    return Element(size, math.gcd(align, *steps), tuple(leaves))


def same_memory(dtype: np.dtype[Any], kind: ElementType) -> bool:
    """Whether elements of a NumPy dtype have a kind's scalars where it has them.

    A vector may be a field array (``("f4", 3)``) or a structured dtype (``x``, ``y``, ``z``); the
    fields of a struct have its names.
    """
    if isinstance(kind, DType):
        return bool(dtype == kind.numpy)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return shape == tail(kind) and base == host_dtype(kind)
    if dtype.names is None or dtype.fields is None:
        return False
    parts = [dtype.fields[name][:2] for name in dtype.names]
    if isinstance(kind, VectorType):
        tight = [(kind.dtype.numpy, k * kind.dtype.size) for k in range(kind.count)]
        return dtype.itemsize == _size(kind)[0] and parts == tight
    if isinstance(kind, FixedArray):
        return False
    found = struct_layout(kind)
    return (
        dtype.itemsize == found.size
        and dtype.names == tuple(one.name for one in found.fields)
        and all(
            at == one.offset and same_memory(part, one.kind)
            for (part, at), one in zip(parts, found.fields, strict=True)
        )
    )
