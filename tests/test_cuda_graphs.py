"""Graphs on CUDA without a GPU: what the driver is asked to capture, and when."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.device import CudaDevice
from tests import test_graph_conditionals, test_graphs
from tests.fake_cuda import FakeDriver
from tests.graph_programs import disagreement


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver(gpus=2)
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
def add(x: kj.Array1[kj.i32], k: kj.i32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] += k


# What holds on every device, here with the driver's graphs.
GENERIC: dict[str, Callable[..., None]] = {
    name: test
    for name, test in {**vars(test_graphs), **vars(test_graph_conditionals)}.items()
    if name.startswith("test_")
    and test.__code__.co_varnames[: test.__code__.co_argcount] in [("device",), ("device", "rng")]
    and "other" not in name
}


@pytest.mark.parametrize("name", GENERIC)
def test_what_holds_on_every_device(gpu: CudaDevice, rng: np.random.Generator, name: str) -> None:
    arguments = [gpu, rng][: GENERIC[name].__code__.co_argcount]
    GENERIC[name](*arguments)


@pytest.mark.parametrize("what", test_graphs.REFUSED)
def test_what_no_graph_can_hold_raises_at_once(gpu: CudaDevice, what: str) -> None:
    test_graphs.test_what_no_graph_can_hold_raises_at_once(gpu, what)


@pytest.mark.parametrize("seed", range(4))
def test_generated_sequences_replay_what_they_do_eagerly(gpu: CudaDevice, seed: int) -> None:
    assert disagreement(gpu, seed) is None


WRITTEN = """
.version 7.8
.target sm_90
.address_size 64
.visible .entry main(.param .align 8 .b8 params[8])
{
    .reg .b64 %d<1>;
    .reg .b32 %r<1>;
    ld.param.b64 %d0, [params+0];
    ld.global.b32 %r0, [%d0];
    add.s32 %r0, %r0, 5;
    st.global.b32 [%d0], %r0;
    ret;
}
"""


def test_hand_written_code_in_graphs(gpu: CudaDevice) -> None:
    kernel = gpu.load(WRITTEN, "main", "i32[:]", workgroup=1)
    x, y = gpu.zeros(4, kj.i32), gpu.zeros(4, kj.i32)
    with gpu.capture() as graph:
        z = graph.param("z", default=x)
        kernel[1](z)
        kernel[1](z[1:])
        kernel[1](x)
    graph.launch()
    graph.launch(z=y)
    graph.launch()
    assert x.numpy().tolist() == [25, 10, 0, 0]
    assert y.numpy().tolist() == [5, 5, 0, 0]


def test_a_launch_is_one_call_of_the_driver(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(8, kj.i32)
    with gpu.capture() as graph:
        for k in range(10):
            add[8](x, k)
    assert fake.calls["cuGraphUpload"] == 1
    gpu.synchronize()
    before = fake.calls.copy()
    graph.launch(repeat=3)
    spent = fake.calls - before
    assert spent == {"cuCtxSetCurrent": 1, "cuGraphLaunch": 3}
    assert (x.numpy() == 3 * 45).all()


def test_only_nodes_whose_parameter_changed_are_set(gpu: CudaDevice, fake: FakeDriver) -> None:
    x, y = gpu.zeros(8, kj.i32), gpu.zeros(8, kj.i32)
    with gpu.capture() as graph:
        a, b = graph.param("a", kj.i32, default=1), graph.param("b", kj.i32, default=10)
        z = graph.param("z", default=x)
        add[8](x, 100)
        add[8](z, a)
        add[8](x, b)
        add[8](z, a)
    name = "cuGraphExecKernelNodeSetParams"
    graph.launch()
    assert fake.calls[name] == 0
    graph.launch(b=20)
    assert fake.calls[name] == 1
    graph.launch(b=20, a=2)
    assert fake.calls[name] == 1 + 2
    graph.launch(a=2, b=20, z=y)
    assert fake.calls[name] == 1 + 2 + 2
    assert (x.numpy() == 4 * 100 + 10 + 3 * 20 + 2 + 2 + 4).all()
    assert (y.numpy() == 4).all()


def test_other_libraries_work_on_the_stream_is_part_of_the_graph(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    x = gpu.zeros(4, kj.i32)
    log: list[str] = []
    with gpu.capture() as graph:
        add[4](x, 1)
        version, handle = graph.stream.__cuda_stream__()
        assert version == 0
        fake.later(handle, lambda: log.append("theirs"))
        add[4](x, 1)
    gpu.synchronize()
    assert log == []
    graph.launch(repeat=2)
    gpu.synchronize()
    assert log == ["theirs"] * 2
    assert "3 nodes, 1 of them of other libraries" in graph.summary()
    with pytest.raises(kj.GraphError, match="no stream now"):
        _ = graph.stream
    with gpu.capture(), pytest.raises(kj.GraphError, match="holds work of other libraries"):
        graph.launch()


def test_a_stream_of_another_library_is_captured_where_it_is_chosen(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    other = fake.new_stream()
    x = gpu.zeros(4, kj.i32)
    with kj.stream(other):
        with gpu.capture() as graph:
            assert graph.stream.handle == other
            add[4](x, 1)
            with pytest.raises(kj.GraphError, match="while another is"):
                gpu.begin_capture()
        add[4](x, 10)
        graph.launch()
    graph.launch()
    assert (x.numpy() == 12).all()


def test_a_graph_waits_for_its_memory_on_other_streams(gpu: CudaDevice, fake: FakeDriver) -> None:
    other = fake.new_stream()
    x = gpu.array(np.arange(50, dtype=np.int32))
    with gpu.capture() as graph:
        add[50](x, 1)
    with kj.stream(other):
        add[50](x, 10)
    graph.launch()
    with kj.stream(other):
        graph.launch()
        found = x.numpy()
    assert (found == np.arange(50) + 12).all()


def test_kernels_that_go_while_a_graph_is_captured_are_unloaded_after_it(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    """NVIDIA/warp#401, NVIDIA/warp#782, sgl-project/sglang#35427."""
    code = ".visible .entry main(.param .b8 params[8]) { ret; }"
    kernel = gpu.load(code, "main", "i32[:]", workgroup=1)
    x = gpu.zeros(4, kj.i32)
    with gpu.capture() as graph:
        add[4](x, 1)
        before = fake.calls["cuModuleUnload"]
        del kernel
        gc.collect()
        assert fake.calls["cuModuleUnload"] == before
    assert fake.calls["cuModuleUnload"] == before + 1
    graph.launch()
    assert (x.numpy() == 1).all()


def test_compiling_inside_a_capture_suspends_it(gpu: CudaDevice, fake: FakeDriver) -> None:
    """NVIDIA/warp#564."""

    @kj.jit
    def fresh(x: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if i < x.size:
            assert x[i] >= 0  # a kernel with a report, which is written when it is loaded
            x[i] += 7

    x = gpu.zeros(4, kj.i32)
    with gpu.capture() as graph:
        fresh[4](x)
    assert fake.calls["cuStreamBeginCaptureToGraph"] > 0
    graph.launch()
    gpu.synchronize()
    assert (x.numpy() == 7).all()


def test_a_capture_that_others_break_says_so(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(4, kj.i32)
    graph = gpu.begin_capture()
    add[4](x, 1)
    fake.cuStreamSynchronize(graph.stream.handle)  # as another library might
    with pytest.raises(kj.DeviceError, match="CAPTURE_INVALIDATED") as caught:
        gpu.end_capture()
    assert "waiting or allocating by another library" in str(caught.value)
    with pytest.raises(kj.GraphError, match="its capture failed"):
        graph.launch()
    with gpu.capture() as graph:
        add[4](x, 1)
    graph.launch()
    assert (x.numpy() == 1).all()


def test_arrays_of_two_gpus_are_not_copied_in_a_capture(gpu: CudaDevice) -> None:
    other = CudaDevice(1)
    x, y = gpu.zeros(4), other.zeros(4)
    with gpu.capture(), pytest.raises(kj.GraphError, match="arrays of two devices"):
        gpu.copy(x, y)


def test_a_grid_that_the_host_would_read_is_refused(
    gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CUDA_INDIRECT_SYNC", "1")
    counts, hits = gpu.array(np.ones(3, np.uint32)), gpu.zeros(1, kj.u32)
    with gpu.capture(), pytest.raises(kj.GraphError, match="the host would have to read"):
        test_graphs.count[kj.Indirect(counts)](hits)


def test_graphs_are_destroyed_with_their_last_reference(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(4, kj.i32)
    with gpu.capture() as graph:
        add[4](x, 1)
    graph.launch()
    del graph
    gc.collect()
    assert fake.calls["cuGraphExecDestroy"] == fake.calls["cuGraphDestroy"] == 1
    assert (x.numpy() == 1).all()
    assert fake.calls["cuStreamDestroy"] == 1


def test_an_exception_ends_the_drivers_capture(gpu: CudaDevice, fake: FakeDriver) -> None:
    x: Any = gpu.zeros(4, kj.i32)
    with pytest.raises(kj.ArgumentTypeError), gpu.capture():
        add[4](x, 0.5)  # type: ignore[arg-type]  # the mistake
    assert fake.calls["cuStreamEndCapture"] == 1
    assert not fake._captures()


# Loops and branches.


@kj.jit
def lower(left: kj.Array1[kj.i32]) -> None:
    left[0] -= 1


@pytest.mark.parametrize("what", test_graph_conditionals.WRONG)
def test_what_is_no_flag(gpu: CudaDevice, what: str) -> None:
    test_graph_conditionals.test_what_is_no_flag(gpu, what)


def test_a_loop_is_one_call_of_the_driver(gpu: CudaDevice, fake: FakeDriver) -> None:
    x, left = gpu.zeros(8, kj.i32), gpu.full(1, 9, kj.i32)
    with gpu.capture() as graph, graph.while_(left):
        add[8](x, 1)
        lower[1](left)
    assert "driver's graph: 5 nodes" in graph.summary()
    gpu.synchronize()
    before = fake.calls.copy()
    graph.launch()
    assert fake.calls - before == {"cuCtxSetCurrent": 1, "cuGraphLaunch": 1}
    assert (x.numpy() == 9).all()


def test_what_sets_conditions_is_loaded_once(gpu: CudaDevice, fake: FakeDriver) -> None:
    flag = gpu.zeros(1, kj.i32)
    add[1](flag, 0)
    gpu.synchronize()
    before = fake.calls["cuModuleLoadData"]
    for _ in range(3):
        with gpu.capture() as graph, graph.while_(flag), graph.if_(flag):
            add[1](flag, 1)
        graph.launch()
    assert fake.calls["cuModuleLoadData"] == before + 1
    assert flag.numpy()[0] == 0


@pytest.mark.parametrize("updates", [True, False])
def test_numbers_in_bodies_bring_the_executable_graph_up_to_date(
    gpu: CudaDevice, fake: FakeDriver, updates: bool
) -> None:
    fake.updates = updates
    x, left = gpu.zeros(8, kj.i32), gpu.zeros(1, kj.i32)
    with gpu.capture() as graph:
        k = graph.param("k", kj.i32, default=1)
        add[1](left, 2)
        with graph.while_(left):
            add[8](x, k)
            lower[1](left)
        add[8](x, k)
    graph.launch()
    graph.launch()
    before = fake.calls.copy()
    graph.launch(k=10)
    spent = fake.calls - before
    assert spent["cuGraphKernelNodeSetParams"] == 2
    assert spent["cuGraphExecKernelNodeSetParams"] == 0
    assert spent["cuGraphExecUpdate"] == 1
    assert spent["cuGraphInstantiate"] == spent["cuGraphExecDestroy"] == (not updates)
    assert (x.numpy() == 6 + 30).all()


def test_work_of_other_libraries_in_bodies(gpu: CudaDevice, fake: FakeDriver) -> None:
    x, left = gpu.zeros(8, kj.i32), gpu.full(1, 3, kj.i32)

    def foreign() -> None:
        piece = fake.piece(x.buffer.address, 4)
        piece[0] += 1

    with gpu.capture() as graph:
        with graph.while_(left):
            fake.later(graph.stream.handle, foreign)
            lower[1](left)
        add[8](x, 10)
    assert "1 of them of other libraries" in graph.summary()
    graph.launch()
    assert x.numpy().tolist() == [13] + [10] * 7


def test_a_driver_without_loops_runs_the_nodes_as_they_were_launched(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    fake.version = 12030
    for test in ("loops_in_loops", "branches", "parameters_in_bodies", "flags_of_one_byte"):
        GENERIC[f"test_{test}"](gpu)
    GENERIC["test_what_no_graph_can_hold_raises_in_a_body_too"](gpu)
    GENERIC["test_an_exception_in_a_body_leaves_everything_usable"](gpu)
    assert fake.calls["cuGraphAddNode"] == 0
    x = gpu.zeros(8, kj.i32)
    with gpu.capture() as graph:
        fake.later(graph.stream.handle, lambda: None)
        with pytest.raises(kj.GraphError, match="the driver has no such nodes") as caught:
            graph.if_(x[:1]).__enter__()
        assert "CUDA 12.4" in str(caught.value)
        add[8](x, 1)
    graph.launch()
    assert (x.numpy() == 1).all()


def test_a_body_that_the_driver_refuses_leaves_the_capture_usable(
    gpu: CudaDevice, fake: FakeDriver
) -> None:
    x = gpu.zeros(8, kj.i32)
    with gpu.capture() as graph:
        add[8](x, 1)
        fake.failing["cuGraphAddNode"] = [801]
        with pytest.raises(kj.DeviceError, match="capturing a loop or branch of a graph"):
            graph.if_(x[:1]).__enter__()
        add[8](x, 1)
    graph.launch()
    assert (x.numpy() == 2).all()


def test_a_graph_that_fails_in_a_body_is_destroyed_whole(gpu: CudaDevice, fake: FakeDriver) -> None:
    flag = gpu.full(1, 1, kj.i32)
    graph, before = gpu.capture(), fake.calls["cuGraphDestroy"]
    with pytest.raises(ZeroDivisionError), graph, graph.while_(flag), graph.if_(flag):
        add[1](flag, 1 // flag.offset)
    assert fake.calls["cuGraphDestroy"] == before + 1


def test_a_capture_that_is_not_resumed_ends_as_no_graph(gpu: CudaDevice, fake: FakeDriver) -> None:
    x = gpu.zeros(8, kj.i32)

    @kj.jit
    def fresh(x: kj.Array1[kj.i32]) -> None:
        x[0] += 7

    graph = gpu.capture()

    def capture() -> None:
        with graph:
            add[8](x, 1)
            fake.failing["cuStreamBeginCaptureToGraph"] = [801]
            with pytest.raises(kj.DeviceError, match="capturing a graph"):
                fresh[1](x)
            with pytest.raises(kj.GraphError, match="could not be resumed"):
                add[8](x, 1)
            with pytest.raises(kj.GraphError, match="could not be resumed"):
                graph.if_(x[:1]).__enter__()

    with pytest.raises(kj.GraphError, match="could not be resumed") as caught:
        capture()
    assert caught.value.mend == "capture it again, in another graph"
    assert not x.numpy().any()
    with gpu.capture() as other, other.while_(x[:1], limit=2):
        add[8](x, 1)
    add[8](x, 1)
    other.launch()
    assert (x.numpy() == 3).all()
