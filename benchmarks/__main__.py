"""``python -m benchmarks``: every workload side by side, in one process and in turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import numba
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import THREADS
from benchmarks.kernels import MODES
from benchmarks.measure import interleaved, machine
from benchmarks.workloads import IMPLEMENTATIONS, PEERS, SIZES, WORKLOADS, Workload

README: Final = Path(__file__).with_name("README.md")
BEGIN: Final = f"<!-- threads: {THREADS}; written by python -m benchmarks --readme -->"
END: Final = "<!-- end -->"
STRICT_PEERS: Final = ("NumPy", "Numba")
WIDTH: Final = 150

HEADINGS: Final = (
    "workload", "unit", *IMPLEMENTATIONS, "strict / best strict peer", "best / best peer",
)  # fmt: skip


def main(
    workloads: Annotated[list[str] | None, typer.Argument(help="by name; all if left out")] = None,
    size: Annotated[str, typer.Option(help=" or ".join(SIZES))] = "full",
    rounds: Annotated[int, typer.Option(help="turns of each implementation")] = 5,
    readme: Annotated[bool, typer.Option(help="write the table into the README")] = False,
) -> None:
    """Measure the workloads and print rates, and ratios to the best peer."""
    unknown = {*(workloads or ()), size} - {*WORKLOADS, *SIZES}
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is none of {', '.join(WORKLOADS)}")
    numba.set_num_threads(THREADS)
    console = Console(width=WIDTH)
    table = Table(*HEADINGS, title=machine())
    rows = []
    with kj.use(kj.device("cpu", threads=THREADS)), console.status("") as status:
        for name in workloads or WORKLOADS:
            status.update(name)
            rows.append(_row(WORKLOADS[name], size, rounds))
            table.add_row(*rows[-1])
    console.print(table)
    if readme:
        _write(rows, size, rounds)


def _row(workload: Workload, size: str, rounds: int) -> Sequence[str]:
    case = workload.case(size)
    for implementation in IMPLEMENTATIONS:
        case.verify(implementation)
    seconds = interleaved({name: case.runner(name) for name in IMPLEMENTATIONS}, rounds)
    rates = {name: case.work / found for name, found in seconds.items()}
    strict = rates["khaljit"] / max(rates[name] for name in STRICT_PEERS)
    best = max(rates[name] for name in MODES) / max(rates[name] for name in PEERS)
    return (
        workload.name,
        workload.unit,
        *(_short(rates[name]) for name in IMPLEMENTATIONS),
        f"{strict:.2f}",
        f"{best:.2f}",
    )


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _write(rows: Sequence[Sequence[str]], size: str, rounds: int) -> None:
    """Put the table between the marks of the README, or behind everything if it has none yet."""
    text = README.read_text()
    if BEGIN not in text:
        text = f"{text}\n## Threads: {THREADS}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    lines = [HEADINGS, ["---"] * 2 + ["--:"] * (len(HEADINGS) - 2), *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    clock = "processor time" if THREADS == 1 else "wall clock"
    note = f"{machine()}. Size {size}, {clock}, median of {rounds} rounds."
    README.write_text(f"{before}{BEGIN}\n\n{note}\n\n{table}\n\n{END}{after}")


if __name__ == "__main__":
    typer.run(main)
