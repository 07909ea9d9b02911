"""What all tests share: the columns of the behaviour matrix, a cache of their own, and a count of
what was skipped."""

from __future__ import annotations

import importlib
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.backends.python.device import Stepped
from khaljit.tracer.ir import Trace, effects, values
from khaljit.tracer.ops import MATH, Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.record import Recording, record
from khaljit.tracer.text import print_trace
from khaljit.tracer.verify import verify

# Devices that must be there: CI fails where one of these columns would be skipped.
REQUIRED = os.environ.get("KHALJIT_TEST_REQUIRE", "").split()
COLUMNS = ("interpreter", "python", "cpu", "webgpu", "cuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither see nor fill the user's cache; within a run they share one."""
    before = os.environ.get("KHALJIT_CACHE_DIR")
    folder: Path = tmp_path_factory.getbasetemp().parent / "khaljit-cache"
    os.environ["KHALJIT_CACHE_DIR"] = str(folder)
    yield
    if before is None:
        del os.environ["KHALJIT_CACHE_DIR"]
    else:
        os.environ["KHALJIT_CACHE_DIR"] = before


@pytest.fixture
def no_cache_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment says how or where to cache."""
    for name in [one for one in os.environ if one.startswith("KHALJIT_CACHE")]:
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test's own cache may be made."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True, scope="session")
def _recordings_keep_the_laws() -> Iterator[None]:
    """Every trace that a test records keeps the verifier's laws, and its text reads back."""

    def checked(*args: Any, **kwargs: Any) -> Recording:
        recording = record(*args, **kwargs)
        verify(recording.trace)
        text = print_trace(recording.trace)
        assert print_trace(parse(text)) == text
        return recording

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("khaljit.jit"), "record", checked)
        yield


# Operations that a test may ask of the python device, which takes some 20 us for each.
MOST_STEPS = 40_000
STEPS = dict.fromkeys(MATH, 60)  # an elementary function's, about
TRIPS = 8  # through loops, of which nobody knows


@pytest.fixture(autouse=True, scope="session")
def _the_python_device_skips_long_tests() -> Iterator[None]:
    """What would take it long is skipped there, and so counted."""
    launch = Stepped.launch

    def limited(kernel: Stepped, operands: Any, numbers: Any, groups: Any) -> None:
        _expect_few_steps(kernel.trace, groups)
        launch(kernel, operands, numbers, groups)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepped, "launch", limited)
        yield


def _expect_few_steps(trace: Trace, groups: Any) -> None:
    if not isinstance(groups, tuple):
        return
    per_invocation = sum(STEPS.get(one.op, 1) for one in values(trace.body))
    if any(effect.op is Op.LOOP for effect in effects(trace.body)):
        per_invocation *= TRIPS
    steps = math.prod(groups) * math.prod(trace.workgroup or ()) * per_invocation
    if steps > MOST_STEPS:
        pytest.skip("the python device would take long")


@pytest.fixture(params=COLUMNS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each device in turn, as the current one."""
    try:
        found = kj.device(request.param)
    except kj.DeviceError as error:
        if request.param in REQUIRED:
            raise
        pytest.skip(f"no {request.param} device: {error.message}")
    with kj.use(found) as current:
        yield current


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh random numbers; the seed is printed when a test fails."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests could not run, by reason."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        longrepr = report.longrepr
        reasons[str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)] += 1
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
