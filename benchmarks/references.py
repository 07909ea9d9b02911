"""The right results in f64, from the arguments of a workload, for some rows of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.ndimage
import scipy.special

from benchmarks.constants import A1, A2, A3, A4, A5, BINS, GAMMA, RATE, SOFTENING, VOLATILITY

__all__ = [
    "black_scholes_erf",
    "black_scholes_polynomial",
    "blur",
    "histogram",
    "mandelbrot",
    "matmul",
    "nbody_arrays",
    "nbody_vec3",
    "saxpy",
    "stencil",
    "total",
]

Array = np.ndarray[Any, Any]
Arrays = Sequence[Array]


def saxpy(arrays: Arrays, rows: slice, factor: np.float32) -> Arrays:
    x, y = (array[rows].astype(np.float64) for array in arrays)
    return (float(factor) * x + y,)


def matmul(arrays: Arrays, rows: slice) -> Arrays:
    a, b = (array.astype(np.float64) for array in arrays[:2])
    return (a[rows] @ b,)


def nbody_vec3(arrays: Arrays, rows: slice) -> Arrays:
    positions = arrays[0].astype(np.float64)
    pulls = []
    for me in positions[rows]:
        apart = positions - me
        pulls.append((apart * ((apart**2).sum(1) + SOFTENING)[:, None] ** -1.5).sum(0))
    return (np.array(pulls),)


def nbody_arrays(arrays: Arrays, rows: slice) -> Arrays:
    (pulls,) = nbody_vec3((np.stack(arrays[:3], 1),), rows)
    return tuple(pulls.T)


def mandelbrot(arrays: Arrays, rows: slice, limit: int) -> Arrays:
    height, width = arrays[0].shape
    x = -2 + 3 * np.arange(width) / width
    y = (-1.5 + 3 * np.arange(height) / height)[rows]
    points = x + 1j * y[:, None]
    values, counts = np.zeros_like(points), np.zeros(points.shape)
    for _ in range(limit):
        inside = np.abs(values) <= 2
        values = np.where(inside, values * values + points, values)
        counts += inside
    return (counts,)


def stencil(arrays: Arrays, rows: slice) -> Arrays:
    x = arrays[0].astype(np.float64)
    around = scipy.ndimage.convolve(x, [[0, 1, 0], [1, 0, 1], [0, 1, 0]], mode="nearest")
    return ((x / 2 + around / 8)[rows],)


def blur(arrays: Arrays, rows: slice) -> Arrays:
    x, weights = arrays[0].astype(np.float64), arrays[1].astype(np.float64)
    return (scipy.ndimage.correlate1d(x[rows], weights, mode="nearest"),)


def total(arrays: Arrays, rows: slice) -> Arrays:
    return (np.array([arrays[0].sum(dtype=np.float64)]),)


def histogram(arrays: Arrays, rows: slice) -> Arrays:
    return (np.bincount(arrays[0], minlength=BINS),)


def _black_scholes(arrays: Arrays, rows: slice, normal: Callable[[Array], Array]) -> Arrays:
    price, strike, years = (array[rows].astype(np.float64) for array in arrays[:3])
    spread = VOLATILITY * np.sqrt(years)
    d1 = (np.log(price / strike) + (RATE + VOLATILITY**2 / 2) * years) / spread
    n1, n2 = normal(d1), normal(d1 - spread)
    later = strike * np.exp(-RATE * years)
    return price * n1 - later * n2, later * (1 - n2) - price * (1 - n1)


def black_scholes_erf(arrays: Arrays, rows: slice) -> Arrays:
    return _black_scholes(arrays, rows, scipy.special.ndtr)


def _polynomial(d: Array) -> Array:
    t = 1 / (1 + GAMMA * np.abs(d))
    density = np.exp(-d * d / 2) / np.sqrt(2 * np.pi)
    upper = density * np.polynomial.Polynomial((0, A1, A2, A3, A4, A5))(t)
    return np.asarray(np.where(d > 0, 1 - upper, upper))


def black_scholes_polynomial(arrays: Arrays, rows: slice) -> Arrays:
    return _black_scholes(arrays, rows, _polynomial)
