"""The interpreter: traces built by hand, judged by NumPy, plain Python, or one lane at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import (
    INTEGERS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    i64,
    index,
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.errors import ArgumentValueError, InternalError
from khaljit.tracer.interpret import Report, interpret
from khaljit.tracer.ir import (
    IDS,
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Options,
    Region,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.numerics import evaluate, from_memory, to_memory
from khaljit.tracer.ops import Op

Array = NDArray[Any]
Shape = tuple[int, int, int]


class Kernel:
    """A trace in the making: the builder with the parameters declared so far."""

    def __init__(self, workgroup: Shape | None = None, index_bits: int = 32) -> None:
        self.builder = Builder()
        self.workgroup = workgroup
        self.index_bits = index_bits
        self.arrays: list[ArrayParam] = []
        self.scalars: list[ScalarParam] = []
        self.builder.open()

    def array(self, element: DType | Element, ndim: int = 1) -> Value:
        element = Element.scalar(element) if isinstance(element, DType) else element
        number = len(self.arrays)
        memory = Memory(Space.ARRAY, number, element, (None,) * ndim)
        self.arrays.append(ArrayParam(f"a{number}", memory, True, True, number, number))
        return self.builder.memory(memory)

    def fixed(self, space: Space, dtype: DType, shape: tuple[int, ...], number: int = 0) -> Value:
        return self.builder.memory(Memory(space, number, Element.scalar(dtype), shape))

    def scalar(self, dtype: DType) -> Value:
        self.scalars.append(ScalarParam(f"s{len(self.scalars)}", dtype))
        return self.builder.scalar(len(self.scalars) - 1, dtype)

    def const(self, number: float, dtype: DType = i32) -> Value:
        return self.builder.const(dtype, number)

    def id(self, axis: int = 0) -> Value:
        return self.builder.id("global", axis)

    def do(self, op: Op, *args: Value) -> Value:
        return self.builder.pure(op, args)

    def load(self, memory: Value, *indices: Value, access: Access | None = None) -> Value:
        access = access or Access()
        assert isinstance(memory.attr, Memory)
        dtype = dict(memory.attr.element.leaves)[access.leaf]
        return self.builder.load(memory, indices, dtype, access)

    def store(self, value: Value, memory: Value, *indices: Value, leaf: int = 0) -> None:
        self.builder.store(memory, indices, value, Access(leaf))

    def atomic(self, kind: str, memory: Value, place: Value, *operands: Value) -> Value:
        access = AtomicAccess(kind=kind)
        assert isinstance(memory.attr, Memory)
        dtype = memory.attr.element.leaves[0][1]
        return self.builder.effect(Op.ATOMIC, (memory, place, *operands), access, dtype)

    def subgroup(self, name: str, dtype: DType, *args: Value) -> Value:
        return self.builder.effect(Op.SUBGROUP, args, name, dtype)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """An ``if`` with no else and no results."""
        self.builder.open()
        yield
        if not self.builder.ended:
            self.builder.end(Op.YIELD)
        then = self.builder.close()
        self.builder.if_(condition, then, self.region(Op.YIELD))

    def region(self, end: Op, *values: Value) -> Region:
        """A region with nothing but its end."""
        self.builder.open()
        self.builder.end(end, values)
        return self.builder.close()

    def trace(self) -> Trace:
        if not self.builder.ended:
            self.builder.end(Op.YIELD)
        return Trace(
            "kernel",
            tuple(self.arrays),
            tuple(self.scalars),
            self.workgroup,
            self.index_bits,
            Options(),
            self.builder.close(),
        )

    def run(
        self,
        *arrays: Array,
        groups: int | Shape = 1,
        scalars: Sequence[float] = (),
        **options: Any,
    ) -> Report:
        counts = (groups, 1, 1) if isinstance(groups, int) else groups
        return interpret(self.trace(), arrays, scalars, counts, **options)


def generator() -> np.random.Generator:
    return np.random.default_rng()


# Memory.


def doubling(ndim: int) -> Kernel:
    """out[...] = 2 * a[...] with the ids as indices, the last axis along x."""
    kernel = Kernel()
    out, a = kernel.array(i32, ndim), kernel.array(i32, ndim)
    place = tuple(kernel.id(ndim - 1 - axis) for axis in range(ndim))
    kernel.store(kernel.do(Op.MUL, kernel.load(a, *place), kernel.const(2)), out, *place)
    return kernel


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a[::-1],
        lambda a: a[::2, ::-3],
        lambda a: a.T,
        lambda a: a[3:3],
        lambda a: a[:, 2:3],
        lambda a: np.asfortranarray(a),
        lambda a: np.broadcast_to(a[0], a.shape),
    ],
)
def test_any_view_of_a_host_array_is_read_and_written_where_it_lies(
    view: Callable[[Array], Array],
) -> None:
    whole = generator().integers(-100, 100, (7, 9)).astype(np.int32)
    a = view(whole)
    target = np.full((2 * a.shape[0], 3 * a.shape[1]), -1, np.int32)
    out = target[::-2, 2::3]
    doubling(2).run(out, a, groups=(a.shape[1], a.shape[0], 1))
    assert np.array_equal(out, 2 * a)
    assert (target == -1).sum() == target.size - a.size  # nothing else was touched


def test_out_of_bounds_reads_give_0_and_writes_do_nothing() -> None:
    a = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    out = np.full((5, 6), -1, np.int32)
    doubling(2).run(out, a, groups=(9, 8, 1))
    wanted = np.zeros((5, 6), np.int32)
    wanted[:3, :4] = 2 * a
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("dtype", [*INTEGERS, index], ids=str)
def test_indices_of_every_integer_type_are_checked_by_their_value(dtype: DType) -> None:
    low, high = dtype.limits
    numbers = [0, 2, 3, 4, high, high - 1, low, low + 1, max(low, -1), max(low, -4)]
    numbers = [n for n in numbers if dtype is not index or abs(n) < 1 << 31]
    kernel = Kernel()
    out, a, places = kernel.array(i32), kernel.array(i32), kernel.array(i64)
    place = kernel.builder.cast(kernel.load(places, kernel.id()), dtype)
    kernel.store(kernel.load(a, place), out, kernel.id())
    kernel.store(kernel.const(-7), a, place)
    data, result = np.array([5, 6, 7, 8], np.int32), np.full(len(numbers), -1, np.int32)
    raw = np.array([n - (1 << 64) if n >= 1 << 63 else n for n in numbers], np.int64)
    kernel.run(result, data, raw, groups=len(numbers))
    assert result.tolist() == [[5, 6, 7, 8][n] if 0 <= n < 4 else 0 for n in numbers]
    assert data.tolist() == [-7 if n in numbers else 5 + n for n in range(4)]


def test_an_array_without_axes_has_one_element() -> None:
    kernel = Kernel()
    out, a = kernel.array(f32, 0), kernel.array(f32, 0)
    kernel.store(kernel.do(Op.ADD, kernel.load(a), kernel.load(a)), out)
    result = np.array(0, np.float32)
    kernel.run(result, np.array(1.25, np.float32))
    assert result == 2.5


def test_flat_accesses_count_units_of_the_alignment_and_obey_their_guard() -> None:
    vector = Element.vector(f32, 3)
    kernel = Kernel()
    out, a, picks = kernel.array(f32), kernel.array(vector), kernel.array(i32)
    builder = kernel.builder
    pick = builder.load(picks, (builder.cast(kernel.id(), i32),), i32, Access(flat=True))
    stride = builder.pure(Op.STRIDE, (a,), 0, i32)
    offset = kernel.do(Op.MUL, pick, stride)
    guard = kernel.do(Op.LT, pick, builder.pure(Op.SHAPE, (a,), 0, i32))
    guarded = Access(4, flat=True, guarded=True)
    second = builder.load(a, (offset, guard), f32, guarded)
    third = builder.load(a, (offset, guard), f32, Access(8, flat=True, guarded=True))
    builder.store(a, (offset, guard), builder.const(f32, -1), guarded)
    both = kernel.do(Op.ADD, second, third)
    builder.store(out, (builder.cast(kernel.id(), i32),), both, Access(flat=True))
    data = np.arange(30, dtype=np.float32).reshape(10, 3)[::2]
    result = np.full(4, -1, np.float32)
    kernel.run(result, data, np.array([0, 3, 99, 4], np.int32), groups=4)
    assert result.tolist() == [1 + 2, 19 + 20, 0, 25 + 26]
    assert data[:, 1].tolist() == [-1, 7, 13, -1, -1]
    assert data[:, 0].tolist() == [0, 6, 12, 18, 24]


def test_structured_elements_and_trailing_axes_are_the_same_bytes() -> None:
    def moved() -> Kernel:
        kernel = Kernel()
        out = kernel.array(Element.vector(f32, 3))
        a = kernel.array(Element.vector(f32, 3))
        for k in range(3):
            value = kernel.load(a, kernel.id(), access=Access(4 * k))
            kernel.store(value, out, kernel.id(), leaf=8 - 4 * k)
        return kernel

    rows = generator().standard_normal((5, 3)).astype(np.float32)
    fields = np.dtype([("x", np.float32), ("y", np.float32), ("z", np.float32)])
    for a in (rows, rows.view(fields)[:, 0]):
        for out in (np.zeros((5, 3), np.float32), np.zeros(5, fields), np.zeros((5, 1), fields)):
            if out.shape == (5, 1):  # one axis too many is no part of the element
                out = out[:, 0]
            moved().run(out, a, groups=7)
            assert np.array_equal(out.view(np.float32).reshape(5, 3), rows[:, ::-1])


@pytest.mark.parametrize(
    ("size", "align", "leaf"), [(5, 1, 1), (8, 4, 1), (9, 1, 4), (8, 1, 4), (8, 4, 4)]
)
def test_packed_elements_are_read_at_any_byte(size: int, align: int, leaf: int) -> None:
    kernel = Kernel()
    out, a = kernel.array(f32), kernel.array(Element(size, align, ((0, u8), (leaf, f32))))
    kernel.store(kernel.load(a, kernel.id(), access=Access(leaf)), out, kernel.id())
    x = kernel.builder.cast(kernel.id(), i32)
    offset = kernel.do(Op.MUL, x, kernel.builder.pure(Op.STRIDE, (a,), 0, i32))
    guard = kernel.do(Op.LT, x, kernel.const(3))
    flat = kernel.load(a, offset, guard, access=Access(leaf, flat=True, guarded=True))
    kernel.store(flat, out, kernel.do(Op.ADD, x, kernel.const(5)))
    fields: Any = {
        "names": ["tag", "value"],
        "formats": ["u1", "f4"],
        "offsets": [0, leaf],
        "itemsize": size,
    }
    data: Array = np.zeros(4, np.dtype(fields))
    data["value"] = [1.5, -2, 3, 4]
    result = np.full(10, -1, np.float32)
    kernel.run(result, data[::-1][:3], groups=5)
    assert result.tolist() == [4, 3, -2, 0, 0] * 2


def test_an_array_whose_elements_do_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="no 1 axes of elements of 4 bytes"):
        doubling(1).run(np.zeros(3, np.int32), np.zeros(3, np.int64), groups=3)
    kernel = Kernel()
    kernel.store(kernel.const(1, f32), kernel.array(Element.vector(f32, 3)), kernel.id())
    with pytest.raises(ArgumentValueError):
        kernel.run(np.zeros((3, 4), np.float32).T[:3].T[:, ::1][:, :3].T[::-1].T, groups=1)


@pytest.mark.parametrize("dtype", [bool_, u8, u16, u64, f16, bf16, f64], ids=str)
def test_memory_holds_values_in_their_own_format(dtype: DType) -> None:
    kernel = Kernel()
    out, a = kernel.array(dtype), kernel.array(dtype)
    value = kernel.load(a, kernel.id())
    if dtype is not bool_:
        value = kernel.do(Op.ADD, value, value)
    kernel.store(value, out, kernel.id())
    raw = generator().integers(0, 64, 20).astype(np.uint8)
    numbers = evaluate(Op.CAST, dtype, (u8,), (raw,), 32)
    data = to_memory(dtype, numbers)
    if dtype is bool_:
        data = raw.view(np.bool_)
    result = np.zeros_like(data)
    kernel.run(result, data, groups=20)
    wanted = raw != 0 if dtype is bool_ else 2.0 * raw
    assert from_memory(dtype, result).tolist() == wanted.tolist()


def test_shared_memory_is_per_workgroup_and_barriers_order_it() -> None:
    kernel = Kernel((4, 2, 1))
    out = kernel.array(i32)
    shared = kernel.fixed(Space.SHARED, i32, (8,))
    local = kernel.builder.id("local_index")
    kernel.store(kernel.builder.cast(kernel.id(), i32), shared, local)
    kernel.builder.effect(Op.BARRIER, (), "workgroup")
    mirrored = kernel.do(Op.SUB, kernel.const(7, index), local)
    group = kernel.do(Op.MUL, kernel.builder.id("workgroup"), kernel.const(8, index))
    kernel.store(kernel.load(shared, mirrored), out, kernel.do(Op.ADD, group, local))
    result = np.zeros(24, np.int32)
    kernel.run(result, groups=3)
    wanted = [[4 * g + x for x in (3, 2, 1, 0, 3, 2, 1, 0)] for g in range(3)]
    assert result.reshape(3, 8).tolist() == wanted


def test_local_memory_is_per_invocation_in_any_number_of_axes() -> None:
    kernel = Kernel()
    out = kernel.array(i32)
    local = kernel.fixed(Space.LOCAL, i32, (2, 3))
    x = kernel.builder.cast(kernel.id(), i32)
    for row, column in itertools.product(range(2), range(3)):
        value = kernel.do(Op.MUL, x, kernel.const(10 * row + column))
        kernel.store(value, local, kernel.const(row, index), kernel.const(column, index))
    outside = kernel.load(local, kernel.const(0, index), kernel.const(3, index))
    inside = kernel.load(local, kernel.const(1, index), kernel.const(2, index))
    kernel.store(kernel.do(Op.ADD, outside, inside), out, kernel.id())
    result = np.zeros(9, np.int32)
    kernel.run(result, groups=9)
    assert result.tolist() == [12 * x for x in range(9)]


@pytest.mark.parametrize("space", [Space.SHARED, Space.LOCAL])
def test_memory_that_was_never_written_is_poisoned_on_request(space: Space) -> None:
    def result(poison: bool) -> list[int]:
        kernel = Kernel((4, 1, 1))
        out = kernel.array(i64)
        fresh = kernel.fixed(space, i64, (4,))
        kernel.store(kernel.load(fresh, kernel.builder.id("local")), out, kernel.id())
        result = np.zeros(8, np.int64)
        kernel.run(result, groups=2, poison=poison)
        return list(result.tolist())

    assert result(False) == [0] * 8
    assert len({*result(True), *result(True)}) == 16


def test_tables_hold_their_data() -> None:
    data = np.array([[1.5, 2.5], [3.5, 4.5]], np.float32)
    kernel = Kernel()
    out = kernel.array(f32)
    table = kernel.builder.memory(
        Memory(Space.TABLE, 0, Element.scalar(f32), (2, 2), data.tobytes())
    )
    value = kernel.load(table, kernel.id(), kernel.const(1, index))
    kernel.store(value, out, kernel.id())
    result = np.full(3, -1, np.float32)
    kernel.run(result, groups=3)
    assert result.tolist() == [2.5, 4.5, 0]


def test_shapes_and_strides_are_those_of_the_view() -> None:
    kernel = Kernel(index_bits=64)
    out, a = kernel.array(i64), kernel.array(Element.vector(f64, 2), 2)
    builder = kernel.builder
    facts = [builder.shape(a, 0), builder.shape(a, 1), builder.stride(a, 0), builder.stride(a, 1)]
    for k, fact in enumerate(facts):
        kernel.store(builder.cast(fact, i64), out, kernel.const(k, index))
    result = np.zeros(4, np.int64)
    kernel.run(result, np.zeros((6, 5, 2))[::-2])
    assert result.tolist() == [3, 5, -20, 2]


def test_an_unchecked_access_outside_its_memory_is_an_internal_error() -> None:
    for place in (-1, 4):
        kernel = Kernel()
        a = kernel.array(i32)
        kernel.builder.store(a, (kernel.const(place),), kernel.const(1), Access(checked=False))
        with pytest.raises(InternalError, match="outside its memory"):
            kernel.run(np.zeros(4, np.int32))


def test_one_array_may_be_passed_twice() -> None:
    data = np.arange(6, dtype=np.int32)
    doubling(1).run(data, data, groups=6)
    assert data.tolist() == [0, 2, 4, 6, 8, 10]


def test_scalars_come_in_their_types() -> None:
    kernel = Kernel()
    out = kernel.array(f64)
    for k, dtype in enumerate((f32, bf16, u8, i64, bool_, f16)):
        value = kernel.builder.cast(kernel.scalar(dtype), f64)
        kernel.store(value, out, kernel.const(k, index))
    result = np.zeros(6)
    kernel.run(result, scalars=[0.1, 1 / 3, 200, -(2**40), True, 0.5])
    bfloat = from_memory(bf16, np.array(0x3EAB, np.uint16))
    assert result.tolist() == [np.float32(0.1), bfloat, 200, -(2**40), 1, 0.5]


# Ids.


def named_ids(workgroup: Shape, groups: Shape, limit: int) -> dict[tuple[str, int], Array]:
    """Every id of every invocation, by (name, axis), as an array over global z, y, x."""
    names = [(name, axis) for name, axes in IDS.items() for axis in range(axes)]
    sizes = [g * w for g, w in zip(groups, workgroup, strict=True)]
    kernel = Kernel(workgroup)
    out = kernel.array(i32, 4)
    place = tuple(kernel.id(axis) for axis in (2, 1, 0))
    for k, (name, axis) in enumerate(names):
        value = kernel.builder.cast(kernel.builder.id(name, axis), i32)
        kernel.store(value, out, kernel.const(k, index), *place)
    result = np.full((len(names), *sizes[::-1]), -1, np.int32)
    kernel.run(result, groups=groups, subgroup_size=limit)
    return dict(zip(names, result, strict=True))


@pytest.mark.parametrize(
    ("workgroup", "groups", "limit", "subgroup"),
    [
        ((4, 2, 3), (3, 5, 2), 8, 4),
        ((12, 1, 2), (2, 1, 3), 8, 4),
        ((16, 2, 1), (1, 2, 1), 8, 8),
        ((16, 1, 1), (2, 1, 1), 32, 16),
        ((5, 3, 1), (1, 1, 2), 8, 1),
    ],
)
def test_ids_follow_from_the_grid(
    workgroup: Shape, groups: Shape, limit: int, subgroup: int
) -> None:
    ids = named_ids(workgroup, groups, limit)
    z, y, x = np.indices(ids["global", 0].shape)
    wx, wy, wz = workgroup
    local = (x % wx, y % wy, z % wz)
    linear = local[0] + wx * (local[1] + wy * local[2])
    for axis, position in enumerate((x, y, z)):
        assert np.array_equal(ids["global", axis], position)
        assert np.array_equal(ids["local", axis], local[axis])
        assert np.array_equal(ids["workgroup", axis], position // workgroup[axis])
        assert (ids["num_workgroups", axis] == groups[axis]).all()
        assert (ids["workgroup_size", axis] == workgroup[axis]).all()
    assert np.array_equal(ids["local_index", 0], linear)
    assert np.array_equal(ids["subgroup", 0], linear // subgroup)
    assert np.array_equal(ids["lane", 0], linear % subgroup)
    assert (ids["num_subgroups", 0] == wx * wy * wz // subgroup).all()
    assert (ids["subgroup_size", 0] == subgroup).all()


def test_a_grid_with_a_zero_runs_nothing() -> None:
    data = np.arange(3, dtype=np.int32)
    doubling(1).run(data, data, groups=(3, 0, 1))
    assert data.tolist() == [0, 1, 2]


def test_large_grids_run_in_chunks_and_miss_nobody() -> None:
    size = 300_007
    a = generator().integers(-1000, 1000, size).astype(np.int32)
    out = np.zeros(size, np.int32)
    doubling(1).run(out, a, groups=size + 5)
    assert np.array_equal(out, 2 * a)


# Control flow. Each kernel writes one number per invocation; plain Python says which.


def outcome(build: Callable[[Kernel, Value, Value], None], count: int = 12) -> list[int]:
    """What a kernel leaves in out (from -1) where it is given x = the global id, as i32."""
    kernel = Kernel()
    out = kernel.array(i32)
    build(kernel, out, kernel.builder.cast(kernel.id(), i32))
    result = np.full(count, -1, np.int32)
    kernel.run(result, groups=count)
    return list(result.tolist())


def test_an_if_gives_each_lane_the_results_of_its_arm() -> None:
    def build(kernel: Kernel, out: Value, x: Value) -> None:
        builder = kernel.builder
        odd = kernel.do(Op.EQ, kernel.do(Op.AND, x, kernel.const(1)), kernel.const(1))
        builder.open()
        builder.end(Op.YIELD, (kernel.do(Op.MUL, x, kernel.const(3)), x))
        then = builder.close()
        orelse = kernel.region(Op.YIELD, kernel.const(100), kernel.do(Op.NEG, x))
        first, second = builder.if_(odd, then, orelse)
        kernel.store(kernel.do(Op.ADD, first, second), out, kernel.id())

    assert outcome(build) == [4 * x if x % 2 else 100 - x for x in range(12)]


def test_a_condition_that_is_equal_for_all_takes_one_arm() -> None:
    for number in (0, 1):
        kernel = Kernel()
        out = kernel.array(i32)
        condition = kernel.do(Op.NE, kernel.scalar(i32), kernel.const(0))
        arms = [kernel.region(Op.YIELD, kernel.const(k)) for k in (10, 20)]
        (value,) = kernel.builder.if_(condition, *arms)
        kernel.store(value, out, kernel.id())
        result = np.zeros(4, np.int32)
        kernel.run(result, groups=4, scalars=[number])
        assert result.tolist() == [10 if number else 20] * 4


def test_a_return_ends_its_lanes_alone() -> None:
    def build(kernel: Kernel, out: Value, x: Value) -> None:
        kernel.store(kernel.const(1), out, kernel.id())
        with kernel.when(kernel.do(Op.LT, x, kernel.const(5))):
            with kernel.when(kernel.do(Op.GT, x, kernel.const(2))):
                kernel.builder.end(Op.RETURN)
            kernel.store(kernel.const(2), out, kernel.id())
        kernel.store(kernel.do(Op.ADD, kernel.load(out, kernel.id()), x), out, kernel.id())

    assert outcome(build) == [x + 2 if x <= 2 else 1 if x < 5 else x + 1 for x in range(12)]


def test_an_if_whose_arms_both_leave_ends_its_region() -> None:
    def build(kernel: Kernel, out: Value, x: Value) -> None:
        builder = kernel.builder
        builder.open(())
        builder.open()
        kernel.store(kernel.const(7), out, kernel.id())
        builder.end(Op.RETURN)
        then = builder.close()
        orelse = kernel.region(Op.BREAK, x)
        builder.if_(kernel.do(Op.GT, x, kernel.const(5)), then, orelse)
        builder.end(Op.CONTINUE)
        (value,) = builder.loop((), builder.close(), (i32,))
        kernel.store(kernel.do(Op.MUL, value, value), out, kernel.id())

    assert outcome(build) == [x * x if x <= 5 else 7 for x in range(12)]


def collatz(kernel: Kernel, x: Value) -> Value:
    """Steps until 1, with a continue in one arm and the end of the body in the other."""
    builder = kernel.builder
    n, steps = builder.open((i32, i32))
    with kernel.when(kernel.do(Op.LE, n, kernel.const(1))):
        builder.end(Op.BREAK, (steps,))
    more = kernel.do(Op.ADD, steps, kernel.const(1))
    odd = kernel.do(Op.EQ, kernel.do(Op.MOD, n, kernel.const(2)), kernel.const(1))
    with kernel.when(odd):
        tripled = kernel.do(Op.ADD, kernel.do(Op.MUL, n, kernel.const(3)), kernel.const(1))
        builder.end(Op.CONTINUE, (tripled, more))
    builder.end(Op.CONTINUE, (kernel.do(Op.FLOORDIV, n, kernel.const(2)), more))
    (result,) = builder.loop((x, kernel.const(0)), builder.close(), (i32,))
    return result


def collatz_steps(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def test_lanes_leave_a_loop_each_in_its_own_iteration() -> None:
    def build(kernel: Kernel, out: Value, x: Value) -> None:
        kernel.store(collatz(kernel, x), out, kernel.id())

    assert outcome(build, 60) == [collatz_steps(x) for x in range(60)]


def test_carried_values_change_places_at_once() -> None:
    def build(kernel: Kernel, out: Value, x: Value) -> None:
        builder = kernel.builder
        a, b, k = builder.open((i32, i32, i32))
        with kernel.when(kernel.do(Op.EQ, k, x)):
            builder.end(Op.BREAK, (a,))
        builder.end(
            Op.CONTINUE, (b, kernel.do(Op.ADD, a, b), kernel.do(Op.ADD, k, kernel.const(1)))
        )
        zero, one = kernel.const(0), kernel.const(1)
        (result,) = builder.loop((zero, one, zero), builder.close(), (i32,))
        kernel.store(result, out, kernel.id())

    assert outcome(build) == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]


def test_inner_loops_start_anew_and_break_only_themselves() -> None:
    def build(kernel: Kernel, out: Value, x: Value) -> None:
        builder = kernel.builder
        one = kernel.const(1)
        i, total = builder.open((i32, i32))
        with kernel.when(kernel.do(Op.GE, i, x)):
            builder.end(Op.BREAK, (total,))
        j, inner = builder.open((i32, i32))
        with kernel.when(kernel.do(Op.GT, j, i)):
            builder.end(Op.BREAK, (inner,))
        with kernel.when(kernel.do(Op.GT, inner, kernel.const(50))):
            builder.end(Op.BREAK, (kernel.const(-1000),))
        # The square depends on the outer loop alone, though it is first needed in the inner one.
        square = kernel.do(Op.MUL, i, i)
        builder.end(
            Op.CONTINUE,
            (kernel.do(Op.ADD, j, one), kernel.do(Op.ADD, inner, square)),
        )
        (sum_,) = builder.loop((kernel.const(0), kernel.const(0)), builder.close(), (i32,))
        builder.end(Op.CONTINUE, (kernel.do(Op.ADD, i, one), kernel.do(Op.ADD, total, sum_)))
        (result,) = builder.loop((kernel.const(0), kernel.const(0)), builder.close(), (i32,))
        kernel.store(result, out, kernel.id())

    def wanted(x: int) -> int:
        total = 0
        for i in range(x):
            inner = 0
            for _ in range(i + 1):
                if inner > 50:
                    inner = -1000
                    break
                inner += i * i
            total += inner
        return total

    assert outcome(build) == [wanted(x) for x in range(12)]


def test_a_loop_that_does_not_end_is_reported() -> None:
    kernel = Kernel()
    kernel.builder.open()
    kernel.builder.end(Op.CONTINUE)
    kernel.builder.loop((), kernel.builder.close(), ())
    with pytest.raises(InternalError, match="not ended after 100 iterations"):
        kernel.run(max_iterations=100)


def test_a_loop_may_run_as_often_as_its_limit_says() -> None:
    kernel = Kernel()
    out = kernel.array(i32)
    (k,) = kernel.builder.open((i32,))
    with kernel.when(kernel.do(Op.GE, k, kernel.const(99))):
        kernel.builder.end(Op.BREAK, (k,))
    kernel.builder.end(Op.CONTINUE, (kernel.do(Op.ADD, k, kernel.const(1)),))
    (result,) = kernel.builder.loop((kernel.const(0),), kernel.builder.close(), (i32,))
    kernel.store(result, out, kernel.const(0, index))
    data = np.zeros(1, np.int32)
    kernel.run(data, max_iterations=100)
    assert data.tolist() == [99]


def test_deep_chains_of_values_do_not_recurse() -> None:
    kernel = Kernel()
    out = kernel.array(i32)
    value = kernel.builder.cast(kernel.id(), i32)
    for _ in range(20_000):
        value = kernel.do(Op.ADD, value, kernel.const(3))
    kernel.store(value, out, kernel.id())
    result = np.zeros(3, np.int32)
    kernel.run(result, groups=3)
    assert result.tolist() == [60_000, 60_001, 60_002]


# Random programs: the lockstep run against one invocation at a time in plain Python.


def wrap(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


PLAIN: Final[dict[Op, Callable[..., int]]] = {
    Op.ADD: lambda a, b: wrap(a + b),
    Op.SUB: lambda a, b: wrap(a - b),
    Op.MUL: lambda a, b: wrap(a * b),
    Op.XOR: lambda a, b: a ^ b,
    Op.MOD: lambda a, b: a % b if b else 0,
    Op.LT: lambda a, b: a < b,
    Op.EQ: lambda a, b: a == b,
    Op.SELECT: lambda c, a, b: a if c else b,
}


class Author:
    """Writes a random program of nested ifs and loops over i32 values."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.kernel = Kernel((4, 1, 1))
        self.out = self.kernel.array(i32)
        self.sums = self.kernel.array(i32)
        self.local = self.kernel.fixed(Space.LOCAL, i32, (4,))
        self.deepest = 3  # regions in one another; ``depth`` counts those still allowed
        self.loops = 0  # how many are open

    def chance(self, likelihood: float) -> bool:
        return bool(self.rng.random() < likelihood)

    def pick(self, pool: list[Value]) -> Value:
        return pool[int(self.rng.integers(max(0, len(pool) - 8), len(pool)))]

    def value(self, pool: list[Value]) -> Value:
        """A new value from the newest of the pool, which it joins."""
        do, a, b = self.kernel.do, self.pick(pool), self.pick(pool)
        ops = (Op.ADD, Op.SUB, Op.MUL, Op.XOR, Op.MOD, Op.SELECT)
        op = ops[int(self.rng.integers(len(ops)))]
        made = do(op, self.condition(pool), a, b) if op is Op.SELECT else do(op, a, b)
        pool.append(made)
        return made

    def condition(self, pool: list[Value]) -> Value:
        a, b = self.pick(pool), self.pick(pool)
        small = self.kernel.do(Op.MOD, a, self.kernel.const(int(self.rng.integers(2, 5))))
        if self.chance(0.5):
            return self.kernel.do(Op.EQ, small, self.kernel.const(0))
        return self.kernel.do(Op.LT, a, b)

    def statement(self, pool: list[Value], depth: int) -> None:
        kernel, kind = self.kernel, self.rng.random()
        if depth and kind < 0.25:
            self.branch(pool, depth)
        elif depth and kind < 0.4:
            self.loop(pool, depth)
        elif kind < 0.5:
            place = kernel.do(Op.MOD, self.pick(pool), kernel.const(6))
            kernel.store(self.pick(pool), self.local, place)
        elif kind < 0.6:
            place = kernel.do(Op.MOD, self.pick(pool), kernel.const(6))
            pool.append(kernel.load(self.local, place))
        elif kind < 0.7:
            place = kernel.do(Op.MOD, self.pick(pool), kernel.const(9))
            kernel.atomic("add", self.sums, place, self.pick(pool))
        elif kind < 0.75:
            kernel.store(self.pick(pool), self.out, kernel.id())
        else:
            self.value(pool)

    def block(self, pool: list[Value], depth: int) -> None:
        for _ in range(int(self.rng.integers(1, 5))):
            if not self.kernel.builder.ended:
                self.statement(pool, depth)

    def leave(self, pool: list[Value]) -> bool:
        """Perhaps leave the loop or the kernel from an arm."""
        builder = self.kernel.builder
        if self.loops and self.chance(0.3):
            builder.end(Op.BREAK, (self.pick(pool), self.pick(pool)))
        elif self.chance(0.08):
            builder.end(Op.RETURN)
        return builder.ended

    def branch(self, pool: list[Value], depth: int) -> None:
        builder = self.kernel.builder
        condition = self.condition(pool)
        arms = []
        for _ in range(2):
            inner = list(pool)
            builder.open()
            self.block(inner, depth - 1)
            if not builder.ended and not self.leave(inner):
                builder.end(Op.YIELD, (self.pick(inner), self.pick(inner)))
            arms.append(builder.close())
        pool.extend(builder.if_(condition, arms[0], arms[1]))
        if all(arm.end.op is not Op.YIELD for arm in arms):  # nothing follows, formally an end
            flow = (self.pick(pool), self.pick(pool)) if depth < self.deepest else ()
            builder.end(Op.BREAK if self.loops else Op.YIELD, flow)

    def loop(self, pool: list[Value], depth: int) -> None:
        """A loop that ends after a few iterations at the latest."""
        kernel, builder = self.kernel, self.kernel.builder
        initial = (kernel.const(0), self.pick(pool), self.pick(pool))
        counter, *carried = builder.open((i32, i32, i32))
        inner = [*pool, counter, *carried]
        self.loops += 1
        limit = kernel.const(int(self.rng.integers(0, 6)))
        goes_on = kernel.do(Op.LT, counter, limit)
        builder.open()
        builder.end(Op.BREAK, (self.pick(inner), self.pick(inner)))
        builder.if_(goes_on, kernel.region(Op.YIELD), builder.close())
        following = kernel.do(Op.ADD, counter, kernel.const(1))
        if self.chance(0.5):
            self.block(inner, depth - 1)
            if not builder.ended and self.chance(0.5):
                with kernel.when(self.condition(inner)):
                    builder.end(Op.CONTINUE, (following, self.pick(inner), self.pick(inner)))
        if not builder.ended:
            self.block(inner, depth - 1)
        if not builder.ended:
            builder.end(Op.CONTINUE, (following, self.pick(inner), self.pick(inner)))
        self.loops -= 1
        pool.extend(builder.loop(initial, builder.close(), (i32, i32)))

    def program(self) -> Trace:
        kernel = self.kernel
        for k in range(4):
            kernel.store(kernel.const(k), self.local, kernel.const(k))
        x = kernel.builder.cast(kernel.id(), i32)
        pool = [kernel.const(3), kernel.const(-5), kernel.scalar(i32), x]
        for _ in range(6):
            self.block(pool, self.deepest)
        if not kernel.builder.ended:
            kernel.store(self.pick(pool), self.out, kernel.id())
        return kernel.trace()


class Lane:
    """One invocation of such a program in plain Python; recursive, nothing memoised for long."""

    def __init__(self, x: int, scalar: int, out: list[int], sums: list[int]) -> None:
        self.x, self.scalar, self.out, self.sums = x, scalar, out, sums
        self.local = [0] * 4
        self.known: dict[Value, Any] = {}

    def get(self, value: Value) -> Any:
        """A pure value, computed from scratch; of effects and parameters the latest value."""
        if value in self.known:
            return self.known[value]
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            return wrap(value.attr)
        if value.op is Op.ID:
            return self.x
        if value.op is Op.SCALAR:
            return self.scalar
        if value.op is Op.CAST:
            return self.get(value.args[0])
        if value.op is Op.RESULT:
            assert isinstance(value.attr, int)
            return self.known[value.args[0]][value.attr]
        return PLAIN[value.op](*(self.get(arg) for arg in value.args))

    def memory(self, value: Value) -> list[int]:
        if value.memory.space is Space.LOCAL:
            return self.local
        return self.out if value.memory.number == 0 else self.sums

    def run(self, region: Region) -> tuple[Op, list[Any]]:
        for effect in region.body:
            if effect.op is Op.IF:
                arm = effect.regions[0 if self.get(effect.args[0]) else 1]
                end, values = self.run(arm)
                if end is not Op.YIELD:
                    return end, values
                self.known[effect] = values
            elif effect.op is Op.LOOP:
                end, values = self.run_loop(effect)
                if end is Op.RETURN:
                    return end, values
                self.known[effect] = values
            else:
                self.touch(effect)
        return region.end.op, [self.get(arg) for arg in region.end.args]

    def run_loop(self, effect: Value) -> tuple[Op, list[Any]]:
        (body,) = effect.regions
        end, values = Op.CONTINUE, [self.get(arg) for arg in effect.args]
        while end is Op.CONTINUE:
            self.known.update(zip(body.params, values, strict=True))
            end, values = self.run(body)
        return end, values

    def touch(self, effect: Value) -> None:
        memory, place = self.memory(effect), self.get(effect.indices[0])
        inside = 0 <= place < len(memory)
        if effect.op is Op.LOAD:
            self.known[effect] = memory[place] if inside else 0
        elif inside:
            operand = self.get(effect.operands[0])
            memory[place] = wrap(memory[place] + operand) if effect.op is Op.ATOMIC else operand


@pytest.mark.parametrize("batch", range(8))
def test_random_programs_do_in_lockstep_what_they_do_alone(batch: int) -> None:
    for _ in range(25):
        seed = int(generator().integers(1 << 62))
        trace = Author(np.random.default_rng(seed)).program()
        scalar = int(np.random.default_rng(seed).integers(-100, 100))
        out, sums = np.full(11, -1, np.int32), np.zeros(7, np.int32)
        interpret(trace, [out, sums], [scalar], (3, 1, 1))
        plain_out, plain_sums = [-1] * 11, [0] * 7
        for x in range(12):
            Lane(x, scalar, plain_out, plain_sums).run(trace.body)
        assert (seed, out.tolist(), sums.tolist()) == (seed, plain_out, plain_sums)


# Atomics.


def one_at_a_time(
    kind: str, dtype: DType, data: Array, places: Array, operands: list[Array]
) -> Array:
    """Old values of atomics applied to ``data`` lane after lane, all in the held form."""
    ops = {"add": Op.ADD, "sub": Op.SUB, "min": Op.MIN, "max": Op.MAX}
    ops |= {"and": Op.AND, "or": Op.OR, "xor": Op.XOR}
    old = np.zeros(len(places), data.dtype)
    for lane, place in enumerate(places):
        if not 0 <= place < len(data):
            continue
        old[lane] = data[place]
        mine = [operand[lane : lane + 1] for operand in operands]
        if kind in ops:
            before = data[place : place + 1]
            data[place] = evaluate(ops[kind], dtype, (dtype, dtype), (before, mine[0]), 32)[0]
        elif kind == "compare_exchange":
            data[place] = mine[1][0] if old[lane] == mine[0][0] else old[lane]
        elif kind != "load":
            data[place] = mine[0][0]
    return old


ARITHMETIC: Final = ("add", "sub", "min", "max", "exchange", "compare_exchange", "load", "store")
ATOMIC_CASES: Final = [
    *itertools.product((*ARITHMETIC, "and", "or", "xor"), (i32, u32, i64, u64, u8)),
    *itertools.product(ARITHMETIC, (f16, bf16, f32, f64)),
]


@pytest.mark.parametrize(("kind", "dtype"), ATOMIC_CASES, ids=str)
@pytest.mark.parametrize("used", [True, False])
def test_atomics_are_applied_one_after_the_other(kind: str, dtype: DType, used: bool) -> None:
    rng, count = generator(), 200
    arity = {"load": 0, "compare_exchange": 2}.get(kind, 1)
    kernel = Kernel((8, 1, 1))
    out, a, places = kernel.array(dtype), kernel.array(dtype), kernel.array(i32)
    sources = [kernel.array(dtype) for _ in range(arity)]
    place = kernel.load(places, kernel.id())
    with kernel.when(kernel.do(Op.LT, kernel.id(), kernel.const(count, index))):
        operands = [kernel.load(source, kernel.id()) for source in sources]
        old = kernel.atomic(kind, a, place, *operands)
        if used:
            kernel.store(old, out, kernel.id())

    def numbers(size: int, choices: int) -> Array:
        drawn = rng.integers(0, choices, size) / (4.0 if dtype.is_float else 1.0)
        values = evaluate(Op.CAST, dtype, (f64,), (drawn,), 32)
        if dtype.is_float and kind in ("min", "max"):
            values[rng.random(size) < 0.1] = np.nan
            values[rng.random(size) < 0.1] *= -1
        return values

    choices = 5 if kind == "compare_exchange" else 1000
    data, targets = numbers(6, choices), rng.integers(-1, 8, count).astype(np.int32)
    given = [numbers(count, choices) for _ in range(arity)]
    raw, result = to_memory(dtype, data).copy(), to_memory(dtype, np.zeros(count, data.dtype))
    kernel.run(result, raw, targets, *(to_memory(dtype, x) for x in given), groups=count // 8 + 2)
    wanted = one_at_a_time(kind, dtype, data, targets, given)
    assert np.array_equal(from_memory(dtype, raw), data, equal_nan=dtype.is_float)
    if used:
        assert np.array_equal(from_memory(dtype, result), wanted, equal_nan=dtype.is_float)
    else:
        assert not from_memory(dtype, result).any()


def test_old_values_of_a_contended_counter_are_all_different() -> None:
    count = 100_000
    kernel = Kernel()
    out, counter = kernel.array(u32), kernel.array(u32)
    old = kernel.atomic("add", counter, kernel.const(0, index), kernel.const(1, u32))
    kernel.store(kernel.const(1, u32), out, old)
    result, data = np.zeros(count, np.uint32), np.zeros(1, np.uint32)
    kernel.run(result, data, groups=count)
    assert data.tolist() == [count]
    assert result.all()


def test_atomics_on_shared_memory_stay_in_their_workgroup() -> None:
    kernel = Kernel((8, 1, 1))
    out = kernel.array(i32)
    shared = kernel.fixed(Space.SHARED, i32, (1,))
    zero = kernel.const(0, index)
    with kernel.when(kernel.do(Op.EQ, kernel.builder.id("local"), zero)):
        kernel.store(kernel.const(0), shared, zero)
    kernel.builder.effect(Op.BARRIER, (), "workgroup")
    kernel.atomic("add", shared, zero, kernel.builder.cast(kernel.id(), i32))
    kernel.builder.effect(Op.BARRIER, (), "workgroup")
    kernel.store(kernel.load(shared, zero), out, kernel.id())
    result = np.zeros(24, np.int32)
    kernel.run(result, groups=3)
    assert result.tolist() == [sum(range(8 * g, 8 * g + 8)) for g in range(3) for _ in range(8)]


# Subgroups.


def collected(
    name: str, dtype: DType, result: DType, columns: list[Array], active: Array | None = None
) -> Array:
    """A collective over subgroups of 8 on columns of numbers, with some lanes active."""
    count = len(columns[0])
    kernel = Kernel((16, 1, 1))
    out, mask = kernel.array(result), kernel.array(bool_)
    sources = [kernel.array(dtype if k == 0 else i32) for k in range(len(columns))]
    operands = [kernel.load(source, kernel.id()) for source in sources]
    with kernel.when(kernel.load(mask, kernel.id())):
        kernel.store(kernel.subgroup(name, result, *operands), out, kernel.id())
    values = np.zeros(count, result.numpy)
    flags = np.ones(count, np.bool_) if active is None else active
    kernel.run(values, flags, *columns, groups=count // 16)
    return values.reshape(-1, 8)


FOLDS: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: wrap(a + b),
    "mul": lambda a, b: wrap(a * b),
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
STARTS: Final = {"add": 0, "mul": 1, "min": 2**31 - 1, "max": -(2**31)}


def folded(name: str, row: list[int]) -> list[int]:
    return list(itertools.accumulate(row, FOLDS[name]))


@pytest.mark.parametrize("name", FOLDS)
def test_subgroup_reductions_see_the_active_lanes(name: str) -> None:
    data = generator().integers(-(2**31), 2**31, 48).astype(np.int32)
    active = generator().random(48) < 0.7
    result = collected(name, i32, i32, [data], active)
    for row, mask, got in zip(
        data.reshape(-1, 8).tolist(), active.reshape(-1, 8).tolist(), result.tolist(), strict=True
    ):
        live = [number for number, is_live in zip(row, mask, strict=True) if is_live]
        total = folded(name, live)[-1] if live else 0
        assert got == [total if is_live else 0 for is_live in mask]


@pytest.mark.parametrize("name", STARTS)
def test_subgroup_scans_include_or_exclude_their_own_lane(name: str) -> None:
    data = generator().integers(-(2**31), 2**31, 32).astype(np.int32)
    inclusive = collected(f"inclusive_{name}", i32, i32, [data])
    exclusive = collected(f"exclusive_{name}", i32, i32, [data])
    for k, row in enumerate(data.reshape(-1, 8).tolist()):
        assert inclusive[k].tolist() == folded(name, row)
        assert exclusive[k].tolist() == [STARTS[name], *folded(name, row)[:-1]]


def test_float_reductions_keep_what_there_is() -> None:
    nan = np.full(16, np.nan, np.float32)
    assert np.isnan(collected("min", f32, f32, [nan])).all()
    zeros = np.full(16, -0.0, np.float32)
    assert np.signbit(collected("add", f32, f32, [zeros])).all()
    assert collected("exclusive_min", f32, f32, [zeros])[:, 0].tolist() == [np.inf, np.inf]


def test_shuffles_take_from_other_lanes_and_stay_at_home_past_the_edge() -> None:
    data = generator().integers(-(2**31), 2**31, 32).astype(np.int32)
    rows = data.reshape(-1, 8)
    lanes = np.arange(8)
    moves = generator().integers(0, 8, 32).astype(np.int32)
    assert np.array_equal(
        collected("shuffle", i32, i32, [data, moves]),
        np.take_along_axis(rows, moves.reshape(-1, 8), 1),
    )
    by_3 = np.full(32, 3, np.int32)
    assert np.array_equal(collected("shuffle_xor", i32, i32, [data, by_3]), rows[:, lanes ^ 3])
    up = collected("shuffle_up", i32, i32, [data, by_3])
    assert np.array_equal(up, rows[:, [0, 1, 2, 0, 1, 2, 3, 4]])
    down = collected("shuffle_down", i32, i32, [data, by_3])
    assert np.array_equal(down, rows[:, [3, 4, 5, 6, 7, 5, 6, 7]])
    broadcast = collected("broadcast", i32, i32, [data, by_3])
    assert np.array_equal(broadcast, rows[:, [3] * 8])


def test_votes_count_the_active_lanes() -> None:
    rng = generator()
    votes, active = rng.random(64) < 0.5, rng.random(64) < 0.6
    active[:8], votes[8:16], active[8:16] = False, True, True
    rows = list(zip(votes.reshape(-1, 8), active.reshape(-1, 8), strict=True))
    ballots = collected("ballot", bool_, u32, [votes], active)
    anys, alls = (collected(name, bool_, bool_, [votes], active) for name in ("any", "all"))
    for k, (vote, live) in enumerate(rows):
        mask = sum(1 << lane for lane in range(8) if vote[lane] and live[lane])
        assert ballots[k].tolist() == [mask if lane else 0 for lane in live]
        assert anys[k].tolist() == [bool((vote & live).any() and lane) for lane in live]
        assert alls[k].tolist() == [bool((vote | ~live).all() and lane) for lane in live]


def test_the_first_active_lane_is_elected_and_speaks() -> None:
    data = generator().integers(-(2**31), 2**31, 32).astype(np.int32)
    active = np.tile([False, False, True, True, False, True, True, True], 4)
    spoken = collected("broadcast_first", i32, i32, [data], active)
    kernel = Kernel((8, 1, 1))
    out = kernel.array(bool_)
    with kernel.when(kernel.do(Op.GE, kernel.builder.id("lane"), kernel.const(2, index))):
        kernel.store(kernel.subgroup("elect", bool_), out, kernel.id())
    elected = np.zeros(16, np.bool_)
    kernel.run(elected, groups=2)
    assert elected.reshape(2, 8).tolist() == [[False, False, True, *[False] * 5]] * 2
    for row, got in zip(data.reshape(-1, 8), spoken, strict=True):
        assert got.tolist() == np.where(active[:8], row[2], 0).tolist()


# What the host is told.


def test_prints_come_in_the_order_of_lanes_with_short_floats() -> None:
    kernel = Kernel()
    x = kernel.builder.cast(kernel.id(), f32)
    tenth = kernel.do(Op.MUL, x, kernel.const(0.1, f32))
    with kernel.when(kernel.do(Op.NE, kernel.id(), kernel.const(1, index))):
        note = Note("x = {} of {:.2f} {{}}", 0)
        kernel.builder.effect(Op.PRINT, (tenth, x), note)
    assert kernel.run(groups=3).printed == ["x = 0.0 of 0.00 {}", "x = 0.2 of 2.00 {}"]


def asserting() -> Kernel:
    kernel = Kernel((4, 2, 1))
    a = kernel.array(i32, 2)
    value = kernel.load(a, kernel.id(1), kernel.id(0))
    fine = kernel.do(Op.LT, value, kernel.const(100))
    half = kernel.do(Op.MUL, kernel.builder.cast(value, f32), kernel.const(0.5, f32))
    kernel.builder.effect(Op.ASSERT, (fine, value, half), Note("too much", 5))
    kernel.store(kernel.const(1), a, kernel.id(1), kernel.id(0))
    return kernel


def test_the_first_failed_assert_is_reported_and_the_kernel_runs_on() -> None:
    data = np.zeros((4, 8), np.int32)
    data[1, 7], data[2, 1], data[3, 5] = 105, 201, 300
    report = asserting().run(data, groups=(2, 2, 1))
    assert report.failure == (Note("too much", 5), (7, 1, 0), (105, 52.5))
    assert (data == 1).all()


def test_no_failure_is_reported_where_none_happened() -> None:
    assert asserting().run(np.zeros((4, 8), np.int32), groups=(2, 2, 1)) == Report(None, [])
