"""The CUDA runtime without a GPU: on a driver of our own that runs PTX, and puts work off."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.device import CudaDevice
from khaljit.backends.cuda.kernel import Module
from khaljit.backends.cuda.memory import MOST_KEPT, size_class
from khaljit.extension import NATIVE
from tests.fake_cuda import FakeDriver


@pytest.fixture(params=["native", "python"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver(gpus=2)
    found.is_called_natively = request.param == "native"
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setenv("KHALJIT_CUDA_KEEP_PTX", "1")
    monkeypatch.setenv("KHALJIT_CACHE_DIR", "")
    return found


@pytest.fixture
def gpu(fake: FakeDriver) -> Iterator[CudaDevice]:
    del fake
    device = CudaDevice(0)
    with kj.use(device):
        yield device
    gc.collect()


@kj.jit
def double(x: kj.Array1[kj.i32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = 2 * x[i]


@kj.jit(workgroup=32)
def add_one(x: kj.Array1[kj.i32]) -> None:
    kj.atomic_add(x, kj.global_id(0), 1)


@kj.jit
def scale(x: kj.Array1[kj.f32], a: kj.f32, b: kj.f64, n: kj.i64, m: kj.u16, h: kj.f16) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = x[i] * a + kj.f32(b) + kj.f32(n) + kj.f32(m) + kj.f32(h)


def test_a_kernel_runs_and_is_read_back(gpu: CudaDevice, rng: np.random.Generator) -> None:
    values = rng.integers(-99, 99, 77).astype(np.int32)
    x = gpu.array(values)
    double[77](x)
    assert (x.numpy() == 2 * values).all()


def test_numbers_of_every_kind_reach_the_kernel(gpu: CudaDevice) -> None:
    x = gpu.array(np.array([1.0, 2.0], np.float32))
    scale[2](x, 3.0, -0.5, -(1 << 40), 65535, 2.0)
    rest = -0.5 - 2.0**40 + 65537
    assert np.allclose(x.numpy(), [3 + rest, 6 + rest])
    scale[2](x, float("inf"), 0.0, 0, 0, 0.0)
    assert np.isinf(x.numpy()).all()


def test_a_float_beyond_f32_is_infinity(gpu: CudaDevice) -> None:
    @kj.jit
    def put(x: kj.Array1[kj.f32], a: Any) -> None:
        x[0] = a

    x = gpu.zeros(1)
    put[1](x, 1e300)
    assert x.numpy()[0] == np.inf


# Streams.


def test_work_on_two_streams_is_in_the_order_of_their_memory(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    other = fake.new_stream()
    x = gpu.array(np.arange(50, dtype=np.int32))
    double[50](x)
    with kj.stream(other):
        double[50](x)
    double[50](x)
    with kj.stream(other):
        found = x.numpy()
    assert (found == 8 * np.arange(50)).all()


def test_memory_is_freed_behind_its_last_use_on_any_stream(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    other = fake.new_stream()
    x = gpu.array(np.arange(50, dtype=np.int32))
    y = gpu.zeros(50, kj.i32)
    with kj.stream(other):
        double[50](x)
        gpu.copy(x, y)
    del x
    gc.collect()
    assert (y.numpy() == 2 * np.arange(50)).all()
    gpu.synchronize()


def test_streams_that_are_equal_cost_no_events(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(8, kj.i32)
    double[8](x)
    before = fake.calls["cuStreamWaitEvent"]
    for _ in range(5):
        double[8](x)
    assert fake.calls["cuStreamWaitEvent"] == before


def test_synchronising_waits_for_every_stream(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(8, kj.i32)
    with kj.stream(fake.new_stream()):
        double[8](x)
    before = len(fake.executed)
    gpu.synchronize()
    assert fake.executed[before:].count("kernel") >= 1


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(kj.ArgumentValueError, match="no CUDA stream"):
        kj.stream("7")


# Grids that the GPU reads.


@pytest.mark.parametrize("on_host", [False, True])
def test_an_indirect_grid_is_read_when_the_launch_runs(
    gpu: CudaDevice, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    if on_host:
        monkeypatch.setenv("KHALJIT_CUDA_INDIRECT_SYNC", "1")

    @kj.jit
    def choose(counts: kj.Array1[kj.u32], n: kj.u32) -> None:
        counts[1] = n

    counts = gpu.array(np.array([9, 9, 1, 1], np.uint32))
    x = gpu.zeros(32 * 30, kj.i32)
    choose[1](counts, 30)
    add_one[kj.Indirect(counts, 1)](x)
    downloads = fake.executed.count("download")
    assert downloads == (1 if on_host else 0)
    assert x.numpy().tolist() == [1] * (32 * 30)
    choose[1](counts, 0)
    add_one[kj.Indirect(counts, 1)](x)
    assert x.numpy().tolist() == [1] * (32 * 30)


def test_a_kernel_that_writes_its_own_grid_runs_what_was_there(gpu: CudaDevice) -> None:
    @kj.jit(workgroup=32)
    def grow(counts: kj.Array1[kj.u32], out: kj.Array1[kj.u32]) -> None:
        if kj.local_index() == 0:
            kj.atomic_add(counts, 0, 5)
            kj.atomic_add(out, 0, 1)

    counts, out = gpu.array(np.array([35, 1, 1], np.uint32)), gpu.zeros(1, kj.u32)
    grow[kj.Indirect(counts)](counts, out)
    assert out.numpy()[0] == 35
    assert counts.numpy()[0] == 35 + 5 * 35


def test_a_grid_may_be_strided(gpu: CudaDevice) -> None:
    counts = gpu.array(np.array([9, 9, 5, 9, 1, 9, 1, 9], np.uint32))
    x = gpu.zeros(32 * 6, kj.i32)
    add_one[kj.Indirect(counts[::2], 1)](x)
    assert x.numpy().tolist() == [1] * 160 + [0] * 32


def test_the_number_of_resident_blocks_is_chosen(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CudaDevice(0).resident_blocks == 2 * 16
    monkeypatch.setenv("KHALJIT_CUDA_PERSISTENT_BLOCKS", "3")
    assert CudaDevice(0).resident_blocks == 2 * 3
    monkeypatch.setenv("KHALJIT_CUDA_PERSISTENT_BLOCKS", "0")
    with pytest.raises(kj.DeviceError, match="PERSISTENT_BLOCKS"):
        CudaDevice(0)


# Pools.


def test_reading_does_not_block_others(gpu: CudaDevice) -> None:
    async def read() -> Any:
        x = gpu.array(np.arange(9, dtype=np.int32))
        double[9](x)
        first, second = await asyncio.gather(x.numpy_async(), x.numpy_async())
        return first, second

    for found in asyncio.run(read()):
        assert (found == 2 * np.arange(9)).all()


def test_events_and_pinned_memory_are_used_again(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.array(np.arange(50, dtype=np.int32))
    for _ in range(3):
        x.numpy()
        gpu.synchronize()
    events, pinned = fake.calls["cuEventCreate"], fake.calls["cuMemAllocHost"]
    for _ in range(20):
        x.write(np.arange(50, dtype=np.int32))
        x.numpy()
    gpu.synchronize()
    assert fake.calls["cuEventCreate"] <= events + 1
    assert fake.calls["cuMemAllocHost"] <= pinned + 1


def test_an_upload_holds_what_was_there_when_it_was_made(gpu: CudaDevice) -> None:
    host, x = np.arange(50, dtype=np.int32), gpu.zeros(50, kj.i32)
    x.write(host)
    host[:] = -1
    for _ in range(5):
        gpu.zeros(50, kj.i32).write(host)
    assert (x.numpy() == np.arange(50)).all()


def test_what_is_kept_of_pinned_memory_is_bounded(gpu: CudaDevice) -> None:
    pieces = [gpu.pinned.take(MOST_KEPT // 4) for _ in range(9)]
    for piece in pieces:
        event = gpu.events.take()
        gpu.call("cuEventRecord", event, gpu.own.handle)
        gpu.pinned.give_after(event, piece)
    gpu.synchronize()
    gpu.pinned.take(1)
    assert gpu.memory_info().pinned <= MOST_KEPT
    assert [size_class(n) for n in (1, 256, 257, 4096)] == [256, 256, 512, 4096]


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 6, 7, 9, 12, 16, 21])
def test_what_atomics_read_behind_small_elements_is_set(
    gpu: CudaDevice, fake: FakeDriver, nbytes: int
) -> None:
    memory = gpu.allocate(nbytes)
    gpu.synchronize()
    assert memory.nbytes == -(-nbytes // 8) * 8
    word = -(-nbytes // 4) * 4  # with the last element
    assert not any(fake.piece(memory.address, memory.nbytes)[nbytes:word])


def test_memory_is_counted(gpu: CudaDevice, fake: FakeDriver) -> None:
    before = gpu.memory_info()
    x = gpu.empty(1 << 20, kj.u8)
    after = gpu.memory_info()
    assert after.used - before.used == 1 << 20
    assert (after.total, after.free) == (fake.capacity, before.free - (1 << 20))
    del x
    gc.collect()
    gpu.synchronize()
    assert gpu.memory_info().used == before.used


def test_memory_of_arrays_that_were_launched_often_is_given_back(gpu: CudaDevice) -> None:
    before = gpu.memory_info().used
    x = gpu.array(np.ones(64, np.int32))
    for _ in range(5):
        double[64](x)
    assert x.numpy().tolist() == [32] * 64
    assert gpu.memory_info().used > before
    del x
    gc.collect()
    gpu.synchronize()
    assert gpu.memory_info().used == before


# Errors.


def test_no_room_says_how_much_there_is(gpu: CudaDevice, fake: FakeDriver) -> None:
    fake.capacity = 1000
    with pytest.raises(kj.DeviceError, match=r"no room for 4,000 bytes: [\d,]+ of 1,000 are free"):
        gpu.empty(1000)


def test_room_that_nobody_uses_any_more_is_found(gpu: CudaDevice, fake: FakeDriver) -> None:
    fake.capacity = 6000
    held = [gpu.empty(1000)]
    held.append(held)  # type: ignore[arg-type]  # only the collector finds it
    del held
    assert gpu.empty(1000).size == 1000


def test_an_error_that_loses_the_context_names_the_kernel_and_is_final(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    x = gpu.zeros(8, kj.i32)
    gpu.synchronize()
    double[8](x)
    fake.failing["cuStreamSynchronize"] = [700]
    with pytest.raises(kj.DeviceError, match=r"kernel double failed on cuda:0: .*ILLEGAL_ADDRESS"):
        gpu.synchronize()
    for use in (gpu.synchronize, x.numpy, lambda: double[8](x), lambda: gpu.zeros(3)):
        with pytest.raises(kj.DeviceError, match="failed earlier and cannot be used"):
            use()


def test_a_launch_without_resources_says_what_it_asked_for(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    x = gpu.zeros(8, kj.i32)
    gpu.synchronize()
    fake.failing["cuLaunchKernel"] = [701]
    with pytest.raises(
        kj.DeviceError,
        match=r"32 invocations of 96 registers and 1,024 bytes .* at most 512 such invocations, "
        r"65,536 registers and 232,448 bytes",
    ):
        add_one[8](x)


def test_too_much_shared_memory_is_refused_with_the_limit(gpu: CudaDevice) -> None:
    @kj.jit(workgroup=32)
    def large(x: kj.Array1[kj.f32]) -> None:
        own = kj.shared(kj.f32, 60_000)
        own[kj.local_index()] = x[0]
        kj.barrier()
        x[0] = own[31 - kj.local_index()]

    with pytest.raises(kj.KhaljitError, match=r"240,000|240000"):
        large[32](gpu.zeros(1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_device_is_not_used_after_a_fork(gpu: CudaDevice) -> None:
    child = os.fork()
    if child == 0:
        try:
            gpu.zeros(3)
        except kj.DeviceError as error:
            os._exit(0 if "before the process forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_ptx_that_is_refused_comes_with_the_compilers_words(gpu: CudaDevice) -> None:
    with pytest.raises(kj.DeviceError, match="what is this"):
        gpu.load("nonsense", "entry", "f32[:]", workgroup=32)


# Two GPUs.


def test_arrays_are_copied_between_gpus(gpu: CudaDevice, rng: np.random.Generator) -> None:
    second = CudaDevice(1)
    values = rng.integers(-99, 99, (6, 7)).astype(np.int32)
    x, y = gpu.array(values), second.zeros((6, 7), kj.i32)
    double[42](gpu.array(values).view(kj.i32)[0])
    with second.encoder() as encoder:
        encoder.copy(x, y)
    second.submit(encoder)
    assert (y.numpy() == values).all()
    x[...] = 5
    assert (y.numpy() == values).all()
    x[:, ::2] = y[:, ::2]
    assert (x.numpy()[:, ::2] == values[:, ::2]).all()
    assert (x.numpy()[:, 1::2] == 5).all()


def test_a_copy_between_gpus_is_in_the_order_of_both(gpu: CudaDevice) -> None:
    second = CudaDevice(1)
    x, y = gpu.array(np.arange(9, dtype=np.int32)), second.zeros(9, kj.i32)
    double[9](x)
    second.copy(x, y)
    double[9](x)
    with kj.use(second):
        double[9](y)
    assert (y.numpy() == 4 * np.arange(9)).all()
    assert (x.numpy() == 4 * np.arange(9)).all()


# Profiles.


def test_a_profile_times_what_goes_to_another_stream(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(8, kj.i32)
    with gpu.profile() as profile:
        double[8](x)
        with kj.stream(fake.new_stream()):
            double[8](x)
    assert [entry.label for entry in profile.entries()] == ["double", "double"]
    assert all(entry.seconds >= 0 for entry in profile.entries())


# Launches by native code, which calls the driver's functions by their addresses.

needs_native = pytest.mark.skipif(NATIVE is None, reason="the native extension is not built")


@needs_native
def test_launches_that_have_a_plan_go_straight_to_the_driver(
    gpu: CudaDevice, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gpu.array(np.arange(50, dtype=np.int32))
    y = gpu.zeros(8)
    numbers = (0.5, 0.25, -(1 << 40), 65535, 2.0)
    expected = 0.25 - 2.0**40 + 65537
    double[50](x)
    scale[8](y, *numbers)
    by_python: list[object] = []
    run = Module.run

    def noted(self: Module, *args: Any) -> None:
        by_python.append(self)
        run(self, *args)

    monkeypatch.setattr(Module, "run", noted)
    before = fake.calls["cuLaunchKernel"]
    double[50](x)
    double[20](x[12:32])  # aligned as x is
    scale[8](y, *numbers)
    assert fake.calls["cuLaunchKernel"] == before + 3
    assert (len(by_python) == 0) == fake.is_called_natively
    middle = (np.arange(50) >= 12) & (np.arange(50) < 32)
    assert (x.numpy() == np.where(middle, 8, 4) * np.arange(50)).all()
    assert np.allclose(y.numpy(), 0.5 * expected + expected)


def test_what_the_driver_says_of_a_later_launch_is_raised(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    x = gpu.zeros(8, kj.i32)
    for _ in range(2):
        double[8](x)
    fake.failing["cuLaunchKernel"] = [701]
    with pytest.raises(kj.DeviceError, match="96 registers and 1,024 bytes") as caught:
        double[8](x)
    assert "smaller workgroup" in (caught.value.mend or "")
    fake.failing["cuCtxSetCurrent"] = [700]
    with pytest.raises(kj.DeviceError):
        double[8](x)


def test_later_launches_on_other_streams_and_devices_find_their_way(
    fake: FakeDriver, rng: np.random.Generator
) -> None:
    first, second, other = CudaDevice(0), CudaDevice(1), fake.new_stream()
    values = rng.integers(-99, 99, 33).astype(np.int32)
    arrays = [device.array(values) for device in (first, second)]
    for _ in range(3):
        for array in arrays:
            double[33](array)
    with kj.stream(other):
        double[33](arrays[0])
    double[33](arrays[0])
    assert (arrays[0].numpy() == 32 * values).all()
    assert (arrays[1].numpy() == 8 * values).all()
    del first, second, arrays
    gc.collect()


def test_a_grid_that_is_too_large_is_refused_whatever_the_way(gpu: CudaDevice) -> None:
    x = gpu.zeros(1, kj.i32)
    add_one[32](x)
    add_one[32](x)
    with pytest.raises(kj.ArgumentValueError, match="too many"):
        add_one[1 << 20, 1 << 20](x)


def test_kernels_that_assert_are_launched_again(gpu: CudaDevice) -> None:
    @kj.jit
    def checked(x: kj.Array1[kj.i32], least: kj.i32) -> None:
        i = kj.global_id(0)
        if i < x.size:
            assert x[i] >= least, "too small"
            x[i] += 1

    x = gpu.array(np.arange(8, dtype=np.int32))
    for _ in range(4):
        checked[8](x, 0)
    gpu.synchronize()
    assert (x.numpy() == np.arange(8) + 4).all()
    checked[8](x, 5)
    with pytest.raises(kj.KernelError, match="too small"):
        gpu.synchronize()
