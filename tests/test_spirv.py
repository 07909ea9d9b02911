"""SPIR-V: valid modules, the words that the assembler makes, and the oracle's results."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.caps import Caps, webgpu
from khaljit.codegen.legalise import legalise
from khaljit.codegen.program import Program
from khaljit.codegen.spirv.emit import SpirvEmitter
from khaljit.codegen.spirv.module import Extended, Id, Instruction, Module, Number, Text
from khaljit.codegen.spirv.table import ENUMERANTS, EXTENDED, OPCODES
from khaljit.codegen.webgpu.emit import WebGpuEmitter, uses_compare_exchange
from khaljit.codegen.webgpu.lower import PLAIN_VARIANT, Variant, lower
from khaljit.tracer.dtypes import (
    ALL,
    INTEGERS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    i64,
    u8,
    u32,
    u64,
)
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Trace
from khaljit.tracer.ops import COMPARISONS, MATH, OPS, Op, TypingError
from khaljit.tracer.passes.pipeline import optimise
from tests.building import bits_equal, edge_values, pointwise, run_pointwise
from tests.webgpu_kernels import KERNELS, Kernel, agrees, array, expected, legal
from tests.webgpu_runner import (
    BARE,
    adapter_reason,
    device_caps,
    keeps_subnormals,
    run,
    subgroup_size,
)

ROWS = {
    "full": webgpu(
        frozenset(
            {
                "shader-int64",
                "shader-f16",
                "shader-f64",
                "shader-float32-atomic",
                "shader-int64-atomic-all-ops",
                "subgroup",
                "subgroup-barrier",
            }
        ),
        immediates=128,
    ),
    "bare": webgpu(),
}


@functools.cache
def tool(name: str) -> str | None:
    """The path of a program of SPIRV-Tools, from its wheel."""
    found = importlib.util.find_spec("cmeel")
    if found is None or found.submodule_search_locations is None:
        return None
    site = Path(next(iter(found.submodule_search_locations))).parent
    program = site / "cmeel.prefix" / "bin" / name
    return str(program) if program.exists() else None


def checked(program: Program, folder: Path) -> None:
    """The module is valid, and the assembler makes the same words of its text."""
    validator, assembler = tool("spirv-val"), tool("spirv-as")
    if validator is None or assembler is None:
        pytest.skip("SPIRV-Tools are not installed")
    binary, text, again = folder / "module.spv", folder / "module.spvasm", folder / "again.spv"
    binary.write_bytes(program.binary)
    text.write_text(program.text)
    valid = subprocess.run(
        [validator, "--target-env", "vulkan1.1", str(binary)], capture_output=True, text=True
    )
    assert valid.returncode == 0, valid.stdout + valid.stderr + program.text
    made = subprocess.run(
        [assembler, "--preserve-numeric-ids", "--target-env", "spv1.3", str(text), "-o", again],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    words = again.read_bytes()
    # The third word names the generator.
    assert (words[:8], words[12:]) == (program.binary[:8], program.binary[12:])


def runnable(name: str, caps: Caps) -> Kernel:
    kernel = KERNELS[name]
    for dtype in kernel.needs:
        if dtype not in caps.dtypes:
            pytest.skip(f"{caps.name} has no {dtype.name}")
    return kernel


@pytest.fixture
def adapter() -> None:
    reason = adapter_reason()
    if reason is not None:
        pytest.skip(reason)


def outcome(kernel: Kernel, caps: Caps, variant: Variant = PLAIN_VARIANT, **how: Any) -> None:
    """Run a kernel here and compare."""
    trace = legal(kernel, caps)
    program = WebGpuEmitter(caps, variant).emit(trace)
    found = [one.copy() for one in kernel.arrays]
    run(trace, program, found, kernel.scalars, kernel.grid, **how)
    for wanted, own in zip(expected(kernel, subgroup_size(caps)), found, strict=True):
        assert agrees(kernel, wanted, own), f"{wanted}\n{own}\n{program.text}"


# Modules.


@pytest.mark.parametrize("target", ROWS)
@pytest.mark.parametrize("name", KERNELS)
def test_modules_are_valid_and_print_what_they_encode(
    name: str, target: str, tmp_path: Path
) -> None:
    caps = ROWS[target]
    kernel = runnable(name, caps)
    program = SpirvEmitter(caps).emit(legal(kernel, caps))
    checked(program, tmp_path)


def test_folded_modules_are_valid(tmp_path: Path) -> None:
    caps = ROWS["full"]
    for name in ("add", "mandelbrot", "workgroup sums"):
        program = SpirvEmitter(caps, Variant(fold=True)).emit(legal(KERNELS[name], caps))
        checked(program, tmp_path)


def test_every_instruction_encodes_its_length_and_opcode() -> None:
    one = Instruction("OpIAdd", (Id(5), Id(6)), Id(1), Id(7))
    assert one.words == (5 << 16 | 128, 1, 7, 5, 6)
    assert one.text == "%7 = OpIAdd %1 %5 %6"
    text = Instruction("OpName", (Id(3), Text("abcd")))
    assert text.words == (4 << 16 | 5, 3, 0x64636261, 0)
    wide = Instruction("OpConstant", (Number(i64, (1 << 64) - 2),), Id(1), Id(2))
    assert wide.words == (5 << 16 | 43, 1, 2, 0xFFFFFFFE, 0xFFFFFFFF)
    assert wide.text == "%2 = OpConstant %1 -2"
    assert Extended("Fma").name in EXTENDED
    assert len(set(OPCODES.values())) == len(OPCODES)
    assert "None" in ENUMERANTS


def test_types_and_constants_are_made_once() -> None:
    module = Module()
    word = module.type("OpTypeInt", 32, 0)
    assert module.type("OpTypeInt", 32, 0) == word
    assert module.type("OpTypeInt", 32, 1) != word
    one = module.constant("OpConstant", word, Number(u32, 1))
    assert module.constant("OpConstant", word, Number(u32, 1)) == one
    assert module.constant("OpConstant", word, Number(u32, 2)) != one


def test_capabilities_are_those_that_the_kernel_needs() -> None:
    caps = ROWS["full"]

    def capabilities(name: str) -> set[str]:
        text = SpirvEmitter(caps).emit(legal(KERNELS[name], caps)).text
        return {line.split()[1] for line in text.splitlines() if "OpCapability" in line}

    assert capabilities("add") == {"Shader"}
    assert capabilities("f64") == {"Shader", "Float64", "Int64"}  # bits are hidden as integers
    assert capabilities("f16") == {"Shader", "Float16", "StorageBuffer16BitAccess"}
    assert capabilities("float sum") == {"Shader", "AtomicFloat32AddEXT"}
    assert "Int64" in capabilities("long numbers i64")
    assert "Int64" not in capabilities("add")
    bare = SpirvEmitter(ROWS["bare"]).emit(legal(KERNELS["long numbers i64"], ROWS["bare"]))
    assert "Int64" not in bare.text


def test_buffers_have_their_own_type_where_all_accesses_do() -> None:
    caps = ROWS["full"]

    def cells(name: str) -> list[DType]:
        lowered = lower(legal(KERNELS[name], caps), caps, PLAIN_VARIANT)
        return [one.memory.element.leaves[0][1] for one in lowered.trace.arrays]

    assert cells("vectors") == [f32, f32]
    assert cells("f16") == [f16, f16]
    assert cells("long numbers u64") == [u64, u64, u64]
    assert cells("bytes u8") == [u32, u32]
    assert cells("float extremes") == [f32, u32]


def test_only_written_buffers_are_writable() -> None:
    caps = ROWS["full"]
    program = SpirvEmitter(caps).emit(legal(KERNELS["add"], caps))
    assert program.interface is not None
    assert [one.writable for one in program.interface.bindings] == [True, False]
    assert program.text.count("NonWritable") == 1


def test_buffers_of_one_type_do_not_share_it() -> None:
    """A driver took what is only read in one for unchanging in all, and loads for each other."""
    text = SpirvEmitter(ROWS["full"]).emit(legal(KERNELS["stores in turn"], ROWS["full"])).text
    names = [line.split()[-1] for line in text.splitlines() if line.startswith("OpName")]
    assert {'"Array0"', '"Array1"', '"Array2"'} <= set(names)
    assert text.count("OpTypeRuntimeArray") == 3


def test_values_leave_loops_through_variables() -> None:
    """No id that is made between a loop's header and its merge block is used after it."""
    caps = ROWS["full"]
    for name in ("search", "nested", "after a loop", "mandelbrot"):
        lines = SpirvEmitter(caps).emit(legal(KERNELS[name], caps)).text.splitlines()
        merges: list[tuple[str, set[str]]] = []
        gone: set[str] = set()
        for line in lines:
            head, _, rest = line.rpartition(" = ")
            used = {word for word in rest.split() if word.startswith("%")}
            assert not used & gone, f"{line} in {name}"
            if rest.startswith("OpLoopMerge"):
                merges.append((rest.split()[1], set()))
            if rest == "OpLabel" and merges and merges[-1][0] == head:
                gone |= merges.pop()[1]
            elif head and rest != "OpLabel":
                for _, inside in merges:
                    inside.add(head)


# Running.


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_what_the_oracle_gives(name: str) -> None:
    caps = device_caps()
    outcome(runnable(name, caps), caps)


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_the_same_without_optional_features(name: str) -> None:
    caps = device_caps(*BARE)
    outcome(runnable(name, caps), caps)


_UNARY = (Op.NEG, Op.ABS, Op.NOT, Op.REVERSE_BITS, Op.POPCOUNT, Op.CLZ, Op.CTZ)
_ROUNDING = (Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.SQRT)
_BINARY = (
    *(Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FLOORDIV, Op.MOD, Op.MULHI),
    *(Op.MIN, Op.MAX, Op.MINIMUM, Op.MAXIMUM, Op.SHL, Op.SHR, Op.AND, Op.OR, Op.XOR),
    *sorted(COMPARISONS, key=lambda op: op.value),
)


def _takes(op: Op, dtype: DType) -> bool:
    """Whether an operation exists in a type."""
    try:
        result = OPS[op].result
        assert result is not None
        result(*(dtype,) * (OPS[op].arity or 0))
    except TypingError:
        return False
    return True


def _pointwise(trace: Trace, operands: tuple[DType, ...], result: DType, what: str) -> None:
    rng = np.random.default_rng(11)
    data = [_flushed(dtype, edge_values(dtype, 400, rng)) for dtype in operands]
    wanted = run_pointwise(trace, data, result)
    caps = device_caps()
    program = WebGpuEmitter(caps).emit(legalise(optimise(trace), caps))
    found = np.zeros_like(wanted)
    run(trace, program, [*data, found], [], (400, 1, 1))
    same = bits_equal(result, _flushed(result, wanted), _flushed(result, found))
    assert same.all(), f"{what}: {[one[~same] for one in data]}, {wanted[~same]}, {found[~same]}"


def _flushed(dtype: DType, data: Array) -> Array:
    """Without subnormal numbers, if the adapter takes them for 0."""
    if keeps_subnormals() or dtype not in (f32, bf16):
        return data
    unsigned = np.dtype(np.uint32 if dtype is f32 else np.uint16)
    bits = data.view(unsigned)
    normal = np.bitwise_and(bits, 0x7F800000 if dtype is f32 else 0x7F80) != 0
    return np.where(normal, bits, 0).astype(unsigned).view(data.dtype)


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("op", [*_UNARY, *_ROUNDING, *_BINARY, Op.FMA], ids=repr)
def test_operations_give_what_the_oracle_gives(op: Op) -> None:
    caps, arity = device_caps(), OPS[op].arity or 0
    for dtype in (*INTEGERS, f32, f16, bf16, f64, bool_):
        if dtype not in caps.dtypes | {f16, bf16} or not _takes(op, dtype):
            continue
        operands = (dtype,) * arity
        trace = pointwise(lambda b, *v: b.pure(op, v), operands, _result(op, dtype))
        _pointwise(trace, operands, _result(op, dtype), f"{op} {dtype}")


def _result(op: Op, dtype: DType) -> DType:
    if op in COMPARISONS:
        return bool_
    return i32 if op in (Op.POPCOUNT, Op.CLZ, Op.CTZ) else dtype


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("source", ALL, ids=repr)
def test_casts_give_what_the_oracle_gives(source: DType) -> None:
    taken = device_caps().dtypes | {f16, bf16}
    for target in ALL:
        if target is not source and {source, target} <= taken:
            trace = pointwise(lambda b, v, t=target: b.cast(v, t), (source,), target)
            _pointwise(trace, (source,), target, f"{source} to {target}")


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("op", sorted(MATH - {Op.TGAMMA, Op.LGAMMA}, key=repr), ids=repr)
def test_functions_keep_the_bits_of_their_expansions(op: Op) -> None:
    """Drivers would take floats for real numbers and make large errors of small ones."""
    operands = (f32,) * (OPS[op].arity or 0)
    caps = device_caps()
    trace = pointwise(lambda b, *v: b.pure(op, v), operands, f32)
    expansion = legalise(optimise(trace), caps)
    rng = np.random.default_rng(3)
    data = [edge_values(f32, 2000, rng) for _ in operands]
    small = [(rng.standard_normal(2000) * 10).astype(np.float32) for _ in operands]
    data = [np.where(rng.random(2000) < 0.7, a, b) for a, b in zip(small, data, strict=True)]
    if not keeps_subnormals():  # parts of what is this small are subnormal
        data = [np.where(np.abs(one) < 2.0**-90, np.float32(0), one) for one in data]
    wanted = run_pointwise(expansion, data, f32)
    found = np.zeros_like(wanted)
    run(expansion, WebGpuEmitter(caps).emit(expansion), [*data, found], [], (2000, 1, 1))
    same = bits_equal(f32, _flushed(f32, wanted), _flushed(f32, found))
    assert same.all(), f"{[one[~same] for one in data]}, {wanted[~same]}, {found[~same]}"


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("name", ["add", "mandelbrot", "search", "transposed", "workgroup sums"])
def test_folded_programs_find_their_place_in_any_dispatch(name: str) -> None:
    caps = device_caps()
    kernel = KERNELS[name]
    grid = kernel.grid
    if kernel.workgroup is None:  # counted in workgroups of another size, along y and z as well
        grid = (-(-grid[0] // 64), *grid[1:])
    total = grid[0] * grid[1] * grid[2]
    for dispatch in ((1, total, 1), (total, 1, 1), (3, 2, -(-total // 6))):
        outcome(kernel, caps, Variant(fold=True), dispatch=dispatch)


@pytest.mark.usefixtures("adapter")
def test_a_folded_kernel_covers_more_workgroups_than_an_axis_has() -> None:
    def count(a: Any) -> None:
        i = kj.global_id(0)
        if i % 65536 == 65535:
            kj.atomic_add(a, 0, i // 65536)

    size = 70000 * 64
    kernel = Kernel(count, [("a", array(i32))], [np.zeros(1, np.int32)], [], (size, 1, 1))
    caps = device_caps()
    trace = legal(kernel, caps)
    program = WebGpuEmitter(caps, Variant(fold=True)).emit(trace)
    found = np.zeros(1, np.int32)
    run(trace, program, [found], [], kernel.grid, dispatch=(35000, 2, 1))
    assert found[0] == sum(range(size // 65536))


@pytest.mark.usefixtures("adapter")
def test_arrays_in_one_buffer_share_a_binding() -> None:
    def copy(a: Any, b: Any, c: Any) -> None:
        i = kj.global_id(0)
        if i < b.size:
            b[i] = a[i] + c[i]

    buffer = np.arange(100, dtype=np.float32)
    views = [buffer[10:30], buffer[50:70], np.full(20, 0.5, np.float32)]
    kernel = Kernel(copy, [(name, array(f32)) for name in "abc"], views, [], (20, 1, 1))
    caps = device_caps()
    trace = legal(kernel, caps)
    program = WebGpuEmitter(caps, Variant(bindings=(0, 0, 1))).emit(trace)
    assert program.interface is not None
    assert [one.arrays for one in program.interface.bindings] == [(0, 1), (2,)]
    assert [one.writable for one in program.interface.bindings] == [True, False]
    whole = buffer.copy()
    run(trace, program, views, [], (20, 1, 1), buffers=[whole, views[2]], offsets=[10, 50, 0])
    wanted = buffer.copy()
    wanted[50:70] = buffer[10:30] + np.float32(0.5)
    assert (whole == wanted).all()


@pytest.mark.usefixtures("adapter")
def test_views_of_other_types_in_one_buffer_are_words() -> None:
    def mix(a: Any, b: Any, c: Any) -> None:
        i = kj.global_id(0)
        b[i] = b[i] + kj.i32(a[i])
        c[i] = c[i] + 1

    raw = np.zeros(64, np.uint8)
    a, b, c = raw[:16].view(np.float32), raw[16:32].view(np.int32), raw[33:37]
    a[:], b[:], c[:] = [1.5, -2.5, 3.0, 100.0], [5, 6, 7, 8], [255, 1, 2, 3]
    arguments = [("a", array(f32)), ("b", array(i32)), ("c", array(u8))]
    kernel = Kernel(mix, arguments, [a, b, c], [], (4, 1, 1))
    caps = device_caps()
    trace = legal(kernel, caps)
    program = WebGpuEmitter(caps, Variant(bindings=(0, 0, 0))).emit(trace)
    whole = raw.copy()
    run(trace, program, [a, b, c], [], (4, 1, 1), buffers=[whole], offsets=[0, 4, 33])
    assert whole[16:32].view(np.int32).tolist() == [6, 4, 10, 108]
    assert whole[32:38].tolist() == [0, 0, 2, 3, 4, 0]


@pytest.mark.usefixtures("adapter")
def test_parameters_that_are_too_many_for_immediates_come_in_a_buffer() -> None:
    caps = device_caps(immediates=16)
    kernel = KERNELS["scalars"]
    program = SpirvEmitter(caps).emit(legal(kernel, caps))
    assert program.interface is not None
    assert program.interface.uniform == 1
    assert program.interface.size > 16
    outcome(kernel, caps)


@pytest.mark.usefixtures("adapter")
def test_neighbouring_bytes_survive_each_others_stores() -> None:
    def fill(a: Any) -> None:
        i = kj.global_id(0)
        a[i] = kj.u8(i % 251)

    old = np.full(4093, 0xA5, np.uint8)
    kernel = Kernel(fill, [("a", array(u8))], [old], [], (4093, 1, 1))
    for _ in range(3):
        outcome(kernel, device_caps())


@pytest.mark.usefixtures("adapter")
def test_atomics_of_64_bits() -> None:
    def sums(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        kj.atomic_add(out, 0, a[i])
        kj.atomic_max(out, 1, a[i])
        kj.atomic_xor(out, 2, a[i])

    caps = device_caps()
    if ("add", u64) not in caps.atomics:
        pytest.skip(f"{caps.name} has no atomics of 64 bits")
    for dtype in (i64, u64):
        data = edge_values(dtype, 200, np.random.default_rng(7))
        arguments = [("a", array(dtype)), ("out", array(dtype))]
        outcome(Kernel(sums, arguments, [data, np.zeros(3, dtype.numpy)], [], (200, 1, 1)), caps)
    with pytest.raises(CapabilityError, match="atomic add in i64"):
        legal(Kernel(sums, [("a", array(i64)), ("out", array(i64))], [], [], (1, 1, 1)), webgpu())


@pytest.mark.usefixtures("adapter")
def test_deep_nesting_and_long_chains() -> None:
    def deep(a: Any) -> None:
        i = kj.global_id(0)
        total = kj.i32(i)
        for k in kj.unroll(range(1500)):
            total = total * 3 + k
        for k in kj.unroll(range(40)):
            if total % (k + 2) != 0:
                total += k
                if total < 0:
                    total = -total
        a[i] = total

    outcome(
        Kernel(deep, [("a", array(i32))], [np.zeros(70, np.int32)], [], (70, 1, 1)), device_caps()
    )


_CRASH = """
import numpy as np
from tests.webgpu_kernels import KERNELS, legal
from tests.webgpu_runner import device_caps, run
from khaljit.codegen.spirv.emit import SpirvEmitter
kernel, caps = KERNELS["compare-exchanges"], device_caps()
trace = legal(kernel, caps)
found = [one.copy() for one in kernel.arrays]
run(trace, SpirvEmitter(caps).emit(trace), found, kernel.scalars, kernel.grid)
print("works")
"""


@pytest.mark.usefixtures("adapter")
def test_what_wgpu_makes_of_a_compare_exchange_in_spirv_is_still_wrong() -> None:
    """The reason for `WebGpuEmitter`: when this fails, SPIR-V will do for all."""
    child = subprocess.run(
        [sys.executable, "-c", _CRASH],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert "works" not in child.stdout
    assert child.returncode != 0


def test_compare_exchanges_are_given_as_wgsl() -> None:
    full, bare = ROWS["full"], ROWS["bare"]
    for name, caps, target in (
        ("float sum", full, "spirv"),
        ("float sum", bare, "wgsl"),
        ("compare-exchanges", full, "wgsl"),
        ("bytes u8", bare, "spirv"),
        ("narrow atomics", full, "wgsl"),
    ):
        trace = legal(KERNELS[name], caps)
        assert WebGpuEmitter(caps).emit(trace).target == target
        lowered = lower(trace, caps, PLAIN_VARIANT)
        assert uses_compare_exchange(lowered) == (target == "wgsl")


# Refusals.


def test_orders_other_than_relaxed_are_refused() -> None:
    def release(a: Any) -> None:
        kj.atomic_store(a, 0, 1, order="release")

    caps = webgpu()
    trace = legal(Kernel(release, [("a", array(i32))], [], [], (1, 1, 1)), caps)
    with pytest.raises(CapabilityError, match="relaxed atomics only"):
        SpirvEmitter(caps).emit(trace)


def test_subgroup_operations_without_subgroups_need_the_whole_workgroup() -> None:
    def part(a: Any) -> None:
        if kj.subgroup_id() == 0:
            a[kj.local_id(0)] = kj.subgroup_add(a[kj.local_id(0)])

    caps = webgpu()
    kernel = Kernel(part, [("a", array(i32))], [], [], (1, 1, 1), (32, 1, 1))
    with pytest.raises(CapabilityError, match="the whole workgroup comes together"):
        SpirvEmitter(caps).emit(legal(kernel, caps))
    full = ROWS["full"]
    assert SpirvEmitter(full).emit(legal(kernel, full)).binary


def test_a_workgroup_that_is_too_large_is_refused() -> None:
    kernel = KERNELS["shared sum"]
    caps = webgpu(max_workgroup=32)
    with pytest.raises(CapabilityError, match="too large"):
        legal(kernel, caps)
    assert bool_ in caps.dtypes
