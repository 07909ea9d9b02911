"""Rounding done right on NumPy arrays: bf16, fused multiply-add, float-integer conversions.

NumPy has neither bfloat16 nor fma. Laws of this file:

* bf16 is held as float32 arrays with only bf16-representable values in them;
* every function rounds once, to nearest even. Where the way leads through a wider type, the value
  is first *rounded to odd* there (truncated, the last bit set if anything was lost), which makes
  the second rounding as good as the only one as long as two more bits are kept;
* arrays and NumPy scalars are taken alike. Callers silence floating-point warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Array",
    "bf16_bits",
    "bf16_from_bits",
    "f64_to_bf16",
    "fma_f64",
    "fma_in_f64",
    "integer_to_bf16",
    "maximum_number",
    "maximum_propagating",
    "minimum_number",
    "minimum_propagating",
    "round_to_bf16",
    "saturate",
]

Array: TypeAlias = "NDArray[Any]"

_NAN: Final = np.float32("nan")

# Where two-product and two-sum of f64 are exact: no part of a product under- or overflows.
_SMALL: Final = 2.0**-480
_LARGE: Final = 2.0**900
_SPLITTER: Final = 2.0**27 + 1  # cuts a significand of 53 bits into two of 26


def round_to_bf16(x: Array) -> Array:
    """float32 rounded to the nearest bf16."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(x == x, rounded.view(np.float32), _NAN)


def f64_to_bf16(x: Array) -> Array:
    """float64 rounded to the nearest bf16, once."""
    near = x.astype(np.float32)
    bits = near.view(np.uint32)
    back = near.astype(np.float64)
    lost = (back != x) & (bits & np.uint32(1) == 0) & (x == x)
    toward_zero = np.abs(back) > np.abs(x)
    odd = np.where(lost, bits + np.where(toward_zero, np.uint32(0xFFFFFFFF), np.uint32(1)), bits)
    return round_to_bf16(odd.view(np.float32))


def integer_to_bf16(x: Array) -> Array:
    """Any integer rounded to the nearest bf16, once."""
    exact = x.astype(np.float64)
    if x.dtype.itemsize < 8:
        return f64_to_bf16(exact)
    # Rounded to odd at 2^11, which leaves 53 bits; only numbers too wide for float64 need it.
    odd = x >> 11 | (x & 0x7FF != 0)
    return f64_to_bf16(np.where(np.abs(exact) < 2.0**53, exact, odd.astype(np.float64) * 2048.0))


def bf16_bits(x: Array) -> Array:
    """The 16 bits of bf16 values."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def bf16_from_bits(bits: Array) -> Array:
    """The bf16 values that 16 bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def saturate(x: Array, target: np.dtype[Any]) -> Array:
    """Floats as integers: truncated, the limits for what is past them, 0 for NaN."""
    limits = np.iinfo(target)
    wide = x.astype(np.float64)
    # 2^n is exact in float64 where 2^n - 1 may not be; past it truncation would overflow.
    over = wide >= float(int(limits.max) + 1)
    under = wide <= float(limits.min)
    inside = np.where(over | under | (wide != wide), 0.0, wide).astype(target)
    return np.where(over, target.type(limits.max), np.where(under, target.type(limits.min), inside))


def minimum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2019 minimumNumber: the number if one is NaN; -0 is less than +0.

    Not through ``np.fmin``, which at times gives NaN for a signalling NaN and a number.
    """
    least = np.where((a < b) | (b != b), a, b)
    return np.where(a == b, np.where(np.signbit(a), a, b), least)


def maximum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2019 maximumNumber."""
    greatest = np.where((a > b) | (b != b), a, b)
    return np.where(a == b, np.where(np.signbit(a), b, a), greatest)


def minimum_propagating(a: Array, b: Array) -> Array:
    """IEEE 754-2019 minimum: NaN if one is NaN; -0 is less than +0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b))


def maximum_propagating(a: Array, b: Array) -> Array:
    """IEEE 754-2019 maximum."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))


def fma_in_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of narrower floats as float64, rounded to odd: rounding it again rounds once."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 48 bits at most
    return _sum_to_odd(product, c.astype(np.float64))


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float64, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.maximum(np.abs(c), np.abs(product)))
    fast = (np.minimum(np.abs(a), np.abs(b)) > _SMALL) & (largest < _LARGE)
    result = np.where(fast, _fma_in_range(a, b, c, product), product + c)
    factors = (a != 0) & (b != 0)
    # -tiny + 0 is -0 once rounded, and the sum of the rounded product and 0 would be +0.
    result = np.where(factors & (c == 0), product, result)
    # A product that only overflows is finite, so an infinite c decides.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, result)
    rest = factors & (c != 0) & ~fast & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for position in zip(*np.nonzero(np.atleast_1d(rest)), strict=True):
        place = position if np.ndim(rest) else ()
        result[place] = _fma_exact(float(a[place]), float(b[place]), float(c[place]))
    return result


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as the rounded sum and its error, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """a + b of float64 rounded to odd."""
    total, error = _two_sum(a, b)
    bits = total.view(np.int64)
    move = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    away = (error > 0) == (total > 0)
    return (bits + np.where(move, np.where(away, 1, -1), 0)).view(np.float64)


def _split(a: Array) -> tuple[Array, Array]:
    """a as the sum of two numbers whose products with their like are exact."""
    scaled = a * _SPLITTER
    high = scaled - (scaled - a)
    return high, a - high


def _fma_in_range(a: Array, b: Array, c: Array, product: Array) -> Array:
    """a * b + c where nothing under- or overflows (garbage elsewhere).

    The product is two numbers exactly; the sum of the three is two numbers and a small one, and
    the two lower of them, added to odd, decide how the upper one rounds.
    """
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    low = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    upper, rest = _two_sum(c, low)
    total, error = _two_sum(product, upper)
    return total + _sum_to_odd(rest, error)


def _fma_exact(a: float, b: float, c: float) -> float:
    """a * b + c of finite non-zero numbers through rationals, for the ends of the range."""
    from fractions import Fraction  # with decimal, for the few

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return 0.0
    try:
        rounded = abs(exact.numerator) / exact.denominator  # correctly rounded, subnormals too
    except OverflowError:
        rounded = float("inf")
    return rounded if exact > 0 else -rounded
