"""Every workload by every implementation, verified before it is timed.

Groups are workloads, so that the tables of pytest-benchmark stand side by side. On a machine that
is used by others, ``python -m benchmarks`` compares more fairly: it takes turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.workloads import IMPLEMENTATIONS, WORKLOADS, Case

ROUNDS = 5


@lru_cache(maxsize=1)  # the tests of a workload follow one another; full data is large
def case_of(name: str, size: str) -> Case:
    return WORKLOADS[name].case(size)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(
    name: str, implementation: str, benchmark: BenchmarkFixture, pytestconfig: pytest.Config
) -> None:
    case = case_of(name, pytestconfig.getoption("--size"))
    case.verify(implementation)
    benchmark.group = name
    measure(benchmark, case.runner(implementation))
    measured: Any = benchmark.stats  # None where benchmarks are disabled
    if measured is not None:
        rate = case.work / measured.stats.median
        benchmark.extra_info[case.workload.unit] = round(rate, 3)


def measure(benchmark: BenchmarkFixture, run: Callable[[], None]) -> None:
    """Time a function that may take microseconds or seconds."""
    run_rounds: Any = benchmark.pedantic  # untyped
    run_rounds(run, rounds=ROUNDS, warmup_rounds=1)
