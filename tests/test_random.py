"""Philox4x32-10 and the numbers that are made of its words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from tests.matrix import needs

# The known answers of Random123 (kat_vectors, philox4x32 with 10 rounds): counter, key, block.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The same in Python."""
    word = (1 << 32) - 1
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = (
            (second >> 32) ^ counter[1] ^ key[0],
            second & word,
            (first >> 32) ^ counter[3] ^ key[1],
            first & word,
        )
        key = (key[0] + 0x9E3779B9) & word, (key[1] + 0xBB67AE85) & word
    return counter


def words(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Blocks with the counters 0, 1, 2, ... in rows."""
    key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    return np.array([philox((k, 0, 0, 0), key) for k in range(count)], np.uint32)


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_philox_gives_the_published_vectors(
    device: Device, counter: tuple[int, ...], key: tuple[int, int], block: tuple[int, ...]
) -> None:
    @kj.jit
    def draw(c: kj.Array1[kj.u32], seed: kj.u64, out: kj.Array2[kj.u32]) -> None:
        k = kj.uvec2(kj.u32(seed), kj.u32(seed >> 32))
        block = kj.philox(k, kj.uvec3(c[0], c[1], c[2]), c[3])
        out[0, 0], out[0, 1], out[0, 2], out[0, 3] = block
        out[1, 0], out[1, 1], out[1, 2], out[1, 3] = kj.philox(seed, c[0], c[1], c[2], c[3])

    out = np.zeros((2, 4), np.uint32)
    seed = np.uint64(key[0] | key[1] << 32)
    draw[1](np.array(counter, np.uint32), seed, out)  # type: ignore[arg-type]
    assert out.tolist() == [list(block)] * 2
    assert philox(counter, key) == block


def test_a_seed_is_an_int_of_the_host_too(device: Device, rng: np.random.Generator) -> None:
    seed = int(rng.integers(0, 1 << 63)) * 2 + 1

    @kj.jit
    def draw(out: kj.Array2[kj.u32]) -> None:
        i = kj.global_id(0)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = kj.philox(seed, i)

    out = np.zeros((9, 4), np.uint32)
    draw[9](out)
    np.testing.assert_array_equal(out, words(seed, 9))


@pytest.mark.parametrize(
    ("name", "mantissa"), [("f32", 24), ("f16", 11), ("f64", 53), ("u32", 0), ("i32", 0)]
)
def test_uniform_numbers_are_the_words(device: Device, name: str, mantissa: int) -> None:
    dtype: Any = getattr(kj, name)

    @kj.jit
    def draw(out: Any) -> None:
        i = kj.global_id(0)
        out[i] = kj.random_uniform(77, i, dtype=dtype)

    out = np.zeros(300, dtype.numpy)
    needs(device, dtype)
    draw[300](out)
    block = words(77, 300)
    first = block[:, 0]
    if name == "f64":
        whole = first.astype(np.uint64) | block[:, 1].astype(np.uint64) << np.uint64(32)
        wanted = (whole >> np.uint64(11)).astype(np.float64) * 2.0**-53
    elif mantissa:
        wanted = ((first >> np.uint32(32 - mantissa)) * 2.0**-mantissa).astype(out.dtype)
    else:
        wanted = first.view(out.dtype)
    np.testing.assert_array_equal(out, wanted)
    assert mantissa == 0 or ((out >= 0) & (out < 1)).all()


def test_a_vector_takes_the_words_of_one_block(device: Device) -> None:
    @kj.jit
    def draw(out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        v = kj.random_uniform(5, i, dtype=kj.vec4)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = v

    out = np.zeros((50, 4), np.float32)
    draw[50](out)
    np.testing.assert_array_equal(out, (words(5, 50) >> 8) * np.float32(2**-24))


def test_numbers_of_a_range_stay_in_it(device: Device) -> None:
    @kj.jit
    def draw(ints: kj.Array1[kj.i32], bytes_: kj.Array1[kj.u8], floats: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        ints[i] = kj.random_uniform(1, i, dtype=kj.i32, low=-3, high=4)
        bytes_[i] = kj.random_uniform(1, i, dtype=kj.u8, low=250, high=255)
        floats[i] = kj.random_uniform(1, i, low=-2.0, high=2.0)

    count = 2000
    ints, small = np.zeros(count, np.int32), np.zeros(count, np.uint8)
    floats = np.zeros(count, np.float32)
    draw[count](ints, small, floats)
    first = words(1, count)[:, 0].astype(np.uint64)
    np.testing.assert_array_equal(ints, (first * 7 >> 32).astype(np.int32) - 3)
    np.testing.assert_array_equal(small, (first * 5 >> 32).astype(np.uint8) + 250)
    assert set(ints.tolist()) == set(range(-3, 4))
    unit = (first >> 8).astype(np.float32) * np.float32(2**-24)
    np.testing.assert_array_equal(floats, unit * np.float32(4) - np.float32(2))  # exact but one


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_normal_numbers_have_the_moments_of_the_normal_distribution(
    device: Device, name: str
) -> None:
    dtype: Any = getattr(kj, name)

    @kj.jit
    def draw(out: Any) -> None:
        i = kj.global_id(0)
        out[i, 0], out[i, 1] = kj.random_normal(3, i, dtype=kj.vec(2, dtype))
        out[i, 2] = kj.random_normal(3, i, dtype=dtype)

    count = 4000
    out = np.zeros((count, 3), dtype.numpy)
    needs(device, dtype)
    draw[count](out)
    np.testing.assert_array_equal(out[:, 0], out[:, 2])
    pair = out[:, :2].astype(np.float64)
    assert abs(pair.mean()) < 0.05
    assert abs(pair.var() - 1) < 0.06
    assert abs((pair**4).mean() - 3) < 0.5
    assert abs((pair[:, 0] * pair[:, 1]).mean()) < 0.06
    block = words(3, count).astype(np.float64)
    if name == "f32":
        length = np.sqrt(-2 * np.log((block[:, 0] + 1) * 2.0**-32))
        angle = 2 * np.pi * (block[:, 1] // 256) * 2.0**-24
        wanted = np.stack([length * np.cos(angle), length * np.sin(angle)], 1)
        np.testing.assert_allclose(pair, wanted, rtol=1e-5, atol=3e-6)


def test_what_there_are_no_random_numbers_of_is_refused() -> None:
    def refused(text: str, **options: Any) -> None:
        @kj.jit
        def draw(out: kj.Array1[kj.f32]) -> None:
            kj.random_uniform(1, 2, **options)

        with pytest.raises(kj.TraceError, match=text):
            draw.trace("f32[:]")

    refused("no random numbers of type bool", dtype=kj.bool)
    refused("a block has 128 random bits", dtype=kj.dvec3)
    refused("both low= and high=", low=3)
    refused("no range of u64", dtype=kj.u64, low=0, high=3)
