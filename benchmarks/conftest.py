"""The option for the size of the data, and the device that every suite runs on."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest

import khaljit as kj
from benchmarks import THREADS
from benchmarks.workloads import SIZES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=SIZES, default="small", help="of the data of test_cpu.py")


@pytest.fixture(scope="session", autouse=True)
def device() -> Iterator[object]:
    """The CPU, with as many threads as the peers have."""
    numba.set_num_threads(THREADS)
    with kj.use(kj.device("cpu", threads=THREADS)) as device:
        yield device
