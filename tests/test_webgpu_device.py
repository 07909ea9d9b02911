"""The WebGPU device: limits, errors, sharing with other users of wgpu, and what it keeps."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.webgpu import adapters, raw
from khaljit.backends.webgpu.buffers import RING
from khaljit.backends.webgpu.device import WebGpuDevice
from khaljit.extension import NATIVE
from khaljit.jit import Kernel

Rng = np.random.Generator


@kj.jit
def double(a: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    a[i] = a[i] * 2.0


FACTOR = 1.0


@kj.jit
def add(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    out[i] = x[i] + y[i]


@pytest.fixture
def gpu() -> WebGpuDevice:
    """The device that the other tests use too."""
    return _open("webgpu")


def _open(name: str) -> WebGpuDevice:
    try:
        found = kj.device(name)
    except kj.DeviceError as error:
        pytest.skip(f"no {name} device: {error.message}")
    assert isinstance(found, WebGpuDevice)
    return found


@pytest.fixture
def handle(gpu: WebGpuDevice) -> Iterator[Any]:
    """A wgpu device of somebody else's."""
    found = gpu.handle.adapter.request_device_sync()
    yield found
    found.destroy()


# Limits.


def test_an_array_may_be_as_large_as_a_binding_and_not_a_byte_larger(gpu: WebGpuDevice) -> None:
    @kj.jit
    def ends(a: kj.Array1[kj.u32]) -> None:
        a[0] = 7
        a[a.size - 1] = a[0] + a.size

    limit = gpu.limits["max-storage-buffer-binding-size"]
    if limit > 1 << 28:
        pytest.skip("the binding limit is more memory than a test should take")
    array = gpu.empty(limit // 4, kj.u32)
    ends[1](array)
    assert array[-1:].numpy().tolist() == [7 + limit // 4]
    with pytest.raises(kj.DeviceError, match=f"{limit + 1} bytes is too large") as caught:
        gpu.empty(limit + 1, kj.u8)
    assert str(limit) in str(caught.value.mend)


@pytest.mark.parametrize(
    "grid", [(70_001,), (2, 70_001), (1, 3, 66_000), (66_000, 2, 2), (65_536,)]
)
def test_more_workgroups_than_an_axis_takes_are_folded(
    gpu: WebGpuDevice, grid: tuple[int, ...]
) -> None:
    @kj.jit(workgroup=1)
    def mark(hits: kj.Array3[kj.u32], ids: kj.Array3[kj.u32]) -> None:
        x, y, z = kj.workgroup_id(0), kj.workgroup_id(1), kj.workgroup_id(2)
        hits[z, y, x] += 1
        ids[z, y, x] = kj.u32(kj.global_id(0) + 7 * kj.global_id(1) + 13 * kj.global_id(2))

    shape = tuple(reversed((*grid, 1, 1)[:3]))
    hits, ids = gpu.zeros(shape, kj.u32), gpu.zeros(shape, kj.u32)
    mark[grid](hits, ids)
    assert (hits.numpy() == 1).all()
    z, y, x = np.indices(shape)
    assert (ids.numpy() == x + 7 * y + 13 * z).all()


def test_grids_without_a_fixed_workgroup_are_folded_too(gpu: WebGpuDevice) -> None:
    @kj.jit
    def mark(hits: kj.Array3[kj.u8]) -> None:
        z, y, x = kj.index(3)
        hits[z, y, x] = 1

    for shape in ((2, 66_001, 3), (66_001, 2, 65), (1, 70_001, 1)):
        hits = gpu.zeros(shape, kj.u8)
        mark[kj.over(hits)](hits)
        assert (hits.numpy() == 1).all()


def test_zero_grids_and_arrays_without_elements_run_nothing(gpu: WebGpuDevice) -> None:
    array, empty = gpu.array([1.0, 2.0]), gpu.zeros(0)
    double[0](array)
    double[5](empty)
    add[3](empty, array, array)
    assert array.numpy().tolist() == [0.0 + 1.0, 2.0]
    assert empty.numpy().shape == (0,)
    assert gpu.zeros((0, 4)).numpy().shape == (0, 4)


def test_many_numbers_go_through_a_uniform_buffer(gpu: WebGpuDevice, rng: Rng) -> None:
    """More than immediates hold, in more dispatches than the buffer holds blocks."""
    count = gpu.immediates // 4 + 9
    names = [f"p{k}" for k in range(count)]
    scope: dict[str, Any] = {"kj": kj}
    source = (
        f"def weigh(out, at, {', '.join(names)}):\n"
        f"    out[at] = {' + '.join(f'{k + 1} * {name}' for k, name in enumerate(names))}\n"
    )
    exec(source, scope)
    weigh = kj.jit(scope["weigh"])
    launches = RING // (4 * count) + 20
    out = gpu.zeros(launches, kj.i32)
    values = rng.integers(-50, 50, (launches, count))
    for at, row in enumerate(values.tolist()):
        weigh[1](out, at, *row)
    assert (out.numpy() == values @ np.arange(1, count + 1)).all()


def test_offsets_are_added_only_where_arrays_are_views(gpu: WebGpuDevice, rng: Rng) -> None:
    values = rng.random(60, np.float32)
    x, y, out = gpu.array(values), gpu.array(values[::-1].copy()), gpu.zeros(60)
    slots = add.compile(x, y, out).artifact.plan["slots"]
    assert "offset" not in {source[0] for source, *_ in slots}
    add[60](x, y, out)
    assert (out.numpy() == values + values[::-1]).all()
    add[20](x[7:27], y[20:40], out[1:21])
    assert (out.numpy()[1:21] == values[7:27] + values[::-1][20:40]).all()
    add[20](x[:20], y[:20], out[40:])
    assert (out.numpy()[40:] == values[:20] + values[::-1][:20]).all()


def test_two_views_of_one_buffer_are_bound_once(gpu: WebGpuDevice, rng: Rng) -> None:
    values = rng.random(99, np.float32)
    array = gpu.array(values)
    add[33](array[:33], array[33:66], array[66:])
    values[66:] = values[:33] + values[33:66]
    assert (array.numpy() == values).all()
    add[33](array[:33], array[:33], array[:33])
    values[:33] += values[:33]
    assert (array.numpy() == values).all()
    with pytest.raises(kj.ArgumentValueError, match="overlap in part"):
        add[33](array[:33], array[1:34], array[2:35])


# Errors.


def test_devices_are_not_mixed(gpu: WebGpuDevice, handle: Any) -> None:
    with pytest.raises(kj.ArgumentValueError, match="live on"):
        add[4](gpu.zeros(4), kj.device("cpu").zeros(4), gpu.zeros(4))
    with pytest.raises(kj.ArgumentValueError, match="live on"):
        add[4](gpu.zeros(4), kj.Device.from_wgpu(handle).zeros(4), gpu.zeros(4))


def test_a_lost_device_is_an_error_and_can_be_opened_again() -> None:
    gpu = _open("webgpu:0")
    array = gpu.array([1.0])
    gpu.handle.destroy()
    for action in (
        lambda: gpu.zeros(4),
        array.numpy,
        lambda: array.write([2.0]),
        lambda: double[1](array),
        gpu.synchronize,
    ):
        with pytest.raises(kj.DeviceError, match="lost"):
            action()
    again = _open("webgpu:0")
    assert again is not gpu
    array = again.array([1.0])
    double[1](array)
    assert array.numpy().tolist() == [2.0]


def test_no_memory_is_a_device_error(gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise gpu.wgpu.GPUOutOfMemoryError("Not enough memory left.")

    monkeypatch.setattr(gpu.handle, "create_buffer", refuse)
    with pytest.raises(kj.DeviceError, match="allocating 400 bytes: out of memory"):
        gpu.empty(100)


def test_what_wgpu_refuses_names_the_kernels(handle: Any) -> None:
    """At submission: an indirect grid in a foreign buffer that was not made for one."""

    @kj.jit(workgroup=4)
    def fours(a: kj.Array1[kj.f32]) -> None:
        a[kj.global_id(0)] = 4.0

    gpu = kj.Device.from_wgpu(handle)
    assert isinstance(gpu, WebGpuDevice)
    usage = gpu.wgpu.BufferUsage.STORAGE
    counts = gpu.adopt(handle.create_buffer(size=16, usage=usage), kj.u32)
    array = gpu.zeros(8)
    gpu.synchronize()
    fours[kj.Indirect(counts)](array)
    with pytest.raises(kj.DeviceError, match=r"running fours(.|\n)*INDIRECT"):
        gpu.synchronize()
    fours[8](array)
    assert array.numpy().tolist() == [4.0] * 8


def test_a_failing_assertion_is_reported_at_the_next_wait(gpu: WebGpuDevice) -> None:
    @kj.jit
    def positive(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        assert a[i] > 0, "not positive"

    positive[3](gpu.array([1, 2, 3]))
    gpu.synchronize()
    positive[3](gpu.array([1, -2, 3]))
    with pytest.raises(kj.KernelError, match="not positive"):
        gpu.synchronize()
    gpu.synchronize()


# Sharing.


def test_a_foreign_device_and_its_buffers_are_adopted(handle: Any, rng: Rng) -> None:
    gpu = kj.Device.from_wgpu(handle)
    assert kj.Device.from_wgpu(handle) is gpu
    assert isinstance(gpu, WebGpuDevice)
    usage = gpu.wgpu.BufferUsage
    values = rng.random(64, np.float32)
    buffer = handle.create_buffer_with_data(
        data=values, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
    )
    array = gpu.adopt(buffer, kj.f32)
    assert array.shape == (64,)
    double[64](array)
    double[8](gpu.adopt(buffer, kj.f32, (2, 4), 32)[1])
    values *= 2
    values[12:16] *= 2
    assert array.native is buffer
    seen = np.frombuffer(handle.queue.read_buffer(buffer), np.float32)
    assert (seen == values).all()
    with pytest.raises(kj.ArgumentValueError, match="overlap in part"):
        add[8](array[:8], array[:8], gpu.adopt(buffer, kj.f32, 8, 16))
    with pytest.raises(kj.ArgumentValueError, match="does not lie in a buffer of 256 bytes"):
        gpu.adopt(buffer, kj.f32, 64, 4)
    with pytest.raises(kj.ArgumentValueError, match="no buffer of"):
        _open("webgpu").adopt(buffer, kj.f32)
    with pytest.raises(kj.ArgumentValueError, match="no wgpu device"):
        kj.Device.from_wgpu(buffer)


def test_adopted_buffers_tell_which_usage_they_lack(handle: Any) -> None:
    gpu = kj.Device.from_wgpu(handle)
    assert isinstance(gpu, WebGpuDevice)
    usage = gpu.wgpu.BufferUsage
    with pytest.raises(kj.ArgumentValueError, match="without the usage STORAGE"):
        gpu.adopt(handle.create_buffer(size=16, usage=usage.COPY_SRC), kj.f32)
    bare = gpu.adopt(handle.create_buffer(size=16, usage=usage.STORAGE), kj.f32)
    bare.fill(3.0)
    with pytest.raises(kj.DeviceError, match="without the usage COPY_SRC"):
        bare.numpy()
    with pytest.raises(kj.DeviceError, match="without the usage COPY_DST"):
        bare.write([1.0, 2.0, 3.0, 4.0])
    other = gpu.zeros(4)
    encoder = gpu.encoder()
    encoder.copy(bare, other)
    gpu.submit(encoder)
    assert other.numpy().tolist() == [3.0] * 4


def test_arrays_are_made_for_more_usages(gpu: WebGpuDevice) -> None:
    usage = gpu.wgpu.BufferUsage
    for array in (
        gpu.empty(3, usage="VERTEX|INDEX"),
        gpu.zeros(3, usage="vertex | index"),
        gpu.full(3, 1.0, usage=int(usage.VERTEX | usage.INDEX)),
        gpu.array([1.0, 2.0], usage="INDEX|VERTEX"),
    ):
        assert array.native.usage & usage.VERTEX
        assert array.native.usage & usage.INDEX
        assert not array.native.usage & usage.UNIFORM
    with pytest.raises(kj.ArgumentValueError, match="'SHINY' is no usage"):
        gpu.empty(3, usage="SHINY")
    assert kj.device("cpu").zeros(3, usage="VERTEX").numpy().tolist() == [0.0] * 3
    with pytest.raises(kj.CapabilityError, match="adopts no buffer"):
        kj.device("cpu").adopt(b"1234", kj.f32)


# What it keeps.


def test_bind_groups_go_with_their_buffers(gpu: WebGpuDevice) -> None:
    first = gpu.zeros(16)
    for _ in range(3):  # as a first launch, and as one that was seen
        double[16](first)
    gpu.synchronize()
    gc.collect()
    before = len(gpu.groups)
    for _ in range(20):
        double[16](gpu.zeros(16))
    gpu.synchronize()
    gc.collect()
    assert len(gpu.groups) <= before
    double[16](first)
    assert len(gpu.groups) <= before


def test_a_launch_like_one_before_takes_new_numbers(gpu: WebGpuDevice) -> None:
    @kj.jit
    def put(a: kj.Array1[kj.f32], at: Any, value: kj.f32, b: Any) -> None:
        a[at] = value + b

    array, other = gpu.zeros(12), gpu.zeros(12)
    for at in range(4):
        put[1](array, at, 0.5 * at, 1)
    for at in range(4, 8):
        put[1](array, at, at, 2.5)
    for at in range(4):
        put[1](other, at, 9.0, at)
    for at in range(8, 10):
        put[1](array, at, float(at), True)
    with pytest.raises(kj.ArgumentOverflowError, match="cannot hold it"):
        put[1](array, 1 << 40, 0.0, 1)
    with pytest.raises(kj.ArgumentTypeError, match="parameter value"):
        put[1](array, 1, "1", 1)  # type: ignore[arg-type]
    put[0](array, 0, 99.0, 1)
    expected = [1, 1.5, 2, 2.5, 6.5, 7.5, 8.5, 9.5, 9, 10, 0, 0]
    assert array.numpy().tolist() == expected
    assert other.numpy()[:4].tolist() == [9, 10, 11, 12]
    assert put.cache_info()["recorded"] == 3


def test_a_launch_like_one_before_sees_changed_globals(
    gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kj.jit
    def grow(a: kj.Array1[kj.f32]) -> None:
        a[kj.global_id(0)] *= FACTOR

    array = gpu.full(3, 1.0)
    for factor in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0):
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        grow[3](array)
    assert array.numpy().tolist() == [216.0] * 3


def test_a_profile_sees_launches_like_those_before_it(gpu: WebGpuDevice) -> None:
    array = gpu.zeros(16)
    for _ in range(3):
        double[16](array)
    with gpu.profile() as profile:
        double[16](array)
    assert [entry.label for entry in profile.entries()] == ["double"]


def test_remembered_launches_keep_no_array_alive(gpu: WebGpuDevice) -> None:
    array = gpu.zeros(16)
    for _ in range(3):
        double[16](array)
    gpu.synchronize()
    buffer, view = weakref.ref(array.buffer), weakref.ref(array)
    place = array.buffer.address
    keys: Any = gpu.groups._keys[place]
    assert any(isinstance(key[-1], bytes) for key in keys) == (NATIVE is not None)
    del array
    gc.collect()
    assert view() is None
    assert buffer() is None
    assert place not in gpu.groups._keys


def test_launches_that_have_a_plan_are_recorded_as_others(
    gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kj.jit
    def put(x: kj.Array2[kj.f32], a: kj.f32, b: Any, c: kj.i32 = 3) -> None:
        i, j = kj.index(2)
        if i < x.shape[0] and j < x.shape[1]:
            x[i, j] += 100 * a + 10 * kj.f32(b) + kj.f32(c)

    whole = gpu.zeros((4, 6))
    views = [whole, whole[1:3], whole[:, ::2], whole[3:], whole[:, 5:]]
    expected = np.zeros((4, 6), np.float32)
    parts = [expected, expected[1:3], expected[:, ::2], expected[3:], expected[:, 5:]]
    for turn in range(4):
        if turn == 2 and NATIVE is not None:
            monkeypatch.setattr(Kernel, "prepare", _unexpected)
        for view, part in zip(views, parts, strict=True):
            put[kj.over(view)](view, turn, np.float32(2))
            part += 100 * turn + 20 + 3
            put[kj.over(view)](view, 1.0, np.float32(turn), c=4)
            part += 100 + 10 * turn + 4
    assert (whole.numpy() == expected).all()


def _unexpected(self: Kernel, *_: Any) -> None:
    raise AssertionError(self)


def test_staging_buffers_are_used_again(gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    array = gpu.zeros(5000)
    array.numpy()

    def refuse(**_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(gpu.handle, "create_buffer", refuse)
    for _ in range(3):
        assert (array[:4999].numpy() == 0).all()


def test_profiles_hold_more_dispatches_than_a_query_set(gpu: WebGpuDevice) -> None:
    array = gpu.zeros(16)
    with gpu.profile() as profile:
        for _ in range(300):
            double[16](array)
    entries = profile.entries()
    assert len(entries) == 300
    starts = [entry.start for entry in entries]
    assert starts == sorted(starts)
    assert all(entry.seconds >= 0 for entry in entries)


# Trust.


def test_only_code_with_khaljits_own_guards_is_trusted(
    gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu.info["backend_type"] != "Vulkan":
        pytest.skip("modules are trusted on Vulkan only")
    trusted = []
    original = raw.trusted_module

    def watch(device: Any, code: bytes, label: str) -> Any:
        trusted.append(label)
        return original(device, code, label)

    monkeypatch.setattr(raw, "trusted_module", watch)
    for unchecked in (False, True):

        @kj.jit(unchecked=unchecked, name=f"unchecked_{unchecked}", salt="of this test")
        def scatter(a: kj.Array1[kj.i32], places: kj.Array1[kj.i32]) -> None:
            i = kj.global_id(0)
            a[places[i]] = 5

        whole = gpu.zeros(30, kj.i32)
        places = [3, 9] if unchecked else [3, 10, -1, 1 << 30, -(1 << 31), 9]
        scatter[len(places)](whole[10:20], gpu.array(places))
        expected = np.zeros(30, np.int32)
        expected[[13, 19]] = 5
        assert (whole.numpy() == expected).all()
    assert {label for label in trusted if "unchecked" in label} == {"unchecked_False"}


def test_trust_can_be_switched_off(handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setenv("KHALJIT_WEBGPU_TRUSTED", "0")
    monkeypatch.setattr(raw, "trusted_module", refuse)
    array = kj.Device.from_wgpu(handle).array([1.0, 2.0])
    double[2](array)
    assert array.numpy().tolist() == [2.0, 4.0]


# Choosing.


def test_the_environment_chooses_the_device(
    gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_DEVICE", "webgpu")
    assert kj.current_device() is gpu
    values = np.arange(5, dtype=np.float32)
    double[5](values)
    assert values.tolist() == [0, 2, 4, 6, 8]
    monkeypatch.setenv("KHALJIT_DEVICE", "webgpu:99")
    with pytest.raises(kj.DeviceError, match="no adapter 99"):
        kj.current_device()


def test_auto_says_why(gpu: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cuda(number: int | None) -> Any:
        raise kj.DeviceError("no GPU of NVIDIA's")

    devices = sys.modules["khaljit.devices"]  # kj.devices is a function
    monkeypatch.setattr(devices, "_OPEN", dict(devices._OPEN))
    for key in [key for key in devices._OPEN if key[0] == "cuda"]:
        del devices._OPEN[key]
    monkeypatch.setitem(devices._KINDS, "cuda", no_cuda)

    class Adapter:
        features: frozenset[str] = frozenset()

        def __init__(self, kind: str) -> None:
            self.info = {"adapter_type": kind, "device": "a device"}

    kinds = iter(("CPU", "DiscreteGPU"))
    monkeypatch.setattr(
        type(gpu.wgpu.gpu), "request_adapter_sync", lambda self, **_: Adapter(next(kinds))
    )
    found = kj.device("auto")
    assert found.kind == "cpu"
    assert "no cuda: no GPU of NVIDIA's" in found.reason
    assert "computes on the CPU" in found.reason
    found = kj.device("auto")
    assert found is gpu
    assert found.reason == "no cuda: no GPU of NVIDIA's; so webgpu"


def test_without_an_adapter_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, gpu: WebGpuDevice
) -> None:
    def none(self: Any, **_: Any) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(type(gpu.wgpu.gpu), "request_adapter_sync", none)
    with pytest.raises(kj.DeviceError, match="no WebGPU adapter") as caught:
        adapters.choose(None)
    assert "mesa-vulkan-drivers" in str(caught.value.mend)
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(kj.DeviceError, match="wgpu is not installed"):
        WebGpuDevice()


def test_the_demo_gives_the_same_picture_as_on_the_cpu(
    gpu: WebGpuDevice, tmp_path: Path, rng: Rng
) -> None:
    """KHAL's fact: one pipeline, one result."""
    import re

    from PIL import Image
    from rich.console import Console

    from khaljit.demo import run

    path = tmp_path / "in.png"
    Image.fromarray(rng.integers(0, 256, (67, 131, 3), np.uint8)).save(path)
    digests = []
    for name in ("cpu", "webgpu"):
        console = Console(record=True, quiet=False, width=120)
        assert run(path, name, tmp_path / name, console) == 0
        found = re.search(r"result (\w+), agrees", console.export_text())
        assert found
        digests.append(found[1])
    assert digests[0] == digests[1]


_FORKING = """
import os, signal, sys
import numpy as np
import khaljit as kj

@kj.jit
def double(a):
    a[kj.global_id(0)] *= 2

def attempts(array):
    yield array.numpy
    yield array.device.synchronize
    yield lambda: (double[4](array), array.numpy())
    yield lambda: array.device.zeros(4)
    yield lambda: kj.device("webgpu:0")

array = kj.device("webgpu").full(4, 1.0)
double[4](array)
child = os.fork()
if child == 0:
    signal.alarm(20)
    for attempt in attempts(array):
        try:
            attempt()
            os._exit(1)
        except kj.DeviceError as error:
            assert "before the process forked" in str(error)
    cpu = np.ones(4, np.float32)
    double[4](cpu)
    os._exit(0 if (cpu == 2).all() else 2)
assert os.waitpid(child, 0)[1] == 0
assert (array.numpy() == 2).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.usefixtures("gpu")
def test_a_forked_child_is_refused_and_does_not_wait_for_ever() -> None:
    """The threads of the driver are not in it; the parent works on."""
    subprocess.run([sys.executable, "-c", _FORKING], check=True, timeout=60)
