"""Grid-stride loops: the same results for any grid, and on the CPU in blocks of memory where the
order of iterations cannot be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.caps import row
from khaljit.codegen.legalise import legalise
from khaljit.codegen.llvm.blocks import in_blocks
from khaljit.tracer.ir import values
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.pipeline import optimise

Rng = np.random.Generator


def saxpy(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        a[i] = a[i] + 2.0 * b[i]


def histogram(a: kj.Array1[kj.i32], b: kj.Array1[kj.i32], n: kj.i32) -> None:
    for i in kj.grid_stride(n):
        if b[i] >= 0:
            kj.atomic_add(a, b[i], 1)


def components(a: kj.Array1[kj.vec3], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        total = 0.0
        for k in range(n):
            total += b[k]
        a[i] = a[i] * total


FREE: list[Callable[..., None]] = [saxpy, histogram, components]


def carried(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    total = 0.0
    for i in kj.grid_stride(b.size):
        total += b[i]
    a[kj.global_id(0)] = total


def knows_itself(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        a[i] = b[i] + kj.global_id(0)


def before(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    """Reads what an earlier iteration of the same invocation has written."""
    for i in kj.grid_stride(a.size):
        a[i] = a[i - kj.num_workgroups(0)] + b[i]


def one_place(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(b.size):
        a[0] = a[0] * 0.5 + b[i]


def turns(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        a[i % n] = b[i]


def leaves(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        if b[i] < 0.0:
            break
        a[i] = b[i]


def returns(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        if b[i] < 0.0:
            return
        a[i] = b[i]


def numbered(a: kj.Array1[kj.f32], b: kj.Array1[kj.i32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        a[i] = kj.atomic_add(b, 0, 1)


def behind(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
    for i in kj.grid_stride(a.size):
        a[i] = b[i]
    b[kj.global_id(0)] = 0.0


TIED: list[Callable[..., None]] = [
    *(carried, knows_itself, before, one_place, turns, leaves, returns, numbered, behind)
]


def is_in_blocks(function: Callable[..., None], **options: Any) -> bool:
    signature = {
        "histogram": "i32[:], i32[:], i32",
        "components": "vec3[:], f32[:], i32",
        "numbered": "f32[:], i32[:], i32",
    }.get(function.__name__, "f32[:], f32[:], i32")
    arrays = [
        np.zeros((8, 3) if "vec3" in one else 8, np.int32 if "i32" in one else np.float32)
        for one in signature.split(", ")[:2]
    ]
    trace = kj.jit(**options)(function).trace(*arrays, 3)
    legal = legalise(optimise(trace), row("llvm:x86-64-v3"))
    made = in_blocks(legal)
    found = any(value.op is Op.ID and value.attr == ("first", 0) for value in values(made.body))
    assert found or made is legal
    return found


@pytest.mark.parametrize("workgroup", [None, 64, 96])
@pytest.mark.parametrize("function", FREE, ids=lambda function: function.__name__)
def test_free_iterations_are_done_in_blocks(function: Callable[..., None], workgroup: Any) -> None:
    assert is_in_blocks(function, workgroup=workgroup)


@pytest.mark.parametrize("function", TIED, ids=lambda function: function.__name__)
def test_iterations_that_depend_on_each_other_stay_as_they_are(
    function: Callable[..., None],
) -> None:
    assert not is_in_blocks(function)


def test_a_failed_assertion_names_the_invocation_that_was_asked_for() -> None:
    def asserts(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], n: kj.i32) -> None:
        for i in kj.grid_stride(a.size):
            assert b[i] >= 0.0
            a[i] = b[i]

    assert not is_in_blocks(asserts)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("workgroup", [None, 64, 48])
def test_every_element_is_done_once_for_any_grid(workgroup: Any, rng: Rng) -> None:
    kernel = kj.jit(workgroup=workgroup)(saxpy)
    for size in (0, 1, 63, 64, 65, 1000, 4097):
        for grid in (1, 63, 64, 128, 1000, 8192):
            a = rng.integers(-99, 99, size).astype(np.float32)
            b = rng.integers(-99, 99, size).astype(np.float32)
            expected = a + 2 * b
            kernel[grid](a, b, 0)
            assert (a == expected).all(), (size, grid)


@pytest.mark.usefixtures("device")
def test_counts_of_a_histogram(rng: Rng) -> None:
    kernel = kj.jit(histogram)
    values_ = rng.integers(-3, 10, 5000).astype(np.int32)
    for grid in (7, 64, 256):
        counts = np.zeros(10, np.int32)
        kernel[grid](counts, values_, 4500)
        seen = values_[:4500]
        assert counts.tolist() == np.bincount(seen[seen >= 0], minlength=10).tolist()


@pytest.mark.usefixtures("device")
def test_one_invocation_goes_in_order(rng: Rng) -> None:
    """What depends on the order is right where there is one."""
    b = rng.integers(-9, 9, 300).astype(np.float32)
    total = np.zeros(1, np.float32)
    kj.jit(one_place)[1](total, b, 0)
    expected = np.float32(0)
    for one in b:
        expected = expected * np.float32(0.5) + one
    assert total[0] == expected
    a = np.zeros(300, np.float32)
    kj.jit(before)[1](a, b, 0)
    assert (a == np.cumsum(b, dtype=np.float32)).all()
