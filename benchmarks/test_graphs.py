"""What a node of a graph costs when it is replayed; the numbers of ``python -m benchmarks.graphs``.

Where the device is a CPU that plays a GPU, other programs disturb the numbers too much for a limit
to mean anything, so there they are only taken.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import khaljit as kj
from benchmarks.graphs import costs
from khaljit.backends.base import Device

CPU = 100e-9  # seconds of a node
WEBGPU = 0.5  # times wgpu-py's cost
CUDA = 1.02  # times the cost of a graph that was captured by hand


def _device(name: str) -> Device:
    try:
        return kj.device(name)
    except kj.DeviceError as error:
        pytest.skip(f"no {name} device: {error.message}")


def _measured(name: str, benchmark: BenchmarkFixture) -> dict[str, float]:
    found: dict[str, float] = benchmark.pedantic(costs, (_device(name),), rounds=1)  # type: ignore[no-untyped-call]
    benchmark.extra_info.update({side: f"{cost * 1e9:.0f} ns" for side, cost in found.items()})
    return found


def test_a_node_on_the_cpu(benchmark: BenchmarkFixture) -> None:
    assert _measured("cpu", benchmark)["graph"] < CPU


def test_a_node_on_webgpu_beside_wgpu_py(benchmark: BenchmarkFixture) -> None:
    found = _measured("webgpu", benchmark)
    if kj.device("webgpu").info["adapter_type"] != "CPU":  # type: ignore[attr-defined]
        assert found["graph"] <= WEBGPU * found["wgpu-py"]


def test_a_node_on_cuda_beside_a_graph_by_hand(benchmark: BenchmarkFixture) -> None:
    found = _measured("cuda", benchmark)
    assert found["graph"] <= CUDA * found["cuda.bindings"]
