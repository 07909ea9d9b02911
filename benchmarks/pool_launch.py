"""What sharing a launch with the pool costs on the CPU: ``python -m benchmarks.pool_launch``.

A kernel of even work runs on one thread and on several, from the least work that is shared. What a
launch costs above the work is the time on several threads less the part of one; it means something
where as many cores are idle. The quickest of many launches are shown, since a core that is taken
by something else says nothing of the pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from khaljit.extension import NATIVE

LAUNCHES: Final = 2000
SIZES: Final = (2_000, 4_000, 8_000, 16_000, 64_000)
QUANTILES: Final = (0.0, 0.05, 0.25, 0.5)


@kj.jit
def work(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32]) -> None:
    """Some hundred operations an element."""
    i = kj.global_id(0)
    if i < y.size:
        total = x[i]
        for _ in kj.unroll(range(60)):
            total = total * 0.999 + 0.5
        y[i] = total


def _times(run: Callable[[], Any], launches: int) -> list[float]:
    """Microseconds of each launch, the quickest first."""
    found = []
    for _ in range(launches):
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e6)
    return sorted(found)


def main(threads: Annotated[int, typer.Option(help="that share a launch")] = 2) -> None:
    """Measure and print."""
    console = Console(width=120)
    console.print(
        f"native extension: {NATIVE is not None}; quickest, then quantiles {QUANTILES[1:]}"
    )
    table = Table("elements", "1 thread, us", f"{threads} threads, us", "above its part, us")
    for size in SIZES:
        columns = []
        for count in (1, threads):
            device = kj.device("cpu", threads=count)
            x, y = device.array(np.ones(size, np.float32)), device.zeros(size)
            launch = work[size]
            for _ in range(10):
                launch(x, y)
            found = _times(lambda: launch(x, y), LAUNCHES)  # noqa: B023
            columns.append([found[int(share * (LAUNCHES - 1))] for share in QUANTILES])
        alone, shared = columns
        above = [two - one / threads for one, two in zip(alone, shared, strict=True)]
        table.add_row(
            str(size), *("  ".join(f"{one:.1f}" for one in row) for row in (*columns, above))
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
