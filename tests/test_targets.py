"""Targets as text: every target's text makes it again, with the same key, on any machine."""

from __future__ import annotations

import sys

import pytest

import khaljit as kj
from khaljit.backends.base import Device, Target
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.cuda.target import FORMS, Cuda
from khaljit.backends.webgpu.target import WebGpu
from khaljit.codegen.caps import webgpu
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.codegen.webgpu.lower import Variant
from khaljit.devices import target

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
def scale(a: kj.Array1[kj.f32], s: kj.f32) -> None:
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


def test_portable_ptx_is_text_for_the_oldest_architecture() -> None:
    compiled = scale.compile("f32[:], f32", target="cuda:ptx")
    assert b".target sm_75" in compiled.artifact.payload
    assert compiled.artifact.tool is None
