"""The examples run on every device, and type checkers accept them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import khaljit as kj
from tests.examples import EXAMPLES, load

ROOT = Path(__file__).resolve().parent.parent
SLOW = ("mandelbrot", "path_tracer", "elliptic_curve")  # `test_kernels.py` runs less of them


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kj.current_device().kind == "interpreter" and name in SLOW:
        pytest.skip("the interpreter takes minutes for so much")
    monkeypatch.chdir(tmp_path)
    load(name).main()


def test_mypy_accepts_the_examples_in_strict_mode() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_the_examples() -> None:
    pyright = shutil.which("pyright", path=Path(sys.executable).parent)
    if pyright is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [pyright, "examples"], cwd=ROOT, capture_output=True, text=True, check=False
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
