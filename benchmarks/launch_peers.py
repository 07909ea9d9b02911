"""A launch of two arrays and a number by peers that need not be installed.

Of each a statement and its names. It takes arrays of its own library, made before, and was called
once, so that it is compiled.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Final

import numpy as np

__all__ = ["Statement", "installed"]

Statement = tuple[str, dict[str, Any]]


def installed(elements: int) -> dict[str, Statement]:
    """Of those that are here."""
    return {
        name: make(elements)
        for name, (package, make) in _PEERS.items()
        if importlib.util.find_spec(package) is not None
    }


def _taichi(elements: int) -> Statement:
    ti: Any = importlib.import_module("taichi")
    ti.init(arch=ti.cpu, log_level=ti.ERROR)
    array = ti.types.ndarray(dtype=ti.f32, ndim=1)

    def scale(x, y, a):  # type: ignore[no-untyped-def]  # Taichi reads the annotations
        for i in x:
            y[i] = a * x[i]

    scale.__annotations__ = {"x": array, "y": array, "a": ti.f32}
    kernel = ti.kernel(scale)
    x, y = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    kernel(x, y, 2.0)
    return "f(x, y, 2.0)", {"f": kernel, "x": x, "y": y}


def _warp(elements: int) -> Statement:
    wp: Any = importlib.import_module("warp")
    wp.config.quiet = True
    wp.init()

    def scale(x, y, a):  # type: ignore[no-untyped-def]  # Warp reads the annotations
        i = wp.tid()
        y[i] = a * x[i]

    array = wp.array(dtype=wp.float32)
    scale.__annotations__ = {"x": array, "y": array, "a": wp.float32}
    names = {
        "launch": wp.launch,
        "f": wp.kernel(scale),
        "n": elements,
        "x": wp.ones(elements, dtype=wp.float32, device="cpu"),
        "y": wp.zeros(elements, dtype=wp.float32, device="cpu"),
    }
    wp.launch(names["f"], elements, [names["x"], names["y"], 2.0], device="cpu")
    return 'launch(f, n, [x, y, 2.0], device="cpu")', names


def _jax(elements: int) -> Statement:
    jax: Any = importlib.import_module("jax")
    x = jax.numpy.ones(elements, dtype=np.float32)
    function = jax.jit(lambda x, a: a * x)
    function(x, 2.0).block_until_ready()
    return "f(x, 2.0).block_until_ready()", {"f": function, "x": x}


_PEERS: Final[dict[str, tuple[str, Callable[[int], Statement]]]] = {
    "Taichi": ("taichi", _taichi),
    "Warp": ("warp", _warp),
    "JAX": ("jax", _jax),
}
