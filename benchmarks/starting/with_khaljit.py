"""The programs in khaljit."""

from __future__ import annotations

from typing import Any

import numpy as np

import khaljit as kj
from benchmarks.constants import SOFTENING

Array = np.ndarray[Any, Any]
Floats = kj.Array1[kj.f32]


@kj.jit
def saxpy_kernel(x: Floats, y: Floats, a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < y.size:
        y[i] = a * x[i] + y[i]


@kj.jit
def nbody_kernel(
    x: Floats, y: Floats, z: Floats, out_x: Floats, out_y: Floats, out_z: Floats
) -> None:
    i = kj.global_id(0)
    if i < x.size:
        pull_x, pull_y, pull_z = 0.0, 0.0, 0.0
        for j in range(x.size):
            dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
            inverse = 1.0 / kj.sqrt(dx * dx + dy * dy + dz * dz + SOFTENING)
            cubed = inverse * inverse * inverse
            pull_x += dx * cubed
            pull_y += dy * cubed
            pull_z += dz * cubed
        out_x[i] = pull_x
        out_y[i] = pull_y
        out_z[i] = pull_z


def saxpy(x: Array, y: Array, a: np.float32) -> None:
    saxpy_kernel[y.size](x, y, float(a))


def nbody(x: Array, y: Array, z: Array, out_x: Array, out_y: Array, out_z: Array) -> None:
    nbody_kernel[x.size](x, y, z, out_x, out_y, out_z)
