"""``khaljit doctor`` and what ``khaljit devices`` says of adapters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import khaljit as kj
from khaljit import doctor
from khaljit.backends.webgpu import adapters
from khaljit.cli import app

runner = CliRunner()


def test_the_doctor_runs_a_kernel_on_every_device() -> None:
    done = runner.invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    for word in ("system", "packages", "cache", "ok cpu", "ok interpreter", "auto"):
        assert word in done.stdout


def test_a_device_that_computes_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    null = kj.device("null")
    monkeypatch.setattr(kj, "devices", lambda: {"broken": null})
    done = runner.invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "a kernel gives a wrong result" in " ".join(done.stdout.split())


def test_the_doctor_says_what_to_install_where_no_adapter_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = kj.DeviceError("there is no WebGPU adapter", mend=adapters.MEND)
    monkeypatch.setattr(kj, "devices", lambda: {"webgpu": missing})
    done = runner.invoke(app, ["doctor"])
    assert done.exit_code == 0
    for system, command in adapters.DRIVERS.items():
        assert system in done.stdout
        assert command.split()[0] in done.stdout


def test_devices_shows_adapters_with_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = SimpleNamespace(
        info={
            "device": "a GPU",
            "adapter_type": "IntegratedGPU",
            "backend_type": "Vulkan",
            "description": "a driver",
        },
        features=frozenset({"immediates", "subgroup"}),
        limits={
            "max-compute-workgroup-size-x": 256,
            "max-compute-workgroup-size-y": 256,
            "max-compute-workgroup-size-z": 64,
            "max-compute-invocations-per-workgroup": 256,
            "max-compute-workgroup-storage-size": 16384,
            "max-storage-buffer-binding-size": 1 << 30,
            "max-storage-buffers-per-shader-stage": 8,
        },
    )

    def listed() -> list[Any]:
        return [adapter, adapter]

    monkeypatch.setattr(adapters, "adapters", listed)
    facts = doctor.adapter_facts()
    assert list(facts) == ["webgpu:0", "webgpu:1"]
    assert facts["webgpu:1"]["features"] == "immediates, subgroup"
    assert "shader-f64 (no f64)" in facts["webgpu:1"]["missing"]
    done = runner.invoke(app, ["devices"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "webgpu:1" in done.stdout
    assert "256 x 256 x 64" in done.stdout
    assert "auto takes" in done.stdout


@pytest.mark.parametrize(("stage", "sign"), [("spirv", "OpCapability"), ("wgsl", "@compute")])
def test_show_prints_the_code_of_a_webgpu_device(stage: str, sign: str) -> None:
    try:
        kj.device("webgpu")
    except kj.DeviceError as error:
        pytest.skip(f"no webgpu device: {error.message}")
    command = ["show", "examples/counter.py:pick", "--args", "f32[:], f32, u32[:], u32[:]"]
    done = runner.invoke(app, [*command, "--stage", stage, "--device", "webgpu"])
    assert done.exit_code == 0, done.output
    assert sign in done.stdout


def test_the_doctor_says_how_kernels_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> doctor.Finding:
        return next(one for one in doctor.examine() if one.subject == "launching")

    monkeypatch.setattr(doctor, "NATIVE", object())
    assert told().good
    monkeypatch.setattr(doctor, "NATIVE", None)
    assert "compiler" in told().mends[0]
    monkeypatch.setenv("KHALJIT_NATIVE", "0")
    assert told().mends == ("unset KHALJIT_NATIVE",)
    assert not told().broken
