"""Arrays of other libraries as arguments, and ours in other libraries: DLPack and the CUDA array
interface, on the CPU and on a driver of our own."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest

import khaljit as kj
from khaljit import exchange
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.device import CudaDevice
from khaljit.tracer.dtypes import ALL, bf16
from tests.fake_cuda import FakeDriver


class _Foreign:
    """An array of another library, which knows DLPack only."""

    def __init__(self, array: Any, *, versions: bool = True) -> None:
        self.array = array
        self.versions = versions
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versions and "max_version" in options:
            raise TypeError("max_version")
        self.streams.append(options.get("stream"))
        return self.array.__dlpack__(**options)


Foreign: Any = _Foreign  # as type checkers see what they know nothing of


@kj.jit
def double(x: kj.Array1[kj.i32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = 2 * x[i]


@kj.jit
def copy(x: Any, out: Any) -> None:
    i = kj.global_id(0)
    if i < out.shape[0]:
        out[i] = x[i]


@pytest.mark.parametrize("versions", [True, False])
def test_memory_of_the_host_is_used_in_place(versions: bool, rng: np.random.Generator) -> None:
    values = rng.integers(-99, 99, 31).astype(np.int32)
    host = values.copy()
    if versions:
        double[31](Foreign(host))
    else:
        kind = type("Old", (_Foreign,), {})
        double[31](kind(host, versions=False))
    assert (host == 2 * values).all()


def test_strides_are_kept(rng: np.random.Generator) -> None:
    values = rng.integers(-99, 99, (9, 4)).astype(np.int32)
    host = values.copy()
    double[9](Foreign(host[:, 1]))
    assert (host[:, 1] == 2 * values[:, 1]).all()
    assert (host[:, ::2] == values[:, ::2]).all()


def test_what_must_not_be_written_is_not(rng: np.random.Generator) -> None:
    host = rng.integers(-99, 99, 9).astype(np.int32)
    host.flags.writeable = False
    out = np.zeros(9, np.int32)
    copy[9](Foreign(host), out)
    assert (out == host).all()
    with pytest.raises(kj.ArgumentValueError, match="read-only"):
        double[9](Foreign(host))


def test_memory_is_given_back_when_nobody_uses_it(rng: np.random.Generator) -> None:
    values = kj.device("cpu").array(rng.integers(-99, 99, 9).astype(np.int32))
    before = len(exchange._GIVEN)
    double[9](Foreign(values))
    gc.collect()
    assert len(exchange._GIVEN) == before


def test_a_capsule_that_nobody_takes_is_no_leak() -> None:
    array, before = kj.device("cpu").zeros(3), len(exchange._GIVEN)
    for version in (None, (1, 0)):
        capsule = array.__dlpack__(max_version=version)
        assert len(exchange._GIVEN) == before + 1
        del capsule
        gc.collect()
        assert len(exchange._GIVEN) == before


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL if dtype is not bf16], ids=str)
def test_our_arrays_are_numpys_without_a_copy(dtype: Any, rng: np.random.Generator) -> None:
    array = kj.device("cpu").zeros((3, 4), dtype)
    seen = np.from_dlpack(array)
    assert (seen.dtype, seen.shape) == (dtype.numpy, (3, 4))
    array[1:, ::2] = np.ones((2, 2), dtype.numpy)
    assert (seen == array.numpy()).all()
    assert seen.sum() == 4
    assert np.from_dlpack(array[:, 1]).strides == (4 * dtype.size,)


def test_vectors_have_a_last_axis() -> None:
    array = kj.device("cpu").zeros(5, kj.vec3)
    assert np.from_dlpack(array).shape == (5, 3)


def test_bf16_keeps_its_type(rng: np.random.Generator) -> None:
    bits = rng.integers(0, 1 << 15, 9).astype(np.uint16)
    array = kj.device("cpu").empty(9, bf16)
    array.write(bits)

    @kj.jit
    def widen(x: kj.Array1[kj.bf16], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = kj.f32(x[i])

    out = kj.device("cpu").zeros(9)
    widen[9](Foreign(array), out)
    want = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(out.numpy(), want, equal_nan=True)


def test_what_gives_no_array_is_refused() -> None:
    class Refusing(_Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            del options
            raise BufferError("it requires gradients")

    class Elsewhere(_Foreign):
        def __dlpack_device__(self) -> Any:
            return 8, 0

    host = np.zeros(3, np.int32)
    with pytest.raises(kj.ArgumentTypeError, match="requires gradients"):
        double[3](cast("Any", Refusing(host)))
    with pytest.raises(kj.ArgumentTypeError, match="kind 8"):
        double[3](cast("Any", Elsewhere(host)))
    with pytest.raises(kj.ArgumentTypeError, match="type 5 with 128 bits"):
        double[3](Foreign(np.zeros(3, np.complex128)))


def test_arrays_that_others_cannot_see_say_so() -> None:
    array = kj.device("cpu").zeros(3)
    assert not hasattr(array, "__cuda_array_interface__")
    with pytest.raises(BufferError, match="another device"):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(kj.ArgumentValueError, match="no stream"):
        array.__dlpack__(stream=1)


# GPUs.


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(import_module("khaljit.devices"), "_OPEN", {})
    monkeypatch.setenv("KHALJIT_CUDA_KEEP_PTX", "1")
    return found


@pytest.fixture
def gpu(fake: FakeDriver) -> CudaDevice:
    del fake
    device = kj.device("cuda")
    assert isinstance(device, CudaDevice)
    return device


class Interface:
    """An array of another library with the CUDA array interface."""

    def __init__(self, **parts: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, "strides": None, **parts}
        self.keep: object = None


def on_gpu(gpu: CudaDevice, fake: FakeDriver, values: Any, stream: int) -> Any:
    """Values that another library writes on a stream of its own, late."""
    memory = gpu.empty(values.shape, kj.i32)
    gpu.synchronize()

    def write() -> None:
        fake.piece(memory.address, values.nbytes)[:] = values.tobytes()

    fake.later(stream, write)
    found = Interface(
        shape=values.shape, typestr="<i4", data=(memory.address, False), stream=stream
    )
    found.keep = memory
    return found


def read_on(fake: FakeDriver, stream: int, address: int, size: int) -> Any:
    """What another library reads on its stream."""
    seen: list[bytes] = []
    fake.later(stream, lambda: seen.append(bytes(fake.piece(address, size))))
    fake.cuStreamSynchronize(stream)
    return np.frombuffer(seen[0], np.int32)


@pytest.mark.parametrize("chosen", [False, True])
def test_a_kernel_is_in_the_order_of_the_other_librarys_stream(
    gpu: CudaDevice, fake: FakeDriver, chosen: bool
) -> None:
    stream, values = fake.new_stream(), np.arange(40, dtype=np.int32)
    foreign = on_gpu(gpu, fake, values, stream)
    if chosen:
        with kj.stream(fake.new_stream()):
            double[40](foreign)
    else:
        double[40](foreign)
    address = foreign.__cuda_array_interface__["data"][0]
    assert (read_on(fake, stream, address, 160) == 2 * values).all()


def test_our_memory_beside_anothers_is_in_the_order_of_both(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    stream, values = fake.new_stream(), np.arange(40, dtype=np.int32)
    out = gpu.zeros(40, kj.i32)
    for k in range(3):
        foreign = on_gpu(gpu, fake, values + k, stream)
        double[40](out)
        copy[40](foreign, out)
        double[40](out)
        assert (out.numpy() == 2 * (values + k)).all()


def test_what_another_library_forbids_to_write_is_not_written(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    foreign = on_gpu(gpu, fake, np.arange(9, dtype=np.int32), fake.new_stream())
    parts = foreign.__cuda_array_interface__
    parts["data"] = (parts["data"][0], True)
    with pytest.raises(kj.ArgumentValueError, match="read-only"):
        double[9](foreign)


def test_a_last_axis_is_a_vector_where_vectors_are_asked_for(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    @kj.jit
    def lengths(x: kj.Array1[kj.vec3], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < out.size:
            out[i] = kj.dot(x[i], x[i])

    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    out = gpu.zeros(4)
    lengths[4](Foreign(gpu.array(values)), out)
    assert (out.numpy() == (values**2).sum(1)).all()


def test_our_array_goes_where_its_taker_works(gpu: CudaDevice, fake: FakeDriver) -> None:
    stream, values = fake.new_stream(), np.arange(40, dtype=np.int32)
    array = gpu.array(values)
    double[40](array)
    capsule = array.__dlpack__(stream=stream)
    assert (read_on(fake, stream, array.address, 160) == 2 * values).all()

    def add() -> None:
        piece = fake.piece(array.address, 160)
        piece[:] = (np.frombuffer(bytes(piece), np.int32) + 1).tobytes()

    for _ in range(3):
        fake.later(stream, add)
        double[40](array)
    assert (array.numpy() == 8 * (2 * values) + 14).all()
    assert array.__dlpack_device__() == (2, 0)
    del capsule


def test_our_array_has_the_interface(gpu: CudaDevice) -> None:
    array = gpu.zeros((3, 4), kj.i32)
    found = array[:, 1:].__cuda_array_interface__
    assert (found["shape"], found["typestr"], found["version"]) == ((3, 3), "<i4", 3)
    assert (found["data"], found["strides"]) == ((array.address + 4, False), (16, 4))
    assert found["stream"] == gpu.own.handle
    assert array.__cuda_array_interface__["strides"] is None


def test_an_unknown_library_orders_its_work_before_ours(gpu: CudaDevice) -> None:
    foreign = Foreign(gpu.array(np.arange(9, dtype=np.int32)))
    double[9](foreign)
    assert foreign.streams == [gpu.own.handle]
    assert (foreign.array.numpy() == 2 * np.arange(9)).all()


def test_an_array_of_another_library_is_a_flag_of_graphs(gpu: CudaDevice, fake: FakeDriver) -> None:
    left = on_gpu(gpu, fake, np.array([3], np.int32), fake.new_stream())
    x = gpu.zeros(4, kj.i32)

    @kj.jit
    def count(x: kj.Array1[kj.i32], left: kj.Array1[kj.i32]) -> None:
        x[0] += 1
        left[0] -= 1

    with gpu.capture() as graph, graph.while_(left):
        count[1](x, left)
    graph.launch()
    assert x.numpy()[0] == 3
