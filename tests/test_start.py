"""A second process starts warm: nothing is compiled, and no compiler is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from khaljit.extension import NATIVE

SCRIPT = """
import json, sys
import numpy as np
import khaljit as kj

@kj.jit
def saxpy(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = a * x[i] + y[i]

x, y = np.ones(100, np.float32), np.ones(100, np.float32)
before = set(sys.modules)
saxpy[x.size](x, y, 2.0)
assert (y == 3).all()
late = sorted(set(sys.modules) - before - set(sys.builtin_module_names))
print(json.dumps({"modules": sorted(sys.modules), "late": late, **saxpy.cache_info()}))
"""


def _run(path: Path, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "KHALJIT_CACHE_DIR": str(path.parent / "cache"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _roots(found: dict[str, Any]) -> set[str]:
    return {name.split(".")[0] for name in found["modules"]}


def test_a_second_process_compiles_nothing_and_imports_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    cold, warm = _run(path), _run(path)
    assert (cold["compiled"], cold["cached"]) == (1, 0)
    assert "llvmlite" in _roots(cold)
    assert (warm["recorded"], warm["compiled"], warm["cached"]) == (1, 0, 1)
    assert not _roots(warm) & {"llvmlite", "diskcache", "wgpu", "cuda", "typer", "rich"}
    loaded = {name for name in warm["modules"] if name.startswith("khaljit.codegen")}
    assert not any("llvm.emit" in name or "math" in name for name in loaded)
    rare = {"signatures", "signature_text", "exchange", "manifest", "graphs.graph"}
    rare |= {"tracer.parsing", "tracer.uniformity", "tracer.interpret", "cache.index"}
    rare |= {"tracer.intrinsics.matrices", "cache.remote", "cache.info", "backends.reporting"}
    rare |= {"tracer.rewriting", "tracer.passes.contract", "tracer.passes.report_bounds"}
    rare |= {"codegen.numbering", "encoders", "modules"}
    assert not {f"khaljit.{name}" for name in rare} & set(warm["modules"])
    assert not _roots(warm) & {"difflib", "fsspec", "sqlite3"}


def test_the_first_launch_of_a_warm_process_loads_no_module(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    cold, warm = _run(path), _run(path)
    assert "khaljit.codegen.llvm.emit" in cold["late"]
    assert warm["late"] == ([] if NATIVE else ["khaljit.backends.cpu.workers"])


def test_an_edit_that_changes_the_trace_compiles_again_and_others_do_not(tmp_path: Path) -> None:
    """numba/numba#9316, numba/numba#9483."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    _run(path)
    path.write_text("# a comment\n" + SCRIPT.replace("i < x.size", "i  <  x.size"))
    assert _run(path)["compiled"] == 0
    path.write_text(SCRIPT.replace("a * x[i] + y[i]", "a * x[i] + y[i] + 0.0 * a"))
    assert _run(path)["compiled"] == 1


def test_the_key_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """taichi-dev/taichi#8510."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert _run(path, PYTHONHASHSEED="1")["compiled"] == 1
    assert _run(path, PYTHONHASHSEED="2")["compiled"] == 0


def test_no_cache_and_a_read_only_cache_still_compute(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert _run(path, KHALJIT_CACHE="0")["compiled"] == 1
    assert _run(path, KHALJIT_CACHE="0")["compiled"] == 1
    assert not (tmp_path / "cache").exists()
