"""Launches from many threads, with arrays that come and go: nothing leaks and nothing breaks.

``python -m tests.stress_launches [--launches N] [--threads N] [--device NAME]`` prints, in so many
rounds, the memory of the process and the references to what every launch uses, and fails where
memory grows, or a reference is lost or left. Without a device the arrays are NumPy's.

To look for errors in memory, build the extension with ``-fsanitize=address``, preload its library,
and allow for growth, as it keeps what is freed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import numpy as np

import khaljit as kj
from khaljit.extension import NATIVE

GAIN = 2.0
SIZE: Final = 64
LAUNCHES: Final = 8  # of a turn
RARE: Final = 256  # turns from one look at the results to the next
PAGE: Final = os.sysconf("SC_PAGESIZE")


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


@final
class Arrays:
    """Makes arrays: NumPy's, or those of a device."""

    def __init__(self, device: kj.Device | None) -> None:
        self._device: Final = device

    def full(self, size: int, value: float) -> Any:
        host = np.full(size, value, np.float32)
        return host if self._device is None else self._device.array(host)

    def first(self, array: Any) -> float:
        return float((array if self._device is None else array.numpy())[0])


def one_thread(arrays: Arrays, turns: int, seed: int) -> None:
    """Launches of every form, `LAUNCHES` a turn."""
    kept = arrays.full(SIZE, 1)
    launch = accumulate[SIZE]
    step = launch.bind(kept, arrays.full(SIZE, 0), 1.0)
    for turn in range(turns):
        x, y = arrays.full(SIZE, 1), arrays.full(SIZE, 0)
        accumulate[x.size](x, y, 1.0)
        launch(x, y, 1.0)
        launch(x, y=y, a=1.0)
        step(y=y)
        step()
        accumulate[turn % SIZE](x[::-1], y, 0.0)
        accumulate[0](x, y, 0.0)
        accumulate[SIZE](x, x, 0.0)
        if turn % RARE == seed % RARE:
            assert arrays.first(y) == 8
            rarely(arrays, launch, x, y)


def rarely(arrays: Arrays, launch: Any, x: Any, y: Any) -> None:
    """What takes long, or goes by Python."""
    large, out = arrays.full(1 << 15, 1), arrays.full(1 << 15, 0)
    shared[large.size](large, out)
    assert arrays.first(out) == 16
    cpu = kj.device("cpu")
    accumulate[SIZE](cpu.full(SIZE, 1.0), cpu.zeros(SIZE), 1.0)
    launch.bind(x, y, 1.0)()
    for wrong in ((x, y, "wrong"), (x, y), (x[1:], x[:-1], 1.0), (x, np.ones((8, 8)), 1.0)):
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
    """Run, and compare what there was before with what there is behind each round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--device", help="whose arrays; NumPy's if none is named")
    parser.add_argument("--rounds", type=int, default=10, help="from one line to the next")
    parser.add_argument("--growth", type=int, default=4 << 20, help="bytes that may be kept")
    chosen = parser.parse_args()
    arrays = Arrays(None if chosen.device is None else kj.device(chosen.device))
    turns = max(1, chosen.launches // (LAUNCHES * chosen.threads * chosen.rounds))
    all_threads(lambda seed: one_thread(arrays, max(turns, 2 * RARE), seed), chosen.threads)
    watched = [accumulate, shared, np.dtype(np.float32), kj.device("cpu"), kj.f32, GAIN]
    before, held, start = resident(), references(watched), time.perf_counter()
    print(f"native: {NATIVE is not None}, {chosen.threads} threads, references {held}")
    for k in range(1, chosen.rounds + 1):
        all_threads(lambda seed: one_thread(arrays, turns, seed), chosen.threads)
        now, grown = references(watched), resident() - before
        print(
            f"{k * turns * chosen.threads * LAUNCHES:,} launches, "
            f"{time.perf_counter() - start:.0f} s: {(before + grown) >> 10:,} KiB, "
            f"{grown >> 10:+,} since the start, references {now}",
            flush=True,
        )
        assert held == now, "references were lost, or left"
    assert grown < chosen.growth, "memory grows"


if __name__ == "__main__":
    main()
