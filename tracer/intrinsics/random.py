"""Random numbers: Philox4x32-10 of Salmon et al. (2011), whose stream is a function of its place.

A seed and a counter give a block of four words. There is no state to keep: an invocation takes its
id as one word of the counter and counts its draws in another, and gets the same numbers on every
device and in every order.
"""

from __future__ import annotations

import math
from typing import Any, Final

from khaljit.tracer.coerce import cast, to_scalar
from khaljit.tracer.dtypes import DType, Kind, bf16, f16, f32, f64, i32, u32, u64
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.intrinsics.bits import bitcast, mulhi
from khaljit.tracer.intrinsics.numbers import cos, log, sin, sqrt
from khaljit.tracer.intrinsics.vectors import VectorType
from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.recorder import Recorder, current

__all__ = ["philox", "random_normal", "random_uniform"]

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_MANTISSAS: Final = {bf16: 8, f16: 11, f32: 24, f64: 53}  # bits that a float holds exactly


def philox(seed: Any, *counter: Any) -> Any:
    """A block of four random u32, as a uvec4: Philox4x32-10.

    Args:
        seed: an integer, of which 64 bits count, or a uvec2 (the low word first).
        counter: up to four integers, of which 32 bits count each, or uvecs; the rest is 0. Other
            counters give other, independent blocks.

    >>> import numpy as np
    >>> import khaljit as kj
    >>> @kj.jit
    ... def draw(out: kj.Array2[kj.u32]) -> None:
    ...     i = kj.global_id(0)
    ...     out[i, 0], out[i, 1], out[i, 2], out[i, 3] = kj.philox(0, i)
    >>> words = np.zeros((1, 4), np.uint32)
    >>> draw[1](words)
    >>> [hex(word) for word in words[0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    recorder = current("kj.philox")
    recorder.mark()
    key = _key(recorder, seed)
    words: list[Any] = []
    for part in counter:
        words += [cast(one, u32) for one in (part.items if is_vector(part) else (part,))]
    if len(words) > 4:
        fail(f"kj.philox has a counter of four words, and got {len(words)}")
    words += [cast(0, u32) for _ in range(4 - len(words))]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (
            (mulhi(word, cast(factor, u32)), word * cast(factor, u32))
            for word, factor in zip(words[::2], _MULTIPLIERS, strict=True)
        )
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]
        key = [word + cast(step, u32) for word, step in zip(key, _WEYL, strict=True)]
    return Vector(recorder, tuple(words))


def _key(recorder: Recorder, seed: Any) -> list[Any]:
    if is_vector(seed):
        if len(seed) != 2 or not seed.dtype.is_integer:
            fail(f"a seed is no {seed.type_name}", "pass an integer or a kj.uvec2")
        return [cast(item, u32) for item in seed.items]
    if type(seed) is int:
        bits = seed & (1 << 64) - 1
        return [cast(bits & 0xFFFFFFFF, u32), cast(bits >> 32, u32)]
    scalar = to_scalar(recorder, seed)
    if not scalar.dtype.is_integer:
        fail(f"a seed is no {scalar.dtype.name}", "pass an integer or a kj.uvec2")
    wide = cast(scalar, u64)
    return [cast(wide, u32), cast(wide >> 32, u32)]


def random_uniform(
    seed: Any, *counter: Any, dtype: Any = f32, low: Any = None, high: Any = None
) -> Any:
    """A random number, or a vector of them from one block: see `philox` for seed and counter.

    Floats are in [0, 1), multiples of 2**-24 (f16: 2**-11, bf16: 2**-8, f64: 2**-53); integers are
    any of their type. With ``low`` and ``high`` they are in [low, high), which the rounding of a
    float may reach; integers of at most 32 bits only, with a bias of at most (high - low) / 2**32.

    Args:
        seed: as in `philox`.
        counter: as in `philox`.
        dtype: a dtype but bool, or a vector type (f64 and 64-bit integers: of 2 components).
        low: the least number, of the type's kind.
        high: above the greatest, of the type's kind.
    """
    recorder = current("kj.random_uniform")
    if (low is None) != (high is None):
        fail("kj.random_uniform takes both low= and high=, or neither")
    scalar, count = _asked(dtype)
    chosen = _words(philox(seed, *counter), scalar, count)
    items = [_uniform(word, scalar) for word in chosen]
    if low is not None:
        low, high = cast(low, scalar), cast(high, scalar)
        if scalar.is_float:
            items = [low + item * (high - low) for item in items]
        elif scalar.bits > 32:
            fail(f"kj.random_uniform has no range of {scalar.name}", "draw a type of 32 bits")
        else:
            wide = i32 if scalar.kind is Kind.SIGNED else u32
            span = bitcast(cast(high, wide) - cast(low, wide), u32)
            items = [low + cast(mulhi(word, span), scalar) for word in chosen]
    return items[0] if dtype is scalar else Vector(recorder, tuple(items))


def random_normal(seed: Any, *counter: Any, dtype: Any = f32) -> Any:
    """A number of the standard normal distribution, or a vector of them, by Box and Muller.

    Args:
        seed: as in `philox`.
        counter: as in `philox`.
        dtype: a float type, or a vector type of one (f64: of 2 components at most).
    """
    recorder = current("kj.random_normal")
    scalar, count = _asked(dtype)
    if not scalar.is_float:
        fail(f"kj.random_normal has no numbers of {scalar.name}", "ask for a float type")
    works = f64 if scalar is f64 else f32
    words = _words(philox(seed, *counter), works, count + count % 2)
    items: list[Any] = []
    for one, other in zip(words[::2], words[1::2], strict=True):
        # In (0, 1], so that its logarithm exists.
        first = (cast(one, works) + 1.0) * 2.0**-one.dtype.bits
        length = sqrt(log(first) * -2.0)
        angle = _uniform(other, works) * (2.0 * math.pi)
        items += [cast(length * cos(angle), scalar), cast(length * sin(angle), scalar)]
    return items[0] if dtype is scalar else Vector(recorder, tuple(items[:count]))


def _asked(dtype: Any) -> tuple[DType, int]:
    """The scalar type and the count of numbers that are asked for."""
    scalar = dtype.dtype if isinstance(dtype, VectorType) else dtype
    count = dtype.count if isinstance(dtype, VectorType) else 1
    if not isinstance(scalar, DType) or not (scalar.is_float or scalar.is_integer):
        fail(f"there are no random numbers of type {dtype!r}", "pass dtype=kj.f32, kj.u32, ...")
    if count * scalar.bits > 128:
        fail(f"a block has 128 random bits, too few for {dtype!r}", "draw two")
    return scalar, count


def _words(block: Vector, scalar: DType, count: int) -> list[Scalar]:
    """So many words of a block: u32, or u64 made of two for types of 64 bits."""
    words: list[Any] = list(block.items)
    if scalar.bits == 64:
        words = [
            cast(low, u64) | (cast(high, u64) << 32)
            for low, high in zip(words[::2], words[1::2], strict=True)
        ]
    return words[:count]


def _uniform(word: Any, dtype: DType) -> Any:
    """A number made of a random word."""
    if not dtype.is_float:
        return cast(word, dtype)
    mantissa = _MANTISSAS[dtype]
    works = f64 if dtype is f64 else f32
    number = cast(word >> word.dtype.bits - mantissa, works) * 2.0**-mantissa
    return cast(number, dtype)
