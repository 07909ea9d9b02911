"""The scalar types: their names, sizes, NumPy types, limits, and how they combine.

Facts about types stand here and nowhere else; a code generator adds only its own spellings.

``index`` is the type of ids, sizes, shapes and of loop counters over them: a signed integer whose
width (32 or 64 bits) the launch signature decides. It gives way to whatever number it meets, so
the types of a program do not change with the size of its data.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.errors import ArgumentTypeError
from khaljit.tracer.records import dataclass

__all__ = [
    "ALL",
    "FLOATS",
    "INTEGERS",
    "DType",
    "FixedArray",
    "Kind",
    "MixError",
    "bf16",
    "bool_",
    "by_name",
    "by_numpy",
    "f16",
    "f32",
    "f64",
    "fixed_array",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
    "index_reach",
    "meant",
    "promote",
    "u8",
    "u16",
    "u32",
    "u64",
]


class Kind(enum.Enum):
    """What a type's bits mean."""

    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    INDEX = "index"


class MixError(TypeError):
    """Two types do not combine; ``mends`` holds the casts that make them."""

    def __init__(self, message: str, mends: tuple[str, ...]) -> None:
        super().__init__(message)
        self.mends = mends


@final
class DType:
    """One scalar type. There is one object per type, so identity is equality.

    Attributes:
        name: as users write it after ``kj.``.
        kind: what the bits mean.
        bits: width; 0 for ``index``, which has none until a signature gives it one; a ``bool``
            is one byte in memory and one bit of information, and counts as 8.
        numpy: the NumPy dtype of the same memory; uint16 for bf16, int64 for ``index``.
        size: bytes in memory; also the alignment.
        is_float: whether it is a float.
        is_signed: signed integers, ``index`` among them.
        is_integer: integers of either sign and ``index``; not bool.
        limits: the least and the greatest integer; ``index`` counts as 64 bits wide.
    """

    __slots__ = (
        "bits",
        "is_float",
        "is_integer",
        "is_signed",
        "kind",
        "limits",
        "name",
        "numpy",
        "size",
    )

    def __init__(self, name: str, kind: Kind, bits: int, numpy: object) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.bits: Final = bits
        self.numpy: Final = np.dtype(numpy)  # type: ignore[call-overload]  # any dtype spelling
        self.size: Final = int(self.numpy.itemsize)
        self.is_float: Final = kind is Kind.FLOAT
        self.is_signed: Final = kind is Kind.SIGNED or kind is Kind.INDEX
        self.is_integer: Final = self.is_signed or kind is Kind.UNSIGNED
        self.limits: Final = _limits(kind, bits)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return by_name, (self.name,)

    def __call__(self, value: object) -> object:
        """Cast explicitly: a recorded value inside a kernel, a NumPy scalar outside.

        Integers wrap; float to integer truncates and saturates, NaN gives 0.

        >>> f32(0.1)
        np.float32(0.1)
        >>> u8(300)
        np.uint8(44)
        """
        cast = getattr(value, "__kj_cast__", None)
        if cast is not None:
            return cast(self)
        for recorded_cast in RECORDED_CASTS:
            recorded = recorded_cast(value, self)
            if recorded is not None:
                return recorded
        return host_cast(self, value)

    def __getitem__(self, shape: int | tuple[int, ...]) -> FixedArray:
        """A field of a struct that is a fixed array: ``kj.i8[32]``, ``kj.f32[3, 4]``."""
        return fixed_array(self, shape)


def _limits(kind: Kind, bits: int) -> tuple[int, int]:
    bits = bits or 64
    if kind is Kind.UNSIGNED:
        return 0, (1 << bits) - 1
    if kind is Kind.BOOL:
        return 0, 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


@final
@dataclass(frozen=True, slots=True)
class FixedArray:
    """A fixed number of items of one kind, one behind the other: ``kj.i8[32]``."""

    item: Any
    extent: int

    def __repr__(self) -> str:
        item, extents = self.item, [str(self.extent)]
        while isinstance(item, FixedArray):
            extents.append(str(item.extent))
            item = item.item
        name = item.__name__ if isinstance(item, type) else repr(item)
        return f"{name}[{', '.join(extents)}]"


def fixed_array(item: Any, shape: Any) -> FixedArray:
    """A fixed array of one or more axes; ArgumentTypeError for what is no shape."""
    extents = shape if isinstance(shape, tuple) else (shape,)
    if not extents or not all(type(one) is int and one > 0 for one in extents):
        raise ArgumentTypeError(
            f"{shape!r} is no shape of a fixed array",
            mend="a field of a struct is kj.i8[32], with positive ints; a parameter of a kernel, "
            "kj.Array1[kj.i8]",
        )
    for extent in reversed(extents):
        item = FixedArray(item, extent)
    assert isinstance(item, FixedArray)
    return item


# How casts of plain numbers are recorded; gives None where no kernel is. The proxies know.
RECORDED_CASTS: Final[list[Callable[[object, DType], object]]] = []

bool_: Final = DType("bool", Kind.BOOL, 8, np.bool_)
i8: Final = DType("i8", Kind.SIGNED, 8, np.int8)
u8: Final = DType("u8", Kind.UNSIGNED, 8, np.uint8)
i16: Final = DType("i16", Kind.SIGNED, 16, np.int16)
u16: Final = DType("u16", Kind.UNSIGNED, 16, np.uint16)
i32: Final = DType("i32", Kind.SIGNED, 32, np.int32)
u32: Final = DType("u32", Kind.UNSIGNED, 32, np.uint32)
i64: Final = DType("i64", Kind.SIGNED, 64, np.int64)
u64: Final = DType("u64", Kind.UNSIGNED, 64, np.uint64)
f16: Final = DType("f16", Kind.FLOAT, 16, np.float16)
bf16: Final = DType("bf16", Kind.FLOAT, 16, np.uint16)
f32: Final = DType("f32", Kind.FLOAT, 32, np.float32)
f64: Final = DType("f64", Kind.FLOAT, 64, np.float64)
index: Final = DType("index", Kind.INDEX, 0, np.int64)

ALL: Final = (bool_, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64)
INTEGERS: Final = tuple(t for t in ALL if t.is_integer)
FLOATS: Final = tuple(t for t in ALL if t.is_float)

_BY_NAME: Final = {t.name: t for t in (*ALL, index)}
_BY_NUMPY: Final = {t.numpy: t for t in ALL if t is not bf16}
_PYTHON: Final[dict[Any, DType]] = {bool: bool_, int: i32, float: f32}


def index_reach(bits: int) -> int:
    """The most that extents, offsets and padded grids may be where ``index`` is so wide.

    Half of what the type holds, so that sums of two of them do not wrap.
    """
    return 1 << bits - 2


def by_name(name: str) -> DType:
    """The dtype of a name such as ``"f32"``; KeyError when there is none."""
    return _BY_NAME[name]


def by_numpy(dtype: np.dtype[np.generic]) -> DType | None:
    """The dtype of a NumPy dtype in native byte order; None when khaljit has none."""
    return _BY_NUMPY.get(dtype) if dtype.isnative else None


def meant(kind: Any) -> str | None:
    """What to write for a type of Python's or NumPy's: ``kj.f32`` for ``np.float32``, its dtype and
    ``"float32"``, and for ``float``. None where that is unknown."""
    found: DType | None
    try:
        found = _PYTHON.get(kind)
        if found is None and kind is not None:
            found = by_numpy(np.dtype(kind))
    except (TypeError, ValueError):
        found = None
    if found is None and isinstance(kind, str):
        found = _BY_NAME.get(kind)
    return f"kj.{found.name}" if found else None


def promote(a: DType, b: DType) -> DType:
    """The type of ``a op b`` for two strong types; MixError where the mix is refused.

    bool gives way to any number, ``index`` to any number but bool, integers to floats, the
    narrower to the wider. f16 with bf16 gives f32. Refused: signed with unsigned of the same
    width, and u64 with any signed type, since no type holds both.
    """
    if a is b:
        return a
    if a.kind is b.kind:
        if a.bits != b.bits:
            return a if a.bits > b.bits else b
        return f32  # f16 with bf16
    order = (Kind.BOOL, Kind.INDEX, Kind.SIGNED, Kind.UNSIGNED, Kind.FLOAT)
    low, high = sorted((a, b), key=lambda t: order.index(t.kind))
    if low.kind is Kind.BOOL or low.kind is Kind.INDEX or high.kind is Kind.FLOAT:
        return high
    if low.bits > high.bits:  # a signed type wide enough for the unsigned one
        return low
    if high is u64 or low.bits == high.bits:
        raise MixError(
            f"{a.name} and {b.name} do not mix: no type holds both",
            (f"kj.{low.name}(...)", f"kj.{high.name}(...)"),
        )
    # A narrower signed type with a wider unsigned one: the next wider signed type holds both.
    return i32 if high is u16 else i64


def host_cast(dtype: DType, value: Any) -> Any:
    """``value`` as a NumPy scalar of ``dtype`` by the rules of explicit casts."""
    if dtype is bf16:
        raise TypeError("NumPy has no bf16 scalar: bf16 is cast inside a kernel only")
    if dtype.kind is Kind.FLOAT or dtype.kind is Kind.BOOL:
        with np.errstate(over="ignore"):
            return dtype.numpy.type(value)
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, float):
        low, high = dtype.limits
        number = 0 if number != number else int(min(max(number, low), high))
        number = min(max(number, low), high)
    elif not isinstance(number, int):
        number = int(number)
    span = 1 << (dtype.bits or 64)
    number %= span
    if dtype.is_signed and number >= span >> 1:
        number -= span
    return dtype.numpy.type(number)
