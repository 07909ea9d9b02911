"""The workloads in NumPy, written as a user would at the first try."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.constants import (
    A1,
    A2,
    A3,
    A4,
    A5,
    BINS,
    GAMMA,
    RATE,
    ROOT_TAU_INVERSE,
    SOFTENING,
    VOLATILITY,
)

Array = np.ndarray[Any, Any]


def saxpy(x: Array, y: Array, a: float) -> None:
    y += np.float32(a) * x


def matmul(a: Array, b: Array, out: Array) -> None:
    np.matmul(a, b, out=out)


def nbody_vec3(positions: Array, out: Array) -> None:
    for start in range(0, len(positions), 256):  # all pairs at once would not fit the caches
        apart = positions[None] - positions[start : start + 256, None]
        squared = np.einsum("ijk,ijk->ij", apart, apart) + np.float32(SOFTENING)
        out[start : start + 256] = np.einsum("ijk,ij->ik", apart, squared ** np.float32(-1.5))


def nbody_arrays(x: Array, y: Array, z: Array, out_x: Array, out_y: Array, out_z: Array) -> None:
    for start in range(0, len(x), 256):
        part = slice(start, start + 256)
        dx, dy, dz = x - x[part, None], y - y[part, None], z - z[part, None]
        inverse = 1 / np.sqrt(dx * dx + dy * dy + dz * dz + np.float32(SOFTENING))
        cubed = inverse * inverse * inverse
        out_x[part] = (dx * cubed).sum(1)
        out_y[part] = (dy * cubed).sum(1)
        out_z[part] = (dz * cubed).sum(1)


def mandelbrot(out: Array, limit: int) -> None:
    height, width = out.shape
    x = np.float32(-2) + np.float32(3) * np.arange(width, dtype=np.float32) / np.float32(width)
    y = np.float32(-1.5) + np.float32(3) * np.arange(height, dtype=np.float32) / np.float32(height)
    points = (x + 1j * y[:, None]).astype(np.complex64).ravel()
    counts = np.zeros(points.size, out.dtype)
    where = np.arange(points.size)
    values = np.zeros_like(points)
    for _ in range(limit):
        inside = values.real**2 + values.imag**2 <= 4
        where, values, points = where[inside], values[inside], points[inside]
        values = values * values + points
        counts[where] += 1
    out[:] = counts.reshape(out.shape)


def stencil(x: Array, out: Array) -> None:
    wide = np.pad(x, 1, "edge")
    across = wide[1:-1, :-2] + wide[1:-1, 2:]
    out[:] = np.float32(0.5) * x + np.float32(0.125) * (wide[:-2, 1:-1] + wide[2:, 1:-1] + across)


def blur(x: Array, weights: Array, out: Array) -> None:
    width, half = x.shape[1], weights.size // 2
    wide = np.pad(x, ((0, 0), (half, half)), "edge")
    out[:] = 0
    for k, weight in enumerate(weights):
        out += weight * wide[:, k : k + width]


def total(values: Array, out: Array) -> None:
    out[0] = values.sum()


def histogram(levels: Array, bins: Array) -> None:
    bins += np.bincount(levels, minlength=BINS).astype(bins.dtype)


def _normal(d: Array) -> Array:
    t = 1 / (1 + GAMMA * np.abs(d))
    tail = t * (A1 + t * (A2 + t * (A3 + t * (A4 + t * A5))))
    upper = ROOT_TAU_INVERSE * np.exp(-0.5 * d * d) * tail
    return np.where(d > 0, 1 - upper, upper)


def black_scholes_polynomial(
    price: Array, strike: Array, years: Array, call: Array, put: Array
) -> None:
    spread = VOLATILITY * np.sqrt(years)
    d1 = (np.log(price / strike) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * years) / spread
    n1, n2 = _normal(d1), _normal(d1 - spread)
    later = strike * np.exp(-RATE * years)
    call[:] = price * n1 - later * n2
    put[:] = later * (1 - n2) - price * (1 - n1)
