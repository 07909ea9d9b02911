"""``python -m benchmarks.math_speed``: math functions of f32 on one core, beside NumPy and Numba.

    python -m venv svml && svml/bin/pip install numba==0.61.2 icc_rt
    python -m benchmarks.math_speed --svml svml/bin/python --readme

10^7 results from arrays that stay in the cache, gone over again and again; in turns, the
processor's time, medians. Numba with SVML is another Python's (see ``svml_peer.py``).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer

import khaljit as kj
from benchmarks.measure import machine

README: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- written by python -m benchmarks.math_speed --readme -->"
END: Final = "<!-- end of math_speed -->"
COUNT: Final = 16384
TIMES: Final = 610
FUNCTIONS: Final = ("exp", "log", "sin", "cos", "tan", "tanh", "erf", "pow")
NUMPY: Final = {"pow": "power", "erf": None}
Seconds = Callable[[], float]


def arguments() -> tuple[Any, Any, Any]:
    """x, y and room for results."""
    rng = np.random.default_rng(1)
    x = rng.uniform(0.1, 9, COUNT).astype(np.float32)
    return x, rng.uniform(-3, 3, COUNT).astype(np.float32), np.empty_like(x)


def own(name: str, fast: bool, x: Any, y: Any, out: Any) -> Callable[[], None]:
    """khaljit: one launch goes over the arrays as often as is asked."""
    function = getattr(kj, name)
    two = name == "pow"

    @kj.jit(fastmath=fast)
    def kernel(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = function(x[i], y[i]) if two else function(x[i])

    return lambda: kernel[COUNT, TIMES](x, y, out)


def numpys(name: str, x: Any, y: Any, out: Any) -> Callable[[], None] | None:
    """NumPy: as many calls."""
    called = NUMPY.get(name, name)
    if called is None:
        return None
    function = getattr(np, called)
    args = (x, y) if name == "pow" else (x,)

    def run() -> None:
        for _ in range(TIMES):
            function(*args, out=out)

    return run


def timed(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


class Svml:
    """Numba in another Python."""

    def __init__(self, python: Path) -> None:
        library = f"{python.parent.parent}/lib"
        self.process: Final = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("svml_peer.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": library, "NUMBA_NUM_THREADS": "1"},
        )
        self.version, _, used = self._line().rpartition(" ")
        if used != "True":
            raise typer.BadParameter(f"{self.version} of {python} does not use SVML")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def seconds(self, name: str, mode: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {mode} {COUNT} {TIMES}\n")
        self.process.stdin.flush()
        return float(self._line())


def implementations(name: str, svml: Svml | None) -> dict[str, Seconds]:
    """What is timed, by its name in the table."""
    found: dict[str, Seconds] = {}
    for title, run in (
        ("khaljit", own(name, False, *arguments())),
        ("khaljit fastmath", own(name, True, *arguments())),
        ("NumPy", numpys(name, *arguments())),
    ):
        if run is not None:
            run()
            found[title] = partial(timed, run)
    if svml is not None:
        found["Numba, SVML"] = lambda: svml.seconds(name, "strict")
        found["Numba, SVML fastmath"] = lambda: svml.seconds(name, "fast")
    return found


def rows(svml: Svml | None, rounds: int) -> list[list[str]]:
    """The table: nanoseconds a result, and the best strict peer's by khaljit's."""
    titles = ["khaljit", "NumPy", "Numba, SVML", "khaljit fastmath", "Numba, SVML fastmath"]
    table = [["f32", *titles, "best strict peer / khaljit"]]
    with kj.use(kj.device("cpu", threads=1)):
        for name in FUNCTIONS:
            runners = implementations(name, svml)
            seconds: dict[str, list[float]] = {title: [] for title in runners}
            for _ in range(rounds):
                for title, run in runners.items():
                    seconds[title].append(run())
            taken = {t: 1e9 * median(s) / (COUNT * TIMES) for t, s in seconds.items()}
            peers = [taken[title] for title in titles[1:3] if title in taken]
            cells = [f"{taken[title]:.3f}" if title in taken else "" for title in titles]
            table.append([name, *cells, f"{min(peers) / taken['khaljit']:.2f}" if peers else ""])
    return table


def main(
    svml: Annotated[Path | None, typer.Option(help="a Python whose Numba uses SVML")] = None,
    rounds: Annotated[int, typer.Option(help="turns of each implementation")] = 9,
    readme: Annotated[bool, typer.Option(help="write the table into the README")] = False,
) -> None:
    """Measure, print, and write."""
    peer = Svml(svml) if svml is not None else None
    table = rows(peer, rounds)
    table.insert(1, ["---"] + ["--:"] * (len(table[0]) - 1))
    lines = "\n".join("| " + " | ".join(row) + " |" for row in table)
    note = f"{machine()}{f'; SVML by {peer.version}' if peer else ''}. Nanoseconds a result."
    print(note, lines, sep="\n\n")
    if readme:
        before, rest = README.read_text().split(BEGIN)
        after = rest.split(END, 1)[1]
        README.write_text(f"{before}{BEGIN}\n\n{note}\n\n{lines}\n\n{END}{after}")


if __name__ == "__main__":
    typer.run(main)
