"""Whole processes, from spawn to first result, with empty caches and with full ones.

What Python itself compiles of the sources is there in both cases, as after an installation. As a
table, and in turns: ``python -m benchmarks.starting``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.starting.processes import BARE, Start, environment, is_installed, start
from benchmarks.starting.program import IMPLEMENTATIONS, PROGRAMS

ROUNDS: Final = 5
HEAVY: Final = ("llvmlite", "numba", "scipy", "wgpu", "cuda")

implementations = pytest.mark.parametrize(
    "implementation",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not is_installed(name), reason=f"{name} is not installed"),
        )
        for name in (BARE, *IMPLEMENTATIONS)
    ],
)


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes keep compiled sources, each process's the next one's."""
    return tmp_path_factory.mktemp("bytecode")


@implementations
@pytest.mark.parametrize("program", PROGRAMS)
def test_cold_start(
    program: str,
    implementation: str,
    benchmark: BenchmarkFixture,
    bytecode: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    benchmark.group = f"cold start, {program}"

    def fresh() -> tuple[tuple[str, str, Mapping[str, str]], dict[str, object]]:
        caches = tmp_path_factory.mktemp("caches")
        return (implementation, program, environment(bytecode, caches)), {}

    start(*fresh()[0])  # for the compiled sources
    rounds: Any = benchmark.pedantic  # untyped
    rounds(start, setup=fresh, rounds=ROUNDS)


@implementations
@pytest.mark.parametrize("program", PROGRAMS)
def test_warm_start(
    program: str, implementation: str, benchmark: BenchmarkFixture, bytecode: Path, tmp_path: Path
) -> None:
    benchmark.group = f"warm start, {program}"
    seen = environment(bytecode, tmp_path)
    for _ in range(2):
        start(implementation, program, seen)
    found: list[Start] = []
    rounds: Any = benchmark.pedantic  # untyped
    rounds(lambda: found.append(start(implementation, program, seen)), rounds=ROUNDS)
    benchmark.extra_info["imports, ms"] = round(min(one.imports for one in found), 1)
    benchmark.extra_info["after imports, ms"] = round(min(one.first for one in found), 1)
    benchmark.extra_info["modules"] = len(found[0].modules)
    if implementation == "khaljit":
        heavy = [name for name in HEAVY if name in found[0].modules]
        assert not heavy, f"a warm start loads {heavy}"
