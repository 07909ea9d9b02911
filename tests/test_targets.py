"""Targets as text: every target's text makes it again, with the same key, on any machine."""

from __future__ import annotations

import sys

import llvmlite
import pytest

import khaljit as kj
from khaljit.backends.base import Device, Target
from khaljit.backends.cpu import target as cpu_target
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.cuda import assemble as assembling
from khaljit.backends.cuda.target import FORMS, Cuda
from khaljit.backends.webgpu.target import WebGpu
from khaljit.codegen.caps import webgpu
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.codegen.webgpu.lower import Variant
from khaljit.compiler import find
from khaljit.devices import target

HERE = Cpu(CpuTarget("x86-64"))
FULL = webgpu(
    frozenset({"shader-f16", "shader-int64", "subgroup"}),
    max_workgroup=1024,
    max_workgroup_size=(1024, 1024, 64),
    shared_bytes=49152,
    immediates=256,
    fused=False,
    rounded=False,
)
TARGETS: list[Target] = [
    *(Cpu(CpuTarget(level, system=one)) for level in LEVELS for one in ("linux", "win32")),
    Cpu(CpuTarget("x86-64-v4", ("+avx512vbmi", "+avx512vnni"))),
    *(Cuda(name, form=form) for name in (*ARCHITECTURES, "ptx") for form in FORMS),
    WebGpu(webgpu()),
    WebGpu(webgpu(), Variant(at_origin=True)),
    WebGpu(webgpu(immediates=128)),
    WebGpu(FULL, Variant(at_origin=True, fold=True)),
    WebGpu(FULL, Variant(bindings=(0, 1, 0))),
    WebGpu(FULL, Variant(bindings=(0, 1))),
    WebGpu(FULL, Variant(bindings=(), group=(32, 2, 1))),
]


@pytest.mark.parametrize("made", TARGETS, ids=lambda made: made.text)
def test_the_text_of_a_target_makes_it_again(made: Target) -> None:
    again = target(made.text)
    assert type(again) is type(made)
    assert again.key_parts() == made.key_parts()
    assert again.text == made.text
    assert again.name == made.name


def test_texts_and_keys_tell_all_targets_apart() -> None:
    assert len({made.text for made in TARGETS}) == len(TARGETS)
    assert len({str(made.key_parts()) for made in TARGETS}) == len(TARGETS)


def test_the_text_of_a_device_makes_its_target(device: Device) -> None:
    assert target(device.target.text).key_parts() == device.target.key_parts()


def test_short_names() -> None:
    assert target("cpu:native").key_parts() == kj.device("cpu").target.key_parts()
    assert target("cpu:aarch64").text == f"cpu:aarch64-{sys.platform}"
    assert target("webgpu").text == "webgpu"
    assert target("cuda:ptx").text == "cuda:ptx"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu:x86-64-v9", "x86-64-v9"),
        ("cpu:x86-64-v3-plan9", "plan9"),
        ("cpu:x86-64-v3+", "no processor"),
        ("cuda:sm_91", "sm_91"),
        ("cuda:sm_90/sideways", "sideways"),
        ("webgpu:f17", "f17"),
        ("webgpu:shared=many", "many"),
        ("webgpu:memory=1", "memory"),
        ("webgpu:f16/twisted", "twisted"),
        ("tpu", "tpu"),
    ],
)
def test_wrong_texts_are_explained(text: str, message: str) -> None:
    with pytest.raises(kj.ArgumentError, match=message):
        target(text)


@kj.jit
def scale(a, s) -> None:  # type: ignore[no-untyped-def]
    i = kj.global_id(0)
    if i < a.size:
        a[i] = a[i] * s


@pytest.mark.parametrize(
    "text",
    [
        *("cpu:native", "cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"),
        *("cpu:aarch64-linux", "cpu:aarch64-darwin", "cpu:x86-64-v3-win32"),
        *("cuda:sm_75", "cuda:sm_90", "cuda:sm_120", "cuda:ptx"),
        *("webgpu", "webgpu:f16+int64,shared=32768"),
    ],
)
def test_compiling_needs_no_device(text: str) -> None:
    compiled = scale.compile("f32[:], f32", target=text)
    assert compiled.artifact.payload
    assert scale.compile("f32[:], f32", target=target(text)).key == compiled.key


def test_a_gpu_takes_portable_ptx_only_where_nothing_makes_better_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembling, "tool_version", lambda name: None)
    monkeypatch.setenv("KHALJIT_CACHE_SALT", "of this test")
    request = scale.request("f64[:], f64", target="cuda:sm_90/folded")
    assert find(*request) is None
    scale.compile("f64[:], f64", target="cuda:ptx")
    assert find(*request) is None  # that is for grids that are not folded
    made = scale.compile("f64[:], f64", target="cuda:ptx/folded")
    found = scale.compile("f64[:], f64", target="cuda:sm_90/folded")
    assert found.cached
    assert found.artifact is made.artifact
    monkeypatch.setattr(assembling, "tool_version", lambda name: "1.2")
    assert find(*request) is None


def test_a_processor_takes_the_highest_level_below_its_own_where_nothing_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_SALT", "of this test")
    for level in ("x86-64", "x86-64-v3", "aarch64"):
        scale.compile("f64[:], f64", target=f"cpu:{level}-linux")
    request = scale.request("f64[:], f64", target="cpu:x86-64-v4-linux")
    assert find(*request) is None
    monkeypatch.setattr(cpu_target, "_llvmlite_version", lambda: None)
    found = find(*request)
    assert found is not None
    assert found.key == scale.compile("f64[:], f64", target="cpu:x86-64-v3-linux").key
    below = scale.request("f64[:], f64", target="cpu:x86-64-v2-linux")
    found = find(*below)
    assert found is not None
    assert found.key == scale.compile("f64[:], f64", target="cpu:x86-64-linux").key
    with pytest.raises(kj.DeviceError, match="no llvmlite is here"):
        scale.compile("f64[:], f64", target="cpu:x86-64-v4-win32")


def test_the_version_of_llvmlite_is_told_without_loading_it() -> None:
    assert HERE.tool_version("llvmlite") == llvmlite.__version__
    assert HERE.tool_version("ptxas") is None


def test_portable_ptx_is_text_for_the_oldest_architecture() -> None:
    compiled = scale.compile("f32[:], f32", target="cuda:ptx")
    assert b".target sm_75" in compiled.artifact.payload
    assert compiled.artifact.tool is None
