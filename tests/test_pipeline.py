"""Passes keep what a trace means: all of them, in order, on random traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from khaljit.codegen.caps import row
from khaljit.codegen.legalise import legalise
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import i32
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Access,
    Trace,
    effects,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.bounds import bounds
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.passes.pipeline import PIPELINE, optimise
from khaljit.tracer.rewriting import Rewriter
from khaljit.tracer.text import print_trace
from khaljit.tracer.verify import verify
from tests.building import array_param, kernel
from tests.random_traces import random_trace


def test_a_rewriter_that_changes_nothing_copies() -> None:
    for seed in range(30):
        # The first copy leaves out what cannot be reached.
        trace = Rewriter(random_trace(seed, collectives=True).trace).run()
        done = Rewriter(trace).run()
        verify(done)
        assert print_trace(done) == print_trace(trace)


def test_long_chains_and_deep_nests_need_no_recursion() -> None:
    params = [array_param(0, i32)]

    def build(b: Builder) -> None:
        i = b.id("global")
        memory = b.memory(params[0].memory)
        x = b.load(memory, (i,), i32, Access())
        for k in range(20_000):
            x = b.pure(Op.XOR if k % 2 else Op.ADD, (x, b.const(i32, k * 7 + 3)))
        for _ in range(400):
            b.open()
        b.store(memory, (i,), x, Access())
        for k in range(400):
            b.end(Op.YIELD)
            then = b.close()
            b.open()
            b.end(Op.YIELD)
            product = b.pure(Op.MUL, (x, b.const(i32, 2 * k + 3)))
            b.if_(b.pure(Op.LT, (product, b.const(i32, k))), then, b.close())

    done = legalise(optimise(contract(kernel(build, params))), row("llvm:x86-64"))
    assert any(effect.op is Op.STORE for effect in effects(done.body))


# All passes on random traces.


def _arrays(trace: Trace, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    first = rng.integers(-5, 9, (4, 6)).astype(np.int32)
    points = (rng.integers(-8, 8, (5, 3)) / 2).astype(np.float32)
    aliased = trace.arrays[2].same_view == 0
    out = first if aliased else rng.integers(-5, 9, (4, 6)).astype(np.int32)
    fields = {"names": ["x", "y", "z"], "formats": ["f4", "i4", "i1"], "offsets": [0, 8, 12]}
    mixed: Array = np.zeros((), np.dtype({**fields, "itemsize": 16}))  # type: ignore[call-overload]
    mixed["x"] = 1.5
    mixed["y"] = 3
    return [first, points, out, mixed]


def _outcome(trace: Trace, seed: int) -> list[bytes]:
    arrays = _arrays(trace, seed)
    interpret(trace, arrays, [3, 2.5, 1], (2, 2, 1), poison=False)
    flat: list[Array] = [*arrays[:3], *(arrays[3][name] for name in ("x", "y", "z"))]
    return [np.where(a == a, a, 0).tobytes() for a in flat]


@pytest.mark.parametrize("seed", range(40))
def test_random_traces_mean_the_same_after_every_pass(seed: int) -> None:
    trace = random_trace(seed).trace
    trace = contract(replace(trace, options=replace(trace.options, unchecked=False)))
    expected = _outcome(trace, seed)
    for step in PIPELINE:
        trace = step(trace)
        verify(trace)
        assert _outcome(trace, seed) == expected, step.__name__
    for name in ("llvm:x86-64", "llvm:x86-64-v3"):
        legal = legalise(trace, row(name))
        verify(legal)
        assert _outcome(legal, seed) == expected, name


def test_what_is_left_out_would_have_changed_nothing() -> None:
    for seed in range(100):
        trace = contract(random_trace(seed).trace)
        done = trace
        for step in PIPELINE:
            done = step(done)
        assert print_trace(optimise(trace)) == print_trace(done)


def test_unchecked_clears_every_check() -> None:
    for seed in range(10):
        trace = random_trace(seed).trace
        trace = replace(trace, options=replace(trace.options, unchecked=True, debug=False))
        done = bounds(trace)
        assert all(not e.attr.checked for e in effects(done.body) if isinstance(e.attr, Access))
