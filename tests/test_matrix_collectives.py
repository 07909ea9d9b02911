"""The behaviour matrix: collectives of subgroups and workgroups, in every dtype and device, for
workgroups of any size and shape, the last one in part past the end of the array.

What lanes there are is the device's choice, and told by it: the oracle takes it from there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import ALL, FLOATS, INTEGERS, DType, bool_, f32, i32
from tests.matrix import KJ, able, array_of, exact, kernel, poisoned, scalars, unless_able

Rng = np.random.Generator
Array = NDArray[Any]
Shape = tuple[int, ...]

_NUMBERS: Final = (*INTEGERS, *FLOATS)
GROUPS: Final = 3
SHAPES: Final[list[Shape]] = [(32,), (1,), (7,), (33,), (8, 4), (5, 3, 2), (64, 2)]
# Every shape in the commonest types, every type in two shapes.
CELLS: Final = [
    *((dtype, shape) for dtype in (i32, f32) for shape in SHAPES),
    *((dtype, shape) for dtype in ALL if dtype not in (i32, f32) for shape in ((24,), (5, 3))),
]


def cells(types: Sequence[DType]) -> pytest.MarkDecorator:
    """A test for each cell of some dtypes."""
    found = [cell for cell in CELLS if cell[0] in types]
    names = [f"{dtype.name}-{'x'.join(map(str, shape))}" for dtype, shape in found]
    return pytest.mark.parametrize(("dtype", "shape"), found, ids=names)


def place() -> Any:
    """An invocation's place among all, workgroup after workgroup."""
    sizes = kj.workgroup_size()
    return kj.workgroup_id(0) * math.prod(sizes) + kj.local_index()


# The oracle: functions of all lanes of a subgroup, in order, with a result for each.


def _wrapped(dtype: DType, number: Any) -> Any:
    if not dtype.is_integer:
        return number
    low = dtype.limits[0]
    return (number - low) % (1 << dtype.bits) + low


def _neutral(name: str, dtype: DType) -> Any:
    """What comes before the first lane."""
    if name in ("min", "max"):
        ends = dtype.limits[::-1] if dtype.is_integer else (math.inf, -math.inf)
        return ends[name == "max"]
    return 1 if name == "mul" else 0


COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def running(name: str, dtype: DType, lanes: Sequence[Any]) -> list[Any]:
    """Each lane combined with all before it."""
    found: list[Any] = []
    for lane in lanes:
        total = COMBINE[name](found[-1], lane) if found else lane
        found.append(_wrapped(dtype, total))
    return found


def expected_of(kind: str, dtype: DType, lanes: Sequence[Any]) -> list[Any]:
    """A reduction or scan."""
    prefix, _, name = kind.rpartition("_")
    sums = running(name, dtype, lanes)
    if prefix == "inclusive":
        return sums
    if prefix == "exclusive":
        return [_neutral(name, dtype), *sums[:-1]]
    return [sums[-1]] * len(lanes)


def values_of(dtype: DType, array: Array) -> list[Any]:
    """Python's numbers from the memory of a type."""
    return [one.value for one in scalars(dtype, array)]


# Running a kernel on whole workgroups, and taking its results apart by subgroup.


def tell(told: Any, at: Any) -> None:
    """What `subgroups` reads. Kernels tell it themselves, as wider types may mean fewer lanes."""
    ids = (kj.subgroup_id(), kj.lane_id(), kj.subgroup_size(), kj.num_subgroups())
    for k, number in enumerate(ids):
        told[4 * at + k] = number


def untold(shape: Shape) -> Array:
    """Room for what invocations tell."""
    return np.zeros(4 * GROUPS * math.prod(shape), np.int32)


def subgroups(told: Array, shape: Shape) -> list[list[int]]:
    """The places of the lanes of each subgroup, in order."""
    count = math.prod(shape)
    found = []
    for group in range(GROUPS):
        rows = told.reshape(-1, 4)[group * count : (group + 1) * count]
        for number in range(rows[0, 3]):
            members = np.flatnonzero(rows[:, 0] == number)
            members = members[np.argsort(rows[members, 1])]
            assert rows[members, 1].tolist() == list(range(len(members)))
            assert len(members) <= rows[0, 2]
            found.append([group * count + int(member) for member in members])
    assert sorted(itertools.chain(*found)) == list(range(GROUPS * count))
    return found


def launch(
    device: Device, body: Callable[..., Any], shape: Shape, out: Array, *given: tuple[DType, Array]
) -> bool:
    """Run a kernel with an output and inputs over all workgroups, if the device has the types."""
    dtype = given[0][0]
    names = body.__code__.co_varnames[1 : body.__code__.co_argcount]
    result = bool_ if out.dtype == np.bool_ else dtype if out.dtype == dtype.numpy else KJ.u32
    types = {name: array_of(one) for name, (one, _) in zip(names, given, strict=True)}
    made = kernel(body, {"out": array_of(result, 2), **types}, workgroup=shape)
    can = able(device, dtype)
    with unless_able(can):
        made[kj.Workgroups(GROUPS)](out, *(array for _, array in given))
    return can


def check(
    dtype: DType, out: Array, groups: Sequence[Sequence[int]], expected: Callable[..., Any]
) -> None:
    """Compare the results of each subgroup that lie in the output."""
    values = values_of(dtype, out)
    for members in groups:
        for lane, value in zip(members, expected(members), strict=True):
            if lane < out.size:
                assert values[lane] == value, f"lane {lane} of {members}"


def numbers(rng: Rng, dtype: DType, shape: Shape, low: int = -3, high: int = 6) -> Array:
    """Small whole numbers, whose sums are exact in any type; a few are missing at the end."""
    size = GROUPS * math.prod(shape)
    size -= min(5, math.prod(shape) - 1)
    return exact(dtype, rng.integers(low if dtype.is_signed else 0, high, size))


def padded(dtype: DType, array: Array, shape: Shape) -> list[Any]:
    """What all invocations read, the padding included."""
    missing = GROUPS * math.prod(shape) - array.size
    return [*values_of(dtype, array), *[0] * missing]


# Subgroups.


KINDS: Final = (
    *("add", "mul", "min", "max", "inclusive_add", "exclusive_add", "inclusive_mul"),
    *("exclusive_mul", "inclusive_min", "exclusive_min", "inclusive_max", "exclusive_max"),
)


@cells(_NUMBERS)
def test_subgroup_reductions_and_scans(
    device: Device, rng: Rng, dtype: DType, shape: Shape
) -> None:
    functions = [getattr(kj, f"subgroup_{kind}") for kind in KINDS]

    def body(out: Any, a: Any, b: Any, told: Any) -> None:
        at = place()
        tell(told, at)
        x, y = a[at], b[at]
        for k, function in enumerate(functions):
            out[at, k] = function(y if KINDS[k].endswith("mul") else x)

    a = numbers(rng, dtype, shape, high=4)
    b = exact(dtype, np.where(rng.random(a.size) < 0.1, 2, 1))  # few factors: products are exact
    out, told = poisoned((a.size, len(KINDS)), dtype), untold(shape)
    if not launch(device, body, shape, out, (dtype, a), (dtype, b), (i32, told)):
        return
    groups, x, y = subgroups(told, shape), padded(dtype, a, shape), padded(dtype, b, shape)
    for k, kind in enumerate(KINDS):
        source = y if kind.endswith("mul") else x
        check(
            dtype,
            out[:, k],
            groups,
            lambda members, kind=kind, source=source: expected_of(
                kind, dtype, [source[member] for member in members]
            ),
        )


@cells((*INTEGERS, bool_))
def test_subgroup_bits(device: Device, rng: Rng, dtype: DType, shape: Shape) -> None:
    kinds = ("and", "or", "xor")
    functions = [getattr(kj, f"subgroup_{kind}") for kind in kinds]

    def body(out: Any, a: Any, told: Any) -> None:
        at = place()
        tell(told, at)
        for k, function in enumerate(functions):
            out[at, k] = function(a[at])

    size = GROUPS * math.prod(shape)
    a = rng.integers(0, 2, size).astype(np.bool_)
    if dtype is not bool_:
        a = rng.integers(0, 256, size * dtype.size, np.uint8).view(dtype.numpy)
    out, told = poisoned((size, len(kinds)), dtype), untold(shape)
    if not launch(device, body, shape, out, (dtype, a), (i32, told)):
        return
    groups, x = subgroups(told, shape), values_of(dtype, a)
    for k, kind in enumerate(kinds):
        check(
            dtype,
            out[:, k],
            groups,
            lambda members, kind=kind: expected_of(kind, dtype, [x[one] for one in members]),
        )


@cells(ALL)
def test_subgroup_exchanges(device: Device, rng: Rng, dtype: DType, shape: Shape) -> None:
    """Lanes that are not there are asked for, too."""

    def body(out: Any, a: Any, lanes: Any, told: Any) -> None:
        at = place()
        tell(told, at)
        x, lane = a[at], lanes[at]
        out[at, 0] = kj.subgroup_broadcast(x, 0)
        out[at, 1] = kj.subgroup_broadcast_first(x)
        out[at, 2] = kj.subgroup_shuffle(x, lane)
        out[at, 3] = kj.subgroup_shuffle_xor(x, 1)
        out[at, 4] = kj.subgroup_shuffle_up(x, kj.max(lane, 0))
        out[at, 5] = kj.subgroup_shuffle_down(x, 2)

    a = numbers(rng, dtype, shape) if dtype is not bool_ else None
    if a is None:
        a = rng.integers(0, 2, GROUPS * math.prod(shape)).astype(np.bool_)
    lanes = rng.integers(-2, 40, GROUPS * math.prod(shape)).astype(np.int32)
    out, told = poisoned((a.size, 6), dtype), untold(shape)
    if not launch(device, body, shape, out, (dtype, a), (i32, lanes), (i32, told)):
        return
    groups, x = subgroups(told, shape), padded(dtype, a, shape)

    def taken(source: Callable[[int, int], int]) -> Callable[[Sequence[int]], list[Any]]:
        def expected(members: Sequence[int]) -> list[Any]:
            found = []
            for lane, member in enumerate(members):
                other = source(lane, int(lanes[member]))
                found.append(x[members[other] if 0 <= other < len(members) else member])
            return found

        return expected

    ways: list[Callable[[int, int], int]] = [
        lambda lane, asked: 0,
        lambda lane, asked: 0,
        lambda lane, asked: asked,
        lambda lane, asked: lane ^ 1,
        lambda lane, asked: lane - max(asked, 0),
        lambda lane, asked: lane + 2,
    ]
    for k, way in enumerate(ways):
        check(dtype, out[:, k], groups, taken(way))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_subgroup_votes(device: Device, rng: Rng, shape: Shape) -> None:
    @kj.jit(workgroup=shape)
    def votes(a: kj.Array1[kj.bool], out: kj.Array2[kj.u32], told: kj.Array1[kj.i32]) -> None:
        at = place()
        tell(told, at)
        x = a[at]
        out[at, 0] = kj.u32(kj.subgroup_any(x))
        out[at, 1] = kj.u32(kj.subgroup_all(x))
        out[at, 2] = kj.subgroup_ballot(x)
        out[at, 3] = kj.u32(kj.subgroup_elect())

    size = GROUPS * math.prod(shape)
    for share in (0.1, 0.5, 0.95):
        a = rng.random(size) < share
        out, told = np.full((size, 4), 77, np.uint32), untold(shape)
        votes[kj.Workgroups(GROUPS)](a, out, told)
        for members in subgroups(told, shape):
            own = [bool(a[member]) for member in members]
            ballot = sum(1 << lane for lane, flag in enumerate(own[:32]) if flag)
            for lane, member in enumerate(members):
                assert out[member].tolist() == [any(own), all(own), ballot, lane == 0]


# Workgroups.


@cells(_NUMBERS)
def test_workgroup_reductions_and_scans(
    device: Device, rng: Rng, dtype: DType, shape: Shape
) -> None:
    count = math.prod(shape)

    def body(out: Any, a: Any) -> None:
        at = place()
        x = a[at]
        out[at, 0] = kj.workgroup_add(x)
        out[at, 1] = kj.workgroup_min(x)
        out[at, 2] = kj.workgroup_max(x)
        out[at, 3] = kj.workgroup_inclusive_add(x)
        out[at, 4] = kj.workgroup_exclusive_add(x)
        out[at, 5] = kj.workgroup_broadcast(x, count // 2)

    a = numbers(rng, dtype, shape, low=-1, high=2)
    out = poisoned((a.size, 6), dtype)
    if not launch(device, body, shape, out, (dtype, a)):
        return
    x = padded(dtype, a, shape)
    groups = [list(range(k * count, (k + 1) * count)) for k in range(GROUPS)]
    for k, kind in enumerate(("add", "min", "max", "inclusive_add", "exclusive_add")):
        check(
            dtype,
            out[:, k],
            groups,
            lambda members, kind=kind: expected_of(kind, dtype, [x[one] for one in members]),
        )
    check(dtype, out[:, 5], groups, lambda members: [x[members[count // 2]]] * count)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("device")
def test_workgroup_votes(rng: Rng, shape: Shape) -> None:
    @kj.jit(workgroup=shape)
    def votes(a: kj.Array1[kj.bool], out: kj.Array2[kj.bool]) -> None:
        at = place()
        out[at, 0] = kj.workgroup_any(a[at])
        out[at, 1] = kj.workgroup_all(a[at])
        out[at, 2] = kj.workgroup_broadcast(a[at], 0)

    count = math.prod(shape)
    for share in (0.02, 0.5, 0.98):
        a = rng.random(GROUPS * count) < share
        out = np.zeros((a.size, 3), np.bool_)
        votes[kj.Workgroups(GROUPS)](a, out)
        for group, results in zip(
            a.reshape(GROUPS, count), out.reshape(GROUPS, count, 3), strict=True
        ):
            assert results.tolist() == [[group.any(), group.all(), group[0]]] * count


@pytest.mark.usefixtures("device")
def test_collectives_take_ids() -> None:
    """Their scratch memory holds ``index`` values, which get their width when it does."""

    @kj.jit(workgroup=24)
    def kernel(out: kj.Array2[kj.i32]) -> None:
        i: Any = kj.global_id(0)
        out[i, 0], out[i, 1] = kj.workgroup_min(i), kj.workgroup_max(i)
        out[i, 2], out[i, 3] = kj.workgroup_add(i), kj.workgroup_exclusive_add(i)
        out[i, 4], out[i, 5] = kj.workgroup_broadcast(i, 3), kj.uniform(i // 24)
        out[i, 6] = kj.workgroup_max(kj.vec(2, i.dtype)(0, i)).y
        out[i, 7] = kj.subgroup_max(i) - kj.subgroup_broadcast_first(i)
        out[i, 8] = kj.subgroup_size()

    out = np.zeros((72, 9), np.int32)
    kernel[72](out)
    size = out[0, 8]
    for start in range(0, 72, 24):
        ids, found = np.arange(start, start + 24), out[start : start + 24]
        same = [start, start + 23, ids.sum(), start + 3, start // 24, start + 23]
        assert (found[:, [0, 1, 2, 4, 5, 6]] == same).all()
        assert (found[:, 3] == ids.cumsum() - ids).all()
        firsts = np.arange(24) // size * size
        assert (found[:, 7] == np.minimum(firsts + size, 24) - 1 - firsts).all()


@pytest.mark.usefixtures("device")
def test_collectives_of_vectors_go_by_component(rng: Rng) -> None:
    @kj.jit(workgroup=24)
    def both(a: kj.Array1[kj.vec3], out: kj.Array2[kj.vec3], size: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        out[i, 0] = kj.workgroup_add(a[i])
        out[i, 1] = kj.workgroup_max(a[i])
        out[i, 2] = kj.workgroup_inclusive_add(a[i])
        out[i, 3] = kj.workgroup_broadcast(a[i], 5)
        out[i, 4] = kj.subgroup_add(a[i])
        out[i, 5] = kj.subgroup_shuffle(a[i], 0)
        size[0] = kj.subgroup_size()

    a = rng.integers(-9, 9, (48, 3)).astype(np.float32)
    out, size = np.zeros((48, 6, 3), np.float32), np.zeros(1, np.int32)
    both[48](a, out, size)
    for k in (0, 24):
        group, found = a[k : k + 24], out[k : k + 24]
        assert (found[:, 0] == group.sum(0)).all()
        assert (found[:, 1] == group.max(0)).all()
        assert (found[:, 2] == group.cumsum(0)).all()
        assert (found[:, 3] == group[5]).all()
        for start in range(0, 24, int(size[0])):
            lanes = slice(start, min(start + int(size[0]), 24))
            assert (found[lanes, 4] == group[lanes].sum(0)).all()
            assert (found[lanes, 5] == group[start]).all()


def test_extremes_skip_nan(rng: Rng, device: Device) -> None:
    if device.kind == "webgpu":
        pytest.skip("NaN is the driver's")

    @kj.jit(workgroup=32)
    def extremes(a: kj.Array1[kj.f32], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        out[i, 0], out[i, 1] = kj.workgroup_min(a[i]), kj.workgroup_max(a[i])
        out[i, 2] = kj.subgroup_inclusive_max(a[i])
        out[i, 3] = kj.f32(kj.subgroup_size())

    a = rng.random(64, np.float32)
    a[rng.random(64) < 0.4] = np.nan
    a[32:] = np.nan
    out = np.zeros((64, 4), np.float32)
    extremes[64](a, out)
    assert (out[:32, 0] == np.nanmin(a)).all()
    assert (out[:32, 1] == np.nanmax(a)).all()
    assert np.isnan(out[32:, :3]).all()
    for start in range(0, 32, int(out[0, 3])):
        lanes = a[start : start + int(out[0, 3])]
        np.testing.assert_array_equal(out[start : start + len(lanes), 2], np.fmax.accumulate(lanes))


@pytest.mark.usefixtures("device")
def test_many_collectives_take_the_shared_memory_of_one(rng: Rng) -> None:
    """On WebGPU a workgroup has 16 KiB at least, and 256 numbers take one."""

    @kj.jit(workgroup=256)
    def many(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        x = a[i]
        for _ in kj.unroll(range(20)):
            x = x + kj.workgroup_add(x) % 7
        for k in range(3):
            if kj.workgroup_any(x > 50):
                x = x - kj.workgroup_broadcast(x, k)
        out[i] = kj.workgroup_max(x)

    a = rng.integers(0, 5, 512).astype(np.int32)
    out = np.zeros(512, np.int32)
    many[512](a, out)
    for group, found in zip(a.reshape(2, 256), out.reshape(2, 256), strict=True):
        x = group.copy()
        for _ in range(20):
            x = x + x.sum() % 7
        for k in range(3):
            if (x > 50).any():
                x = x - x[k]
        assert (found == x.max()).all()


# What is refused.


@pytest.mark.parametrize(
    ("name", "operand", "message"),
    [
        ("subgroup_add", "x > 0", "kj.subgroup_add takes a number, not bool"),
        ("subgroup_inclusive_min", "x > 0", "kj.subgroup_inclusive_min takes a number, not bool"),
        ("subgroup_xor", "x", "kj.subgroup_xor takes an integer or a bool, not f32"),
        ("subgroup_any", "x", "kj.subgroup_any takes a condition, not f32"),
        ("subgroup_ballot", "kj.i32(x)", "kj.subgroup_ballot takes a condition, not i32"),
        ("subgroup_shuffle", "x, x", "kj.subgroup_shuffle takes a lane, not f32"),
        ("workgroup_add", "x > 0", "kj.workgroup_add of bool"),
        ("workgroup_exclusive_add", "x > 0", "kj.workgroup_exclusive_add of bool"),
        ("workgroup_all", "x", "kj.workgroup_all takes a condition, not f32"),
    ],
)
def test_what_a_collective_does_not_take_is_said(name: str, operand: str, message: str) -> None:
    scope: dict[str, Any] = {"kj": kj}
    exec(f"def body(a):\n    x = a[kj.global_id(0)]\n    kj.{name}({operand})", scope)
    with kj.use("interpreter"), pytest.raises(kj.TraceError, match=message) as caught:
        kj.jit(workgroup=32)(scope["body"])[32](np.zeros(32, np.float32))
    assert caught.value.mend


@pytest.mark.parametrize("kind", ["workgroup_add", "workgroup_inclusive_add", "subgroup_add"])
@pytest.mark.parametrize("way", ["branch", "return"])
def test_a_collective_where_flow_is_not_uniform_is_refused(kind: str, way: str) -> None:
    collective = getattr(kj, kind)

    @kj.jit(workgroup=32)
    def branch(a: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if a[i] > 0:
            a[i] = collective(a[i])

    @kj.jit(workgroup=32)
    def return_(a: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i >= a.size:
            return
        a[i] = collective(a[i])

    wrong = branch if way == "branch" else return_
    with pytest.raises(kj.TraceError, match="not reached by all invocations"):
        wrong[32](np.zeros(32, np.float32))


def test_a_collective_without_a_workgroup_is_refused() -> None:
    @kj.jit
    def loose(a: kj.Array1[kj.i32]) -> None:
        a[0] = kj.workgroup_add(a[0])

    with pytest.raises(kj.TraceError, match=r"kj.workgroup_add needs a workgroup size"):
        loose[4](np.zeros(4, np.int32))
