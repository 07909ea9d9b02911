"""The programs in Taichi, with its offline cache."""

# No `from __future__ import annotations`: Taichi reads what annotations are.

import os
from typing import Any

import numpy as np
import taichi as ti

from benchmarks.constants import SOFTENING

Array = np.ndarray[Any, Any]
Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)

ti.init(
    arch=ti.cpu,
    offline_cache=True,
    offline_cache_file_path=os.environ["TAICHI_CACHE"],
    log_level=ti.ERROR,
)


@ti.kernel
def saxpy(x: Floats, y: Floats, a: ti.f32):
    for i in range(y.shape[0]):
        y[i] = a * x[i] + y[i]


@ti.kernel
def nbody(x: Floats, y: Floats, z: Floats, out_x: Floats, out_y: Floats, out_z: Floats):
    for i in range(x.shape[0]):
        pull = ti.Vector([0.0, 0.0, 0.0])
        for j in range(x.shape[0]):
            apart = ti.Vector([x[j] - x[i], y[j] - y[i], z[j] - z[i]])
            inverse = 1.0 / ti.sqrt(apart.dot(apart) + SOFTENING)
            pull += apart * (inverse * inverse * inverse)
        out_x[i], out_y[i], out_z[i] = pull[0], pull[1], pull[2]
