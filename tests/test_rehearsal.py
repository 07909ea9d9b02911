"""A first launch is practised while the driver of a GPU is waited for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import khaljit as kj
from khaljit import compiler, rehearsal
from khaljit.backends.cuda import driver
from khaljit.jit import Kernel
from tests.fake_cuda import FakeDriver

PROGRAM = """
import json, sys
import khaljit as kj
from khaljit.rehearsal import rehearse

@kj.jit
def double(x: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] += x[i]

rehearse("cuda:sm_90", "ptx")
print(json.dumps(sorted(sys.modules)))
"""


def _square(x: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] *= x[i]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver that takes as long for a context as the rehearsal does."""
    found, over = FakeDriver(), threading.Event()
    steps = rehearsal._steps

    def to_the_end(name: str, stage: str) -> Iterator[None]:
        try:
            yield from steps(name, stage)
        finally:
            over.set()

    monkeypatch.setattr(rehearsal, "_steps", to_the_end)
    retain = found.cuDevicePrimaryCtxRetain

    def waits(*args: Any) -> Any:
        assert over.wait(60)
        return retain(*args)

    monkeypatch.setattr(found, "cuDevicePrimaryCtxRetain", waits)
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(import_module("khaljit.devices"), "_OPEN", {})
    return found


@pytest.mark.usefixtures("fake")
def test_opening_a_gpu_practises_and_neither_compiles_nor_looks_anything_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(rehearsal, "_practice", _noted(launched))
    monkeypatch.setenv("KHALJIT_RECORD", "nothing/goes/here.json")
    counts, info = dict(compiler.COUNTS), kj.cache_info()
    kj.device("cuda")
    assert launched.count("launched") >= rehearsal.TIMES
    assert dict(compiler.COUNTS) == counts
    after = kj.cache_info()
    assert (after.hits, after.misses, after.entries) == (info.hits, info.misses, info.entries)


def _noted(launched: list[str]) -> Callable[..., None]:
    def practice(x: Any, y: Any, z: Any, a: Any) -> None:
        launched.append("launched")
        y[0] = a * x[0]

    return practice


@pytest.mark.usefixtures("fake")
def test_the_programs_own_kernels_are_rewritten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ahead = Kernel.rewrite_ahead

    def noting(kernel: Kernel) -> None:
        asked.append(kernel.name)
        ahead(kernel)

    monkeypatch.setattr(Kernel, "rewrite_ahead", noting)
    kernel = kj.jit(name="just made")(_square)
    kj.device("cuda")
    assert kernel.name in asked


def test_what_cannot_be_rewritten_is_told_by_its_launch() -> None:
    @kj.jit
    def wrong(x: kj.Array1[kj.f32]) -> None:
        try:
            x[0] = 1.0
        finally:
            pass

    wrong.rewrite_ahead()
    with pytest.raises(kj.TraceError, match="try"):
        wrong.trace("f32[:]")


def test_who_waits_for_the_driver_stays_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = threading.Semaphore(0)
    monkeypatch.setattr(rehearsal, "_launch", lambda arguments: launched.release())
    monkeypatch.setattr(rehearsal, "_steps", lambda name, stage: iter(()))

    def driver_call() -> str:
        assert all(launched.acquire(timeout=60) for _ in range(5))
        return "context"

    assert rehearsal.rehearsing(driver_call, "cuda:sm_90", "ptx") == "context"


def test_a_rehearsal_ends_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def steps(name: str, stage: str) -> Iterator[None]:
        for number in range(9):
            done.append(number)
            yield

    monkeypatch.setattr(rehearsal, "_steps", steps)
    rehearsal.rehearse("cuda:sm_90", "ptx", lambda: len(done) == 2)
    assert done == [0, 1]


@pytest.mark.usefixtures("fake")
def test_a_rehearsal_that_fails_is_told_in_the_log_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def practice(x: Any, y: Any, z: Any, a: Any) -> None:
        raise RuntimeError("not this one")

    monkeypatch.setattr(rehearsal, "_practice", practice)
    monkeypatch.setenv("KHALJIT_LOG", "compile")
    assert kj.device("cuda").kind == "cuda"
    assert "the rehearsal for cuda:sm_90 failed: not this one" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_what_the_driver_says_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> None:
        raise kj.DeviceError(f"no context for GPU {number}")

    monkeypatch.setattr("khaljit.backends.cuda.device.Context", fails)
    with pytest.raises(kj.DeviceError, match="no context for GPU 0"):
        kj.device("cuda")


def test_where_no_driver_is_nothing_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise kj.DeviceError("no driver")

    began: list[str] = []
    monkeypatch.setattr(rehearsal, "rehearse", lambda name, *_: began.append(name))
    monkeypatch.setattr(driver, "library", missing)
    monkeypatch.setattr(import_module("khaljit.devices"), "_OPEN", {})
    with pytest.raises(kj.DeviceError, match="no driver"):
        kj.device("cuda")
    assert not began


def test_a_compilation_is_practised_where_a_kernel_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    assert "khaljit.codegen.ptx.emit" in _modules(path)  # and the rewritten code is kept
    assert not {"khaljit.codegen.ptx.emit", "cuda.bindings.nvjitlink"} & _modules(path)
    path.write_text(PROGRAM.replace("+=", "*="))
    assert "khaljit.codegen.ptx.emit" in _modules(path)


def _modules(path: Path) -> set[str]:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))
