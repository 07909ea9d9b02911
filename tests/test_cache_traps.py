"""Failures of other caches that users reported, those that no other file of tests has.

`REPORTS` is the whole list; each names a test, here or beside others of its subject, that fails
where its guard is taken away.
"""

from __future__ import annotations

import ast
import errno
import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit import compiler
from khaljit.backends.base import Device
from khaljit.backends.cpu.device import CpuDevice
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.cuda import assemble as assembling
from khaljit.backends.cuda.target import Cuda
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.catalog import Catalog
from khaljit.cache.files import is_entry
from khaljit.cache.keys import Key, key
from khaljit.cache.store import Store
from khaljit.keying import key_of
from khaljit.tracer.ir import Trace
from tests.test_cache_kernels import again, fresh, made, run

__all__ = ["fresh"]  # a fixture

REPORTS = (
    "NVIDIA/warp docs, Updating Constants",
    "numba/numba#9483",
    "numba/numba#9316",
    "numba/numba#9304",
    "triton-lang/triton#7322",
    "triton-lang/triton#3770",
    "NVIDIA/warp#1260",
    "NVIDIA/warp#1713",
    "NVIDIA/warp#1711",
    "taichi-dev/taichi#7594",
    "taichi-dev/taichi#6524",
    "taichi-dev/taichi#8510",
    "jax-ml/jax#16649",
    "Genesis-Embodied-AI/quadrants#849",
    "cupy/cupy#7345",
    "tinygrad/tinygrad#15709",
    "jax-ml/jax#38445",
    "AdaptiveCpp performance guide",
    "LuisaGroup/LuisaCompute#228",
    "numba/numba#6093",
    "NVIDIA/numba-cuda#590",
    "NVIDIA/cccl#6715",
    "AdaptiveCpp/AdaptiveCpp#2028",
    "ml-explore/mlx#4275",
    "NVIDIA/warp#1211",
    "NVIDIA/warp#1231",
    "NVIDIA/warp#1511",
    "NVIDIA/warp#1254",
    "triton-lang/triton#2688",
    "triton-lang/triton#11512",
    "deepseek-ai/DeepGEMM#301",
    "deepseek-ai/DeepEP#683",
    "CHIP-SPV/chipStar#1081",
    "Genesis-Embodied-AI/gs-madrona#60",
    "AdaptiveCpp/AdaptiveCpp#2071",
    "cupy/cupy#9463",
    "cupy/cupy#10271",
    "NVIDIA/warp#1284",
    "jax-ml/jax#39880",
    "mitsuba-renderer/drjit#115",
    "grantjenks/python-diskcache#164",
    "GridTools/gt4py#1745",
    "openmm/openmm#2847",
    "tenstorrent/tt-metal#55009",
    "numba/numba#5566",
    "numba/numba#4908",
    "LMCache/LMCache#4597",
    "cupy/cupy#2296",
    "NixOS/nixpkgs#453992",
    "DiamondLightSource/httomo#243",
    "triton-lang/triton#11778",
    "cupy/cupy#1890",
    "cupy/cupy#4926",
    "NVIDIA/accelerated-computing-hub#263",
    "jax-ml/jax#12594",
    "NVIDIA/warp CHANGELOG 1.16.0",
    "gfx-rs/wgpu#5293",
    "gfx-rs/wgpu#4812",
)


def test_every_report_has_a_test_that_names_it() -> None:
    named = []
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                named.append(ast.get_docstring(node) or "")
    text = "\n".join(named)
    missing = [one for one in REPORTS if not re.search(re.escape(one) + r"(?!\d)", text)]
    assert missing == []


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


def entries(folder: Path) -> list[Path]:
    found = folder.glob(f"{FORMAT}/??/*")
    return [path for path in found if is_entry(f"{path.parent.name}/{path.name}")]


# -- stale entries -----------------------------------------------------------------------------

LIMIT = 3


def test_a_changed_global_is_seen_at_the_next_launch_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NVIDIA/warp docs, Updating Constants; triton-lang/triton#3770."""

    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = LIMIT

    monkeypatch.setenv("KHALJIT_LOG", "cache")
    a = np.zeros(1, np.int32)
    with kj.use("cpu"):
        for value in (3, 4):
            monkeypatch.setattr(sys.modules[__name__], "LIMIT", value)
            kernel[1](a)
            assert a[0] == value
    assert "kernel is recorded again: global 'LIMIT' changed" in capsys.readouterr().err


def test_what_a_compiler_gives_is_in_no_key(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cupy/cupy#7345: it may hold random names."""
    compile_ = Cpu.compile

    def random(self: Cpu, trace: Trace, *emitted: Any) -> Artifact:
        found = compile_(self, trace, *emitted)
        return Artifact(found.payload, found.plan, found.tool, text=os.urandom(8).hex())

    monkeypatch.setattr(Cpu, "compile", random)
    keys = set()
    for _ in range(2):
        again(monkeypatch)
        keys.add(made(1).compile("i32[:]", target=kj.device("cpu").target).key)
    assert len(keys) == 1
    assert kj.cache_info().hits == 1


def test_processors_of_one_level_have_one_key_whatever_they_are_called(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax-ml/jax#38445: the instruction set counts, the model and its tuning do not."""
    run(made(2))
    again(monkeypatch)
    run(made(2))
    assert kj.cache_info().hits == 1, "on the same machine"
    (entry,) = Catalog(compiler.store()).entries()
    material = entry.key.material.decode()
    host = CpuDevice().host
    assert host.level in material
    assert host.name not in material


def test_ptx_is_the_same_whatever_the_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """LuisaGroup/LuisaCompute#228: its version is the lowest that it needs, and never patched."""
    monkeypatch.setattr(assembling, "tool_version", lambda name: None)
    trace = made(3).trace("i32[:]")
    target = Cuda("sm_80")
    artifact = target.compile(trace)
    assert artifact.tool is None
    assert artifact.payload.decode() == target.show(trace, "ptx") == artifact.text
    assert artifact.payload.startswith(b".version 7.0")


# -- collisions --------------------------------------------------------------------------------


def test_two_lambdas_of_one_line_are_two_kernels(device: Device) -> None:
    """AdaptiveCpp/AdaptiveCpp#2028."""

    def applied(function: Any) -> Any:
        @kj.jit
        def kernel(a: kj.Array1[kj.i32]) -> None:
            i = kj.global_id(0)
            a[i] = function(a[i])

        return kernel

    kernels = [applied(f) for f in (lambda x: x + 1, lambda x: x * 7)]
    results = []
    for kernel in kernels:
        a = np.full(3, 5, np.int32)
        kernel[3](a)
        results.append(int(a[0]))
    assert results == [6, 35]


def test_code_without_its_entry_point_is_not_run(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdaptiveCpp/AdaptiveCpp#2028: the symbol is looked up, never assumed."""
    run(made(4))
    catalog = Catalog(compiler.store())
    (entry,) = catalog.entries()
    artifact = catalog.artifact(entry)
    wrong = Artifact(artifact.payload, {**artifact.plan, "entry": "another"}, artifact.tool)
    compiler.store().put(entry.key, wrong)
    again(monkeypatch)
    assert run(made(4)) == 4
    assert list((fresh / str(FORMAT) / "quarantine").iterdir())


@kj.jit
def chosen(a: kj.Array1[kj.i32], f: Any) -> None:
    i = kj.global_id(0)
    a[i] = f(a[i]) if f is not None else 0


def test_functions_and_none_as_arguments_are_resolved_before_the_key(device: Device) -> None:
    """NVIDIA/warp#1211, NVIDIA/warp#1231."""
    results = []
    for f in (lambda x: x + 1, lambda x: x * 2, None, lambda x: x + 1):
        a = np.full(2, 10, np.int32)
        chosen[2](a, f)
        results.append(int(a[0]))
    assert results == [11, 20, 0, 11]


def test_one_kernel_on_two_devices_has_two_codes() -> None:
    """NVIDIA/warp#1254."""

    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            a[i] = a[i] + i

    names = ["cpu", "interpreter", "cpu"]
    if not isinstance(kj.devices()["webgpu"], kj.KhaljitError):
        names += ["webgpu", "cpu"]
    for name in names:
        a = np.arange(1000, dtype=np.int32)
        with kj.use(name):
            kernel[a.size](a)
        assert (a == 2 * np.arange(1000)).all()
    trace = kernel.trace("i32[:]")
    targets = [kj.device(name).target for name in set(names)]
    assert len({key_of(trace, target) for target in targets}) == len(targets)
    assert len(kernel._plans) == len(targets)


# -- concurrency -------------------------------------------------------------------------------


def test_files_that_cannot_be_cleaned_up_abort_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """triton-lang/triton#11512: NFS says that they are busy."""

    def busy(path: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "remove", busy)
    store = Store.open(tmp_path / "cache")
    for _ in range(3):
        made = store.obtain(numbered(1), none, lambda: Artifact(b"1", {}, None))
        store.put(numbered(1), made)
    monkeypatch.undo()
    assert Store.open(tmp_path / "cache").get(numbered(1), none) == Artifact(b"1", {}, None)


def test_what_was_just_written_is_served_though_it_cannot_be_seen_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """triton-lang/triton#11512, deepseek-ai/DeepGEMM#301: NFS remembers that it was not there."""
    store = Store.open(tmp_path / "cache")
    listdir = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path=".": [] if len(Path(path).name) == 2 else listdir(path)
    )
    artifact = Artifact(b"1", {}, None)
    store.put(numbered(1), artifact)
    assert store.get(numbered(1), none) is artifact
    assert store.obtain(numbered(1), none, pytest.fail) is artifact


def test_nothing_damaged_is_ever_given_to_a_loader(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Genesis-Embodied-AI/gs-madrona#60: a driver may abort the process."""
    run(made(5))
    (path,) = entries(fresh)
    whole = path.read_bytes()
    device = kj.device("cpu")
    load = device.load_artifact
    loaded: list[bytes] = []

    def counted(artifact: Artifact, trace: Trace) -> Any:
        loaded.append(artifact.payload)
        return load(artifact, trace)

    monkeypatch.setattr(device, "load_artifact", counted)
    good = Catalog(compiler.store()).artifact(next(Catalog(compiler.store()).entries())).payload
    rng = np.random.default_rng(5)
    for at in rng.integers(0, len(whole), 10):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        for one in entries(fresh):
            one.unlink()
        path.write_bytes(damaged)
        path.chmod(0o600)
        again(monkeypatch)
        assert run(made(5)) == 5
    for end in rng.integers(0, len(whole), 10):
        for one in entries(fresh):
            one.unlink()
        path.write_bytes(whole[:end])
        path.chmod(0o600)
        again(monkeypatch)
        assert run(made(5)) == 5
    assert len(loaded) == 20
    assert set(loaded) == {good}


def test_a_process_that_ends_deletes_nothing(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaptiveCpp/AdaptiveCpp#2071: others may be loading it; only eviction deletes."""
    script = """
import numpy as np
import khaljit as kj

@kj.jit
def kernel(a: kj.Array1[kj.i32]) -> None:
    a[kj.global_id(0)] = 7

kernel[3](np.zeros(3, np.int32))
"""
    path = fresh.parent / "script.py"
    path.write_text(script)
    seen = []
    for _ in range(3):
        subprocess.run([sys.executable, str(path)], check=True, timeout=60)
        seen.append([one.name for one in entries(fresh)])
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 1
    run(made(6))
    before = {one.name for one in entries(fresh)}
    again(monkeypatch)
    gc.collect()
    assert {one.name for one in entries(fresh)} == before


# -- file systems ------------------------------------------------------------------------------


def test_entries_are_spread_over_folders_of_two_levels(tmp_path: Path) -> None:
    """cupy/cupy#1890, cupy/cupy#4926."""
    store = Store.open(tmp_path / "cache")
    for number in range(300):
        store.put(numbered(number), Artifact(b"", {}, None))
    folders = {path.parent for path in entries(tmp_path / "cache")}
    assert len(folders) > 100
    assert max(len(list(folder.iterdir())) for folder in folders) < 20


def test_a_place_that_cannot_be_written_to_is_no_error_at_import_nor_at_launch(
    tmp_path: Path,
) -> None:
    """numba/numba#5566, numba/numba#4908, LMCache/LMCache#4597."""
    (tmp_path / "file").write_text("in the way")
    script = """
import warnings
import numpy as np
warnings.simplefilter("error")
import khaljit as kj

@kj.jit
def kernel(a):
    a[kj.global_id(0)] = 7

a = np.zeros(3, np.int32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    kernel[3](a)
    kernel[3](a.astype(np.float32))
assert (a == 7).all()
assert [one.category for one in caught] == [kj.CacheWarning], caught
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "KHALJIT_CACHE_DIR": str(tmp_path / "file" / "cache")},
        check=True,
        timeout=60,
    )


def test_wgpu_still_has_no_pipeline_cache_to_keep() -> None:
    """gfx-rs/wgpu#5293, gfx-rs/wgpu#4812: docs/cache.md says that drivers compile once a process.

    When this fails, there is one: keep it on disk, and say so there.
    """
    native = pytest.importorskip("wgpu.backends.wgpu_native")
    functions = [name for name in dir(native.lib) if name.startswith("wgpu") and "Cache" in name]
    assert functions == []
    assert "does not let khaljit keep" in (Path(__file__).parents[1] / "docs/cache.md").read_text()
