"""The examples run on every device, and type checkers accept them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import khaljit as kj

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kj.current_device().kind == "interpreter" and path.stem == "mandelbrot":
        pytest.skip("the interpreter takes minutes for a picture of this size")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


def test_mypy_accepts_the_examples_in_strict_mode() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


WRONG = """
import numpy as np
import khaljit as kj

@kj.jit
def add(a: kj.Array1[kj.f32], n: kj.i32) -> None:
    a[kj.global_id(0)] += n

a = np.zeros(4, np.float32)
add[4](a, 1)
add[4](a)
add[4](a, 1, 2)
add[4](a, "one")
"""


def test_mypy_refuses_calls_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 3, done.stdout + done.stderr
    assert "argument" in errors[0]
    assert "Too many arguments" in errors[1]
    assert 'incompatible type "str"' in errors[2]
