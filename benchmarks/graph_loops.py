"""Loops in graphs: what a turn costs, beside a loop of the host that reads the flag.

``python -m benchmarks.graph_loops [--device cpu|webgpu|cuda]`` prints a table: the body is one
kernel of one invocation, which counts the flag down.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from khaljit.backends.base import Device

__all__ = ["costs"]

TURNS: Final = {"cpu": 100_000, "webgpu": 200, "cuda": 10_000}
HOST_TURNS: Final = 200


@kj.jit
def lower(left: kj.Array1[kj.i32]) -> None:
    """One turn less."""
    left[0] -= 1


def costs(device: Device, rounds: int) -> dict[str, float]:
    """Seconds per turn of each side, until all is done: medians."""
    left, turns = device.zeros(1, kj.i32), TURNS[device.kind]
    with device.capture() as graph:
        left.fill(graph.param("turns", kj.i32))
        with graph.while_(left):
            lower[1](left)
    with device.capture() as branches:
        left.fill(1)
        for _ in range(HOST_TURNS):
            with branches.if_(left):
                lower[1](left)
            left.fill(1)

    def by_host() -> None:
        left.fill(HOST_TURNS)
        while left.numpy()[0]:
            lower[1](left)

    sides = {
        "a loop of the host's": (by_host, HOST_TURNS),
        "graph.while_, 10 turns": (lambda: graph.launch(turns=10), 10),
        f"graph.while_, {turns:,} turns": (lambda: graph.launch(turns=turns), turns),
        "graph.if_ and a fill": (branches.launch, HOST_TURNS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, (run, count) in sides.items():
            start = time.perf_counter()
            run()
            device.synchronize()
            if number:  # the first is to warm up
                seconds[name].append((time.perf_counter() - start) / count)
    return {name: median(found) for name, found in seconds.items()}


def main(
    device: Annotated[str, typer.Option(help="cpu, webgpu or cuda")] = "cpu",
    rounds: Annotated[int, typer.Option(help="launches of each side")] = 9,
) -> None:
    """Measure and print."""
    found = kj.device(device)
    table = Table(f"a turn on {found}", "us")
    for name, seconds in costs(found, rounds).items():
        table.add_row(name, f"{seconds * 1e6:,.3f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
