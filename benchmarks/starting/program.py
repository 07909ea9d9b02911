"""One program of one implementation, from the start of a process to its first result.

``python -m benchmarks.starting.program IMPLEMENTATION PROGRAM`` prints a line of JSON when the
first result is there: the milliseconds of importing the implementation beside NumPy, those from
there to the first result, and the modules that were loaded. Nothing is imported but what the
program needs.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any, Final

import numpy as np

__all__ = ["IMPLEMENTATIONS", "PROGRAMS"]

IMPLEMENTATIONS: Final = {
    "NumPy": "numpy",
    "khaljit": "khaljit",
    "Numba": "numba",
    "Taichi": "taichi",
    "Warp": "warp",
    "JAX": "jax",
}
"""The implementations with what they import."""

PROGRAMS: Final = ("saxpy", "nbody")
ELEMENTS: Final = 256


def _arguments(program: str) -> tuple[Any, ...]:
    arrays = tuple(np.linspace(k, k + 1, ELEMENTS, dtype=np.float32) for k in range(6))
    return (*arrays[:2], np.float32(2)) if program == "saxpy" else arrays


def main(implementation: str, program: str) -> None:
    """Run the program and say how long that took."""
    package = IMPLEMENTATIONS[implementation]
    arguments = _arguments(program)
    began = time.perf_counter()
    import_module(package)
    imported = time.perf_counter()
    getattr(import_module(f"benchmarks.starting.with_{package}"), program)(*arguments)
    done = time.perf_counter()
    assert np.isfinite(arguments[1]).all()
    found = {
        "imports": 1e3 * (imported - began),
        "first": 1e3 * (done - imported),
        "modules": sorted(sys.modules),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
