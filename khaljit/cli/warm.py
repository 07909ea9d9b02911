"""``khaljit warm``: compiling ahead of time, for machines that need not be here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from khaljit.backends.cpu.pool import available_threads
from khaljit.cli.console import AsJson, console, print_json
from khaljit.devices import target as target_of
from khaljit.warming import Outcome, Work, collect
from khaljit.warming import warm as warm_all

__all__ = ["warm"]

BAD: Final = ("failed", "missing")
SHOWN: Final = 60  # letters of a specialisation beside the progress bar


def warm(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="manifests (*.json), scripts (*.py) and modules", metavar="MANIFEST|SCRIPT|MODULE"
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="cpu:native, cpu:x86-64-v3, cpu:aarch64-darwin, cuda:sm_90, cuda:ptx, webgpu; "
            "any number of times"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="processes that compile at once; one per processor")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="compile nothing; fail if something is not there")
    ] = False,
    json: AsJson = False,
) -> None:
    """Compile kernels into the cache before anybody runs them. No target needs its device here."""
    work = collect(sources, target or [])
    begun = time.monotonic()
    outcomes = warm_all(work, workers or available_threads(), check=check)
    if not json:
        _print_remarks(work)
        outcomes = (_with_bar if console.is_terminal else _lines)(outcomes, work)
    done = list(outcomes)
    counts = Counter[str](one.state for one in done)
    bad = [one for one in done if one.state in BAD]
    if json:
        print_json(
            {
                "specialisations": len(work),
                **{state: counts[state] for state in ("compiled", "there", *BAD)},
                "seconds": round(time.monotonic() - begun, 3),
                "problems": [
                    {
                        "kernel": one.specialisation.kernel,
                        "signature": one.specialisation.signature,
                        "target": one.target,
                        "state": one.state,
                        "message": one.message,
                    }
                    for one in bad
                ],
            }
        )
    else:
        _print_summary(len(work), counts, bad, time.monotonic() - begun)
    raise typer.Exit(1 if bad else 0)


def _total(work: Iterable[Work]) -> int:
    return sum(len(one.targets) for one in work)


def _print_remarks(work: Iterable[Work]) -> None:
    for target in sorted({target for one in work for target in one.targets}):
        remark = target_of(target).remark
        if remark:
            console.print(f"{target}: {remark}", markup=False)


def _with_bar(outcomes: Iterator[Outcome], work: Sequence[Work]) -> Iterator[Outcome]:
    """For a terminal: which one, how many, how long still."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=_total(work))
        for one in outcomes:
            name = str(one.specialisation)
            name = name if len(name) <= SHOWN else f"{name[: SHOWN - 1]}…"
            progress.update(task, advance=1, description=escape(name))
            yield one


def _lines(outcomes: Iterator[Outcome], work: Sequence[Work]) -> Iterator[Outcome]:
    """For logs: a line each."""
    total = _total(work)
    width, longest = len(str(total)), max(len(target) for one in work for target in one.targets)
    for number, one in enumerate(outcomes, 1):
        print(
            f"[{number:{width}}/{total}] {one.state:8} {one.seconds * 1e3:6.0f} ms  "
            f"{one.target:{longest}}  {one.specialisation}",
            flush=True,
        )
        yield one


def _print_summary(
    specialisations: int, counts: Counter[str], bad: Sequence[Outcome], seconds: float
) -> None:
    if bad:
        print()
    for one in bad:
        message = f": {one.message}" if one.message else ""
        print(f"{one.state}: {one.specialisation} for {one.target}{message}")
    parts = [f"{counts[state]} {state}" for state in ("compiled", "there", *BAD) if counts[state]]
    print(f"{specialisations} specialisations: {', '.join(parts)}; {seconds:.1f} s")
