"""khaljit on WebGPU beside what one writes by hand: kernels in WGSL, dispatches with wgpu-py.

``python -m benchmarks.webgpu [--device webgpu] [--size N]`` prints both tables. Both sides run in
one process on one device, in turns; kernel times are the device's own timestamps, host times the
processor time of the calling thread.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks.webgpu_kernels import FAST, NUMBERS, PLAIN, SOURCES
from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["BATCH", "by_hand", "host_costs", "kernel_times"]

BATCH: Final = 100
TURN: Final = 50  # submissions that are timed together
SMALL: Final = 256  # elements, so that the device has next to nothing to do


def kernel_times(device: WebGpuDevice, size: int, rounds: int = 5) -> dict[str, dict[str, float]]:
    """Seconds of each kernel by each side: medians of interleaved runs, on the device's clock."""
    return {name: _interleaved(device, _kernel(device, name, size), rounds) for name in SOURCES}


def _interleaved(
    device: WebGpuDevice, runners: Mapping[str, Callable[[], None]], rounds: int
) -> dict[str, float]:
    for run in runners.values():
        run()
    device.synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            with device.profile() as profile:
                for _ in range(3):
                    run()
            seconds[name].append(median(entry.seconds for entry in profile.entries()))
    return {name: median(found) for name, found in seconds.items()}


def _kernel(device: WebGpuDevice, name: str, size: int) -> dict[str, Callable[[], None]]:
    """All sides of a kernel, checked against each other."""
    rng = np.random.default_rng()
    form = "immediates" if device.immediates else "uniform"
    code = SOURCES[name].replace("NUMBERS", NUMBERS[form])
    uniform = None if device.immediates else 3
    if name == "saxpy":
        n = size * size
        params = "const f32[:], f32[:], f32, u32"
        hand = device.load(code, "main", params, workgroup=256, uniform=uniform, name="hand")
        x = device.array(rng.random(n, np.float32))
        outputs = [device.zeros(n) for _ in range(3)]
        runners: dict[str, Callable[[], None]] = {
            "khaljit": lambda: PLAIN[name][n](x, outputs[0], 0.5),
            "fastmath": lambda: FAST[name][n](x, outputs[1], 0.5),
            "WGSL": lambda: hand[n](x, outputs[2], 0.5, n),
        }
    else:
        params = "const f32[:], const f32[:], f32[:], u32, u32, u32"
        hand = device.load(code, "main", params, workgroup=(16, 16), uniform=uniform, name="hand")
        a, b = (device.array(rng.random((size, size), np.float32)) for _ in range(2))
        outputs = [device.zeros((size, size)) for _ in range(3)]
        flat = [device.adopt(one.native, kj.f32) for one in (a, b, outputs[2])]
        runners = {
            "khaljit": lambda: PLAIN[name][size, size](a, b, outputs[0]),
            "fastmath": lambda: FAST[name][size, size](a, b, outputs[1]),
            "WGSL": lambda: hand[size, size](*flat, size, size, size),
        }
    for run in runners.values():
        run()
    *ours, theirs = (one.numpy() for one in outputs)
    assert all(np.allclose(one, theirs, rtol=1e-4) for one in ours)
    return runners


def host_costs(device: WebGpuDevice, rounds: int = 15) -> dict[str, dict[str, float]]:
    """Seconds of the calling thread per dispatch, submitted one by one and in batches."""
    x, y = device.zeros(SMALL), device.zeros(SMALL)
    saxpy = PLAIN["saxpy"]
    saxpy[SMALL](x, y, 0.5)
    device.synchronize()
    sides = {"khaljit": _ours(device, x, y), "wgpu-py": by_hand(device, saxpy, x, y)}
    found: dict[str, dict[str, float]] = {}
    for label, batch in (("each submitted", 1), (f"batches of {BATCH}", BATCH)):
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, run in sides.items():
                seconds[name].append(_host_time(device, run, batch))
        found[label] = {name: median(times) for name, times in seconds.items()}
    return found


def _host_time(device: WebGpuDevice, run: Callable[[int], None], batch: int) -> float:
    submissions = max(3, TURN // batch)
    run(batch)
    device.synchronize()
    start = time.thread_time()
    for _ in range(submissions):
        run(batch)
    seconds = time.thread_time() - start
    device.synchronize()
    return seconds / (submissions * batch)


def _ours(device: WebGpuDevice, x: Any, y: Any) -> Callable[[int], None]:
    saxpy = PLAIN["saxpy"]

    def run(batch: int) -> None:
        for _ in range(batch):
            saxpy[SMALL](x, y, 0.5)
        device.flush()

    return run


def by_hand(device: WebGpuDevice, kernel: Any, x: Any, y: Any) -> Callable[[int], None]:
    """The pipeline and bind group of a kernel that was launched on x, y and a number, through
    wgpu-py's API, the numbers packed each time."""
    loaded: Any = next(plan.loaded for (where, _), plan in kernel._plans.items() if where is device)
    variant = loaded._plain
    pipeline, interface = variant.pipeline, variant.interface
    key = (pipeline.number, x.buffer.address, y.buffer.address)
    group, native, handle = device.groups.get(key), pipeline.handle, device.handle
    if interface.uniform is not None:
        raise kj.CapabilityError("the comparison needs immediates")
    words = interface.size // 4
    sources = [slot.source.kind for slot in interface.slots]
    pack = struct.Struct(f"<{words}I").pack

    def run(batch: int) -> None:
        encoder = handle.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for _ in range(batch):
            compute.set_pipeline(native)
            compute.set_bind_group(0, group)
            values = [x.size if kind == "shape" else 1 for kind in sources]
            block = pack(*values, *[0] * (words - len(values)))
            compute.set_immediates(0, block, 0, len(block))
            compute.dispatch_workgroups(-(-x.size // 256))
        compute.end()
        handle.queue.submit([encoder.finish()])

    return run


def main(
    device: Annotated[str, typer.Option(help="a WebGPU device")] = "webgpu",
    size: Annotated[int, typer.Option(help="rows and columns of the matrices")] = 256,
    rounds: Annotated[int, typer.Option(help="turns of each side")] = 5,
) -> None:
    """Measure and print both tables."""
    found = kj.device(device)
    assert isinstance(found, WebGpuDevice)
    console = Console()
    facts = found.describe()
    console.print(f"{facts['adapter']}, {facts['driver']}, n = {size}")
    console.print(_table("kernel", kernel_times(found, size, rounds)))
    console.print(_table("host, per dispatch", host_costs(found, 3 * rounds)))


def _table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Microseconds, and ratios to the last column."""
    *ours, theirs = next(iter(rows.values()))
    table = Table(title, *ours, theirs, *(f"{one} / {theirs}" for one in ours))
    for name, times in rows.items():
        cells = [f"{seconds * 1e6:,.1f} us" for seconds in times.values()]
        table.add_row(name, *cells, *(f"{times[one] / times[theirs]:.3f}" for one in ours))
    return table


if __name__ == "__main__":
    typer.run(main)
