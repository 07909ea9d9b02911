"""Starts processes, with caches of their own, and says what took how long."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.starting.program import IMPLEMENTATIONS

__all__ = ["BARE", "Start", "environment", "is_installed", "start"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
BARE: Final = "import numpy"
"""The implementation that does nothing but that."""


class Start(NamedTuple):
    """A start, in milliseconds.

    Attributes:
        whole: from the spawn to the first result.
        processor: that the process took of processors, to its end.
        imports: of that, importing the implementation beside NumPy.
        first: from there to the first result.
        modules: that were loaded.
    """

    whole: float
    processor: float
    imports: float
    first: float
    modules: frozenset[str]


def is_installed(implementation: str) -> bool:
    """Whether a process can start with it."""
    return implementation == BARE or find_spec(IMPLEMENTATIONS[implementation]) is not None


def environment(bytecode: Path, caches: Path) -> Mapping[str, str]:
    """What processes see.

    Args:
        bytecode: where they keep compiled sources, each for the next one.
        caches: where they keep what they compile.
    """
    found = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "KHALJIT_CACHE_DIR": str(caches / "khaljit"),
        "KHALJIT_DEVICE": "cpu",
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "TAICHI_CACHE": str(caches / "taichi"),
        "WARP_CACHE": str(caches / "warp"),
        "JAX_CACHE": str(caches / "jax"),
    }
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def start(implementation: str, program: str, environment: Mapping[str, str]) -> Start:
    """Start a process and wait for its first result."""
    if implementation == BARE:
        nothing = {"imports": 0, "first": 0, "modules": []}
        command = ["-c", f"import numpy; print({json.dumps(json.dumps(nothing))}, flush=True)"]
    else:
        command = ["-m", "benchmarks.starting.program", implementation, program]
    before = _processor()
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("{"))  # some greet first
        whole = 1e3 * (time.perf_counter() - began)
    assert process.returncode == 0
    found = json.loads(line)
    taken = _processor() - before
    return Start(whole, taken, found["imports"], found["first"], frozenset(found["modules"]))


def _processor() -> float:
    """Milliseconds that all processes have taken which were started and are over."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (used.ru_utime + used.ru_stime)
