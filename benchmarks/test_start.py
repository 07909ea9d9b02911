"""Whole processes, from spawn to first result, with empty caches and with full ones.

What Python itself compiles of the sources is there in both cases, as after an installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.start import IMPLEMENTATIONS, PROGRAMS

ROOT: Final = Path(__file__).resolve().parent.parent
ROUNDS: Final = 5
HEAVY: Final = ("llvmlite", "numba", "scipy", "wgpu", "cuda")


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes keep compiled sources, each process's the next one's."""
    return tmp_path_factory.mktemp("bytecode")


def _environment(bytecode: Path, caches: Path) -> Mapping[str, str]:
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "KHALJIT_CACHE_DIR": str(caches / "khaljit"),
        "NUMBA_CACHE_DIR": str(caches / "numba"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _first_result(implementation: str, program: str, environment: Mapping[str, str]) -> set[str]:
    """Start a process and return when its first result is there; the modules that it loaded."""
    command = [sys.executable, "-m", "benchmarks.start", implementation, program]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
    assert process.returncode == 0
    return set(line.split())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
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
        return (implementation, program, _environment(bytecode, caches)), {}

    _first_result(*fresh()[0])  # for the compiled sources
    rounds: Any = benchmark.pedantic  # untyped
    rounds(_first_result, setup=fresh, rounds=ROUNDS)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_warm_start(
    program: str, implementation: str, benchmark: BenchmarkFixture, bytecode: Path, tmp_path: Path
) -> None:
    benchmark.group = f"warm start, {program}"
    environment = _environment(bytecode, tmp_path)
    _first_result(implementation, program, environment)
    rounds: Any = benchmark.pedantic  # untyped
    loaded = rounds(_first_result, (implementation, program, environment), rounds=ROUNDS)
    benchmark.extra_info["modules"] = len(loaded)
    if implementation == "khaljit":
        heavy = [name for name in HEAVY if name in loaded]
        assert not heavy, f"a warm start loads {heavy}"
