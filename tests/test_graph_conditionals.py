"""Loops and branches in graphs: what the device decides is what a loop of the host would do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.backends.cpu import replay as cpu_replay
from khaljit.backends.cpu import runs

Rng = np.random.Generator


@kj.jit
def collatz(n: kj.Array1[kj.i32], steps: kj.Array1[kj.i32], going: kj.Array1[kj.i32]) -> None:
    if n[0] != 1:
        n[0] = kj.select(n[0] % 2 == 0, n[0] // 2, 3 * n[0] + 1)
        steps[0] += 1
    going[0] = kj.select(n[0] != 1, -256, 0)  # a flag is what is not zero, in any byte


@kj.jit
def newton(a: kj.Array1[kj.f32], root: kj.Array1[kj.f32], changed: kj.Array1[kj.u32]) -> None:
    i = kj.global_id(0)
    if i < a.size:
        better = 0.5 * (root[i] + a[i] / root[i])
        if better < root[i]:
            root[i] = better
            kj.atomic_or(changed, 0, 1)


@kj.jit
def set_to(x: Any, at: kj.i32, value: Any) -> None:
    x[at] = value


@kj.jit
def lower(left: kj.Array1[kj.i32], at: kj.i32) -> None:
    left[at] -= 1


@kj.jit(workgroup=32)
def add(x: kj.Array1[kj.i32], k: kj.i32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] += k


@kj.jit
def compare(x: kj.Array1[kj.i32], limit: kj.i32, flag: kj.Array1[kj.bool]) -> None:
    flag[0] = x[0] < limit


def test_a_loop_ends_when_the_device_says_so(device: Device, rng: Rng) -> None:
    n, steps, going = (device.zeros(1, kj.i32) for _ in range(3))
    with device.capture() as graph, graph.while_(going):
        collatz[1](n, steps, going)
    for start in [27, 1, 2, *map(int, rng.integers(1, 100, 3))]:
        for array, value in ((n, start), (steps, 0), (going, 1)):
            array.fill(value)
        graph.launch()
        expected, number = 0, start
        while number != 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            expected += 1
        assert steps.numpy()[0] == expected
        assert going.numpy()[0] == 0


def test_a_loop_computes_what_a_loop_of_the_host_does(device: Device, rng: Rng) -> None:
    values = rng.random(45, np.float32) * np.float32(1e6) + 1
    a, changed = device.array(values), device.zeros(1, kj.u32)
    eager, root = device.array(values), device.array(values)
    turns = 0
    while turns == 0 or changed.numpy()[0]:
        changed.fill(0)
        newton[a.size](a, eager, changed)
        turns += 1
    with device.capture() as graph:
        changed.fill(1)
        with graph.while_(changed):
            changed.fill(0)
            newton[a.size](a, root, changed)
    graph.launch()
    assert turns > 3
    assert (root.numpy() == eager.numpy()).all()
    assert np.allclose(root.numpy(), np.sqrt(values), rtol=1e-6)


def test_a_loop_whose_flag_is_down_makes_no_turn(device: Device) -> None:
    x, flag = device.zeros(5, kj.i32), device.zeros(1, kj.i32)
    with device.capture() as graph:
        add[5](x, 1)
        with graph.while_(flag):
            add[5](x, 100)
        add[5](x, 2)
        with graph.while_(flag):
            pass
    graph.launch(repeat=2)
    assert (x.numpy() == 6).all()


def test_the_flag_is_read_anew_at_each_launch_and_repetition(device: Device) -> None:
    x, left = device.zeros(3, kj.i32), device.array(np.array([4, 0], np.int32))
    with device.capture() as graph:
        with graph.while_(left[:1]):
            add[3](x, 1)
            lower[1](left, 0)
        device.copy(left[1:], left[:1])
    graph.launch()
    assert (x.numpy() == 4).all()
    graph.launch()
    assert (x.numpy() == 4).all()
    left.write(np.array([1, 3], np.int32))
    graph.launch(repeat=3)
    assert (x.numpy() == 4 + 1 + 3 + 3).all()


def test_loops_in_loops(device: Device) -> None:
    x, y, left = device.zeros(4, kj.i32), device.zeros(4, kj.i32), device.zeros(3, kj.i32)
    rows, columns, odd = (left[n : n + 1] for n in range(3))
    with device.capture() as graph:
        set_to[1](left, 0, 3)
        with graph.while_(rows):
            device.copy(rows, columns)  # 3, 2, 1 turns
            with graph.while_(columns):
                add[4](x, 1)
                lower[1](left, 1)
                device.copy(columns, odd)
                with graph.if_(odd):
                    add[4](y, 10)
            lower[1](left, 0)
            add[4](y, 1)
    graph.launch(repeat=2)
    assert (x.numpy() == 2 * 6).all()
    assert (y.numpy() == 2 * (10 * 3 + 3)).all()
    assert not left.numpy().any()


def test_branches(device: Device) -> None:
    x, flags = device.zeros(7, kj.i32), device.zeros(2, kj.u32)
    with device.capture() as graph:
        with graph.if_(flags[:1]):
            add[7](x, 1)
            set_to[1](flags, 0, np.uint32(0))  # does not end the body
            add[7](x, 1)
        with graph.if_(flags[1:]):
            add[7](x, 10)
    for first in (0, 1, 1 << 31):
        for second in (0, 7):
            x.fill(0)
            flags.write(np.array([first, second], np.uint32))
            graph.launch()
            assert (x.numpy() == 2 * (first > 0) + 10 * (second > 0)).all()
            assert flags.numpy()[0] == 0


def test_flags_of_one_byte(device: Device) -> None:
    x, flags = device.zeros(1, kj.i32), device.zeros(9, kj.bool)
    flags.fill(True)
    flag = flags[3:4]
    with device.capture() as graph:
        compare[1](x, 5, flag)
        with graph.while_(flag):
            add[1](x, 1)
            compare[1](x, 5, flag)
        with graph.if_(flag):
            add[1](x, 100)
        with graph.if_(flags[:1]):
            add[1](x, 1000)
    graph.launch()
    assert x.numpy()[0] == 1005
    assert flags.numpy().tolist() == [True] * 3 + [False] + [True] * 5


def test_a_limit_ends_a_loop_whose_flag_stands(device: Device) -> None:
    x, flag, left = device.zeros(3, kj.i32), device.full(1, 1, kj.i32), device.zeros(1, kj.i32)
    with device.capture() as graph:
        set_to[1](left, 0, 2)
        with graph.while_(left):
            with graph.while_(flag, limit=5):
                add[3](x, 1)
            lower[1](left, 0)
        with graph.while_(flag, limit=1):
            add[3](x, 100)
    graph.launch(repeat=2)
    assert (x.numpy() == 2 * (2 * 5 + 100)).all()
    assert flag.numpy()[0] == 1


def test_parameters_in_bodies(device: Device) -> None:
    x, y, left = device.zeros(6, kj.i32), device.zeros(6, kj.i32), device.zeros(1, kj.i32)
    with device.capture() as graph:
        k = graph.param("k", kj.i32, default=1)
        z = graph.param("z", default=x)
        set_to[1](left, 0, graph.param("turns", kj.i32, default=3))
        with graph.while_(left):
            add[6](z, k)
            with graph.if_(left):
                add[3](z[:3], k)
            lower[1](left, 0)
        z[5:].fill(k)
    graph.launch()
    assert x.numpy().tolist() == [6, 6, 6, 3, 3, 1]
    graph.launch(k=10, turns=2)
    assert x.numpy().tolist() == [46, 46, 46, 23, 23, 10]
    graph.launch(z=y, turns=1, repeat=2)
    assert y.numpy().tolist() == [4, 4, 4, 2, 2, 1]
    graph.launch(turns=0)
    assert x.numpy().tolist() == [46, 46, 46, 23, 23, 1]
    graph.launch()
    assert x.numpy().tolist() == [52, 52, 52, 26, 26, 1]


def test_grids_that_the_device_reads_copies_and_encoders_in_bodies(device: Device) -> None:
    @kj.jit(workgroup=4)
    def count(hits: kj.Array1[kj.u32]) -> None:
        kj.atomic_add(hits, 0, 1)

    counts, hits = device.array(np.array([2, 1, 1], np.uint32)), device.zeros(1, kj.u32)
    left, strided = device.full(1, 3, kj.i32), device.zeros((3, 4), kj.i32)
    with device.capture() as graph, graph.while_(left):
        count[kj.Indirect(counts)](hits)
        with device.encoder() as encoder:
            encoder.copy(counts[1:2], counts[:1])
        device.submit(encoder)
        strided[:, ::2] = strided[:, 1::2]
        add[3](strided[:, 1], 1)
        lower[1](left, 0)
    graph.launch()
    assert hits.numpy()[0] == 4 * (2 + 1 + 1)
    assert strided.numpy().tolist() == [[2, 3, 0, 0]] * 3


def test_a_kernel_that_is_first_met_in_a_body_is_compiled_there(device: Device) -> None:
    left = device.full(1, 4, kj.i32)

    @kj.jit
    def fresh(x: kj.Array1[kj.i32]) -> None:
        x[0] -= 2

    with device.capture() as graph, graph.while_(left):
        fresh[1](left)
    graph.launch()
    assert left.numpy()[0] == 0


def test_what_kernels_say_in_bodies(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    @kj.jit
    def tell(left: kj.Array1[kj.i32]) -> None:
        print("left", left[0])
        assert left[0] != 7, "seven"
        left[0] -= 1

    left = device.full(1, 3, kj.i32)
    with device.capture() as graph, graph.while_(left, limit=4):
        tell[1](left)
    graph.launch()
    device.synchronize()
    assert capsys.readouterr().out == "left 3\nleft 2\nleft 1\n"
    left.fill(8)
    with pytest.raises(kj.KernelError, match="seven"):
        launch_and_wait(graph, device)
    left.fill(1)
    launch_and_wait(graph, device)
    assert left.numpy()[0] == 0


def test_failures_without_prints_in_bodies(device: Device) -> None:
    @kj.jit
    def check(left: kj.Array1[kj.i32]) -> None:
        assert left[0] != 7, "seven"
        left[0] -= 1

    left = device.full(1, 3, kj.i32)
    with device.capture() as graph, graph.while_(left, limit=4):
        check[1](left)
    launch_and_wait(graph, device)
    assert left.numpy()[0] == 0
    left.fill(9)
    with pytest.raises(kj.KernelError, match="seven"):
        launch_and_wait(graph, device)


def launch_and_wait(graph: Any, device: Device) -> None:
    """The CPU says at once what failed, others when they are waited for."""
    graph.launch()
    device.synchronize()


# Graphs in graphs.


def test_a_graph_with_loops_becomes_part_of_the_one_around(device: Device) -> None:
    x, left = device.zeros(2, kj.i32), device.zeros(2, kj.i32)
    with device.capture() as inner:
        k = inner.param("k", kj.i32, default=1)
        set_to[1](left, 0, 3)
        with inner.while_(left[:1]):
            add[2](x, k)
            lower[1](left, 0)
    with device.capture() as outer:
        set_to[1](left, 1, 2)
        with outer.while_(left[1:]):
            inner.launch(k=outer.param("k", kj.i32, default=10), repeat=2)
            lower[1](left, 1)
        inner.launch()
    outer.launch()
    assert (x.numpy() == 2 * 2 * 3 * 10 + 3).all()
    assert [type(node).__name__ for node in outer.nodes].count("ConditionalNode") == 4
    outer.launch(k=0)
    assert (x.numpy() == 2 * 2 * 3 * 10 + 3 + 3).all()


def test_a_graph_with_loops_in_a_function_that_is_replayed(device: Device) -> None:
    x, left = device.zeros(2, kj.i32), device.zeros(1, kj.i32)
    with device.capture() as inner:
        set_to[1](left, 0, 3)
        with inner.while_(left):
            add[2](x, 1)
            lower[1](left, 0)

    @kj.graph
    def twice() -> None:
        inner.launch()
        add[2](x, 100)
        inner.launch()

    for turn in range(1, 5):
        twice()
        assert (x.numpy() == turn * 106).all()
    assert twice.graph_info() == {
        **{"eager": 2, "captured": 1, "recaptured": 0, "replayed": 2},
        "refused": None,
    }


# What is wrong.

WRONG: dict[str, tuple[Callable[[Device, Any, Any], Any], str]] = {
    "a number": (
        lambda device, graph, x: graph.while_(1),
        "graph.while_ got a int as its flag\n"
        "  mend: pass an array that kernels write: device.zeros(1, kj.i32)",
    ),
    "an array of the host": (
        lambda device, graph, x: graph.if_(np.zeros(1, np.int32)),
        "graph.if_ got a ndarray as its flag\n"
        "  mend: pass an array that kernels write: device.zeros(1, kj.i32)",
    ),
    "another device": (
        lambda device, graph, x: graph.while_(kj.device("null").zeros(1, kj.i32)),
        "the flag of graph.while_ is on null, and the graph on {device}\n"
        "  mend: give an array of the graph's device",
    ),
    "a type": (
        lambda device, graph, x: graph.if_(x.view(kj.f32)[:1]),
        "the flag of graph.if_ is of f32\n"
        "  mend: a flag is of kj.i32, kj.u32 or kj.bool; compare in a kernel, and store what comes "
        "of it",
    ),
    "a size": (
        lambda device, graph, x: graph.while_(x),
        "the flag of graph.while_ has shape (4,)\n  mend: a flag is one element, as flag[:1] is",
    ),
    "no size": (
        lambda device, graph, x: graph.while_(x[:0]),
        "the flag of graph.while_ has shape (0,)\n  mend: a flag is one element, as flag[:1] is",
    ),
    "a limit": (
        lambda device, graph, x: graph.while_(x[:1], limit=0),
        "graph.while_ has limit=0\n  mend: limit is an int, 1 or more",
    ),
    "a limit of another type": (
        lambda device, graph, x: graph.while_(x[:1], limit=2.5),
        "graph.while_ has limit=2.5\n  mend: limit is an int, 1 or more",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_flag(device: Device, what: str) -> None:
    wrong, message = WRONG[what]
    x = device.zeros(4, kj.i32)
    with device.capture() as graph:
        with pytest.raises(kj.ArgumentError) as caught:
            wrong(device, graph, x)
        add[4](x, 1)
    assert str(caught.value) == message.format(device=device)
    graph.launch()
    assert (x.numpy() == 1).all()


def test_a_flag_is_no_parameter(device: Device) -> None:
    x = device.zeros(2, kj.i32)
    with device.capture() as graph:
        y = graph.param("y", default=x)
        with pytest.raises(kj.GraphError) as caught:
            graph.while_(y[1:])
    assert caught.value.message == "the flag of graph.while_ is the graph parameter y"
    assert caught.value.mend == "use an array of the graph's own, and copy the parameter there"
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_loops_are_captured_inside_only(device: Device) -> None:
    flag = device.zeros(1, kj.i32)
    graph = device.capture()
    with pytest.raises(kj.GraphError, match=r"graph\.while_ is used outside of the graph's"):
        graph.while_(flag)
    with graph, graph.if_(flag):
        add[1](flag, 1)
    with pytest.raises(kj.GraphError, match=r"graph\.if_ is used outside of the graph's capture"):
        graph.if_(flag)
    graph.launch()
    assert flag.numpy()[0] == 0


def test_a_capture_does_not_end_in_a_body(device: Device) -> None:
    x, flag = device.zeros(3, kj.i32), device.full(1, 1, kj.i32)
    with device.capture() as graph, graph.if_(flag):
        add[3](x, 1)
        with pytest.raises(kj.GraphError, match=r"ends in the body of graph\.if_") as caught:
            device.end_capture()
        add[3](x, 1)
    assert caught.value.mend == "end it behind the with statement of the body"
    graph.launch()
    assert (x.numpy() == 2).all()


def test_what_no_graph_can_hold_raises_in_a_body_too(device: Device) -> None:
    x, left = device.zeros(3, kj.i32), device.full(1, 2, kj.i32)
    with device.capture() as graph, graph.while_(left):
        add[3](x, 1)
        with pytest.raises(kj.GraphError, match="an array is read"):
            left.numpy()
        lower[1](left, 0)
    graph.launch()
    assert (x.numpy() == 2).all()


def test_an_exception_in_a_body_leaves_everything_usable(device: Device) -> None:
    x, flag = device.zeros(3, kj.i32), device.full(1, 1, kj.i32)
    graph = device.capture()
    with pytest.raises(ZeroDivisionError), graph, graph.while_(flag), graph.if_(flag):
        add[3](x, 1 // x.offset)
    with pytest.raises(kj.GraphError, match="a ZeroDivisionError ended its capture"):
        graph.launch()
    add[3](x, 1)
    with device.capture() as graph, graph.if_(flag):
        add[3](x, 1)
    graph.launch()
    assert (x.numpy() == 2).all()


def test_a_graph_that_lacks_a_part_of_a_body_is_none(device: Device) -> None:
    x, flag = device.zeros(3, kj.i32), device.full(1, 1, kj.i32)
    graph = device.capture()

    def capture() -> None:
        with graph:
            with graph.if_(flag):
                with pytest.raises(ZeroDivisionError), graph.if_(flag):
                    add[3](x, 1 // x.offset)
                add[3](x, 10)
            add[3](x, 100)

    incomplete = "a ZeroDivisionError ended the body of its graph.if_"
    with pytest.raises(kj.GraphError, match=incomplete) as caught:
        capture()
    assert caught.value.mend == "capture it again, in another graph"
    with pytest.raises(kj.GraphError, match=incomplete):
        graph.launch()
    assert not x.numpy().any()
    add[3](x, 1)
    assert (x.numpy() == 1).all()


# Looking, and what is kept.

SUMMARY = """\
graph on {device}: 8 nodes, 4 buffers
    #  node                 workgroups         after        arrays
    0  set_to               (1, 1, 1)                       i32[2] (written)
    1  while                                   0            i32[1]
    2    add                (1, 1, 1)                       i32[5] (written)
    3    lower              (1, 1, 1)                       i32[2] (written)
    4    if                                    3            i32[1]
    5      add              (1, 1, 1)                       i32[5] (written)
    6  while                7 turns at most                 i32[1]
    7  add                  (1, 1, 1)          1            i32[5] (written)"""

DOT = """\
digraph {
  node [shape=box];
  n0 [label="0: set_to\\n(1, 1, 1)"];
  n1 [label="1: while", shape=diamond];
  subgraph cluster_1 {
    label="body of 1";
    n2 [label="2: add\\n(1, 1, 1)"];
    n3 [label="3: lower\\n(1, 1, 1)"];
    n4 [label="4: if", shape=diamond];
    subgraph cluster_4 {
      label="body of 4";
      n5 [label="5: add\\n(1, 1, 1)"];
    }
    n3 -> n4;
  }
  n6 [label="6: while\\n7 turns at most", shape=diamond];
  subgraph cluster_6 {
    label="body of 6";
  }
  n7 [label="7: add\\n(1, 1, 1)"];
  n0 -> n1;
  n1 -> n7;
}"""


def test_summaries_and_dot_show_bodies(device: Device) -> None:
    x, y = device.zeros(5, kj.i32), device.zeros(5, kj.i32)
    left, other = device.zeros(2, kj.i32), device.zeros(1, kj.i32)
    with device.capture() as graph:
        set_to[1](left, 0, 3)
        with graph.while_(left[:1]):
            add[5](x, 1)
            lower[1](left, 0)
            with graph.if_(left[:1]):
                add[5](y, 1)
        with graph.while_(other, limit=7):
            pass
        add[5](y, 1)
    lines = graph.summary().splitlines()
    lines = [line for line in lines if "driver's graph" not in line]
    assert "\n".join(lines) == SUMMARY.format(device=device)
    assert graph.dot() == DOT


def test_a_graph_keeps_its_flags_and_goes_with_the_last_reference(device: Device) -> None:
    def build() -> tuple[Any, Any]:
        x, left = device.zeros(100, kj.i32), device.full(1, 3, kj.i32)
        with device.capture() as graph, graph.while_(left):
            add[100](x, 1)
            lower[1](left, 0)
        return graph, x

    graph, x = build()
    gc.collect()
    others = [device.full(1, 77, kj.i32) for _ in range(20)]
    graph.launch()
    assert (x.numpy() == 3).all()
    assert all(one.numpy()[0] == 77 for one in others)
    flag = weakref.ref(graph.nodes[0].flag)
    gc.disable()
    try:
        del graph
        assert flag() is None
    finally:
        gc.enable()


def test_a_profile_times_a_graph_with_loops_as_one(device: Device) -> None:
    x, left = device.zeros(1 << 10, kj.i32), device.full(1, 3, kj.i32)
    with device.capture() as graph, graph.while_(left):
        add[x.size](x, 1)
        lower[1](left, 0)
    with device.profile() as profile:
        graph.launch()
    assert [entry.label for entry in profile.entries()] == ["graph"]
    assert profile.entries()[0].seconds >= 0
    assert (x.numpy() == 3).all()


# The devices' own ways.


def test_a_profile_on_webgpu_times_all_turns() -> None:
    """From the first of the passes to the last one; each turn takes one."""
    try:
        device = kj.device("webgpu")
    except kj.DeviceError as error:
        pytest.skip(f"no webgpu device: {error.message}")
    x, left = device.zeros(1 << 12, kj.i32), device.full(1, 50, kj.i32)
    with device.capture() as graph, graph.while_(left):
        add[x.size](x, 1)
        lower[1](left, 0)
    with device.profile() as profile:
        add[4](x, 1)
        graph.launch()
        add[4](x, 1)
    before, whole, after = profile.entries()
    assert whole.seconds > (after.start - before.start) / 4


def test_large_and_small_launches_in_bodies() -> None:
    device = kj.device("cpu", threads=2)
    n = 1 << 18
    x, y, left = device.zeros(n, kj.i32), device.zeros(3, kj.i32), device.zeros(1, kj.i32)
    with device.capture() as graph:
        set_to[1](left, 0, 5)
        with graph.while_(left):
            add[3](y, 1)
            add[n](x, graph.param("k", kj.i32, default=1))
            lower[1](left, 0)
        with graph.while_(y[:1], limit=2):  # of large ones only
            add[n](x, 100)
    graph.launch(repeat=2)
    graph.launch(k=3)
    assert (x.numpy() == 2 * 5 + 3 * 5 + 3 * 200).all()
    assert (y.numpy() == 15).all()


def test_chains_do_not_pass_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loops use is in order with all around, on two threads, however small launches are."""
    monkeypatch.setattr(cpu_replay, "WORTH_THREADS", 0)
    device = kj.device("cpu", threads=2)
    arrays = [device.zeros(3000, kj.i32) for _ in range(4)]
    left = device.zeros(2, kj.i32)
    with device.capture() as graph:
        for x in arrays:
            add[x.size](x, 1)
        set_to[1](left, 0, 6)
        with graph.while_(left[:1]):
            for x in arrays:
                add[x.size](x, 10)
                add[x.size](x, 10)
            lower[1](left, 0)
        for x in arrays:
            device.copy(x[:1500], x[1500:])
    graph.launch(repeat=3)
    assert all((x.numpy() == 3 * 121).all() for x in arrays)


def test_long_loops_come_back_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A native call makes so many turns only, since nothing can interrupt it."""
    monkeypatch.setattr(runs, "LONGEST", 50)
    device = kj.device("cpu", threads=1)
    x, left = device.zeros(1, kj.i32), device.full(1, 1000, kj.i32)
    with device.capture() as graph:
        with graph.while_(left):
            add[1](x, 1)
            lower[1](left, 0)
        with graph.while_(x, limit=321):
            add[1](x, 1)
    graph.launch()
    assert x.numpy()[0] == 1321


def test_without_a_compiler_loops_run_as_they_were_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = kj.device("cpu", threads=1)
    monkeypatch.setattr(runs, "runner_of", lambda target: None)
    test_loops_in_loops(device)
    test_parameters_in_bodies(device)


def test_the_null_device_runs_no_body() -> None:
    null = kj.device("null")
    flag = null.full(1, 1, kj.i32)
    with null.capture() as graph, graph.while_(flag):
        add[1](flag, 1)
    graph.launch(repeat=2)
    assert len(graph.nodes) == 2
    assert flag.numpy()[0] == 1
