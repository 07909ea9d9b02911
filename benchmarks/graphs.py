"""Graphs: what a node costs when it is replayed, beside launching it and beside graphs by hand.

``python -m benchmarks.graphs [--device cpu|webgpu|cuda]`` prints a table: nodes of 16 elements,
all sides in one process, in turns. On WebGPU the hand is wgpu-py's API recording the same
dispatches; on CUDA it is a graph that cuda.bindings captures of the same launches.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import kernels
from benchmarks.webgpu import by_hand
from khaljit.backends.base import Device
from khaljit.backends.cuda.device import CudaDevice
from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["costs", "sides"]

ELEMENTS: Final = 16
NODES: Final = {"cpu": 1000, "webgpu": 100, "cuda": 1000}
TURN: Final = 0.02  # seconds that a turn takes at least
KERNEL: Final = kj.jit(kernels.launch_2)

Side = Callable[[], object]


def costs(device: Device, rounds: int = 9) -> dict[str, float]:
    """Seconds per node of each side: medians of turns; of the calling thread's processor on
    WebGPU, until all is done on the others."""
    nodes = NODES[device.kind]
    runners = sides(device, nodes)
    clock = time.thread_time if device.kind == "webgpu" else time.perf_counter
    turns = {name: _calls(device, run) for name, run in runners.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            start = clock()
            for _ in range(turns[name]):
                run()
            if device.kind == "webgpu":
                seconds[name].append((clock() - start) / turns[name] / nodes)
            device.synchronize()
            if device.kind != "webgpu":
                seconds[name].append((clock() - start) / turns[name] / nodes)
    return {name: median(found) for name, found in seconds.items()}


def _calls(device: Device, run: Side) -> int:
    """How often a side is run in a turn."""
    run()
    device.synchronize()
    start = time.perf_counter()
    run()
    device.synchronize()
    return max(3, round(TURN / max(time.perf_counter() - start, 1e-9)))


def sides(device: Device, nodes: int) -> dict[str, Side]:
    """What runs so many nodes, by name; the last one by hand, where there is a hand."""
    x, y = device.full(ELEMENTS, 1.0), device.zeros(ELEMENTS)
    launch = KERNEL[ELEMENTS]

    def eager() -> None:
        for _ in range(nodes):
            launch(x, y, 0.5)
        flush()

    with device.capture() as graph:
        for _ in range(nodes):
            launch(x, y, 0.5)
    with device.capture() as changing:
        a = changing.param("a", kj.f32, default=0.5)
        for _ in range(nodes):
            launch(x, y, a)
    numbers = iter(range(1 << 30))
    flush: Side = device.flush if isinstance(device, WebGpuDevice) else lambda: None

    def replay() -> None:
        graph.launch()
        flush()

    def replay_changed() -> None:
        changing.launch(a=float(next(numbers)))
        flush()

    found: dict[str, Side] = {
        "launches": eager,
        "graph, a number changed": replay_changed,
        "graph": replay,
    }
    eager()
    if isinstance(device, WebGpuDevice):
        hand = by_hand(device, KERNEL, x, y)
        found["wgpu-py"] = lambda: hand(nodes)
    if isinstance(device, CudaDevice):
        found["cuda.bindings"] = HandGraph(device, x, y, nodes).launch
    return found


class HandGraph:
    """A graph of the same launches, captured with the driver's own functions."""

    def __init__(self, device: CudaDevice, x: Any, y: Any, nodes: int) -> None:
        from cuda.bindings import driver

        self._driver: Final = driver
        artifact = KERNEL.compile(x, y, 0.5).artifact
        plan = artifact.plan
        self._module: Final = _made(driver.cuModuleLoadData(artifact.payload + b"\0"))
        function = _made(driver.cuModuleGetFunction(self._module, plan["entry"].encode()))
        self._block: Final = ctypes.create_string_buffer(
            struct.pack("<QqqQqqf4x3Q", *_slots(x), *_slots(y), 0.5, ELEMENTS, 1, 1)
        )
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._stream: Final = _made(driver.cuStreamCreate(1))
        per_block = plan["workgroup"][0] * plan["item"][0]
        blocks = -(-ELEMENTS // per_block)
        _made(driver.cuStreamBeginCapture(self._stream, driver.CUstreamCaptureMode(1)))
        for _ in range(nodes):
            where = ctypes.addressof(pointers)
            _made(
                driver.cuLaunchKernel(
                    function, blocks, 1, 1, *plan["workgroup"], plan["shared"], self._stream,
                    where, 0,
                )
            )  # fmt: skip
        self._graph: Final = _made(driver.cuStreamEndCapture(self._stream))
        self._executable: Final = _made(driver.cuGraphInstantiate(self._graph, 0))
        self._where: Final = device.own.handle
        _made(driver.cuGraphUpload(self._executable, self._where))

    def launch(self) -> None:
        """Launch it on the device's stream, so that both sides are waited for alike."""
        _made(self._driver.cuGraphLaunch(self._executable, self._where))


def _slots(array: Any) -> tuple[int, ...]:
    return (array.address, *array.shape, *array.units)


def _made(found: tuple[Any, ...]) -> Any:
    status, *rest = found
    assert not status, status
    return rest[0] if rest else None


def main(
    device: Annotated[str, typer.Option(help="cpu, webgpu or cuda")] = "cpu",
    rounds: Annotated[int, typer.Option(help="turns of each side")] = 15,
) -> None:
    """Measure and print."""
    found = kj.device(device)
    console = Console()
    console.print(f"{found}: {', '.join(f'{k} {v}' for k, v in found.describe().items())}")
    console.print(table(found, costs(found, rounds)))


def table(device: Device, seconds: Mapping[str, float]) -> Table:
    """Nanoseconds per node, and ratios to the last side."""
    last = list(seconds)[-1]
    made = Table(f"{NODES[device.kind]} nodes of {ELEMENTS} elements", "ns a node", f"/ {last}")
    for name, found in seconds.items():
        made.add_row(name, f"{found * 1e9:,.0f}", f"{found / seconds[last]:.3f}")
    return made


if __name__ == "__main__":
    typer.run(main)
