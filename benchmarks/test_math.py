"""Math functions of f32 in the cache: right first, then timed; in turns by ``math_speed.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import math_speed

ROUNDS = 5
IMPLEMENTATIONS = ("khaljit", "khaljit fastmath", "NumPy")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", math_speed.FUNCTIONS)
def test_function(name: str, implementation: str, benchmark: BenchmarkFixture) -> None:
    x, y, out = math_speed.arguments()
    if implementation == "NumPy":
        run = math_speed.numpys(name, x, y, out)
        if run is None:
            pytest.skip("NumPy has no such function")
    else:
        run = math_speed.own(name, implementation.endswith("fastmath"), x, y, out)
    run()
    wide = [one.astype(np.float64) for one in ((x, y) if name == "pow" else (x,))]
    numpys = getattr(np, math_speed.NUMPY.get(name) or name, None)
    exact = (numpys or scipy.special.erf)(*wide)
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-7)
    benchmark.group = name
    run_rounds: Any = benchmark.pedantic  # untyped
    run_rounds(run, rounds=ROUNDS, warmup_rounds=1)
