"""Vector types: they make vectors, and say what memory and fields hold."""

from __future__ import annotations

from typing import Any, Final, final

from khaljit.tracer.coerce import cast
from khaljit.tracer.dtypes import DType, FixedArray, bool_, f16, f32, f64, fixed_array, i32, u32
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.hostvectors import HostVector
from khaljit.tracer.proxy import Vector, fail, vector_name
from khaljit.tracer.recorder import recording

__all__ = ["VECTORS", "VectorType", "vec"]


@final
class VectorType:
    """A vector type such as ``kj.vec3``: makes vectors, describes arrays."""

    __slots__ = ("count", "dtype", "name")

    def __init__(self, dtype: DType, count: int) -> None:
        self.name: Final = vector_name(dtype, count)
        self.dtype: Final = dtype
        self.count: Final = count

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return vec, (self.count, self.dtype)

    def __getitem__(self, shape: int | tuple[int, ...]) -> FixedArray:
        """A field of a struct that is a fixed array of vectors: ``kj.vec3[8]``."""
        return fixed_array(self, shape)

    def __call__(self, *parts: Any) -> Any:
        """From as many numbers as it has components, from vectors and numbers, or from one."""
        recorder = recording()
        items: list[Any] = []
        for part in parts:
            items.extend(part if isinstance(part, Vector | HostVector) else [part])
        if len(items) == 1:
            items *= self.count
        if len(items) != self.count:
            message = f"{self.name} is made of {self.count} numbers, not {len(items)}"
            if recorder is None:
                raise ArgumentValueError(message, mend=f"pass {self.count} numbers, or one for all")
            fail(message)
        if recorder is None:
            return HostVector(self.dtype, items)
        return Vector(recorder, tuple(cast(item, self.dtype) for item in items))


VECTORS: Final = tuple(
    VectorType(dtype, count) for dtype in (f32, i32, u32, f64, f16, bool_) for count in (2, 3, 4)
)
_FOUND: Final = {(one.count, one.dtype): one for one in VECTORS}


def vec(count: int, dtype: DType) -> VectorType:
    """The vector type of 2 to 4 components of a dtype.

    >>> vec(3, f32)
    vec3
    """
    if count not in (2, 3, 4):
        raise ValueError(f"vectors have 2, 3 or 4 components, not {count}")
    found = _FOUND.get((count, dtype))
    if found is None:
        found = _FOUND.setdefault((count, dtype), VectorType(dtype, count))
    return found
