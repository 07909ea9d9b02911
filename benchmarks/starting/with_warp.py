"""The programs in Warp, with its kernel cache."""

# No `from __future__ import annotations`: Warp reads what annotations are.

import os
from typing import Any

import numpy as np
import warp as wp

from benchmarks.constants import SOFTENING

Array = np.ndarray[Any, Any]
Floats = wp.array(dtype=wp.float32)

wp.config.quiet = True
wp.config.kernel_cache_dir = os.environ["WARP_CACHE"]


@wp.kernel
def saxpy_kernel(x: Floats, y: Floats, a: wp.float32):
    i = wp.tid()
    y[i] = a * x[i] + y[i]


@wp.kernel
def nbody_kernel(x: Floats, y: Floats, z: Floats, out_x: Floats, out_y: Floats, out_z: Floats):
    i = wp.tid()
    pull = wp.vec3(0.0, 0.0, 0.0)
    for j in range(x.shape[0]):
        apart = wp.vec3(x[j] - x[i], y[j] - y[i], z[j] - z[i])
        inverse = 1.0 / wp.sqrt(wp.dot(apart, apart) + wp.static(SOFTENING))
        pull += apart * (inverse * inverse * inverse)
    out_x[i] = pull[0]
    out_y[i] = pull[1]
    out_z[i] = pull[2]


def _launch(kernel: Any, arrays: tuple[Array, ...], *numbers: float) -> None:
    views = [wp.array(one, dtype=wp.float32, device="cpu", copy=False) for one in arrays]
    wp.launch(kernel, dim=len(arrays[0]), inputs=[*views, *numbers], device="cpu")


def saxpy(x: Array, y: Array, a: np.float32) -> None:
    _launch(saxpy_kernel, (x, y), float(a))


def nbody(*arrays: Array) -> None:
    _launch(nbody_kernel, arrays)
