"""The workloads of ``cuda_kernels.py`` give what CUDA C++ gives; timed in turns by that module."""

from __future__ import annotations

import importlib.util

import pytest

import khaljit as kj
from benchmarks.cuda_kernels import WORKLOADS, Bench


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(name: str) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("no CuPy here: pip install cupy-cuda13x")
    try:
        kj.device("cuda")
    except kj.DeviceError as error:
        pytest.skip(f"no cuda device: {error.message}")
    bench = Bench(WORKLOADS[name], "small")
    runners = bench.runners()
    bench.verify(runners)
    assert all(rate > 0 for rate in bench.rates(runners, 1).values())
