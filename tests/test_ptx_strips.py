"""Counted loops of the CUDA code generator: several iterations a turn, checked before the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.ptx.strips import strip_loops
from khaljit.tracer.dtypes import f32, i32
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.record import ScalarArgument
from khaljit.tracer.verify import verify
from tests.ptx_tools import Argument, argument, emit, legal, matmul_trace, recorded, run


def loops(trace: Trace) -> list[Value]:
    return [effect for effect in effects(trace.body) if effect.op is Op.LOOP]


def test_a_turn_has_four_iterations_without_checks() -> None:
    first, rest = loops(strip_loops(legal(matmul_trace())))
    turn = [effect for effect in effects(first.regions[0]) if effect.op is Op.LOAD]
    assert len(turn) == 8
    assert all(load.guard is None for load in turn)
    checked = [effect for effect in effects(rest.regions[0]) if effect.op is Op.LOAD]
    assert len(checked) == 2
    assert any(load.guard is not None for load in checked)


def dot(first: int) -> Trace:
    """The sum of products of two arrays with sizes of their own, from a row of the first."""

    def kernel(a: Any, b: Any, out: Any, n: Any) -> None:
        i = kj.global_id(0)
        total = 0.0
        for k in range(first, n):
            total = total * 0.5 + a[i, k + 2] * b[k]
        out[i] = total

    arguments: list[tuple[str, Argument]] = [
        ("a", argument(f32, 2)),
        ("b", argument(f32)),
        ("out", argument(f32)),
        ("n", ScalarArgument(i32)),
    ]
    return recorded(kernel, arguments, workgroup=(32, 1, 1))


@pytest.mark.parametrize("first", [0, 1, 6])
@pytest.mark.parametrize("n", [-(2**31), -1, 0, 1, 3, 4, 5, 8, 17, 18, 19, 23])
def test_what_is_out_of_bounds_stays_so(first: int, n: int, rng: np.random.Generator) -> None:
    trace = dot(first)
    a, b = rng.normal(size=(21, 19)).astype(np.float32), rng.normal(size=18).astype(np.float32)
    got, want = (np.full(23, 77, np.float32) for _ in range(2))
    run(trace, [a, b, got], [n], (1, 1, 1))
    interpret(contract(trace), [a, b, want], [n], (1, 1, 1))
    assert (got.view(np.uint32) == want.view(np.uint32)).all()
    stripped = strip_loops(legal(trace))
    verify(stripped)
    again = np.full(23, 77, np.float32)
    interpret(stripped, [a, b, again], [n], (1, 1, 1))
    assert (again.view(np.uint32) == want.view(np.uint32)).all()


def test_loops_that_leave_early_or_write_their_own_limit_are_left_alone() -> None:
    def search(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        for k in range(x.size):
            if x[k] == 3.0:
                break
            out[i] = kj.f32(k)

    def moving(x: Any, out: Any) -> None:
        k, n = 0, x.size
        while k < n:
            n = n - kj.i32(x[k])
            k += 1
        out[kj.global_id(0)] = kj.f32(n)

    arguments: list[tuple[str, Argument]] = [("x", argument(f32)), ("out", argument(f32))]
    for kernel in (search, moving):
        trace = legal(recorded(kernel, arguments))
        assert strip_loops(trace) is trace
        emit(recorded(kernel, arguments))
