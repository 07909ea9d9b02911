"""Graphs on every device: what is captured is replayed, and nothing stale is ever computed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit import loading
from khaljit.backends.base import Device
from khaljit.backends.cpu import replay as cpu_replay
from khaljit.backends.cpu import runs
from khaljit.backends.cpu.loader import read
from khaljit.codegen.llvm import replay
from khaljit.codegen.llvm.assemble import assemble
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.graphs.dependence import chains
from khaljit.graphs.graph import Graph
from tests.graph_programs import disagreement

Rng = np.random.Generator


@kj.jit
def step(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], dt: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = x[i] + dt


@kj.struct
class Pair:
    a: kj.f32
    n: kj.i32


@kj.jit(workgroup=16)
def count(hits: kj.Array1[kj.u32]) -> None:
    kj.atomic_add(hits, 0, 1)


@kj.jit
def put(x: Any, value: Any) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = value


def test_a_capture_runs_nothing_and_launches_replay_it(device: Device, rng: Rng) -> None:
    values = rng.random(77, np.float32)
    x, y = device.array(values), device.zeros(77)
    with device.capture() as graph:
        dt = graph.param("dt", kj.f32, default=0.5)
        step[x.size](x, y, dt)
        step[x.size](y, x, dt)
    assert (x.numpy() == values).all()
    assert (y.numpy() == 0).all()
    graph.launch()
    expected = values + np.float32(0.5) + np.float32(0.5)
    assert (x.numpy() == expected).all()
    graph.launch(repeat=3, dt=0.25)
    for _ in range(6):
        expected = expected + np.float32(0.25)
    assert (x.numpy() == expected).all()
    graph.launch(repeat=0)
    assert (x.numpy() == expected).all()
    graph.launch()
    assert (x.numpy() == expected + np.float32(0.5) + np.float32(0.5)).all()


def test_a_capture_has_a_form_without_a_block(device: Device) -> None:
    x, y = device.zeros(5), device.zeros(5)
    begun = device.begin_capture()
    step[5](x, y, 2.0)
    graph = device.end_capture()
    assert graph is begun
    assert (y.numpy() == 0).all()
    graph.launch()
    assert (y.numpy() == 2).all()
    with pytest.raises(kj.GraphError, match="no graph is captured"):
        device.end_capture()


def test_copies_fills_and_encoders_are_captured_too(device: Device, rng: Rng) -> None:
    values = rng.random((6, 8), np.float32)
    x, y = device.array(values), device.zeros((6, 8))
    points = device.zeros(4, kj.vec3)
    small = device.zeros(9, kj.u8)
    with device.capture() as graph:
        device.copy(x, y)
        y[1:5:2, ::-3].fill(2)
        y[0, 2:] = y[0, :-2]
        y[5] = x[4]
        points[1:3].fill(1.5)
        small[::2] = 7
        with device.encoder() as encoder:
            encoder.copy(x[2], y[3])
            with encoder.compute_pass("pass") as p:
                p.dispatch(step[8], x[0], y[4], 1.0)
        device.submit(encoder)
    assert not y.numpy().any()
    graph.launch()
    expected = values.copy()
    expected[1:5:2, ::-3] = 2
    expected[0, 2:] = values[0, :-2]
    expected[5] = values[4]
    expected[3] = values[2]
    expected[4] = values[0] + np.float32(1)
    assert (y.numpy() == expected).all()
    assert (points.numpy() == np.array([0, 1.5, 1.5, 0])[:, None]).all()
    assert (small.numpy() == [7, 0] * 4 + [7]).all()


def test_structs_in_graphs(device: Device) -> None:
    @kj.jit
    def bump(pairs: kj.Array1[Pair], by: Pair) -> None:
        i = kj.global_id(0)
        if i < pairs.size:
            pairs[i].n += by.n

    first, second = device.empty(8, Pair), device.empty(8, Pair)
    start = np.zeros(8, first.numpy().dtype)
    start["n"] = np.arange(8)
    first.write(start)
    second.write(start)
    with device.capture() as graph:
        pairs = graph.param("pairs", default=first)
        bump[8](pairs, Pair(0.0, 10))
        device.copy(pairs[1:5], pairs[:4])
        second[::2] = pairs[4:]
        with pytest.raises(kj.GraphError, match="values of the host"):
            pairs.fill(0)
    graph.launch()
    assert first.numpy()["n"].tolist() == [11, 12, 13, 14, 14, 15, 16, 17]
    assert second.numpy()["n"].tolist() == [14, 1, 15, 3, 16, 5, 17, 7]


def test_fills_of_a_capture_take_parameters(device: Device) -> None:
    x = device.zeros((3, 4))
    with device.capture() as graph:
        x[:, 1:3].fill(graph.param("value", kj.f32))
    graph.launch(value=3)
    assert (x.numpy()[:, 1:3] == 3).all()
    assert x.numpy().sum() == 18


def test_a_kernel_that_is_first_met_inside_is_compiled_there(device: Device) -> None:
    """NVIDIA/warp#564."""

    @kj.jit
    def fresh(x: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if i < x.size:
            x[i] += 3

    x = device.zeros(10, kj.i32)
    with device.capture() as graph:
        fresh[10](x)
    assert fresh.cache_info()["recorded"] == 1
    graph.launch(repeat=2)
    assert (x.numpy() == 6).all()


def test_bound_launches_and_repeated_ones_are_captured(device: Device) -> None:
    """Launches that cost next to nothing are seen by a capture as others are."""
    x, y = device.zeros(6), device.zeros(6)
    launch = step[6]
    bound = launch.bind(x, y, dt=1.0)
    for _ in range(4):
        bound()
        launch(y, x, 1.0)
    assert (x.numpy() == 8).all()
    with device.capture() as graph:
        bound()
        launch(y, x, 1.0)
        bound(dt=graph.param("dt", kj.f32, default=3.0))
    assert (x.numpy() == 8).all()
    assert len(graph.nodes) == 3
    graph.launch()
    assert (x.numpy() == 10).all()
    assert (y.numpy() == 13).all()
    bound()
    assert (y.numpy() == 11).all()


def test_a_grid_cannot_be_read_from_a_parameter(device: Device) -> None:
    hits, counts = device.zeros(1, kj.u32), device.zeros(3, kj.u32)
    with device.capture() as graph:
        grid = graph.param("grid", default=counts)
        with pytest.raises(kj.GraphError, match="read from the graph parameter grid"):
            count[kj.Indirect(grid)](hits)


REFUSED: dict[str, Callable[[Device, Any], object]] = {
    "an array is made": lambda device, x: device.zeros(3),
    "an array is made ": lambda device, x: device.array([1.0]),
    "an array is read": lambda device, x: x.numpy(),
    "an array is read ": lambda device, x: np.asarray(x[1:]),
    "an array is read  ": lambda device, x: kj.Readback(x),
    "values of the host are written": lambda device, x: x.write(np.ones(9)),
    "values of the host are written ": lambda device, x: x.__setitem__(
        slice(1, 3), np.ones(2, np.float32)
    ),
    "values of the host are written  ": lambda device, x: x.fill(np.ones(9)),
    "the device is waited for": lambda device, x: device.synchronize(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_graph_can_hold_raises_at_once(device: Device, what: str) -> None:
    x, y = device.zeros(9), device.zeros(9)
    with device.capture() as graph:
        step[9](x, y, 1.0)
        with pytest.raises(kj.GraphError, match=what.strip()) as caught:
            REFUSED[what](device, x)
        step[9](y, x, 1.0)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert caught.value.mend
    graph.launch()
    assert (x.numpy() == 2).all()


def test_numpy_arguments_in_a_capture_are_refused(device: Device) -> None:
    with device.capture(), pytest.raises(kj.GraphError, match="x got a NumPy array") as caught:
        step[3](np.zeros(3, np.float32), np.zeros(3, np.float32), 1.0)
    assert "device.array(x)" in str(caught.value)


def test_captures_do_not_nest(device: Device) -> None:
    x, y = device.zeros(4), device.zeros(4)
    with device.capture() as graph:
        step[4](x, y, 1.0)
        with pytest.raises(kj.GraphError, match="while another is"), device.capture():
            pass
        with pytest.raises(kj.GraphError, match="while another is"):
            device.begin_capture()
        step[4](y, x, 1.0)
    graph.launch()
    assert (x.numpy() == 2).all()
    with pytest.raises(kj.GraphError, match="captured twice"), graph:
        pass


def test_an_exception_in_a_capture_leaves_everything_usable(device: Device) -> None:
    x, y = device.zeros(4), device.zeros(4)
    graph = device.capture()
    with pytest.raises(ZeroDivisionError), graph:
        step[int(4 / x.offset)](x, y, 1.0)
    with pytest.raises(kj.GraphError, match="a ZeroDivisionError ended its capture"):
        graph.launch()
    step[4](x, y, 1.0)
    assert (y.numpy() == 1).all()
    with pytest.raises(kj.TraceError), device.capture():
        wrong[4](x)
    with pytest.raises(kj.ArgumentTypeError), device.capture():
        step[4](x)  # type: ignore[call-arg]  # the mistake
    with device.capture() as graph:
        step[4](y, x, 1.0)
    graph.launch()
    assert (x.numpy() == 2).all()


@kj.jit
def wrong(x: Any) -> None:
    x[0] = x.nothing


def test_a_graph_that_was_not_captured_says_so(device: Device) -> None:
    with pytest.raises(kj.GraphError, match="never captured"):
        device.capture().launch()


def test_an_empty_graph_and_empty_grids_do_nothing(device: Device) -> None:
    x = device.zeros(4)
    with device.capture() as graph:
        pass
    graph.launch(repeat=2)
    with device.capture() as graph:
        put[0](x, 1.0)
        device.copy(x[:0], x[2:2])
        x[:0].fill(3)
        put[2](x, 5.0)
    graph.launch()
    assert x.numpy().tolist() == [5, 5, 0, 0]


# Parameters.


def test_arrays_are_parameters_with_their_views(device: Device, rng: Rng) -> None:
    values = rng.random((3, 10), np.float32)
    first, second, third = (device.array(one) for one in values)
    out = device.zeros(10)
    with device.capture() as graph:
        x = graph.param("x", kj.Array1[kj.f32], default=first)
        y = graph.param("y", default=out)
        step[x.size](x, y, 1.0)
        step[4](x[2:6], y[3:7], 2.0)
        device.copy(x[:2], y[8:])
        y[:1].fill(9)

    def expected(source: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = source + np.float32(1)
        found[3:7] = source[2:6] + np.float32(2)
        found[8:], found[0] = source[:2], 9
        return found

    graph.launch()
    assert (out.numpy() == expected(values[0])).all()
    graph.launch(x=second)
    assert (out.numpy() == expected(values[1])).all()
    assert (first.numpy() == values[0]).all()
    graph.launch(x=second, y=third)
    assert (third.numpy() == expected(values[1])).all()
    graph.launch()
    assert (out.numpy() == expected(values[0])).all()


def test_numbers_and_arrays_of_a_node_change_apart(device: Device) -> None:
    @kj.jit(workgroup=4)
    def add(x: kj.Array1[kj.f32], a: kj.f32) -> None:
        i = kj.global_id(0)
        if i < x.size:
            x[i] += a

    first, second = device.zeros(4), device.zeros(4)
    counts = device.array(np.array([1, 1, 1], np.uint32))
    with device.capture() as graph:
        x, a = graph.param("x", default=first), graph.param("a", kj.f32, default=1.0)
        add[4](x, a)
        add[kj.Indirect(counts)](first, a)
        add[kj.Indirect(counts)](x, 0.5)
    graph.launch(a=5.0)
    assert (first.numpy() == 10.5).all()
    graph.launch(a=5.0, x=second)
    assert (first.numpy() == 15.5).all()
    assert (second.numpy() == 5.5).all()
    graph.launch(a=2.0, x=second)
    assert (second.numpy() == 8).all()
    graph.launch()
    assert (first.numpy() == 15.5 + 2 + 2.5).all()


def test_parameters_of_every_kind_of_number(device: Device) -> None:
    @kj.jit
    def all_kinds(
        out: kj.Array1[kj.f32], a: kj.i32, b: kj.u32, c: kj.bool, v: kj.vec3, f: kj.f32
    ) -> None:
        out[0], out[1], out[2] = kj.f32(a), kj.f32(b), kj.select(c, 1.0, 0.0)
        out[3], out[4], out[5], out[6] = v.x, v.y, v.z, f

    out = device.zeros(7)
    with device.capture() as graph:
        all_kinds[1](
            out,
            graph.param("a", kj.i32, default=-3),
            graph.param("b", kj.u32),
            graph.param("c", kj.bool, default=False),
            graph.param("v", kj.vec3, default=(1, 2, 3)),
            graph.param("f", kj.f32, default=float("inf")),
        )
    graph.launch(b=7)
    assert out.numpy().tolist() == [-3, 7, 0, 1, 2, 3, np.inf]
    graph.launch(b=8, a=4, c=True, v=(0.5, -1, 9), f=-0.0)
    assert out.numpy().tolist() == [4, 8, 1, 0.5, -1, 9, 0]
    assert np.signbit(out.numpy()[6])
    graph.launch(b=8, a=4, c=True, v=(0.5, -1, 9), f=0.0)
    assert not np.signbit(out.numpy()[6])


def test_wrong_parameters_say_what_is_wrong(device: Device) -> None:
    x, y = device.zeros(8), device.zeros(8)
    with device.capture() as graph:
        dt = graph.param("dt", kj.f32)
        z = graph.param("z", default=y)
        step[8](x, z, dt)
        with pytest.raises(kj.ArgumentValueError, match="'dt': there is one already"):
            graph.param("dt", kj.f32)
        with pytest.raises(kj.ArgumentValueError, match="'repeat'"):
            graph.param("repeat", kj.i32)
        for kind in (kj.Array1[kj.f32], None, kj.Const[int], Pair):
            with pytest.raises(kj.ArgumentTypeError, match=r"w is no array, and .* is no type of"):
                graph.param("w", kind)
        with pytest.raises(kj.ArgumentTypeError, match="graph: parameter v expects i32"):
            graph.param("v", kj.i32, default=0.5)
        with pytest.raises(kj.ArgumentTypeError, match="graph: parameter v"):
            graph.param("v", kj.Array1[kj.i32], default=x)
        with pytest.raises(kj.ArgumentTypeError, match="got <graph parameter k: i32>"):
            step[8](x, y, graph.param("k", kj.i32))
    with pytest.raises(kj.GraphError, match="outside of the graph's capture"):
        graph.param("late", kj.f32)
    with pytest.raises(kj.ArgumentTypeError, match=r"dt has no default.*\n.*launch\(dt="):
        graph.launch()
    with pytest.raises(kj.ArgumentTypeError, match=r"no parameter dx\n.*dt, z, k"):
        graph.launch(dx=1.0)
    with pytest.raises(kj.ArgumentOverflowError, match="graph: parameter dt"):
        graph.launch(dt=1e300, k=0)
    with pytest.raises(kj.ArgumentTypeError, match="parameter dt"):
        graph.launch(dt="fast", k=0)
    with pytest.raises(kj.ArgumentTypeError, match="parameter z"):
        graph.launch(dt=1.0, k=0, z=device.zeros(8, kj.i32))
    with pytest.raises(kj.ArgumentTypeError, match="parameter z"):
        graph.launch(dt=1.0, k=0, z=device.zeros((2, 4)))
    with pytest.raises(kj.ArgumentValueError, match=r"z has shape \(7,\)"):
        graph.launch(dt=1.0, k=0, z=device.zeros(7))
    with pytest.raises(kj.ArgumentValueError, match="z has shape"):
        graph.launch(dt=1.0, k=0, z=device.zeros(16)[::2])
    with pytest.raises(kj.ArgumentValueError, match="16 bytes"):
        graph.launch(dt=1.0, k=0, z=device.zeros(9)[1:])
    with pytest.raises(kj.ArgumentTypeError, match="parameter z got a NumPy array"):
        graph.launch(dt=1.0, k=0, z=np.zeros(8, np.float32))
    with pytest.raises(kj.ArgumentValueError, match="z is on null"):
        graph.launch(dt=1.0, k=0, z=kj.device("null").zeros(8))
    for repeat in (-1, 1.5, True):
        with pytest.raises(kj.ArgumentValueError, match="repeat"):
            graph.launch(repeat=repeat, dt=1.0)  # type: ignore[arg-type]  # the mistake
    graph.launch(dt=2.0, k=0)
    assert (y.numpy() == 2).all()


def test_arrays_of_a_launch_alias_as_they_did_when_captured(device: Device) -> None:
    x, y = device.zeros(32), device.zeros(32)
    with device.capture() as graph:
        z = graph.param("z", default=y)
        step[16](x[:16], z[:16], 1.0)
    with pytest.raises(kj.ArgumentValueError, match="the same view"):
        graph.launch(z=x)
    wide, other = device.zeros(64), device.zeros(32)
    with device.capture() as graph:
        z = graph.param("z", default=other)
        step[32](wide[4:36], z, 1.0)
    with pytest.raises(kj.ArgumentValueError, match="overlap in part"):
        graph.launch(z=wide[8:40])
    graph.launch()
    graph.launch(z=y)
    assert (y.numpy() == 1).all()


def test_a_parameter_has_no_value_while_its_graph_is_captured(device: Device) -> None:
    """tinygrad/tinygrad#14044."""
    x, y = device.zeros(4), device.zeros(4)
    with device.capture() as graph:
        dt = graph.param("dt", kj.f32, default=1.0)
        uses: list[Callable[[], object]] = [
            *(lambda: dt * 2, lambda: 2 - dt, lambda: float(dt), lambda: bool(dt)),
            *(lambda: range(dt), lambda: dt < 1, lambda: step[dt](x, y, 1.0)),
        ]
        for use in uses:
            with pytest.raises((kj.GraphError, kj.ArgumentTypeError)):
                use()
        step[4](x, y, dt)
    with pytest.raises(kj.GraphError, match="dt is used as a number"):
        step[4](x, y, dt)
    with device.capture() as other:
        other.param("dt", kj.f32, default=1.0)
        with pytest.raises(kj.GraphError, match="belongs to another graph"):
            step[4](x, y, dt)


def test_a_constant_cannot_be_a_parameter(device: Device) -> None:
    @kj.jit
    def repeated(x: kj.Array1[kj.f32], n: kj.Const[int]) -> None:
        for _ in kj.unroll(range(n)):
            x[0] += 1.0

    x = device.zeros(1)
    with device.capture() as graph:
        with pytest.raises(kj.ArgumentTypeError, match="constant is part of the code"):
            repeated[1](x, graph.param("n", kj.i32))
        repeated[1](x, 3)
    graph.launch(n=1)
    assert x.numpy()[0] == 3


def test_many_numbers_and_long_graphs(device: Device, rng: Rng) -> None:
    """More numbers than WebGPU's immediates hold, more nodes than a list of its dispatches."""
    scope: dict[str, Any] = {"kj": kj}
    names = [f"p{k}" for k in range(70)]
    exec(
        f"def weigh(out, at, {', '.join(names)}):\n"
        f"    out[at] += {' + '.join(f'{k + 1} * {name}' for k, name in enumerate(names))}\n",
        scope,
    )
    weigh = kj.jit(scope["weigh"])
    out, hits = device.zeros(2, kj.i32), device.zeros(1, kj.u32)
    values = rng.integers(-50, 50, 70).tolist()
    with device.capture() as graph:
        first = graph.param("first", kj.i32)
        for _ in range(300):
            count[16](hits)
        weigh[1](out, 1, first, *values[1:])
        for _ in range(300):
            count[16](hits)
    graph.launch(first=values[0])
    graph.launch(first=values[0] + 3)
    weight = sum((k + 1) * value for k, value in enumerate(values))
    assert out.numpy().tolist() == [0, 2 * weight + 3]
    assert hits.numpy()[0] == 2 * 600 * 16


# Graphs in graphs.


def test_a_graph_that_is_launched_in_a_capture_becomes_part_of_it(device: Device) -> None:
    x, y, w = (device.zeros(20) for _ in range(3))
    with device.capture() as inner:
        dt = inner.param("dt", kj.f32, default=1.0)
        z = inner.param("z", default=y)
        step[20](x, z, dt)
        device.copy(z, x)
    with device.capture() as outer:
        a = outer.param("a", kj.f32, default=10.0)
        b = outer.param("b", default=w)
        inner.launch()
        inner.launch(repeat=2, dt=a, z=b)
    assert not x.numpy().any()
    outer.launch()
    assert (x.numpy() == 21).all()
    assert (y.numpy() == 1).all()
    assert (w.numpy() == 21).all()
    v = device.zeros(20)
    outer.launch(a=0.5, b=v)
    assert (x.numpy() == 23).all()
    assert (v.numpy() == 23).all()
    assert (w.numpy() == 21).all()
    inner.launch()
    assert (x.numpy() == 24).all()


# What a graph holds on to, and when it does not hold.


def test_a_graph_keeps_alive_what_it_uses(device: Device) -> None:
    """NVIDIA/warp#401, NVIDIA/warp#782, sgl-project/sglang#35427."""

    def build() -> tuple[Graph, Any]:
        @kj.jit
        def local(x: kj.Array1[kj.i32], y: kj.Array1[kj.i32]) -> None:
            i = kj.global_id(0)
            if i < x.size:
                y[i] += x[i]

        x, y = device.array(np.arange(1000, dtype=np.int32)), device.zeros(1000, kj.i32)
        with device.capture() as graph:
            local[1000](x, y)
            local[500](x[500:], y[:500])
        return graph, y[:10]

    graph, seen = build()
    gc.collect()
    others = [device.full(1000, 77, kj.i32) for _ in range(20)]
    graph.launch(repeat=2)
    assert seen.numpy().tolist() == [2 * (n + n + 500) for n in range(10)]
    assert all((one.numpy() == 77).all() for one in others)


def test_a_graph_and_its_arrays_go_with_the_last_reference(device: Device) -> None:
    """No collector is waited for: they may hold much memory."""

    @kj.jit
    def checked(x: kj.Array1[kj.f32]) -> None:
        assert x[0] < 1e9

    x, y, counts = device.zeros(1 << 10), device.zeros(1 << 10), device.zeros(3, kj.u32)
    with device.capture() as graph:
        source = graph.param("source", default=x)
        for _ in range(3):
            step[x.size](source, y, graph.param(f"dt{_}", kj.f32, default=1.0))
        checked[1](y)
        device.copy(source[:4], y[4:8])
        count[kj.Indirect(counts)](y.view(kj.u32))
    graph.launch(dt0=2.0, source=device.zeros(1 << 10))
    device.synchronize()
    refs = [weakref.ref(one) for one in (graph, x, y)]
    gc.disable()
    try:
        del graph, source, x, y
        assert [ref() for ref in refs] == [None] * 3
    finally:
        gc.enable()


def test_code_in_a_graph_outlives_what_is_kept_of_loaded_code(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """facebookexperimental/triton#1289: loaded code is bounded, and pinned by graphs."""
    monkeypatch.setattr(loading, "MAX_IDLE", 1)

    def adder(k: int) -> Any:
        @kj.jit
        def add(x: kj.Array1[kj.i32]) -> None:
            x[0] += k

        return add

    x = device.zeros(1, kj.i32)
    with device.capture() as graph:
        for k in range(5):
            adder(10**k)[1](x)
    for k in range(5, 9):
        adder(10**k)[1](x)
    gc.collect()
    graph.launch()
    assert x.numpy()[0] == 111_111_111


SCALE = 2.0


@kj.jit
def scaled(x: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = x[i] * SCALE


def test_a_graph_whose_kernel_reads_what_changed_is_refused(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tinygrad/tinygrad#14044."""
    x = device.full(4, 1.0)
    with device.capture() as graph:
        scaled[4](x)
    graph.launch()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(kj.GraphError, match="kernel scaled reads global 'SCALE'") as caught:
        graph.launch()
    assert "capture the graph again" in str(caught.value)
    assert (x.numpy() == 2).all()
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    graph.launch()
    assert (x.numpy() == 4).all()


def test_outputs_are_arrays_of_the_caller(device: Device) -> None:
    """pytorch/pytorch#148439, pytorch/pytorch#177192: no replay overwrites another's result."""
    x = device.full(6, 1.0)
    first, second = device.zeros(6), device.zeros(6)
    with device.capture() as graph:
        out = graph.param("out", default=first)
        step[6](x, out, graph.param("dt", kj.f32))
        with pytest.raises(kj.GraphError, match="an array is made"):
            device.empty(6)
    graph.launch(dt=1.0, out=first)
    graph.launch(dt=2.0, out=second)
    assert (first.numpy() == 2).all()
    assert (second.numpy() == 3).all()


def test_an_input_may_be_the_output(device: Device, rng: Rng) -> None:
    """tinygrad/tinygrad#14278."""
    values = rng.random(40, np.float32)
    x, y = device.array(values), device.zeros(40)
    with device.capture() as graph:
        step[40](x, x, 1.0)
        step[40](x, y, 1.0)
        step[40](y, x, 1.0)
    graph.launch(repeat=2)
    for _ in range(6):
        values = values + np.float32(1)
    assert (x.numpy() == values).all()


def test_a_grid_that_the_device_reads_is_read_at_each_replay(device: Device) -> None:
    counts, hits = device.array(np.array([1, 1, 1], np.uint32)), device.zeros(1, kj.u32)
    with device.capture() as graph:
        count[kj.Indirect(counts)](hits)
        put[1](counts, np.uint32(2))
        count[kj.Indirect(counts)](hits)
    graph.launch()
    assert hits.numpy()[0] == 16 + 2 * 16
    counts.write(np.array([0, 3, 5], np.uint32))
    graph.launch()
    assert hits.numpy()[0] == 16 + 2 * 16 + 2 * 3 * 5 * 16


def test_failed_assertions_are_raised_and_later_launches_run(device: Device) -> None:
    @kj.jit
    def checked(x: kj.Array1[kj.i32]) -> None:
        assert x[0] < 3, "too much"
        x[0] += 1

    x = device.zeros(1, kj.i32)
    with device.capture() as graph:
        checked[1](x)
        checked[1](x)
    graph.launch()
    device.synchronize()

    def launch_and_wait() -> None:  # the CPU says it at once
        graph.launch()
        device.synchronize()

    with pytest.raises(kj.KernelError, match="too much"):
        launch_and_wait()
    x.fill(0)
    graph.launch()
    device.synchronize()
    assert x.numpy()[0] == 2


def test_what_kernels_print_is_printed_at_each_replay(
    device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    @kj.jit
    def tell(x: kj.Array1[kj.i32]) -> None:
        print("x is", x[0])
        x[0] += 1

    x, y = device.zeros(1, kj.i32), device.zeros(4)
    with device.capture() as graph:
        tell[1](x)
        step[4](y, y, 1.0)
    assert capsys.readouterr().out == ""
    graph.launch(repeat=3)
    device.synchronize()
    assert capsys.readouterr().out == "x is 0\nx is 1\nx is 2\n"


# Who else is there.


def test_other_threads_work_on_while_a_graph_is_captured(device: Device) -> None:
    x, y, z = (device.zeros(8) for _ in range(3))
    found: list[Any] = []

    def work() -> None:
        step[8](x, z, 5.0)
        found.append(z.numpy())

    with device.capture() as graph:
        step[8](x, y, 1.0)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert (found[0] == 5).all()
    assert (y.numpy() == 0).all()
    graph.launch()
    assert (y.numpy() == 1).all()


def test_other_devices_work_on_while_a_graph_is_captured(device: Device) -> None:
    other = kj.device("interpreter" if device.kind != "interpreter" else "cpu")
    x, y = other.zeros(8), other.zeros(8)
    with device.capture() as graph:
        step[8](x, y, 1.0)
        assert (y.numpy() == 1).all()
    assert graph.nodes == ()


def test_threads_may_launch_one_graph(device: Device) -> None:
    hits = device.zeros(1, kj.u32)
    with device.capture() as graph:
        count[16](hits)
        count[32](hits)
    threads = [threading.Thread(target=lambda: graph.launch(repeat=5)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hits.numpy()[0] == 4 * 5 * 48


def test_a_profile_times_a_launch_of_a_graph_as_one(device: Device) -> None:
    x, y = device.zeros(1 << 12), device.zeros(1 << 12)
    with device.capture() as graph:
        step[x.size](x, y, 1.0)
        step[x.size](y, x, 1.0)
    with device.profile() as profile:
        graph.launch()
    entries = profile.entries()
    assert [entry.label for entry in entries] == ["graph"]
    assert entries[0].seconds >= 0
    assert (x.numpy() == 2).all()


def test_a_summary_and_dot_show_what_depends_on_what(device: Device) -> None:
    a, b, c = (device.zeros(100) for _ in range(3))
    with device.capture() as graph:
        dt = graph.param("dt", kj.f32, default=0.5)
        step[100](a, b, dt)  # 0
        step[100](a, c, dt)  # 1: on nothing of 0
        step[100](b, a, dt)  # 2: reads 0's, writes what 0 and 1 read
        device.copy(a[:50], c[50:])  # 3
    text = graph.summary()
    assert "4 nodes, 3 buffers" in text
    assert "parameter dt: f32 = 0.5" in text
    assert text.count("step") == 3
    edges = {line.strip() for line in graph.dot().splitlines() if "->" in line}
    assert edges == {"n0 -> n2;", "n1 -> n2;", "n2 -> n3;"}
    assert graph.dot().startswith("digraph {")
    assert "4 nodes" in graph._repr_html_()


# The devices' own ways.


def test_large_and_small_launches_follow_each_other() -> None:
    device = kj.device("cpu", threads=2)
    n = 1 << 18
    x, y, hits = device.zeros(n), device.zeros(n), device.zeros(1, kj.u32)
    with device.capture() as graph:
        count[16](hits)
        step[n](x, y, 1.0)
        step[n](y, x, graph.param("dt", kj.f32, default=1.0))
        step[4](x[:4], y[:4], 10.0)
        device.copy(y[:4], x[:4])
        count[16](hits)
    graph.launch(repeat=3)
    graph.launch(dt=0.5)
    assert hits.numpy()[0] == 4 * 32
    assert (x.numpy()[4:] == 7.5).all()
    assert (x.numpy()[:4] == 47.5).all()


def test_chains_of_small_launches_run_side_by_side(rng: Rng) -> None:
    device = kj.device("cpu", threads=2)
    arrays = [device.zeros(3000) for _ in range(6)]
    shared = device.full(3000, 0.5)

    def run() -> None:
        for turn in range(20):
            for k, x in enumerate(arrays):
                step[x.size](x, x, float(k))
                step[x.size](shared, x, 1.0) if turn == 5 else step[x.size](x, x, 0.25)
        step[3000](arrays[0], arrays[1], 1.0)

    with device.capture() as graph:
        run()
    nodes = graph.nodes
    groups = chains(nodes)
    assert sorted(map(len, groups)) == [40, 40, 40, 40, 81]
    assert sorted(one for group in groups for one in group) == list(range(len(nodes)))
    run()
    expected = [x.numpy() for x in arrays]
    for x in arrays:
        x.fill(0)
    graph.launch(repeat=3)
    assert all((x.numpy() == one).all() for x, one in zip(arrays, expected, strict=True))


@pytest.mark.parametrize("seed", range(20, 40))
def test_generated_sequences_in_chains(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are, on two threads."""
    monkeypatch.setattr(cpu_replay, "WORTH_THREADS", 0)
    assert disagreement(kj.device("cpu", threads=2), seed, parametrised=False) is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_what_runs_a_list_calls_nothing_outside_itself(level: str, system: str) -> None:
    if system != "linux" and level == "x86-64-v2":
        pytest.skip("one level of each kind is enough")
    target = CpuTarget(level, system=system)
    code = assemble(replay.text(target), target)  # which looks for undefined symbols
    assert read(code).names.keys() >= {replay.NAME}


def test_without_a_compiler_a_list_runs_as_it_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    device = kj.device("cpu", threads=1)
    x, y = device.zeros(4), device.zeros(4)
    step[4](x, y, 1.0)
    monkeypatch.setattr(runs, "runner_of", lambda target: None)
    with device.capture() as graph:
        step[4](x, y, graph.param("dt", kj.f32))
        step[4](y, x, 1.0)
    graph.launch(repeat=2, dt=2.0)
    assert (x.numpy() == 6).all()


def test_the_null_device_records_and_runs_nothing() -> None:
    null = kj.device("null")
    x, y = null.zeros(4), null.zeros(4)
    with null.capture() as graph:
        step[4](x, y, graph.param("dt", kj.f32, default=1.0))
        null.copy(x, y)
    graph.launch(repeat=2, dt=2.0)
    assert len(graph.nodes) == 2
    assert not y.numpy().any()


FORKED = """
import os, sys
import khaljit as kj

@kj.jit
def add(x: kj.Array1[kj.i32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] += 1

device = kj.device("cpu")
x = device.zeros(1 << 18, kj.i32)
with device.capture() as graph:
    add[x.size](x)
    add[4](x[:4])
graph.launch()
graph._lock.acquire()  # as another thread might hold it
child = os.fork()
if child == 0:
    graph.launch()
    os._exit(0 if x.numpy()[0] == 4 and x.numpy()[-1] == 2 else 1)
graph._lock.release()
graph.launch()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status or int(x.numpy()[0] != 4))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_graph_of_the_cpu_runs_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    """pytorch/pytorch#184643, pytorch/pytorch#108586."""
    path = tmp_path / "forked.py"
    path.write_text(FORKED)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_generated_sequences_replay_what_they_do_eagerly(device: Device, seed: int) -> None:
    assert disagreement(device, seed) is None
