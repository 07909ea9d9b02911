"""The same workloads in NumPy and in Numba, written as a user would at the first try.

Numba's functions are made by `compiled`, once as they stand (``parallel=True``) and once with
``fastmath=True``; they are plain Python here. NumPy's work on whole arrays; SciPy lends ``erf``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numba  # type: ignore[import-untyped]  # has no stubs
import numpy as np
import scipy.special  # type: ignore[import-untyped]  # has no stubs
from numba import prange

from benchmarks.kernels import (
    A1,
    A2,
    A3,
    A4,
    A5,
    BINS,
    GAMMA,
    HALF_ROOT,
    RATE,
    ROOT_TAU_INVERSE,
    SOFTENING,
    VOLATILITY,
)

__all__ = ["compiled"]

Floats = np.ndarray[Any, np.dtype[np.float32]]
Array = np.ndarray[Any, Any]

MODES: Final[dict[str, dict[str, bool]]] = {
    "Numba": {},
    "Numba fastmath": {"fastmath": True},
}


@lru_cache(maxsize=None)
def compiled(function: Callable[..., Any], mode: str, cache: bool = False) -> Any:
    """Numba's parallel function in a mode."""
    return numba.njit(parallel=True, cache=cache, **MODES[mode])(function)


# NumPy.


def numpy_saxpy(x: Floats, y: Floats, a: float) -> None:
    y += np.float32(a) * x


def numpy_matmul(a: Floats, b: Floats, out: Floats) -> None:
    np.matmul(a, b, out=out)


def numpy_nbody_vec3(positions: Floats, out: Floats) -> None:
    for start in range(0, len(positions), 256):  # all pairs at once would not fit the caches
        apart = positions[None] - positions[start : start + 256, None]
        squared = np.einsum("ijk,ijk->ij", apart, apart) + np.float32(SOFTENING)
        out[start : start + 256] = np.einsum("ijk,ij->ik", apart, squared ** np.float32(-1.5))


def numpy_nbody_arrays(
    x: Floats, y: Floats, z: Floats, out_x: Floats, out_y: Floats, out_z: Floats
) -> None:
    for start in range(0, len(x), 256):
        part = slice(start, start + 256)
        dx, dy, dz = x - x[part, None], y - y[part, None], z - z[part, None]
        inverse = 1 / np.sqrt(dx * dx + dy * dy + dz * dz + np.float32(SOFTENING))
        cubed = inverse * inverse * inverse
        out_x[part] = (dx * cubed).sum(1)
        out_y[part] = (dy * cubed).sum(1)
        out_z[part] = (dz * cubed).sum(1)


def numpy_mandelbrot(out: Array, limit: int) -> None:
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


def numpy_total(values: Floats, out: Floats) -> None:
    out[0] = values.sum()


def numpy_histogram(levels: Array, bins: Array) -> None:
    bins += np.bincount(levels, minlength=BINS).astype(bins.dtype)


def numpy_black_scholes_erf(
    price: Floats, strike: Floats, years: Floats, call: Floats, put: Floats
) -> None:
    spread = VOLATILITY * np.sqrt(years)
    d1 = (np.log(price / strike) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * years) / spread
    d2 = d1 - spread
    n1 = 0.5 + 0.5 * scipy.special.erf(d1 * HALF_ROOT)
    n2 = 0.5 + 0.5 * scipy.special.erf(d2 * HALF_ROOT)
    later = strike * np.exp(-RATE * years)
    call[:] = price * n1 - later * n2
    put[:] = later * (1 - n2) - price * (1 - n1)


def _numpy_normal(d: Floats) -> Floats:
    t = 1 / (1 + GAMMA * np.abs(d))
    tail = t * (A1 + t * (A2 + t * (A3 + t * (A4 + t * A5))))
    upper = ROOT_TAU_INVERSE * np.exp(-0.5 * d * d) * tail
    return np.where(d > 0, 1 - upper, upper)


def numpy_black_scholes_polynomial(
    price: Floats, strike: Floats, years: Floats, call: Floats, put: Floats
) -> None:
    spread = VOLATILITY * np.sqrt(years)
    d1 = (np.log(price / strike) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * years) / spread
    n1, n2 = _numpy_normal(d1), _numpy_normal(d1 - spread)
    later = strike * np.exp(-RATE * years)
    call[:] = price * n1 - later * n2
    put[:] = later * (1 - n2) - price * (1 - n1)


# Numba. Constants of Python are f64 there, so what should be f32 is cast where it matters.


def saxpy(x: Floats, y: Floats, a: np.float32) -> None:
    for i in prange(y.size):
        y[i] = a * x[i] + y[i]


def matmul(a: Floats, b: Floats, out: Floats) -> None:
    for i in prange(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total


def matmul_tiled(a: Floats, b: Floats, out: Floats) -> None:
    tile = 64
    for block in prange((a.shape[0] + tile - 1) // tile):
        first, last = block * tile, min((block + 1) * tile, a.shape[0])
        out[first:last] = 0
        for start in range(0, a.shape[1], tile):
            for i in range(first, last):
                for k in range(start, min(start + tile, a.shape[1])):
                    factor = a[i, k]
                    for j in range(b.shape[1]):
                        out[i, j] += factor * b[k, j]


def nbody_vec3(positions: Floats, out: Floats) -> None:
    softening = np.float32(SOFTENING)
    for i in prange(len(positions)):
        x, y, z = positions[i, 0], positions[i, 1], positions[i, 2]
        pull_x = pull_y = pull_z = np.float32(0)
        for j in range(len(positions)):
            dx, dy, dz = positions[j, 0] - x, positions[j, 1] - y, positions[j, 2] - z
            inverse = np.float32(1) / np.sqrt(dx * dx + dy * dy + dz * dz + softening)
            cubed = inverse * inverse * inverse
            pull_x += dx * cubed
            pull_y += dy * cubed
            pull_z += dz * cubed
        out[i, 0], out[i, 1], out[i, 2] = pull_x, pull_y, pull_z


def nbody_arrays(
    x: Floats, y: Floats, z: Floats, out_x: Floats, out_y: Floats, out_z: Floats
) -> None:
    softening = np.float32(SOFTENING)
    for i in prange(len(x)):
        pull_x = pull_y = pull_z = np.float32(0)
        for j in range(len(x)):
            dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
            inverse = np.float32(1) / np.sqrt(dx * dx + dy * dy + dz * dz + softening)
            cubed = inverse * inverse * inverse
            pull_x += dx * cubed
            pull_y += dy * cubed
            pull_z += dz * cubed
        out_x[i], out_y[i], out_z[i] = pull_x, pull_y, pull_z


def mandelbrot(out: Array, limit: int) -> None:
    height, width = out.shape
    for y in prange(height):
        for x in range(width):
            cr = np.float32(-2) + np.float32(3) * np.float32(x) / np.float32(width)
            ci = np.float32(-1.5) + np.float32(3) * np.float32(y) / np.float32(height)
            zr = zi = np.float32(0)
            count = 0
            while count < limit and zr * zr + zi * zi <= np.float32(4):
                zi, zr = np.float32(2) * zr * zi + ci, zr * zr - zi * zi + cr
                count += 1
            out[y, x] = count


def total(values: Floats, out: Floats) -> None:
    found = 0.0
    for i in prange(values.size):
        found += values[i]
    out[0] = found


def histogram(levels: Array, bins: Array) -> None:
    threads = numba.get_num_threads()
    counts = np.zeros((threads, BINS), np.uint32)
    share = (levels.size + threads - 1) // threads
    for thread in prange(threads):
        for i in range(thread * share, min((thread + 1) * share, levels.size)):
            counts[thread, levels[i]] += 1
    bins += counts.sum(0).astype(np.uint32)


def black_scholes_erf(
    price: Floats, strike: Floats, years: Floats, call: Floats, put: Floats
) -> None:
    rate, volatility = np.float32(RATE), np.float32(VOLATILITY)
    half, one, root = np.float32(0.5), np.float32(1), np.float32(HALF_ROOT)
    for i in prange(price.size):
        s, k, t = price[i], strike[i], years[i]
        spread = volatility * math.sqrt(t)
        d1 = (math.log(s / k) + (rate + half * volatility * volatility) * t) / spread
        d2 = d1 - spread
        n1 = half + half * math.erf(d1 * root)
        n2 = half + half * math.erf(d2 * root)
        later = k * math.exp(-rate * t)
        call[i] = s * n1 - later * n2
        put[i] = later * (one - n2) - s * (one - n1)


@numba.njit  # type: ignore[untyped-decorator]  # numba has no stubs
def _normal(d: np.float32) -> np.float32:
    one = np.float32(1)
    t = one / (one + np.float32(GAMMA) * abs(d))
    tail = np.float32(A4) + t * np.float32(A5)
    tail = t * (np.float32(A1) + t * (np.float32(A2) + t * (np.float32(A3) + t * tail)))
    upper = np.float32(ROOT_TAU_INVERSE) * math.exp(np.float32(-0.5) * d * d) * tail
    return one - upper if d > 0 else upper


def black_scholes_polynomial(
    price: Floats, strike: Floats, years: Floats, call: Floats, put: Floats
) -> None:
    rate, volatility = np.float32(RATE), np.float32(VOLATILITY)
    half, one = np.float32(0.5), np.float32(1)
    for i in prange(price.size):
        s, k, t = price[i], strike[i], years[i]
        spread = volatility * math.sqrt(t)
        d1 = (math.log(s / k) + (rate + half * volatility * volatility) * t) / spread
        n1, n2 = _normal(d1), _normal(d1 - spread)
        later = k * math.exp(-rate * t)
        call[i] = s * n1 - later * n2
        put[i] = later * (one - n2) - s * (one - n1)


def launch_2(x: Floats, y: Floats, a: np.float32) -> None:
    for i in range(y.size):
        y[i] = a * x[i]


def launch_8(
    a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, f: Floats, g: Floats, out: Floats
) -> None:
    for i in range(out.size):
        out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i]
