"""Timing on a machine that others use too: in turns, medians, and ratios.

Implementations run one after the other, round by round (A B A B ...), so that a disturbance hits
them alike; the median of the rounds is taken, and read as a ratio to another of the same run.
With one thread it is the processor's time, which other processes hardly disturb; with more it is
the wall clock's.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from statistics import median
from typing import Final

import khaljit as kj
from benchmarks import THREADS

__all__ = ["interleaved", "machine"]

CLOCK: Final = time.process_time if THREADS == 1 else time.perf_counter
SHORTEST: Final = 0.01  # seconds that a turn takes at least
PAUSE: Final = 0.02  # seconds before a turn, in which the last one's threads stop spinning


def interleaved(runners: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each runner, called in turns."""
    turns = {name: _turn(run) for name, run in runners.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            time.sleep(PAUSE)
            if turns[name] > 1:
                run()  # brings back into the caches what the others drove out
            seconds[name].append(_timed(run, turns[name]))
    return {name: median(found) for name, found in seconds.items()}


def _turn(run: Callable[[], object]) -> int:
    """How many calls make a turn that is long enough to be measured."""
    run()
    return max(1, round(SHORTEST / max(_timed(run, 1), 1e-9)))


def _timed(run: Callable[[], object], calls: int) -> float:
    start = CLOCK()
    for _ in range(calls):
        run()
    return (CLOCK() - start) / calls


def machine() -> str:
    """Processor, threads and versions, in a line."""
    facts = kj.device("cpu", threads=THREADS).describe()
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "llvmlite"))
    return (
        f"{facts['processor']} ({facts['level']}, {facts['vectors']} vectors), "
        f"{THREADS} of {os.cpu_count()} cores; {platform.python_implementation()} "
        f"{platform.python_version()}, {versions}, khaljit {version('khaljit')}"
    )
