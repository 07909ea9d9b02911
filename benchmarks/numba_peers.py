"""The workloads in Numba, written as a user would at the first try.

The functions are plain Python here; `compiled` makes parallel ones of them, strict or fast. A
constant of Python is f64 to Numba, so what should be f32 is cast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import prange

from benchmarks.constants import (
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

Array = np.ndarray[Any, Any]

MODES: Final = {"Numba": False, "Numba fastmath": True}  # whether with fastmath


@cache
def compiled(
    function: Callable[..., Any], mode: str = "Numba", parallel: bool = True, stored: bool = False
) -> Any:
    """Numba's function in a mode; with ``stored`` it is kept on disk for the next process."""
    return numba.njit(parallel=parallel, cache=stored, fastmath=MODES[mode])(function)


def saxpy(x: Array, y: Array, a: np.float32) -> None:
    for i in prange(y.size):
        y[i] = a * x[i] + y[i]


def matmul(a: Array, b: Array, out: Array) -> None:
    for i in prange(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total


def matmul_tiled(a: Array, b: Array, out: Array) -> None:
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


def nbody_vec3(positions: Array, out: Array) -> None:
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


def nbody_arrays(x: Array, y: Array, z: Array, out_x: Array, out_y: Array, out_z: Array) -> None:
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


def stencil(x: Array, out: Array) -> None:
    height, width = x.shape
    for row in prange(height):
        for column in range(width):
            up, down = x[max(row - 1, 0), column], x[min(row + 1, height - 1), column]
            left, right = x[row, max(column - 1, 0)], x[row, min(column + 1, width - 1)]
            around = np.float32(0.125) * (up + down + left + right)
            out[row, column] = np.float32(0.5) * x[row, column] + around


def blur(x: Array, weights: Array, out: Array) -> None:
    height, width = x.shape
    for row in prange(height):
        for column in range(width):
            total = np.float32(0)
            for k in range(weights.size):
                at = min(max(column - weights.size // 2 + k, 0), width - 1)
                total += weights[k] * x[row, at]
            out[row, column] = total


def total(values: Array, out: Array) -> None:
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


def black_scholes_erf(price: Array, strike: Array, years: Array, call: Array, put: Array) -> None:
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


@numba.njit
def _normal(d: Any) -> Any:
    one = np.float32(1)
    t = one / (one + np.float32(GAMMA) * abs(d))
    tail = np.float32(A4) + t * np.float32(A5)
    tail = t * (np.float32(A1) + t * (np.float32(A2) + t * (np.float32(A3) + t * tail)))
    upper = np.float32(ROOT_TAU_INVERSE) * math.exp(np.float32(-0.5) * d * d) * tail
    return one - upper if d > 0 else upper


def black_scholes_polynomial(
    price: Array, strike: Array, years: Array, call: Array, put: Array
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


def launch_2(x: Array, y: Array, a: np.float32) -> None:
    for i in prange(y.size):
        y[i] = a * x[i]


def launch_8(
    a: Array, b: Array, c: Array, d: Array, e: Array, f: Array, g: Array, out: Array
) -> None:
    for i in prange(out.size):
        out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i]
