"""What the cache costs where it has everything: opening a store, finding an entry, making a key."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import khaljit as kj
from khaljit import keying
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import Key, key
from khaljit.cache.memory import Memory
from khaljit.cache.store import Store
from khaljit.generators import Sources

ENTRIES = 2000
PAYLOAD = 5000  # bytes: a kernel's machine code


def tools(name: str) -> str | None:
    return "0.50"


def numbered(number: int) -> Key:
    return key(trace=b"kernel _ workgroup=64,1,1 " * 40, number=str(number).encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("caches") / "cache"
    store = Store.open(folder)
    for number in range(ENTRIES):
        payload = random.Random(number).randbytes(PAYLOAD)
        store.put(numbered(number), Artifact(payload, {"entry": "k"}, ("llvmlite", "0.50")))
    return folder


def _measured(benchmark: BenchmarkFixture, work: Callable[[], Any]) -> None:
    benchmark.group = "cache"
    rounds: Any = benchmark.pedantic  # untyped
    rounds(work, rounds=500, warmup_rounds=20)


def test_open(benchmark: BenchmarkFixture, folder: Path) -> None:
    _measured(benchmark, lambda: Store.open(folder))


@pytest.mark.parametrize("there", [True, False], ids=["hit", "miss"])
def test_look(benchmark: BenchmarkFixture, folder: Path, there: bool) -> None:
    store = Store.open(folder)
    keys = [numbered(number if there else -1 - number) for number in range(ENTRIES)]

    def look() -> None:
        assert (store.get(keys.pop(), tools) is not None) == there

    _measured(benchmark, look)


def test_look_in_memory(benchmark: BenchmarkFixture, folder: Path) -> None:
    store, one = Store.open(folder), numbered(1)
    assert isinstance(store._memory, Memory)
    _measured(benchmark, lambda: store.get(one, tools))


@kj.jit
def saxpy(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = a * x[i] + y[i]


def test_key(benchmark: BenchmarkFixture) -> None:
    trace, target = saxpy.trace("f32[n], f32[n], f32"), kj.device("cpu").target
    _measured(benchmark, lambda: keying.key_of(trace, target))


def test_digest_of_the_generators(
    benchmark: BenchmarkFixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(folder))
    _measured(benchmark, lambda: Sources().digest)
