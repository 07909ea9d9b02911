"""Recording what a program uses, and the files that say it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.jit import jit
from khaljit.manifest import Manifest, Recorder, Specialisation
from khaljit.tracer.ir import Options

SCRIPT = """
import os, sys
import numpy as np
import khaljit as kj

@kj.jit
def scale(a: kj.Array1[kj.f32], s: kj.f32) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] *= s

@kj.jit(workgroup=64, fastmath=True)
def add(a, b) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] += b[i]

if __name__ == "__main__":
    dtype = np.dtype(sys.argv[1])
    a = np.ones(100, np.float32)
    scale[100](a, 2.0)
    add[100](a.astype(dtype), a.astype(dtype))
    add.with_options(workgroup=32)[100](a.astype(dtype), a.astype(dtype))
    if "die" in sys.argv:
        os._exit(3)
"""


def record(
    folder: Path, *args: str, manifest: str = "manifest.json", check: bool = True
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(SCRIPT)
    environment = {"KHALJIT_RECORD": manifest, "KHALJIT_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "program.py", *args],
        cwd=folder,
        env={**os.environ, **environment, "KHALJIT_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=check,
    )


def test_a_program_records_what_it_uses(tmp_path: Path) -> None:
    assert record(tmp_path, "float32").stderr == ""
    text = (tmp_path / "manifest.json").read_text()
    target = json.dumps(kj.device("cpu").target.text)
    assert text == textwrap.dedent(f"""\
        {{
          "khaljit manifest": 1,
          "specialisations": [
            {{"kernel": "program.py:add", "signature": "f32[n], f32[n]", "options": {{"fastmath": true, "workgroup": [32, 1, 1]}}, "targets": [{target}]}},
            {{"kernel": "program.py:add", "signature": "f32[n], f32[n]", "options": {{"fastmath": true, "workgroup": [64, 1, 1]}}, "targets": [{target}]}},
            {{"kernel": "program.py:scale", "signature": "f32[:], f32", "targets": [{target}]}}
          ]
        }}
        """)  # noqa: E501
    before = os.stat(tmp_path / "manifest.json").st_mtime_ns
    record(tmp_path, "float32")  # warm: the same uses, so nothing is written
    assert os.stat(tmp_path / "manifest.json").st_mtime_ns == before


def test_what_a_program_itself_defines_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import enum\nimport numpy as np\nimport khaljit as kj\nprint('run')\n"
        "class Mode(enum.Enum):\n    HALF = 2\n"
        "@kj.struct\nclass Body:\n    mass: kj.f32\n"
        "def twice(x):\n    return x * 2.0\n"
        "@kj.jit\ndef change(a, b, mode, f):\n"
        "    a[0].mass = f(b.mass) / mode.value\n"
        "bodies = np.zeros(3, np.dtype(Body))\n"
        "change[1](kj.device('cpu').zeros(3, Body), Body(2.0), Mode.HALF, twice)\n"
    )
    environment = {"KHALJIT_RECORD": "m.json", "KHALJIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "run\n"  # once
    (one,) = [one for one in Manifest.read(tmp_path / "m.json").targets if "change" in one.kernel]
    assert one.kernel == "program.py:change"
    assert one.signature == (
        "program.py:Body[:], program.py:Body, =program.py:Mode.HALF, =program.py:twice"
    )
    done = subprocess.run(
        [sys.executable, "-m", "khaljit", "warm", "m.json"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "there" in done.stdout.splitlines()[-1], done.stdout
    assert "compiled" not in done.stdout


def test_several_processes_record_into_one_file_however_they_end(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    environment = {"KHALJIT_RECORD": "manifest.json", "KHALJIT_CACHE_DIR": str(tmp_path / "cache")}
    kinds = ["int8", "uint8", "int16", "int32", "uint32", "float32"]
    running = [
        subprocess.Popen(
            [sys.executable, "program.py", kind, "die"],
            cwd=tmp_path,
            env={**os.environ, **environment, "KHALJIT_DEVICE": "interpreter"},
        )
        for kind in kinds
    ]
    assert [one.wait() for one in running] == [3] * len(kinds)
    manifest = Manifest.read(tmp_path / "manifest.json")
    assert len(manifest.targets) == 1 + 2 * len(kinds)
    assert sorted(os.listdir(tmp_path)) == ["cache", "manifest.json", "manifest.json.lock", "program.py"]  # fmt: skip  # noqa: E501


def test_threads_record_into_one_file(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    path = tmp_path / "manifest.json"
    recorders = [Recorder(str(path)) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(64):
            use = Specialisation("m:k", f"i32[:], ={number % 16}")
            pool.submit(recorders[number % 4].add, use, f"target{number % 3}")
    manifest = Manifest.read(path)
    assert len(manifest.targets) == 16
    assert sum(map(len, manifest.targets.values())) == len({(n % 16, n % 3) for n in range(64)})


def test_every_option_can_be_asked_for_again() -> None:
    """What a manifest says of options, `jit` takes."""
    options = {one.name for one in dataclasses.fields(Options)}
    assert options | {"workgroup", "salt"} <= set(inspect.signature(jit).parameters)
    unusual: dict[str, Any] = {name: not getattr(Options(), name) for name in options}
    made = jit(scale.__wrapped__, workgroup=(8, 2), salt="x", **unusual)  # type: ignore[attr-defined]
    assert made._settings.unusual() == {**unusual, "workgroup": [8, 2, 1], "salt": "x"}


@kj.jit
def scale(a: kj.Array1[kj.f32], s: kj.f32) -> None:
    a[0] *= s


def test_manifests_are_merged() -> None:
    one, other = Manifest(), Manifest()
    first, second = Specialisation("m:a", "f32[:]"), Specialisation("m:b", "f32[:]")
    one.add(first, "cpu")
    other.add(first, "cuda:sm_90")
    other.add(second, "cpu")
    one.merge(other)
    assert one.targets == {first: {"cpu", "cuda:sm_90"}, second: {"cpu"}}
    assert Manifest.parse(str(one)).targets == one.targets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"khaljit manifest": 2, "specialisations": []}',
        '{"khaljit manifest": 1, "specialisations": [{"kernel": "m:k"}]}',
        '{"khaljit manifest": 1, "specialisations": [{"kernel": 1, "signature": "", "targets": []}]}',  # noqa: E501
        '{"khaljit manifest": 1, "specialisations": [["m:k", "f32", []]]}',
    ],
)
def test_what_is_no_manifest_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(kj.ArgumentError, match="no manifest"):
        Manifest.read(path)
    done = record(tmp_path, "float32", check=False)
    assert done.returncode == 1
    assert "is no manifest" in done.stderr
    assert path.read_text() == text


def test_a_manifest_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = record(tmp_path, "float32", manifest="no/such/folder/manifest.json", check=False)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "mend: set KHALJIT_RECORD" in done.stderr


@kj.jit
def folded(a: kj.Array1[kj.i32], b: kj.Array1[kj.i32]) -> None:
    i = kj.global_id(0)
    if i < a.size:
        a[i] = b[i] + 1


def test_programs_that_a_launch_needs_besides_are_recorded(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On WebGPU, two views of one buffer take another program than two buffers do."""
    path = tmp_path / "manifest.json"
    monkeypatch.setenv("KHALJIT_RECORD", str(path))
    monkeypatch.setattr(device, "modules", None)  # what was loaded before is recorded no more
    whole = device.array(np.arange(64, dtype=np.int32))
    folded[32](whole[:32], whole[32:])
    folded[32](device.array(whole[:32]), device.array(whole[32:]))
    targets = {
        target
        for one, targets in Manifest.read(path).targets.items()
        if one.kernel == f"{__name__}:folded"
        for target in targets
    }
    plain = device.target.text
    assert plain in targets
    if device.kind == "webgpu":
        assert f"{plain}/offset,bindings=0.0" in targets


def test_what_others_cannot_find_is_not_recorded_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    monkeypatch.setenv("KHALJIT_RECORD", str(path))

    @kj.jit
    def local(a: kj.Array1[kj.f32]) -> None:
        a[0] = 1.0

    with pytest.warns(UserWarning, match="local is not recorded: no name in a module"):
        local.compile("f32[:]")
    local.compile("f32[n]")  # no second warning, which would be an error
    with pytest.warns(UserWarning, match="takes_function is not recorded: f32.:., <<lambda>>"):
        takes_function.compile(np.ones(4, np.float32), lambda x: x)
    assert not path.exists()


@kj.jit
def takes_function(a: kj.Array1[kj.f32], f: kj.Const) -> None:  # type: ignore[type-arg]
    a[0] = f(a[0])
