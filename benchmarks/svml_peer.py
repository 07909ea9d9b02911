"""Numba's math functions for ``math_speed.py``, in a Python of their own.

Numba calls Intel's SVML where its LLVM is patched for that, which the LLVM of later wheels is not.
So this runs under another Python with ``numba==0.61.2`` and ``icc_rt``, reads lines of a function,
``strict`` or ``fast``, a number of elements and of repetitions, and answers each with seconds of
the processor's time. Before the first it says whether SVML is used.
"""

from __future__ import annotations

import math
import sys
import time
from functools import cache
from typing import Any

import numba
import numpy as np


@cache
def compiled(name: str, fast: bool) -> Any:
    function = getattr(math, name)

    if name == "pow":

        @numba.njit(fastmath=fast)
        def two(x, y, out, times):  # type: ignore[no-untyped-def]  # numba sees the types
            for _ in range(times):
                for i in range(x.size):
                    out[i] = function(x[i], y[i])

        return two

    @numba.njit(fastmath=fast)
    def one(x, y, out, times):  # type: ignore[no-untyped-def]  # numba sees the types
        for _ in range(times):
            for i in range(x.size):
                out[i] = function(x[i])

    return one


def timed(name: str, fast: bool, count: int, times: int) -> float:
    rng = np.random.default_rng(1)
    x = rng.uniform(0.1, 9, count).astype(np.float32)
    y = rng.uniform(-3, 3, count).astype(np.float32)
    out = np.empty_like(x)
    run = compiled(name, fast)
    run(x, y, out, 1)
    start = time.process_time()
    run(x, y, out, times)
    return time.process_time() - start


def main() -> None:
    print(f"numba {numba.__version__}", vars(numba.config)["USING_SVML"], flush=True)
    for line in sys.stdin:
        name, mode, count, times = line.split()
        print(timed(name, mode == "fast", int(count), int(times)), flush=True)


if __name__ == "__main__":
    main()
