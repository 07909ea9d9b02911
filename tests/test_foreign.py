"""Kernels of hand-written code: WGSL and SPIR-V on WebGPU, refusals elsewhere."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.backends.webgpu.device import WebGpuDevice
from khaljit.backends.webgpu.foreign import block_layout
from khaljit.foreign import CodeInterface

Rng = np.random.Generator

SCALE = """
struct Numbers { factor: f32, size: u32 }
NUMBERS
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < numbers.size) { y[id.x] = x[id.x] * numbers.factor; }
}
"""
IMMEDIATE = SCALE.replace("NUMBERS", "var<immediate> numbers: Numbers;")
UNIFORM = SCALE.replace("NUMBERS", "@group(0) @binding(5) var<uniform> numbers: Numbers;")
PARAMS = "x: const f32[:], y: f32[:], factor: f32, size: u32"

SPIRV = """
OpCapability Shader
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %main "twice" %id
OpExecutionMode %main LocalSize 4 1 1
OpDecorate %id BuiltIn GlobalInvocationId
OpDecorate %array ArrayStride 4
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
OpDecorate %data DescriptorSet 0
OpDecorate %data Binding 0
%void = OpTypeVoid
%function = OpTypeFunction %void
%u32 = OpTypeInt 32 0
%v3 = OpTypeVector %u32 3
%input = OpTypePointer Input %v3
%id = OpVariable %input Input
%array = OpTypeRuntimeArray %u32
%block = OpTypeStruct %array
%pointer = OpTypePointer StorageBuffer %block
%cell = OpTypePointer StorageBuffer %u32
%data = OpVariable %pointer StorageBuffer
%zero = OpConstant %u32 0
%main = OpFunction %void None %function
%start = OpLabel
%ids = OpLoad %v3 %id
%i = OpCompositeExtract %u32 %ids 0
%place = OpAccessChain %cell %data %zero %i
%old = OpLoad %u32 %place
%new = OpIAdd %u32 %old %old
OpStore %place %new
OpReturn
OpFunctionEnd
"""


@pytest.fixture
def gpu() -> WebGpuDevice:
    try:
        found = kj.device("webgpu")
    except kj.DeviceError as error:
        pytest.skip(f"no webgpu device: {error.message}")
    assert isinstance(found, WebGpuDevice)
    return found


@pytest.mark.parametrize("form", ["immediate", "uniform"])
def test_wgsl_is_launched_as_kernels_are(gpu: WebGpuDevice, form: str, rng: Rng) -> None:
    if form == "immediate" and not gpu.immediates:
        pytest.skip("the device has no immediates")
    code, uniform = (IMMEDIATE, None) if form == "immediate" else (UNIFORM, 5)
    scale = gpu.load(code, "scale", PARAMS, workgroup=64, uniform=uniform)
    values = rng.random(100, np.float32)
    x, y = gpu.array(values), gpu.zeros(100)
    scale[100](x, y, 2.0, 100)
    scale[100](x, y, size=50, factor=0.5)
    expected = np.where(np.arange(100) < 50, values * np.float32(0.5), values * 2)
    assert (y.numpy() == expected).all()
    scale[kj.Workgroups(1)](x[32:], y, 1.0, 68)
    assert (y.numpy()[:64] == values[32:96]).all()
    out = np.zeros(100, np.float32)
    scale[100](values, out, 4.0, 99)
    assert (out[:99] == values[:99] * 4).all()
    assert out[99] == 0
    scale[0](x, y, 9.0, 100)
    scale[1](gpu.zeros(0), gpu.zeros(0), 9.0, 0)
    assert (y.numpy()[:64] == values[32:96]).all()


def test_wgsl_in_encoders_profiles_and_on_indirect_grids(gpu: WebGpuDevice) -> None:
    scale = gpu.load(UNIFORM, "scale", PARAMS, workgroup=64, uniform=5, name="scaling")
    x, y = gpu.full(200, 1.0), gpu.zeros(200)
    counts = gpu.array(np.array([9, 2, 1, 1], np.uint32))
    with gpu.profile() as profile:
        encoder = gpu.encoder()
        with encoder.compute_pass() as p:
            p.dispatch(scale[200], x, y, 3.0, 200)
        with encoder.compute_pass("second") as p:
            p.dispatch(scale[kj.Indirect(counts, 1)], x, y, 5.0, 200)
        gpu.submit(encoder)
    assert y.numpy().tolist() == [5.0] * 128 + [3.0] * 72
    assert [entry.label for entry in profile.entries()] == ["scaling", "second"]


@pytest.mark.parametrize("form", ["immediate", "uniform"])
def test_wgsl_in_graphs(gpu: WebGpuDevice, form: str) -> None:
    if form == "immediate" and not gpu.immediates:
        pytest.skip("the device has no immediates")
    code, uniform = (IMMEDIATE, None) if form == "immediate" else (UNIFORM, 5)
    scale = gpu.load(code, "scale", PARAMS, workgroup=64, uniform=uniform)
    x, y, z = gpu.full(100, 3.0), gpu.zeros(100), gpu.zeros(100)
    counts = gpu.array(np.array([1, 1, 1], np.uint32))
    with gpu.capture() as graph:
        factor = graph.param("factor", kj.f32, default=2.0)
        out = graph.param("out", default=y)
        scale[100](x, out, factor, 100)
        scale[kj.Indirect(counts)](out, x, 1.0, 100)
    graph.launch()
    assert y.numpy().tolist() == [6.0] * 100
    graph.launch(factor=10.0, out=z)
    assert z.numpy().tolist() == [60.0] * 64 + [30.0] * 36
    counts.write(np.array([2, 1, 1], np.uint32))
    graph.launch()
    assert x.numpy().tolist() == [120.0] * 64 + [6.0] * 36


def test_numbers_stand_where_wgsl_has_them(gpu: WebGpuDevice) -> None:
    code = """
    struct Numbers { a: u32, b: vec3<f32>, c: f32, d: vec2<i32>, e: u32, f: vec4<u32> }
    @group(0) @binding(1) var<uniform> n: Numbers;
    @group(0) @binding(0) var<storage, read_write> out: array<f32>;
    @compute @workgroup_size(1)
    fn main() {
        out[0] = f32(n.a); out[1] = n.b.x; out[2] = n.b.y; out[3] = n.b.z; out[4] = n.c;
        out[5] = f32(n.d.x); out[6] = f32(n.d.y); out[7] = f32(n.e);
        out[8] = f32(n.f.x); out[9] = f32(n.f.w);
    }
    """
    params = "f32[:], u32, vec3, f32, ivec2, bool, uvec4"
    spread = gpu.load(code, params=params, workgroup=1, uniform=1)
    out = gpu.zeros(10)
    spread[1](out, 7, (1.5, 2.5, 3.5), -4.0, (-5, 6), True, (8, 9, 10, 11))
    assert out.numpy().tolist() == [7, 1.5, 2.5, 3.5, -4, -5, 6, 1, 8, 11]


@pytest.mark.parametrize(
    ("kinds", "size"),
    [("", 0), ("u32, vec3, f32", 32), ("f16, f32", 8), ("u32, f64", 16), ("vec3, bool", 16)],
)
def test_the_layout_of_numbers(kinds: str, size: int) -> None:
    interface = CodeInterface.parse(kinds, "main", 1, None, "k")
    layout, whole = block_layout(interface.numbers, "k")
    assert whole == size
    assert struct.calcsize(layout) <= size


def test_spirv_is_launched_as_kernels_are(gpu: WebGpuDevice, tmp_path: Path, rng: Rng) -> None:
    assembler = shutil.which("spirv-as") or shutil.which("spirv-as", path=_scripts())
    if assembler is None:
        pytest.skip("spirv-as is not installed")
    source, words = tmp_path / "twice.spvasm", tmp_path / "twice.spv"
    source.write_text(SPIRV)
    command = [assembler, "--target-env", "spv1.3", str(source), "-o", str(words)]
    subprocess.run(command, check=True)
    with pytest.raises(kj.ArgumentValueError, match=r"the code says \(4, 1, 1\)"):
        gpu.load(words.read_bytes(), "twice", "u32[:]", workgroup=(4, 2))
    twice = gpu.load(words.read_bytes(), "twice", "u32[:]", workgroup=4)
    values = rng.integers(0, 1 << 32, 20, np.uint32)
    array = gpu.array(values)
    twice[18](array[:18])
    assert (array.numpy()[:16] == values[:16] * 2).all()


def _scripts() -> str:
    import sysconfig

    return sysconfig.get_path("scripts")


def test_wrong_arguments_are_explained(gpu: WebGpuDevice) -> None:
    scale = gpu.load(UNIFORM, "scale", PARAMS, workgroup=64, uniform=5)
    x, y = gpu.zeros(200), gpu.zeros(200)
    wrong = [
        ((x, y, 1.0), "missing a required argument: 'size'"),
        ((x, gpu.zeros(200, kj.i32), 1.0, 1), "parameter y expects"),
        ((x, gpu.zeros((2, 2)), 1.0, 1), "an array with 2 axes"),
        ((x, y, "1", 1), "parameter factor expects"),
        ((x, y, 1.0, -1), "not between 0 and"),
        ((x[::2], y, 1.0, 1), "parameter x is strided"),
        ((x[1:], y, 1.0, 1), "begins at byte 4 of its buffer"),
        ((x, x, 1.0, 1), "parameters x and y share a buffer"),
        ((x[:128], x[64:], 1.0, 1), "overlap in part"),
        ((kj.device("cpu").zeros(3), y, 1.0, 1), "lives on cpu"),
        ((np.zeros(3, np.float32), y, 1.0, 1), "a NumPy array beside arrays"),
    ]
    for args, message in wrong:
        with pytest.raises(kj.ArgumentError, match=message):
            scale[1](*args)
    with pytest.raises(kj.ArgumentValueError, match="at most 65535 on an axis"):
        scale[kj.Workgroups(65_536)](x, y, 1.0, 1)
    frozen = np.zeros(64, np.float32)
    frozen.flags.writeable = False
    scale[1](frozen, np.zeros(64, np.float32), 1.0, 1)
    with pytest.raises(kj.ArgumentValueError, match="read-only"):
        scale[1](np.zeros(64, np.float32), frozen, 1.0, 1)


@pytest.mark.parametrize(
    ("code", "entry", "params", "message"),
    [
        ("nonsense", "main", "", "loading kernel main"),
        (b"nonsense", "main", "", "the code is no SPIR-V"),
        (UNIFORM, "nope", "", "Unable to find entry point 'nope'"),
        (UNIFORM, "scale", "f32[:]", "making a pipeline of kernel scale"),
        (UNIFORM, "scale", "f32[;]", "is no axis"),
        (UNIFORM, "scale", "f33", "is no type"),
        (UNIFORM, "scale", "x: f32[:], x: f32[:]", "have one name"),
        (UNIFORM, "scale", "const f32", "is const"),
        (UNIFORM, "scale", "i8", "WGSL has no numbers of type i8"),
        (UNIFORM, "scale", ", ".join(["vec4"] * 40), "640 bytes of numbers"),
    ],
)
def test_wrong_code_is_refused(
    gpu: WebGpuDevice, code: bytes | str, entry: str, params: str, message: str
) -> None:
    with pytest.raises(kj.KhaljitError, match=message):
        gpu.load(code, entry, params, workgroup=64)


def test_the_workgroup_must_be_the_codes(gpu: WebGpuDevice) -> None:
    code = """
    override across: u32 = 3;
    @compute @workgroup_size(2u, 3) fn flat() {}
    @workgroup_size(4) @compute
    fn line() {}
    @compute @workgroup_size(across) fn open() {}
    """
    for entry, workgroup in (("flat", (2, 3)), ("line", 4), ("open", 3)):
        gpu.load(code, entry, workgroup=workgroup)[10]()
    for entry, workgroup in (("flat", 6), ("line", (2, 3))):
        with pytest.raises(kj.ArgumentValueError, match="the code says"):
            gpu.load(code, entry, workgroup=workgroup)
    gpu.synchronize()


@pytest.mark.parametrize("name", ["cpu", "interpreter", "null"])
def test_devices_that_run_no_code_say_so(name: str) -> None:
    device: Device = kj.device(name)
    with pytest.raises(kj.CapabilityError, match="runs no hand-written code"):
        device.load(UNIFORM, "scale", PARAMS, workgroup=64)
    with pytest.raises(kj.ArgumentValueError, match="workgroup=0"):
        device.load(UNIFORM, "scale", PARAMS, workgroup=0)
