"""What tracing costs, which happens in every process, whatever the cache holds; and what making
code of a trace does, which happens once, short of machine code.

Stages: recording, the canonical text, and the key. An ordinary kernel must take less than two
milliseconds over all three, one of 5,000 operations less than 200: of the processor's time, which
other processes hardly disturb. The matrix product must be PTX in less than five, from recording on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import khaljit as kj
from benchmarks.kernels import matmul, nbody_vec3, saxpy
from khaljit.compiler import canonical_key
from khaljit.devices import current_device, target
from khaljit.keying import key_of
from khaljit.tracer.ir import Trace, values
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.text import canonical

pytestmark = pytest.mark.benchmark(timer=time.process_time)

SIGNATURE: Final = "f32[:], f32[:]"


def _kernel(steps: int) -> Any:
    """A kernel of about fifteen operations a step, no two of them alike."""

    @kj.jit
    def polynomial(a: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < out.size:
            x, y = a[i], 1.0
            for k in kj.unroll(range(steps)):
                y = kj.sqrt(abs(x * y + k)) - kj.select(y > x, x, y * (k + 0.5))
                x = kj.max(x - y, kj.floor(x) / (y + k))
            out[i] = x + y

    return polynomial


# The operations that a kernel is to have, the steps that give about as many, and the limit in
# milliseconds of all stages together.
CASES: Final = {50: (3, 2.0), 5000: (333, 200.0)}


def _stages(operations: int) -> dict[str, Callable[[], object]]:
    kernel = _kernel(CASES[operations][0])
    own = current_device().target
    trace: Trace = kernel.trace(SIGNATURE)

    def whole() -> object:
        return key_of(kernel.trace(SIGNATURE), own)

    return {
        "record": lambda: kernel.trace(SIGNATURE),
        "text": lambda: canonical(trace),
        "key": lambda: key_of(trace, own),  # makes the text too
        "whole": whole,
    }


def _operations(operations: int) -> int:
    trace = _kernel(CASES[operations][0]).trace(SIGNATURE)
    return sum(1 for _ in values(trace.body))


@pytest.mark.parametrize("stage", ["record", "text", "key", "whole"])
@pytest.mark.parametrize("operations", CASES)
def test_tracing(operations: int, stage: str, benchmark: BenchmarkFixture) -> None:
    count = _operations(operations)
    assert abs(count - operations) <= 0.15 * operations
    benchmark.group = f"tracing {operations} operations"
    benchmark(_stages(operations)[stage])
    measured: Any = benchmark.stats  # None where benchmarks are disabled
    if measured is not None:
        fastest = measured.stats.min
        benchmark.extra_info["us per operation"] = round(1e6 * fastest / count, 2)
        assert stage != "whole" or 1e3 * fastest < CASES[operations][1]


# From the canonical trace to a target's code, for kernels as users write them.

KERNELS: Final[dict[Callable[..., None], str]] = {
    saxpy: "f32[:], f32[:], f32",
    matmul: "f32[:, :], f32[:, :], f32[:, :]",
    nbody_vec3: "vec3[:], vec3[:]",
}
CODES: Final = {"ptx": "cuda:sm_90", "llvm": "cpu:x86-64-v3", "spirv": "webgpu"}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", KERNELS, ids=lambda function: function.__name__)
def test_code(function: Callable[..., None], code: str, benchmark: BenchmarkFixture) -> None:
    chosen = target(CODES[code])
    trace = contract(_plain(function).trace(KERNELS[function]))
    benchmark.group = f"code of {function.__name__}"
    benchmark(chosen.show, trace, code)


def test_record_to_ptx(benchmark: BenchmarkFixture) -> None:
    kernel, chosen = _plain(matmul), target(CODES["ptx"])

    def whole() -> str:
        trace, _ = canonical_key(kernel.trace(KERNELS[matmul]), chosen)
        return chosen.show(contract(trace), "ptx")

    benchmark(whole)
    measured: Any = benchmark.stats
    assert measured is None or 1e3 * measured.stats.min < 5.0


def _plain(function: Callable[..., None]) -> Any:
    make: Any = kj.jit
    return make(function)
