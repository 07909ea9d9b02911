"""Vectors of every scalar type: made, taken apart, computed with and held in every memory."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import ALL, DType, bf16, bool_, f32, u8
from tests.matrix import needs

Rng = np.random.Generator
Array = np.ndarray[Any, Any]
N = 13
NUMBERS = [dtype for dtype in ALL if dtype is not bool_]
COUNTS = (2, 3, 4)
cells = pytest.mark.parametrize(
    ("dtype", "count"),
    [(d, n) for d in NUMBERS for n in COUNTS if n == 3 or d in (f32, u8)],
    ids=str,
)


def small(rng: Rng, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Whole numbers that sums and products of each type hold exactly; of bf16 their bits."""
    values = rng.integers(1, 5, shape)
    if dtype is bf16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.numpy)


def wide(dtype: DType, values: Array) -> Array:
    """As NumPy computes with them."""
    if dtype is bf16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def narrow(dtype: DType, values: Array) -> Array:
    if dtype is bf16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.numpy)


@cells
def test_operators_go_component_by_component(
    device: Device, rng: Rng, dtype: DType, count: int
) -> None:
    needs(device, dtype)
    vec = kj.vec(count, dtype)

    @kj.jit
    def kernel(a: Any, b: Any, s: Any, out: Any, flags: Any) -> None:
        i = kj.global_id(0)
        if i < a.size:
            x, y = a[i], b[i]
            out[i, 0] = x + y * s[i]
            out[i, 1] = s[i] * x + 2
            out[i, 2] = kj.max(x, y) - kj.min(x, y)
            out[i, 3] = kj.select(x < y, x, y) * vec(1)
            x += y
            out[i, 4] = x
            flags[i] = (a[i] <= b[i]) & (x != y)

    a, b = (small(rng, dtype, (N, count)) for _ in range(2))
    s = small(rng, dtype, (N,))
    x, y, z = (device.array(one, kind) for one, kind in ((a, vec), (b, vec), (s, dtype)))
    out, flags = device.empty((N, 5), vec), device.empty(N, kj.vec(count, kj.bool))
    kernel[N](x, y, z, out, flags)
    a, b, s = (wide(dtype, one) for one in (a, b, s))
    s = s[:, None]
    wanted = [a + b * s, s * a + 2, np.maximum(a, b) - np.minimum(a, b), np.minimum(a, b), a + b]
    assert (out.numpy() == narrow(dtype, np.stack(wanted, 1))).all()
    assert (flags.numpy() == ((a <= b) & (a + b != b))).all()


@cells
def test_swizzles_are_read_and_written(device: Device, rng: Rng, dtype: DType, count: int) -> None:
    needs(device, dtype)
    vec, two = kj.vec(count, dtype), kj.vec(2, dtype)

    @kj.jit
    def kernel(a: Any, out: Any, pairs: Any, c: kj.Const[int]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            v = a[i]
            pairs[i] = two(v.y, v.x) + v.gr - v.ts
            v.yx = v.xy
            v[c - 1] = v[0]
            v[i % c] += 1
            out[i, 0] = v
            first, *rest = v
            out[i, 1] = vec(first, *rest[::-1])
            v.xy = two(7)
            v.y = v.x + v[i % c]
            out[i, 2] = v
            a[i].yx = a[i].xy
            a[i].x += 2
            a[i][c - 1] = 5

    a = small(rng, dtype, (N, count))
    x, out = device.array(a, vec), device.empty((N, 3), vec)
    pairs = device.empty(N, two)
    kernel[N](x, out, pairs, count)
    i, last = np.arange(N), count - 1
    v = wide(dtype, a).copy()
    assert (pairs.numpy() == narrow(dtype, v[:, 1::-1])).all()
    memory = v.copy()
    v[:, :2] = v[:, 1::-1]
    v[:, last] = v[:, 0]
    v[i, i % count] += 1
    wanted = [v.copy(), np.concatenate([v[:, :1], v[:, :0:-1]], 1)]
    v[:, :2] = 7
    v[:, 1] = v[:, 0] + v[i, i % count]
    wanted.append(v)
    assert (out.numpy() == narrow(dtype, np.stack(wanted, 1))).all()
    memory[:, :2] = memory[:, 1::-1]
    memory[:, 0] += 2
    memory[:, last] = 5
    assert (x.numpy() == narrow(dtype, memory)).all()


@cells
def test_vectors_are_held_in_every_memory(
    device: Device, rng: Rng, dtype: DType, count: int
) -> None:
    needs(device, dtype)
    vec = kj.vec(count, dtype)
    table = small(rng, dtype, (count,))
    numbers = tuple(float(one) for one in wide(dtype, table))

    @kj.jit(workgroup=8)
    def kernel(a: Any, out: Any, shift: vec) -> None:  # type: ignore[valid-type]
        tile, own = kj.shared(vec, 8), kj.local(vec, 3)
        i, k = kj.global_id(0), kj.local_id(0)
        for j in range(3):
            own[j] = a[i] + j
        own[k % 3].y = own[(k + 1) % 3].x
        tile[k] = own[k % 3]
        tile[k].x += 1
        kj.barrier()
        out[i] = tile[7 - k] + shift + vec(*numbers)

    a = small(rng, dtype, (16, count))
    x, out = device.array(a, vec), device.empty(16, vec)
    kernel[16](x, out, tuple(range(count)))
    k, v = np.arange(16) % 8, wide(dtype, a)
    own = v + (k % 3)[:, None].astype(v.dtype)
    own[:, 1] = v[:, 0] + ((k + 1) % 3).astype(v.dtype)
    own[:, 0] += 1
    found = own.reshape(2, 8, count)[:, ::-1].reshape(16, count)
    found = found + np.arange(count, dtype=v.dtype) + wide(dtype, table)
    assert (out.numpy() == narrow(dtype, found)).all()


@pytest.mark.parametrize("dtype", [d for d in NUMBERS if d is not bf16], ids=str)
def test_arrays_of_vectors_are_structured_or_have_a_last_axis(
    device: Device, rng: Rng, dtype: DType
) -> None:
    needs(device, dtype)
    vec = kj.vec(3, dtype)

    @kj.jit
    def kernel(p: kj.Array1[vec], q: kj.Array1[vec]) -> None:  # type: ignore[valid-type]
        i = kj.global_id(0)
        if i < p.size:
            v: Any = q[i]
            p[i] = vec(v.zyx)

    scalar = dtype.numpy.str
    values = small(rng, dtype, (N, 3))
    for kind in (
        [("x", scalar), ("y", scalar), ("z", scalar)],
        [("r", scalar), ("g", scalar), ("b", scalar)],
    ):
        structured = np.zeros(N, kind)
        kernel[N](structured, values)
        assert (structured.view(dtype.numpy).reshape(N, 3) == values[:, ::-1]).all()
    array = device.array(structured, vec)
    assert array.shape == (N,)
    kernel[N](array, device.array(values, vec))
    assert (array.numpy() == values[:, ::-1]).all()
    with kj.use(device), pytest.raises(kj.ArgumentTypeError):
        kernel[N](np.zeros(N, [("x", scalar), ("y", scalar)]), values)


def test_vectors_mix_with_numbers_and_types_as_numbers_do(device: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(f: kj.Array1[kj.vec3], i: kj.Array1[kj.ivec3], out: kj.Array2[kj.vec3]) -> None:
        k = kj.global_id(0)
        out[k, 0] = f[k] * i[k] + k
        out[k, 1] = kj.vec3(i[k]) / 2 + (i[k] % 3 == 1).x
        out[k, 2] = kj.fma(f[k], 2.0, kj.vec3(i[k].xy, 1.0)) - i[k] // 2
        out[k, 3] = kj.clamp(f[k], 0.25, kj.vec3(0.5)) + kj.abs(-f[k]) + kj.floor(f[k] * 4.0)

    f, i = rng.random((N, 3), np.float32), rng.integers(0, 9, (N, 3), np.int32)
    out = np.zeros((N, 4, 3), np.float32)
    kernel[N](f, i, out)
    k = np.arange(N)[:, None]
    edge = np.concatenate([i[:, :2], np.ones((N, 1))], 1)
    wanted = np.stack(
        [
            f * i + k,
            i / 2 + (i[:, :1] % 3 == 1),
            f * 2 + edge - i // 2,
            np.clip(f, 0.25, 0.5) + f + np.floor(f * np.float32(4)),
        ],
        1,
    )
    assert np.allclose(out, wanted, rtol=1e-6, atol=1e-5)


def test_vectors_of_the_host() -> None:
    v = kj.vec3(1, 2, 3)
    assert isinstance(v.x, np.float32)
    assert v.zyx.x == 3
    v.xy = kj.vec2(5)
    v[2] = 7
    assert list(v) == [5, 5, 7]
    assert list(v * 2 - kj.vec3(1, 0, 0)) == [9, 10, 14]
    assert list(1 / kj.vec2(2, 4)) == [0.5, 0.25]
    assert list(kj.ivec2(7, -7) // 2) == [3, -4]
    assert list(v == kj.vec3(5, 0, 7)) == [True, False, True]
    assert np.asarray(kj.vec(2, kj.u8)(1, 300)).tolist() == [1, 44]
    assert repr(kj.hvec2(1)) == "hvec2(1.0, 1.0)"
    assert list(pickle.loads(pickle.dumps(v))) == [5, 5, 7]
    assert pickle.loads(pickle.dumps(kj.vec3)) is kj.vec3
    with pytest.raises(kj.ArgumentValueError, match="vec3 is made of 3 numbers, not 2"):
        kj.vec3(1, 2)
    with pytest.raises(AttributeError, match="has no attribute 'w'"):
        print(v.w)


def test_mistakes_with_vectors_are_explained(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.vec3], case: kj.Const[int]) -> None:
        v: Any = a[0]
        if case == 0:
            v.xx = kj.vec2(1.0)
        elif case == 1:
            v.xy = kj.vec3(1.0)
        elif case == 2:
            a[0] = v.xy
        elif case == 3:
            a[0] = v + kj.vec2(1.0)
        elif case == 4:
            v.w = 1.0
        elif case == 5:
            a[0] = v[3]
        elif case == 6:
            a[0].xy = 1.0
        elif case == 7:
            kj.vec3(1.0, 2.0)
        elif case == 8:
            a[0] = v if v else v  # noqa: RUF034

    messages = {
        0: "names a component twice",
        1: "vec3 does not fit 2 components",
        2: "vec2 is stored to",
        3: "vec3 meets a? ?vec2",
        4: "vec3 has no attribute 'w'",
        5: "index 3 is out of range for vec3",
        6: "is stored to 2 components",
        7: "vec3 is made of 3 numbers, not 2",
    }
    with kj.use("interpreter"):
        for case, message in messages.items():
            with pytest.raises(kj.TraceError, match=message) as caught:
                kernel[1](np.zeros((1, 3), np.float32), case)
            assert caught.value.at is not None, case
