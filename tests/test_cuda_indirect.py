"""Resident programs, whose counts of workgroups the GPU reads: by the model of the machine, and
assembled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.codegen.ptx.emit import PtxEmitter
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import f32, i32, i64, index, u8
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Access, Trace
from khaljit.tracer.ops import Op
from tests.building import array_param, kernel
from tests.ptx_machine import run_program
from tests.ptx_tools import argument, assemble, is_lean, legal, recorded

Groups = tuple[int, int, int]

ROWS = [(3, 2, 4), (7, 1, 1), (1, 5, 2), (1, 1, 5), (0, 4, 4), (4, 0, 1), (4, 4, 0)]


def run(trace: Trace, arrays: list[Any], groups: Groups, blocks: int) -> None:
    ready = legal(trace)
    program = PtxEmitter("sm_90", resident=True).emit(ready)
    run_program(ready, program, arrays, [], groups, resident=blocks)


def places(workgroup: Groups | None, bits: int) -> Trace:
    """A kernel that writes its ids, and counts itself, at a place of its own."""
    names = ["global", "num_workgroups"] + (["workgroup", "local"] if workgroup else [])
    shown = [(name, axis) for name in names for axis in range(3)]
    out = array_param(0, i64, 2)

    def build(b: Builder) -> None:
        size = workgroup or (1, 1, 1)
        x, y, z = (b.id("global", axis) for axis in range(3))
        width, height = (
            b.pure(Op.MUL, (b.id("num_workgroups", axis), b.const(index, size[axis])))
            for axis in range(2)
        )
        row = b.pure(Op.ADD, (b.pure(Op.MUL, (z, height)), y))
        at = b.pure(Op.ADD, (b.pure(Op.MUL, (row, width)), x))
        for column, (name, axis) in enumerate(shown):
            value = b.cast(b.id(name, axis), i64)
            b.store(b.memory(out.memory), (at, b.const(index, column)), value, Access())

    return kernel(build, [out], workgroup=workgroup, index_bits=bits)


@pytest.mark.parametrize("blocks", [1, 5, 26])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("workgroup", [None, (4, 2, 1)], ids=str)
def test_each_workgroup_of_the_grid_is_run_by_some_block(
    workgroup: Groups | None, bits: int, blocks: int
) -> None:
    trace = places(workgroup, bits)
    for groups in ROWS if workgroup else [(37, 9, 2), (0, 1, 1)]:
        count = int(np.prod(groups)) * int(np.prod(workgroup or (1, 1, 1)))
        got, want = (np.full((count, 12 if workgroup else 6), -1, np.int64) for _ in range(2))
        run(trace, [got], groups, blocks)
        interpret(trace, [want], [], groups)
        assert (got == want).all(), groups


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_each_workgroup_is_run_once(blocks: int) -> None:
    def touch(out: Any) -> None:
        kj.atomic_add(out, 0, 1)

    trace = recorded(touch, [("out", argument(i32))])
    for groups in ((1, 1, 1), (255, 1, 1), (257, 1, 1), (0, 1, 1)):
        out = np.zeros(1, np.int32)
        run(trace, [out], groups, blocks)
        assert out[0] == groups[0]


def test_what_returns_early_goes_on_with_the_next_workgroup(rng: np.random.Generator) -> None:
    def some(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        if x[i] < 0:
            return
        for k in range(5):
            if x[i] == k:
                return
        out[i] = x[i]

    trace = recorded(some, [("x", argument(i32)), ("out", argument(i32))], workgroup=(8, 1, 1))
    x = rng.integers(-4, 9, 72).astype(np.int32)
    out = np.full(72, -1, np.int32)
    run(trace, [x, out], (9, 1, 1), 2)
    assert (out == np.where(x > 4, x, -1)).all()


def test_shared_memory_is_not_overtaken(rng: np.random.Generator) -> None:
    """The last workgroup's sums are read when the next one writes."""

    def reverse(x: Any, out: Any) -> None:
        own = kj.shared(kj.i32, 64)
        me, first = kj.local_index(), kj.workgroup_id(0) * 64
        own[me] = x[first + me]
        kj.barrier()
        out[first + me] = own[63 - me]

    trace = recorded(reverse, [("x", argument(i32)), ("out", argument(i32))], workgroup=(64, 1, 1))
    x = rng.integers(-9, 9, 64 * 11).astype(np.int32)
    out = np.zeros_like(x)
    run(trace, [x, out], (11, 1, 1), 3)
    assert (out == x.reshape(11, 64)[:, ::-1].reshape(-1)).all()
    text = PtxEmitter("sm_90", resident=True).emit(legal(trace)).text
    assert text.count("bar.sync 0;") == 2


def test_counts_are_held_to_what_ids_may_be() -> None:
    def touch(out: Any) -> None:
        kj.atomic_add(out, 0, 1)

    trace = recorded(touch, [("out", argument(i32))], workgroup=(64, 1, 1))
    text = PtxEmitter("sm_90", resident=True).emit(legal(trace)).text
    assert f", {(1 << 30) // 64};" in text
    assert f", {1 << 30};" in text


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_resident_programs_are_assembled_without_a_spill(sm: str, tmp_path: Path) -> None:
    def add(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = x[i] + out[i]

    def tile(x: Any, out: Any) -> None:
        own = kj.shared(kj.f32, (8, 33))
        a, b = kj.local_id(0), kj.local_id(1)
        own[b, a] = x[kj.global_id(1), kj.global_id(0)]
        kj.barrier()
        out[kj.global_id(1), kj.global_id(0)] = own[b, 31 - a] + kj.subgroup_add(own[b, a])

    def bytes_(x: Any, out: Any) -> None:
        kj.atomic_add(out, x[kj.global_id(0)], 1)

    pair = [("x", argument(f32, aligned=True)), ("out", argument(f32, aligned=True))]
    planes = [("x", argument(f32, 2)), ("out", argument(f32, 2))]
    for trace in (
        recorded(add, pair),
        recorded(add, pair, workgroup=(128, 1, 1), index_bits=64),
        recorded(tile, planes, workgroup=(32, 8, 1)),
        recorded(bytes_, [("x", argument(u8)), ("out", argument(i32))]),
    ):
        program = PtxEmitter(sm, resident=True).emit(legal(trace, sm))
        assert is_lean(assemble(program, sm, tmp_path))


def test_direct_programs_do_not_change() -> None:
    trace = places((4, 2, 1), 32)
    text = PtxEmitter("sm_90").emit(legal(trace)).text
    assert "nctaid" not in text
    assert "nctaid" in PtxEmitter("sm_90", resident=True).emit(legal(trace)).text
