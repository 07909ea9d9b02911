"""Random kernels on the CPU, against the interpreter: control flow, masks, barriers, spills."""

from __future__ import annotations

import random

import numpy as np
import pytest

from khaljit.tracer import convergence
from khaljit.tracer.interpret import interpret
from khaljit.tracer.verify import verify
from tests.random_kernels import COUNTERS, INPUTS, random_kernel
from tests.running import compile_trace, levels_here

Shape = tuple[int, int, int]

ALONE: list[Shape | None] = [None, None, None, (8, 1, 1), (8, 8, 1), (3, 1, 1), (64, 2, 1)]
TOGETHER: list[Shape] = [
    (16, 1, 1),
    (8, 2, 1),
    (32, 2, 1),
    (64, 1, 1),
    (4, 3, 2),
    (128, 1, 1),
    (6, 2, 1),
    (96, 1, 1),
    (256, 1, 1),
    (3, 5, 1),
]


def chosen_lanes(rng: random.Random, workgroup: Shape | None) -> tuple[int, int, int] | None:
    """Lanes of a vector, vectors of a row, and rows, as they fit a workgroup; or what suits it."""
    if rng.random() < 0.3:
        return None
    across, rows = (64, 4) if workgroup is None else (extent & -extent for extent in workgroup[:2])
    per_part = min(across, rng.choice((2, 4, 8, 16)))
    return (
        per_part,
        rng.choice([k for k in (1, 2, 4) if k * per_part <= across]),
        rng.choice([k for k in (1, 2, 4) if k <= rows]),
    )


def check(seed: int, *, barriers: bool) -> None:
    rng = random.Random(seed)
    workgroup = rng.choice(TOGETHER if barriers else ALONE)
    trace = random_kernel(seed, workgroup, barriers=barriers)
    verify(trace)
    convergence.check(trace)
    level = rng.choice(levels_here())
    lanes = chosen_lanes(rng, workgroup)
    groups = (rng.choice((1, 5, 64, 65, 130, 200)), rng.choice((1, 2, 3)), 1)
    if workgroup is not None:
        groups = (rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2))
    size = workgroup or (1, 1, 1)
    count = int(np.prod([a * b for a, b in zip(size, groups, strict=True)]))
    source = np.random.default_rng(seed).integers(-50, 300, INPUTS).astype(np.int32)
    compiled = compile_trace(trace, level, lanes, optimised=rng.random() < 0.5)
    wanted = [np.zeros(count, np.uint32), source, np.zeros(COUNTERS, np.int32)]
    found = [array.copy() for array in wanted]
    interpret(trace, wanted, [3, 1.5], groups, subgroup_size=compiled.program.lanes)
    compiled.run(found, [3, 1.5], groups, rng.choice((1, 2, 7, 1000)))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want, f"seed {seed}, {level}, {lanes}")


@pytest.mark.parametrize("barriers", [False, True], ids=["alone", "together"])
def test_random_kernels_agree_with_the_interpreter(barriers: bool) -> None:
    start = random.randrange(1 << 32)
    for seed in range(start, start + 12):
        check(seed, barriers=barriers)
