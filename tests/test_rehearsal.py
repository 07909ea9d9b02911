"""A kernel is recorded for practice while the driver of a GPU is waited for."""

from __future__ import annotations

import threading
from importlib import import_module

import pytest

import khaljit as kj
from khaljit import compiler, rehearsal
from khaljit.backends.cuda import driver
from tests.fake_cuda import FakeDriver


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(import_module("khaljit.devices"), "_OPEN", {})
    rehearsal.rehearse.cache_clear()
    return found


@pytest.mark.usefixtures("fake")
def test_opening_a_gpu_rehearses_and_neither_compiles_nor_looks_anything_up() -> None:
    counts, info = dict(compiler.COUNTS), kj.cache_info()
    kj.device("cuda")
    assert rehearsal.rehearse.cache_info().currsize == 1
    assert not any(thread.name == "khaljit rehearsal" for thread in threading.enumerate())
    assert dict(compiler.COUNTS) == counts
    assert (kj.cache_info().hits, kj.cache_info().misses) == (info.hits, info.misses)
    key = rehearsal.rehearse("cuda:sm_90")
    assert rehearsal.rehearse("cuda:sm_80") != key
    rehearsal.rehearse.cache_clear()
    assert rehearsal.rehearse("cuda:sm_90") == key


@pytest.mark.usefixtures("fake")
def test_a_rehearsal_that_fails_is_told_in_the_log_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(name: str) -> str:
        raise RuntimeError(f"not for {name}")

    monkeypatch.setattr(rehearsal, "rehearse", fails)
    monkeypatch.setenv("KHALJIT_LOG", "compile")
    kj.device("cuda")
    assert "the rehearsal for cuda:sm_90 failed: not for cuda:sm_90" in capsys.readouterr().err


def test_where_no_driver_is_nothing_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise kj.DeviceError("no driver")

    monkeypatch.setattr(driver, "library", missing)
    monkeypatch.setattr(import_module("khaljit.devices"), "_OPEN", {})
    rehearsal.rehearse.cache_clear()
    with pytest.raises(kj.DeviceError, match="no driver"):
        kj.device("cuda")
    assert rehearsal.rehearse.cache_info().currsize == 0
