"""Measures the errors of the math functions on a device, and writes the table of ``docs/math.md``.

    python -m benchmarks.math_accuracy measure                      # the CPU; half an hour
    python -m benchmarks.math_accuracy measure --device cuda        # minutes
    python -m benchmarks.math_accuracy measure --device webgpu --inputs 22
    python -m benchmarks.math_accuracy measure sin cos --types f32 --inputs 24
    python -m benchmarks.math_accuracy table                        # writes docs/math.md
    python -m benchmarks.math_accuracy compare cpu cuda             # bit for bit?

f32 functions of one argument see every float unless ``--inputs`` says 2 to which power; the others
see arguments drawn by their number. f32 is judged on the device itself, by khaljit's own functions
of f64; those are judged on the host against long double and mpmath, a sample of them. A digest of
all results tells whether two devices agree.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

import khaljit as kj
from benchmarks import math_kernels as kernels
from benchmarks.math_reference import errors
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
SEEN: Final = 26  # of f64, by the host
HOST_CHUNK: Final = 20
CHUNK: Final = {"cuda": 26}  # inputs at a time, as a power of two
CHUNK_ELSEWHERE: Final = 20

app = typer.Typer(help="The errors of the math functions.")


@dataclass(frozen=True)
class Row:
    """What was seen of a function of a dtype.

    Attributes:
        inputs: how many, as a power of two.
        worst: the largest error in ulps; of f64 among those inputs that the host looked at, and
            None where it looked at none.
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
    """Runs a function over its inputs, chunk by chunk, and keeps what sums it up."""

    def __init__(self, device: Any, op: Op, dtype: DType, chunk: int) -> None:
        self.device: Final = device
        self.op: Final = op
        self.dtype: Final = dtype
        self.chunk: Final = chunk
        self.apply: Final = kernels.apply(op)
        self.draw: Final = kernels.draw(dtype)
        self.judge: Final = kernels.judge(op)
        # WebGPU's f64 is its driver's, if there is any.
        self.apart: Final = device.kind == "webgpu"
        self.judging: Final = kj.device("cpu") if self.apart else device
        self.invocations: Final = max(1, chunk >> 8)
        self.worst: Any = self._zeros(np.float32, 4)
        self.sums: Any = self._zeros(np.uint32, 2)

    def _zeros(self, kind: Any, columns: int) -> Any:
        return self.judging.array(np.zeros((self.invocations, columns), kind))

    def run(self, inputs: int) -> None:
        """See 2**inputs of them, at least a chunk's."""
        x, y, out, wrong = (self.device.empty(self.chunk, self.dtype) for _ in range(4))
        every = self.dtype is f32 and self.op not in kernels.TWO
        step = (1 << ALL - inputs) | 1 if inputs < ALL else 1
        for start in range(0, 1 << inputs, self.chunk):
            if every:
                kernels.every[self.chunk](x, start * step & 0xFFFFFFFF, step)
            else:
                self.draw[self.chunk](x, y, start)
            self.apply[self.chunk](x, y, out)
            self._sum_up(x, y, out, wrong, start)

    def _sum_up(self, x: Any, y: Any, out: Any, wrong: Any, start: int) -> None:
        if self.apart:
            x, y, out = (self.judging.array(one.numpy()) for one in (x, y, out))
            wrong = self.judging.empty(self.chunk, self.dtype)
        kernels.summarise[self.invocations](out, start, self.sums)
        if self.dtype is f32:
            self.judge[self.chunk](x, y, out, wrong)
            kernels.largest[self.invocations](x, y, wrong, self.worst)

    @property
    def digest(self) -> str:
        low, high = self.sums.numpy().sum(0, dtype=np.uint32)
        return f"{low:08x}{high:08x}"

    def found(self) -> tuple[float, list[str], int]:
        """The worst error, where, and how many results were wrong."""
        worst = self.worst.numpy()
        error, *where = worst[worst[:, 0].argmax()].tolist()[:3]
        return error, self.written(where), int(worst[:, 3].sum())

    def written(self, where: list[float]) -> list[str]:
        return [float(x).hex() for x in where[: 2 if self.op in kernels.TWO else 1]]

    def seen_by_host(self, power: int) -> tuple[float, list[str], int]:
        """The same of the first 2**power inputs of f64."""
        size = 1 << min(power, HOST_CHUNK)
        x, y, out = (self.device.empty(size, self.dtype) for _ in range(3))
        most, at, wrong = 0.0, [0.0, 0.0], 0
        for start in range(0, 1 << power, size):
            self.draw[size](x, y, start)
            self.apply[size](x, y, out)
            args = (x.numpy(), y.numpy()) if self.op in kernels.TWO else (x.numpy(),)
            off, looked_at, more = errors(self.op, args, out.numpy())
            wrong += more
            place = int(off.argmax())
            if off[place] > most:
                most, at = float(off[place]), [float(a[place]) for a in looked_at]
        return most, self.written(at), wrong


def measured(device: Any, op: Op, dtype: DType, inputs: int | None) -> Row:
    """One function on one device."""
    one = dtype is f32 and op not in kernels.TWO
    power = inputs or (ALL if one else DRAWN)
    chunk = 1 << min(power, CHUNK.get(device.kind, CHUNK_ELSEWHERE))
    with kj.use(device):
        sweep = Sweep(device, op, dtype, chunk)
        sweep.run(power)
        if dtype is f32:
            worst, at, wrong = sweep.found()
        elif device.kind == "cpu":
            worst, at, wrong = sweep.seen_by_host(min(power, SEEN))
        else:
            worst, at, wrong = None, [], 0
        return Row(power, worst, at, wrong, sweep.digest, sample(device, op, dtype))


def sample(device: Any, op: Op, dtype: DType) -> str:
    """The digest of a few inputs."""
    with kj.use(device):
        sweep = Sweep(device, op, dtype, 1 << SAMPLE)
        sweep.run(SAMPLE)
        return sweep.digest


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
    out: Annotated[Path | None, typer.Option(help="the file to write or to add to")] = None,
) -> None:
    """Measure functions, print them and write them to a file."""
    found = kj.device(device)
    path = out or RESULTS / f"{found.kind}.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text())["rows"] if path.exists() else {}
    for dtype in types.split(","):
        for name in names or sorted(op.value for op in MATH):
            row = measured(found, Op(name), DTYPES[dtype], inputs)
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
