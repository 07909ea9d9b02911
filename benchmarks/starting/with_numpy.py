"""The programs in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.constants import SOFTENING

Array = np.ndarray[Any, Any]


def saxpy(x: Array, y: Array, a: np.float32) -> None:
    y += a * x


def nbody(x: Array, y: Array, z: Array, out_x: Array, out_y: Array, out_z: Array) -> None:
    dx, dy, dz = x - x[:, None], y - y[:, None], z - z[:, None]
    inverse = 1 / np.sqrt(dx * dx + dy * dy + dz * dz + np.float32(SOFTENING))
    cubed = inverse * inverse * inverse
    out_x[:], out_y[:], out_z[:] = (dx * cubed).sum(1), (dy * cubed).sum(1), (dz * cubed).sum(1)
