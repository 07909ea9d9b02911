"""The programs in JAX, with its persistent compilation cache."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.constants import SOFTENING

Array = np.ndarray[Any, Any]

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@jax.jit
def _saxpy(x: Any, y: Any, a: Any) -> Any:
    return a * x + y


@jax.jit
def _nbody(x: Any, y: Any, z: Any) -> Any:
    dx, dy, dz = x - x[:, None], y - y[:, None], z - z[:, None]
    inverse = 1 / jnp.sqrt(dx * dx + dy * dy + dz * dz + SOFTENING)
    cubed = inverse * inverse * inverse
    return (dx * cubed).sum(1), (dy * cubed).sum(1), (dz * cubed).sum(1)


def saxpy(x: Array, y: Array, a: np.float32) -> None:
    y[:] = _saxpy(x, y, a)


def nbody(x: Array, y: Array, z: Array, out_x: Array, out_y: Array, out_z: Array) -> None:
    out_x[:], out_y[:], out_z[:] = _nbody(x, y, z)
