"""Runs a great number of generated programs once: ``python -m tests.campaign --programs 20000``.

Each program runs in plain Python where that is possible, and on every column that is asked for.
What they do not agree about is printed with the program's source, and makes the command fail.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_CHUNK: Final = 20  # programs that a worker takes at a time


def judge(seeds: range, columns: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """What became of some programs: the seed, the kind of program, what is wrong with it."""
    import khaljit as kj
    from tests.agreement import verdict
    from tests.generate import generate

    devices = [kj.device(name) for name in columns]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            program = generate(seed)
            try:
                wrong = verdict(program, Path(folder), devices) or ""
            except Exception:
                wrong = traceback.format_exc()
            found.append((seed, "plain" if program.plain else program.defect or "devices", wrong))
    return found


def _task(task: tuple[range, tuple[str, ...]]) -> list[tuple[int, str, str]]:
    return judge(*task)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=20_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first program's number")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--columns", default="interpreter,cpu", help="devices, first the judge")
    chosen = parser.parse_args(arguments)
    end = chosen.first + chosen.programs
    starts = range(chosen.first, end, _CHUNK)
    columns = tuple(chosen.columns.split(","))
    tasks = [(range(start, min(start + _CHUNK, end)), columns) for start in starts]
    counts: Counter[str] = Counter()
    wrong: list[int] = []
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KHALJIT_CACHE_DIR"] = cache
        with context.Pool(chosen.workers, maxtasksperchild=20) as pool:
            for done, results in enumerate(pool.imap_unordered(_task, tasks), 1):
                for seed, kind, message in results:
                    counts[kind] += 1
                    if message:
                        wrong.append(seed)
                        _show(seed, message)
                if done % 10 == 0 or done == len(tasks):
                    _progress(counts, wrong, time.monotonic() - began)
    return 1 if wrong else 0


def _show(seed: int, message: str) -> None:
    from tests.generate import generate

    program = generate(seed)
    print(f"program {seed}, grid {program.grid}, {program.scalars}\n{program.source}\n{message}")
    sys.stdout.flush()


def _progress(counts: Counter[str], wrong: Sequence[int], seconds: float) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{counts.total()} programs in {seconds:.0f} s: {len(wrong)} disagree ({kinds})")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
