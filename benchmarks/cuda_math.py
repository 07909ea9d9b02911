"""``python -m benchmarks.cuda_math``: math functions beside CUDA's own accurate ones on a GPU.

Needs CuPy, whose NVRTC compiles the peers with its usual options. Two kernels a function: one
result an element of long arrays, which mostly waits for memory, and sums of 256 results an element,
which only computes. Both sides run on one stream, timed by the same events, in turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from khaljit.exchange import adopt
from khaljit.tracer.dtypes import DType, f32, f64

BLOCK: Final = 256
LONG: Final = 1 << 26  # elements of f32 that are read and written; half as many of f64
SHORT: Final = 1 << 20
TIMES: Final = 256
STEP: Final = 2.0**-10
SHORTEST: Final = 10.0  # milliseconds of a turn
LIMIT: Final = 1e-5  # of the difference from CUDA's results, relative

# Arguments by function; a name of CUDA's where it is another.
RANGES: Final[dict[str, tuple[float, float]]] = {
    **dict.fromkeys(("exp", "exp2", "exp10", "expm1", "sinh", "cosh", "tanh"), (-9.0, 9.0)),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "rsqrt", "cbrt", "sqrt"), (0.1, 9.0)),
    **dict.fromkeys(("sin", "cos", "tan", "atan", "asinh"), (-9.0, 9.0)),
    **dict.fromkeys(("asin", "acos", "atanh"), (-0.7, 0.7)),
    **{"acosh": (1.1, 9.0), "erf": (-3.0, 3.0), "erfc": (-3.0, 5.0)},
    **{"gamma": (0.6, 9.0), "lgamma": (2.6, 9.0), "pow": (0.1, 3.0)},
    **{"hypot": (0.1, 9.0), "atan2": (0.1, 9.0)},
}
TWO: Final = frozenset({"pow", "hypot", "atan2"})
CUDA_NAMES: Final = {"gamma": "tgamma"}


def source(name: str, dtype: DType) -> str:
    """The two kernels in CUDA C++."""
    kind, suffix = ("float", "f") if dtype is f32 else ("double", "")
    call = f"{CUDA_NAMES.get(name, name)}{suffix}"
    step = f"{STEP!r}{suffix}"
    one, many = ("x[i], y[i]", "a, b") if name in TWO else ("x[i]", "a")
    return f"""
extern "C" __global__ void once(const {kind}* __restrict__ x, const {kind}* __restrict__ y,
                                {kind}* __restrict__ out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = {call}({one});
}}
extern "C" __global__ void often(const {kind}* __restrict__ x, const {kind}* __restrict__ y,
                                 {kind}* __restrict__ out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    {kind} a = x[i], b = y[i], total = 0;
    for (int j = 0; j < {TIMES}; j++, a += {step}) total += {call}({many});
    out[i] = total;
}}
"""


def kernels(name: str) -> tuple[Any, Any]:
    """The same in khaljit."""
    function = getattr(kj, name)
    two = name in TWO

    @kj.jit
    def once(x, y, out) -> None:  # type: ignore[no-untyped-def]  # of any dtype
        i = kj.global_id(0)
        if i < out.size:
            out[i] = function(x[i], y[i]) if two else function(x[i])

    @kj.jit
    def often(x, y, out) -> None:  # type: ignore[no-untyped-def]  # of any dtype
        i = kj.global_id(0)
        if i < out.size:
            a, b = x[i], y[i]
            total = x.dtype(0.0)
            for _ in range(TIMES):
                total += function(a, b) if two else function(a)
                a += STEP
            out[i] = total

    return once, often


class Bench:
    """A function of a dtype, with its arrays on the GPU; ``units`` are numbers from 0 to 1."""

    def __init__(self, cupy: Any, name: str, dtype: DType, units: Sequence[Any]) -> None:
        self.cupy: Final = cupy
        module = cupy.RawModule(code=source(name, dtype))
        self.peers: Final = [module.get_function(one) for one in ("once", "often")]
        self.own: Final = kernels(name)
        ranges = RANGES[name], (-3.0 if name == "pow" else 0.1, 3.0)
        number = dtype.numpy.type
        self.arrays: Final = [
            cupy.asarray(number(low) + unit * number(high - low))
            for unit, (low, high) in zip(units, ranges, strict=True)
        ]
        self.arrays.append(cupy.empty_like(self.arrays[0]))

    def runners(self, which: int) -> dict[str, Callable[[], Any]]:
        """CUDA's and khaljit's; single results of the latter must be close to the former's."""
        arrays = self.arrays if which == 0 else [one[:SHORT] for one in self.arrays]
        count = arrays[0].size
        peer, grid = self.peers[which], (-(-count // BLOCK),)
        launch, adopted = self.own[which][count], [adopt(one) for one in arrays]
        found: dict[str, Callable[[], Any]] = {
            "CUDA": lambda: peer(grid, (BLOCK,), (*arrays, np.int32(count))),
            "khaljit": partial(launch, *adopted),
        }
        results = []
        for run in found.values():
            arrays[2].data.memset_async(0, arrays[2].nbytes)
            run()
            results.append(arrays[2][:SHORT].get())
        if which == 0:
            np.testing.assert_allclose(results[1], results[0], rtol=LIMIT, atol=LIMIT)
        return found

    def milliseconds(self, runners: dict[str, Callable[[], Any]], rounds: int) -> list[float]:
        """The median time of each, in turns."""
        calls = {name: self._calls(run) for name, run in runners.items()}
        times: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, run in runners.items():
                times[name].append(self._timed(run, calls[name]))
        return [median(found) for found in times.values()]

    def _calls(self, run: Callable[[], Any]) -> int:
        self._timed(run, 3)
        return max(3, int(SHORTEST / max(self._timed(run, 3), 1e-4)))

    def _timed(self, run: Callable[[], Any], calls: int) -> float:
        start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop)) / calls


def main(
    names: Annotated[list[str] | None, typer.Argument(help="functions; all if left out")] = None,
    rounds: Annotated[int, typer.Option(help="turns of each side")] = 5,
    out: Annotated[Path | None, typer.Option(help="a file for the times, as JSON")] = None,
) -> None:
    """Measure and print times, and khaljit's by CUDA's."""
    cupy: Any = import_module("cupy")
    heads = ("memory, CUDA ms", "khaljit", "ratio", "computing, CUDA ms", "khaljit", "ratio")
    table = Table("function", *heads)
    found: dict[str, list[float]] = {}
    with kj.use(kj.device("cuda")), cupy.cuda.Stream(non_blocking=True):
        for dtype in (f32, f64):
            rng, count = np.random.default_rng(1), LONG * 4 // dtype.size
            units = [rng.random(count, dtype.numpy) for _ in range(2)]
            for name in names or RANGES:
                bench = Bench(cupy, name, dtype, units)
                times = []
                for which in range(2):
                    times += bench.milliseconds(bench.runners(which), rounds)
                key = f"{name} {dtype.name}"
                found[key] = times
                pairs = (times[:2], times[2:])
                cells = [[f"{a:.3f}", f"{b:.3f}", f"{b / a:.2f}"] for a, b in pairs]
                table.add_row(key, *cells[0], *cells[1])
                print(key, *cells[0], *cells[1], flush=True)
                del bench
                cupy.get_default_memory_pool().free_all_blocks()
    Console(width=120).print(table)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
