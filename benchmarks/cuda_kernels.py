"""``python -m benchmarks.cuda_kernels``: khaljit beside CUDA C++ on an NVIDIA GPU.

Needs CuPy, whose NVRTC (or nvcc, with ``--nvcc``) compiles the peers with their usual options.
Both sides run on one stream and are timed by the same events, in turns, with buffers that rotate
past the L2 cache; the median of the rounds is shown, after the results were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Annotated, Any, Final, final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import kernels
from benchmarks.cuda_sources import SOURCE

__all__ = ["SIZES", "WORKLOADS", "Bench", "Workload"]

SIZES: Final = ("small", "full")
L2_TIMES: Final = 4  # the buffers of all rounds take so many times the L2 cache
SHORTEST: Final = 10.0  # milliseconds that a turn takes at least
LINE: Final = (256, 1)
TILES: Final = (16, 16)
PAIR_COST: Final = 20
COUNTS_APART: Final = 0.02  # part of the counts that rounding may change
LIMIT: Final = 256
FACTOR: Final = 1.5
GROUPS: Final = 132 * 16  # of kernels that loop over their data

MODES: Final[dict[str, dict[str, bool]]] = {
    "khaljit": {},
    "unchecked": {"unchecked": True},
    "fastmath": {"fastmath": True},
}


def saxpy4(x: kj.Array1[kj.vec4], y: kj.Array1[kj.vec4], a: kj.f32) -> None:
    """y = a x + y, four at a time."""
    i = kj.global_id(0)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def copy4(x: kj.Array1[kj.vec4], y: kj.Array1[kj.vec4], a: kj.f32) -> None:
    """y = x: the ceiling."""
    i = kj.global_id(0)
    if i < y.size:
        y[i] = x[i]


def nbody(bodies: kj.Array1[kj.vec4], out: kj.Array1[kj.vec4]) -> None:
    """The acceleration of each body by all; the last of four numbers is the mass."""
    i = kj.global_id(0)
    if i < bodies.size:
        me = bodies[i]
        px, py, pz = 0.0, 0.0, 0.0
        for j in range(bodies.size):
            other = bodies[j]
            dx, dy, dz = other.x - me.x, other.y - me.y, other.z - me.z
            inverse = 1.0 / kj.sqrt(dx * dx + dy * dy + dz * dz + 1e-3)
            pull = other.w * (inverse * inverse * inverse)
            px += dx * pull
            py += dy * pull
            pz += dz * pull
        out[i] = kj.vec4(px, py, pz, 0.0)


def total(values: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
    """The sum: each workgroup adds up a share, and that to the whole by an atomic."""
    mine = 0.0
    for i in kj.grid_stride(values.size):
        mine += values[i]
    together = kj.workgroup_add(mine)
    if kj.local_index() == 0:
        kj.atomic_add(out, 0, together)


def matmul(a: kj.Array2[kj.f32], b: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """One element of the product an invocation."""
    column, row = kj.global_id(0), kj.global_id(1)
    if row < out.shape[0] and column < out.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        out[row, column] = total


@final
@dataclass(frozen=True)
class Workload:
    """One thing to compute.

    Attributes:
        unit: of the rate; ``work`` is how much of it a run of a size does, times 1e9.
        sizes: small and full.
        make: arrays of a size on the host, the outputs last.
        outputs: how many of them are outputs.
        numbers: what follows the arrays, for khaljit and for the peer.
        grid: invocations or workgroups for a size.
        block: the peer's, and khaljit's where ``workgroup`` says so.
        vectors: whether float arrays hold four numbers an element.
        adds: whether outputs are added to.
    """

    name: str
    kernel: Callable[..., None]
    unit: str
    work: Callable[[int], float]
    sizes: tuple[int, int]
    make: Callable[[int, np.random.Generator], list[Any]]
    outputs: int
    numbers: Callable[[int], tuple[Sequence[Any], Sequence[Any]]]
    grid: Callable[[int], Any]
    block: tuple[int, int] = LINE
    workgroup: tuple[int, ...] | None = None
    vectors: bool = False
    adds: bool = False
    tolerance: float = 1e-4


def _floats(count: int, inputs: int, outputs: int, wide: int = 1) -> Callable[..., list[Any]]:
    def make(n: int, rng: np.random.Generator) -> list[Any]:
        size = n**2 if count == 2 else n
        shape = (n, n) if count == 2 else (n, wide) if wide > 1 else (n,)
        data = [rng.random(size * wide, np.float32).reshape(shape) for _ in range(inputs)]
        return [*data, *(np.zeros(shape, np.float32) for _ in range(outputs))]

    return make


def _saxpy_data(n: int, rng: np.random.Generator, wide: int = 1) -> list[Any]:
    shape = (n // wide, wide) if wide > 1 else (n,)
    return [rng.random(n, np.float32).reshape(shape) for _ in range(2)]


def _options(n: int, rng: np.random.Generator) -> list[Any]:
    price, strike = (rng.uniform(10, 100, n).astype(np.float32) for _ in range(2))
    years = rng.uniform(0.2, 3, n).astype(np.float32)
    return [price, strike, years, np.zeros(n, np.float32), np.zeros(n, np.float32)]


WORKLOADS: Final = {
    one.name: one
    for one in (
        Workload(
            "copy float4", copy4, "GB/s", lambda n: 8 * n, (1 << 20, 1 << 28),
            lambda n, rng: _saxpy_data(n, rng, 4), 1,
            lambda n: ((FACTOR,), (np.float32(FACTOR), np.int32(n // 4))), lambda n: n // 4,
            vectors=True,
        ),
        Workload(
            "saxpy", kernels.saxpy, "GB/s", lambda n: 12 * n, (1 << 20, 1 << 28), _saxpy_data, 1,
            lambda n: ((FACTOR,), (np.float32(FACTOR), np.int32(n))), lambda n: n, adds=True,
        ),
        Workload(
            "saxpy float4", saxpy4, "GB/s", lambda n: 12 * n, (1 << 20, 1 << 28),
            lambda n, rng: _saxpy_data(n, rng, 4), 1,
            lambda n: ((FACTOR,), (np.float32(FACTOR), np.int32(n // 4))), lambda n: n // 4,
            vectors=True, adds=True,
        ),
        Workload(
            "matmul, naive", matmul, "GFLOP/s", lambda n: 2 * n**3, (256, 2048),
            _floats(2, 2, 1), 1, lambda n: ((), (np.int32(n),)), lambda n: (n, n), (32, 8),
        ),
        Workload(
            "matmul, tiled", kernels.matmul_tiled, "GFLOP/s", lambda n: 2 * n**3, (256, 2048),
            _floats(2, 2, 1), 1, lambda n: ((), (np.int32(n),)), lambda n: (n, n), TILES, TILES,
        ),
        Workload(
            "n-body", nbody, "GFLOP/s", lambda n: PAIR_COST * n**2, (2048, 65536),
            _floats(1, 1, 1, 4), 1, lambda n: ((), (np.int32(n),)), lambda n: n, vectors=True,
        ),
        Workload(
            "mandelbrot", kernels.mandelbrot, "Gpixel/s", lambda n: n**2, (512, 8192),
            lambda n, rng: [np.zeros((n, n), np.int32)], 1,
            lambda n: ((LIMIT,), (np.int32(n), np.int32(n), np.int32(LIMIT))), lambda n: (n, n),
            (32, 8),
        ),
        Workload(
            "sum", total, "GB/s", lambda n: 4 * n, (1 << 20, 1 << 28),
            lambda n, rng: [rng.random(n, np.float32), np.zeros(1, np.float32)], 1,
            lambda n: ((), (np.int32(n),)), lambda n: kj.Workgroups(GROUPS), workgroup=(256,),
            adds=True,
        ),
        Workload(
            "histogram", kernels.histogram, "GB/s", lambda n: n, (1 << 20, 1 << 28),
            lambda n, rng: [rng.integers(0, 256, n, np.uint8), np.zeros(256, np.uint32)], 1,
            lambda n: ((), (np.int32(n),)), lambda n: kj.Workgroups(GROUPS), workgroup=(256,),
            adds=True,
        ),
        Workload(
            "Black-Scholes", kernels.black_scholes_erf, "Goption/s", lambda n: n,
            (1 << 16, 1 << 26), _options, 2, lambda n: ((), (np.int32(n),)), lambda n: n,
        ),
    )
}  # fmt: skip

# The function of the CUDA source for each.
PEERS: Final = {
    "copy float4": "copy4",
    "saxpy": "saxpy",
    "saxpy float4": "saxpy4",
    "matmul, naive": "matmul",
    "matmul, tiled": "matmul_tiled",
    "n-body": "nbody",
    "mandelbrot": "mandelbrot",
    "sum": "total",
    "histogram": "histogram",
    "Black-Scholes": "black_scholes",
}


@final
class Bench:
    """A workload with its data on the GPU, and what runs it."""

    def __init__(self, workload: Workload, size: str, *, nvcc: bool = False) -> None:
        cupy: Any = import_module("cupy")
        self._cupy: Final = cupy
        self.workload: Final = workload
        self.count: Final = workload.sizes[SIZES.index(size)]
        host = workload.make(self.count, np.random.default_rng(1))
        self._host: Final = host
        l2 = cupy.cuda.Device().attributes["L2CacheSize"]
        copies = max(1, -(-L2_TIMES * l2 // sum(one.nbytes for one in host)))
        self._sets: Final = [[cupy.asarray(one) for one in host] for _ in range(copies)]
        self._turn = 0
        self._nvcc: Final = nvcc

    def runners(self) -> dict[str, Callable[[], None]]:
        """What runs once, by implementation; each call takes the next set of buffers."""
        found: dict[str, Callable[[], None]] = {
            "CUDA C++": self._peer(()),
            "CUDA C++ fast": self._peer(("--use_fast_math",)),
        }
        for mode, options in MODES.items():
            found[mode] = self._khaljit(options)
        return found

    def _next(self) -> int:
        self._turn = (self._turn + 1) % len(self._sets)
        return self._turn

    def _peer(self, options: tuple[str, ...]) -> Callable[[], None]:
        module = self._cupy.RawModule(
            code=SOURCE, options=options, backend="nvcc" if self._nvcc else "nvrtc"
        )
        function = module.get_function(PEERS[self.workload.name])
        grid = self.workload.grid(self.count)
        block = self.workload.block
        if isinstance(grid, kj.Workgroups):
            blocks: tuple[int, ...] = (grid.x,)
        else:
            extents = grid if isinstance(grid, tuple) else (grid,)
            blocks = tuple(-(-n // size) for n, size in zip(extents, block, strict=False))
        numbers = self.workload.numbers(self.count)[1]
        calls = [(*arrays, *numbers) for arrays in self._sets]
        return lambda: function(blocks, block, calls[self._next()])

    def _khaljit(self, options: dict[str, bool]) -> Callable[[], None]:
        from khaljit.exchange import adopt, as_vectors

        make: Any = kj.jit
        workload = self.workload
        kernel = make(workgroup=workload.workgroup, **options)(workload.kernel)
        element = kj.vec4 if workload.vectors else None
        launch = kernel[workload.grid(self.count)]
        numbers = workload.numbers(self.count)[0]
        calls = []
        for arrays in self._sets:
            adopted: list[Any] = [adopt(one) for one in arrays]
            calls.append((*(as_vectors(one, element) for one in adopted), *numbers))
        return lambda: launch(*calls[self._next()])

    def verify(self, runners: dict[str, Callable[[], None]]) -> None:
        """Compare each implementation's outputs with the first's."""
        wanted: list[Any] | None = None
        for name, run in runners.items():
            for arrays in self._sets:
                for array, host in zip(arrays, self._host, strict=True):
                    array.set(host)
            self._turn = len(self._sets) - 1
            run()
            found = [one.get() for one in self._sets[0][-self.workload.outputs :]]
            wanted = wanted or found
            for a, b in zip(found, wanted, strict=True):
                if a.dtype.kind == "f":
                    scale = float(np.abs(b).max()) or 1.0
                    good = bool(np.abs(a - b).max() <= self.workload.tolerance * scale)
                else:
                    good = bool((a != b).mean() <= COUNTS_APART)
                if not good:
                    raise SystemExit(f"{self.workload.name}: {name} differs from CUDA C++")

    def rates(self, runners: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
        """The median rate of each, in turns."""
        calls = {name: self._calls(run) for name, run in runners.items()}
        times: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, run in runners.items():
                times[name].append(self._timed(run, calls[name]))
        work = self.workload.work(self.count)
        return {name: work / (median(found) * 1e6) for name, found in times.items()}

    def _calls(self, run: Callable[[], None]) -> int:
        self._timed(run, 3)
        return max(3, int(SHORTEST / max(self._timed(run, 3), 1e-4)))

    def _timed(self, run: Callable[[], None], calls: int) -> float:
        """Milliseconds a call, by events around all."""
        start, stop = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, stop)) / calls


def main(
    workloads: Annotated[list[str] | None, typer.Argument(help="by name; all if left out")] = None,
    size: Annotated[str, typer.Option(help=" or ".join(SIZES))] = "full",
    rounds: Annotated[int, typer.Option(help="turns of each implementation")] = 5,
    nvcc: Annotated[bool, typer.Option(help="compile the peers by nvcc, not NVRTC")] = False,
) -> None:
    """Measure the workloads and print rates, and ratios to CUDA C++."""
    cupy: Any = import_module("cupy")
    unknown = {*(workloads or ()), size} - {*WORKLOADS, *SIZES}
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is none of {', '.join(WORKLOADS)}")
    device = kj.device("cuda")
    facts = device.describe()
    ratios = ("khaljit / C++", "unchecked / C++", "fastmath / C++ fast")
    table = Table(
        "workload", "unit", "CUDA C++", "CUDA C++ fast", *MODES, *ratios,
        title=f"{facts['GPU']}, CUDA {facts['CUDA']}, median of {rounds}",
    )  # fmt: skip
    with cupy.cuda.Stream(non_blocking=True):
        for name in workloads or WORKLOADS:
            bench = Bench(WORKLOADS[name], size, nvcc=nvcc)
            runners = bench.runners()
            bench.verify(runners)
            rates = bench.rates(runners, rounds)
            plain, fast = rates["CUDA C++"], rates["CUDA C++ fast"]
            table.add_row(
                name,
                bench.workload.unit,
                *(f"{rate:,.4g}" for rate in rates.values()),
                *(
                    f"{ratio:.3f}"
                    for ratio in (
                        rates["khaljit"] / plain,
                        rates["unchecked"] / plain,
                        rates["fastmath"] / fast,
                    )
                ),
            )
            del bench, runners
            cupy.get_default_memory_pool().free_all_blocks()
    Console(width=150).print(table)


if __name__ == "__main__":
    typer.run(main)
