"""WebGPU: what a dispatch costs the host beside wgpu-py by hand, and kernels beside WGSL.

The numbers of ``python -m benchmarks.webgpu`` as tests, for hardware: where the adapter is a CPU,
other programs disturb them too much for a limit to mean anything, so there they are only taken.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import khaljit as kj
from benchmarks.webgpu import host_costs, kernel_times
from khaljit.backends.webgpu.device import WebGpuDevice

HOST = 1.3  # times wgpu-py's cost
KERNELS = {"saxpy": 1.02, "matmul": 1.05, "tiled": 1.05}  # times the WGSL's time


@pytest.fixture(scope="module")
def gpu() -> WebGpuDevice:
    try:
        found = kj.device("webgpu")
    except kj.DeviceError as error:
        pytest.skip(f"no webgpu device: {error.message}")
    assert isinstance(found, WebGpuDevice)
    return found


def test_host_cost_of_a_dispatch(gpu: WebGpuDevice, benchmark: BenchmarkFixture) -> None:
    if not gpu.immediates:
        pytest.skip("the comparison needs immediates")
    costs = benchmark.pedantic(host_costs, (gpu,), rounds=1)  # type: ignore[no-untyped-call]
    single, batched = costs.values()
    assert batched["khaljit"] < single["khaljit"]
    for name, times in costs.items():
        benchmark.extra_info[name] = round(times["khaljit"] / times["wgpu-py"], 3)
        if gpu.info["adapter_type"] != "CPU":
            assert times["khaljit"] <= HOST * times["wgpu-py"], name


def test_kernels_beside_wgsl(gpu: WebGpuDevice, benchmark: BenchmarkFixture) -> None:
    hardware = gpu.info["adapter_type"] != "CPU"
    size = 2048 if hardware else 64
    times = benchmark.pedantic(kernel_times, (gpu, size), rounds=1)  # type: ignore[no-untyped-call]
    for name, limit in KERNELS.items():
        ratio = times[name]["khaljit"] / times[name]["WGSL"]
        benchmark.extra_info[name] = round(ratio, 3)
        if hardware:
            assert ratio <= limit, name
