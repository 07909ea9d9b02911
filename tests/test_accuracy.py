"""The measured errors of the math functions: complete, within the bounds, and up to date."""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks import math_accuracy as accuracy
from benchmarks.math_kernels import TWO
from khaljit.backends.base import Device
from khaljit.tracer.ops import MATH, Op

_KEYS: Final = [f"{op.value} {name}" for op in sorted(MATH, key=str) for name in accuracy.DTYPES]
_GAMMA: Final = {"f32": 4.0, "f64": 10.0}


@pytest.mark.parametrize("key", _KEYS)
def test_no_bound_is_above_what_the_contract_allows(key: str) -> None:
    name, dtype = key.split()
    most = _GAMMA[dtype] if Op(name) in (Op.TGAMMA, Op.LGAMMA) else 2.0
    assert accuracy.bound_of(key) <= most


@pytest.mark.parametrize("key", _KEYS)
def test_measured_errors_are_within_the_bound(key: str) -> None:
    row = accuracy.stored("cpu")[key]
    name, dtype = key.split()
    assert row.worst is not None
    assert row.worst <= accuracy.bound_of(key)
    assert row.wrong == 0
    one = dtype == "f32" and Op(name) not in TWO
    assert row.inputs == (accuracy.ALL if one else accuracy.DRAWN)


@pytest.mark.parametrize("key", _KEYS)
def test_stored_results_of_cuda_are_those_of_the_cpu(key: str) -> None:
    cuda, cpu = accuracy.stored("cuda"), accuracy.stored("cpu")[key]
    assert (cuda[key].inputs, cuda[key].digest) == (cpu.inputs, cpu.digest)


@pytest.mark.parametrize("key", _KEYS)
def test_what_was_measured_is_what_the_functions_give(device: Device, key: str) -> None:
    """On few inputs: after a change of a function it must be measured again."""
    if device.kind not in ("cpu", "cuda"):
        pytest.skip(f"{device.kind} does not promise the same bits")
    name, dtype = key.split()
    found = accuracy.sample(device, Op(name), accuracy.DTYPES[dtype])
    assert found == accuracy.stored("cpu")[key].sample
