"""What a launch costs the host: statements as a user writes them, on arrays of 16 elements.

``python -m benchmarks.launch`` times each statement by itself, in turns, in nanoseconds of the
calling thread; the kernel's own few nanoseconds are in it. Peers that are installed stand beside.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from statistics import median
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import kernels, launch_peers, numba_peers
from benchmarks.launch_peers import Statement
from benchmarks.measure import machine
from khaljit.extension import NATIVE

ELEMENTS: Final = 16
CALLS: Final = 50_000
SLOW: Final = 1e-6  # seconds of a call from which fewer are enough

C0, C1, C2, C3, C4, C5, C6, C7 = (float(k) for k in range(8))


@kj.jit
def captures_8(
    a: kj.Array1[kj.f32],
    b: kj.Array1[kj.f32],
    c: kj.Array1[kj.f32],
    d: kj.Array1[kj.f32],
    e: kj.Array1[kj.f32],
    f: kj.Array1[kj.f32],
    g: kj.Array1[kj.f32],
    out: kj.Array1[kj.f32],
) -> None:
    """Eight arrays and eight captured numbers."""
    i = kj.global_id(0)
    if i < out.size:
        out[i] = C0 * a[i] + C1 * b[i] + C2 * c[i] + C3 * d[i] + C4 * e[i] + C5 * f[i] + C6 * g[i]
        out[i] += C7


def statements() -> dict[str, dict[str, Statement]]:
    """Per table, what is timed: a statement and its names."""
    arrays = {name: np.arange(ELEMENTS, dtype=np.float32) for name in "abcdefgh"}
    two = {"x": arrays["a"], "y": arrays["b"]}
    kernel, eight = (
        kernels.variant(one, "khaljit") for one in (kernels.launch_2, kernels.launch_8)
    )
    bound = kernel[ELEMENTS].bind(arrays["a"], arrays["b"], 2.0)
    names = {**arrays, **two, "k": kernel, "launch": kernel[ELEMENTS], "bound": bound}
    of_8 = "launch(a, b, c, d, e, f, g, h)"
    device = kj.device("cpu")
    there = {"x": device.zeros(ELEMENTS), "y": device.zeros(ELEMENTS)}
    first: dict[str, Statement] = {
        "k[x.size](x, y, 2.0)": ("k[x.size](x, y, 2.0)", names),
        "launch(x, y, 2.0)": ("launch(x, y, 2.0)", names),
        "launch(x, y, a=2.0)": ("launch(x, y, a=2.0)", names),
        "bound()": ("bound()", names),
        "bound(a=3.0)": ("bound(a=3.0)", names),
        "launch(x, y, 2.0) on khaljit arrays": ("launch(x, y, 2.0)", {**names, **there}),
    }
    second: dict[str, Statement] = {
        of_8: (of_8, {**arrays, "launch": eight[ELEMENTS]}),
        f"{of_8}, 8 captured": (of_8, {**arrays, "launch": captures_8[ELEMENTS]}),
    }
    for label, parallel in (("Numba, serial", False), ("Numba, parallel", True)):
        first[label] = (
            "f(x, y, 2.0)",
            {**two, "f": numba_peers.compiled(numba_peers.launch_2, parallel=parallel)},
        )
        second[label] = (
            "f(a, b, c, d, e, f8, g, h)",
            {
                **arrays,
                "f8": arrays["f"],
                "f": numba_peers.compiled(numba_peers.launch_8, parallel=parallel),
            },
        )
    first.update(launch_peers.installed(ELEMENTS))
    return {"2 arrays and a number": first, "8 arrays": second}


def measure(table: dict[str, Statement], rounds: int) -> dict[str, float]:
    """Median nanoseconds of each statement, in turns."""
    timers = {
        name: timeit.Timer(statement, timer=_clock, globals=dict(names))
        for name, (statement, names) in table.items()
    }
    calls = {name: _enough(timer) for name, timer in timers.items()}
    found: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            found[name].append(timer.timeit(calls[name]) / calls[name] * 1e9)
    return {name: median(times) for name, times in found.items()}


_clock: Callable[[], float] = time.thread_time


def _enough(timer: timeit.Timer) -> int:
    timer.timeit(3)
    return CALLS if timer.timeit(100) / 100 < SLOW else CALLS // 50


def main(rounds: Annotated[int, typer.Option(help="turns of each statement")] = 15) -> None:
    """Measure and print."""
    console = Console(width=120)
    console.print(f"{machine()}, native extension: {NATIVE is not None}", highlight=False)
    for title, table in statements().items():
        shown = Table(title, "ns", "by Numba, serial")
        measured = measure(table, rounds)
        for name, nanoseconds in measured.items():
            ratio = nanoseconds / measured["Numba, serial"]
            shown.add_row(name.replace("[", "\\["), f"{nanoseconds:,.0f}", f"{ratio:.2f}")
        console.print(shown)


if __name__ == "__main__":
    typer.run(main)
