"""Measures the errors of the math functions on a device, and writes the table of ``docs/math.md``.

    python -m benchmarks.math_accuracy measure                      # the CPU; 100 minutes of a core
    python -m benchmarks.math_accuracy measure --device cuda        # minutes
    python -m benchmarks.math_accuracy measure --device webgpu --inputs 22
    python -m benchmarks.math_accuracy measure sin cos --types f32 --inputs 24
    python -m benchmarks.math_accuracy table                        # writes docs/math.md
    python -m benchmarks.math_accuracy compare cpu cuda             # bit for bit?

f32 functions of one argument see every float unless ``--inputs`` says 2 to which power; the others
see arguments drawn by their number. f32 is judged on the device itself, by khaljit's own functions
of f64; those are judged when the CPU computes them, by the C library's of long double, and larger
errors are searched around the largest. A digest of all results tells whether two devices agree.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

import khaljit as kj
from benchmarks import math_kernels as kernels
from benchmarks.math_judges import Judge, judge_for
from benchmarks.math_search import searched
from khaljit.codegen.math.bounds import bound
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import MATH, Op

RESULTS: Final = Path(__file__).with_name("accuracy")
PAGE: Final = Path(__file__).parent.parent / "docs" / "math.md"
BEGIN: Final = "<!-- written by python -m benchmarks.math_accuracy table -->"
END: Final = "<!-- end -->"
DTYPES: Final = {"f32": f32, "f64": f64}
ALL: Final = 32  # inputs of a function of one f32, as a power of two
DRAWN: Final = 30
SAMPLE: Final = 14
CHUNK: Final = {"cuda": 26, "cpu": 18}  # inputs at a time, as a power of two
CHUNK_ELSEWHERE: Final = 20

app = typer.Typer(help="The errors of the math functions.")


@dataclass(frozen=True)
class Row:
    """What was seen of a function of a dtype.

    Attributes:
        inputs: how many, as a power of two.
        worst: the largest error in ulps, of f64 also of what a search around found; None where
            nobody judged, which is f64 elsewhere than on the CPU.
        at: the arguments of that.
        wrong: how often NaN, an infinity or the sign of a zero was wrong.
        digest: of all results.
        sample: of the results of fewer inputs, which a test computes again.
    """

    inputs: int
    worst: float | None
    at: list[str]
    wrong: int
    digest: str
    sample: str


class Sweep:
    """Runs a function over its inputs, chunk by chunk, and sums up the results.

    Args:
        judge: looks at all of them, if there is one.
    """

    def __init__(
        self, device: Any, op: Op, dtype: DType, chunk: int, judge: Judge | None = None
    ) -> None:
        self.device: Final = device
        self.chunk: Final = chunk
        self.dtype: Final = dtype
        self.judge: Final = judge
        self.every: Final = dtype is f32 and op not in kernels.TWO
        self.apply: Final = kernels.apply(op)
        self.draw: Final = kernels.draw(dtype)
        self.invocations: Final = max(1, chunk >> 8)
        self.sums: Final = judging(device).array(np.zeros((self.invocations, 2), np.uint32))

    def run(self, inputs: int, first: int = 0, of: int = 1) -> None:
        """See 2**inputs of them, at least a chunk's; of their chunks first, first + of, ..."""
        x, y, out = (self.device.empty(self.chunk, self.dtype) for _ in range(3))
        step = (1 << ALL - inputs) | 1 if inputs < ALL else 1
        for start in range(first * self.chunk, 1 << inputs, of * self.chunk):
            if self.every:
                kernels.every[self.chunk](x, start * step & 0xFFFFFFFF, step)
            else:
                self.draw[self.chunk](x, y, start)
            self.apply[self.chunk](x, y, out)
            self._sum_up(x, y, out, start)

    def _sum_up(self, x: Any, y: Any, out: Any, start: int) -> None:
        other = judging(self.device)
        if other is not self.device:
            x, y, out = (other.array(one.numpy()) for one in (x, y, out))
        kernels.summarise[self.invocations](out, start, self.sums)
        if self.judge is not None:
            self.judge.add(x, y, out)


def judging(device: Any) -> Any:
    """Where results are judged: WebGPU's f64 is its driver's, if there is any."""
    return kj.device("cpu") if device.kind == "webgpu" else device


def digest(sweeps: list[Sweep]) -> str:
    """Of all that some sweeps saw."""
    low, high = sum(sweep.sums.numpy().sum(0, dtype=np.uint32) for sweep in sweeps)
    return f"{low:08x}{high:08x}"


def measured(device: Any, op: Op, dtype: DType, inputs: int | None, workers: int) -> Row:
    """One function on one device; threads share its inputs."""
    one = dtype is f32 and op not in kernels.TWO
    power = inputs or (ALL if one else DRAWN)
    chunk = 1 << min(power, CHUNK.get(device.kind, CHUNK_ELSEWHERE))
    few = sample(device, op, dtype)  # and the kernels are compiled, by one thread
    judges = [judge_for(judging(device), op, dtype, chunk) for _ in range(workers)]
    sweeps = [Sweep(device, op, dtype, chunk, judge) for judge in judges]

    def run(first: int) -> None:
        with kj.use(device):
            sweeps[first].run(power, first, workers)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, range(workers)))
        seen = [one for judge in judges if judge is not None for one in judge.verdicts]
        if dtype is f64:
            seen = searched(device, op, seen, pool.map)
    row = Row(power, None, [], 0, digest(sweeps), few)
    if not seen:
        return row
    found = reduce(add, seen)
    at = [found.x, found.y][: 2 if op in kernels.TWO else 1]
    return replace(row, worst=found.worst, at=[x.hex() for x in at], wrong=found.wrong)


def sample(device: Any, op: Op, dtype: DType) -> str:
    """The digest of a few inputs."""
    with kj.use(device):
        sweep = Sweep(device, op, dtype, 1 << SAMPLE)
        sweep.run(SAMPLE)
        return digest([sweep])


def stored(name: str) -> dict[str, Row]:
    """What was measured on a device, by function and dtype; empty if nothing was."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return {}
    return {key: Row(**row) for key, row in json.loads(path.read_text())["rows"].items()}


def bound_of(key: str) -> float:
    """The promise, by function and dtype."""
    name, dtype = key.split()
    return bound(Op(name), DTYPES[dtype])


@app.command()
def measure(
    names: Annotated[list[str] | None, typer.Argument(help="functions; all if left out")] = None,
    device: Annotated[str, typer.Option(help="which one computes")] = "cpu",
    types: Annotated[str, typer.Option(help="f32, f64 or both")] = "f32,f64",
    inputs: Annotated[int | None, typer.Option(help="of a function, as a power of two")] = None,
    workers: Annotated[int | None, typer.Option(help="threads; one a processor of the CPU")] = None,
    out: Annotated[Path | None, typer.Option(help="the file to write or to add to")] = None,
) -> None:
    """Measure functions, print them and write them to a file."""
    found = kj.device(device)
    workers = workers or (os.cpu_count() if found.kind == "cpu" else None) or 1
    path = out or RESULTS / f"{found.kind}.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text())["rows"] if path.exists() else {}
    for dtype in types.split(","):
        for name in names or sorted(op.value for op in MATH):
            row = measured(found, Op(name), DTYPES[dtype], inputs, workers)
            key = f"{name} {dtype}"
            known[key] = asdict(row)
            worst = "" if row.worst is None else f"{row.worst:8.4f}"
            where = ", ".join(f"{float.fromhex(x):.9g}" for x in row.at)
            print(f"{key:12} 2^{row.inputs} {row.digest} {worst:8} wrong {row.wrong}  {where}")
            text = {"device": found.name, "rows": dict(sorted(known.items()))}
            path.write_text(json.dumps(text, indent=1) + "\n")


@app.command()
def compare(first: str, second: str) -> None:
    """Say which functions gave other bits on one device than on another."""
    left, right = stored(first), stored(second)
    both = [key for key in left if key in right and left[key].inputs == right[key].inputs]
    differ = [key for key in both if left[key].digest != right[key].digest]
    print(f"{len(both)} functions over the same inputs; {len(differ)} differ: {', '.join(differ)}")
    if differ:
        raise typer.Exit(1)


@app.command()
def table() -> None:
    """Write the table into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END, 1)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{rendered()}\n\n{END}{after}")


def rendered() -> str:
    """The table of bounds and worst errors."""
    cpu, cuda, webgpu = (stored(name) for name in ("cpu", "cuda", "webgpu"))
    head = ["function", "f32 bound", "worst", "at", "CUDA", "WebGPU worst"]
    head += ["f64 bound", "worst", "at", "CUDA"]
    lines = [head, ["---"] + ["--:"] * (len(head) - 1)]
    for name in sorted(op.value for op in MATH):
        row = [name]
        for dtype in DTYPES:
            key = f"{name} {dtype}"
            seen = cpu[key]
            row += [f"{bound_of(key):g}", f"{seen.worst:.3f}", _places(seen.at)]
            row.append(_agreement(seen, cuda.get(key)))
            if dtype == "f32":
                other = webgpu.get(key)
                row.append("" if other is None else f"{other.worst:.3f}")
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _places(at: list[str]) -> str:
    return ", ".join(f"{float.fromhex(x):.6g}" for x in at)


def _agreement(cpu: Row, cuda: Row | None) -> str:
    if cuda is None or cuda.inputs != cpu.inputs:
        return "not run"
    return "same bits" if cuda.digest == cpu.digest else "differs"


if __name__ == "__main__":
    app()
