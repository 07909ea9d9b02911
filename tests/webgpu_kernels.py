"""Kernels for the tests of the WebGPU code generators, with the arguments that they run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import khaljit as kj
from khaljit.codegen.caps import Caps
from khaljit.codegen.legalise import legalise
from khaljit.tracer.dtypes import (
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.elements import ElementType
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.record import ArrayArgument, ScalarArgument, record
from khaljit.tracer.vectors import vec

__all__ = ["KERNELS", "Kernel", "agrees", "array", "expected", "legal", "recorded"]


@dataclass(frozen=True)
class Kernel:
    """A kernel with its launch.

    Attributes:
        function: what is recorded.
        arguments: name and kind of each parameter.
        arrays, scalars: what they are given.
        grid: counts of workgroups; of invocations if ``workgroup`` is None.
        workgroup: its size.
        close: floats may differ by this much, relative; 0 where they are the same bits.
        index_bits: width of ``index``.
        needs: types that the target must have.
    """

    function: Any
    arguments: list[tuple[str, Any]]
    arrays: list[Array]
    scalars: list[int | float | bool]
    grid: tuple[int, int, int]
    workgroup: tuple[int, int, int] | None = None
    close: float = 0.0
    index_bits: int = 32
    needs: tuple[DType, ...] = ()


def array(kind: ElementType, ndim: int = 1, **facts: Any) -> ArrayArgument:
    return ArrayArgument(kind, ndim, **facts)


def recorded(kernel: Kernel) -> Trace:
    """The canonical trace."""
    recording = record(
        kernel.function,
        kernel.arguments,
        workgroup=kernel.workgroup,
        index_bits=kernel.index_bits,
    )
    return contract(recording.trace)


def legal(kernel: Kernel, caps: Caps) -> Trace:
    return legalise(optimise(recorded(kernel)), caps)


def expected(kernel: Kernel, subgroup_size: int = 8) -> list[Array]:
    """The arrays after the interpreter has run the kernel."""
    arrays = [array.copy() for array in kernel.arrays]
    interpret(recorded(kernel), arrays, kernel.scalars, kernel.grid, subgroup_size=subgroup_size)
    return arrays


def agrees(kernel: Kernel, wanted: Array, found: Array) -> bool:
    if wanted.dtype.kind != "f":
        return bool((wanted == found).all())
    if kernel.close:
        return bool(np.allclose(wanted, found, rtol=kernel.close, atol=0, equal_nan=True))
    return bool(np.array_equal(wanted, found, equal_nan=True))


# Control flow.


def add(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] += b[i]


def mandelbrot(out: Any, limit: Any) -> None:
    x, y = kj.global_id(0), kj.global_id(1)
    height, width = out.shape
    if x >= width or y >= height:
        return
    cr = x / width * 3.0 - 2.0
    ci = y / height * 2.0 - 1.0
    zr, zi, count = 0.0, 0.0, 0
    while count < limit:
        if zr * zr + zi * zi > 4.0:
            break
        zi, zr, count = 2.0 * zr * zi + ci, zr * zr - zi * zi + cr, count + 1
    out[y, x] = count


def _search(x: Any, n: Any) -> Any:
    for k in range(n):
        if x > k:
            return k * 2
        if x < 0:
            continue
        x = x + 1
    return -1


def search(a: Any, n: Any) -> None:
    i = kj.global_id(0)
    if i < a.size and a[i] > 0:
        found = _search(a[i], n)
        total = 0
        for c in (1, 2, 3):
            if c * found > 10:
                break
            total += c
        else:
            total = 100
        a[i] = found + total if n > 3 else -found


def nested(a: Any, n: Any) -> None:
    i = kj.global_id(0)
    total = 0
    for y in range(n):
        if y == i % 7:
            continue
        for x in range(y):
            if x * y > a[i]:
                break
            total += x ^ y
            if total > 5000:
                a[i] = -1
                return
        else:
            total += 1
        while total % 5 != 0:
            total += 1
    a[i] = total


def unguarded(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    b[i + 3] = a[i * 2 - 5]


def divisions(a: Any, b: Any, quotients: Any, remainders: Any) -> None:
    i = kj.global_id(0)
    quotients[i] = a[i] // b[i]
    remainders[i] = a[i] % b[i]


def shifts(a: Any, b: Any, c: Any) -> None:
    i = kj.global_id(0)
    c[i] = (a[i] << b[i]) ^ (a[i] >> (b[i] + 1))


# Memory.


def stores_in_turn(a: Any, b: Any, c: Any) -> None:
    i = kj.global_id(0)
    x, y = a[i], b[i]
    c[i] = x
    c[i] = c[i] * 5 + y
    c[i] = c[i] * 5 + y


def bytes_apart(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    b[i] = a[i] * 3 + 1


def flags(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    b[i] = not a[i] or i % 3 == 0


def bytes_shared(a: Any, b: Any) -> None:
    i, here = kj.global_id(0), kj.local_id(0)
    tile = kj.shared(kj.u8, 64)
    tile[here] = a[i]
    kj.barrier()
    b[i] = tile[63 - here] + tile[(here + 1) % 64]


def local_bytes(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    own = kj.local(kj.i16, (4, 2))
    for k in range(8):
        own[k // 2, k % 2] = a[i] * k
    total = 0
    for k in range(4):
        total += kj.i32(own[k, 1]) - own[3 - k, 0]
    b[i] = total


def table(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    coefficients = kj.constant(np.array([1.5, -2.0, 0.25, float("inf")], np.float32))
    signs = kj.constant(np.array([-1, 1, -128, 127, 3], np.int8))
    b[i] = coefficients[a[i] % 4] * signs[a[i] % 5]


def transposed(a: Any, b: Any) -> None:
    x, y = kj.global_id(0), kj.global_id(1)
    lx, ly = kj.local_id(0), kj.local_id(1)
    tile = kj.shared(kj.f32, (8, 9))
    tile[ly, lx] = a[y, x]
    kj.barrier()
    b[kj.workgroup_id(0) * 8 + ly, kj.workgroup_id(1) * 8 + lx] = tile[lx, ly]


def vectors(points: Any, lengths: Any) -> None:
    i = kj.global_id(0)
    if i < lengths.size:
        p = points[i]
        lengths[i] = p.x * p.x + p.y * p.y + p.z * p.z
        points[i] = p * 2.0


# Atomics.


def histogram(a: Any, counts: Any) -> None:
    i = kj.global_id(0)
    if i < a.size:
        kj.atomic_add(counts, a[i], 1)
        kj.atomic_max(counts, 16 + a[i] % 4, i)


def exchanges(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    b[i] = kj.atomic_exchange(a, i, i * 2)
    kj.atomic_and(a, i + 64, 0xF0F)
    kj.atomic_or(a, i + 64, 0x1000)
    kj.atomic_sub(a, i + 64, kj.atomic_load(a, i))


def in_loops(a: Any, n: Any) -> None:
    i = kj.global_id(0)
    step = 1
    for k in range(n):
        step = step * 3 + k
        kj.atomic_add(a, (i + k) % 19, step)
    kj.atomic_xor(a, 19 + i % 19, step)


def shared_sum(a: Any, totals: Any) -> None:
    i = kj.global_id(0)
    total = kj.shared(kj.i32, 1)
    if kj.local_id(0) == 0:
        total[0] = 0
    kj.barrier()
    kj.atomic_add(total, 0, a[i])
    kj.barrier()
    if kj.local_id(0) == 0:
        totals[kj.workgroup_id(0)] = total[0]


def float_sum(a: Any, total: Any) -> None:
    i = kj.global_id(0)
    kj.atomic_add(total, 0, a[i])


def float_extremes(a: Any, out: Any) -> None:
    i = kj.global_id(0)
    kj.atomic_min(out, 0, a[i])
    kj.atomic_max(out, 1, a[i])


def narrow_atomics(a: Any, counts: Any) -> None:
    i = kj.global_id(0)
    kj.atomic_add(counts, a[i] % 8, 1)
    kj.atomic_max(counts, 8 + a[i] % 3, a[i])


def compare_exchanges(a: Any, wins: Any) -> None:
    i = kj.global_id(0)
    old = kj.atomic_compare_exchange(a, i // 4, 0, 7)
    if old == 0:
        kj.atomic_add(wins, 0, 1)


# Collectives.


def workgroup_sums(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    b[i] = kj.workgroup_add(a[i]) + kj.workgroup_inclusive_add(a[i])


def reductions(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    x = a[i]
    b[i, 0] = kj.subgroup_add(x)
    b[i, 1] = kj.subgroup_min(x)
    b[i, 2] = kj.subgroup_max(x)
    b[i, 3] = kj.subgroup_inclusive_add(x)
    b[i, 4] = kj.subgroup_exclusive_add(x)
    b[i, 5] = kj.subgroup_inclusive_max(x)


def moves(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    x = a[i]
    b[i, 0] = kj.subgroup_broadcast(x, 3)
    b[i, 1] = kj.subgroup_broadcast_first(x)
    b[i, 2] = kj.subgroup_shuffle_xor(x, 1)
    b[i, 3] = kj.subgroup_shuffle_up(x, 2)
    b[i, 4] = kj.subgroup_shuffle_down(x, 3)
    b[i, 5] = kj.subgroup_shuffle(x, kj.i32(x))


def votes(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    odd = a[i] % 2 == 1
    b[i, 0] = kj.u32(kj.subgroup_any(odd))
    b[i, 1] = kj.u32(kj.subgroup_all(odd or a[i] > 3))
    b[i, 2] = kj.subgroup_ballot(odd)
    b[i, 3] = kj.u32(kj.subgroup_elect())
    b[i, 4] = kj.u32(kj.lane_id()) + kj.u32(kj.subgroup_size())


def after_loop(a: Any, b: Any, n: Any) -> None:
    i = kj.global_id(0)
    x = a[i]
    for k in range(n):
        x = x * 3 + k
        x = x + kj.subgroup_max(x) % 5
    b[i] = kj.subgroup_add(x)


# Scalars.


def scalars(
    out: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, flag: Any
) -> None:
    i = kj.global_id(0)
    out[i, 0] = kj.i64(a)
    out[i, 1] = kj.i64(b)
    out[i, 2] = kj.i64(c)
    out[i, 3] = kj.i64(d)
    out[i, 4] = e
    out[i, 5] = kj.i64(f)
    out[i, 6] = kj.i64(g)
    out[i, 7] = kj.i64(h) + kj.i64(flag)


def long_numbers(a: Any, b: Any, c: Any) -> None:
    i = kj.global_id(0)
    x, y = a[i], b[i]
    c[i] = (x * y + (x // (y | 1))) ^ (x >> 3) ^ (y << 7) - (x % (y | 1))
    for _ in range(3):
        if c[i] < x:
            c[i] = c[i] * 5 + y
        else:
            c[i] -= x


def wide_index(a: Any, b: Any) -> None:
    x, y = kj.global_id(0), kj.global_id(1)
    if x < a.shape[1] and y < a.shape[0]:
        b[x, y] = a[y, x] + x * 3 - y


def half_numbers(a: Any, b: Any) -> None:
    i = kj.global_id(0)
    if i < b.size:
        b[i] = a[i] * a[i] + a[a.size - 1 - i]


def doubles(a: Any, x: Any) -> None:
    i = kj.global_id(0)
    a[i] = a[i] / 3 + x * i


def _integers(dtype: Any, count: int, low: int = -100, high: int = 100) -> Array:
    rng = np.random.default_rng(count)
    if np.dtype(dtype).kind == "u":
        low = 0
    return rng.integers(low, high, count).astype(dtype)


def _floats(count: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(count).standard_normal(count).astype(dtype)


def _edges(count: int, dtype: Any) -> Array:
    numbers = _integers(dtype, count, -9, 10)
    limits = np.iinfo(dtype)
    numbers[::5] = limits.min
    numbers[1::7] = limits.max
    numbers[2::6] = limits.max  # -1 of unsigned types
    numbers[3::6] = 0
    return numbers


def _zeros(count: int | tuple[int, ...], dtype: Any) -> Array:
    return np.zeros(count, dtype)


def _pointwise(function: Any, source: DType, target: DType, data: Array) -> Kernel:
    out = _zeros(len(data), target.numpy)
    arguments = [("a", array(source)), ("b", array(target))]
    return Kernel(function, arguments, [data, out], [], (len(data), 1, 1))


_VALUES: list[int | float | bool] = [-5, 40000, -(1 << 40) - 7, (1 << 63) + 5]
_SCALARS = [i8, u16, i64, u64, i64, f32, i32, u32, bool_]

KERNELS: dict[str, Kernel] = {
    "add": Kernel(
        add,
        [("a", array(f32)), ("b", array(f32, same_shape=0))],
        [_floats(1000), _floats(1000)[::-1].copy()],
        [],
        (1003, 1, 1),
    ),
    "add nothing": Kernel(
        add,
        [("a", array(f32)), ("b", array(f32, same_shape=0))],
        [_floats(0), _floats(0)],
        [],
        (5, 1, 1),
    ),
    "mandelbrot": Kernel(
        mandelbrot,
        [("out", array(i32, 2)), ("limit", ScalarArgument(i32))],
        [_zeros((23, 37), np.int32)],
        [40],
        (5, 3, 1),
        (8, 8, 1),
    ),
    "search": Kernel(
        search,
        [("a", array(i32)), ("n", ScalarArgument(i32))],
        [_integers(np.int32, 300, -5, 20)],
        [7],
        (300, 1, 1),
    ),
    "nested": Kernel(
        nested,
        [("a", array(i32)), ("n", ScalarArgument(i32))],
        [_integers(np.int32, 200, 0, 300)],
        [13],
        (200, 1, 1),
    ),
    "out of bounds": Kernel(
        unguarded,
        [("a", array(f32)), ("b", array(f32))],
        [_floats(50), _floats(60)],
        [],
        (90, 1, 1),
    ),
    "stores in turn": Kernel(
        stores_in_turn,
        [(name, array(i32)) for name in "abc"],
        [_integers(np.int32, 90), _integers(np.int32, 90)[::-1].copy(), _zeros(90, np.int32)],
        [],
        (90, 1, 1),
    ),
    "vectors": Kernel(
        vectors,
        [("points", array(vec(3, f32))), ("lengths", array(f32))],
        [_floats(99).reshape(33, 3), _zeros(33, np.float32)],
        [],
        (40, 1, 1),
        close=1e-6,
    ),
    "transposed": Kernel(
        transposed,
        [("a", array(f32, 2)), ("b", array(f32, 2))],
        [_floats(20 * 13).reshape(20, 13), _zeros((13, 20), np.float32)],
        [],
        (2, 3, 1),
        (8, 8, 1),
    ),
    "flags": _pointwise(flags, bool_, bool_, _integers(np.bool_, 77, 0, 2)),
    "shared bytes": Kernel(
        bytes_shared,
        [("a", array(u8)), ("b", array(u8))],
        [_integers(np.uint8, 250, 0, 255), _zeros(250, np.uint8)],
        [],
        (4, 1, 1),
        (64, 1, 1),
    ),
    "local bytes": _pointwise(local_bytes, i16, i32, _integers(np.int16, 70, -9999, 9999)),
    "table": _pointwise(table, i32, f32, _integers(np.int32, 50, 0, 60)),
    "histogram": Kernel(
        histogram,
        [("a", array(i32)), ("counts", array(i32))],
        [_integers(np.int32, 700, 0, 16), _zeros(20, np.int32)],
        [],
        (700, 1, 1),
    ),
    "exchanges": Kernel(
        exchanges,
        [("a", array(i32)), ("b", array(i32))],
        [_integers(np.int32, 120), _zeros(64, np.int32)],
        [],
        (64, 1, 1),
    ),
    "atomics in loops": Kernel(
        in_loops,
        [("a", array(u32)), ("n", ScalarArgument(i32))],
        [_integers(np.uint32, 38)],
        [9],
        (100, 1, 1),
    ),
    "shared sum": Kernel(
        shared_sum,
        [("a", array(i32)), ("totals", array(i32))],
        [_integers(np.int32, 150), _zeros(3, np.int32)],
        [],
        (3, 1, 1),
        (50, 1, 1),
    ),
    "workgroup sums": Kernel(
        workgroup_sums,
        [("a", array(i32)), ("b", array(i32))],
        [_integers(np.int32, 96), _zeros(96, np.int32)],
        [],
        (3, 1, 1),
        (32, 1, 1),
    ),
    "scalars": Kernel(
        scalars,
        [
            ("out", array(i64, 2)),
            *((name, ScalarArgument(t)) for name, t in zip("abcdefgh", _SCALARS, strict=False)),
            ("flag", ScalarArgument(bool_)),
        ],
        [_zeros((3, 8), np.int64)],
        [*_VALUES[:3], _VALUES[3], 12345678901, -7.75, -(2**31), 2**32 - 1, True],
        (3, 1, 1),
    ),
    "wide index": Kernel(
        wide_index,
        [("a", array(i64, 2)), ("b", array(i64, 2))],
        [_integers(np.int64, 35).reshape(5, 7), _zeros((7, 5), np.int64)],
        [],
        (9, 6, 1),
        index_bits=64,
    ),
    "f16": Kernel(
        half_numbers,
        [("a", array(f16)), ("b", array(f16, same_shape=0))],
        [_floats(41, np.float16), _zeros(41, np.float16)],
        [],
        (50, 1, 1),
    ),
    "bf16": Kernel(
        half_numbers,
        [("a", array(bf16)), ("b", array(bf16, same_shape=0))],
        [(_floats(41).view(np.uint32) >> 16).astype(np.uint16), _zeros(41, np.uint16)],
        [],
        (50, 1, 1),
    ),
    "f64": Kernel(
        doubles,
        [("a", array(f64)), ("x", ScalarArgument(f64))],
        [_floats(30, np.float64)],
        [1.1],
        (30, 1, 1),
        close=1e-15,
        needs=(f64,),
    ),
}
for _dtype in (i8, u8, i16, u16):
    KERNELS[f"bytes {_dtype.name}"] = _pointwise(
        bytes_apart, _dtype, _dtype, _edges(203, _dtype.numpy)
    )
for _dtype in (i8, u16, i32, u32, i64, u64):
    _data = [_edges(150, _dtype.numpy), _edges(150, _dtype.numpy)[::-1].copy()]
    KERNELS[f"divisions {_dtype.name}"] = Kernel(
        divisions,
        [(name, array(_dtype)) for name in ("a", "b", "quotients", "remainders")],
        [*_data, _zeros(150, _dtype.numpy), _zeros(150, _dtype.numpy)],
        [],
        (150, 1, 1),
    )
    KERNELS[f"shifts {_dtype.name}"] = Kernel(
        shifts,
        [(name, array(_dtype)) for name in "abc"],
        [_data[0], _integers(_dtype.numpy, 150, 0, 70), _zeros(150, _dtype.numpy)],
        [],
        (150, 1, 1),
    )
for _dtype in (i64, u64):
    KERNELS[f"long numbers {_dtype.name}"] = Kernel(
        long_numbers,
        [(name, array(_dtype)) for name in "abc"],
        [*KERNELS[f"divisions {_dtype.name}"].arrays[:2], _zeros(150, _dtype.numpy)],
        [],
        (150, 1, 1),
    )
for _dtype in (i32, f32, i64, u8):
    _wide = (32, 6)
    _some = _integers(_dtype.numpy, 32, 0, 8)
    for _name, _function in (("reductions", reductions), ("moves", moves)):
        KERNELS[f"{_name} {_dtype.name}"] = Kernel(
            _function,
            [("a", array(_dtype)), ("b", array(_dtype, 2))],
            [_some, _zeros(_wide, _dtype.numpy)],
            [],
            (1, 1, 1),
            (32, 1, 1),
        )
KERNELS["votes"] = Kernel(
    votes,
    [("a", array(i32)), ("b", array(u32, 2))],
    [_integers(np.int32, 64, 0, 9), _zeros((64, 5), np.uint32)],
    [],
    (2, 1, 1),
    (32, 1, 1),
)
KERNELS["after a loop"] = Kernel(
    after_loop,
    [("a", array(i32)), ("b", array(i32)), ("n", ScalarArgument(i32))],
    [_integers(np.int32, 64, 0, 9), _zeros(64, np.int32)],
    [4],
    (2, 1, 1),
    (32, 1, 1),
)
# What needs the value of a compare-exchange where there are no native atomics for it.
KERNELS["float sum"] = Kernel(
    float_sum,
    [("a", array(f32)), ("total", array(f32))],
    [_integers(np.float32, 100), _zeros(1, np.float32)],
    [],
    (100, 1, 1),
)
KERNELS["float extremes"] = Kernel(
    float_extremes,
    [("a", array(f32)), ("out", array(f32))],
    [_floats(100), _zeros(2, np.float32)],
    [],
    (100, 1, 1),
)
KERNELS["narrow atomics"] = Kernel(
    narrow_atomics,
    [("a", array(u8)), ("counts", array(u8))],
    [_integers(np.uint8, 300, 0, 200), _zeros(11, np.uint8)],
    [],
    (300, 1, 1),
)
KERNELS["compare-exchanges"] = Kernel(
    compare_exchanges,
    [("a", array(u32)), ("wins", array(u32))],
    [_integers(np.uint32, 30, 0, 2), _zeros(1, np.uint32)],
    [],
    (120, 1, 1),
)
