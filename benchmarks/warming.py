"""``python -m benchmarks.warming``: what more workers gain ``khaljit warm``.

200 specialisations of the suites' kernels for four targets are compiled into empty caches, by one
worker and by several, in turns; whole processes are timed.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

import khaljit as kj
from benchmarks import kernels
from khaljit.manifest import Manifest, Specialisation

__all__ = ["main"]

COUNT: Final = 200
TARGETS: Final = ("cpu:x86-64-v3", "cpu:x86-64-v4", "cuda:sm_90", "webgpu")
SIGNATURES: Final = {
    "saxpy": "f32[n], f32[n], f32",
    "matmul": "f32[n, m], f32[n, m], f32[n, m]",
    "nbody_vec3": "vec3[n], vec3[n]",
    "nbody_arrays": "f32[n], f32[n], f32[n], f32[n], f32[n], f32[n]",
    "mandelbrot": "i32[:, :], i32",
    "black_scholes_erf": "f32[n], f32[n], f32[n], f32[n], f32[n]",
    "black_scholes_polynomial": "f32[n], f32[n], f32[n], f32[n], f32[n]",
    "launch_2": "f32[n], f32[n], f32",
    "launch_8": "f32[n], f32[n], f32[n], f32[n], f32[n], f32[n], f32[n], f32[n]",
}

saxpy = kj.jit(kernels.saxpy)
matmul = kj.jit(kernels.matmul)
nbody_vec3 = kj.jit(kernels.nbody_vec3)
nbody_arrays = kj.jit(kernels.nbody_arrays)
mandelbrot = kj.jit(kernels.mandelbrot)
black_scholes_erf = kj.jit(kernels.black_scholes_erf)
black_scholes_polynomial = kj.jit(kernels.black_scholes_polynomial)
launch_2 = kj.jit(kernels.launch_2)
launch_8 = kj.jit(kernels.launch_8)


def manifest() -> Manifest:
    """The specialisations: each kernel with many options."""
    sizes = (None, [32, 1, 1], [64, 1, 1], [128, 1, 1], [256, 1, 1])
    flags = (False, True)
    made = Manifest()
    for size, fast, unchecked, plain, (name, signature) in itertools.product(
        sizes, flags, flags, flags, SIGNATURES.items()
    ):
        options: dict[str, object] = {"fastmath": fast, "unchecked": unchecked, "contract": plain}
        if size is not None:
            options["workgroup"] = size
        if len(made.targets) < COUNT:
            one = Specialisation.of(f"benchmarks.warming:{name}", signature, options)
            made.targets[one] = set(TARGETS)
    return made


def seconds(folder: Path, workers: int) -> float:
    """How long ``khaljit warm`` takes with an empty cache."""
    environment = {**os.environ, "KHALJIT_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
    command = [sys.executable, "-m", "khaljit", "warm", str(folder / "manifest.json"), "--json"]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, "--workers", str(workers)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    taken = time.perf_counter() - begun
    assert json.loads(done.stdout)["compiled"] == COUNT * len(TARGETS)
    return taken


def main(
    workers: Annotated[int, typer.Option(help="workers to compare with one")] = 2,
    rounds: Annotated[int, typer.Option(help="turns of each")] = 3,
) -> None:
    """Time one worker and several in turns, and print the ratio."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest().write(folder / "manifest.json")
        ratios = []
        for _ in range(rounds):
            one, many = seconds(folder, 1), seconds(folder, workers)
            ratios.append(one / many)
            print(f"1 worker {one:.1f} s, {workers} workers {many:.1f} s: {one / many:.2f}")
        print(f"median {median(ratios):.2f}")


if __name__ == "__main__":
    typer.run(main)
