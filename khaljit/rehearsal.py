"""A kernel that is recorded for practice, while a device is opened.

Python runs code several times as slowly the first time in a process as later, and most of a first
launch is such code. Opening a GPU is waiting for its driver, which leaves the interpreter alone, so
meanwhile a thread records a kernel that nobody asked for, and makes its key. The first launch that
somebody asks for then takes about a quarter less. Nothing is compiled or run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

import khaljit as kj
from khaljit import compiler
from khaljit.logs import log

__all__ = ["rehearse", "rehearsing"]


@contextmanager
def rehearsing(name: str) -> Iterator[None]:
    """Rehearse in a thread while the block waits for a driver, the first time in a process.

    Args:
        name: a target's, such as ``cuda:sm_90``.
    """
    thread = threading.Thread(target=_quietly, args=(name,), name="khaljit rehearsal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _quietly(name: str) -> None:
    try:
        rehearse(name)
    except Exception as error:  # whose kernel it matters for is told then
        log("compile", f"the rehearsal for {name} failed: {error}")


@lru_cache(maxsize=8)
def rehearse(name: str) -> str:
    """Record a kernel and make its key, which is given back, for a target."""
    compiler.ready()
    x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
    return compiler.canonical_key(*_practice.request(x, y, 1.0, target=name))[1]


@kj.jit
def _practice(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    """Some of what most kernels are made of."""
    i = kj.global_id(0)
    if i < y.size:
        total = 0.0
        for j in range(x.size):
            total += a * kj.sqrt(x[j] * x[j] + 1.0)
        y[i] = total
