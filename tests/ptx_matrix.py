"""A plugin for pytest: every kernel that the interpreter runs is also made into PTX for all
architectures and assembled, many to a module; what ptxas says goes to a file.

``python -m pytest -p tests.ptx_matrix -k interpreter tests/test_matrix.py``, with the path of the
file in ``KHALJIT_TEST_REPORT``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from khaljit.backends import reference, stages
from khaljit.cache.artifact import Artifact
from khaljit.codegen.caps import row
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.codegen.ptx.emit import PtxEmitter
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.ir import Trace
from tests.ptx_tools import tool

__all__ = ["REPORT", "assembled"]

REPORT: Final = "KHALJIT_TEST_REPORT"
TOGETHER: Final = 40  # kernels in a module

_TRACES: Final[list[Trace]] = []
_HEAD: Final = ".address_size 64\n"
_NAMES: Final = re.compile(r"\b(constants|table\d+|shared_memory)\b")


def pytest_configure(config: pytest.Config) -> None:
    """Look over the interpreter's shoulder."""
    del config
    target: Any = reference.TraceTarget
    before = target.compile

    def compile_(self: Any, trace: Trace, *emitted: Any) -> Artifact:
        _TRACES.append(trace)
        found: Artifact = before(self, trace, *emitted)
        return found

    target.compile = compile_


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Assemble everything, an architecture at a time in a process of its own."""
    del session
    if REPORT not in os.environ:
        return
    with multiprocessing.get_context("fork").Pool(min(os.cpu_count() or 1, 5)) as pool:
        found = dict(zip(ARCHITECTURES, pool.map(_architecture, ARCHITECTURES), strict=True))
    Path(os.environ[REPORT]).write_text(json.dumps(found))


def _architecture(sm: str) -> dict[str, Any]:
    return assembled(_TRACES, sm)


def assembled(traces: Iterable[Trace], sm: str) -> dict[str, Any]:
    """What became of traces: how many were assembled and refused, and what is wrong with which."""
    texts, refused = [], 0
    for trace in traces:
        try:
            legal = stages.legal(trace, row(f"ptx:{sm}"))
        except CapabilityError:
            refused += 1  # what the architecture lacks
            continue
        texts.append((trace.name, PtxEmitter(sm).emit(legal).text))
    wrong: list[str] = []
    lined = [one for one in texts if ".loc " in one[1]]  # number their files by themselves
    plain = [one for one in texts if ".loc " not in one[1]]
    for start in range(0, len(plain), TOGETHER):
        wrong += _assemble(plain[start : start + TOGETHER], sm)
    for one in lined:
        wrong += _assemble([one], sm)
    return {"assembled": len(texts), "refused": refused, "wrong": wrong}


def _assemble(kernels: list[tuple[str, str]], sm: str) -> list[str]:
    """Assemble kernels as one module; what ptxas warns of, spills, and keeps in local memory."""
    heads = [text.partition(_HEAD)[0] for _, text in kernels]
    bodies = []
    for number, (_, text) in enumerate(kernels):
        body = _NAMES.sub(rf"\1_{number}", text.partition(_HEAD)[2])
        bodies.append(body.replace(".entry kernel(", f".entry kernel_{number}(", 1))
    version = max(
        re.findall(r"\.version (\d+)\.(\d+)", "".join(heads)), key=lambda v: (*map(int, v),)
    )
    text = f".version {'.'.join(version)}\n.target {sm}\n{_HEAD}" + "\n".join(bodies)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.ptx"
        source.write_text(text)
        done = subprocess.run(
            [tool("ptxas"), "-v", "-arch", sm, str(source), "-o", os.devnull],
            capture_output=True,
            text=True,
            check=False,
        )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        return [f"{kernels[0][0]} and others: {said[-2000:]}"]
    wrong = [line for line in said.splitlines() if "warning" in line.lower()]
    for number, used in re.findall(
        r"Function properties for kernel_(\d+)\n\s*(.*spill loads)", said
    ):
        name, own = kernels[int(number)]
        frame, *spilled = map(int, re.findall(r"(\d+) bytes", used))
        if any(spilled) or (frame and ".local " not in own):
            wrong.append(f"{name}: {used}")
    return wrong
