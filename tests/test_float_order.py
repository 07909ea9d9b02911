"""Floats are computed in the order in which they are written, NaN, -0 and infinity included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import bool_
from tests.matrix import apart, array_of, kernel, needs

pytestmark = pytest.mark.usefixtures("device")

_HALVES = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 6e-8, -6e-8, 65504.0, 3.25, 1e-4)


def _same(found: np.ndarray, expected: np.ndarray) -> None:
    """The same bits, all NaN being one."""
    bits = f"u{found.dtype.itemsize}"
    same = (found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))
    assert same.all(), np.argwhere(~same)[:5]


def test_sums_are_not_regrouped(rng: np.random.Generator) -> None:
    @kj.jit(contract=False)
    def sums(
        x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], z: kj.Array1[kj.f32], out: kj.Array2[kj.f32]
    ) -> None:
        i = kj.global_id(0)
        if i < x.size:
            a, b, c = x[i], y[i], z[i]
            out[0, i] = (x[0] + b * c) - 0.1
            out[1, i] = (a + b) - 0.1
            out[2, i] = a - (b - 0.1)
            out[3, i] = (a + 0.3) - 0.1
            out[4, i] = a * 3.3 * b * 1.7
            total = a
            for _ in range(3):
                total = total - ((b - c) - 0.1)
            out[5, i] = total

    x, y, z = (rng.standard_normal(1001).astype(np.float32) for _ in range(3))
    out = np.full((6, 1001), 77, np.float32)
    sums[1001](x, y, z, out)
    tenth, third = np.float32(0.1), np.float32(0.3)
    step = (y - z) - tenth
    expected = [
        (x[0] + y * z) - tenth,
        (x + y) - tenth,
        x - (y - tenth),
        (x + third) - tenth,
        x * np.float32(3.3) * y * np.float32(1.7),
        ((x - step) - step) - step,
    ]
    _same(out, np.stack(expected))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_halves_keep_nan_infinity_and_the_sign_of_zero() -> None:
    @kj.jit(contract=False)
    def halves(x: kj.Array1[kj.f16], y: kj.Array1[kj.f16], out: kj.Array2[kj.f16]) -> None:
        i = kj.global_id(0)
        if i < x.size:
            a, b = x[i], y[i]
            own = kj.local(kj.f16, 2)
            own[0] = 0.0
            out[0, i] = a * 0.0
            out[1, i] = a - a
            out[2, i] = a * b - a * b
            out[3, i] = (a - kj.f16(-0.0)) / (-1.5)
            out[4, i] = kj.select(a < b, a, b)
            out[5, i] = own[0] * a
            out[6, i] = kj.fma(kj.f16(0.0), a, b)

    x, y = (axis.ravel() for axis in np.meshgrid(*[np.array(_HALVES, np.float16)] * 2))
    # WebGPU's drivers may keep what is past f16 in between.
    fits = ~(np.isfinite(x) & np.isfinite(y) & (np.abs(x.astype(np.float32) * y) > 65504))
    x, y = x[fits], y[fits]
    out = np.full((7, x.size), 77, np.float16)
    halves[x.size](x, y, out)
    zero = np.float16(0)
    expected = [
        x * zero,
        x - x,
        x * y - x * y,
        (x - np.float16(-0.0)) / np.float16(-1.5),
        np.where(x < y, x, y),
        zero * x,
        (zero.astype(np.float64) * x + y).astype(np.float16),
    ]
    _same(out, np.stack(expected))


def test_constants_in_a_kernel_that_uses_what_a_compare_exchange_gives() -> None:
    @kj.jit
    def constants(lock: kj.Array1[kj.i32], out: kj.Array1[kj.f16]) -> None:
        i = kj.global_id(0)
        if i < out.size:
            old = kj.atomic_compare_exchange(lock, i, 0, 7)
            out[i] = kj.f16(math.inf) if old == 0 else kj.f16(math.nan)

    lock, out = np.array([0, 1, 0], np.int32), np.zeros(3, np.float16)
    constants[3](lock, out)
    _same(out, np.array([math.inf, math.nan, math.inf], np.float16))
    assert list(lock) == [7, 1, 7]


def test_zeros_that_a_compiler_may_find_are_zeros_all_the_same() -> None:
    @kj.jit(contract=False)
    def zeros(a: kj.Array1[kj.i32], out: kj.Array2[kj.f32], order: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            narrow, own = kj.local(kj.bf16, 1), kj.local(kj.f32, 1)
            narrow[0], own[0] = 0.0, 0.0
            out[i, 0] = kj.f32(0.0 / kj.trunc(narrow[0]))
            out[i, 1] = 0.0 / kj.floor(own[0])
            out[i, 2] = own[0] * math.inf
            steps = 0
            for _ in range(2):
                steps = steps * 3
            out[i, 3] = kj.f32(steps) / (kj.f32(steps) * (-1.0))
            count = 0
            while count < 4 and kj.isfinite(kj.f32(-math.inf)):
                count += 1
            order[i] = 1 if -kj.i64(count) <= kj.i64(a[i]) else 0

    a = np.array([0, 1, -1, 5, -(2**31)], np.int32)
    out, order = np.full((5, 4), 77, np.float32), np.full(5, 77, np.int32)
    zeros[5](a, out, order)
    assert np.isnan(out).all()
    assert list(order) == [1, 1, 0, 1, 0]


@pytest.mark.parametrize("dtype", [kj.f32, kj.f64], ids=["f32", "f64"])
def test_orders_that_are_joined_are_those_of_each_number(device: Device, dtype: Any) -> None:
    """LLVM takes ``a < t or b < t`` for ``min(a, b) < t``, and NaN may signal or be quiet."""
    needs(device, dtype)

    def joined(x: Any, y: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            a, b, t = x[i], y[i], dtype(0.5)
            out[i, 0] = (a < t) | (b < t)
            out[i, 1] = (a >= t) | (b >= t)
            out[i, 2] = (not a > t) & (not b > t)
            out[i, 3] = (not a <= t) & (not b <= t)
            out[i, 4] = (t > abs(a)) | (t > -b)
            out[i, 5] = a < t or b * dtype(1) < t

    bits = np.array([0x7FA00000, 0x7FC00000, 0xFFA00001], np.uint32).view(np.float32)
    if dtype is kj.f64:
        words = np.array([0x7FF4 << 48, 0x7FF8 << 48, (0xFFF4 << 48) + 1], np.uint64)
        bits = words.view(np.float64)
    ends = np.concatenate([bits, np.array([0.0, 0.5, -0.5, 3.0, -np.inf, np.inf], bits.dtype)])
    x, y = (
        axis.ravel().view(bits.dtype) for axis in np.meshgrid(*[ends.view(f"u{dtype.size}")] * 2)
    )
    if apart(device):  # NaN and infinity are the driver's
        x, y = (np.where(np.isfinite(one), one, one.dtype.type(0)) for one in (x, y))
    out = np.full((x.size, 6), 77, np.uint8).view(np.bool_)
    kernel(joined, {"x": array_of(dtype), "y": array_of(dtype), "out": array_of(bool_, 2)})[x.size](
        x, y, out
    )
    with np.errstate(invalid="ignore"):
        expected = [
            (x < 0.5) | (y < 0.5),
            (x >= 0.5) | (y >= 0.5),
            ~(x > 0.5) & ~(y > 0.5),
            ~(x <= 0.5) & ~(y <= 0.5),
            (np.abs(x) < 0.5) | (-y < 0.5),
            (x < 0.5) | (y < 0.5),
        ]
    np.testing.assert_array_equal(out, np.stack(expected, 1))
