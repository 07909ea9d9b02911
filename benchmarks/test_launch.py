"""What a launch costs the host: arrays of 16 elements, so that the kernel itself is nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import kernels, numba_peers

ELEMENTS: Final = 16
FACTOR: Final = np.float32(2)


def _khaljit(function: Callable[..., None]) -> Callable[..., None]:
    launch: Callable[..., None] = kernels.variant(function, "khaljit")[ELEMENTS]
    return launch


def _grid_each_time(function: Callable[..., None]) -> Callable[..., None]:
    kernel = kernels.variant(function, "khaljit")
    return lambda *args: kernel[ELEMENTS](*args)


def _numba(function: Callable[..., None], parallel: bool) -> Callable[..., None]:
    compiled: Callable[..., None] = numba_peers.compiled(function, parallel=parallel)
    return compiled


WAYS_2: Final[dict[str, Callable[..., None]]] = {
    "khaljit": _khaljit(kernels.launch_2),
    "khaljit, kernel[n]": _grid_each_time(kernels.launch_2),
    "Numba": _numba(numba_peers.launch_2, parallel=True),
    "Numba, serial": _numba(numba_peers.launch_2, parallel=False),
}
WAYS_8: Final[dict[str, Callable[..., None]]] = {
    "khaljit": _khaljit(kernels.launch_8),
    "khaljit, kernel[n]": _grid_each_time(kernels.launch_8),
    "Numba": _numba(numba_peers.launch_8, parallel=True),
    "Numba, serial": _numba(numba_peers.launch_8, parallel=False),
}


def _ramps(count: int) -> list[np.ndarray[Any, Any]]:
    return [np.arange(ELEMENTS, dtype=np.float32) + k for k in range(count)]


@pytest.mark.parametrize("way", WAYS_2)
def test_launch_with_two_arrays_and_a_scalar(way: str, benchmark: BenchmarkFixture) -> None:
    benchmark.group = "launch, 2 arrays and a scalar"
    x, y = _ramps(2)
    benchmark(WAYS_2[way], x, y, FACTOR)
    assert (y == FACTOR * x).all()


@pytest.mark.parametrize("way", WAYS_8)
def test_launch_with_eight_arrays(way: str, benchmark: BenchmarkFixture) -> None:
    benchmark.group = "launch, 8 arrays"
    *inputs, out = _ramps(8)
    benchmark(WAYS_8[way], *inputs, out)
    assert (out == np.sum(inputs, 0)).all()
