"""Calls beside a longer one, and what compilations use them for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import khaljit as kj
from khaljit import compiler
from khaljit.aside import Aside
from khaljit.backends.cuda.target import Cuda
from khaljit.cache.errors import CacheWarning
from khaljit.cache.store import Store
from khaljit.cache.writer import Index, Writer
from khaljit.devices import target
from khaljit.tracer.passes.contract import contract


@kj.jit
def scale(x: kj.Array1[kj.f32], a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] *= a


def _here() -> int:
    return threading.get_ident()


def test_a_call_that_was_started_is_made_in_another_thread() -> None:
    go = threading.Event()

    def waits() -> int:
        assert go.wait(60)
        return _here()

    aside = Aside(waits)
    assert aside.is_done()
    aside.start()
    aside.start()
    assert not aside.is_done()
    assert not aside.is_done(0.01)
    go.set()
    assert aside.is_done(60)
    assert aside.result() != _here()
    assert aside.is_done()
    assert Aside(_here).result() == _here()


def _fails() -> int:
    raise OSError("no room")


@pytest.mark.parametrize("started", [True, False])
def test_what_a_call_raises_is_raised_where_its_result_is_asked_for(started: bool) -> None:
    aside = Aside(_fails)
    if started:
        aside.start()
    with pytest.raises(OSError, match="no room"):
        aside.result()


def test_where_no_thread_is_to_be_had_the_call_is_made_by_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", none)
    aside = Aside(_here)
    aside.start()
    assert aside.result() == _here()


@pytest.mark.parametrize("name", ["cpu:x86-64-v3-linux", "cuda:sm_90"])
def test_targets_with_an_assembler_say_when_it_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = target(name)
    said: list[str] = []

    def assemble(text: str, *_: object) -> object:
        said.append("assembles")
        return (b"code", None) if isinstance(chosen, Cuda) else b"code"

    module = "backends.cuda.assemble" if isinstance(chosen, Cuda) else "codegen.llvm.assemble"
    monkeypatch.setattr(f"khaljit.{module}.assemble", assemble)
    trace = scale.trace("f32[:], f32")
    chosen.compile(contract(trace), lambda: said.append("emitted"))
    assert said == ["emitted", "assembles"]


def test_an_index_that_cannot_be_opened_ahead_is_told_by_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    store = Store.open(folder)
    made = target("null").compile(contract(scale.trace("f32[:], f32")))
    key = compiler.canonical_key(scale.trace("f32[:], f32"), target("interpreter"))[1]
    assert store.files is not None
    Path(store.files.root).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(store.files.root).write_text("no folder")
    tried: list[Writer] = []
    open_ = Writer._open

    def counted(writer: Writer) -> Index:
        tried.append(writer)
        return open_(writer)

    monkeypatch.setattr(Writer, "_open", counted)
    store.open_ahead()  # no warning, which would be an error here
    with pytest.warns(CacheWarning, match="cannot be written to"):
        store.put(key, made)
    store.open_ahead()
    assert len(tried) == 1, "what went wrong ahead is not tried again"
    assert store.get(key, lambda name: None) == made
