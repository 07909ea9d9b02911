"""``khaljit cache``: listing, explaining, and carrying entries to other machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import khaljit as kj
from khaljit import compiler
from khaljit.backends.cpu import target as cpu_target
from khaljit.cache import bundle
from khaljit.cache.catalog import Catalog
from khaljit.cache.keys import Key, key
from khaljit.cli import app
from khaljit.cli.console import WIDE, console
from khaljit.generators import generators

MODULE = """
import khaljit as kj

FACTOR = 2.0

@kj.jit(signatures=["f32[:]"])
def scale(a) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] *= FACTOR

@kj.jit
def shift(a) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] += 1
"""
PLACE = "carried.py:scale"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of kernels, and a cache of its own."""
    (tmp_path / "carried.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    use_cache(tmp_path / "cache", monkeypatch)
    before = list(sys.path)
    yield tmp_path
    compiler.store.cache_clear()
    sys.path[:] = before
    sys.modules.pop("carried", None)


def use_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(path))
    compiler.store.cache_clear()


def run(*command: str, expect: int = 0) -> str:
    console.width = WIDE  # it may have been made in a narrow terminal
    done = CliRunner().invoke(app, command)
    assert done.exit_code == expect, done.output or done.exception
    return done.stdout


def data(*command: str, expect: int = 0) -> Any:
    return json.loads(run("cache", *command, "--json", expect=expect))


def kernel(name: str = "scale") -> Any:
    from khaljit.warming import load_kernel

    return load_kernel(f"carried.py:{name}")


def fill() -> None:
    kernel().compile("f32[:]", target="cpu:native")
    kernel().compile("f32[:]", target="cuda:ptx")
    kernel("shift").compile("i32[:]", target="webgpu")


def test_ls_tells_entries_by_kernel_signature_and_target(folder: Path) -> None:
    fill()
    native = kj.device("cpu").target.text
    listed = {(one["kernel"], one["signature"], one["target"]) for one in data("ls")}
    assert listed == {
        (PLACE, "f32[:]", native),
        (PLACE, "f32[:]", "cuda:ptx"),
        ("carried.py:shift", "i32[:]", "webgpu"),
    }
    entry = data("ls", "--target", "cpu:*")[0]
    assert entry["tool"][0] == "llvmlite"
    assert entry["current"]
    assert entry["size"] > 100
    assert abs(entry["created"] - entry["used"]) < 60
    assert [one["kernel"] for one in data("ls", "--kernel", "*:shift")] == ["carried.py:shift"]
    assert data("ls", "--kernel", "*:shift", "--target", "cuda:*") == []
    table = run("cache", "ls")
    assert all(word in table for word in ("kernel", "signature", "hits", PLACE, "cuda:ptx"))


def test_ls_counts_the_uses_of_other_processes(folder: Path) -> None:
    fill()
    program = "import numpy as np, carried; carried.scale[4](np.ones(4, np.float32))"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True)
    assert {one["target"]: one["hits"] for one in data("ls")} == {
        kj.device("cpu").target.text: 2,
        "cuda:ptx": 0,
        "webgpu": 0,
    }


def test_info_counts_by_target(folder: Path) -> None:
    fill()
    found = data("info")
    assert found["directory"] == str(folder / "cache")
    assert found["entries"] == 3
    assert found["targets"] == {"cpu": 1, "cuda": 1, "webgpu": 1}
    assert "3 of at most" in run("cache", "info")
    assert "rewritten" in run("cache", "info")


def test_show_prints_what_an_entry_is_made_of(folder: Path) -> None:
    fill()
    key = next(one["key"] for one in data("ls", "--target", "cuda:ptx"))
    found = data("show", key[:8], "--text")
    assert found["kernel"] == PLACE
    assert "load array0" in found["key parts"]["trace"]
    assert ".target sm_75" in found["text"]
    assert ".target sm_75" in run("cache", "show", key, "--text")
    assert "trace:\nkernel _" in run("cache", "show", key.upper())
    for wrong in ("no-such-key", ""):
        done = CliRunner().invoke(app, ["cache", "show", wrong])
        assert "entries have keys that begin with" in str(done.exception)


class TestWhy:
    def test_a_hit(self, folder: Path) -> None:
        fill()
        (found,) = data("why", PLACE)  # the signature that it declares
        assert found["hit"]
        assert found["key"] == kernel().compile("f32[:]").key

    def test_an_empty_cache(self, folder: Path) -> None:
        assert "the cache holds nothing" in run("cache", "why", PLACE)

    def test_another_signature(self, folder: Path) -> None:
        fill()
        (found,) = data("why", PLACE, "--args", "f64[:]")
        assert not found["hit"]
        assert found["reason"] == "absent"
        assert found["nearest"] == kernel().compile("f32[:]").key
        assert list(found["differences"]) == ["trace"]
        assert "-array array0: f32[?]" in found["differences"]["trace"]
        assert "+array array0: f64[?]" in found["differences"]["trace"]

    def test_a_changed_global(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill()
        monkeypatch.setattr(sys.modules["carried"], "FACTOR", 3.0)
        text = run("cache", "why", PLACE)
        assert "miss, absent" in text
        assert "-    %4: f32 = mul %3, 2.0:f32" in text
        assert "+    %4: f32 = mul %3, 3.0:f32" in text

    def test_another_target(self, folder: Path) -> None:
        fill()
        (found,) = data("why", PLACE, "--target", "cuda:sm_90")
        assert found["about"].endswith("cuda:ptx")
        assert list(found["differences"]) == ["target.kind"]
        assert "sm_90" in found["differences"]["target.kind"]

    def test_a_salt(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill()
        monkeypatch.setenv("KHALJIT_CACHE_SALT", "another")
        (found,) = data("why", PLACE)
        assert list(found["differences"]) == ["salt"]

    def test_another_version_of_khaljit(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill()
        monkeypatch.setattr("khaljit.keying.generators", lambda: b"another")
        (found,) = data("why", PLACE)
        assert list(found["differences"]) == ["generators"]

    def test_another_version_of_the_tool(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill()
        monkeypatch.setattr(cpu_target, "_llvmlite_version", lambda: "9.9")
        compiler.store.cache_clear()
        (found,) = data("why", PLACE)
        assert "llvmlite 9.9 is here" in found["reason"]

    def test_nothing_to_ask_for(self, folder: Path) -> None:
        done = CliRunner().invoke(app, ["cache", "why", "carried.py:shift"])
        assert "declares no signatures" in str(done.exception)


def test_verify_moves_what_is_damaged_away(folder: Path) -> None:
    fill()
    assert data("verify") == {"good": 3, "damaged": []}
    entry = next(Catalog(compiler.store()).entries())
    files = compiler.store().files
    assert files is not None
    path = Path(files.root) / entry.name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = data("verify", expect=1)
    assert found["good"] == 2
    assert [one["name"] for one in found["damaged"]] == [entry.name]
    assert data("verify") == {"good": 2, "damaged": []}


def test_prune_deletes_what_another_khaljit_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    memos = compiler.store().memos
    assert memos is not None
    memos.clear()
    memos.put(key(generators=generators()), b"memo")
    assert run("cache", "prune", "--stale").startswith("freed")
    assert len(data("ls")) == 3
    assert data("info")["memos"] == 1
    monkeypatch.setattr("khaljit.cli.cache.generators", lambda: b"another")
    assert not any(one["current"] for one in data("ls"))
    assert "dim: of other versions" in run("cache", "ls")
    assert data("prune", "--stale")["freed"] > 300
    assert data("ls") == []
    assert data("info")["memos"] == 0


def test_prune_deletes_what_was_not_used_lately(folder: Path) -> None:
    fill()
    files = compiler.store().files
    assert files is not None
    entry = next(Catalog(compiler.store()).entries())
    os.utime(Path(files.root) / entry.name, (1e9, 1e9))
    data("prune", "--older", "30")
    assert len(data("ls")) == 2


class TestCarrying:
    def test_an_exported_cache_serves_another_machine(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill()
        keys = {one["key"] for one in data("ls")}
        assert data("export", "cache.kj")["exported"] == 3
        use_cache(folder / "other", monkeypatch)
        assert data("import", "cache.kj") == {"imported": 3, "there": 0, "stale": 0}
        assert data("import", "cache.kj") == {"imported": 3, "there": 3, "stale": 0}
        listed = data("ls")
        assert {one["key"] for one in listed} == keys
        assert all(one["pinned"] for one in listed)
        assert kernel().compile("f32[:]").cached

    def test_equal_caches_give_equal_files(self, folder: Path) -> None:
        fill()
        run("cache", "export", "one.kj")
        run("cache", "export", "two.kj")
        assert Path("one.kj").read_bytes() == Path("two.kj").read_bytes()

    def test_a_selection_is_exported(self, folder: Path) -> None:
        fill()
        assert data("export", "x.kj", "--target", "cuda:*", "--target", "webgpu")["exported"] == 2
        assert data("export", "x.kj", "--kernel", "*:shift")["exported"] == 1

    @pytest.mark.parametrize("pin", [True, False])
    def test_code_of_another_version_of_a_tool_is_used_only_if_pinned(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, pin: bool
    ) -> None:
        fill()
        run("cache", "export", "cache.kj")
        use_cache(folder / "other", monkeypatch)
        run("cache", "import", "cache.kj", *([] if pin else ["--no-pin"]))
        compiler.store.cache_clear()
        monkeypatch.setattr(cpu_target, "_llvmlite_version", lambda: "9.9")
        assert kernel().compile("f32[:]").cached is pin

    @pytest.mark.parametrize("damage", ["a byte", "an entry", "the end", "the list", "all"])
    def test_a_damaged_file_imports_nothing(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, damage: str
    ) -> None:
        fill()
        run("cache", "export", "cache.kj")
        path = Path("cache.kj")
        content = bytearray(path.read_bytes())
        if damage == "a byte":
            content[len(content) // 2] ^= 255
            path.write_bytes(content)
        elif damage == "the end":
            path.write_bytes(content[:-40])
        elif damage == "all":
            path.write_bytes(b"nothing of the kind")
        else:
            with zipfile.ZipFile(path) as whole:
                members = {name: whole.read(name) for name in whole.namelist()}
            if damage == "the list":
                del members[bundle.LIST]
            else:  # in the middle of the payload, with a right CRC around it
                name = next(name for name in sorted(members) if name != bundle.LIST)
                changed = bytearray(members[name])
                changed[len(changed) // 2] ^= 1
                members[name] = bytes(changed)
            with zipfile.ZipFile(path, "w") as whole:
                for name, member in members.items():
                    whole.writestr(name, member)
        use_cache(folder / "other", monkeypatch)
        done = CliRunner().invoke(app, ["cache", "import", "cache.kj"])
        assert isinstance(done.exception, kj.CacheError)
        assert "nothing was" in str(done.exception)
        assert data("ls") == []

    def test_what_cannot_be_kept_is_an_error(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill()
        run("cache", "export", "cache.kj")
        for name, value in (("KHALJIT_CACHE", "0"), ("KHALJIT_CACHE_ENTRIES", "2")):
            monkeypatch.setenv(name, value)
            use_cache(folder / "other", monkeypatch)
            done = CliRunner().invoke(app, ["cache", "import", "cache.kj"])
            assert isinstance(done.exception, kj.CacheError)
            assert "of 3 entries of cache.kj are not in the cache" in str(done.exception)
            monkeypatch.delenv(name)

    def test_an_entry_under_another_name_is_refused(self, folder: Path) -> None:
        fill()
        run("cache", "export", "cache.kj")
        with zipfile.ZipFile("cache.kj") as whole:
            members = {name: whole.read(name) for name in whole.namelist()}
        first, second = [name for name in sorted(members) if name != bundle.LIST][:2]
        members[first], members[second] = members[second], members[first]
        with zipfile.ZipFile("cache.kj", "w") as whole:
            for name, member in members.items():
                whole.writestr(name, member)
        done = CliRunner().invoke(app, ["cache", "import", "cache.kj"])
        assert "another key's" in str(done.exception)

    def test_entries_of_another_khaljit_are_neither_exported_nor_passed_over_in_silence(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill()
        run("cache", "export", "cache.kj")
        monkeypatch.setattr("khaljit.cli.cache.generators", lambda: b"another")
        assert data("export", "none.kj")["exported"] == 0
        assert "3 were made by another version" in run("cache", "import", "cache.kj")

    def test_an_export_that_fails_leaves_no_file(self, folder: Path) -> None:
        fill()
        done = CliRunner().invoke(app, ["cache", "export", "no/such/folder/x.kj"])
        assert isinstance(done.exception, kj.CacheError)
        assert not [name for name in os.listdir() if "x.kj" in name]


# The whole way: one file, made where a compiler is, for a machine that has none.

BARE = """
import sys
for name in ("llvmlite", "diskcache", "cuda", "nvidia", "typer", "rich"):
    sys.modules[name] = None  # importing it fails
import ctypes, json, os
if sys.platform == "linux" and os.geteuid() == 0:  # modes of files shall bind root, too
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, nothing) == 0
import numpy as np
import carried
from khaljit import compiler
from khaljit.backends.cuda import assemble

try:
    open(os.path.expanduser("~/file"), "w")
except PermissionError:
    pass
else:
    raise SystemExit("the home is not read-only")
x = np.arange(1000, dtype=np.float32)
carried.scale[x.size](x)
assert (x == 2 * np.arange(1000)).all()
print(json.dumps({
    "counts": dict(compiler.COUNTS),
    "tools": [assemble.tool_version(one) for one in assemble.TOOLS],
    "pinned": carried.scale.compile(x).artifact.shipped,
}))
"""


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take the right to write anything in a folder."""
    inside = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in inside]
    for path in inside:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path, mode in zip(inside, modes, strict=True):
            path.chmod(mode)


def run_bare(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may write nowhere and has no compiler."""
    shutil.copy("carried.py", home)
    paths = os.pathsep.join([str(home), *filter(None, sys.path)])
    with read_only(home):
        return subprocess.run(
            [sys.executable, "-B", "-c", BARE],
            cwd=home,
            env={"PATH": "", "HOME": str(home), "PYTHONPATH": paths, **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.mark.skipif(sys.platform == "win32", reason="directories have no modes there")
@pytest.mark.parametrize("level", ["native", "x86-64-v2"])
def test_an_imported_cache_compiles_nothing_with_no_compiler_and_a_read_only_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    if level != "native" and kj.device("cpu").target.text.startswith("cpu:aarch64"):
        pytest.skip("levels of x86-64")
    run("warm", PLACE.partition(":")[0], "--target", f"cpu:{level}", "--target", "cuda:sm_90")
    run("cache", "export", "cache.kj")
    home = folder / "home"
    use_cache(home / ".cache" / "khaljit", monkeypatch)
    run("cache", "import", "cache.kj")
    done = run_bare(home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "counts": {"cached": 1},
        "tools": [None, None],
        "pinned": True,
    }
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="directories have no modes there")
def test_a_kernel_that_no_cache_has_says_what_is_missing(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    done = run_bare(home, KHALJIT_CACHE="0")
    assert done.returncode == 1
    assert "kernel scale is not in the cache, and no llvmlite is here" in done.stderr
    assert "khaljit warm --target cpu:" in done.stderr


def test_keys_are_equal_in_lists_and_files(folder: Path) -> None:
    fill()
    run("cache", "export", "cache.kj")
    with zipfile.ZipFile("cache.kj") as whole:
        listed = json.loads(whole.read(bundle.LIST))
    assert [one["key"] for one in listed] == sorted(one["key"] for one in data("ls"))
    assert all(Key.of(b"") != one["key"] for one in listed)
