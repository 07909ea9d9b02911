"""Kernels that generated programs were reduced to when they showed a defect, one each."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import i32, index
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    Element,
    Memory,
    Options,
    Space,
    Trace,
    effects,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.dead import dead
from khaljit.tracer.verify import verify

Rng = np.random.Generator


def module_of(folder: Path, name: str, source: str) -> types.ModuleType:
    """A module from a file that was written after this process began."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FRESH = """
import khaljit as kj


def helper(x):
    for k in range(3):
        if x > k:
            return x * {factor}
    return x


@kj.jit
def kernel(a: kj.Array1[kj.i32]):
    i = kj.global_id(0)
    zero = lambda: i * 0
    a[i] = kj.max(helper(a[i]), 1) + zero()
    return
    never = a[i]
    a[i] = kj.min(never, 3)
"""


def test_files_written_after_the_start_are_rewritten(device: Device, tmp_path: Path) -> None:
    """They are believed where they compile to what runs, imports and dead code included."""
    module = module_of(tmp_path, "fresh", _FRESH.format(factor=10))
    a = np.arange(-2, 5, dtype=np.int32)
    module.kernel[7](a)
    assert a.tolist() == [1, 1, 1, 10, 20, 30, 40]


def test_an_edited_constant_is_not_taken_for_what_runs(tmp_path: Path) -> None:
    module = module_of(tmp_path, "edited", _FRESH.format(factor=10))
    (tmp_path / "edited.py").write_text(_FRESH.format(factor=77))
    with pytest.raises(kj.TraceError, match="truth of a run-time value"):
        module.kernel[7](np.zeros(7, np.int32))


def test_casts_of_literals_are_values_of_the_kernel(device: Device) -> None:
    @kj.jit
    def kernel(out: Any, half: kj.Array1[kj.bf16]) -> None:
        out[0] = kj.u8(200) + kj.u8(100)
        out[1] = kj.i32(7) % kj.i32(0)
        out[2] = kj.i32(kj.i32(7) / kj.i32(2) * 2)
        half[0] = kj.bf16(0.5) + kj.bf16(1)
        quotient: Any = kj.i32(1) / kj.i32(2)
        assert quotient.dtype is kj.f32

    out, half = np.zeros(3, np.int32), np.zeros(1, np.uint16)
    kernel[1](out, half)
    assert out.tolist() == [44, 0, 7]
    assert half[0] == 0x3FC0


def test_several_ends_of_a_loop_may_settle_one_type(device: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f16], out: kj.Array1[kj.f16]) -> None:
        i = kj.global_id(0)
        total: Any = 1
        for k in range(4):
            total = total + a[i]
            if k == 1:
                continue
            total = total * a[i]
        out[i] = total

    a = np.array([0.5, 2, -1], np.float16)
    out = np.full(3, 77, np.float16)
    kernel[3](a, out)
    expected = []
    for x in a:
        total: Any = np.float16(1)
        for k in range(4):
            total = total + x
            total = total if k == 1 else total * x
        expected.append(total)
    assert out.tolist() == expected


def first_above(x: Any) -> Any:
    """A literal or a number, from a loop."""
    for k in range(3):
        if x > k * 2:
            return 2
    return x


def test_a_literal_that_leaves_a_loop_has_no_type_yet(device: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i16]) -> None:
        i = kj.global_id(0)
        value = first_above(a[i])
        assert value.dtype is kj.i16
        a[i] = value

    if device.kind == "python":
        pytest.skip("a variable that holds literals alone is a Python number there")
    a = np.arange(-3, 4, dtype=np.int16)
    kernel[7](a)
    assert a.tolist() == [-3, -2, -1, 0, 2, 2, 2]


def test_a_return_in_a_host_loop_in_a_recorded_loop(device: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        for _ in range(a[i]):
            for item in (2, 5, 3):
                a[i] = item
                return
        a[i] = -1

    a = np.arange(-1, 3, dtype=np.int32)
    kernel[4](a)
    assert a.tolist() == [-1, -1, 2, 2]


def test_a_break_in_the_else_of_a_loop_leaves_the_outer_loop(device: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        seen = 0
        for k in range(5):
            for j in range(3):
                seen += 1
                if k + j == a[i]:
                    break
            else:
                break
        else:
            seen += 100
        a[i] = seen

    def python(a: int) -> int:
        seen = 0
        for k in range(5):
            for j in range(3):
                seen += 1
                if k + j == a:
                    break
            else:
                break
        else:
            seen += 100
        return seen

    a = np.arange(8, dtype=np.int32)
    kernel[8](a)
    assert a.tolist() == [python(x) for x in range(8)]


def from_an_else(x: Any) -> Any:
    """Returns from the ``else`` of a loop in a branch."""
    if x >= 3:
        for _ in ():
            pass
        else:
            return x - 3
    return x


def test_a_return_in_the_else_of_a_loop_under_a_branch(device: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        while a[i] > 2:
            a[i] = from_an_else(a[i])

    a = np.arange(9, dtype=np.int32)
    kernel[9](a)
    assert a.tolist() == [0, 1, 2] * 3


def test_what_is_never_reached_parts_nobody(device: Device) -> None:
    @kj.jit(workgroup=8)
    def kernel(a: kj.Array1[kj.i32], n: kj.i32) -> None:
        i = kj.global_id(0)
        for _ in range(2):
            if n > 3:
                a[i] += 1
            elif a[i] > 2:
                continue
            else:
                continue
        kj.barrier()
        a[i] += 10

    a = np.arange(8, dtype=np.int32)
    kernel[8](a, 1)
    assert a.tolist() == list(range(10, 18))


def test_a_value_of_the_workgroup_beside_one_that_varies_across_a_barrier(device: Device) -> None:
    @kj.jit(workgroup=5)
    def kernel(f: kj.Array1[kj.f32], b: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        value = kj.select(f[7] != 0, b[i % 5], 1)
        out[i] = kj.workgroup_inclusive_add(value)

    f, b = np.arange(9, dtype=np.float32), np.arange(9, dtype=np.int32)
    out = np.full(15, 77, np.int32)
    kernel[15](f, b, out)
    assert out.tolist() == [0, 1, 3, 6, 10] * 3


def test_a_loop_that_is_never_left_but_by_returning(device: Device) -> None:
    @kj.jit(workgroup=4)
    def kernel(a: kj.Array1[kj.f64], out: kj.Array1[kj.f64]) -> None:
        i = kj.global_id(0)
        v = a[i]
        for k in range(2):
            v = v * 2 + k
            out[i] = v
            return
        out[i] = v + 1

    a = np.arange(4.0)
    out = np.full(4, 77.0)
    kernel[4](a, out)
    assert out.tolist() == [0, 2, 4, 6]


def test_vectors_of_bf16(device: Device) -> None:
    @kj.jit
    def kernel(v: kj.Array1[kj.vec(3, kj.bf16)]) -> None:  # type: ignore[valid-type]
        i = kj.global_id(0)
        v[i] = v[i].zyx * 2

    v = np.array([[0x3F80, 0x4000, 0x4040]] * 2, np.uint16)
    kernel[2](v)
    assert v.tolist() == [[0x40C0, 0x4080, 0x4000]] * 2


def test_results_of_a_branch_that_goes_nowhere_are_dropped() -> None:
    b = Builder()
    b.open()
    condition = b.pure(Op.LT, (b.id("global"), b.const(index, 3)))
    arms = []
    for _ in range(2):
        b.open()
        b.end(Op.RETURN)
        arms.append(b.close())
    node = b.effect(Op.IF, (condition,), (i32,), None, tuple(arms))
    memory = Memory(Space.ARRAY, 0, Element.scalar(i32), (None,))
    b.store(b.memory(memory), (b.id("global"),), b.pure(Op.RESULT, (node,), 0, i32), Access())
    b.end(Op.YIELD)
    arrays = (ArrayParam("a", memory, True, True, 0, 0),)
    trace = Trace("nowhere", arrays, (), None, 32, Options(), b.close())
    kept = dead(trace)
    verify(kept)
    assert not any(effect.op is Op.STORE for effect in effects(kept.body))


def test_a_comparison_of_a_widened_integer_with_a_constant(device: Device) -> None:
    """A driver was seen to compare them without sign."""

    @kj.jit
    def kernel(a: kj.Array1[kj.i32], out: kj.Array2[kj.bool]) -> None:
        i = kj.global_id(0)
        wide = kj.i64(a[i])
        out[i, 0] = wide < 0
        out[i, 1] = wide > 5
        out[i, 2] = wide < 1 << 40
        out[i, 3] = wide == -(1 << 33)

    a = np.array([-7, 0, 5, 6, 2**31 - 1, -(2**31)], np.int32)
    out = np.zeros((6, 4), np.bool_)
    kernel[6](a, out)
    wanted = np.stack([a < 0, a > 5, np.ones(6, np.bool_), np.zeros(6, np.bool_)], 1)
    assert (out == wanted).all()


def test_a_sum_that_starts_as_a_literal_has_its_type_behind_the_loop(
    device: Device, rng: Rng
) -> None:
    """It is f32 by what is added, not a literal any more that takes the type of an f16."""

    @kj.jit(contract=False)
    def kernel(x: kj.Array1[kj.f32], half: kj.Array1[kj.f16], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        total = 0.0
        for k in range(x.size):
            total += x[k]
        out[i, 0] = total * half[i]
        total, k = 0.0, 0
        while True:
            total += x[k]
            k += 1
            if k >= x.size:
                break
        out[i, 1] = total * half[i]
        total = 0.0
        for _ in range(1):
            inner = 0.0
            for k in range(x.size):
                inner = inner + x[k]
            total = inner
        out[i, 2] = total * half[i]

    x, half = rng.random(9, np.float32), np.ones(4, np.float16)
    out = np.zeros((4, 3), np.float32)
    kernel[4](x, half, out)
    total = np.float32(0)
    for one in x:
        total += one
    assert (out == total).all()
