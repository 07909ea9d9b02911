"""What ``math_accuracy.py`` runs on a device: arguments, a function of them, errors, and a digest.

Everything is a function of the number of an input, so devices can be compared by what they sum up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import khaljit as kj
from khaljit.tracer.dtypes import f32
from khaljit.tracer.ops import Op

__all__ = ["TWO", "WRONG", "apply", "draw", "every", "function_of", "judge", "largest", "summarise"]

TWO: Final = frozenset({Op.POW, Op.HYPOT, Op.ATAN2})
WRONG: Final = float("inf")  # an error
_OWN_NAMES: Final = {"tgamma": "gamma"}


def function_of(op: Op) -> Callable[..., Any]:
    """The function of khaljit's that records an operation."""
    function: Callable[..., Any] = getattr(kj, _OWN_NAMES.get(op.value, op.value))
    return function


@kj.jit
def every(x: kj.Array1[kj.f32], start: kj.u32, step: kj.u32) -> None:
    """The floats whose bits are start, start + step, ..."""
    i = kj.global_id(0)
    if i < x.size:
        x[i] = kj.bitcast(start + kj.u32(i) * step, kj.f32)


def mixed(word: Any) -> Any:
    """A bijection of 32-bit words that spreads every bit over all (MurmurHash3's finaliser)."""
    word = (word ^ (word >> 16)) * kj.u32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * kj.u32(0xC2B2AE35)
    return word ^ (word >> 16)


@cache
def draw(dtype: Any) -> Any:
    """A kernel: arguments by their number, of eight kinds in turn.

    Random bits; numbers of moderate size; near 1 with large partners; near small multiples of 1/8
    with partners of like size; near multiples of pi/2 with partners nearby; two near small
    multiples of 1/2; two near powers of 2, of which 0 and infinity are the ends; of the size where
    functions overflow, and subnormal ones. How near is random: up to half of the digits differ.
    """
    unsigned, fraction, bias = (kj.u32, 23, 127) if dtype is f32 else (kj.u64, 52, 1023)

    def near(value: Any, word: Any) -> Any:
        """A float as many steps away as some random bits say, which are few as often as many."""
        steps = unsigned(word >> kj.max(word & kj.u32(31), kj.u32(64 - dtype.bits >> 1)))
        bits = kj.bitcast(value, unsigned)
        return kj.bitcast(kj.select(word & kj.u32(32) == 0, bits + steps, bits - steps), dtype)

    @kj.jit
    def arguments(x, y, start: kj.u32) -> None:  # type: ignore[no-untyped-def]  # of one dtype
        i = kj.global_id(0)
        if i < x.size:
            number = start + kj.u32(i)
            words = [mixed(number * kj.u32(5) + kj.u32(k)) for k in range(4)]
            if dtype is f32:
                first, second = words[0], words[1]
            else:
                first = (kj.u64(words[0]) << 32) | kj.u64(words[1])
                second = (kj.u64(words[2]) << 32) | kj.u64(words[3])
            other = mixed(number ^ kj.u32(0x9E3779B9))
            one = unsigned(bias << fraction)
            sign = unsigned(other & kj.u32(1)) << (dtype.bits - 1)
            low = unsigned((1 << fraction) - 1)
            size = unsigned(((other >> 1) & kj.u32(15)) + kj.u32(bias - 9)) << fraction
            kind = number & kj.u32(7)
            shift = (other >> 6) & kj.u32(31)
            a, b = kj.bitcast(first, dtype), kj.bitcast(second, dtype)
            if kind == 1:
                a = kj.bitcast(sign | size | (first & low), dtype)
                b = kj.bitcast((second & low) | one, dtype) * dtype(other >> 28)
            elif kind == 2:
                small = kj.bitcast((first & low) | one, dtype) - 1.5
                a = kj.ldexp(small, -kj.i32((other >> 5) & kj.u32(15))) + 1.0
                b = kj.ldexp(kj.bitcast((second & low) | one | sign, dtype), kj.i32(other >> 28))
            elif kind == 3:
                a = near(dtype(kj.i32(other & kj.u32(1023)) - 512) * 0.125, mixed(other))
                b = a * kj.ldexp(kj.bitcast((second & low) | one, dtype), kj.i32(other >> 28) - 8)
            elif kind == 4:
                turns = kj.ldexp(kj.bitcast((first & low) | one, dtype), kj.i32(shift))
                a = near(kj.trunc(turns) * dtype(math.pi / 2), mixed(other))
                b = near(a, mixed(~other))
            elif kind == 5:
                a = near(dtype(kj.i32(words[0] & kj.u32(1023)) - 512) * 0.5, mixed(other))
                b = near(dtype(kj.i32(words[1] & kj.u32(127)) - 64) * 0.5, mixed(~other))
            elif kind == 6:
                a = near(kj.bitcast(first & ~low, dtype), mixed(other))
                b = near(kj.bitcast(second & ~low, dtype), mixed(~other))
            elif kind == 7:
                size = unsigned(((other >> 1) & kj.u32(3)) + kj.u32(bias + 7)) << fraction
                tiny = (first & low) >> unsigned(shift)
                a = kj.bitcast(sign | kj.select(other >> 31 == 0, size | first & low, tiny), dtype)
                b = kj.bitcast((second & low) | one, dtype)
            x[i] = a
            y[i] = b

    return arguments


@cache
def apply(op: Op) -> Any:
    """A kernel that applies a function to arrays of any one type; of two arguments to both."""
    function = function_of(op)

    @kj.jit
    def applied(x, y, out) -> None:  # type: ignore[no-untyped-def]  # of any dtype
        i = kj.global_id(0)
        if i < out.size:
            out[i] = function(x[i], y[i]) if op in TWO else function(x[i])

    return applied


def _digest(bits: Any, number: Any) -> Any:
    """A result and the number of its input as 32 bits."""
    word = number * kj.u32(0x9E3779B1)
    if bits.dtype is kj.u64:
        word = mixed(kj.u32(bits >> 32) ^ word)
    return mixed(kj.u32(bits) ^ word)


@kj.jit
def summarise(out, start: kj.u32, sums: kj.Array2[kj.u32]) -> None:  # type: ignore[no-untyped-def]
    """Sums over what an invocation takes of digests of all results' bits, NaNs being one."""
    total = kj.u32(0)
    other = kj.u32(0)
    unsigned = kj.u32 if out.dtype is f32 else kj.u64
    for k in kj.grid_stride(out.size):
        result = out[k]
        bits = kj.bitcast(result, unsigned)
        word = _digest(kj.select(result == result, bits, unsigned(0)), start + kj.u32(k))
        total += word
        other += mixed(word ^ kj.u32(0x5BD1E995))
    t = kj.global_id(0)
    sums[t, 0] += total
    sums[t, 1] += other


@kj.jit
def largest(
    x: kj.Array1[kj.f32],
    y: kj.Array1[kj.f32],
    errors: kj.Array1[kj.f32],
    worst: kj.Array2[kj.f32],
) -> None:
    """The largest error of what an invocation takes, its arguments, and how many are wrong."""
    t = kj.global_id(0)
    most, a, b, wrong = worst[t, 0], worst[t, 1], worst[t, 2], worst[t, 3]
    for k in kj.grid_stride(errors.size):
        error = errors[k]
        if error == WRONG:
            wrong += 1.0
        elif error > most:
            most, a, b = error, x[k], y[k]
    worst[t, 0], worst[t, 1], worst[t, 2], worst[t, 3] = most, a, b, wrong


def _ulps(result: Any, exact: Any, scale: Any) -> Any:
    """|result - exact| in ulps of f32 at ``scale``; infinity counts as 2**128."""
    field = kj.i32(kj.bitcast(kj.abs(scale), kj.u64) >> 52)
    field = kj.clamp(field, 1023 - 126, 1023 + 127)
    inverse = kj.bitcast(kj.u64(2 * 1023 + 23 - field) << 52, kj.f64)
    top = kj.f64(2.0**128)
    return kj.abs(kj.clamp(kj.f64(result), -top, top) - kj.clamp(exact, -top, top)) * inverse


@cache
def judge(op: Op) -> Any:
    """A kernel: errors of f32 results in ulps, by khaljit's own function of f64.

    Where NaN or the sign of a zero is wrong, the error is `WRONG`.
    """
    function = function_of(op)

    @kj.jit
    def judged(
        x: kj.Array1[kj.f32],
        y: kj.Array1[kj.f32],
        out: kj.Array1[kj.f32],
        errors: kj.Array1[kj.f32],
    ) -> None:
        i = kj.global_id(0)
        if i < out.size:
            result = out[i]
            one, two = kj.f64(x[i]), kj.f64(y[i])
            exact = function(one, two) if op in TWO else function(one)
            scale = exact
            if op is Op.LGAMMA:
                cancelled = kj.max(kj.abs(exact), kj.max(function(kj.abs(one)), 1.0))
                scale = kj.select(one < 0.0, cancelled, exact)
            valid = result == result
            error = kj.select(valid, kj.f32(_ulps(result, exact, scale)), 0.0)
            lost = (exact == exact) != valid
            sign = kj.signbit(result) != kj.signbit(exact)
            zero = (exact == 0.0) & ((result != 0.0) | sign)
            errors[i] = kj.select(lost | zero, WRONG, error)

    return judged
