"""WGSL: taken by wgpu, and the same results as the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from khaljit.codegen.caps import Caps, webgpu
from khaljit.codegen.webgpu.lower import Variant
from khaljit.codegen.wgsl.emit import WgslEmitter
from khaljit.codegen.wgsl.forms import FORMS, literal
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import bool_, f16, f32, f64, i32, i64, u32, u64
from khaljit.tracer.ops import Op
from tests.webgpu_kernels import KERNELS, Kernel, agrees, expected, legal
from tests.webgpu_runner import BARE, adapter_reason, device_caps, run, subgroup_size


@pytest.fixture
def adapter() -> None:
    reason = adapter_reason()
    if reason is not None:
        pytest.skip(reason)


def outcome(name: str, caps: Caps, variant: Variant | None = None) -> None:
    kernel: Kernel = KERNELS[name]
    for dtype in kernel.needs:
        if dtype not in caps.dtypes:
            pytest.skip(f"{caps.name} has no {dtype.name}")
    trace = legal(kernel, caps)
    program = WgslEmitter(caps, variant or Variant()).emit(trace)
    assert program.target == "wgsl"
    assert not program.binary
    found = [one.copy() for one in kernel.arrays]
    run(trace, program, found, kernel.scalars, kernel.grid)
    for wanted, own in zip(expected(kernel, subgroup_size(caps)), found, strict=True):
        assert agrees(kernel, wanted, own), f"{wanted}\n{own}\n{program.text}"


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_what_the_oracle_gives(name: str) -> None:
    outcome(name, device_caps())


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_the_same_as_in_a_browser(name: str) -> None:
    """Without extensions and immediates."""
    outcome(name, device_caps(*BARE))


def test_a_browser_is_told_of_subgroups() -> None:
    caps = webgpu(frozenset({"subgroup", "subgroup-barrier"}))
    trace = legal(KERNELS["votes"], caps)
    assert "enable subgroups;" in WgslEmitter(caps, browser=True).emit(trace).text
    assert "enable subgroups;" not in WgslEmitter(caps).emit(trace).text


def test_memory_without_atomics_is_not_atomic() -> None:
    caps = webgpu()
    text = WgslEmitter(caps).emit(legal(KERNELS["add"], caps)).text
    assert "atomic" not in text
    assert "var<storage, read_write> array0: array<f32>;" in text
    assert "var<storage, read> array1: array<f32>;" in text
    assert "var<uniform> parameters: Parameters;" in text


def test_literals_are_exact() -> None:
    assert literal(bool_, 1) == "true"
    assert literal(i32, 1 << 31) == "i32(-2147483648)"
    assert literal(i32, (1 << 32) - 5) == "(-5i)"
    assert literal(u32, (1 << 32) - 5) == "4294967291u"
    assert literal(i64, 1 << 63) == "(-9223372036854775807li - 1li)"
    assert literal(u64, 5) == "5lu"
    assert literal(f16, 0x3555) == "0.333251953125h"
    assert literal(f32, to_bits(f32, float("nan"))) is None
    assert literal(f64, to_bits(f64, float("-inf"))) is None
    for number in (1.5, -0.1, 1e-40, 3.4028235e38):
        text = str(literal(f32, to_bits(f32, number))).strip("()")
        assert float.fromhex(text.removesuffix("f")) == float(np.float32(number))


def test_unordered_comparison_is_the_negation_of_an_ordered_one() -> None:
    assert FORMS[Op.NE, "f"] == "!({0} == {1})"
