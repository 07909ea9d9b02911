"""Kernels whose results are known from KHAL, which khaljit re-imagines, on every device."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

import khaljit as kj

pytestmark = pytest.mark.usefixtures("device")


@kj.jit(workgroup=64)
def add_assign(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < len(a) and i < len(b):
        a[i] += b[i]


def test_a1_add_assign_over_157_workgroups() -> None:
    n = 10_000
    a, b = np.arange(n, dtype=np.float32), 10 * np.arange(n, dtype=np.float32)
    add_assign[n](a, b)
    assert (a == 11 * np.arange(n, dtype=np.float32)).all()


def test_a2_grid_probe_every_invocation_knows_its_place() -> None:
    @kj.jit(workgroup=64)
    def grid_probe(src: kj.Array1[kj.u32], out: kj.Array1[kj.u32]) -> None:
        x, y = kj.u32(kj.global_id(0)), kj.u32(kj.global_id(1))
        out[y * 64 + x] = (y << 20) | (src[y] << 10) | x

    src, out = np.arange(100, 104, dtype=np.uint32), np.zeros(256, np.uint32)
    grid_probe[64, 4, 1](src, out)
    y, x = np.divmod(np.arange(256), 64)
    assert (out == (y << 20) | ((100 + y) << 10) | x).all()


def test_a3_batch_probe_writes_its_lengths_and_nothing_else() -> None:
    @kj.jit(workgroup=64)
    def batch_probe(
        lens: kj.Array1[kj.u32], src: kj.Array1[kj.u32], out: kj.Array1[kj.u32]
    ) -> None:
        batch = kj.u32(kj.workgroup_id(1))
        i = kj.u32(kj.global_id(0))
        while i < lens[batch]:
            out[batch * 64 + i] = (batch << 20) | src[batch * 64 + i]
            i += kj.u32(kj.num_workgroups(0) * 64)

    lens, src = np.arange(10, 14, dtype=np.uint32), np.arange(256, dtype=np.uint32)
    out = np.full(256, 2**32 - 1, np.uint32)
    batch_probe[kj.Workgroups(1, 4, 1)](lens, src, out)
    expected = np.full((4, 64), 2**32 - 1, np.uint32)
    for b in range(4):
        expected[b, : 10 + b] = (b << 20) | src[b * 64 : b * 64 + 10 + b]
    assert (out == expected.ravel()).all()


def test_a4_atomic_sub_wraps_and_gives_the_old_value() -> None:
    @kj.jit
    def subtract(a: kj.Array1[kj.u32], old: kj.Array1[kj.u32]) -> None:
        i = kj.global_id(0)
        old[i] = kj.atomic_sub(a, i, 1)

    a, old = np.array([3, 0], np.uint32), np.zeros(2, np.uint32)
    subtract[2](a, old)
    assert old.tolist() == [3, 0]
    assert a.tolist() == [2, 4294967295]


def test_a18_no_loop_iteration_is_lost_over_shared_memory() -> None:
    @kj.jit(workgroup=32)
    def total(out: kj.Array1[kj.u32]) -> None:
        tile = kj.shared(kj.u32, 32)
        lane = kj.local_id(0)
        tile[lane] = kj.u32(lane + 1)
        kj.barrier()
        if lane == 0:
            i, summed = 0, kj.u32(0)
            while i < 32:
                summed += tile[i]
                i += 1
            out[0] = summed

    out = np.zeros(1, np.uint32)
    total[32](out)
    assert out[0] == 528


def test_a20_an_early_return_before_barriers_is_refused_and_its_mend_is_right() -> None:
    @kj.jit(workgroup=32)
    def early(a: kj.Array1[kj.i32]) -> None:
        tile = kj.shared(kj.i32, 32)
        i = kj.local_id(0)
        if i >= a.size:
            return
        tile[i] = a[i]
        kj.barrier()
        a[i] = tile[a.size - 1 - i]

    a = np.arange(31, dtype=np.int32)
    with pytest.raises(kj.TraceError, match="some of them return before it") as caught:
        early[31](a)
    assert caught.value.mend == "guard the accesses, not the return"

    @kj.jit(workgroup=32)
    def mended(a: kj.Array1[kj.i32], ids: kj.Array2[kj.i32]) -> None:
        tile = kj.shared(kj.i32, 32)
        i = kj.local_id(0)
        if i < a.size:
            tile[i] = a[i]
        kj.barrier()
        value = tile[a.size - 1 - i]
        kj.barrier()
        if i < a.size:
            a[i] = value
        ids[i, 0], ids[i, 1] = kj.lane_id(), kj.subgroup_id()

    ids = np.full((32, 2), -1, np.int32)
    mended[31](a, ids)
    assert a.tolist() == list(range(30, -1, -1))
    assert (ids >= 0).all()
    assert len({(lane, subgroup) for lane, subgroup in ids.tolist()}) == 32


def _guarded(count: int) -> tuple[Any, np.ndarray[Any, Any]]:
    """An array of i32 that ends where memory that must not change begins, and starts after some."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    memory[:] = bytes([0xA5]) * (3 * page)
    array = np.frombuffer(memory, np.int32, count, offset=2 * page - 4 * count)
    return memory, array


def test_an_unguarded_kernel_with_a_rounded_up_grid_touches_nothing_else() -> None:
    @kj.jit(workgroup=64)
    def fill(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = 7

    memory, a = _guarded(10)
    fill[10](a)
    assert (a == 7).all()
    page = mmap.PAGESIZE
    assert memory[: 2 * page - 40] == bytes([0xA5]) * (2 * page - 40)
    assert memory[2 * page :] == bytes([0xA5]) * page


def test_random_indices_out_of_range_read_zero_and_write_nothing(rng: np.random.Generator) -> None:
    @kj.jit
    def scatter(a: kj.Array1[kj.i32], where: kj.Array1[kj.i64], seen: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        seen[i] = a[where[i]]
        a[where[i]] = 9
        kj.atomic_max(a, where[i], 9)

    memory, a = _guarded(10)
    a[:] = np.arange(1, 11)
    where = np.concatenate([rng.integers(-(2**62), 2**62, 200), rng.integers(-30, 40, 200)])
    where = where[(where < 0) | (where >= 10)]
    seen = np.full(where.size, 77, np.int32)
    scatter[where.size](a, where, seen)
    assert (seen == 0).all()
    assert a.tolist() == list(range(1, 11))
    page = mmap.PAGESIZE
    assert memory[2 * page :] == bytes([0xA5]) * page
    assert memory[: 2 * page - 40] == bytes([0xA5]) * (2 * page - 40)
