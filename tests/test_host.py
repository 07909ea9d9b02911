"""Arrays, encoders, profiles and readbacks, on every device."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

Rng = np.random.Generator


@kj.jit
def double(a: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] = a[i] * 2.0


@kj.jit(workgroup=16)
def count(hits: kj.Array1[kj.u32]) -> None:
    kj.atomic_add(hits, 0, 1)


def test_arrays_keep_what_they_are_given(device: Device, rng: Rng) -> None:
    for dtype in (np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.float16):
        values = (rng.random((3, 5)) * 100).astype(dtype)
        array = device.array(values)
        assert array.shape == (3, 5)
        assert array.numpy().dtype == dtype
        assert (array.numpy() == values).all()
    assert device.array([1.5, 2.5]).dtype is kj.f32
    assert device.array([1, 2]).dtype is kj.i32
    assert device.array([1, 2], kj.f64).numpy().tolist() == [1.0, 2.0]
    assert (device.zeros((2, 3)).numpy() == 0).all()
    assert (device.full(4, 7, kj.u8).numpy() == 7).all()
    assert device.empty((0, 3)).numpy().shape == (0, 3)


def test_kernels_run_where_their_arrays_live(device: Device, rng: Rng) -> None:
    values = rng.random(100, np.float32)
    array = device.array(values)
    with kj.use("null"):
        double[100](array)
    assert (array.numpy() == 2 * values).all()


def test_slices_are_views_and_parts_can_be_read_and_written(device: Device, rng: Rng) -> None:
    values = rng.random((6, 8), np.float32)
    array = device.array(values)
    assert (array[1:5:2, ::-3].numpy() == values[1:5:2, ::-3]).all()
    array[2] = 5.0
    array[:, 1:3] = np.arange(12).reshape(6, 2)
    values[2] = 5.0
    values[:, 1:3] = np.arange(12).reshape(6, 2)
    assert (array.numpy() == values).all()
    row = array[3, 2:7]
    double[5](row)
    values[3, 2:7] *= 2
    assert (array.numpy() == values).all()
    array[::2, ::-1].fill(1)
    values[::2, ::-1] = 1
    assert (array.numpy() == values).all()
    with pytest.raises(kj.ArgumentValueError, match="out of bounds"):
        array[6]
    with pytest.raises(kj.ArgumentTypeError, match="ints and slices"):
        array[np.array([1, 2])]


def test_views_as_another_type_share_the_bytes(device: Device) -> None:
    array = device.array(np.arange(8, dtype=np.uint32))
    halves = array.view(kj.u16)
    assert halves.shape == (16,)
    assert (halves.numpy() == np.arange(8, dtype=np.uint32).view(np.uint16)).all()
    array.view(kj.f32).fill(1.0)
    assert (array.numpy() == 0x3F800000).all()
    points = device.zeros(12).view(kj.vec3)
    assert points.shape == (4,)
    assert points.numpy().shape == (4, 3)
    with pytest.raises(kj.ArgumentValueError, match="cannot be viewed"):
        array[:3].view(kj.u64)


def test_vector_arrays(device: Device, rng: Rng) -> None:
    @kj.jit
    def scale(p: kj.Array1[kj.vec3], s: kj.f32) -> None:
        i = kj.global_id(0)
        if i < p.size:
            p[i] = p[i] * s

    values = rng.random((9, 3), np.float32)
    array = device.array(values, kj.vec3)
    assert array.shape == (9,)
    scale[9](array, 0.5)
    assert (array.numpy() == values * np.float32(0.5)).all()
    with pytest.raises(kj.ArgumentValueError, match="holds no vec3"):
        device.array(np.zeros((4, 2)), kj.vec3)


def test_encoders_run_in_order_when_submitted(device: Device, rng: Rng) -> None:
    values = rng.random(50, np.float32)
    x, y = device.array(values), device.zeros(50)
    with device.encoder() as encoder:
        with encoder.compute_pass("first") as first:
            first.dispatch(double[50], x)
            first.dispatch(double[50], a=x)
        encoder.copy(x[10:20], y[:10])
        with encoder.compute_pass("second") as second:
            second.dispatch(double[50], x)
    assert (x.numpy() == values).all()
    device.submit(encoder)
    assert (x.numpy() == 8 * values).all()
    assert (y.numpy()[:10] == 4 * values[10:20]).all()
    assert (y.numpy()[10:] == 0).all()
    with pytest.raises(kj.DeviceError, match="after it was submitted"):
        device.submit(encoder)


def test_encoders_check_while_recording(device: Device) -> None:
    x = device.zeros(4)
    encoder = device.encoder()
    with encoder.compute_pass() as p:
        with pytest.raises(kj.ArgumentTypeError, match="NumPy array"):
            p.dispatch(double[4], np.zeros(4, np.float32))
        with pytest.raises(kj.ArgumentTypeError, match="missing a required argument"):
            p.dispatch(double[4])
    with pytest.raises(kj.ArgumentValueError, match="same shape"):
        encoder.copy(x, device.zeros(5))
    with pytest.raises(kj.ArgumentValueError, match="arrays of the encoder's device"):
        encoder.copy(x, kj.device("null").zeros(4))
    with encoder.compute_pass():
        pass
    with pytest.raises(kj.DeviceError, match="is over"):
        p.dispatch(double[4], x)
    with pytest.raises(kj.ArgumentValueError, match="own device"):
        kj.device("null").submit(encoder)


def test_copies_of_strided_and_overlapping_views(device: Device) -> None:
    """NVIDIA/warp#1384."""
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    array, other = device.array(values), device.zeros((6, 4), kj.i32)
    transposed: kj.Array[Any] = kj.Array(device, other.buffer, other.dtype, (4, 6), (4, 16))
    encoder = device.encoder()
    encoder.copy(array, transposed)
    encoder.copy(array[::-1, :2], array[:, 2:4])
    device.submit(encoder)
    assert (other.numpy() == values.T).all()
    values[:, 2:4] = values[::-1, :2].copy()
    assert (array.numpy() == values).all()
    line, steps = device.array(np.arange(40)), np.arange(40)
    device.copy(line[10:24], line[2:30:2])
    steps[2:30:2] = steps[10:24].copy()
    assert (line.numpy() == steps).all()


def test_an_indirect_grid_is_read_from_what_a_kernel_wrote(device: Device) -> None:
    @kj.jit
    def plan(counts: kj.Array1[kj.u32]) -> None:
        counts[1], counts[2], counts[3] = 3, 2, 1

    counts, hits = device.zeros(5, kj.u32), device.zeros(1, kj.u32)
    count[kj.Indirect(counts, 1)](hits)
    assert hits.numpy()[0] == 0
    plan[1](counts)
    count[kj.Indirect(counts, 1)](hits)
    assert hits.numpy()[0] == 3 * 2 * 16
    with pytest.raises(kj.ArgumentValueError, match="three counts must fit"):
        kj.Indirect(counts, 3)
    with pytest.raises(kj.ArgumentTypeError, match="array of u32"):
        kj.Indirect(device.zeros(3))


def test_profiles_time_each_dispatch_with_its_label(device: Device, tmp_path: Path) -> None:
    """KHAL's fact A5."""
    x, y = device.zeros(1 << 16), device.zeros(1 << 16)
    with device.profile() as profile:
        encoder = device.encoder()
        with encoder.compute_pass("first_pass") as p:
            p.dispatch(double[x.size], x)
        encoder.copy(x, y)
        with encoder.compute_pass("second_pass") as p:
            p.dispatch(double[x.size], x)
        device.submit(encoder)
    double[x.size](x)
    entries = profile.entries()
    assert [entry.label for entry in entries] == ["first_pass", "second_pass"]
    assert all(np.isfinite(entry.seconds) and entry.seconds >= 0 for entry in entries)
    assert "second_pass" in profile.table()
    assert str(profile) == profile.table()
    path = tmp_path / "trace.json"
    profile.chrome_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["first_pass", "second_pass"]
    taken = profile.try_take()
    assert taken is not None
    assert len(taken) == 2
    assert profile.try_take() == []


def test_readbacks_gather_ranges_as_they_were(device: Device, rng: Rng) -> None:
    values = rng.random(40, np.float32)
    x = device.array(values)
    readback = kj.Readback()
    assert readback.is_idle
    readback.request(x[5:9], x[::10])
    double[40](x)
    device.synchronize()
    while not readback.poll():
        device.poll()
    first, second = readback.take()
    assert (first == values[5:9]).all()
    assert (second == values[::10]).all()
    assert readback.is_idle
    with pytest.raises(kj.ArgumentValueError, match="nothing was asked for"):
        readback.take()


def test_arrays_can_be_awaited(device: Device, rng: Rng) -> None:
    values = rng.random(7, np.float32)
    found = asyncio.run(device.array(values).numpy_async())
    assert (found == values).all()
    assert (np.asarray(device.array(values)) == values).all()


def test_the_null_device_checks_and_runs_nothing() -> None:
    null = kj.device("null")
    x = null.zeros(4)
    x.fill(3)
    double[4](x)
    assert (x.numpy() == 3).all()
    with pytest.raises(kj.ArgumentTypeError):
        double[4](null.zeros(4, kj.i32))

    @kj.jit
    def wrong(a: Any) -> None:
        a[0] = a.nothing

    with pytest.raises(kj.TraceError):
        wrong[1](x)


def test_use_is_a_context_and_nests() -> None:
    before = kj.current_device()
    with kj.use("null") as null:
        assert kj.current_device() is null
        with kj.use("interpreter"):
            assert kj.current_device().kind == "interpreter"
        assert kj.current_device() is null
    assert kj.current_device() is before


def test_kernels_of_khaljits_own_take_every_array_without_a_warning() -> None:
    null = kj.device("null")
    layouts = [slice(0, 8), slice(1, 9), slice(0, 16, 2), slice(17, 1, -2)]
    for dtype in (kj.u8, kj.i16, kj.u32, kj.i64, kj.f32):
        source, target = null.zeros(40, dtype), null.zeros(40, dtype)
        with null.capture():
            for one, other in itertools.product(layouts, repeat=2):
                null.copy(source[one], target[other])
