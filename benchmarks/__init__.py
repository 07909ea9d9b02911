"""Benchmarks of khaljit beside its peers.

The number of threads is the same for every implementation, and is set here because NumPy and
Numba read it when they load: ``BENCHMARK_THREADS``, or every core that the process is granted.
"""

import os
from typing import Final

__all__ = ["THREADS"]


def _granted() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


THREADS: Final = int(os.environ.get("BENCHMARK_THREADS") or _granted())

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = str(THREADS)
for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # they would slow NumPy's product down
    os.environ.pop(_name, None)
