"""Arrays in a kernel: array arguments, shared, local and constant memory, and fields of these.

An array argument is one memory of the trace, whose elements hold all their scalars. Shared, local
and constant memory is the kernel's own, so there each number and vector of a struct is a memory of
its own, whose last axes are the fixed arrays around it: the trace needs no structs there, and
neighbouring invocations touch neighbouring numbers.

``a.vel`` is a view: the field of every element, with the axes of fixed arrays behind those of
``a``. So ``a[i].qs[j]`` is ``a.qs[i, j]``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from khaljit.tracer.build import constant
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.dtypes import DType, FixedArray, index
from khaljit.tracer.elements import (
    ElementType,
    element_of,
    layout,
    name_of,
    slots,
    struct_layout,
    walk,
)
from khaljit.tracer.ir import Access, Memory, Space, Value
from khaljit.tracer.proxy import Proxy, Scalar, Vector, describe, fail, swizzle
from khaljit.tracer.recorder import Recorder
from khaljit.tracer.records import dataclass
from khaljit.tracer.values import assemble, scalars_of
from khaljit.tracer.vectors import VectorType

__all__ = ["Array", "declare"]


@final
@dataclass(frozen=True, slots=True)
class _Source:
    """Where a slot of every element lies.

    Attributes:
        memory: a memory.
        leaf: byte of the slot's first scalar inside an element of it.
        axes: extent and step in bytes of each fixed array around the slot; those that are axes of
            the view come first.
        own: whether those are the memory's own last axes, and steps mean nothing.
    """

    memory: Value
    leaf: int
    axes: tuple[tuple[int, int], ...]
    own: bool


@final
class Array(Proxy):
    """An array argument, shared, local or constant memory, or a field of the elements of one.

    Attributes of the user: ``shape size ndim dtype strides``, fields, ``len(a)`` and indexing.
    The others have a leading underscore, since fields may have any name.
    """

    __slots__ = ("_inner", "_kind", "_name", "_outer", "_sources")

    def __init__(
        self,
        recorder: Recorder,
        kind: ElementType,
        name: str,
        sources: Sequence[_Source],
        outer: int,
        inner: tuple[int, ...] = (),
    ) -> None:
        self._recorder = recorder
        self._kind = kind
        self._name = name
        self._sources = tuple(sources)
        self._outer = outer  # axes of the array itself
        self._inner = inner  # extents of the fixed arrays that are axes too

    @classmethod
    def whole(cls, recorder: Recorder, memory: Value, kind: ElementType, name: str) -> Array:
        """The array of a memory with all scalars of its elements."""
        sources = [_Source(memory, slot.offset, slot.inner, False) for slot in slots(kind)]
        assert isinstance(memory.attr, Memory)
        return cls(recorder, kind, name, sources, memory.attr.ndim)

    @property
    def dtype(self) -> Any:
        """The type of an element: a dtype, or a vector's scalar type, or a struct."""
        return self._kind.dtype if isinstance(self._kind, VectorType) else self._kind

    @property
    def _space(self) -> Space:
        return self._memory.space

    @property
    def _memory(self) -> Memory:
        memory = self._sources[0].memory.attr
        assert isinstance(memory, Memory)
        return memory

    @property
    def described(self) -> str:
        return f"an array of {name_of(self._kind)}"

    @property
    def ndim(self) -> int:
        return self._outer + len(self._inner)

    @property
    def shape(self) -> tuple[Any, ...]:
        recorder = self._live()
        recorder.mark()
        value = self._sources[0].memory
        outer = (
            extent if extent is not None else Scalar(recorder, recorder.builder.shape(value, axis))
            for axis, extent in enumerate(self._memory.shape[: self._outer])
        )
        return (*outer, *self._inner)

    @property
    def size(self) -> Any:
        first, *rest = self.shape or (1,)
        return math.prod(rest, start=first)

    @property
    def strides(self) -> tuple[Any, ...]:
        """Elements from one index to the next, per axis."""
        if self._space is not Space.ARRAY:
            extents = [extent or 0 for extent in self._memory.shape[: self._outer]]
            extents += self._inner
            return tuple(math.prod(extents[axis + 1 :]) for axis in range(self.ndim))
        recorder, element = self._live(), self._memory.element
        if element.leaves != tuple((slot.offset, slot.dtype) for slot in slots(self._kind)):
            fail(
                f"{self._name} is a field of an array, and has no strides in its own elements",
                "take those of the array",
            )
        recorder.mark()
        unit, value = element.size // element.align, self._sources[0].memory
        strides: list[Any] = [
            Scalar(recorder, recorder.builder.stride(value, k)) for k in range(self.ndim)
        ]
        return tuple(stride if unit == 1 else stride // unit for stride in strides)

    def __repr__(self) -> str:
        return f"<array {self._name} of {name_of(self._kind)} of a kernel>"

    def __len__(self) -> int:
        if self._recorder.steps:
            return operator.index(self.shape[0])
        fail(f"len({self._name}) is a run-time value", f"write {self._name}.shape[0]")

    def __getattr__(self, name: str) -> Any:
        found = self._component(name)
        if found is None:
            found_layout = layout(self._kind)
            fields = [one.name for one in found_layout.fields] if found_layout else []
            fail(
                f"{self._name} is {self.described} and has no attribute {name!r}",
                f"arrays have {', '.join(['shape', 'size', 'ndim', 'dtype'])} and strides"
                + (f", and this one's elements {', '.join(fields)}" if fields else ""),
            )
        while isinstance(found._kind, FixedArray):
            found = found._opened()
        return found

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Array):
            return self is other
        fail("an array is compared as a whole", f"compare its elements: {self._name}[i] == ...")

    __hash__ = Proxy.__hash__

    # Views.

    def _component(self, name: str) -> Array | None:
        """The view of a field, or of a component of vectors; None where there is none."""
        kind, first = self._kind, 0
        inside: ElementType | None = None
        if isinstance(kind, VectorType):
            places = swizzle(name, kind.count)
            if places is not None and len(places) == 1:
                first, inside = places[0], kind.dtype
        elif layout(kind) is not None:
            for field in struct_layout(kind).fields:
                if field.name == name:
                    inside = field.kind
                    break
                first += len(slots(field.kind))
        if inside is None:
            return None
        sources = self._sources[first : first + len(slots(inside))]
        return self._viewed(inside, f"{self._name}.{name}", sources, self._inner)

    def _opened(self) -> Array:
        """The view in which the fixed array that each element is is one more axis."""
        kind = self._kind
        assert isinstance(kind, FixedArray)
        return self._viewed(kind.item, self._name, self._sources, (*self._inner, kind.extent))

    def _viewed(
        self, kind: ElementType, name: str, sources: Sequence[_Source], inner: tuple[int, ...]
    ) -> Array:
        return Array(self._live(), kind, name, sources, self._outer, inner)

    # Elements.

    def _indices(self, key: object) -> tuple[Value, ...]:
        """The index values of a subscript: one integer per axis."""
        recorder = self._live()
        keys = key if isinstance(key, tuple) else tuple(key) if isinstance(key, Vector) else (key,)
        if len(keys) != self.ndim:
            fail(
                f"{self._name} has {self.ndim} {'axis' if self.ndim == 1 else 'axes'} and is "
                f"indexed with {len(keys)}",
                f"write {self._name}[{', '.join('ijk'[: self.ndim]) or '()'}]",
            )
        return tuple(self._index(recorder, item) for item in keys)

    def _index(self, recorder: Recorder, item: object) -> Value:
        if isinstance(item, slice) or item is None or item is Ellipsis:
            fail("slices make no arrays inside a kernel", "index one element at a time")
        number = to_scalar(recorder, item, index)
        if not number.dtype.is_integer:
            fail(
                f"{self._name} is indexed with {describe(item)}",
                "an index is an integer: cast with kj.i32(...)",
            )
        if type(item) in (int, bool) and int(item) < 0:  # type: ignore[call-overload]
            fail(
                f"{self._name} is indexed with {item}: negative indices do not count from the end",
                f"write {self._name}[{self._name}.size - {-int(item)}]",  # type: ignore[call-overload]
            )
        return number.value

    def _place(
        self, source: _Source, indices: tuple[Value, ...], items: tuple[int, ...]
    ) -> tuple[Value, tuple[Value, ...], Access]:
        """Memory, indices and access of one scalar: ``items`` of the fixed arrays inside."""
        builder = self._live().builder
        if source.own:
            fixed = tuple(builder.const(index, item) for item in items)
            return source.memory, (*indices, *fixed), Access(source.leaf)
        opened = len(self._inner)
        leaf = source.leaf
        for item, (_, step) in zip(items, source.axes[opened:], strict=True):
            leaf += item * step
        kept, inner = list(indices[: self._outer]), []
        for place, axis in zip(indices[self._outer :], source.axes[:opened], strict=True):
            known = constant(place)
            if known is not None and 0 <= known < axis[0]:
                leaf += int(known) * axis[1]
            else:
                kept.append(place)
                inner.append(axis)
        return source.memory, tuple(kept), Access(leaf, inner=tuple(inner))

    def _scalar(self, key: object) -> tuple[Value, tuple[Value, ...], Access]:
        """Where the element lies, which is a scalar."""
        return self._place(self._sources[0], self._indices(key), ())

    def __getitem__(self, key: object) -> Any:
        recorder = self._live()
        recorder.mark()
        indices = self._indices(key)
        scalars = []
        for number, items in walk(self._kind):
            source = self._sources[number]
            memory, where, access = self._place(source, indices, items)
            dtype = slots(self._kind)[number].dtype
            scalars.append(Scalar(recorder, recorder.builder.load(memory, where, dtype, access)))
        return assemble(recorder, self._kind, iter(scalars))

    def __setitem__(self, key: object, value: object) -> None:
        recorder = self._live()
        recorder.mark()
        self._refuse_table()
        scalars = scalars_of(recorder, self._kind, value, f"{self._name}[...]")
        indices = self._indices(key)
        for (number, items), scalar in zip(walk(self._kind), scalars, strict=True):
            memory, where, access = self._place(self._sources[number], indices, items)
            recorder.builder.store(memory, where, scalar.value, access)

    def _refuse_table(self) -> None:
        if self._space is Space.TABLE:
            fail(f"{self._name} is a constant and cannot be written")


def declare(
    recorder: Recorder,
    space: Space,
    name: str,
    kind: ElementType,
    shape: tuple[int, ...],
    data: np.ndarray[Any, Any] | None = None,
) -> Array:
    """New shared or local memory, or tables with the elements of an array of the host."""
    sources = _own(recorder, space, kind, shape, (), data)
    return Array(recorder, kind, name, tuple(sources), len(shape))


def _own(
    recorder: Recorder,
    space: Space,
    kind: ElementType,
    shape: tuple[int, ...],
    axes: tuple[tuple[int, int], ...],
    data: np.ndarray[Any, Any] | None,
) -> Iterator[_Source]:
    """A memory for each number and vector of an element."""
    if isinstance(kind, FixedArray):
        inner = (*axes, (kind.extent, 0))
        yield from _own(recorder, space, kind.item, (*shape, kind.extent), inner, data)
    elif isinstance(kind, DType | VectorType):
        contents = None if data is None else np.ascontiguousarray(data).tobytes()
        memory = recorder.declare(space, element_of(kind), shape, contents)
        for slot in slots(kind):
            yield _Source(memory, slot.offset, axes, True)
    else:
        found = struct_layout(kind)
        for k, field in enumerate(found.fields):
            part = None
            if data is not None:
                part = data[..., k, :] if found.tail else data[field.name]
            yield from _own(recorder, space, field.kind, shape, axes, part)
