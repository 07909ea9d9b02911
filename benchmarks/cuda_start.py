"""``python -m benchmarks.cuda_start``: first launches on an NVIDIA GPU, in milliseconds.

Each number is of fresh processes, in turns; the context and the arrays are there before the clock
starts. Warm: with a cache that has the kernel, until the launch returns. Cold: with an empty cache,
until the result is there, beside a process in which the driver loads the same PTX and launches it.
Least, median and greatest of the rounds are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import kernels

__all__ = ["KERNELS", "driver_alone", "first_launch"]

SIZE: Final = 64
VECTORS: Final[Mapping[str, int]] = {"saxpy": 2, "nbody_arrays": 6}  # arrays that they take
KERNELS: Final = ("saxpy", "matmul", "nbody_arrays")
PRODUCT: Final = "matmul"
FLAG: Final = 1  # CU_STREAM_NON_BLOCKING


def _milliseconds(call: Callable[[], object]) -> float:
    before = perf_counter()
    call()
    return 1e3 * (perf_counter() - before)


# What the processes do.


def _arguments(device: Any, name: str) -> tuple[Any, tuple[Any, ...]]:
    """A grid and arguments for a kernel."""
    if name == PRODUCT:
        ones = np.ones((SIZE, SIZE), np.float32)
        return (SIZE, SIZE), tuple(device.array(ones) for _ in range(3))
    arrays = tuple(device.array(np.ones(SIZE, np.float32)) for _ in range(VECTORS[name]))
    return SIZE, (*arrays, 2.0) if name == "saxpy" else arrays


def _timed(owner: Any, name: str, times: dict[str, float], label: str) -> None:
    """Let a function add up the time that it takes."""
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        before = perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            times[label] = times.get(label, 0.0) + 1e3 * (perf_counter() - before)

    setattr(owner, name, timed)


def first_launch(name: str, ptx: str = "") -> dict[str, float]:
    """The first launch of a kernel in this process; its PTX goes to a file if one is named."""
    kernel = kj.jit(getattr(kernels, name))
    device = kj.device("cuda")
    grid, arguments = _arguments(device, name)
    device.synchronize()
    times: dict[str, float] = {}
    if ptx:
        target = import_module("khaljit.backends.cuda.target").Cuda
        for owner, function in (
            (import_module("khaljit.jit"), "record"),
            (import_module("khaljit.compiler"), "canonical_key"),
            (import_module("khaljit.tracer.passes.contract"), "contract"),
            (target, "_program"),
        ):
            _timed(owner, function, times, "record to PTX")
    launched = _milliseconds(lambda: kernel[grid](*arguments))
    waited = _milliseconds(device.synchronize)
    if ptx:
        artifact = kernel.compile(*arguments).artifact
        Path(ptx).write_text(json.dumps({"text": artifact.text, "entry": artifact.plan["entry"]}))
    counts = kernel.cache_info()
    return {
        "launch": launched,
        "result": launched + waited,
        **times,
        "compiled": counts["compiled"],
    }


def driver_alone(ptx: str) -> dict[str, float]:
    """The driver loads PTX; the launch itself is left out, which favours it."""
    found = json.loads(Path(ptx).read_text())
    from cuda.bindings import driver

    def call(name: str, *args: Any) -> Any:
        status, *results = getattr(driver, name)(*args)
        assert not status, (name, status)
        return results[0] if results else None

    call("cuInit", 0)
    context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0))
    call("cuCtxSetCurrent", context)
    call("cuMemFree", call("cuMemAlloc", 4096))
    call("cuStreamCreate", FLAG)

    def load() -> None:
        module = call("cuModuleLoadData", found["text"].encode() + b"\0")
        call("cuFuncLoad", call("cuModuleGetFunction", module, found["entry"].encode()))

    return {"result": _milliseconds(load)}


# Starting them.


def _start(folder: Path, cache: str, work: str, *args: str) -> dict[str, float]:
    code = (
        f"import json; from benchmarks import cuda_start as c; print(json.dumps(c.{work}(*{args})))"
    )
    environment = {
        **os.environ,
        "KHALJIT_CACHE_DIR": str(folder / cache),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "CUDA_CACHE_DISABLE": "1",  # the driver's own
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{work} {args} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _row(label: str, times: Sequence[float]) -> tuple[str, ...]:
    return label, *(f"{one:.2f}" for one in (min(times), statistics.median(times), max(times)))


def main(rounds: Annotated[int, typer.Option(help="processes of each kind")] = 9) -> None:
    """Measure and print."""
    table = Table("first launch, ms", *("least", "median", "greatest"))
    with tempfile.TemporaryDirectory(prefix="khaljit-") as name:
        folder = Path(name)
        for kernel in KERNELS:
            _start(folder, "warm", "first_launch", kernel)
        warm: dict[str, list[float]] = {kernel: [] for kernel in KERNELS}
        for _ in range(rounds):
            for kernel in KERNELS:
                found = _start(folder, "warm", "first_launch", kernel)
                assert found["compiled"] == 0
                warm[kernel].append(found["launch"])
        ptx, cold, alone = str(folder / "product.json"), [], []
        for _ in range(rounds):
            shutil.rmtree(folder / "cold", ignore_errors=True)
            cold.append(_start(folder, "cold", "first_launch", PRODUCT, ptx))
            alone.append(_start(folder, "cold", "driver_alone", ptx)["result"])
    for kernel, times in warm.items():
        table.add_row(*_row(f"{kernel}, warm", times))
    table.add_row(*_row(f"{PRODUCT}, cold: record to PTX", [one["record to PTX"] for one in cold]))
    table.add_row(*_row(f"{PRODUCT}, cold: to the first result", [one["result"] for one in cold]))
    table.add_row(*_row("the driver loads the same PTX", alone))
    ratios = [one["result"] / other for one, other in zip(cold, alone, strict=True)]
    table.add_row(*_row("ratio of the last two, turn by turn", ratios))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
