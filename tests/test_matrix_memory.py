"""The behaviour matrix: memory, atomics and vectors, in every dtype and device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import ALL, FLOATS, INTEGERS, DType, bf16, bool_, f32, i32, i64
from tests import plain
from tests.matrix import (
    KJ,
    SIZE,
    able,
    able_atomic,
    array_of,
    each,
    exact,
    expect,
    kernel,
    needs,
    operands,
    poisoned,
    scalars,
    tame,
    unless_able,
    whole,
)

Rng = np.random.Generator
Array = NDArray[Any]

_NUMBERS: Final = (*INTEGERS, *FLOATS)


# Loads and stores.


def copy(a: Any, out: Any) -> None:
    """One element an invocation."""
    i = kj.global_id(0)
    out[i] = a[i]


def copy_2d(a: Any, out: Any) -> None:
    """One element an invocation, by rows."""
    y, x = kj.index(2)
    out[y, x] = a[y, x]


@each(ALL)
def test_contiguous_and_misaligned_elements(device: Device, rng: Rng, dtype: DType) -> None:
    launch = kernel(copy, {"a": array_of(dtype), "out": array_of(dtype)})
    source = operands(rng, dtype, 1, SIZE + 8)[0]
    for start, end, shift in ((0, SIZE, 0), (1, SIZE, 0), (3, 20, 1), (0, 1, 5), (7, 7 + 64, 3)):
        given = source[start:end]
        backing = poisoned(SIZE + 8, dtype)
        out = backing[shift : shift + given.size]
        with unless_able(able(device, dtype)):
            launch[given.size + 5](given, out)
        if not able(device, dtype):
            return
        wanted = poisoned(SIZE + 8, dtype)
        wanted[shift : shift + given.size] = given
        expect(device, dtype, backing, wanted, what=f"a copy from {start} to {shift}")


@each(ALL)
def test_strided_turned_and_reversed_elements(device: Device, rng: Rng, dtype: DType) -> None:
    needs(device, dtype)
    launch = kernel(copy_2d, {"a": array_of(dtype, 2), "out": array_of(dtype, 2)})
    base = operands(rng, dtype, 1, 33 * 41)[0].reshape(33, 41)
    for view in (base[:, 1:], base[::2, ::3], base.T, base[::-1, ::-1], base[:1], base[:, :1]):
        backing = poisoned((view.shape[1] * 2, view.shape[0] * 3), dtype)
        out = backing.T[1::3, ::2]
        launch[kj.over(view)](view, out)
        expect(device, dtype, out, view, what=f"strides {view.strides}")
        rest = backing.copy()
        rest.T[1::3, ::2] = poisoned(view.shape, dtype)
        expect(device, dtype, rest, poisoned(rest.shape, dtype), what="what is beside a view")


@each(ALL)
def test_reads_out_of_bounds_are_zero_and_writes_are_nothing(
    device: Device, rng: Rng, dtype: DType
) -> None:
    def body(a: Any, out: Any, hits: Any, places: Any) -> None:
        i = kj.global_id(0)
        out[i] = a[places[i]]
        hits[places[i] + 9] = a[2]

    wild = np.array([0, -1, 16, 17, 5, 2**31 - 1, -(2**31), 15, 2**32, 2**32 + 1, -(2**63)])
    given = operands(rng, dtype, 1, 16)[0]
    out, hits = poisoned(11, dtype), poisoned(11, dtype)
    types = {"a": dtype, "out": dtype, "hits": dtype, "places": i64}
    can = able(device, dtype, i64)
    with unless_able(can):
        kernel(body, {name: array_of(one) for name, one in types.items()})[11](
            given, out, hits, wild
        )
    if not can:
        return
    expected = np.zeros(11, dtype.numpy)
    inside = (wild >= 0) & (wild < 16)
    expected[inside] = given[wild[inside]]
    expect(device, dtype, out, expected)
    expected = poisoned(11, dtype)
    expected[[9, 8]] = given[2]  # of the places 0 and -1
    expect(device, dtype, hits, expected)


# Shared, local and constant memory.


@each(ALL)
def test_shared_memory(device: Device, rng: Rng, dtype: DType) -> None:
    def body(a: Any, out: Any) -> None:
        tile = KJ.shared(dtype, (4, 12))
        i, lane = kj.global_id(0), kj.local_id(0)
        tile[lane // 12, lane % 12] = a[i]
        kj.barrier()
        other = 47 - lane
        out[i] = tile[other // 12, other % 12]

    given = operands(rng, dtype, 1, 48 * 5)[0]
    out = poisoned(given.size, dtype)
    launch = kernel(body, {"a": array_of(dtype), "out": array_of(dtype)}, workgroup=48)
    with unless_able(able(device, dtype)):
        launch[given.size](given, out)
    if able(device, dtype):
        expect(device, dtype, out, given.reshape(5, 48)[:, ::-1].ravel())


@each(ALL)
def test_local_memory_at_run_time_indices(device: Device, rng: Rng, dtype: DType) -> None:
    def body(a: Any, out: Any, order: Any) -> None:
        i = kj.global_id(0)
        own = KJ.local(dtype, 5)
        for k in range(5):
            own[order[i, k]] = a[i, k]
        own[7] = a[i, 0]
        for k in range(5):
            out[i, k] = own[k]

    rows = 97
    given = operands(rng, dtype, 1, rows * 5)[0].reshape(rows, 5)
    order = np.array([rng.permutation(5) for _ in range(rows)], np.int32)
    out = poisoned((rows, 5), dtype)
    types = {"a": array_of(dtype, 2), "out": array_of(dtype, 2), "order": array_of(i32, 2)}
    with unless_able(able(device, dtype)):
        kernel(body, types)[rows](given, out, order)
    if able(device, dtype):
        expected = np.empty_like(given)
        np.put_along_axis(expected, order.astype(np.intp), given, 1)
        expect(device, dtype, out, expected)


@each(tuple(dtype for dtype in ALL if dtype is not bf16))  # of which NumPy has no table
def test_constant_tables(device: Device, rng: Rng, dtype: DType) -> None:
    table = operands(rng, dtype, 1, 21)[0].reshape(3, 7)

    def body(places: Any, out: Any) -> None:
        i = kj.global_id(0)
        contents = kj.constant(table)
        out[i] = contents[places[i] // 7, places[i] % 7]

    places = rng.integers(-7, 28, 203, np.int32)
    out = poisoned(203, dtype)
    with unless_able(able(device, dtype)):
        kernel(body, {"places": array_of(i32), "out": array_of(dtype)})[203](places, out)
    if able(device, dtype):
        inside = (places >= 0) & (places < 21)
        flat = table.ravel()
        expected = np.where(inside, flat[places * inside], np.zeros(1, dtype.numpy))
        expect(device, dtype, out, expected)


# Vectors.


@each(ALL)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_vectors(device: Device, rng: Rng, dtype: DType, count: int) -> None:
    logic = dtype is bool_
    swizzle = {2: "yx", 3: "zxy", 4: "wwxy"}[count]

    def body(v: Any, w: Any, out: Any) -> None:
        i = kj.global_id(0)
        a, b = v[i], w[i]
        mixed = (a & b) | (a ^ b) if logic else a * b - a
        mixed.x = a[count - 1]
        out[i, 0] = mixed
        out[i, 1] = kj.select(a == b, a, getattr(b, swizzle))
        out[i, 2] = kj.vec(count, dtype)(a[kj.i32(i) % count])
        me = b
        me.y = a.x
        out[i, 2].y = me[1]

    v, w = (
        tame(device, dtype, one.reshape(57, count)) for one in operands(rng, dtype, 2, 57 * count)
    )
    out = poisoned((57, 3, count), dtype)
    vector = array_of(dtype, 1, count)
    launch = kernel(
        body, {"v": vector, "w": vector, "out": array_of(dtype, 2, count)}, contract=False
    )
    with unless_able(able(device, dtype)):
        launch[57](v, w, out)
    if not able(device, dtype):
        return
    expected = np.array([_vectors(dtype, *row) for row in enumerate(zip(v, w, strict=True))])
    expect(device, dtype, out, expected.astype(dtype.numpy))


def _vectors(dtype: DType, i: int, pair: tuple[Array, Array]) -> list[list[Any]]:
    a, b = (scalars(dtype, one) for one in pair)
    count = len(a)
    with np.errstate(all="ignore"):
        if dtype is bool_:
            mixed = [(x & y) | (x ^ y) for x, y in zip(a, b, strict=True)]
        else:
            mixed = [x * y - x for x, y in zip(a, b, strict=True)]
    mixed[0] = a[-1]
    other = [b[k] for k in {2: (1, 0), 3: (2, 0, 1), 4: (3, 3, 0, 1)}[count]]
    chosen = [x if x == y else z for x, y, z in zip(a, b, other, strict=True)]
    picked = [a[i % count]] * count
    picked[1] = a[0]
    return [[plain.to_memory(one) for one in row] for row in (mixed, chosen, picked)]


@each(_NUMBERS)
def test_functions_of_vectors(device: Device, rng: Rng, dtype: DType) -> None:
    def body(v: Any, w: Any, out: Any) -> None:
        i = kj.global_id(0)
        a, b = v[i], w[i]
        out[i, 0] = kj.dot(a, b)
        cross = kj.cross(a, b)
        for k in kj.unroll(range(3)):
            out[i, 1 + k] = cross[k]
        out[i, 4] = kj.min(a, b).x
        out[i, 5] = kj.abs(a - b).y
        out[i, 6] = kj.clamp(a, 1, 2).z

    v, w = (exact(dtype, rng.integers(0, 6, (41, 3))) for _ in range(2))
    out = poisoned((41, 7), dtype)
    vector = array_of(dtype, 1, 3)
    launch = kernel(body, {"v": vector, "w": vector, "out": array_of(dtype, 2)})
    with unless_able(able(device, dtype)):
        launch[41](v, w, out)
    if not able(device, dtype):
        return
    a, b = (np.array(whole(dtype, one)).reshape(41, 3) for one in (v, w))
    columns = [(a * b).sum(1), *np.cross(a, b).T, np.minimum(a, b)[:, 0]]
    gap = (a - b)[:, 1]
    if dtype.is_float or dtype.is_signed:
        gap = np.abs(gap)
    columns += [gap, np.clip(a, 1, 2)[:, 2]]
    with np.errstate(all="ignore"):
        expected = exact(dtype, np.stack(columns, 1))
    expect(device, dtype, out, np.where(expected == 0, np.zeros_like(expected), expected))


# Atomics.

_COMBINE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


@each(ALL)
@pytest.mark.parametrize("kind", _COMBINE)
def test_atomics_that_combine(device: Device, rng: Rng, dtype: DType, kind: str) -> None:
    def body(memory: Any, places: Any, values: Any, ones: Any, olds: Any) -> None:
        i = kj.global_id(0)
        atomic = getattr(kj, f"atomic_{kind}")
        atomic(memory, places[i], values[i])
        olds[i] = atomic(ones, 0, values[i])

    count = 397
    top = 2 if dtype is bool_ else 3 if dtype.is_float else 100
    values = rng.integers(0, top, count)
    if dtype is bf16 and kind in ("add", "sub"):
        values[60:] = 0  # sums stay whole numbers of 8 bits
    places = rng.integers(-2, 9, count).astype(np.int32)
    before = rng.integers(0, top, 7)
    memory, given, ones = (exact(dtype, one) for one in (before, values, np.zeros(1, np.int64)))
    olds = poisoned(count, dtype)
    types = {"memory": dtype, "places": i32, "values": dtype, "ones": dtype, "olds": dtype}
    made = kernel(body, {name: array_of(one) for name, one in types.items()})
    if (dtype.is_float and kind in ("and", "or", "xor")) or (
        dtype is bool_ and kind in ("add", "sub", "min", "max")
    ):
        with pytest.raises(kj.TraceError, match=f"atomic_{kind} on {dtype.name}"):
            made[count](memory, places, given, ones, olds)
        return
    can = able_atomic(device, dtype)
    with unless_able(can):
        made[count](memory, places, given, ones, olds)
    if not can:
        return
    expected = [int(one) for one in before]
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        if 0 <= place < 7:
            expected[place] = _COMBINE[kind](expected[place], value)
    low, high = dtype.limits
    final = 0
    for value in values.tolist():
        final = _COMBINE[kind](final, value)
    if dtype.is_integer:
        expected = [(one - low) % (high - low + 1) + low for one in expected]
        final = (final - low) % (high - low + 1) + low
    assert whole(dtype, memory) == expected
    assert whole(dtype, ones) == [final]
    assert 0 in whole(dtype, olds)  # the first to come found what was there


@each(ALL)
def test_atomics_that_exchange(device: Device, rng: Rng, dtype: DType) -> None:
    def body(memory: Any, values: Any, olds: Any) -> None:
        i = kj.global_id(0)
        olds[i, 0] = kj.atomic_exchange(memory, 0, values[i])
        olds[i, 1] = kj.atomic_compare_exchange(memory, 1, values[0], values[1])
        kj.atomic_store(memory, i + 2, values[i])
        olds[i, 2] = kj.atomic_load(memory, i + 2)
        olds[i, 3] = kj.atomic_compare_exchange(memory, i + 2, values[i], values[0])
        olds[i, 4] = kj.atomic_exchange(memory, i - 9999, values[i])

    count = 90
    numbers = np.arange(1, count + 1) % 2 if dtype is bool_ else np.arange(1, count + 1)
    values = exact(dtype, numbers)
    memory = exact(dtype, np.array([0, numbers[0], *np.zeros(count, np.int64)]))
    olds = poisoned((count, 5), dtype)
    types = {"memory": array_of(dtype), "values": array_of(dtype), "olds": array_of(dtype, 2)}
    can = able_atomic(device, dtype)
    with unless_able(can):
        kernel(body, types)[count](memory, values, olds)
    if not can:
        return
    seen = np.array(whole(dtype, olds)).reshape(count, 5)
    after = whole(dtype, memory)
    assert sorted([*seen[:, 0], after[0]]) == sorted([0, *numbers])
    assert after[1] == numbers[1]
    assert sorted(seen[:, 1])[0 if numbers[1] > numbers[0] else -1] == numbers[0]
    assert (seen[:, 1] == numbers[0]).sum() == 1
    assert (seen[:, 2] == numbers).all()
    assert (seen[:, 3] == numbers).all()
    assert after[2:] == [numbers[0]] * count
    assert (seen[:, 4] == 0).all()


@each(ALL)
def test_atomics_in_shared_memory(device: Device, rng: Rng, dtype: DType) -> None:
    kind = "or" if dtype is bool_ else "add"

    def body(values: Any, out: Any) -> None:
        total = KJ.shared(dtype, 3)
        lane = kj.local_id(0)
        if lane < 3:
            total[lane] = dtype(0)
        kj.barrier()
        getattr(kj, f"atomic_{kind}")(total, lane % 3, values[kj.global_id(0)])
        kj.barrier()
        if lane < 3:
            out[kj.workgroup_id(0), lane] = total[lane]

    numbers = rng.integers(0, 2, (4, 36))
    out = poisoned((4, 3), dtype)
    types = {"values": array_of(dtype), "out": array_of(dtype, 2)}
    can = able_atomic(device, dtype, shared=True)
    with unless_able(can):
        kernel(body, types, workgroup=36)[4 * 36](exact(dtype, numbers.ravel()), out)
    if not can:
        return
    sums = numbers.reshape(4, 12, 3).sum(1)
    assert whole(dtype, out) == (np.minimum(sums, 1) if dtype is bool_ else sums).ravel().tolist()


def test_values_that_a_device_lacks_are_refused_with_the_line(device: Device) -> None:
    lacking = [dtype for dtype in ALL if not able(device, dtype)]
    for dtype in lacking:
        with pytest.raises(kj.CapabilityError, match=dtype.name) as caught:
            kernel(copy, {"a": array_of(dtype), "out": array_of(dtype)})[3](
                np.zeros(3, dtype.numpy), np.zeros(3, dtype.numpy)
            )
        assert caught.value.mend
    assert f32 not in lacking
    assert i32 not in lacking
