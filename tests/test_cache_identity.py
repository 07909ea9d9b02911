"""What is in a kernel's key, and what is not: the same code has the same key everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

import khaljit as kj
from khaljit import compiler
from khaljit.backends.base import Target
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.cuda.target import Cuda
from khaljit.backends.webgpu.target import WebGpu
from khaljit.cache.keys import parts_of
from khaljit.cache.store import Store
from khaljit.codegen.caps import Caps, webgpu
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.codegen.webgpu.lower import Variant
from khaljit.compiler import compile_trace
from khaljit.generators import FOLDERS, Sources
from khaljit.keying import LEFT_OUT, key_of
from khaljit.tracer.errors import Site
from khaljit.tracer.ir import Options, Pool, Trace

ROOT = Path(__file__).resolve().parent.parent
HERE = Cpu(CpuTarget("x86-64-v3", system="linux"))


def recorded(function: Callable[..., None], *args: Any, **options: Any) -> Trace:
    trace: Trace = kj.jit(**options)(function).trace(*args)
    return trace


def scale(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32], x: kj.f32) -> None:
    i = kj.global_id(0)
    assert x > 0, "a factor"
    a[i] = x * b[i]


TRACE = recorded(scale, "f32[n], f32[n], f32", workgroup=64)
OTHER = recorded(scale, "f32[:], f32[:], f32", workgroup=64)

# For each field of a class another value than an object of it has.
CHANGED: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda trace: "another",
    "arrays": lambda trace: OTHER.arrays,
    "scalars": lambda trace: (),
    "workgroup": lambda trace: (32, 1, 1),
    "index_bits": lambda trace: 64,
    "options": lambda trace: Options(fastmath=True),
    "body": lambda trace: recorded(lambda a, b, x: None, "f32[n], f32[n], f32").body,
    "pool": lambda trace: Pool(),
    "sites": lambda trace: tuple(Site("another.py", site.line + 7) for site in trace.sites),
}


def names(owner: type) -> list[Any]:
    return [pytest.param(one, id=f"{owner.__name__}.{one.name}") for one in fields(owner)]


@pytest.mark.parametrize("field", names(Trace))
def test_every_field_of_a_trace_is_in_the_key_or_left_out_by_name(field: Field[Any]) -> None:
    """taichi-dev/taichi#6524."""
    if field.name == "scalars":
        trace = recorded(lambda a, x: None, "f32[:], f32")
        other = replace(trace, scalars=recorded(lambda a, x: None, "f32[:], i32").scalars)
    else:
        trace = TRACE
        other = replace(trace, **{field.name: CHANGED[field.name](trace)})
    same = key_of(trace, HERE) == key_of(other, HERE)
    assert same == (f"Trace.{field.name}" in LEFT_OUT)


@pytest.mark.parametrize("field", names(Options))
def test_every_option_is_in_the_key(field: Field[Any]) -> None:
    """taichi-dev/taichi#6524: an option that was left out gave wrong code."""
    options = TRACE.options
    other = replace(options, **{field.name: not getattr(options, field.name)})
    assert key_of(replace(TRACE, options=other), HERE) != key_of(TRACE, HERE)


CPU = CpuTarget("x86-64-v3", system="linux")
CAPS = webgpu()


def another(value: Any) -> Any:
    """A value that differs from another of its type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "2"
        case None:
            return (0,)
        case frozenset():
            return value | {"another"}
        case tuple():
            return (*value, *value, 7)
    raise TypeError(value)


@pytest.mark.parametrize("field", names(CpuTarget))
def test_every_field_of_a_processor_is_in_the_key(field: Field[Any]) -> None:
    changes: dict[str, Any] = {
        "level": "x86-64-v4",
        "features": ("+avx512vbmi",),
        "system": "win32",
    }
    other = Cpu(replace(CPU, **{field.name: changes[field.name]}))
    assert key_of(TRACE, other) != key_of(TRACE, Cpu(CPU))


@pytest.mark.parametrize("field", names(Caps))
def test_every_capability_is_in_the_key(field: Field[Any]) -> None:
    other = replace(CAPS, **{field.name: another(getattr(CAPS, field.name))})
    assert key_of(TRACE, WebGpu(other)) != key_of(TRACE, WebGpu(CAPS))


@pytest.mark.parametrize("field", names(Variant))
def test_every_field_of_a_variant_is_in_the_key(field: Field[Any]) -> None:
    variant = Variant()
    other = replace(variant, **{field.name: another(getattr(variant, field.name))})
    assert key_of(TRACE, WebGpu(CAPS, other)) != key_of(TRACE, WebGpu(CAPS, variant))


def test_targets_of_different_kinds_have_different_keys() -> None:
    targets: list[Target] = [HERE, WebGpu(CAPS)]
    targets += [Cuda(name) for name in ("sm_80", "sm_90")]
    targets += [kj.device(name).target for name in ("interpreter", "null")]
    assert len({key_of(TRACE, target) for target in targets}) == len(targets)


def test_the_parts_of_a_key_have_names_to_compare_by() -> None:
    parts = parts_of(key_of(TRACE, HERE, "salt").material)
    assert set(parts) == {
        "generators", "options", "salt", "target.cpu", "target.kind", "target.level", "trace",
    }  # fmt: skip
    assert parts["trace"].startswith(b"kernel _ workgroup=64,1,1")
    assert b"level='x86-64-v3'" in parts["target.cpu"]


def test_a_salt_makes_keys_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba/numba#9304."""
    monkeypatch.delenv("KHALJIT_CACHE_SALT", raising=False)
    plain, salted = key_of(TRACE, HERE), key_of(TRACE, HERE, "mine")
    monkeypatch.setenv("KHALJIT_CACHE_SALT", "mine")
    assert len({plain, salted, key_of(TRACE, HERE), key_of(TRACE, HERE, "mine")}) == 4
    monkeypatch.setenv("KHALJIT_CACHE_SALT", "")
    assert key_of(TRACE, HERE) == plain


def test_the_salt_of_a_kernel_reaches_its_key(tmp_path: Path) -> None:
    def function(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = 4711

    one, other = kj.jit(salt="one")(function), kj.jit(salt="other")(function)
    keys = {kernel.compile("i32[:]").key for kernel in (one, other, kj.jit(function))}
    assert len(keys) == 3


# -- other processes ---------------------------------------------------------------------------

HELPER = "def helper(x):\n    return x + 1\n"
PROGRAM = """
import json, sys
import numpy as np
import khaljit as kj
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.cuda.target import Cuda
from khaljit.backends.webgpu.target import WebGpu
from khaljit.codegen.caps import webgpu
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.keying import key_of
from helping import helper

FACTOR = 3
NAMES = {"x", "y", "z"}

class Settings:
    bias = 5

def made(offset):
    @kj.jit
    def closure(a, b):
        i = kj.global_id(0)
        a[i] = b[i] + offset
    return closure

@kj.jit(fastmath=False)
def plain(a, b, wide: kj.Const[bool] = False):
    i = kj.global_id(0)
    value = helper(b[i]) * FACTOR + Settings.bias
    if wide:
        value = value + len(NAMES)
    a[i] = value

@kj.jit(workgroup=64)
def grouped(a, b):
    i = kj.local_id(0)
    tile = kj.shared(kj.f32, 64)
    tile[i] = kj.sin(b[i])
    kj.barrier()
    assert a.size > 3, "short"
    for k in range(8):
        a[i] += tile[63 - k] / 3.0

targets = [Cpu(CpuTarget("x86-64-v3", system="linux")), Cuda("sm_90"), WebGpu(webgpu())]
a = np.zeros(4, np.float32)
keys = {}
for kernel, args in ((plain, (a, a.copy())), (grouped, (a, a.copy())), (made(7), (a, a.copy()))):
    trace = kernel.trace(*args)
    for target in targets:
        keys[f"{kernel.__name__} {target.name}"] = key_of(trace, target)
print(json.dumps(keys))
"""


def keys_of(
    folder: Path,
    program: str = PROGRAM,
    helper: str = HELPER,
    python: str = sys.executable,
    **environment: str,
) -> dict[str, str]:
    """The keys that a program in a folder has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.py").write_text(program)
    (folder / "helping.py").write_text(helper)
    done = subprocess.run(
        [python, str(folder / "program.py")],
        env={**os.environ, "KHALJIT_CACHE": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    assert len(set(found.values())) == 9
    return found


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return keys_of(tmp_path_factory.mktemp("first"))


def test_another_checkout_elsewhere_has_the_same_keys(keys: dict[str, str], tmp_path: Path) -> None:
    """jax-ml/jax#16649, Genesis-Embodied-AI/quadrants#849: no ids, addresses, counters, paths."""
    for name in ("khaljit", "tracer", "codegen", "cache"):
        shutil.copytree(
            ROOT / name, tmp_path / "src" / name, ignore=shutil.ignore_patterns("__pycache__"),
            symlinks=True,
        )  # fmt: skip
    found = keys_of(tmp_path / "elsewhere" / "deeper", PYTHONPATH=str(tmp_path / "src"))
    assert found == keys
    source = tmp_path / "src" / "codegen" / "legalise.py"
    source.write_text(source.read_text() + "\n# another generator\n")
    found = keys_of(tmp_path / "elsewhere" / "deeper", PYTHONPATH=str(tmp_path / "src"))
    assert not set(found.values()) & set(keys.values())


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_the_hash_seed_is_not_in_the_key(keys: dict[str, str], seed: str, tmp_path: Path) -> None:
    """taichi-dev/taichi#8510."""
    assert keys_of(tmp_path, PYTHONHASHSEED=seed) == keys


def other_pythons() -> list[str]:
    """Other versions of Python that have what recording needs; ``KHALJIT_TEST_PYTHONS`` names
    them, else those on the path are tried."""
    named = os.environ.get("KHALJIT_TEST_PYTHONS", "").split(os.pathsep)
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    able = []
    for python in filter(None, (*named, *found)):
        test = "import sys, numpy, xxhash; print(*sys.version_info[:2])"
        done = subprocess.run([python, "-c", test], capture_output=True, text=True, check=False)
        version = tuple(map(int, done.stdout.split()))
        if done.returncode == 0 and version >= (3, 11) and version != sys.version_info[:2]:
            able.append(python)
    return able


def test_the_version_of_python_is_not_in_the_key(keys: dict[str, str], tmp_path: Path) -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no other Python has NumPy and xxhash; KHALJIT_TEST_PYTHONS may name one")
    for python in pythons:
        assert keys_of(tmp_path, python=python, PYTHONPATH=str(ROOT)) == keys


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("value", "renamed"),
        ("i = kj.global_id(0)\n", "i = kj.global_id(0)  # a comment\n\n\n"),
        ("FACTOR = 3", "\n\nUNUSED = 4\nFACTOR = 3"),
        ("b[i] + offset", "(b[i]  +  offset)"),
        ("def made", "def unrelated(a):\n    return a + 1\n\ndef made"),
    ],
)
def test_an_edit_that_changes_no_trace_changes_no_key(
    keys: dict[str, str], before: str, after: str, tmp_path: Path
) -> None:
    """numba/numba#9316."""
    assert before in PROGRAM
    assert keys_of(tmp_path, PROGRAM.replace(before, after)) == keys


@pytest.mark.parametrize(
    ("before", "after", "kernel"),
    [
        ("FACTOR = 3", "FACTOR = 4", "plain"),  # a global
        ("bias = 5", "bias = 6", "plain"),  # an attribute
        ("made(7)", "made(8)", "closure"),  # a closure's value
        ("kj.Const[bool] = False", "kj.Const[bool] = True", "plain"),  # a default argument
        ("fastmath=False", "fastmath=True", "plain"),  # an option
        ("workgroup=64", "workgroup=32", "grouped"),
        ("kj.sin(b[i])", "kj.cos(b[i])", "grouped"),
        ('"short"', '"too short"', "grouped"),  # the text is the code's
    ],
)
def test_an_edit_that_changes_a_trace_changes_the_key_of_that_kernel_only(
    keys: dict[str, str], before: str, after: str, kernel: str, tmp_path: Path
) -> None:
    """triton-lang/triton#7322, NVIDIA/cccl#6715."""
    assert before in PROGRAM
    found = keys_of(tmp_path, PROGRAM.replace(before, after))
    assert {name for name in keys if found[name] != keys[name]} == {
        name for name in keys if name.startswith(kernel)
    }


def test_an_edit_of_a_helper_in_another_module_changes_the_key(
    keys: dict[str, str], tmp_path: Path
) -> None:
    """numba/numba#9483."""
    found = keys_of(tmp_path, helper=HELPER.replace("x + 1", "x + 2"))
    assert {name.split()[0] for name in keys if found[name] != keys[name]} == {"plain"}


# -- the digest of the generators --------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Generators to change, and a cache to keep their digest in."""
    folder = tmp_path / "sources"
    for name in FOLDERS:
        (folder / name / "inner").mkdir(parents=True)
        (folder / name / "inner" / "module.py").write_text(f"{name} = 1\n")
        (folder / name / "notes.txt").write_text("no source")
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KHALJIT_CACHE", raising=False)
    return folder


def digest(folder: Path) -> bytes:
    return Sources(str(folder)).digest


def test_every_source_of_the_generators_is_in_their_digest(sources: Path) -> None:
    """taichi-dev/taichi#7594, NVIDIA/warp#1260."""
    seen = {digest(sources)}
    for name in FOLDERS:
        path = sources / name / "inner" / "module.py"
        path.write_text(f"{name} = 2\n")  # as long as before
        seen.add(digest(sources))
        path.rename(path.with_name("other.py"))
        seen.add(digest(sources))
        (sources / name / "new.py").write_text("")
        seen.add(digest(sources))
    assert len(seen) == 10
    (sources / "tracer" / "notes.txt").write_text("changed")
    assert digest(sources) in seen


def test_line_ends_of_the_sources_mean_nothing(sources: Path) -> None:
    path = sources / "tracer" / "inner" / "module.py"
    before = digest(sources)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert digest(sources) == before


def test_generators_that_came_without_sources_are_told_apart_too(sources: Path) -> None:
    """Nuitka/Nuitka#2552."""
    for path in sources.rglob("*.py"):
        path.rename(path.with_suffix(".pyc"))
    before = digest(sources)
    (sources / "tracer" / "inner" / "module.pyc").write_text("another")
    assert digest(sources) != before
    shutil.rmtree(sources / "codegen")
    frozen = Sources(str(sources))
    assert frozen.digest == digest(sources) != before
    assert not frozen.have_changed()


def test_the_digest_is_read_where_the_sources_are_as_they_were(
    sources: Path, tmp_path: Path
) -> None:
    first = digest(sources)
    (memo,) = (tmp_path / "cache" / "generators").iterdir()
    facts, known = memo.read_text().split()
    assert known.encode() == first
    memo.write_text(f"{facts} {'0' * 32}")
    assert digest(sources) == b"0" * 32, "kept"
    for junk in ("", "a b c", "x", f"{facts[:-1]} {known}", "\xff"):
        memo.write_bytes(junk.encode("latin-1"))
        assert digest(sources) == first


def test_the_digest_needs_no_cache(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest(sources)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert digest(sources) == first
    monkeypatch.setenv("KHALJIT_CACHE", "0")
    assert digest(sources) == first
    monkeypatch.delenv("KHALJIT_CACHE")
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache" / "generators").chmod(0o777)
    (memo,) = (tmp_path / "cache" / "generators").iterdir()
    memo.write_text(f"{memo.read_text().split()[0]} {'0' * 32}")
    assert digest(sources) == first, "others could have written it"


@pytest.mark.parametrize("edit", ["changed", "gone"])
def test_generators_that_were_edited_since_they_were_loaded_have_a_digest_of_their_own(
    sources: Path, tmp_path: Path, edit: str
) -> None:
    """What runs is neither what stands in the files now nor what stood there."""
    before, loaded, known = digest(sources), Sources(str(sources)), Sources(str(sources))
    assert known.digest == before
    (memo,) = (tmp_path / "cache" / "generators").iterdir()
    memo.unlink()
    assert not loaded.have_changed()
    path = sources / "codegen" / "inner" / "module.py"
    if edit == "changed":
        path.write_text("edited\n")
    else:
        path.unlink()
    assert loaded.have_changed()
    assert loaded.digest not in (before, digest(sources))
    assert known.digest == before


def test_what_edited_generators_compile_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "cache")
    monkeypatch.setattr(compiler, "store", lambda: store)
    trace = recorded(scale, "f32[n], f32[n], f32")
    monkeypatch.setattr(Sources, "have_changed", lambda self: True)
    assert not compile_trace(trace, HERE).cached
    monkeypatch.setattr(Sources, "have_changed", lambda self: False)
    assert not compile_trace(trace, HERE).cached
    assert compile_trace(trace, HERE).cached
