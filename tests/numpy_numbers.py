"""NumPy's arithmetic with the exceptions that the documentation makes, for comparing kernels with.

`Numbers` are NumPy arrays whose operators are NumPy's ufuncs, but for what `docs/numerics.md` says
is different: how types mix, division of integers, negative exponents, casts from float to integer,
and the order of zeros and NaN in min and max. bf16, which NumPy lacks, is float32 rounded after
each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.dtypes import ALL, DType, Kind, bf16, bool_, f16, f32, f64, i32, promote

__all__ = ["NAMESPACE", "Numbers", "held"]

Array = np.ndarray[Any, np.dtype[Any]]


def held(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds a type's numbers."""
    return np.dtype(np.float32) if dtype is bf16 else dtype.numpy


def rounded_to_bf16(values: Array) -> Array:
    """float32 rounded to bf16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    even = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(np.isnan(values), values, even.astype(np.uint32).view(np.float32))


@final
class Numbers:
    """Numbers of one type, an element per row."""

    __array_ufunc__ = None

    def __init__(self, dtype: DType, values: Any) -> None:
        self.dtype: Final = dtype
        values = np.asarray(values).astype(held(dtype))
        self.values: Final[Array] = rounded_to_bf16(values) if dtype is bf16 else values

    def __neg__(self) -> Numbers:
        return Numbers(self.dtype, np.negative(self.values))

    def __invert__(self) -> Numbers:
        return Numbers(self.dtype, np.invert(self.values))

    def __abs__(self) -> Numbers:
        return Numbers(self.dtype, np.abs(self.values))

    def __bool__(self) -> bool:
        raise TypeError("and, or and if see one number at a time")


def unified(a: Any, b: Any) -> tuple[DType, Array, Array]:
    """Two operands in their common type; a literal takes the other one's."""
    if not isinstance(a, Numbers):
        dtype = b.dtype
    elif not isinstance(b, Numbers):
        dtype = a.dtype
    else:
        dtype = promote(a.dtype, b.dtype)
    return dtype, cast(dtype, a).values, cast(dtype, b).values


def cast(dtype: DType, x: Any) -> Numbers:
    """An explicit cast."""
    if not isinstance(x, Numbers):
        return Numbers(dtype, np.array(x, held(dtype)))
    if dtype is bool_:
        return Numbers(dtype, x.values != 0)
    if x.dtype.is_float and not dtype.is_float:
        return Numbers(dtype, saturated(dtype, x.values))
    if dtype in (f16, bf16) and x.dtype.is_integer:  # NumPy rounds twice here
        wide = x.values.astype(np.longdouble if x.dtype.bits == 64 else np.float64)
        return Numbers(dtype, to_narrow(dtype, wide))
    if dtype is bf16 and x.dtype is f64:
        return Numbers(dtype, to_narrow(dtype, x.values))
    return Numbers(dtype, x.values)


def to_narrow(dtype: DType, values: Array) -> Array:
    """Wide numbers in f16 or bf16, rounded once: to odd in float32 first, where that is exact."""
    short = values.astype(np.float32)
    with np.errstate(invalid="ignore"):
        inexact = (short.astype(values.dtype) != values) & np.isfinite(short)
        down = np.abs(short.astype(values.dtype)) > np.abs(values)
    bits = short.view(np.uint32) - down.astype(np.uint32)
    odd = np.where(inexact, bits | 1, short.view(np.uint32)).view(np.float32)
    return odd.astype(np.float16) if dtype is f16 else odd


def saturated(dtype: DType, values: Array) -> Array:
    """Floats as integers: cut toward zero, kept within the type, NaN as 0."""
    limits = np.iinfo(dtype.numpy)

    def one(x: float) -> int:
        if np.isnan(x):
            return 0
        if np.isinf(x):
            return int(limits.max if x > 0 else limits.min)
        return min(max(int(x), int(limits.min)), int(limits.max))

    return np.array([one(x) for x in values.tolist()], dtype.numpy)


# Operators.


def _plain(ufunc: Callable[..., Any]) -> Callable[[Any, Any], Numbers]:
    def function(a: Any, b: Any) -> Numbers:
        dtype, x, y = unified(a, b)
        return Numbers(dtype, ufunc(x, y))

    return function


def _divided(a: Any, b: Any) -> Numbers:
    dtype, x, y = unified(a, b)
    if not dtype.is_float:  # f32 or f64, not always f64
        dtype = f64 if dtype.bits == 64 else f32
        x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    return Numbers(dtype, np.divide(x, y))


def _power(a: Any, b: Any) -> Numbers:
    dtype, x, y = unified(a, b)
    if dtype.is_float:
        raise NotImplementedError("powers of floats are khaljit's own expansion")
    negative = y < 0 if dtype.is_signed else np.zeros(y.shape, np.bool_)
    usual = np.power(x, np.where(negative, 0, y))
    sign = np.where(y % 2 == 0, 1, x)
    return Numbers(dtype, np.where(negative, np.where(np.abs(x) == 1, sign, 0), usual))


def _compared(ufunc: Callable[..., Any]) -> Callable[[Any, Any], Numbers]:
    def function(a: Any, b: Any) -> Numbers:
        _, x, y = unified(a, b)
        return Numbers(bool_, ufunc(x, y))

    return function


_OPERATORS: Final[dict[str, Callable[[Any, Any], Numbers]]] = {
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "truediv": _divided,
    "floordiv": _plain(np.floor_divide),
    "mod": _plain(np.remainder),
    "pow": _power,
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "lshift": _plain(np.left_shift),
    "rshift": _plain(np.right_shift),
}
for _name, _function in _OPERATORS.items():
    setattr(Numbers, f"__{_name}__", _function)
    setattr(Numbers, f"__r{_name}__", lambda a, b, function=_function: function(b, a))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _ufunc = {"eq": np.equal, "ne": np.not_equal, "lt": np.less}.get(_name) or {
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }[_name]
    setattr(Numbers, f"__{_name}__", _compared(_ufunc))


# Functions.


def _extreme(ufunc: Callable[..., Any], least: bool) -> Callable[[Any, Any], Numbers]:
    """NumPy's, but that -0 is below +0."""

    def function(a: Any, b: Any) -> Numbers:
        dtype, x, y = unified(a, b)
        found = ufunc(x, y)
        if dtype.is_float:
            zeros = (x == 0) & (y == 0)
            lower = np.where(np.signbit(x), x, y)
            upper = np.where(np.signbit(x), y, x)
            found = np.where(zeros, lower if least else upper, found)
        return Numbers(dtype, found)

    return function


def _one(ufunc: Callable[..., Any], result: DType | None = None) -> Callable[[Any], Numbers]:
    return lambda x: Numbers(result or x.dtype, ufunc(x.values))


def _counted(count: Callable[[str], int]) -> Callable[[Numbers], Numbers]:
    """A count of bits, from their text, highest first."""

    def function(x: Numbers) -> Numbers:
        bits = x.dtype.bits
        texts = (format(int(v) & (1 << bits) - 1, f"0{bits}b") for v in x.values.tolist())
        return Numbers(i32, [count(text) for text in texts])

    return function


def _where(condition: Numbers, yes: Any, no: Any) -> Numbers:
    dtype, x, y = unified(yes, no)
    return Numbers(dtype, np.where(condition.values, x, y))


def _bitcast(x: Numbers, dtype: DType) -> Numbers:
    raw = x.values
    if x.dtype is bf16:
        raw = (raw.view(np.uint32) >> 16).astype(np.uint16)
    if dtype is bf16:
        return Numbers(dtype, (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32))
    return Numbers(dtype, raw.view(dtype.numpy))


class _Type:
    """A dtype as it is called, and passed on, in expressions."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, x: Any) -> Numbers:
        return cast(self.dtype, x)


class _Namespace:
    """What stands for ``kj`` in an expression."""

    min = staticmethod(_extreme(np.fmin, True))
    max = staticmethod(_extreme(np.fmax, False))
    minimum = staticmethod(_extreme(np.minimum, True))
    maximum = staticmethod(_extreme(np.maximum, False))
    floor = staticmethod(_one(np.floor))
    ceil = staticmethod(_one(np.ceil))
    trunc = staticmethod(_one(np.trunc))
    round = staticmethod(_one(np.rint))
    sqrt = staticmethod(_one(np.sqrt))
    isnan = staticmethod(_one(np.isnan, bool_))
    isinf = staticmethod(_one(np.isinf, bool_))
    isfinite = staticmethod(_one(np.isfinite, bool_))
    copysign = staticmethod(_plain(np.copysign))
    popcount = staticmethod(_counted(lambda text: text.count("1")))
    clz = staticmethod(_counted(lambda text: len(text) - len(text.lstrip("0"))))
    ctz = staticmethod(_counted(lambda text: len(text) - len(text.rstrip("0"))))
    select = staticmethod(_where)

    @staticmethod
    def bitcast(x: Numbers, kind: _Type) -> Numbers:
        return _bitcast(x, kind.dtype)


NAMESPACE: Final = _Namespace()
for _dtype in ALL:
    if _dtype.kind is not Kind.INDEX:
        setattr(_Namespace, _dtype.name, _Type(_dtype))
