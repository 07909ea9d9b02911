"""Kernels whose source is in no file: ``python -c``, scripts on standard input, the prompt."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import khaljit as kj

SCRIPT = """\
import numpy as np
import khaljit as kj

@kj.jit
def kernel(a):
    i = kj.global_id(0)
    if i < a.size and a[i] > 1:
        a[i] = 7
    for k in range(a.size):
        if i == 0:
            a[0] += 1

a = np.arange(4, dtype=np.float32)
kernel[1](a)
kernel[4](a)
kj.jit(lambda a: a.__setitem__(1, 5 if a[0] > 2 else 6))[1](a)
print(a)

@kj.jit
def wrong(a):
    a[0] = a.length

try:
    wrong[1](a)
except kj.TraceError as error:
    print(error.at.excerpt())
"""
PRINTED = "[11.  5.  7.  7.]\n    a[0] = a.length\n           ^^^^^^^^\n"
# Typed one after the other: the same name, the same first line.
TYPED = [
    "import khaljit as kj",
    "@kj.jit",
    "def kernel(a):",
    "    if a[0] > 1:",
    "        a[0] = 2",
    "@kj.jit",
    "def kernel(a):",
    "    if a[0] > 1:",
    "        a[0] = 3",
    "kernel = kernel",
]


def test_a_kernel_of_the_command_line_has_its_source() -> None:
    command = [sys.executable, "-c", SCRIPT, "def kernel(): pass"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == PRINTED


def test_a_kernel_of_a_script_on_standard_input_has_its_source(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with path.open() as script:
        done = subprocess.run([sys.executable], stdin=script, capture_output=True, text=True)
    assert done.stdout == PRINTED, done.stderr


def test_a_script_in_a_pipe_is_gone_and_the_error_says_so() -> None:
    done = subprocess.run([sys.executable, "-"], input=SCRIPT, capture_output=True, text=True)
    assert "khaljit cannot read the source of <stdin>" in done.stderr


def _typed(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """A prompt with a history."""
    found = SimpleNamespace(
        get_current_history_length=lambda: len(lines),
        get_history_item=lambda place: lines[place - 1],
    )
    monkeypatch.setitem(sys.modules, "readline", found)
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))


def _defined(lines: list[str]) -> Any:
    scope: dict[str, Any] = {"kj": kj}
    exec(compile("\n".join(lines), "<stdin>", "single"), scope)
    return scope["kernel"]


@pytest.mark.parametrize(("begin", "expected"), [(1, 2.0), (5, 3.0)])
def test_what_was_typed_at_the_prompt_is_found(
    begin: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _typed(monkeypatch, TYPED)
    kernel = _defined(TYPED[begin : begin + 4])
    a = np.array([9], np.float32)
    kernel[1](a)
    assert a[0] == expected


def test_a_lambda_that_was_typed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"kernel = kj.jit(lambda a: a.__setitem__(0, {k} if a[0] > 1 else 0))" for k in (5, 6)]
    _typed(monkeypatch, lines)
    a = np.array([9], np.float32)
    _defined(lines[:1])[1](a)
    assert a[0] == 5


def test_what_was_typed_and_is_another_function_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _typed(monkeypatch, TYPED)
    kernel = _defined([*TYPED[1:4], "        a[0] = 4"])
    with pytest.raises(kj.TraceError, match="truth of a run-time value") as caught:
        kernel[1](np.array([9], np.float32))
    assert "cannot read the source of <stdin>" in (caught.value.mend or "")


def test_functions_inside_a_kernel_have_the_names_that_they_were_given() -> None:
    def again(x: Any) -> Any:
        def inner(x: Any) -> Any:
            return inner(x)

        return inner(x)

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = again(a[0])

    with pytest.raises(kj.TraceError, match=r"again\.<locals>\.inner calls itself") as caught:
        kernel[1](np.zeros(1, np.float32))
    assert "_kj" not in str(caught.value)
