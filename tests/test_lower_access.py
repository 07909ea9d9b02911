"""Lowered accesses touch what the recorded ones did, whatever the index is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, f32, i32, i64, index, u8
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    Element,
    Memory,
    Space,
    effects,
    values,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.passes.lower_access import lower_access
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.text import print_trace
from khaljit.tracer.verify import verify
from tests.building import array_param, kernel
from tests.random_traces import random_trace

_HEAD = """\
kernel k index=32 contract
array grid: i32[?, ?] contiguous aligned same_shape=0 same_view=0
scalar n: i32
"""


def test_accesses_become_offsets_and_guards() -> None:
    done = lower_access(
        parse(
            _HEAD
            + """\
{
  %0: index = id global 0
  %1: index = id global 1
  %2: i32 = load grid[%0, %1]
  %3: i32 = load grid[n, 3:index] unchecked
  %4: i32 = add %2, %3
  store grid[%1, %0] <- %4
  yield
}
"""
        )
    )
    verify(done)
    assert (
        print_trace(done).split("scalar n: i32\n")[1]
        == """\
{
  %0: i32 = id global 0
  %1: i32 = stride grid 0
  %2: i32 = mul %0, %1
  %3: i32 = id global 1
  %4: i32 = add %2, %3
  %5: u32 = bitcast %0
  %6: i32 = shape grid 0
  %7: u32 = bitcast %6
  %8: bool = lt %5, %7
  %9: u32 = bitcast %3
  %10: i32 = shape grid 1
  %11: u32 = bitcast %10
  %12: bool = lt %9, %11
  %13: bool = and %8, %12
  %14: i32 = load grid at %4 if %13 unchecked
  %15: i32 = mul n, %1
  %16: i32 = add %15, 3:i32
  %17: i32 = load grid at %16 unchecked
  %18: i32 = mul %3, %1
  %19: i32 = add %18, %0
  %20: bool = lt %9, %7
  %21: bool = lt %5, %11
  %22: bool = and %20, %21
  %23: i32 = add %14, %17
  store grid at %19 if %22 unchecked <- %23
  yield
}
"""
    )


def test_views_that_are_the_same_become_one_memory() -> None:
    params = [array_param(0, f32), array_param(1, f32, 1, 0)]
    params[1] = replace(params[1], same_view=0)

    def build(b: Builder) -> None:
        i = b.id("global")
        first, second = (b.memory(param.memory) for param in params)
        b.store(second, (i,), b.load(first, (i,), f32, Access()), Access())

    done = lower_access(kernel(build, params))
    verify(done)
    assert {v.memory.number for v in effects(done.body) if v.op in (Op.LOAD, Op.STORE)} == {0}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("strides", [(1, 1), (-1, 1), (2, -1), (-2, -3)])
def test_indices_of_every_type_are_checked_exactly(bits: int, strides: tuple[int, int]) -> None:
    """Loads through shared, table and strided array memory, in and out of bounds."""
    rng = np.random.default_rng()
    types = [u8, i32, i64, index]
    element = Element.vector(f32, 3)
    base: Array = rng.standard_normal((9, 12, 3)).astype(np.float32)
    view = base[:: strides[0], :: strides[1]]
    table = Memory(Space.TABLE, 0, Element.scalar(u8), (3, 5), bytes(range(15)))
    for dtype in types:
        stored = dtype if dtype is not index else (i32 if bits == 32 else i64)
        params = [
            ArrayParam("v", Memory(Space.ARRAY, 0, element, (None, None)), False, True, 0, 0),
            array_param(1, stored, 1, 1),
            array_param(2, stored, 1, 1),
            array_param(3, f32, 1, 1),
            array_param(4, u8, 1, 1),
        ]

        def build(
            b: Builder,
            params: list[ArrayParam] = params,
            stored: DType = stored,
            dtype: DType = dtype,
        ) -> None:
            lane = b.id("global")
            what, ys, xs, out, small = (b.memory(param.memory) for param in params)
            y = b.cast(b.load(ys, (lane,), stored, Access()), dtype)
            x = b.cast(b.load(xs, (lane,), stored, Access()), dtype)
            b.store(out, (lane,), b.load(what, (y, x), f32, Access(4)), Access())
            b.store(small, (lane,), b.load(b.memory(table), (y, x), u8, Access()), Access())

        trace = kernel(build, params, index_bits=bits)
        low, high = stored.limits
        pool = [-2, -1, *range(14), low, high, low + 1, (1 << 32) + 1, -(1 << 32) + 2]
        pool = [p for p in pool if low <= p <= high]
        y, x = (np.array(rng.choice(pool, 300), stored.numpy) for _ in range(2))
        outcomes = []
        for one in (trace, lower_access(trace), optimise(trace)):
            verify(one)
            out, small = np.zeros(300, np.float32), np.zeros(300, np.uint8)
            interpret(one, [view, y, x, out, small], [], (300, 1, 1))
            outcomes.append((out, small))
        inside = (y >= 0) & (y < view.shape[0]) & (x >= 0) & (x < view.shape[1])
        at = np.where(inside, y, 0).astype(np.int64), np.where(inside, x, 0).astype(np.int64)
        expected = np.where(inside, view[..., 1][at], np.float32(0))
        for out, small in outcomes:
            assert (out == expected).all()
            assert (small == outcomes[0][1]).all()


@pytest.mark.parametrize("bits", [32, 64])
def test_memory_of_ids_gets_their_width(bits: int) -> None:
    def build(b: Builder) -> None:
        i, out = b.id("global"), b.memory(params[0].memory)
        pairs = b.memory(Memory(Space.LOCAL, 0, Element.vector(index, 2), (3,)))
        zero, two = b.const(index, 0), b.const(index, 2)
        for place, leaf, value in ((zero, 0, two), (two, 0, zero), (two, index.size, i)):
            b.store(pairs, (place,), value, Access(leaf))
        found = b.load(pairs, (two,), index, Access(index.size))
        b.store(out, (i,), b.cast(found, i64), Access())

    params = [array_param(0, i64, 1, 0)]
    trace = kernel(build, params, index_bits=bits)
    for one in (trace, lower_access(trace), optimise(trace)):
        verify(one)
        out = np.full(5, -1, np.int64)
        interpret(one, [out], [], (5, 1, 1))
        assert out.tolist() == [0, 1, 2, 3, 4]


def test_index_is_gone_from_lowered_traces() -> None:
    for seed in range(30):
        done = lower_access(random_trace(seed).trace)
        assert all(value.dtype is not index for value in values(done.body))
        assert all(param.dtype is not index for param in done.scalars)
