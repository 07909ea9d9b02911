"""NumPy's meaning of every pure operation: for folding, the interpreter and the oracle.

`evaluate` applies an operation to arrays. `meaning` gives the function behind it, chosen once by
operation and types, for those who apply it often; they silence floating-point warnings themselves.

How values are held (`held`): bool as ``np.bool_``; ``index`` as int32 or int64 by ``index_bits``;
bf16 as float32 arrays of bf16-representable values; everything else in its natural NumPy type.
Memory holds bf16 as 16 bits and bool as a byte of which any bit means true: `from_memory` and
`to_memory` convert. Zero-dimensional arrays and NumPy scalars are arrays here, too.

Everything is exact as ``ops.py`` says, but for the elementary functions (see ``elementary.py``).
Integer `//`, `%` and shifts are NumPy's own, which are total: by 0 gives 0, INT_MIN // -1 is
INT_MIN, a shift past the width (its amount read as unsigned) gives 0 or the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from khaljit.tracer import floats
from khaljit.tracer.dtypes import DType, Kind, bf16, bool_, f16, f64
from khaljit.tracer.elementary import ELEMENTARY, wide_type
from khaljit.tracer.floats import Array
from khaljit.tracer.ops import Op

__all__ = ["evaluate", "from_bits", "from_memory", "held", "meaning", "memory_type", "to_memory"]

_Function = Callable[..., Array]
_Choice = Callable[[DType, tuple[DType, ...], int], _Function]

_REVERSED_BYTES: Final = np.array([int(f"{k:08b}"[::-1], 2) for k in range(256)], np.uint8)


def evaluate(
    value_op: Op,
    dtype: DType,
    operand_types: tuple[DType, ...],
    args: tuple[Array, ...],
    index_bits: int,
) -> Array:
    """The result of a pure operation, of type ``dtype``, on arrays of ``operand_types``."""
    with np.errstate(all="ignore"):
        return np.asarray(meaning(value_op, dtype, operand_types, index_bits)(*args))


@cache
def meaning(
    op: Op, dtype: DType, operand_types: tuple[DType, ...], index_bits: int
) -> Callable[..., Array]:
    """The function of arrays that an operation is, on these types. KeyError for leaves."""
    plain = _PLAIN.get(op)
    return plain if plain is not None else _CHOICES[op](dtype, operand_types, index_bits)


# How values are held.


def held(dtype: DType, index_bits: int) -> np.dtype[Any]:
    """The NumPy type that values of a type are held in."""
    if dtype.kind is Kind.INDEX:
        return np.dtype(np.int32 if index_bits == 32 else np.int64)
    return np.dtype(np.float32) if dtype is bf16 else dtype.numpy


def memory_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of the same memory, for which any bits are good."""
    return np.dtype(np.uint8) if dtype is bool_ else dtype.numpy


def from_memory(dtype: DType, raw: Array, index_bits: int = 64) -> Array:
    """Values from an array of `memory_type` (or its bytes)."""
    raw = raw if raw.dtype == memory_type(dtype) else raw.view(memory_type(dtype))
    if dtype is bool_:
        return np.not_equal(raw, 0)
    if dtype is bf16:
        return floats.bf16_from_bits(raw)
    return raw.astype(held(dtype, index_bits), copy=False)


def to_memory(dtype: DType, values: Array) -> Array:
    """An array of `memory_type` from values."""
    if dtype is bf16:
        return floats.bf16_bits(values)
    return values.astype(memory_type(dtype), copy=False)


def from_bits(dtype: DType, bits: int, index_bits: int) -> Array:
    """The value of some bits, such as a ``CONST`` has, as a zero-dimensional array."""
    kind = held(dtype, index_bits)
    if dtype is bool_:
        return np.array(bool(bits))
    if dtype is bf16:
        return np.array(bits << 16, np.uint32).view(np.float32)
    width = 8 * kind.itemsize
    return np.array(bits & ((1 << width) - 1), f"u{kind.itemsize}").view(kind)


# Conversions.


def _cast(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
    source = operand_types[0]
    target = held(dtype, index_bits)
    if dtype is bool_:
        return lambda x: np.not_equal(x, 0)
    if source.is_float and not dtype.is_float:
        return lambda x: floats.saturate(x, target)
    if dtype is bf16:
        if source.is_integer:
            return floats.integer_to_bf16
        if source is f64:
            return floats.f64_to_bf16
        return lambda x: floats.round_to_bf16(x.astype(np.float32))
    return lambda x: x.astype(target)


def _bitcast(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
    source = operand_types[0]
    return lambda x: from_memory(dtype, to_memory(source, x), index_bits)


def _rounder(dtype: DType) -> _Function:
    """From wherever a float was computed to its own type: float32 or float64, or wider for f64."""
    if dtype is bf16:
        return lambda x: floats.round_to_bf16(x) if x.dtype == np.float32 else floats.f64_to_bf16(x)
    return lambda x: x.astype(dtype.numpy)


# Arithmetic.


def _arithmetic(function: _Function) -> _Choice:
    """NumPy's own function; bf16 computes in float32, which has more than twice its bits."""

    def choose(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
        if dtype is bf16:
            return lambda *args: floats.round_to_bf16(function(*args))
        return function

    return choose


def _in_f32(function: _Function) -> _Choice:
    """Floor division and modulo: narrow floats compute them in float32, as NumPy's f16 does."""

    def choose(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
        if dtype is f16 or dtype is bf16:
            finish = _rounder(dtype)
            return lambda a, b: finish(function(a.astype(np.float32), b.astype(np.float32)))
        return function

    return choose


def _by_kind(integers: _Function, reals: _Function) -> _Choice:
    def choose(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
        return reals if dtype.is_float else integers

    return choose


def _fma(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
    if dtype is f64:
        return floats.fma_f64
    finish = _rounder(dtype)
    return lambda a, b, c: finish(floats.fma_in_f64(a, b, c))


def _elementary(function: _Function) -> _Choice:
    def choose(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
        wide = wide_type(held(dtype, index_bits))
        finish = _rounder(dtype)
        return lambda *args: finish(function(*(x.astype(wide) for x in args)))

    return choose


def _truncating_division(a: Array, b: Array) -> Array:
    """The quotient rounded towards zero; total as floor division is."""
    quotient = np.floor_divide(a, b)
    inexact = np.not_equal(np.remainder(a, b), 0)
    result: Array = np.add(quotient, inexact & np.less(np.bitwise_xor(a, b), 0))
    return result


def _truncating_modulo(a: Array, b: Array) -> Array:
    """The remainder with the sign of the dividend; 0 for a divisor of 0."""
    remainder = np.remainder(a, b)
    other_sign = np.not_equal(remainder, 0) & np.less(np.bitwise_xor(a, b), 0)
    return np.where(other_sign, remainder - b, remainder)


def _multiply_high(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
    kind = held(dtype, index_bits)
    if kind.itemsize == 8:
        return _multiply_high_signed if dtype.is_signed else _multiply_high_unsigned
    wide = np.dtype(np.int64 if dtype.is_signed else np.uint64)
    width = 8 * kind.itemsize
    return lambda a, b: (np.multiply(a, b, dtype=wide) >> width).astype(kind)


def _multiply_high_unsigned(a: Array, b: Array) -> Array:
    """The upper 64 bits of a product, from four products of halves."""
    mask = np.uint64(0xFFFFFFFF)
    a_low, a_high = a & mask, a >> np.uint64(32)
    b_low, b_high = b & mask, b >> np.uint64(32)
    middle = a_high * b_low + (a_low * b_low >> np.uint64(32))
    other = a_low * b_high + (middle & mask)
    upper: Array = a_high * b_high + (middle >> np.uint64(32)) + (other >> np.uint64(32))
    return upper


def _multiply_high_signed(a: Array, b: Array) -> Array:
    upper = _multiply_high_unsigned(a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    return upper - np.where(np.less(a, 0), b, 0) - np.where(np.less(b, 0), a, 0)


# Bits.


def _bits_of(count: Callable[[Array, int], Array]) -> _Choice:
    """A count over the bits, which are seen as an unsigned integer."""

    def choose(dtype: DType, operand_types: tuple[DType, ...], index_bits: int) -> _Function:
        size = held(operand_types[0], index_bits).itemsize
        unsigned = np.dtype(f"u{size}")
        target = held(dtype, index_bits)
        return lambda x: count(x.view(unsigned), 8 * size).astype(target)

    return choose


def _leading_zeros(x: Array, width: int) -> Array:
    shift = 1
    while shift < width:
        x = x | x >> shift
        shift *= 2
    zeros: Array = np.subtract(width, np.bitwise_count(x))
    return zeros


def _trailing_zeros(x: Array, width: int) -> Array:
    zeros: Array = np.bitwise_count(~x & (x - 1))
    return zeros


def _reverse_bits(x: Array) -> Array:
    parts = np.ascontiguousarray(x).reshape(*np.shape(x), 1).view(np.uint8)
    return _REVERSED_BYTES[parts].view(x.dtype).byteswap()[..., 0]


_PLAIN: Final[dict[Op, _Function]] = {
    Op.NEG: np.negative,
    Op.ABS: np.absolute,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
    Op.NOT: np.invert,
    Op.SHL: np.left_shift,
    Op.SHR: np.right_shift,
    Op.TRUNCDIV: _truncating_division,
    Op.TRUNCMOD: _truncating_modulo,
    Op.REVERSE_BITS: _reverse_bits,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.GT: np.greater,
    Op.GE: np.greater_equal,
    Op.SELECT: np.where,
    Op.FLOOR: np.floor,
    Op.CEIL: np.ceil,
    Op.TRUNC: np.trunc,
    Op.ROUND: np.rint,
}

_CHOICES: Final[dict[Op, _Choice]] = {
    Op.ADD: _arithmetic(np.add),
    Op.SUB: _arithmetic(np.subtract),
    Op.MUL: _arithmetic(np.multiply),
    Op.DIV: _arithmetic(np.true_divide),
    Op.SQRT: _arithmetic(np.sqrt),
    Op.FLOORDIV: _in_f32(np.floor_divide),
    Op.MOD: _in_f32(np.remainder),
    Op.MIN: _by_kind(np.minimum, floats.minimum_number),
    Op.MAX: _by_kind(np.maximum, floats.maximum_number),
    Op.MINIMUM: _by_kind(np.minimum, floats.minimum_propagating),
    Op.MAXIMUM: _by_kind(np.maximum, floats.maximum_propagating),
    Op.FMA: _fma,
    Op.MULHI: _multiply_high,
    Op.POPCOUNT: _bits_of(lambda x, width: np.bitwise_count(x)),
    Op.CLZ: _bits_of(_leading_zeros),
    Op.CTZ: _bits_of(_trailing_zeros),
    Op.CAST: _cast,
    Op.BITCAST: _bitcast,
    **{op: _elementary(function) for op, function in ELEMENTARY.items()},
}
