"""Enums, named tuples, tables and local arrays: constants, and run-time indices into them."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import pytest

import khaljit as kj

pytestmark = pytest.mark.usefixtures("device")

Rng = np.random.Generator


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Level(enum.IntEnum):
    LOW = 3
    HIGH = 7


class Parts(enum.IntFlag):
    FIRST = 1
    THIRD = 4


class Settings(NamedTuple):
    scale: float
    shift: int = 3
    mode: Mode = Mode.FAST


USUAL = Settings(0.5)
DIGITS = (3, 1, 4, 1, 5)
WEIGHTS = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))


def test_enums_are_constants(rng: Rng) -> None:
    @kj.jit
    def kernel(x: kj.Array1[kj.i32], out: kj.Array1[kj.i32], mode: kj.Const[Mode]) -> None:
        i = kj.global_id(0)
        y = x[i] * Level.HIGH
        if mode is Mode.SLOW:
            y += 1000
        if x[i] & Parts.THIRD:
            y += Level.LOW
        if x[i] == Level.LOW:
            y = -1
        out[i] = y + (2 if mode == Mode.FAST else 1) + len(mode.value)

    x, out = rng.integers(0, 8, 21, np.int32), np.zeros(21, np.int32)
    for mode in Mode:
        kernel[21](x, out, mode)
        y = x * 7 + 1000 * (mode is Mode.SLOW) + 3 * (x & 4 > 0)
        assert (out == np.where(x == 3, -1, y) + (2 if mode is Mode.FAST else 1) + 4).all()
    assert kernel.cache_info()["recorded"] == 2


def test_named_tuples_hold_constants_and_values(rng: Rng) -> None:
    @kj.jit
    def kernel(x: kj.Array1[kj.f32], out: kj.Array1[kj.f32], given: Any) -> None:
        i = kj.global_id(0)
        made = Settings(x[i] * USUAL.scale, USUAL.shift)
        if i % 2 == 0:
            made = made._replace(scale=made.scale + given.scale)
        scale, shift, mode = made
        out[i] = scale + shift * given.shift + (10.0 if mode is given.mode else 0.0)

    x, out = rng.random(15, np.float32), np.zeros(15, np.float32)
    given = Settings(2.0, 4)
    kernel[15](x, out, given)
    wanted = x * np.float32(0.5) + np.where(np.arange(15) % 2 == 0, 2, 0) + 3 * 4 + 10
    assert np.allclose(out, wanted, rtol=1e-6)
    kernel[15](x, out, given._replace(scale=3.0, mode=Mode.SLOW))
    wanted = x * np.float32(0.5) + np.where(np.arange(15) % 2 == 0, 3, 0) + 3 * 4
    assert np.allclose(out, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "i8", "u16", "i32", "u64", "f16", "f32"])
def test_tables_of_each_type(dtype: str, rng: Rng) -> None:
    kind = getattr(kj, dtype).numpy
    table = (rng.integers(0, 2 if dtype == "bool" else 100, (3, 5))).astype(kind)

    @kj.jit
    def kernel(where: kj.Array2[kj.i32], out: Any) -> None:
        i = kj.global_id(0)
        rows = kj.constant(table)
        out[i] = rows[where[i, 0], where[i, 1]]

    where = rng.integers(-1, 6, (31, 2), np.int32)
    out = np.ones(31, kind)
    kernel[31](where, out)
    y, x = where.T
    inside = (y >= 0) & (y < 3) & (x >= 0) & (x < 5)
    assert (out == np.where(inside, table[y.clip(0, 2), x.clip(0, 4)], 0)).all()


def test_tuples_are_indexed_by_run_time_values() -> None:
    @kj.jit
    def kernel(out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        vectors = (kj.vec2(1.0, 2.0), kj.vec2(i, 3.0), kj.vec2(0.0, -1.0))
        pairs = ((i, 1.0), (7.0, i + 1))
        nested = kj.constant(WEIGHTS)
        out[i, 0] = DIGITS[i % 5] + nested[i % 3, 1]
        out[i, 1] = vectors[i % 3].x + vectors[(i + 1) % 3].y
        first, second = pairs[i % 2]
        out[i, 2] = first * 10 + second

    out = np.zeros((11, 3), np.float32)
    kernel[11](out)
    for i in range(11):
        vectors = ((1, 2), (i, 3), (0, -1))
        first, second = ((i, 1), (7, i + 1))[i % 2]
        wanted = [
            DIGITS[i % 5] + WEIGHTS[i % 3][1],
            vectors[i % 3][0] + vectors[(i + 1) % 3][1],
            first * 10 + second,
        ]
        assert out[i].tolist() == wanted


@pytest.mark.parametrize("dtype", ["u8", "i16", "i32", "u64", "f16", "f32", "vec3"])
def test_local_arrays_are_indexed_by_run_time_values(dtype: str, rng: Rng) -> None:
    """Sorted by insertion, each invocation its own row."""
    kind = getattr(kj, dtype)

    @kj.jit
    def kernel(a: Any, n: kj.i32) -> None:
        row = kj.global_id(0)
        own = kj.local(kind, (2, 9))
        for k in range(n):
            x = a[row, k]
            place = k
            while place > 0 and key(own[row % 2, place - 1]) > key(x):
                own[row % 2, place] = own[row % 2, place - 1]
                place -= 1
            own[row % 2, place] = x
        for k in range(n):
            a[row, k] = own[row % 2, k]

    def key(x: Any) -> Any:
        return x.x if dtype == "vec3" else x

    if dtype == "vec3":
        a = rng.random((7, 9, 3), np.float32)
        expected = np.stack([row[np.argsort(row[:, 0])] for row in a])
        device = kj.current_device()
        there = device.array(a, kj.vec3)
        kernel[7](there, 9)
        assert (there.numpy() == expected).all()
        return
    a = rng.integers(0, 100, (7, 9)).astype(kind.numpy)
    expected = np.sort(a, 1)
    kernel[7](a, 9)
    assert (a == expected).all()
