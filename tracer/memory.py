"""Arrays in a kernel: array arguments, shared, local and constant memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

from khaljit.tracer.coerce import store_cast, to_scalar
from khaljit.tracer.dtypes import DType, index
from khaljit.tracer.ir import Access, Memory, Space, Value
from khaljit.tracer.proxy import Proxy, Scalar, Vector, describe, fail, vector_name
from khaljit.tracer.recorder import Recorder

__all__ = ["Array"]


@final
class Array(Proxy):
    """An array argument, or shared, local or constant memory.

    Attributes of the user: ``shape size ndim dtype strides``, ``len(a)`` and indexing.
    """

    __slots__ = ("count", "name", "value")

    def __init__(self, recorder: Recorder, value: Value, name: str, count: int = 1) -> None:
        self._recorder = recorder
        self.value = value
        self.name = name
        self.count = count  # scalars in an element that is a vector; 1 for a scalar

    @property
    def memory(self) -> Memory:
        memory = self.value.attr
        assert isinstance(memory, Memory)
        return memory

    @property
    def dtype(self) -> DType:
        return self.memory.element.leaves[0][1]

    @property
    def element_name(self) -> str:
        return self.dtype.name if self.count == 1 else vector_name(self.dtype, self.count)

    @property
    def described(self) -> str:
        return f"an array of {self.element_name}"

    @property
    def ndim(self) -> int:
        return self.memory.ndim

    @property
    def shape(self) -> tuple[Any, ...]:
        recorder = self._live()
        recorder.mark()
        fixed = self.memory.shape
        return tuple(
            extent
            if extent is not None
            else Scalar(recorder, recorder.builder.shape(self.value, axis))
            for axis, extent in enumerate(fixed)
        )

    @property
    def size(self) -> Any:
        first, *rest = self.shape or (1,)
        return math.prod(rest, start=first)

    @property
    def strides(self) -> tuple[Any, ...]:
        """Elements from one index to the next, per axis."""
        if self.memory.space is not Space.ARRAY:
            extents = [extent or 0 for extent in self.memory.shape]
            return tuple(math.prod(extents[axis + 1 :]) for axis in range(self.ndim))
        recorder = self._live()
        recorder.mark()
        unit = self.memory.element.size // self.memory.element.align
        strides: list[Any] = [
            Scalar(recorder, recorder.builder.stride(self.value, k)) for k in range(self.ndim)
        ]
        return tuple(stride if unit == 1 else stride // unit for stride in strides)

    def __repr__(self) -> str:
        return f"<array {self.name} of {self.element_name} of a kernel>"

    def __len__(self) -> int:
        fail(f"len({self.name}) is a run-time value", f"write {self.name}.shape[0]")

    def __getattr__(self, name: str) -> Any:
        fail(
            f"{self.name} is {self.described} and has no attribute {name!r}",
            "arrays have shape, size, ndim, dtype and strides",
        )

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Array):
            return self is other
        fail("an array is compared as a whole", f"compare its elements: {self.name}[i] == ...")

    __hash__ = Proxy.__hash__

    def indices(self, key: object) -> tuple[Value, ...]:
        """The index values of a subscript: one integer per axis."""
        recorder = self._live()
        keys = key if isinstance(key, tuple) else tuple(key) if isinstance(key, Vector) else (key,)
        if len(keys) != self.ndim:
            fail(
                f"{self.name} has {self.ndim} {'axis' if self.ndim == 1 else 'axes'} and is "
                f"indexed with {len(keys)}",
                f"write {self.name}[{', '.join('ijk'[: self.ndim]) or '()'}]",
            )
        return tuple(self._index(recorder, item) for item in keys)

    def _index(self, recorder: Recorder, item: object) -> Value:
        if isinstance(item, slice) or item is None or item is Ellipsis:
            fail("slices make no arrays inside a kernel", "index one element at a time")
        number = to_scalar(recorder, item, index)
        if not number.dtype.is_integer:
            fail(
                f"{self.name} is indexed with {describe(item)}",
                "an index is an integer: cast with kj.i32(...)",
            )
        if type(item) in (int, bool) and int(item) < 0:  # type: ignore[call-overload]
            fail(
                f"{self.name} is indexed with {item}: negative indices do not count from the end",
                f"write {self.name}[{self.name}.size - {-int(item)}]",  # type: ignore[call-overload]
            )
        return number.value

    def __getitem__(self, key: object) -> Any:
        recorder = self._live()
        recorder.mark()
        indices = self.indices(key)
        items = tuple(
            Scalar(recorder, recorder.builder.load(self.value, indices, dtype, Access(leaf)))
            for leaf, dtype in self.memory.element.leaves
        )
        return items[0] if self.count == 1 else Vector(recorder, items)

    def __setitem__(self, key: object, value: object) -> None:
        self.store(key, tuple(range(self.count)), value)

    def store(self, key: object, places: tuple[int, ...], value: object) -> None:
        """Store to some components of an element (all of them, or a swizzle's)."""
        recorder = self._live()
        recorder.mark()
        if self.memory.space is Space.TABLE:
            fail(f"{self.name} is a constant and cannot be written")
        if isinstance(value, Vector):
            if len(value.items) != len(places):
                fail(
                    f"{value.type_name} is stored to {self.element_name}",
                    "store one component, such as v.x, or use an array of the vector type",
                )
            new: Sequence[object] = value.items
        elif len(places) > 1:
            fail(
                f"{describe(value)} is stored to {self.element_name}",
                f"write {self.element_name}(value), which repeats it in every component",
            )
        else:
            new = (value,)
        indices = self.indices(key)
        leaves = self.memory.element.leaves
        for place, item in zip(places, new, strict=True):
            leaf, dtype = leaves[place]
            scalar = store_cast(recorder, item, dtype, f"{self.name}[...]")
            recorder.builder.store(self.value, indices, scalar.value, Access(leaf))
