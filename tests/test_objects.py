"""Object code for processors that are not here: it is whole, and the loader can place it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import khaljit as kj
from khaljit.backends.cpu.loader import MACHINES, PATCHES, read
from khaljit.codegen.llvm import scan
from khaljit.codegen.llvm.assemble import assemble
from khaljit.codegen.llvm.emit import LlvmEmitter
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.tracer.dtypes import DType, bf16, f16, f32, f64, i32, i64, u8
from tests.matrix import array_of, each, kernel
from tests.random_kernels import random_kernel
from tests.running import legal, levels_here

ELSEWHERE = [level for level in LEVELS if level not in levels_here()]
ADDRESS = 0x7F12_3456_7000


@pytest.mark.parametrize("level", ELSEWHERE)
@pytest.mark.parametrize("workgroup", [None, (16, 1, 1), (6, 2, 1)], ids=str)
def test_random_kernels_are_whole(workgroup: tuple[int, int, int] | None, level: str) -> None:
    target = CpuTarget(level)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    trace = random_kernel(seed, workgroup, barriers=workgroup is not None)
    for optimised in (False, True):
        emitted = LlvmEmitter(target).emit(legal(trace, level, optimised=optimised))
        assert read(assemble(emitted.text, target)).link(ADDRESS)


def sharing(x: Any, out: Any) -> None:
    i, lane = kj.global_id(0), kj.local_index()
    kept = kj.shared(x.dtype, 24)
    kept[lane] = x[i]
    kj.barrier()
    own = kept[23 - lane]
    out[i, 0] = kj.subgroup_add(own) + kj.subgroup_inclusive_max(own)
    out[i, 1] = kj.subgroup_shuffle_xor(own, 1) + kj.subgroup_broadcast_first(own)
    out[i, 2] = kj.workgroup_inclusive_add(own) + kj.workgroup_max(own)
    kj.atomic_max(out, (0, 3), own)
    out[i, 4] = kj.atomic_add(x, 0, own)
    if kj.atomic_compare_exchange(x, 1, own, own) == own:
        kj.print(own)


def calculating(x: Any, out: Any) -> None:
    i = kj.global_id(0)
    if i < x.size:
        one, other = x[i], x[x.size - 1 - i]
        out[i, 0] = kj.sin(one) + kj.exp(other) + kj.pow(one, other)
        out[i, 1] = kj.tan(one) + kj.lgamma(other) + kj.erf(one)
        out[i, 2] = kj.fmod(one, other) + kj.atan2(one, other) + kj.cbrt(one)


def is_whole(body: Callable[..., None], dtype: DType, level: str, **options: Any) -> bool:
    made = kernel(body, {"x": array_of(dtype), "out": array_of(dtype, 2)}, **options)
    compiled = made.compile(f"{dtype.name}[:], {dtype.name}[:,:]", target=f"cpu:{level}")
    return bool(read(compiled.artifact.payload).link(ADDRESS))


@pytest.mark.parametrize("level", ELSEWHERE)
@each((i32, u8, i64, f16, bf16, f32, f64))
def test_kernels_that_share_are_whole(dtype: DType, level: str) -> None:
    assert is_whole(sharing, dtype, level, workgroup=24)


@pytest.mark.parametrize("level", ELSEWHERE)
@each((f16, bf16, f32, f64))
def test_kernels_that_calculate_are_whole(dtype: DType, level: str) -> None:
    assert is_whole(calculating, dtype, level)


def test_the_loader_fills_in_whatever_the_scan_lets_through() -> None:
    for machine, kinds in scan._ALLOWED.items():
        assert kinds <= PATCHES[MACHINES[machine]].keys()
