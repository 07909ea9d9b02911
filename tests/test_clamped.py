"""Clamped indices, as at the borders of images: the right elements on every device, and on the CPU
by vectors wherever nothing is clamped. What is told of many lanes by scalars is told rightly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.codegen.llvm.emit import LlvmEmitter
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.tracer.dtypes import INTEGERS, DType, i8, i16, u8, u16
from tests.running import compile_trace, legal, levels_here

Rng = np.random.Generator
Array = np.ndarray[Any, Any]


def lowest_first(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    out[row, column] = x[min(max(row + dy, 0), height - 1), min(max(column + dx, 0), width - 1)]


def highest_first(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    out[row, column] = x[max(min(row + dy, height - 1), 0), max(min(column + dx, width - 1), 0)]


def function(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    out[row, column] = x[kj.clamp(row + dy, 0, height - 1), kj.clamp(column + dx, 0, width - 1)]


def expressions(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    y, z = row + dy, column + dx
    y = 0 if y < 0 else y
    z = z if z >= 0 else 0
    out[row, column] = x[y if y < height else height - 1, width - 1 if z >= width else z]


def by_another(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    y, z = row + dy, column + dx
    left = max(z, 0)
    out[row, column] = x[kj.clamp(y, 0, height - 1), left if z < width else width - 1]


def statements(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    y, z = row + dy, column + dx
    if z < 0:
        z = 0
    if z > width - 1:
        z = width - 1
    out[row, column] = x[kj.clamp(y, 0, height - 1), z]


def from_the_end(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    across = kj.clamp(width - 1 - (column + dx), 0, width - 1)
    out[row, column] = x[kj.clamp(row + dy, 0, height - 1), width - 1 - across]


def in_an_arm(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    y, z = kj.clamp(row + dy, 0, height - 1), kj.clamp(column + dx, 0, width - 1)
    if column % 3 != 1:
        out[row, column] = x[y, z]
    else:
        out[row, column] = x[y, z] * 1.0


def after_a_store(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    out[row, column] = 0.0
    for k in range(3):
        step = kj.clamp(column + dx * k // 2, 0, width - 1)
        out[row, column] = x[kj.clamp(row + dy, 0, height - 1), step]


def middle(x: Any, out: Any, dy: kj.i32, dx: kj.i32) -> None:
    row, column = kj.index(2)
    height, width = x.shape
    if row < height and column < width:
        out[row, column] = x[kj.clamp(row + dy, 0, height - 1), kj.clamp(column + dx, 0, width - 1)]


SAME: list[Callable[..., None]] = [
    *(lowest_first, highest_first, function, expressions, by_another, statements, from_the_end),
    *(in_an_arm, after_a_store, middle),
]
SHAPES = [(1, 1), (2, 3), (0, 4), (3, 0), (5, 17), (2, 64), (3, 65), (4, 131), (1, 300)]
STEPS = [(0, 0), (0, 1), (1, -1), (-2, 3), (0, 15), (1, -64), (-9, 70)]


def shifted(x: Array, dy: int, dx: int) -> Array:
    """Each element's neighbour, that of the border where there is none."""
    rows, columns = (np.arange(extent) for extent in x.shape)
    rows, columns = (
        np.clip(np.arange(extent) + step, 0, extent - 1)
        for extent, step in zip(x.shape, (dy, dx), strict=True)
    )
    found: Array = x[rows[:, None], columns]
    return found


@pytest.mark.parametrize("body", SAME)
def test_neighbours_at_clamped_places(device: Device, rng: Rng, body: Callable[..., None]) -> None:
    kernel = kj.jit(workgroup=(64, 2) if rng.random() < 0.3 else None)(body)
    for shape in SHAPES:
        x = rng.random(shape, np.float32)
        source = device.array(x)
        for dy, dx in rng.permuted(STEPS, axis=0)[:3].tolist():
            out = device.array(np.full(shape, -1, np.float32))
            kernel[kj.over(out)](source, out, dy, dx)
            np.testing.assert_array_equal(out.numpy(), shifted(x, dy, dx), f"{shape} {dy} {dx}")


def wrapping(dtype: DType) -> Callable[..., None]:
    """Clamps a number of a type that wraps as it grows, then moves it to where the array is."""

    def kernel(x: Any, out: Any, start: Any, low: Any, high: Any, back: Any) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = x[kj.clamp(getattr(kj, dtype.name)(i) + start, low, high) - back]

    return kernel


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.name)
def test_numbers_that_wrap_are_no_straight_lines(device: Device, rng: Rng, dtype: DType) -> None:
    least, most = dtype.limits
    kernel = kj.jit(wrapping(dtype))
    x = device.array(np.arange(1, 301, dtype=np.int32))
    count = 200
    out = device.zeros(count, kj.i32)
    modulus = 1 << dtype.bits
    near = [least, least + 7, most - 70, most - 3, most, 0, 1, *rng.integers(0, 100, 3).tolist()]
    for _ in range(30):
        start, low, high = (near[k] for k in rng.integers(0, len(near), 3))
        back = (start, low, 0, near[rng.integers(len(near))])[rng.integers(4)]
        kernel[count](x, out, *(dtype.numpy.type(number) for number in (start, low, high, back)))
        grown = [(start + i - least) % modulus + least for i in range(count)]
        places = [(min(max(one, low), high) - back - least) % modulus + least for one in grown]
        wanted = [place + 1 if 0 <= place < 300 else 0 for place in places]
        assert out.numpy().tolist() == wanted, (start, low, high, back)


def narrow(dtype: DType, factor: int) -> Callable[..., None]:
    """Compares a number of a narrow type that wraps more than once over the lanes."""

    def kernel(x: Any, out: Any, limit: Any) -> None:
        i = kj.global_id(0)
        if getattr(kj, dtype.name)(i) * factor < limit:
            for k in range(3):
                out[i] += x[i] + k

    return kernel


@pytest.mark.parametrize("dtype", [i8, u8, i16, u16], ids=lambda dtype: dtype.name)
def test_narrow_numbers_that_wrap_more_than_once(device: Device, rng: Rng, dtype: DType) -> None:
    least, most = dtype.limits
    x = rng.integers(0, 99, 1000).astype(np.int32)
    source = device.array(x)
    for factor in (5, 11, 100) if dtype.bits == 8 else (1030, 3000, 20000):
        kernel = kj.jit(narrow(dtype, factor))
        grown = ((np.arange(1000) * factor - least) % (most - least + 1) + least).astype(np.int64)
        for limit in (least, least // 2, 1, most // 2, most):
            out = device.zeros(1000, kj.i32)
            kernel[1000](source, out, dtype.numpy.type(limit))
            np.testing.assert_array_equal(out.numpy(), np.where(grown < limit, 3 * x + 3, 0))


def test_what_decides_may_be_clamped_itself(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(x: kj.Array1[kj.i32], out: kj.Array1[kj.i32], least: kj.i32, most: kj.i32) -> None:
        i = kj.global_id(0)
        high = max(i, least)
        out[i] = x[i if high < most else 0] + x[high]

    x = rng.integers(1, 99, 200).astype(np.int32)
    source, i = device.array(x), np.arange(200)
    for least, most in ((0, 150), (70, 60), (199, 100), (33, 34)):
        out = device.zeros(200, kj.i32)
        kernel[200](source, out, least, most)
        high = np.maximum(i, least)
        np.testing.assert_array_equal(out.numpy(), x[np.where(high < most, i, 0)] + x[high])


def test_clamped_places_of_other_memories(device: Device, rng: Rng) -> None:
    """Elements of several scalars, shared memory and constants."""
    numbers = rng.random(40).astype(np.float32)

    @kj.jit(workgroup=32)
    def kernel(x: kj.Array1[kj.vec3], out: kj.Array1[kj.vec3], step: kj.i32) -> None:
        tile = kj.shared(kj.f32, 32)
        table = kj.constant(numbers)
        i, me = kj.global_id(0), kj.local_id(0)
        place = kj.clamp(i + step, 0, x.size - 1)
        tile[me] = x[place].x
        kj.barrier()
        if i < out.size:
            near = tile[kj.clamp(me + step, 0, 31)]
            out[i] = kj.vec3(near, x[place].z, table[kj.clamp(i + step, 0, 39)])

    for count in (1, 31, 64, 150):
        x = rng.random((count, 3)).astype(np.float32)
        source, out = device.array(x, kj.vec3), device.zeros(count, kj.vec3)
        me, i = np.arange(count) % 32, np.arange(count)
        for step in (0, 1, -1, 5, -40):
            kernel[count](source, out, step)
            place = np.clip(i + step, 0, count - 1)
            near = np.clip(i - me + np.clip(me + step, 0, 31) + step, 0, count - 1)
            wanted = [x[near, 0], x[place, 2], numbers[np.clip(i + step, 0, 39)]]
            np.testing.assert_array_equal(out.numpy(), np.stack(wanted, 1), f"{count} {step}")


# The code for the CPU.


def llvm(body: Callable[..., None], *arguments: Any) -> str:
    trace = kj.jit(body).trace(*arguments)
    target = CpuTarget("x86-64-v4")
    return LlvmEmitter(target, (16, 1, 1)).emit(legal(trace, target.level, optimised=True)).text


MASKED = (in_an_arm, after_a_store)
IMAGE = np.zeros((5, 40), np.float32)


@pytest.mark.parametrize(
    "body",
    [body for body in SAME if body not in (in_an_arm, after_a_store)],
    ids=lambda f: f.__name__,
)
def test_full_subgroups_read_vectors(body: Callable[..., None]) -> None:
    """One version without masks reads a vector; the other one decides whether it gathers."""
    text = llvm(body, IMAGE, IMAGE.copy(), 1, 1)
    assert text.count("= load <16 x float>") == 1
    assert text.count("@llvm.masked.load.v16f32") == 1
    assert text.count("@llvm.masked.gather") == 1
    assert text.index("= load <16 x float>") < text.index("@llvm.masked.gather")


def test_code_without_a_way_back_decides_for_each_vector() -> None:
    text = llvm(after_a_store, IMAGE, IMAGE.copy(), 1, 1)
    assert text.count("@llvm.masked.gather") == text.count("@llvm.masked.load.v16f32") == 6


@pytest.mark.parametrize("lanes", [(4, 1, 1), (8, 2, 1), (16, 4, 1), (4, 1, 2), (8, 2, 4)], ids=str)
@pytest.mark.parametrize("index_bits", [32, 64])
def test_vectors_and_rows_of_any_number(
    rng: Rng, index_bits: int, lanes: tuple[int, int, int]
) -> None:
    for body in (function, after_a_store):
        recorded = kj.jit(body).trace(IMAGE, IMAGE.copy(), 1, 1)
        trace = replace(recorded, index_bits=index_bits)
        compiled = compile_trace(trace, rng.choice(levels_here()), lanes, optimised=True)
        for dx in (0, 1, -3, 20):
            x, out = rng.random((7, 61), np.float32), np.zeros((7, 61), np.float32)
            compiled.run([x, out], [-1, dx], (61, 7, 1))
            np.testing.assert_array_equal(out, shifted(x, -1, dx))


def test_arms_of_full_subgroups_read_vectors() -> None:
    """What is clamped before a branch is known in its arms."""
    text = llvm(in_an_arm, IMAGE, IMAGE.copy(), 1, 1)
    assert text.count("@llvm.masked.gather") == 2
    assert text.count("@llvm.masked.load.v16f32") == 4


def test_what_indexes_no_load_is_no_reason_to_go_back() -> None:
    def ramp(x: kj.Array1[kj.i32], limit: kj.i32) -> None:
        x[kj.global_id(0)] = min(kj.global_id(0), limit)

    def plain(x: kj.Array1[kj.i32], limit: kj.i32) -> None:
        x[kj.global_id(0)] = kj.global_id(0) + limit

    row = np.zeros(40, np.int32)
    assert llvm(ramp, row, 3).count("br i1") == llvm(plain, row, 3).count("br i1")
