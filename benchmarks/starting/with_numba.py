"""The programs in Numba, not parallel: starting its threads would take longer than they save."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from benchmarks.constants import SOFTENING

Array = np.ndarray[Any, Any]


@numba.njit(cache=True)
def saxpy(x: Array, y: Array, a: np.float32) -> None:
    for i in range(y.size):
        y[i] = a * x[i] + y[i]


@numba.njit(cache=True)
def nbody(x: Array, y: Array, z: Array, out_x: Array, out_y: Array, out_z: Array) -> None:
    softening = np.float32(SOFTENING)
    for i in range(len(x)):
        pull_x = pull_y = pull_z = np.float32(0)
        for j in range(len(x)):
            dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
            inverse = np.float32(1) / np.sqrt(dx * dx + dy * dy + dz * dz + softening)
            cubed = inverse * inverse * inverse
            pull_x += dx * cubed
            pull_y += dy * cubed
            pull_z += dz * cubed
        out_x[i], out_y[i], out_z[i] = pull_x, pull_y, pull_z
