"""One program of one implementation, from the start of a process to its first result.

``python -m benchmarks.start IMPLEMENTATION PROGRAM`` prints a line when the first result is there:
the names of the modules that were loaded. Nothing is imported but what the program needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

__all__ = ["IMPLEMENTATIONS", "PROGRAMS"]

PROGRAMS: Final = ("saxpy", "nbody_arrays")
ELEMENTS: Final = 1024
Array = np.ndarray[Any, Any]


def _numpy(program: str) -> Callable[..., None]:
    from benchmarks import numpy_peers

    functions: Mapping[str, Callable[..., None]] = {
        "saxpy": numpy_peers.saxpy,
        "nbody_arrays": numpy_peers.nbody_arrays,
    }
    return functions[program]


def _numba(program: str) -> Callable[..., None]:
    from benchmarks import numba_peers

    function = {"saxpy": numba_peers.saxpy, "nbody_arrays": numba_peers.nbody_arrays}[program]
    compiled: Callable[..., None] = numba_peers.compiled(function, stored=True)
    return compiled


def _khaljit(program: str) -> Callable[..., None]:
    from benchmarks import kernels

    function = {"saxpy": kernels.saxpy, "nbody_arrays": kernels.nbody_arrays}[program]
    launch: Callable[..., None] = kernels.variant(function, "khaljit")[ELEMENTS]
    return launch


IMPLEMENTATIONS: Final[Mapping[str, Callable[[str], Callable[..., None]]]] = {
    "NumPy": _numpy,
    "Numba": _numba,
    "khaljit": _khaljit,
}


def _arguments(program: str) -> tuple[Any, ...]:
    arrays = tuple(np.linspace(k, k + 1, ELEMENTS, dtype=np.float32) for k in range(6))
    return (*arrays[:2], np.float32(2)) if program == "saxpy" else arrays


def main(implementation: str, program: str) -> None:
    """Run the program and say which modules it took."""
    arguments = _arguments(program)
    IMPLEMENTATIONS[implementation](program)(*arguments)
    assert np.isfinite(arguments[1]).all()
    print(" ".join(sorted(sys.modules)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
