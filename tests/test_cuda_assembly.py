"""Machine code for NVIDIA GPUs without a GPU: the whole matrix assembled for every architecture,
and the tools around that."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.cuda import assemble as assembling
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.doctor import examine
from khaljit.backends.cuda.target import Cuda, architecture_for
from khaljit.devices import target
from khaljit.tracer.dtypes import f32, f64
from khaljit.tracer.ir import Options
from tests.fake_cuda import FakeDriver
from tests.ptx_matrix import REPORT
from tests.ptx_tools import SMS, argument, assemble, emit, recorded, tool

ROOT = Path(__file__).resolve().parent.parent
MATRIX = (
    *("matrix", "matrix_memory", "matrix_functions", "language", "host"),
    *("structs", "linear", "struct_kernels"),
)
FEWEST = 500  # kernels of the matrix


def test_the_whole_matrix_is_assembled_without_a_warning_or_a_spill(tmp_path: Path) -> None:
    """Nor is local memory used where no kernel asks for it."""
    tool("ptxas")
    report = tmp_path / "report.json"
    files = [f"tests/test_{name}.py" for name in MATRIX]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.ptx_matrix"),
            *("-p", "no:cacheprovider", "-k", "interpreter", "--basetemp", str(tmp_path / "base")),
            *files,
        ],
        cwd=ROOT,
        env={**os.environ, REPORT: str(report)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(report.read_text())
    assert set(found) == set(SMS)
    wrong = {sm: one["wrong"] for sm, one in found.items() if one["wrong"]}
    assert not wrong
    for one in found.values():
        assert one["assembled"] >= FEWEST
        assert one["refused"] * 20 < one["assembled"]


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_without_contraction_no_machine_code_fuses(dtype: Any, sm: str, tmp_path: Path) -> None:
    def mix(x: Any, y: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < out.size:
            total = x[i] * y[i] + out[i]
            for k in range(7):
                total = total * x[i] - y[i] * y[k]
            out[i] = kj.vec2(x[i], y[i]).x * total + total

    arrays = [(name, argument(dtype)) for name in ("x", "y", "out")]
    fused = {f32: r"\bFFMA", f64: r"\bDFMA"}[dtype]
    seen = []
    for options in (Options(contract=False), Options()):
        program = emit(recorded(mix, arrays, options=options), sm)
        assert bool(re.search(r"\bfma\.", program.text)) is options.contract
        assemble(program, sm, tmp_path)
        done = subprocess.run(
            [tool("nvdisasm"), "-c", str(tmp_path / "kernel.cubin")],
            capture_output=True,
            text=True,
            check=True,
        )
        seen.append(bool(re.search(fused, done.stdout)))
    assert seen == [False, True]


@kj.jit
def add(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < y.size:
        y[i] = x[i] + y[i]


def test_code_for_a_gpu_that_is_not_here_is_shown(tmp_path: Path) -> None:
    assert ".target sm_90" in add.source("ptx", "f32[:], f32[:]", target=target("cuda:sm_90"))
    file = tmp_path / "kernels.py"
    file.write_text(
        "import khaljit as kj\n\n@kj.jit\ndef add(x: kj.Array1[kj.f32]) -> None:\n"
        "    i = kj.global_id(0)\n    if i < x.size:\n        x[i] = x[i] + 1.0\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "khaljit", "show", f"{file}:add", "--args", "f32[:]"),
            *("--stage", "ptx", "--device", "cuda:sm_120"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ".target sm_120" in done.stdout
    with pytest.raises(kj.ArgumentValueError, match="sm_91"):
        target("cuda:sm_91")
    assert target("cpu") is kj.device("cpu").target


def test_the_version_of_nvjitlink_is_the_librarys() -> None:
    found, library = assembling.tool_version("nvjitlink"), assembling._nvjitlink()
    if found is None or library is None:
        pytest.skip("no nvjitlink here")
    assert found == ".".join(map(str, library.version()))


def test_the_version_of_ptxas_is_what_it_says() -> None:
    path = assembling.tool_path("ptxas")
    if path is None:
        pytest.skip("no ptxas here")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    assert f"V{assembling.tool_version('ptxas')}\n" in done.stdout


def test_machine_code_is_made_by_whichever_tool_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = add.trace("f32[:], f32[:]")
    for needed in ("nvjitlink", "ptxas"):
        if assembling.tool_version(needed) is None:
            pytest.skip(f"no {needed} here")
    made = {}
    for missing in ("", "nvjitlink", "ptxas"):
        monkeypatch.setattr(
            assembling,
            "tool_version",
            lambda name, missing=missing: None if name == missing else "1.2",
        )
        made[missing] = Cuda("sm_80").compile(trace)
    tool("ptxas")
    assert [one.tool for one in made.values()] == [
        ("nvjitlink", "1.2"),
        ("ptxas", "1.2"),
        ("nvjitlink", "1.2"),
    ]
    assert all(one.payload.startswith(b"\x7fELF") for one in made.values())
    monkeypatch.setattr(assembling, "tool_version", lambda name: None)
    assert Cuda("sm_80").compile(trace).payload.startswith(b".version 7.0")


def test_forms_and_kept_text_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = [Cuda("sm_80", form=form).key_parts() for form in ("direct", "folded", "resident")]
    monkeypatch.setenv("KHALJIT_CUDA_KEEP_PTX", "1")
    forms += [Cuda("sm_80").key_parts(), Cuda("sm_90").key_parts()]
    assert len({str(sorted(one.items())) for one in forms}) == 5


def test_the_architecture_is_the_newest_that_the_gpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [architecture_for(*one) for one in ((7, 5), (8, 9), (9, 0), (10, 3), (12, 1))]
    assert found == ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
    # machine code runs within its major version alone
    assert [architecture_for(*one) for one in ((11, 0), (13, 0))] == ["ptx", "ptx"]
    with pytest.raises(kj.DeviceError, match="too old"):
        architecture_for(7, 0)
    monkeypatch.setenv("KHALJIT_CUDA_ARCH", "sm_80")
    assert architecture_for(9, 0) == "sm_80"
    monkeypatch.setenv("KHALJIT_CUDA_ARCH", "sm_1")
    with pytest.raises(kj.ArgumentValueError, match="sm_1"):
        architecture_for(9, 0)


def test_the_doctor_says_what_is_here_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "library", lambda: FakeDriver(gpus=2))
    parts = {one.name: one for one in examine()}
    assert parts["NVIDIA driver"].found == "CUDA 13.0"
    assert parts["GPU 1"].found == "Fake GPU"
    assert "9.0, code sm_90" in parts["GPU 1"].note
    assert "sm_120" in str(parts["architectures"].found)

    def missing() -> Any:
        raise kj.DeviceError("no driver", mend="install it")

    monkeypatch.setattr(driver, "library", missing)
    monkeypatch.setattr(assembling, "tool_version", lambda name: None)
    parts = {one.name: one for one in examine()}
    assert parts["NVIDIA driver"].found is None
    assert "no driver: install it" in parts["NVIDIA driver"].note
    assert parts["ptxas"].found is None
    assert "pip install nvidia-cuda-nvcc" in parts["ptxas"].note


def test_a_kernel_compiled_for_a_gpu_runs_on_the_next_process_without_a_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The artifact says which tool made it, and a device takes it as it is."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(import_module("khaljit.devices"), "_OPEN", {})
    monkeypatch.setenv("KHALJIT_CUDA_KEEP_PTX", "1")
    gpu = kj.device("cuda")
    x = gpu.array(np.ones(5, np.float32))
    first, again = (add.with_options() for _ in range(2))
    first[5](x, x)
    again[5](x, x)
    assert again.cache_info()["compiled"] == 0
    assert (x.numpy() == 4).all()
