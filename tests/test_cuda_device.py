"""The CUDA runtime on a GPU: other libraries in place, large arrays, streams, errors, peers.

Everything here is skipped, and counted, where there is no GPU; what needs PyTorch or CuPy, where
they are not.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.backends.cuda import driver

LARGE = (1 << 31) + 4099  # elements


@pytest.fixture
def gpu() -> Device:
    try:
        return kj.device("cuda")
    except kj.DeviceError as error:
        pytest.skip(f"no cuda device: {error.message}")


def library(name: str) -> Any:
    """PyTorch or CuPy, where it is and sees the GPU."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"no {name} here")
    return importlib.import_module(name)


def room(gpu: Any, nbytes: int) -> None:
    """Skip where the GPU has too little memory."""
    if gpu.memory_info().free < nbytes:
        pytest.skip(f"less than {nbytes >> 30} GiB of the GPU's memory are free")


@kj.jit
def add_one(x: kj.Array1[kj.i32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = x[i] + 1


@kj.jit
def scale(x: kj.Array1[kj.f32], out: kj.Array1[kj.f32], a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < out.size:
        out[i] = a * x[i] + out[i]


@kj.jit(workgroup=64)
def touch(x: kj.Array1[kj.i32]) -> None:
    kj.atomic_add(x, kj.global_id(0), 1)


# Other libraries.


@pytest.mark.parametrize("own_stream", [False, True])
def test_a_tensor_of_pytorch_is_changed_in_place_on_its_stream(
    gpu: Device, own_stream: bool
) -> None:
    torch = library("torch")
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        wanted = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        x = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
        for k in range(1000):
            x.mul_(3).add_(k)
            wanted.mul_(3).add_(k + 1)
            add_one[x.numel()](x)
            wrong += (x != wanted).sum()
    stream.synchronize()
    assert wrong.item() == 0


def test_a_tensor_beside_an_array_of_ours(gpu: Device) -> None:
    torch = library("torch")
    out = gpu.zeros(1 << 16)
    for k in range(100):
        x = torch.full((1 << 16,), float(k), device="cuda")
        scale[1 << 16](x, out, 2.0)
    assert (out.numpy() == 2 * sum(range(100))).all()


def test_every_dtype_of_pytorch_is_taken(gpu: Device) -> None:
    torch = library("torch")

    @kj.jit
    def copy(x: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < out.shape[0]:
            out[i] = x[i]

    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                 "float32", "float64"):  # fmt: skip
        kind = getattr(torch, name)
        x = (torch.randn(1000, device="cuda") * 9).to(kind)
        out = torch.zeros_like(x)
        copy[1000](x, out)
        assert torch.equal(x, out), name
    strided = torch.zeros(1000, 2, device="cuda")
    copy[1000](x[:, None].float()[:, 0], strided[:, 1])
    assert torch.equal(strided[:, 1], x.float())
    assert not strided[:, 0].any()


def test_our_array_is_a_tensor_of_pytorch(gpu: Device) -> None:
    torch = library("torch")
    x = gpu.array(np.arange(1000, dtype=np.int32))
    tensor = torch.from_dlpack(x)
    for _ in range(100):
        add_one[1000](x)
        tensor += 1
    assert (x.numpy() == np.arange(1000) + 200).all()
    assert tensor.data_ptr() == x.address


def test_a_tensor_that_requires_gradients_says_what_to_do(gpu: Device) -> None:
    torch = library("torch")
    x = torch.zeros(9, device="cuda", requires_grad=True)
    with pytest.raises(kj.ArgumentTypeError, match="detach"):
        scale[9](x, x, 1.0)


def test_arrays_of_cupy_both_ways(gpu: Device) -> None:
    cupy = library("cupy")
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.arange(1 << 20, dtype=cupy.int32)
        for _ in range(200):
            x *= 2
            add_one[1 << 20](x)
            x -= 1
            x //= 2
        assert int((x != cupy.arange(1 << 20, dtype=cupy.int32)).sum()) == 0
    ours = gpu.array(np.arange(1000, dtype=np.int32))
    assert (cupy.from_dlpack(ours).get() == np.arange(1000)).all()
    assert (cupy.asarray(ours).get() == np.arange(1000)).all()


# Large arrays.


def test_bytes_past_two_to_the_31(gpu: Device) -> None:
    room(gpu, 3 * LARGE)

    @kj.jit
    def mark(x: kj.Array1[kj.i8], out: kj.Array1[kj.i8]) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = x[i] + kj.i8(i % 101)

    x, out = gpu.full(LARGE, 3, kj.i8), gpu.zeros(LARGE, kj.i8)
    mark[LARGE](x, out)
    for start in (0, (1 << 31) - 500, LARGE - 1000):
        want = 3 + np.arange(start, start + 1000) % 101
        assert (out[start : start + 1000].numpy() == want).all()
    out[LARGE - 1 :] = 77
    assert out.numpy()[-2:].tolist() == [3 + (LARGE - 2) % 101, 77]


def test_floats_past_two_to_the_31(gpu: Device) -> None:
    room(gpu, 9 * LARGE)
    x, out = gpu.full(LARGE, 0.5), gpu.full(LARGE, 1.0)
    x[LARGE - 3 :] = np.array([5, 6, 7], np.float32)
    scale[LARGE](x, out, 2.0)
    assert out[LARGE - 3 :].numpy().tolist() == [11, 13, 15]
    for start in (0, (1 << 29) - 5, (1 << 30) - 5, (1 << 31) - 5):
        assert (out[start : start + 10].numpy() == 2).all()


def test_more_workgroups_than_an_axis_takes(gpu: Device) -> None:
    @kj.jit(workgroup=(1, 1, 2))
    def count(x: kj.Array1[kj.u32]) -> None:
        kj.atomic_add(x, kj.global_id(2) % 4, 1)

    x = gpu.zeros(4, kj.u32)
    count[1, 1, 400_000](x)
    assert x.numpy().tolist() == [100_000] * 4


# Grids that the GPU reads.


def test_indirect_launches_do_not_wait(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    @kj.jit
    def choose(counts: kj.Array1[kj.u32], x: kj.u32, y: kj.u32, z: kj.u32) -> None:
        counts[0] = x
        counts[1] = y
        counts[2] = z

    @kj.jit(workgroup=(8, 4, 2))
    def ids(out: kj.Array1[kj.i32]) -> None:
        width, height = kj.num_workgroups(0) * 8, kj.num_workgroups(1) * 4
        place = (kj.global_id(2) * height + kj.global_id(1)) * width + kj.global_id(0)
        kj.atomic_add(out, place, 1 + kj.local_index() % 2)

    def waiting(name: str, *args: Any, **kwargs: Any) -> Any:
        assert "Synchronize" not in name, name
        return call(name, *args, **kwargs)

    call = gpu.call  # type: ignore[attr-defined]  # of a CUDA device
    counts = gpu.zeros(3, kj.u32)
    choose[1](counts, 1, 1, 1)
    warm = gpu.zeros(64, kj.i32)
    ids[kj.Indirect(counts)](warm)
    gpu.synchronize()
    for grid in ((1, 1, 1), (500, 3, 7), (3, 700, 2), (1, 1, 9000), (0, 5, 5), (70_000, 1, 1)):
        out = gpu.zeros(64 * int(np.prod(grid)) + 1, kj.i32)
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "call", waiting)
            choose[1](counts, *grid)
            ids[kj.Indirect(counts)](out)
        found = out.numpy()
        assert found[-1] == 0
        assert set(found[:-1].tolist()) <= {1, 2}
        assert found.sum() == 96 * int(np.prod(grid))


def test_shared_memory_between_turns(gpu: Device) -> None:
    @kj.jit(workgroup=256)
    def reverse(x: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        own = kj.shared(kj.i32, 256)
        me, first = kj.local_index(), kj.workgroup_id(0) * 256
        own[me] = x[first + me]
        kj.barrier()
        out[first + me] = own[255 - me]

    groups = 50_000
    x = gpu.array(np.arange(256 * groups, dtype=np.int32))
    out = gpu.zeros(256 * groups, kj.i32)
    reverse[kj.Indirect(gpu.array(np.array([groups, 1, 1], np.uint32)))](x, out)
    want = np.arange(256 * groups).reshape(groups, 256)[:, ::-1].reshape(-1)
    assert (out.numpy() == want).all()


# Streams.


def test_streams_of_others_are_taken(gpu: Device) -> None:
    handle = int(driver.call("cuStreamCreate", 1))
    x = gpu.zeros(1 << 22, kj.i32)
    for k in range(100):
        if k % 3:
            with kj.stream(handle):
                add_one[1 << 22](x)
        else:
            add_one[1 << 22](x)
    with kj.stream(handle):
        assert (x.numpy() == 100).all()
    gpu.synchronize()


def test_memory_that_is_freed_on_another_stream_is_not_taken_too_early(gpu: Device) -> None:
    handle = int(driver.call("cuStreamCreate", 1))
    results = []
    for _ in range(50):
        x, out = gpu.full(1 << 20, 2.0), gpu.zeros(1 << 20)
        with kj.stream(handle):
            scale[1 << 20](x, out, 3.0)
        del x
        gpu.full(1 << 20, -1.0)
        results.append(out)
    assert all((out.numpy() == 6).all() for out in results)
    gpu.synchronize()


def test_profiles_are_the_gpus_clock(gpu: Device) -> None:
    x = gpu.zeros(1 << 24, kj.i32)
    add_one[1 << 24](x)
    with gpu.profile() as profile:
        for _ in range(5):
            add_one[1 << 24](x)
    assert all(0 < entry.seconds < 1 for entry in profile.entries())


# Errors.


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


DEAD = """
import numpy as np, khaljit as kj

source = '''
.version 7.0
.target sm_75
.address_size 64
.visible .entry wild(.param .u64 p)
{
    .reg .u64 %a;
    mov.u64 %a, 64;
    st.global.u32 [%a], 1;
    ret;
}
'''
gpu = kj.device("cuda")
x = gpu.zeros(8)
gpu.synchronize()
wild = gpu.load(source, "wild", "f32[:]", workgroup=1)
wild[1](x)
for use in (gpu.synchronize, x.numpy, lambda: gpu.zeros(3)):
    try:
        use()
    except kj.DeviceError as error:
        print(error.message)
"""


def test_a_device_that_failed_says_so_once_with_the_kernel_and_then_refuses(gpu: Device) -> None:
    done = run(DEAD)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert "kernel wild failed on cuda:0" in first
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in first
    assert len(rest) == 2
    assert all("failed earlier and cannot be used" in line for line in rest)


def test_a_device_is_refused_after_a_fork(gpu: Device) -> None:
    done = run(
        """
        import os, khaljit as kj
        gpu = kj.device("cuda")
        gpu.zeros(3).numpy()
        child = os.fork()
        if child == 0:
            try:
                gpu.zeros(3)
            except kj.DeviceError as error:
                print(error.message, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert "opened before the process forked" in done.stdout


def test_no_room_says_how_much_there_is(gpu: Device) -> None:
    with pytest.raises(
        kj.DeviceError, match=r"no room for [\d,]+ bytes: [\d,]+ of [\d,]+ are free"
    ):
        gpu.empty(1 << 40)
    assert gpu.zeros(3).numpy().tolist() == [0, 0, 0]


def test_a_failed_assertion_is_reported_once(gpu: Device) -> None:
    @kj.jit(debug=True)
    def beyond(x: kj.Array1[kj.i32], i: kj.i32) -> None:
        x[i] = 1

    x = gpu.zeros(3, kj.i32)
    beyond[1](x, 5)
    with pytest.raises(kj.KernelError):
        gpu.synchronize()
    gpu.synchronize()
    beyond[1](x, 2)
    gpu.synchronize()
    assert x.numpy().tolist() == [0, 0, 1]


# Memory.


def test_memory_is_counted_and_kept(gpu: Any) -> None:
    gpu.synchronize()
    before = gpu.memory_info()
    x = gpu.empty(1 << 26, kj.u8)
    held = gpu.memory_info()
    assert held.used - before.used >= 1 << 26
    del x
    gpu.synchronize()
    assert gpu.memory_info().used < held.used


def test_what_is_read_is_what_was_there(gpu: Device, rng: np.random.Generator) -> None:
    values = rng.integers(0, 1 << 30, 1 << 25).astype(np.int32)  # more than what is pinned
    x = gpu.array(values)
    small = gpu.array(values[:1000])
    readback = kj.Readback()
    readback.request(small)
    add_one[1000](small)
    assert (readback.take()[0] == values[:1000]).all()
    assert (x.numpy() == values).all()
    assert (small.numpy() == values[:1000] + 1).all()


# Peers.


def test_arrays_are_copied_between_gpus(gpu: Device, rng: np.random.Generator) -> None:
    if driver.count() < 2:
        pytest.skip("one GPU here; copies between two need two")
    second = kj.device("cuda:1")
    values = rng.integers(-9, 9, (1000, 1000)).astype(np.int32)
    x, y = gpu.array(values), second.zeros((1000, 1000), kj.i32)
    for _ in range(20):
        add_one[1000](x[0])
        y[...] = x
        values[0] += 1
        add_one[1000](y[1])
        x[1:2] = y[1:2]
        values[1] += 1
    assert (y.numpy() == values).all()
    assert (x.numpy() == values).all()
    y[:, ::3] = x[:, ::3]
    assert (y.numpy() == values).all()
