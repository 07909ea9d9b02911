"""``@kj.graph``: a host function runs, is captured, and is replayed as long as nothing changed."""

from __future__ import annotations

import gc
import itertools
import math
import threading
import time
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

Rng = np.random.Generator


@kj.jit
def step(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], dt: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = x[i] + dt


def counts(function: Any) -> tuple[int, int, int]:
    info = function.graph_info()
    assert info["refused"] is None
    return info["eager"], info["captured"], info["replayed"]


def test_a_function_runs_twice_and_is_replayed_from_then_on(device: Device) -> None:
    @kj.graph
    def advance(x: Any, y: Any, n: int, dt: float = 1.0) -> Any:
        for _ in range(n):
            step[x.size](x, y, dt)
            step[x.size](y, x, dt)
        y[:2].fill(7)
        device.copy(x[:3], y[3:6])
        return y

    x, y = device.zeros(9), device.zeros(9)
    seen = []
    for turn in range(1, 5):
        assert advance(x, y, 3) is y
        assert (x.numpy() == 6 * turn).all()
        assert y.numpy()[:6].tolist() == [7, 7, x.numpy()[0] - 1, *[6 * turn] * 3]
        seen.append(counts(advance))
    assert seen == [(1, 0, 0), (2, 1, 0), (2, 1, 1), (2, 1, 2)]
    advance(x, y, n=3, dt=1.0)
    assert counts(advance) == (2, 1, 3)
    assert advance.__name__ == "advance"


def test_other_inputs_are_another_graph(device: Device) -> None:
    @kj.graph
    def advance(x: Any, y: Any, dt: float) -> None:
        step[x.size](x, y, dt)

    x, y, z = device.zeros(8), device.zeros(8), device.full(8, 5.0)
    for _ in range(3):
        advance(x, y, 1.0)
        assert (y.numpy() == 1).all()
        advance(x, y, 2.0)
        assert (y.numpy() == 2).all()
        advance(z, y, 1.0)
        assert (y.numpy() == 6).all()
        advance(x[:4], y[:4], 1.0)
        assert y.numpy().tolist() == [1] * 4 + [6] * 4
        advance(x, y, -0.0)
        assert np.signbit(-y.numpy()).all()
    assert counts(advance) == (10, 5, 5)


def test_what_is_read_from_outside_is_an_input(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = 1.0
    settings = types.ModuleType("settings")
    settings.dt = 10.0  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "SETTINGS", settings)
    monkeypatch.setitem(globals(), "BY", [100.0])

    @kj.graph
    def advance(x: Any, y: Any) -> None:
        step[x.size](x, y, local + helper())

    x, y = device.zeros(4), device.zeros(4)

    def run() -> float:
        values = set()
        for _ in range(3):
            advance(x, y)
            values.add(float(y.numpy()[0]))
        (found,) = values
        return found

    assert run() == 111
    local = 2.0
    assert run() == 112
    settings.dt = 20.0  # type: ignore[attr-defined]
    assert run() == 122
    BY[0] = 200.0
    assert run() == 222
    BY.append(1000.0)
    assert run() == 1222
    assert counts(advance) == (10, 5, 5)


SETTINGS: Any = None
BY: list[float] = []


def helper() -> float:
    return float(SETTINGS.dt) + sum(BY)


def test_methods_see_the_state_of_their_instance(device: Device) -> None:
    class Slotted:
        __slots__ = ("scale",)

    @dataclass
    class Solver:
        x: Any
        y: Any
        dt: float
        more: Any

        @kj.graph
        def advance(self, n: int) -> None:
            for _ in range(n):
                step[self.x.size](self.x, self.y, self.dt * self.more.scale)
                self.swap()

        def swap(self) -> None:
            device.copy(self.y, self.x)

    more = Slotted()
    more.scale = 1.0  # type: ignore[attr-defined]
    first = Solver(device.zeros(4), device.zeros(4), 1.0, more)
    second = Solver(device.zeros(4), device.zeros(4), 3.0, more)
    for _ in range(3):
        first.advance(2)
        second.advance(1)
    assert (first.x.numpy() == 6).all()
    assert (second.x.numpy() == 9).all()
    first.dt = 0.5
    for _ in range(3):
        first.advance(2)
    assert (first.x.numpy() == 9).all()
    more.scale = 10.0  # type: ignore[attr-defined]
    first.advance(2)
    assert (first.x.numpy() == 19).all()
    assert counts(Solver.advance) == (7, 3, 3)


SCALE = 2.0


@kj.jit
def scaled(x: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = x[i] * SCALE


def test_a_graph_whose_kernel_reads_what_changed_is_captured_again(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kj.graph
    def double(x: Any) -> None:
        scaled[x.size](x)

    x = device.full(3, 1.0)
    for _ in range(3):
        double(x)
    assert (x.numpy() == 8).all()
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    for _ in range(3):
        double(x)
    assert (x.numpy() == 1).all()
    assert counts(double) == (4, 2, 2)
    assert double.graph_info()["recaptured"] == 1


def thrice(function: Any, *args: Any) -> None:
    for _ in range(3):
        function(*args)


def refused(function: Any, *args: Any, match: str) -> None:
    """A function runs as it is written, and says once why it is not replayed."""
    with pytest.warns(kj.PerformanceWarning, match=match) as caught:
        thrice(function, *args)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    info = function.graph_info()
    assert info["replayed"] == info["captured"] == 0
    assert info["eager"] == 3
    assert isinstance(info["refused"], str)


def test_a_function_that_reads_results_says_where(device: Device) -> None:
    @kj.graph
    def converge(x: Any, y: Any) -> None:
        while x.numpy()[0] < 3:
            step[x.size](x, y, 1.0)
            step[x.size](y, x, 1.0)

    x, y = device.zeros(4), device.zeros(4)
    refused(converge, x, y, match=r"an array is read(.|\n)*x.numpy\(\)(.|\n)*mend")
    assert (x.numpy() == 4).all()


def test_functions_that_no_graph_can_hold_run_as_they_are_written(device: Device) -> None:
    x, y = device.zeros(4), device.zeros(4)

    @kj.graph
    def makes(x: Any) -> Any:
        out = device.zeros(4)
        step[4](x, out, 1.0)
        return out

    @kj.graph
    def waits(x: Any, y: Any) -> None:
        step[4](x, y, 1.0)
        device.synchronize()

    @kj.graph
    def uploads(x: Any, y: Any) -> None:
        x.write(np.zeros(4, np.float32))
        step[4](x, y, 1.0)

    @kj.graph
    def passes_numpy() -> None:
        step[4](np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0)

    @kj.graph
    def gives(x: Any, y: Any) -> list[int]:
        step[4](x, y, 1.0)
        return [1]

    @kj.graph
    def launches_nothing(x: Any) -> None:
        del x

    @kj.graph
    def captures(x: Any, y: Any) -> None:
        with device.capture() as graph:
            step[4](x, y, 1.0)
        graph.launch()

    refused(makes, x, match="an array is made")
    refused(waits, x, y, match="the device is waited for")
    refused(uploads, x, y, match="values of the host are written")
    refused(passes_numpy, match="x got a NumPy array")
    refused(gives, x, y, match="it returns a list")
    refused(launches_nothing, x, match="launches on 0 devices")
    refused(captures, x, y, match="a graph is captured")
    assert (y.numpy() == 1).all()


def test_inputs_that_cannot_be_seen_say_which(device: Device) -> None:
    @kj.graph
    def noisy(x: Any, y: Any, source: Any) -> None:
        step[4](x, y, 1.0)

    @kj.graph
    def host(x: Any, y: Any) -> None:
        step[4](x, y, 1.0)

    x, y = device.zeros(4), device.zeros(4)
    refused(noisy, x, y, np.random.default_rng(), match="source is a Generator, whose state")
    refused(host, np.zeros(4, np.float32), np.zeros(4, np.float32), match="x is a NumPy array")


def test_a_function_of_something_unseen_is_found_out(device: Device) -> None:
    """tinygrad/tinygrad#14044: no number is frozen silently."""
    x, y = device.zeros(4), device.zeros(4)
    ticks = itertools.count()

    @kj.graph
    def timed(x: Any, y: Any) -> None:
        step[4](x, y, time.perf_counter())

    @kj.graph
    def longer(x: Any, y: Any) -> None:
        for _ in range(gc.get_threshold()[0] - threshold + 1):
            step[4](x, y, 1.0)
        gc.set_threshold(gc.get_threshold()[0] + 1, *rest)

    @kj.graph
    def numbered(x: Any, y: Any) -> None:
        step[4](x, y, float(next(ticks)))

    refused(timed, x, y, match=r"kernel step\) got the numbers(.|\n)*though its inputs were the")
    threshold, *rest = before = gc.get_threshold()
    try:
        refused(longer, x, y, match="launched 1 kernels in one call and 2 in the next")
    finally:
        gc.set_threshold(*before)
    refused(numbered, x, y, match="ticks is a count, whose state cannot be seen")


def test_inputs_that_always_change_are_warned_of(device: Device) -> None:
    @kj.graph
    def advance(x: Any, y: Any, dt: float) -> None:
        step[x.size](x, y, dt)

    x, y = device.zeros(4), device.zeros(4)

    def run() -> None:
        for k in range(40):
            advance(x, y, float(k))
            assert (y.numpy() == k).all()

    with pytest.warns(kj.PerformanceWarning, match="what differs most is argument dt") as caught:
        run()
    assert len(caught) == 1
    assert "graph.param" in str(caught[0].message)


def test_graph_functions_in_captures_and_in_each_other_are_parts(device: Device) -> None:
    amount = 1.0

    @kj.graph
    def inner(x: Any, y: Any) -> None:
        step[x.size](x, y, amount)
        step[x.size](y, x, amount)

    @kj.graph
    def outer(x: Any, y: Any) -> None:
        inner(x, y)
        inner(x, y)

    x, y = device.zeros(4), device.zeros(4)
    with device.capture() as graph:
        inner(x, y)
    assert not x.numpy().any()
    graph.launch()
    for _ in range(4):
        outer(x, y)
    assert (x.numpy() == 2 + 16).all()
    assert counts(outer) == (2, 1, 2)
    amount = 2.0
    outer(x, y)
    assert (x.numpy() == 18 + 8).all()


def test_an_exception_is_raised_and_forgotten(device: Device) -> None:
    @kj.graph
    def risky(x: Any, y: Any, n: float) -> None:
        step[4](x, y, math.sqrt(n))

    x, y = device.zeros(4), device.zeros(4)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"math domain|nonnegative"):
            risky(x, y, -1.0)
    step[4](x, y, 9.0)
    assert (y.numpy() == 9).all()
    for _ in range(3):
        risky(x, y, 4.0)
    assert (y.numpy() == 2).all()
    assert risky.graph_info()["replayed"] == 1


def test_threads_may_call_one_function(device: Device) -> None:
    @kj.graph
    def advance(x: Any, y: Any) -> None:
        step[x.size](x, y, 1.0)
        step[x.size](y, x, 1.0)

    arrays = [(device.zeros(8), device.zeros(8)) for _ in range(4)]

    def work(x: Any, y: Any) -> None:
        for _ in range(10):
            advance(x, y)

    threads = [threading.Thread(target=work, args=pair) for pair in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((x.numpy() == 20).all() for x, _ in arrays)
    assert counts(advance) == (8, 4, 32)


def test_only_functions_are_decorated() -> None:
    with pytest.raises(kj.ArgumentTypeError, match="applied to a Kernel"):
        kj.graph(step)
