"""The command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import khaljit as kj
from khaljit.cli import app
from khaljit.warming import load_kernel

ROOT = Path(__file__).resolve().parent.parent
KERNEL = str(ROOT / "examples" / "counter.py") + ":pick"
ARGS = "f32[:], f32, u32[:], u32[:]"

runner = CliRunner()


def test_devices_lists_every_kind() -> None:
    done = runner.invoke(app, ["devices"])
    assert done.exit_code == 0
    assert "cpu" in done.stdout
    assert "interpreter" in done.stdout


@pytest.mark.parametrize(
    ("stage", "sign"),
    [
        ("trace", "atomic add"),
        ("lowered", "kernel pick"),
        ("legal", "kernel pick"),
        ("llvm", "atomicrmw"),
        ("asm", "ret"),
    ],
)
def test_show_prints_each_stage(stage: str, sign: str) -> None:
    done = runner.invoke(app, ["show", KERNEL, "--args", ARGS, "--stage", stage])
    assert done.exit_code == 0, done.output
    assert sign in done.stdout


def test_the_version_is_the_packages() -> None:
    assert runner.invoke(app, ["--version"]).output == f"khaljit {kj.__version__}\n"
    assert f'version = "{kj.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_show_needs_no_array_and_takes_equal_shapes_and_constants() -> None:
    text = load_kernel(KERNEL).source("trace", "f32[n], f32, u32[n], u32[:]")
    assert "array picked: u32[?] contiguous aligned same_shape=0 same_view=1" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["show", "nowhere", "--args", ""], "names nothing in a module"),
        (["show", "nowhere.py:k", "--args", ""], "there is no file nowhere.py"),
        (["show", "nowhere_at_all:k", "--args", ""], "there is no module nowhere_at_all"),
        (["show", KERNEL + "s", "--args", ARGS], "has no 'picks'"),
        (["show", KERNEL, "--args", "f32"], "has 1 items"),
        (["show", KERNEL, "--args", "f32[;], f32, u32[:], u32[:]"], "is no axis"),
        (["show", KERNEL, "--args", "f31[:], f32, u32[:], u32[:]"], "is no type"),
        (["show", KERNEL, "--args", ARGS, "--stage", "sass"], "has no stage 'sass'"),
        (["show", KERNEL, "--args", ARGS, "--stage", "wgsl"], "wgsl is one of webgpu"),
        (["show", KERNEL, "--args", ARGS, "--device", "gpu"], "no kind of device called 'gpu'"),
    ],
)
def test_wrong_arguments_are_explained_without_a_traceback(args: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "khaljit", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("khaljit: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_cache_info_and_clear(tmp_path: Path) -> None:
    script = (
        "import numpy as np, sys\nsys.argv = ['x']\n"
        "import khaljit as kj\n"
        "@kj.jit\ndef f(a):\n    a[kj.global_id(0)] = 1.0\n"
        "f[1](np.zeros(1, np.float32))\nprint(f.cache_info())\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)

    def run(*command: str) -> str:
        import os

        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "KHALJIT_CACHE_DIR": str(tmp_path / "cache")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert "'compiled': 1" in run(str(path))
    assert "'compiled': 0" in run(str(path))
    assert "1" in run("-m", "khaljit", "cache", "info")
    assert run("-m", "khaljit", "cache", "clear") == "deleted 1 entries\n"
    assert "'compiled': 1" in run(str(path))


def test_demo_agrees_with_scipy_and_compiles_nothing_the_second_time(tmp_path: Path) -> None:
    import os

    def demo(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "khaljit", "demo", "--output", str(tmp_path), *options],
            env={**os.environ, "KHALJIT_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "120"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first, second = demo(), demo()
    assert "agrees with SciPy" in first
    devices = first.count("agrees with SciPy")
    assert f"{8 * devices} kernels compiled, 0 from the cache" in first
    assert len(set(re.findall(r"result (\w+)", first))) == 1  # the same picture on all
    assert f"nothing compiled: all {8 * devices} kernels came from the cache" in second
    result = [line for line in first.splitlines() if line.startswith("result ")]
    assert result == [line for line in second.splitlines() if line.startswith("result ")]
    assert (tmp_path / "cpu-sobel-magnitude.png").stat().st_size > 1000


def test_demo_says_what_to_install_for_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from khaljit.demo import run

    missing = kj.DeviceError("no driver", mend="pip install 'khaljit[cuda]'")
    monkeypatch.setattr(kj, "devices", lambda: {"cuda": missing})
    run(None, None, tmp_path, Console(width=120))
    assert "mend: pip install 'khaljit[cuda]'" in capsys.readouterr().out


def test_demo_explains_a_file_that_is_no_image(tmp_path: Path) -> None:
    path = tmp_path / "notes.png"
    path.write_text("no image")
    done = subprocess.run(
        [sys.executable, "-m", "khaljit", "demo", str(path), "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot be read as an image" in done.stderr


def test_compile_takes_a_signature_and_fills_the_cache() -> None:
    @kj.jit
    def doubled(a: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            a[i] = a[i] * 2.0

    first = doubled.compile("f32[:]")
    again = doubled.compile("f32[:]")
    assert again.cached
    assert first.key == again.key
