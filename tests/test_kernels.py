"""The kernels of the examples on given data, with known results, on every device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from tests.examples import load
from tests.matrix import apart

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("device")


def test_a12_softmax_of_consecutive_numbers() -> None:
    x = np.arange(1757, dtype=np.float32)[np.newaxis]
    out = np.full_like(x, 77)
    load("softmax").softmax[kj.Workgroups(1, 1)](x, out)
    exponentials = np.exp(x - x.max(), dtype=np.float64)
    assert np.abs(out - exponentials / exponentials.sum()).max() < 1e-7


def test_softmax_of_rows_of_any_length(rng: Rng) -> None:
    for width in (1, 7, 128, 129):
        x = rng.normal(size=(3, width)).astype(np.float32)
        out = np.full_like(x, 77)
        load("softmax").softmax[kj.Workgroups(1, 3)](x, out)
        exponentials = np.exp(x.astype(np.float64))
        expected = exponentials / exponentials.sum(1, keepdims=True)
        assert np.abs(out - expected).max() < 2e-7


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_536, 65_537])
def test_prefix_sums_of_any_length(size: int, rng: Rng) -> None:
    x = rng.integers(-(2**31), 2**31, size).astype(np.int32)
    assert (load("scan").scan(x) == np.cumsum(x, dtype=np.int32)).all()


def test_a13_reductions_along_an_axis() -> None:
    @kj.jit(workgroup=32)
    def reduce_axis(x: kj.Array2[kj.f32], sums: kj.Array1[kj.f32], most: kj.Array1[kj.f32]) -> None:
        row, k = kj.workgroup_id(0), kj.local_id(0)
        inside = k < x.shape[1]
        total = kj.workgroup_add(x[row, k])  # past the end: 0
        highest = kj.workgroup_max(x[row, k] if inside else -math.inf)
        sums[row], most[row] = total, highest

    sums, most = np.zeros(3, np.float32), np.zeros(3, np.float32)
    rows = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    reduce_axis[kj.Workgroups(3)](rows, sums, most)
    assert sums.tolist() == [10, 26, 42]
    reduce_axis[kj.Workgroups(2)](np.array([[3, 1, 4, 1], [5, 9, 2, 6]], np.float32), sums, most)
    assert most[:2].tolist() == [4, 9]


def test_a14_norms_of_a_row_of_1757(rng: Rng) -> None:
    norms = load("norms")
    x = rng.normal(size=(1, 1757)).astype(np.float32)
    ones, zeros = np.ones(1757, np.float32), np.zeros(1757, np.float32)
    out = np.full_like(x, 77)
    wide = x.astype(np.float64)
    norms.layer_norm[kj.Workgroups(1, 1)](x, ones, zeros, out)
    assert np.abs(out - (wide - wide.mean()) / np.sqrt(wide.var() + norms.EPSILON)).max() < 1e-3
    norms.rms_norm[kj.Workgroups(1, 1)](x, ones, out)
    assert np.abs(out - wide / np.sqrt((wide * wide).mean() + norms.EPSILON)).max() < 1e-4


@pytest.mark.parametrize("heads", [13, 9])
def test_a14_rope_at_position_10(heads: int, rng: Rng) -> None:
    x = rng.normal(size=(heads, 128)).astype(np.float32)
    expected = load("rope").reference(x, 10, 1e4)
    load("rope").rope[64, heads](x, 10, 1e4)
    assert np.abs(x - expected).max() < 1e-5


def test_a15_25_functions_of_1757_numbers(device: Device, rng: Rng) -> None:
    """And of edge values, where the device's floats are ours."""
    activations = load("activations")
    assert len(activations.FUNCTIONS) == 25
    x = rng.uniform(-4, 4, 1757).astype(np.float32)
    out = np.full_like(x, 77)
    for name, function in activations.FUNCTIONS.items():
        activations.apply[x.size](function, x, out)
        expected = np.array([function(float(number)) for number in x])
        assert np.abs((out - expected) / np.maximum(1, np.abs(expected))).max() < 1e-5, name
    if apart(device):
        return
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    out = np.full_like(edges, 77)
    known = {
        "abs": [0, 0, np.inf, np.inf, np.nan],
        "sgn": [0, 0, 1, -1, 0],
        "elu": [0, 0, np.inf, -1, np.nan],
        "sigmoid": [0.5, 0.5, 1, 0, np.nan],
        "tanh": [0, 0, 1, -1, np.nan],
        "relu": [0, 0, np.inf, 0, 0],
        "reciprocal": [np.inf, -np.inf, 0, 0, np.nan],
        "exp": [1, 1, np.inf, 0, np.nan],
        "log": [-np.inf, -np.inf, np.inf, np.inf, np.nan],
        "clamp": [0, 0, 1.5, -1, -1],
        "erf": [0, 0, 1, -1, np.nan],
    }
    for name, expected_ in known.items():
        activations.apply[edges.size](activations.FUNCTIONS[name], edges, out)
        np.testing.assert_array_equal(out, np.array(expected_, np.float32), name)


PRIME = 2**256 - 2**32 - 977


def _plus(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    """The sum of two points of the curve, with Python's integers."""
    if a is None or b is None:
        return a or b
    if a[0] == b[0]:
        if (a[1] + b[1]) % PRIME == 0:
            return None
        slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, PRIME)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, PRIME)
    x = (slope * slope - a[0] - b[0]) % PRIME
    return x, (slope * (a[0] - x) - a[1]) % PRIME


def _times(k: int, point: tuple[int, int]) -> tuple[int, int] | None:
    total, term = None, point
    while k:
        total = _plus(total, term) if k & 1 else total
        twice = _plus(term, term)
        assert twice is not None
        term, k = twice, k >> 1
    return total


def test_multiples_of_points_of_an_elliptic_curve(rng: Rng) -> None:
    curve = load("elliptic_curve")
    scalars = [0, 1, curve.ORDER - 1, curve.ORDER, 2**256 - 1, 2**255]
    scalars += [int.from_bytes(rng.bytes(32)) for _ in range(5)]
    start = [_times(int(rng.integers(1, 2**60)), curve.GENERATOR) for _ in scalars]
    points = np.array(
        [[curve.limbs_of(part) for part in point or ()] for point in start], np.uint32
    )
    out = np.full(points.shape, 77, np.uint32)
    limbs = np.array([curve.limbs_of(k) for k in scalars], np.uint32)
    curve.multiply[len(scalars)](limbs, points, out)
    for k, point, row in zip(scalars, start, out, strict=True):
        assert point is not None
        # The point at infinity is written as (0, 0).
        assert tuple(curve.numbers(row)) == (_times(k, point) or (0, 0)), hex(k)


def test_a_picture_is_the_same_on_every_device(device: Device) -> None:
    """The random numbers are; where a function is rounded otherwise a path may take another way."""
    tracer = load("path_tracer")
    with kj.use("cpu"):
        expected = tracer.picture(24, 40, 3)
    image = tracer.picture(24, 40, 3)
    if device.kind == "cuda":
        assert (image == expected).all()
    assert (np.abs(image - expected).max(2) < 1e-3).mean() > 0.97
    sky, sphere, ground = image[2].mean(0), image[12, 13], image[22].mean(0)
    assert sky[2] > sky[0] > 0.4  # blue
    assert sphere[0] > 1.5 * sphere[1]  # red
    assert 0.05 < ground.mean() < 0.6


def test_option_prices_are_within_their_error(rng: Rng) -> None:
    """In all three regimes; the expected price is the formula's."""
    pricing = load("option_pricing")
    for spot, strike in ((100.0, 60.0), (100.0, 100.0), (100.0, 130.0)):
        sums = np.zeros((8, 2), np.float32)
        seed = int(rng.integers(2**31))
        pricing.simulate[kj.Workgroups(8)](sums, seed, spot, strike, 0.05, 0.3, 0.5)
        count = 8 * 256 * pricing.PATHS
        price, square = sums.sum(0, dtype=np.float64) / count
        error = math.sqrt((square - price * price) / count)
        exact = pricing.black_scholes(spot, strike, 0.05, 0.3, 0.5)
        assert abs(price - exact) < 5 * error + 1e-4 * exact
