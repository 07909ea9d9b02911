"""Floats by their parts: sign, exponent and fraction; remainders; exact whatever the operands.

All of it is arithmetic in the operands' own type and on its bits. Vectors go by their components.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from khaljit.tracer import dtypes
from khaljit.tracer.arithmetic import (
    compare,
    float_function,
    float_operands,
    number_function,
    select,
)
from khaljit.tracer.coerce import cast, to_scalar
from khaljit.tracer.dtypes import DType, bf16, f16, f32, f64, i32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.intrinsics.bits import bitcast, clz
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, fail, live
from khaljit.tracer.recorder import current

__all__ = [
    "copysign",
    "fmod",
    "fract",
    "frexp",
    "ldexp",
    "modf",
    "nextafter",
    "remainder",
    "signbit",
]

# Bits of the stored fraction, and the exponent's bias.
_FORMATS: Final = {f16: (10, 15), bf16: (7, 127), f32: (23, 127), f64: (52, 1023)}


def _by_component(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of scalars, of vectors component by component; tuples of results transposed."""

    @wraps(function)
    def spread(*args: Any) -> Any:
        counts = {len(arg) for arg in args if is_vector(arg)}
        if not counts:
            current(f"kj.{function.__name__}").mark()
            return function(*args)
        if len(counts) > 1:
            fail(
                f"kj.{function.__name__} of vectors of {' and '.join(map(str, sorted(counts)))}",
                "all need the same number of components",
            )
        count = counts.pop()
        columns = [arg.items if is_vector(arg) else (arg,) * count for arg in args]
        results = [function(*row) for row in zip(*columns, strict=True)]
        recorder = live(*args)
        if isinstance(results[0], tuple):
            return tuple(Vector(recorder, part) for part in zip(*results, strict=True))
        return Vector(recorder, tuple(results))

    return spread


def _floats(*args: Any) -> tuple[Scalar, ...]:
    """Operands as floats of one type."""
    recorder = live(*args)
    _, values = float_operands(recorder, args)
    return tuple(Scalar(recorder, value) for value in values)


class _Bits:
    """The bits of a float, and masks of its type."""

    def __init__(self, x: Scalar) -> None:
        self.dtype: Final[DType] = x.dtype
        self.unsigned: Final = dtypes.by_name(f"u{x.dtype.bits}")
        self.fraction, self.bias = _FORMATS[x.dtype]
        self.sign: Final = 1 << x.dtype.bits - 1
        self.all: Final[Any] = bitcast(x, self.unsigned)
        self.magnitude: Final[Any] = self.all & (self.sign - 1)

    def number(self, bits: Any) -> Any:
        return bitcast(bits, self.dtype)

    def normalised(self) -> tuple[Any, Any]:
        """The fraction's bits and the biased exponent, as if subnormals had an exponent below 1."""
        top = dtypes.by_name("u64" if self.dtype is f64 else "u32")
        magnitude = cast(self.magnitude, top)
        shift = clz(magnitude) - (top.bits - 1 - self.fraction)
        small = compare(Op.LT, magnitude, 1 << self.fraction)
        moved = select(small, magnitude << cast(select(small, shift, 0), top), magnitude)
        exponent = cast(magnitude >> self.fraction, i32)
        fraction = moved & ((1 << self.fraction) - 1)
        return cast(fraction, self.unsigned), select(small, 1 - shift, exponent)


@_by_component
def copysign(x: Any, y: Any) -> Any:
    """The magnitude of x with the sign of y."""
    x, y = _floats(x, y)
    magnitude = _Bits(x)
    return magnitude.number(magnitude.magnitude | (_Bits(y).all & magnitude.sign))


@_by_component
def signbit(x: Any) -> Any:
    """Whether the sign is negative, that of zeros included."""
    (x,) = _floats(x)
    bits = _Bits(x)
    return compare(Op.GE, bits.all, bits.sign)


@_by_component
def fract(x: Any) -> Any:
    """x - floor(x), which rounds to 1 for the smallest negative numbers."""
    (x,) = _floats(x)
    return x - float_function(Op.FLOOR, x)


@_by_component
def modf(x: Any) -> Any:
    """The fraction and the whole part of x, each with its sign: a tuple of two floats."""
    (x,) = _floats(x)
    whole = float_function(Op.TRUNC, x)
    rest = select(compare(Op.EQ, x, whole), x * 0.0, x - whole)
    finite = compare(Op.LT, number_function(Op.ABS, x), float("inf"))
    return copysign(select(finite | compare(Op.NE, x, x), rest, 0.0), x), whole


@_by_component
def fmod(x: Any, y: Any) -> Any:
    """x - y * trunc(x / y), exact, with the sign of x; NaN where x is infinite or y is 0."""
    x, y = _floats(x, y)
    return copysign(number_function(Op.ABS, x) % number_function(Op.ABS, y), x)


@_by_component
def remainder(x: Any, y: Any) -> Any:
    """x - y * n with n the whole number nearest to x / y, ties to even; exact.

    NaN where x is infinite or y is 0; zero has the sign of x. (``%`` and NumPy's remainder floor.)
    """
    x, y = _floats(x, y)
    size = number_function(Op.ABS, y)
    rest = number_function(Op.ABS, x) % (size + size)
    less = rest - size
    less = select(compare(Op.GE, less, size - less), less - size, less)
    rest = select(compare(Op.GT, rest, size - rest), less, rest)
    bits = _Bits(rest)
    return bits.number(bits.all ^ (_Bits(x).all & bits.sign))


@_by_component
def nextafter(x: Any, y: Any) -> Any:
    """The float next to x on the way to y; y where they are equal."""
    x, y = _floats(x, y)
    bits, other = _Bits(x), _Bits(y)
    # By integers, as subnormal numbers must be told from zero.
    upward = compare(Op.LT, x, y)
    away = compare(Op.EQ, upward, compare(Op.LT, bits.all, bits.sign))
    moved = select(away, bits.all + 1, bits.all - 1)
    zero = compare(Op.EQ, bits.magnitude, 0)
    moved = select(zero, (other.all & bits.sign) | 1, moved)
    result = select(compare(Op.EQ, x, y), y, bits.number(moved))
    nan = compare(Op.NE, x, x) | compare(Op.NE, y, y)
    return select(nan, float("nan"), result)


@_by_component
def ldexp(x: Any, exponent: Any) -> Any:
    """x * 2**exponent, rounded once; the exponent is an integer."""
    (x,) = _floats(x)
    bits = _Bits(x)
    fraction, field = bits.normalised()
    field = field + _small_integer(exponent, 4 * bits.bias)
    # Subnormal results are made 2**shift times too large, and a multiplication rounds them.
    shift = bits.fraction + 3
    subnormal = compare(Op.LT, field, 1)
    field = select(subnormal, field + shift, field)
    held = cast(select(compare(Op.GT, field, 0), field, 0), bits.unsigned)
    scaled = bits.number((bits.all & bits.sign) | (held << bits.fraction) | fraction)
    scaled = select(subnormal, scaled * 2.0**-shift, scaled)
    infinite = bits.number((bits.all & bits.sign) | (2 * bits.bias + 1 << bits.fraction))
    none = bits.number(bits.all & bits.sign)
    scaled = select(compare(Op.GT, field, 2 * bits.bias), infinite, scaled)
    scaled = select(compare(Op.LT, field, 1), none, scaled)
    same = compare(Op.EQ, bits.magnitude, 0) | _is_special(bits)
    return select(same, x, scaled)


def _is_special(bits: _Bits) -> Any:
    """Whether a number is infinite or none."""
    return compare(Op.GE, bits.magnitude, 2 * bits.bias + 1 << bits.fraction)


def _small_integer(value: Any, limit: int) -> Any:
    """An integer of any type as an i32 between -limit and limit."""
    scalar = to_scalar(live(value), value)
    if not scalar.dtype.is_integer:
        fail(f"kj.ldexp by {scalar.dtype.name}", "the exponent is an integer: cast it")
    if scalar.dtype is dtypes.index or scalar.dtype.bits >= 32:
        scalar = select(compare(Op.LT, scalar, limit), scalar, limit)
        if scalar.dtype.is_signed:
            scalar = select(compare(Op.GT, scalar, -limit), scalar, -limit)
    return cast(scalar, i32)


@_by_component
def frexp(x: Any) -> Any:
    """m and e with x = m * 2**e and 0.5 <= abs(m) < 1: a tuple of a float and an i32.

    Zeros, infinities and NaN come back with an exponent of 0.
    """
    (x,) = _floats(x)
    bits = _Bits(x)
    fraction, field = bits.normalised()
    half = bits.number((bits.all & bits.sign) | fraction | (bits.bias - 1 << bits.fraction))
    same = compare(Op.EQ, bits.magnitude, 0) | _is_special(bits)
    return select(same, x, half), select(same, 0, field - (bits.bias - 1))
