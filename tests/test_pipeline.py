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
from khaljit.tracer.ir import Access, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.bounds import bounds
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.passes.lower_access import lower_access
from khaljit.tracer.passes.pipeline import PIPELINE, optimise
from khaljit.tracer.rewriting import Rewriter
from khaljit.tracer.text import print_trace
from khaljit.tracer.verify import verify
from tests.building import array_param, kernel
from tests.random_traces import random_trace


def test_a_rewriter_that_changes_nothing_gives_the_trace_back() -> None:
    for seed in range(30):
        # The first copy leaves out what cannot be reached.
        trace = Rewriter(random_trace(seed, collectives=True).trace).run()
        verify(trace)
        assert Rewriter(trace).run() is trace
        apart = replace(trace, pool=None)
        assert Rewriter(apart).run() is apart


def test_a_trace_whose_equal_values_are_several_is_copied_with_one_of_each() -> None:
    params, one = [array_param(0, i32)], Value(Op.CONST, i32, (), 1)

    def build(b: Builder) -> None:
        memory, i = b.memory(params[0].memory), b.id("global")
        sums = [Value(Op.ADD, i32, (Value(Op.CONST, i32, (), 1), one)) for _ in range(2)]
        b.store(memory, (i,), b.pure(Op.MUL, tuple(sums)), Access())

    trace = kernel(build, params)
    done = Rewriter(trace).run()
    first, second = done.body.body[0].args[-1].args
    assert trace.pool is None
    assert first is second
    assert first.args[0] is first.args[1]
    assert Rewriter(done).run() is done


def test_what_stays_is_the_same_object_and_what_depends_on_a_change_is_not() -> None:
    """A constant changes in one of two loops."""

    class Doubles(Rewriter):
        def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
            if value.op is Op.CONST and value.attr == 7:
                return self.builder.const(value.type, 14)
            return self.copy(value, args)

    params = [array_param(0, i32)]

    def build(b: Builder) -> None:
        memory = b.memory(params[0].memory)
        for limit in (5, 7):
            (k,) = b.open((i32,))
            b.open()
            b.end(Op.BREAK)
            done = b.close()
            b.open()
            b.end(Op.YIELD)
            b.if_(b.pure(Op.GE, (k, b.const(i32, limit))), done, b.close())
            b.store(memory, (k,), k, Access())
            b.end(Op.CONTINUE, (b.pure(Op.ADD, (k, b.const(i32, 1))),))
            b.loop((b.const(i32, 0),), b.close(), ())

    trace = kernel(build, params)
    done = Doubles(trace).run()
    verify(done)
    (five, seven), (kept, changed) = trace.body.body, done.body.body
    assert kept is five
    assert changed is not seven
    assert changed.regions[0].body[1] is seven.regions[0].body[1]  # the store
    assert changed.regions[0].body[0].regions == seven.regions[0].body[0].regions


@pytest.mark.parametrize("seed", range(60))
def test_what_a_pass_gave_it_finds_nothing_to_do_in(seed: int) -> None:
    """So `optimise` does not ask it again."""
    trace = Rewriter(random_trace(seed).trace).run()
    for step in PIPELINE[: PIPELINE.index(lower_access)]:
        trace = step(trace)
        assert step(trace) is trace, step.__name__


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
