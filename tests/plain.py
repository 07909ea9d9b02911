"""khaljit's names with a meaning in plain Python, one number at a time.

A generated kernel that is run with `NAMES` in place of khaljit goes through no rewriting, no
recording and no compiler: Python's own control flow decides, and each operation is done on Python
integers, NumPy scalars or exact fractions. So it judges the front end and the interpreter, which
all other columns are compared with. Only what generated programs use is here; barriers, and the
contraction of products and sums, are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from khaljit.tracer import dtypes
from khaljit.tracer.dtypes import DType, promote

__all__ = ["BUILTINS", "NAMES", "Memory", "Number", "invocation", "scalar"]

# Digits of the significand, and the exponent of the least subnormal.
_FORMATS: Final = {
    dtypes.f16: (11, -24),
    dtypes.bf16: (8, -133),
    dtypes.f32: (24, -149),
    dtypes.f64: (53, -1074),
}
_HELD: Final[dict[DType, Any]] = {
    dtypes.f16: np.float16,
    dtypes.bf16: np.float32,
    dtypes.f32: np.float32,
    dtypes.f64: np.float64,
}
_LARGEST: Final = {
    dtypes.f16: Fraction(65504),
    dtypes.bf16: Fraction((1 << 8) - 1) * 2**120,
    dtypes.f32: Fraction((1 << 24) - 1) * 2**104,
    dtypes.f64: Fraction((1 << 53) - 1) * 2**971,
}


def nearest(exact: Fraction, dtype: DType) -> Any:
    """The float of a type nearest to an exact number, ties to even."""
    digits, least = _FORMATS[dtype]
    if exact == 0:
        return _HELD[dtype](0.0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** max(exponent - digits + 1, least)
    rounded = round(size / step) * step
    value = math.inf if rounded > _LARGEST[dtype] else float(rounded)
    return _HELD[dtype](-value if exact < 0 else value)


def _wrap(dtype: DType, value: int) -> int:
    low, high = dtype.limits
    return (value - low) % (high - low + 1) + low


def convert(value: Any, source: DType, dtype: DType) -> Any:
    """A value of one type as a value of another, as explicit casts do it."""
    if source is dtype:
        return value
    if dtype is dtypes.bool_:
        return bool(value != 0)
    if dtype.is_float:
        if not source.is_float:
            return nearest(Fraction(int(value)), dtype)
        if dtype is dtypes.bf16 and np.isfinite(value) and value != 0:
            return nearest(Fraction(float(value)), dtype)
        return _HELD[dtype](value)
    if source.is_float:
        if np.isnan(value):
            return 0
        low, high = dtype.limits
        return high if value >= high else low if value <= low else int(value)
    return _wrap(dtype, int(value))


class Number:
    """A number of a dtype: a Python int or bool, or a NumPy float (of f32 for bf16)."""

    __slots__ = ("dtype", "value")
    __array_ufunc__ = None

    def __init__(self, dtype: DType, value: Any) -> None:
        self.dtype = dtype
        self.value = value

    def __repr__(self) -> str:
        return f"{self.dtype.name}({self.value})"

    def __bool__(self) -> bool:
        return bool(self.value != 0)

    def __index__(self) -> int:
        return int(self.value)

    __hash__ = None  # type: ignore[assignment]  # no generated program hashes numbers


def of(dtype: DType, value: Any) -> Number:
    """A number cast to a type."""
    if isinstance(value, Number):
        return Number(dtype, convert(value.value, value.dtype, dtype))
    if type(value) is float:
        return Number(dtype, convert(np.float64(value), dtypes.f64, dtype))
    if dtype is dtypes.bool_:
        return Number(dtype, bool(value))
    return Number(dtype, convert(int(value), dtypes.i64, dtype))


def _own(value: Any) -> Number:
    """A literal in its own type."""
    if isinstance(value, Number):
        return value
    if type(value) is bool:
        return of(dtypes.bool_, value)
    return of(dtypes.f32 if type(value) is float else dtypes.i32, value)


def _unify(a: Any, b: Any) -> tuple[Number, Number]:
    if isinstance(a, Number) and isinstance(b, Number):
        dtype = promote(a.dtype, b.dtype)
        return of(dtype, a), of(dtype, b)
    if isinstance(a, Number):
        other, number = b, a
    else:
        other, number = a, b
    if not isinstance(number, Number):
        return _unify(_own(a), _own(b))
    dtype = number.dtype
    if type(other) is float and not dtype.is_float:
        dtype = dtypes.f64 if dtype.bits == 64 else dtypes.f32
    elif dtype is dtypes.bool_ and type(other) is int:
        dtype = dtypes.i32
    return of(dtype, a), of(dtype, b)


# Integers.


def _shift_left(a: int, b: int, bits: int) -> int:
    amount = b % (1 << bits)
    return 0 if amount >= bits else a << amount


def _shift_right(a: int, b: int, bits: int) -> int:
    return a >> min(b % (1 << bits), bits)


_INTEGER: Final[dict[str, Callable[[int, int, int], int]]] = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul": lambda a, b, bits: a * b,
    "floordiv": lambda a, b, bits: a // b if b else 0,
    "mod": lambda a, b, bits: a % b if b else 0,
    "and": lambda a, b, bits: a & b,
    "or": lambda a, b, bits: a | b,
    "xor": lambda a, b, bits: a ^ b,
    "lshift": _shift_left,
    "rshift": _shift_right,
    "min": lambda a, b, bits: min(a, b),
    "max": lambda a, b, bits: max(a, b),
    "minimum": lambda a, b, bits: min(a, b),
    "maximum": lambda a, b, bits: max(a, b),
    "mulhi": lambda a, b, bits: a * b >> bits,
}


# Floats.


def _extreme(a: Any, b: Any, sign: int, nan: bool) -> Any:
    if np.isnan(a) or np.isnan(b):
        if nan:
            return a if np.isnan(a) else b
        return b if np.isnan(a) else a
    if a == b:
        return b if np.signbit(a) == (sign > 0) else a
    return a if (a > b) == (sign > 0) else b


_FLOAT: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "min": lambda a, b: _extreme(a, b, -1, False),
    "max": lambda a, b: _extreme(a, b, 1, False),
    "minimum": lambda a, b: _extreme(a, b, -1, True),
    "maximum": lambda a, b: _extreme(a, b, 1, True),
}


def _finish(dtype: DType, value: Any) -> Number:
    """Round a result that was computed in another float type."""
    if dtype is dtypes.bf16 and np.isfinite(value):
        bits = int(np.float32(value).view(np.uint32))  # the nearest 16 upper bits, ties to even
        bits += 0x7FFF + (bits >> 16 & 1)
        return from_memory(dtype, bits >> 16)
    return Number(dtype, _HELD[dtype](value))


def binary(name: str, a: Any, b: Any) -> Number:
    """An arithmetic or bitwise operation."""
    left, right = _unify(a, b)
    dtype = left.dtype
    if name == "truediv" and not dtype.is_float:
        dtype = dtypes.f64 if dtype.bits == 64 else dtypes.f32
        left, right = of(dtype, left), of(dtype, right)
    if not dtype.is_float:
        if dtype is dtypes.bool_:
            logic = _INTEGER[name](int(left.value), int(right.value), 1)
            return Number(dtype, bool(logic))
        result = _INTEGER[name](left.value, right.value, dtype.bits or 64)
        return Number(dtype, _wrap(dtype, result))
    x, y = left.value, right.value
    if dtype is dtypes.f16 and name in ("floordiv", "mod"):
        x, y = np.float32(x), np.float32(y)
    return _finish(dtype, _FLOAT[name](x, y))


_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def compare(name: str, a: Any, b: Any) -> Number:
    """A comparison; integer literals compare as the numbers they are."""
    for number, literal in ((a, b), (b, a)):
        if isinstance(number, Number) and number.dtype.is_integer and type(literal) is int:
            x, y = (one.value if isinstance(one, Number) else one for one in (a, b))
            return Number(dtypes.bool_, bool(_COMPARE[name](x, y)))
    left, right = _unify(a, b)
    return Number(dtypes.bool_, bool(_COMPARE[name](left.value, right.value)))


def power(base: Any, exponent: Any) -> Any:
    """A power of integers, which wraps; or of a float with an exponent of 1, 2 or 3."""
    if base.dtype.is_float:
        return (base, base * base, base * (base * base))[exponent - 1]
    x, y = base.value, exponent if isinstance(exponent, int) else exponent.value
    if y >= 0:
        return Number(base.dtype, _wrap(base.dtype, pow(x, y, 1 << base.dtype.bits)))
    return of(base.dtype, {1: 1, -1: -1 if y % 2 else 1}.get(x, 0))


def _operator(function: Callable[..., Any], name: str, mirrored: bool) -> Callable[..., Any]:
    if mirrored:
        return lambda a, b: function(name, b, a)
    return lambda a, b: function(name, a, b)


def _attach() -> None:
    for name in (*_INTEGER, "truediv"):
        for prefix in ("", "r"):
            setattr(Number, f"__{prefix}{name}__", _operator(binary, name, prefix == "r"))
    for name in _COMPARE:
        setattr(Number, f"__{name}__", _operator(compare, name, False))
    for name, function in (
        ("pow", power),
        ("neg", negative),
        ("abs", magnitude),
        ("invert", inverse),
    ):
        setattr(Number, f"__{name}__", function)


# Functions of one number.


def negative(x: Number) -> Number:
    """-x"""
    return Number(x.dtype, -x.value if x.dtype.is_float else _wrap(x.dtype, -x.value))


def inverse(x: Number) -> Number:
    """~x; logical for bool."""
    return Number(x.dtype, not x.value if x.dtype is dtypes.bool_ else _wrap(x.dtype, ~x.value))


def magnitude(x: Number) -> Number:
    """abs(x); that of the most negative integer is its own."""
    if x.dtype.is_float:
        return Number(x.dtype, np.abs(x.value))
    return Number(x.dtype, _wrap(x.dtype, abs(x.value)))


def _rounding(function: Callable[[Any], Any]) -> Callable[[Number], Number]:
    return lambda x: Number(x.dtype, function(x.value)) if x.dtype.is_float else x


def sqrt(x: Number) -> Number:
    """The square root; the narrow types have less than half of f32's digits."""
    return _finish(x.dtype, np.sqrt(x.value))


def fma(a: Number, b: Number, c: Number) -> Number:
    """a * b + c, rounded once."""
    x, y, z = float(a.value), float(b.value), float(c.value)
    if math.isinf(z) and math.isfinite(x) and math.isfinite(y):
        return c
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return Number(a.dtype, _HELD[a.dtype](np.float64(x) * np.float64(y) + np.float64(z)))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        product = math.copysign(0.0, x) * math.copysign(1.0, y)
        return Number(a.dtype, _HELD[a.dtype](product + z if z == 0 else 0.0))
    return Number(a.dtype, nearest(exact, a.dtype))


def sign(x: Number) -> Number:
    """-1, 0 or 1, zeros and NaN as they are."""
    return of(x.dtype, 1) if x.value > 0 else of(x.dtype, -1) if x.value < 0 else x


def isnan(x: Number) -> Number:
    """Whether x is no number."""
    return Number(dtypes.bool_, bool(x.value != x.value))


def isinf(x: Number) -> Number:
    """Whether x is infinite."""
    return Number(dtypes.bool_, bool(np.isinf(x.value)))


def isfinite(x: Number) -> Number:
    """Whether x is a number and not infinite."""
    return Number(dtypes.bool_, bool(np.isfinite(x.value)))


def copysign(x: Number, y: Number) -> Number:
    """The magnitude of x with the sign of y."""
    return Number(x.dtype, np.copysign(x.value, y.value))


def select(condition: Any, yes: Any, no: Any) -> Any:
    """One of two numbers of a common type."""
    left, right = _unify(yes, no)
    return left if condition else right


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x between two bounds."""
    return least(greatest(x, low), high)


def _pair(name: str) -> Callable[[Any, Any], Number]:
    return lambda a, b: binary(name, a, b)


least, greatest = _pair("min"), _pair("max")


# Bits.


def _unsigned(x: Number) -> int:
    value: int = x.value % (1 << x.dtype.bits)
    return value


def popcount(x: Number) -> Number:
    """Set bits."""
    return Number(dtypes.i32, _unsigned(x).bit_count())


def clz(x: Number) -> Number:
    """Zero bits above the highest set one."""
    return Number(dtypes.i32, x.dtype.bits - _unsigned(x).bit_length())


def ctz(x: Number) -> Number:
    """Zero bits below the lowest set one."""
    bits = _unsigned(x)
    return Number(dtypes.i32, (bits & -bits).bit_length() - 1 if bits else x.dtype.bits)


def reverse_bits(x: Number) -> Number:
    """The bits in the opposite order."""
    text = f"{_unsigned(x):0{x.dtype.bits}b}"
    return Number(x.dtype, _wrap(x.dtype, int(text[::-1], 2)))


def rotate(x: Number, amount: Any) -> Number:
    """The bits moved up cyclically."""
    bits = x.dtype.bits
    by = int(of(x.dtype, amount).value) % bits
    return Number(x.dtype, _wrap(x.dtype, x.value << by | x.value >> bits - by))


def extract_bits(x: Number, offset: Any, count: Any) -> Number:
    """Some bits; of signed types the highest of them is the sign."""
    width = int(count.value if isinstance(count, Number) else count)
    start = int(offset.value if isinstance(offset, Number) else offset)
    field = (_unsigned(x) >> start) % (1 << width)
    if x.dtype.is_signed and width and field >> (width - 1):
        field -= 1 << width
    return Number(x.dtype, _wrap(x.dtype, field))


def insert_bits(x: Number, new: Number, offset: Any, count: Any) -> Number:
    """x with some bits from another number."""
    width = int(count.value if isinstance(count, Number) else count)
    start = int(offset.value if isinstance(offset, Number) else offset)
    mask = ((1 << width) - 1) << start
    return Number(x.dtype, _wrap(x.dtype, _unsigned(x) & ~mask | _unsigned(new) << start & mask))


def bitcast(x: Number, dtype: Type) -> Number:
    """The same bits as another type."""
    return from_memory(dtype.dtype, to_memory(x).view(dtype.dtype.numpy))


# Types and memory.


def to_memory(x: Number) -> Any:
    """A number as a NumPy scalar of the memory of its type."""
    if x.dtype is dtypes.bf16:
        return np.uint16(int(np.float32(x.value).view(np.uint32)) >> 16)
    return x.dtype.numpy.type(x.value)


def from_memory(dtype: DType, raw: Any) -> Number:
    """A number from its memory."""
    if dtype is dtypes.bf16:
        return Number(dtype, np.uint32(int(raw) << 16).view(np.float32))
    return Number(dtype, raw if dtype.is_float else raw.item())


class Type:
    """A dtype: casts numbers."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, value: Any) -> Number:
        return of(self.dtype, value)


class Memory:
    """An array; out of bounds it reads 0 and is not written."""

    def __init__(self, dtype: DType, data: NDArray[Any]) -> None:
        self.dtype = dtype
        self.data = data

    @property
    def shape(self) -> tuple[Number, ...]:
        return tuple(Number(dtypes.index, extent) for extent in self.data.shape)

    @property
    def size(self) -> Number:
        return Number(dtypes.index, self.data.size)

    def place(self, key: Any) -> tuple[int, ...] | None:
        keys = key if isinstance(key, tuple) else (key,)
        place = tuple(int(one.value if isinstance(one, Number) else one) for one in keys)
        inside = all(0 <= k < n for k, n in zip(place, self.data.shape, strict=True))
        return place if inside else None

    def __getitem__(self, key: Any) -> Number:
        place = self.place(key)
        return of(self.dtype, 0) if place is None else from_memory(self.dtype, self.data[place])

    def __setitem__(self, key: Any, value: Any) -> None:
        place = self.place(key)
        if place is not None:
            self.data[place] = to_memory(of(self.dtype, value))


def local(dtype: Type, shape: Any) -> Memory:
    """Memory of one invocation."""
    return Memory(dtype.dtype, np.zeros(shape, dtype.dtype.numpy))


def constant(data: Any) -> Memory:
    """A table."""
    array = np.asarray(data)
    array = array.astype({"f": np.float32, "i": np.int32}[array.dtype.kind])
    found = dtypes.by_numpy(array.dtype)
    assert found is not None
    return Memory(found, array)


def _atomic(name: str) -> Callable[[Memory, Any, Any], None]:
    def atomic(memory: Memory, key: Any, value: Any) -> None:
        memory[key] = binary(name, memory[key], of(memory.dtype, value))

    return atomic


# Where and how a program runs.

_HERE: Final[dict[str, tuple[int, ...]]] = {}


def invocation(**ids: tuple[int, ...]) -> None:
    """Set the ids of the invocation that runs next."""
    _HERE.update(ids)


def _id(name: str) -> Callable[[int], Number]:
    return lambda axis: Number(dtypes.index, _HERE[name][axis])


_IDS: Final = {"global_id": "global", "workgroup_id": "workgroup", "num_workgroups": "groups"}


def workgroup_size(axis: int) -> int:
    """As the program declared it."""
    return _HERE["size"][axis]


class _Annotation:
    def __class_getitem__(cls, item: object) -> None:
        del item


def jit(**options: object) -> Callable[[Any], Any]:
    """The function itself."""
    del options
    return lambda function: function


def unroll(items: Any) -> list[Any]:
    """All items."""
    return list(items)


def _range(*ends: Any) -> Iterator[Any]:
    """Numbers of the type that the ends have together; Python's own without one."""
    numbers = [one for one in ends if isinstance(one, Number)]
    if not numbers:
        yield from range(*ends)
        return
    dtype = numbers[0].dtype
    for one in numbers[1:]:
        dtype = promote(dtype, one.dtype)
    values = [int(one.value) if isinstance(one, Number) else one for one in ends]
    if len(values) < 3 or values[2]:
        for value in range(*values):
            yield Number(dtype, value)


def scalar(dtype: DType, value: Any) -> Number:
    """An argument of a kernel."""
    return from_memory(dtype, value) if isinstance(value, np.generic) else of(dtype, value)


# What these names of Python mean in a kernel.
BUILTINS: Final[dict[str, Any]] = {
    "range": _range,
    "int": lambda x: of(dtypes.i32, x),
    "float": lambda x: of(dtypes.f32, x),
    "min": least,
    "max": greatest,
}

# What ``kj`` is in a program.
NAMES: Final = SimpleNamespace(
    **{dtype.name: Type(dtype) for dtype in dtypes.ALL},
    **{f.__name__: f for f in (sqrt, fma, sign, isnan, isinf, isfinite, copysign, select)},
    **{f.__name__: f for f in (popcount, clz, ctz, reverse_bits, rotate, bitcast, clamp)},
    **{f.__name__: f for f in (extract_bits, insert_bits)},
    **{f.__name__: f for f in (local, constant, jit, unroll, workgroup_size)},
    **{f"atomic_{name}": _atomic(name) for name in ("add", "sub", "min", "max")},
    **{f"atomic_{name}": _atomic(name) for name in ("and", "or", "xor")},
    **{name: _id(key) for name, key in _IDS.items()},
    floor=_rounding(np.floor),
    ceil=_rounding(np.ceil),
    trunc=_rounding(np.trunc),
    round=_rounding(np.rint),
    abs=magnitude,
    min=least,
    max=greatest,
    minimum=_pair("minimum"),
    maximum=_pair("maximum"),
    mulhi=_pair("mulhi"),
    Array1=_Annotation,
    Array2=_Annotation,
)

_attach()
