"""Launches from many threads, with arrays that come and go: nothing leaks and nothing breaks.

``python -m tests.stress_launches [--launches N] [--threads N]`` says what it found, and fails where
memory grows or a reference is lost or left. To look for errors in memory, build the extension with
``-fsanitize=address``, preload its library, and allow for growth, as it keeps what is freed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

import khaljit as kj
from khaljit.extension import NATIVE

GAIN = 2.0
SIZE: Final = 64
LAUNCHES: Final = 8  # of a turn
PAGE: Final = 4096


@kj.jit
def accumulate(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < y.size:
        y[i] += GAIN * a * x[i]


@kj.jit
def shared(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < y.size:
        total = kj.f32(0.0)
        for k in range(16):
            total += x[(i + k) % x.size]
        y[i] = total


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def one_thread(turns: int, seed: int) -> None:
    """Launches of every form, `LAUNCHES` a turn."""
    kept = np.ones(SIZE, np.float32)
    launch = accumulate[SIZE]
    step = launch.bind(kept, np.zeros(SIZE, np.float32), 1.0)
    for turn in range(turns):
        x, y = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
        accumulate[x.size](x, y, 1.0)
        launch(x, y, 1.0)
        launch(x, y=y, a=1.0)
        step(y=y)
        step()
        accumulate[turn % SIZE](x[::-1], y, 0.0)
        accumulate[0](x, y, 0.0)
        accumulate[SIZE](x, x, 0.0)
        assert y[0] == 8, y[0]
        if turn % 64 == seed % 64:
            rarely(launch, x, y)


def rarely(launch: Any, x: Any, y: Any) -> None:
    """What takes long, or goes by Python."""
    large, out = np.ones(1 << 15, np.float32), np.zeros(1 << 15, np.float32)
    shared[large.size](large, out)
    assert out[-1] == 16
    cpu = kj.device("cpu")
    accumulate[SIZE](cpu.array(x), cpu.zeros(SIZE), 1.0)
    launch.bind(x, y, 1.0)()
    for wrong in ((x, y, "wrong"), (x, y), (x, y[1:], 1.0), (x, x.reshape(8, 8), 1.0)):
        with suppress(kj.ArgumentError):
            launch(*wrong)


def all_threads(work: Callable[[int], None], threads: int) -> None:
    failures: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=guarded, args=(seed,)) for seed in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


def references(watched: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(one) for one in watched]


def main() -> None:
    """Run, and compare what there was before with what there is behind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--growth", type=int, default=4 << 20, help="bytes that may be kept")
    chosen = parser.parse_args()
    turns = max(1, chosen.launches // (LAUNCHES * chosen.threads))
    all_threads(lambda seed: one_thread(max(1, turns // 5), seed), chosen.threads)
    watched = [accumulate, shared, np.dtype(np.float32), kj.device("cpu"), kj.f32, GAIN]
    before, held = resident(), references(watched)
    all_threads(lambda seed: one_thread(turns, seed), chosen.threads)
    after, now = resident(), references(watched)
    grown = after - before
    print(f"native: {NATIVE is not None}, launches: {LAUNCHES * turns * chosen.threads}")
    print(f"memory grew by {grown >> 10} KiB, references {held} -> {now}")
    assert held == now, "references were lost, or left"
    assert grown < chosen.growth, "memory grows"


if __name__ == "__main__":
    main()
