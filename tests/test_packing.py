"""Packing of small numbers into a u32, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

FORMS: dict[str, tuple[int, np.dtype[Any], float | None, float | None]] = {
    "half2x16": (2, np.dtype(np.float16), None, None),
    "snorm2x16": (2, np.dtype(np.int16), -1.0, 32767.0),
    "unorm2x16": (2, np.dtype(np.uint16), 0.0, 65535.0),
    "snorm4x8": (4, np.dtype(np.int8), -1.0, 127.0),
    "unorm4x8": (4, np.dtype(np.uint8), 0.0, 255.0),
}
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -7.0, np.inf, -np.inf, 1e-9, 0.1, 1.5 / 127, 65504.0]


def inputs(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = np.concatenate([EDGES, rng.uniform(-1.2, 1.2, 1030 - len(EDGES))]).astype(np.float32)
    return values[: len(values) // count * count].reshape(-1, count)


@pytest.mark.parametrize("name", FORMS)
def test_numbers_are_packed_lowest_first(
    device: Device, name: str, rng: np.random.Generator
) -> None:
    count, unit, low, most = FORMS[name]
    pack = getattr(kj, f"pack_{name}")
    vector: Any = kj.vec(count, kj.f32)

    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = pack(a[i])

    a = inputs(rng, count)
    source = device.array(a, dtype=vector)
    out = device.zeros(len(a), kj.u32)
    kernel[len(a)](source, out)
    with np.errstate(over="ignore"):
        wanted = a.astype(unit) if low is None or most is None else None
    if wanted is None:
        assert low is not None and most is not None  # noqa: PT018
        wanted = np.rint(np.clip(a, low, 1) * np.float32(most)).astype(unit)
    np.testing.assert_array_equal(out.numpy(), np.ascontiguousarray(wanted).view(np.uint32)[:, 0])


@pytest.mark.parametrize("name", FORMS)
def test_numbers_are_unpacked(device: Device, name: str, rng: np.random.Generator) -> None:
    count, unit, low, most = FORMS[name]
    unpack = getattr(kj, f"unpack_{name}")

    @kj.jit
    def kernel(a: kj.Array1[kj.u32], out: Any) -> None:
        i = kj.global_id(0)
        v = unpack(a[i])
        for k in kj.unroll(range(count)):
            out[i, k] = v[k]

    packed = np.concatenate(
        [[0, 0xFFFFFFFF, 0x80008000, 0x80808080, 0x7F7F7F7F], rng.integers(0, 1 << 32, 500)]
    ).astype(np.uint32)
    out = np.zeros((len(packed), count), np.float32)
    kernel[len(packed)](packed, out)
    wanted = packed.view(unit).reshape(-1, count).astype(np.float32)
    if low is None or most is None:
        np.testing.assert_array_equal(out, wanted)
        return
    wanted = np.maximum(wanted / np.float32(most), low)
    if device.kind == "webgpu":  # whose division may be off by an ulp or two
        np.testing.assert_allclose(out, wanted, rtol=3e-7)
    else:
        np.testing.assert_array_equal(out, wanted)


def test_packing_takes_the_right_vector() -> None:
    @kj.jit
    def kernel(out: kj.Array1[kj.u32]) -> None:
        out[0] = kj.pack_snorm4x8(kj.vec2(0.0, 1.0))  # type: ignore[arg-type]

    with pytest.raises(kj.TraceError, match=r"kj\.pack_snorm4x8 packs 4 floats"):
        kernel.trace("u32[:]")


# Uniformity.


def test_a_loop_on_a_uniform_value_may_hold_barriers(device: Device) -> None:
    @kj.jit(workgroup=8)
    def kernel(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        tile = kj.shared(kj.i32, 8)
        i = kj.local_id(0)
        out[kj.global_id(0)] = 0
        tile[i] = i
        kj.barrier()
        for _ in range(kj.uniform(a[kj.workgroup_id(0)])):
            next_ = tile[(i + 1) % 8]
            kj.barrier()
            tile[i] = next_
            kj.barrier()
        while kj.workgroup_any(tile[0] < 7):
            kj.barrier()
            if i == 0:
                tile[0] += 1
            kj.barrier()
        out[kj.global_id(0)] = tile[i]

    out = np.zeros(16, np.int32)
    kernel[16](np.array([3, 9], np.int32), out)
    wanted = [np.roll(np.arange(8), -3), np.roll(np.arange(8), -9)]
    for row in wanted:
        row[0] = 7
    np.testing.assert_array_equal(out, np.concatenate(wanted))


def test_a_value_that_is_not_uniform_is_reported(device: Device) -> None:
    @kj.jit(workgroup=4)
    def kernel(a: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
        out[kj.global_id(0)] = kj.uniform(a[kj.global_id(0)])

    out = np.zeros(4, np.float32)
    kernel[4](np.full(4, np.nan, np.float32), out)
    assert np.isnan(out).all()
    with pytest.raises(kj.KernelError, match=r"kj.uniform: 2.5 is not the workgroup's 1.0"):
        kernel[4](np.array([1, 1, 2.5, 1], np.float32), out)


@pytest.mark.parametrize("workgroup", [(64, 1, 1), (6, 4, 1), (3, 5, 2), (256, 1, 1), (16, 16, 1)])
def test_there_are_at_most_as_many_subgroups_as_promised(
    device: Device, workgroup: tuple[int, int, int]
) -> None:
    @kj.jit(workgroup=workgroup)
    def kernel(out: kj.Array1[kj.i32]) -> None:
        out[0] = kj.num_subgroups()
        out[1] = kj.max_subgroups()

    out = np.zeros(2, np.int32)
    kernel[kj.Workgroups(1)](out)
    assert 1 <= out[0] <= out[1]
