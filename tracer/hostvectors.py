"""Vectors outside kernels: what ``kj.vec3(1, 2, 3)`` gives there, with NumPy scalars in it.

They have the names and operators that vectors have in kernels; a kernel that reads one takes its
numbers for constants.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.dtypes import DType, bf16, by_numpy, host_cast
from khaljit.tracer.proxy import Proxy, Scalar, Vector, swizzle, vector_name
from khaljit.tracer.recorder import recording

__all__ = ["HostVector", "host_scalar", "is_vector"]


def host_scalar(dtype: DType, value: Any) -> Any:
    """A number as a NumPy scalar of a dtype; of bf16, which NumPy has not, a Python float."""
    return float(value) if dtype is bf16 else host_cast(dtype, value)


@final
class HostVector:
    """Two, three or four numbers of one type; its components can be assigned."""

    __slots__ = ("dtype", "items")
    __array_ufunc__ = None  # NumPy's operators defer to ours
    __hash__ = None  # type: ignore[assignment]  # it can be changed

    dtype: DType
    items: tuple[Any, ...]

    def __init__(self, dtype: DType, items: Sequence[Any]) -> None:
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "items", tuple(host_scalar(dtype, item) for item in items))

    def __repr__(self) -> str:
        numbers = ", ".join(str(item) for item in self.items)
        return f"{vector_name(self.dtype, len(self.items))}({numbers})"

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]

    def __setitem__(self, place: int, value: Any) -> None:
        recorder = recording()
        if recorder is not None:  # the name gets a vector of the kernel's
            recorder.assign(value)
            return
        self._put((range(len(self.items))[place],), (value,))

    def __getattr__(self, name: str) -> Any:
        places = swizzle(name, len(self.items))
        if places is None:
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        if len(places) == 1:
            return self.items[places[0]]
        return HostVector(self.dtype, [self.items[place] for place in places])

    def __setattr__(self, name: str, value: Any) -> None:
        recorder = recording()
        if recorder is not None:
            recorder.assign(value)
            return
        places = swizzle(name, len(self.items))
        if places is None or len(set(places)) != len(places):
            raise AttributeError(f"{self!r} has no attribute {name!r} to assign")
        self._put(places, value if len(places) > 1 else (value,))

    def _put(self, places: Sequence[int], values: Any) -> None:
        items = list(self.items)
        for place, value in zip(places, values, strict=True):
            items[place] = host_scalar(self.dtype, value)
        object.__setattr__(self, "items", tuple(items))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        del copy  # it always is one
        return np.array(self.items, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return HostVector, (self.dtype, self.items)

    def __kj_bytes__(self) -> bytes:
        """What a kernel that captured it depends on."""
        return repr((self.dtype, [str(item) for item in self.items])).encode()

    def mapped(self, function: Callable[[Any], Any]) -> Vector | HostVector:
        """A vector of a function of each component; the kernel's where the function records."""
        items = [function(item) for item in self.items]
        if isinstance(items[0], Scalar):
            return Vector(items[0]._live(), tuple(items))
        return _made(items)


def is_vector(value: object) -> bool:
    """Whether something has components: a vector of a kernel, or one of the host."""
    return isinstance(value, Vector | HostVector)


def _made(items: Sequence[Any]) -> HostVector:
    kind = getattr(items[0], "dtype", None)  # none of the Python floats that stand for bf16
    return HostVector((by_numpy(kind) if kind is not None else None) or bf16, items)


def _binary(function: Callable[[Any, Any], Any], mirrored: bool) -> Callable[[Any, Any], Any]:
    def method(self: HostVector, other: Any) -> Any:
        if isinstance(other, Proxy) or hasattr(type(other), "__kj_layout__"):
            return NotImplemented  # theirs: of the kernel, of a matrix
        others = tuple(other) if hasattr(other, "__len__") else (other,) * len(self.items)
        if len(others) != len(self.items):
            return NotImplemented
        pairs = zip(self.items, others, strict=True)
        return _made([function(b, a) if mirrored else function(a, b) for a, b in pairs])

    return method


_BINARY: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and", "or", "xor"),
)


def _attach() -> None:
    for name in _BINARY:
        function = getattr(operator, f"__{name}__")
        setattr(HostVector, f"__{name}__", _binary(function, False))
        setattr(HostVector, f"__r{name}__", _binary(function, True))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(HostVector, f"__{name}__", _binary(getattr(operator, name), False))
    for name in ("neg", "pos", "abs", "invert"):
        unary = getattr(operator, name)
        setattr(HostVector, f"__{name}__", lambda self, unary=unary: self.mapped(unary))


_attach()
