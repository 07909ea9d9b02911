"""What is measured: each workload's data, its implementations, and the right results in f64.

An implementation is run through a `Case`: a workload with data of one size. `Case.verify` runs it
once and compares with the reference; `Case.runner` gives what the clock is put around. Results go
to arrays that exist before, for everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

import khaljit as kj
from benchmarks import kernels, numba_peers, numpy_peers, scipy_peers
from benchmarks.constants import BINS
from benchmarks.references import (
    black_scholes_erf,
    black_scholes_polynomial,
    blur,
    histogram,
    mandelbrot,
    matmul,
    nbody_arrays,
    nbody_vec3,
    saxpy,
    stencil,
    total,
)

__all__ = ["IMPLEMENTATIONS", "SIZES", "WORKLOADS", "Case", "Workload"]

Array = np.ndarray[Any, Any]
Grid = int | tuple[int, int] | kj.Workgroups
Reference = Callable[..., Sequence[Array]]

SIZES: Final = ("small", "full")
PEERS: Final = ("NumPy", *numba_peers.MODES)
IMPLEMENTATIONS: Final = (*PEERS, *kernels.MODES)

ITERATIONS: Final = 200
FACTOR: Final = np.float32(1.5)
HISTOGRAMS: Final = 64  # workgroups, each with its own counts
TAPS: Final = 17  # of the blur
PAIR_COST: Final = 20  # floating-point operations of a pair of bodies, as they are usually counted


@final
@dataclass(frozen=True)
class Workload:
    """One thing to compute.

    Attributes:
        unit: of the rate, and ``work``: how many of it a size is.
        sizes: of the data, small and full.
        make: the data of a size: arguments, the outputs last.
        outputs: how many arguments are outputs.
        scalars: arguments after them.
        grid: invocations for a size.
        reference: gives the outputs in f64 from inputs and ``rows``, for those rows only.
        tolerance: of the difference, as a part of the largest value; of counts, how many of them
            may differ.
        rows: how many rows of the outputs are compared; all if None.
        accumulates: whether outputs are added to, and therefore cleared before each run.
    """

    name: str
    unit: str
    work: Callable[[int], float]
    sizes: tuple[int, int]
    make: Callable[[int, np.random.Generator], tuple[Array, ...]]
    outputs: int
    grid: Callable[[int], Grid]
    kernel: Callable[..., None]
    numba: Callable[..., None]
    numpy: Callable[..., None]
    reference: Reference
    tolerance: float = 1e-5
    scalars: tuple[Any, ...] = ()
    rows: int | None = None
    accumulates: bool = False

    def case(self, size: str) -> Case:
        """The workload with data of a size."""
        count = self.sizes[SIZES.index(size)]
        return Case(self, count, self.make(count, np.random.default_rng(1)))


@final
@dataclass(frozen=True)
class Case:
    """A workload with its data."""

    workload: Workload
    count: int
    arrays: tuple[Array, ...]
    _before: list[Array] = field(default_factory=list)

    @property
    def work(self) -> float:
        """How much a run does, in the workload's unit times a second."""
        return self.workload.work(self.count)

    @property
    def outputs(self) -> tuple[Array, ...]:
        return self.arrays[len(self.arrays) - self.workload.outputs :]

    def runner(self, implementation: str) -> Callable[[], None]:
        """What computes the outputs once."""
        run = self._function(implementation)
        arguments = (*self.arrays, *self.workload.scalars)
        if not self.workload.accumulates:
            return lambda: run(*arguments)
        outputs = self.outputs

        def clear_and_run() -> None:
            for output in outputs:
                output[...] = 0
            run(*arguments)

        return clear_and_run

    def _function(self, implementation: str) -> Callable[..., None]:
        workload = self.workload
        if implementation == "NumPy":
            return workload.numpy
        if implementation in numba_peers.MODES:
            found: Callable[..., None] = numba_peers.compiled(workload.numba, implementation)
            return found
        launch: Callable[..., None] = kernels.variant(workload.kernel, implementation)[
            workload.grid(self.count)
        ]
        return launch

    def verify(self, implementation: str) -> None:
        """Run once and compare; AssertionError if the results are wrong."""
        before = [array.copy() for array in self.outputs]
        step = 1 if self.workload.rows is None else max(1, self.count // self.workload.rows)
        rows = slice(None, None, step)
        expected = self.workload.reference(self.arrays, rows)
        self.runner(implementation)()
        for got, right in zip(self.outputs, expected, strict=True):
            difference = _difference(got[rows].astype(np.float64), right, got.dtype)
            assert difference <= self.workload.tolerance, (
                f"{self.workload.name} by {implementation} is off by {difference:.2e}"
            )
        for output, old in zip(self.outputs, before, strict=True):
            output[...] = old


def _difference(got: Array, right: Array, dtype: np.dtype[Any]) -> float:
    """The largest difference as a part of the largest value; of integers the share that differs."""
    if dtype.kind in "iu":
        return float(np.mean(got != right))
    return float(np.abs(got - right).max() / np.abs(right).max())


# Data.


def _floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.random(shape, np.float32)


def _saxpy(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    return _floats(rng, count), _floats(rng, count)


def _matrices(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    shape = (count, count)
    return _floats(rng, *shape), _floats(rng, *shape), np.zeros(shape, np.float32)


def _vectors(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    return _floats(rng, count, 3), np.zeros((count, 3), np.float32)


def _coordinates(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    inputs = (_floats(rng, count) for _ in range(3))
    return (*inputs, *(np.zeros(count, np.float32) for _ in range(3)))


def _image(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    return (np.zeros((count, count), np.int32),)


def _picture(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    return _floats(rng, count, count), np.zeros((count, count), np.float32)


def _blurred(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    picture, out = _picture(count, rng)
    return picture, _floats(rng, TAPS) / np.float32(TAPS), out


def _numbers(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    return _floats(rng, count), np.zeros(1, np.float32)


def _levels(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    levels = rng.integers(0, BINS, count, np.uint8)
    return levels, np.zeros(BINS, np.uint32)


def _options(count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    price, strike = 5 + 25 * _floats(rng, count), 1 + 99 * _floats(rng, count)
    years = np.float32(0.25) + np.float32(9.75) * _floats(rng, count)
    return price, strike, years, np.zeros(count, np.float32), np.zeros(count, np.float32)


def _each(count: int) -> Grid:
    return count


def _square(count: int) -> Grid:
    return count, count


def _blocks(count: int) -> Grid:
    return kj.Workgroups(-(-count // kernels.BLOCK))


def _shared(count: int) -> Grid:
    return HISTOGRAMS * BINS


WORKLOADS: Final[dict[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload(
            name="saxpy",
            unit="GB/s",
            work=lambda n: 12e-9 * n,
            sizes=(100_000, 50_000_000),
            make=_saxpy,
            outputs=1,
            scalars=(FACTOR,),
            grid=_each,
            kernel=kernels.saxpy,
            numba=numba_peers.saxpy,
            numpy=numpy_peers.saxpy,
            reference=lambda arrays, rows: saxpy(arrays, rows, FACTOR),
            rows=100_000,
        ),
        Workload(
            name="matmul, naive",
            unit="GFLOP/s",
            work=lambda n: 2e-9 * n**3,
            sizes=(128, 512),
            make=_matrices,
            outputs=1,
            grid=_square,
            kernel=kernels.matmul,
            numba=numba_peers.matmul,
            numpy=numpy_peers.matmul,
            reference=matmul,
        ),
        Workload(
            name="matmul, tiled",
            unit="GFLOP/s",
            work=lambda n: 2e-9 * n**3,
            sizes=(128, 512),
            make=_matrices,
            outputs=1,
            grid=_square,
            kernel=kernels.matmul_tiled,
            numba=numba_peers.matmul_tiled,
            numpy=numpy_peers.matmul,
            reference=matmul,
        ),
        Workload(
            name="n-body, vec3",
            unit="GFLOP/s",
            work=lambda n: 1e-9 * PAIR_COST * n**2,
            sizes=(1024, 8192),
            make=_vectors,
            outputs=1,
            grid=_each,
            kernel=kernels.nbody_vec3,
            numba=numba_peers.nbody_vec3,
            numpy=numpy_peers.nbody_vec3,
            reference=nbody_vec3,
            rows=256,
            tolerance=1e-4,
        ),
        Workload(
            name="n-body, arrays",
            unit="GFLOP/s",
            work=lambda n: 1e-9 * PAIR_COST * n**2,
            sizes=(1024, 8192),
            make=_coordinates,
            outputs=3,
            grid=_each,
            kernel=kernels.nbody_arrays,
            numba=numba_peers.nbody_arrays,
            numpy=numpy_peers.nbody_arrays,
            reference=nbody_arrays,
            rows=256,
            tolerance=1e-4,
        ),
        Workload(
            name="mandelbrot",
            unit="Mpixel/s",
            work=lambda n: 1e-6 * n**2,
            sizes=(256, 2048),
            make=_image,
            outputs=1,
            scalars=(ITERATIONS,),
            grid=_square,
            kernel=kernels.mandelbrot,
            numba=numba_peers.mandelbrot,
            numpy=numpy_peers.mandelbrot,
            reference=lambda arrays, rows: mandelbrot(arrays, rows, ITERATIONS),
            rows=64,
            tolerance=0.01,  # near the set's edge f32 and f64 escape at other iterations
        ),
        Workload(
            name="stencil",
            unit="Mpixel/s",
            work=lambda n: 1e-6 * n**2,
            sizes=(256, 4096),
            make=_picture,
            outputs=1,
            grid=_square,
            kernel=kernels.stencil,
            numba=numba_peers.stencil,
            numpy=numpy_peers.stencil,
            reference=stencil,
            rows=64,
        ),
        Workload(
            name="blur",
            unit="Mpixel/s",
            work=lambda n: 1e-6 * n**2,
            sizes=(256, 4096),
            make=_blurred,
            outputs=1,
            grid=_square,
            kernel=kernels.blur,
            numba=numba_peers.blur,
            numpy=numpy_peers.blur,
            reference=blur,
            rows=64,
        ),
        Workload(
            name="sum",
            unit="GB/s",
            work=lambda n: 4e-9 * n,
            sizes=(100_000, 50_000_000),
            make=_numbers,
            outputs=1,
            grid=_blocks,
            kernel=kernels.total,
            numba=numba_peers.total,
            numpy=numpy_peers.total,
            reference=total,
            accumulates=True,
        ),
        Workload(
            name="histogram",
            unit="Melem/s",
            work=lambda n: 1e-6 * n,
            sizes=(100_000, 50_000_000),
            make=_levels,
            outputs=1,
            grid=_shared,
            kernel=kernels.histogram,
            numba=numba_peers.histogram,
            numpy=numpy_peers.histogram,
            reference=histogram,
            tolerance=0,
            accumulates=True,
        ),
        Workload(
            name="Black-Scholes, erf",
            unit="Moption/s",
            work=lambda n: 1e-6 * n,
            sizes=(100_000, 10_000_000),
            make=_options,
            outputs=2,
            grid=_each,
            kernel=kernels.black_scholes_erf,
            numba=numba_peers.black_scholes_erf,
            numpy=scipy_peers.black_scholes_erf,
            reference=black_scholes_erf,
            rows=100_000,
        ),
        Workload(
            name="Black-Scholes, polynomial",
            unit="Moption/s",
            work=lambda n: 1e-6 * n,
            sizes=(100_000, 10_000_000),
            make=_options,
            outputs=2,
            grid=_each,
            kernel=kernels.black_scholes_polynomial,
            numba=numba_peers.black_scholes_polynomial,
            numpy=numpy_peers.black_scholes_polynomial,
            reference=black_scholes_polynomial,
            rows=100_000,
        ),
    )
}
