"""``khaljit warm``: ahead of time, for machines that are not here, past what fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import khaljit as kj
from khaljit import compiler
from khaljit.backends.base import Device
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.device import CudaDevice
from khaljit.cache.catalog import Catalog
from khaljit.cache.store import Store
from khaljit.cli import app
from khaljit.manifest import Manifest, Specialisation
from khaljit.warming import Work, _chosen, _pool, collect, load_kernel, warm
from tests.fake_cuda import FakeDriver

MODULE = '''
"""Kernels that say what is to be compiled."""
import os
import khaljit as kj

@kj.jit(signatures=["f32[:], f32", "i32[:], i32"])
def scale(a, s) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] *= s

@kj.jit
def undeclared(a) -> None:
    a[0] = 1

class Filters:
    @staticmethod
    @kj.jit(workgroup=32, signatures=["i32[:]"])
    def clear(a) -> None:
        a[kj.global_id(0)] = 0
'''
FAILING = """
import os
import khaljit as kj

@kj.jit(signatures=["f32[:]", "f33[:]"])
def fine(a) -> None:
    a[0] = 1.0

@kj.jit(signatures=["f32[:]"])
def wrong(a) -> None:
    a[0] = "text"

@kj.jit(signatures=["f32[:]"])
def deadly(a) -> None:
    os._exit(9)

@kj.jit(signatures=["f32[:]"])
def raises(a) -> None:
    a[0] = {}["x"]

@kj.jit(signatures=["f32[n], f32[n]"])
def also_fine(a, b) -> None:
    a[0] = b[0]
"""
TARGETS = ("cpu:native", "cpu:x86-64-v2", "cuda:sm_90", "webgpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, with a cache of its own."""
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    before, loaded = list(sys.path), set(sys.modules)
    compiler.store.cache_clear()
    yield tmp_path
    compiler.store.cache_clear()
    sys.path[:] = before
    for name in set(sys.modules) - loaded:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(*command: str, expect: int = 0) -> str:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == expect, done.output
    return done.stdout


def test_a_module_is_warmed_for_machines_that_are_not_here(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE)
    options = [word for target in TARGETS for word in ("--target", target)]
    lines = run("warm", "kernels.py", *options).splitlines()
    assert lines[0] == "cpu:x86-64-v2-linux: it has no fused multiply-add, which is emulated, and slow"  # fmt: skip  # noqa: E501
    assert len(lines) == 1 + 12 + 1
    assert all("] compiled" in line for line in lines[1:-1])
    assert "/12] compiled" in lines[1]
    assert lines[-1].startswith("3 specialisations: 12 compiled; ")
    entries = list(Catalog(Store.open()).entries())
    assert {(one.about["kernel"], one.about["signature"]) for one in entries} == {
        ("kernels.py:scale", "f32[:], f32"),
        ("kernels.py:scale", "i32[:], i32"),
        ("kernels.py:Filters.clear", "i32[:]"),
    }
    report = json.loads(run("warm", "kernels.py", *options, "--json"))
    assert {name: report[name] for name in ("compiled", "there", "failed", "missing")} == {
        "compiled": 0,
        "there": 12,
        "failed": 0,
        "missing": 0,
    }


def test_a_program_that_runs_after_its_kernels_were_warmed_compiles_nothing(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE)
    run("warm", "kernels")  # as a module, and for this machine
    program = (
        "import numpy as np, kernels, khaljit.compiler\n"
        "for kind in (np.float32, np.int32):\n"
        "    kernels.scale[8](np.ones(8, kind), kind(2))\n"
        "kernels.Filters.clear[8](np.ones(8, np.int32))\n"
        "print(dict(khaljit.compiler.COUNTS))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'cached': 3}\n"


def test_a_device_finds_what_was_warmed_for_its_text(folder: Path, device: Device) -> None:
    """So one machine can compile for another's GPU, given what `khaljit devices` says of it."""
    (folder / "kernels.py").write_text(MODULE)
    if device.kind == "interpreter":
        pytest.skip("it has no code to find")
    run("warm", "kernels.py", "--target", device.target.text)
    program = (
        "import numpy as np, kernels, khaljit as kj, khaljit.compiler\n"
        f"device = kj.device({device.kind!r})\n"
        "x = device.array(np.ones(8, np.float32))\n"
        "kernels.scale[8](x, 2.0)\n"
        "assert (x.numpy() == 2).all()\n"
        "print(dict(khaljit.compiler.COUNTS))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'cached': 1}\n"


def test_every_program_that_launches_on_a_gpu_need_is_recorded_and_warmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA takes another program where the GPU reads the grid, and WebGPU one for views."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setenv("KHALJIT_CUDA_KEEP_PTX", "1")  # which the workers keep, too
    (folder / "gpu_kernels.py").write_text(
        "import khaljit as kj\n\n@kj.jit(workgroup=32)\ndef count(x: kj.Array1[kj.i32]) -> None:\n"
        "    kj.atomic_add(x, kj.global_id(0), 1)\n"
    )
    kernel = load_kernel("gpu_kernels.py:count")

    def run_it() -> int:
        """Launch on a new device; gives how many programs were compiled."""
        before = compiler.COUNTS["compiled"]
        device = CudaDevice(0)
        x = device.zeros(64, kj.i32)
        kernel[64](x)
        kernel[kj.Indirect(device.array(np.array([2, 1, 1], np.uint32)))](x)
        assert (x.numpy() == 2).all()
        return compiler.COUNTS["compiled"] - before

    monkeypatch.setenv("KHALJIT_RECORD", "manifest.json")
    assert run_it() == 3
    monkeypatch.delenv("KHALJIT_RECORD")
    assert Manifest.read("manifest.json").targets == {
        Specialisation.of("gpu_kernels.py:count", "i32[:]", {"workgroup": [32, 1, 1]}): {
            "cuda:sm_90",
            "cuda:sm_90/resident",
        },
        Specialisation("khaljit.backends.strided:_fill1", "i32[:], i32"): {"cuda:sm_90"},
    }
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(folder / "other"))
    compiler.store.cache_clear()
    assert "3 compiled" in run("warm", "manifest.json")
    assert run_it() == 0


def test_it_goes_on_past_failures_and_lists_them(folder: Path) -> None:
    (folder / "failing.py").write_text(FAILING)
    output = run("warm", "failing.py", "--workers", "2", expect=1)
    listed = output[output.index("\n\n") :]
    assert "failed: failing.py:deadly(f32[:]) for cpu:" in listed
    assert "the process that compiled it died" in listed
    assert "'f33' in 'f33[:]' is no type" in listed
    assert "failing.py:wrong(f32[:])" in listed
    assert "KeyError: 'x'" in listed
    assert "6 specialisations: 2 compiled, 4 failed" in listed
    again = run("warm", "failing.py", expect=1)
    assert "6 specialisations: 2 there, 4 failed" in again


def test_warming_that_was_broken_off_goes_on_where_it_was(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE)
    work = collect(["kernels.py"], ["cpu:native", "cpu:x86-64-v2", "cuda:ptx"])
    outcomes = warm(work, 1)
    assert next(outcomes).state == "compiled"
    outcomes.close()  # type: ignore[attr-defined]
    states = [one.state for one in warm(work, 1)]
    assert set(states) == {"there", "compiled"}
    assert [one.state for one in warm(work, 1)] == ["there"] * 9


def test_check_compiles_nothing_and_says_what_is_missing(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE)
    report = json.loads(run("warm", "kernels.py", "--check", "--json", expect=1))
    assert (report["missing"], report["there"]) == (3, 0)
    assert not list(Catalog(Store.open()).entries())
    manifest = Manifest()
    scale = Specialisation.of("kernels.py:scale", "f32[:], f32", {})
    manifest.add(scale, "cuda:sm_90")
    manifest.write("manifest.json")
    run("warm", "manifest.json")
    assert "1 specialisations: 1 there" in run("warm", "manifest.json", "--check")
    manifest.add(scale, "cuda:sm_80")
    manifest.write("manifest.json")
    output = run("warm", "manifest.json", "--check", expect=1)
    assert "missing: kernels.py:scale(f32[:], f32) for cuda:sm_80" in output


def test_a_manifest_keeps_the_options_that_were_recorded(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE)
    manifest = Manifest()
    for options in ({}, {"workgroup": [64, 1, 1]}, {"fastmath": True}, {"salt": "x"}):
        manifest.add(Specialisation.of("kernels.py:scale", "f32[:], f32", options), "cuda:ptx")
    manifest.write("manifest.json")
    assert "4 specialisations: 4 compiled" in run("warm", "manifest.json")
    assert len({one.key for one in Catalog(Store.open()).entries()}) == 4


def test_no_device_and_no_driver_is_touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes in which the drivers cannot even be imported do all of it."""
    (folder / "kernels.py").write_text(MODULE)
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('wgpu', 'cuda.bindings.driver', 'cuda.core'):\n"
        "            raise RuntimeError(f'{name} is imported')\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", paths)
    blocked = subprocess.run([sys.executable, "-c", "import wgpu"], capture_output=True, text=True)
    assert "wgpu is imported" in blocked.stderr
    names = (
        *TARGETS,
        "cpu:x86-64-v4",
        "cpu:aarch64-darwin",
        "cuda:sm_75",
        "cuda:sm_120",
        "cuda:ptx",
    )
    options = [word for target in names for word in ("--target", target)]
    done = subprocess.run(
        [sys.executable, "-m", "khaljit", "warm", "kernels.py", "--json", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)["problems"] == []


def test_workers_are_spawned() -> None:
    with _pool(1) as pool:
        assert pool._mp_context is get_context("spawn")


def test_warming_records_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "kernels.py").write_text(MODULE)
    monkeypatch.setenv("KHALJIT_RECORD", str(folder / "manifest.json"))
    run("warm", "kernels.py")
    assert not (folder / "manifest.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals to process groups")
def test_an_interrupt_ends_it_without_a_word_from_its_workers(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE)
    targets = ("cpu:native", "cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3", "cuda:sm_90", "webgpu")
    command = ["warm", "kernels.py", *(word for one in targets for word in ("--target", one))]
    with subprocess.Popen(
        [sys.executable, "-m", "khaljit", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        while "compiled" not in process.stdout.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" not in errors


def test_what_a_module_prints_stays_out_of_the_output(folder: Path) -> None:
    (folder / "kernels.py").write_text(MODULE + "\nprint('loaded')\n")
    done = subprocess.run(
        [sys.executable, "-m", "khaljit", "warm", "kernels.py", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["compiled"] == 3
    assert "loaded" in done.stderr


def test_a_package_is_all_its_modules(folder: Path) -> None:
    inner = folder / "kernel_package" / "inner"
    inner.mkdir(parents=True)
    (folder / "kernel_package" / "__init__.py").write_text(
        "from kernel_package.inner.one import scale\n"
    )
    (inner / "__init__.py").write_text("")
    (inner / "one.py").write_text(MODULE)
    (inner / "__main__.py").write_text("raise SystemExit('run')")
    work = collect(["kernel_package"], ["cpu:x86-64-v3-linux"])
    assert [str(one.specialisation) for one in work] == [
        'kernel_package.inner.one:Filters.clear(i32[:]) {"workgroup": [32, 1, 1]}',
        "kernel_package:scale(f32[:], f32)",
        "kernel_package:scale(i32[:], i32)",
    ]
    assert {one.targets for one in work} == {("cpu:x86-64-v3-linux",)}


def test_variants_that_were_recorded_are_made_for_other_targets_of_their_kind() -> None:
    recorded = {"cuda:sm_90", "cuda:sm_90/folded", "webgpu:f16/offset", "cpu:x86-64-v4-linux"}
    assert sorted(_chosen(recorded, [])) == sorted(recorded)
    assert _chosen(recorded, ["cuda:sm_80"]) == ["cuda:sm_80", "cuda:sm_80/folded"]
    assert _chosen(recorded, ["webgpu"]) == ["webgpu", "webgpu:/offset"]
    assert _chosen(recorded, ["cpu:aarch64-linux"]) == ["cpu:aarch64-linux"]
    assert _chosen(recorded, ["cuda:ptx/resident"]) == ["cuda:ptx/resident"]


def test_a_cache_that_cannot_be_written_to_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else warming would seem to succeed, and nothing would be warm."""
    (folder / "kernels.py").write_text(MODULE)
    (folder / "file").write_text("")
    work = collect(["kernels.py"], ["cpu:native"])
    assert compiler.store().directory is not None  # before the place is gone
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(folder / "file" / "cache"))
    outcomes = list(warm(work, 1))
    assert {one.state for one in outcomes} == {"failed"}
    assert all("cannot be used" in one.message for one in outcomes)


def test_no_cache_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_CACHE", "0")
    with pytest.raises(kj.ArgumentError, match="no cache on disk"):
        list(warm([Work(Specialisation("m:k", ""), ("cpu:native",))], 1))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["nothing.py"], "there is no file"),
        (["nothing_at_all"], "there is no module"),
        (["nothing.json"], "cannot be read"),
        (["kernels.py", "--target", "tpu"], "tpu"),
        (["empty.py"], "says what to compile"),
    ],
)
def test_wrong_arguments_are_explained(folder: Path, command: list[str], message: str) -> None:
    (folder / "kernels.py").write_text(MODULE)
    (folder / "empty.py").write_text("import khaljit\n")
    done = CliRunner().invoke(app, ["warm", *command])
    assert isinstance(done.exception, kj.ArgumentError)
    assert message in str(done.exception)


def test_a_terminal_gets_a_progress_bar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from khaljit.cli import warm as command

    (folder / "kernels.py").write_text(MODULE)
    terminal = Console(force_terminal=True, width=120, record=True)
    monkeypatch.setattr(command, "console", terminal)
    output: Any = CliRunner().invoke(app, ["warm", "kernels.py"]).stdout
    assert "3 specialisations: 3 compiled" in output
    assert "3/3" in terminal.export_text() + output
    assert "[1/3]" not in output
