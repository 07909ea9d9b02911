"""Runs traces on the CPU for the tests of code generators: legalise, emit, assemble, load, call."""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from khaljit.backends.cpu.loader import Image, load
from khaljit.codegen.caps import row
from khaljit.codegen.layout import ParameterBlock
from khaljit.codegen.legalise import legalise
from khaljit.codegen.llvm.assemble import assemble
from khaljit.codegen.llvm.emit import LlvmEmitter
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.codegen.program import Program
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.lower_access import lower_access
from khaljit.tracer.passes.pipeline import optimise

__all__ = ["Compiled", "compile_trace", "legal", "levels_here"]


@functools.cache
def levels_here() -> tuple[str, ...]:
    """The levels that this machine runs, best last."""
    if platform.machine() != "x86_64":
        return ("aarch64",)
    with open("/proc/cpuinfo", encoding="ascii") as text:
        flags = text.read().split("\n\n")[0].split()
    wanted = {
        "x86-64": (),
        "x86-64-v2": ("sse4_2", "popcnt"),
        "x86-64-v3": ("avx2", "fma", "f16c", "bmi2"),
        "x86-64-v4": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"),
    }
    return tuple(
        level for level in LEVELS if level in wanted and all(f in flags for f in wanted[level])
    )


def legal(trace: Trace, level: str, *, optimised: bool = False) -> Trace:
    """A recorded trace as the code generator for a level takes it, with all passes or the least."""
    lowered = optimise(trace) if optimised else lower_access(trace)
    return legalise(lowered, row(f"llvm:{level}"))


def compile_trace(
    trace: Trace,
    level: str | None = None,
    lanes: tuple[int, int, int] | None = None,
    *,
    optimised: bool = False,
) -> Compiled:
    """Machine code for a recorded trace, ready to run here."""
    target = CpuTarget(level or levels_here()[-1])
    ready = legal(trace, target.level, optimised=optimised)
    program = LlvmEmitter(target, lanes).emit(ready)
    return Compiled(trace, ParameterBlock.of(ready), program, load(assemble(program.text, target)))


@dataclass(frozen=True)
class Compiled:
    """A kernel as machine code."""

    trace: Trace
    block: ParameterBlock
    program: Program
    image: Image

    def run(
        self,
        arrays: Sequence[Array],
        scalars: Sequence[int | float | bool],
        groups: tuple[int, int, int],
        chunk: int = 3,
    ) -> int:
        """Run over a grid of workgroups, changing the arrays in place; gives the counter."""
        params = self._pack(arrays, scalars, groups)
        total, next_item = self.items(groups), np.zeros(1, np.int64)
        arena = np.zeros(self.program.arena + 128, np.uint8)
        arena[:] = 0xA5
        start = -(-arena.ctypes.data // 64) * 64
        entry = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )(self.image.address(self.program.entry))
        entry(params.ctypes.data, next_item.ctypes.data, total, chunk, start)
        behind = start - arena.ctypes.data + self.program.arena
        assert (arena[behind:] == 0xA5).all(), "the arena's end was overrun"
        return int(next_item[0])

    def items(self, groups: tuple[int, int, int]) -> int:
        total = 1
        for count, size, item in zip(
            groups, self.program.workgroup, self.program.item, strict=True
        ):
            total *= -(-count * size // item)
        return total

    def _pack(
        self,
        arrays: Sequence[Array],
        scalars: Sequence[int | float | bool],
        groups: tuple[int, int, int],
    ) -> Array:
        block, data = self.block, bytearray(self.block.size)
        for k, (array, param) in enumerate(zip(arrays, self.trace.arrays, strict=True)):
            struct.pack_into("<q", data, block.pointers[k], array.ctypes.data)
            for axis in range(param.memory.ndim):
                stride = array.strides[axis] // param.memory.element.align
                struct.pack_into("<q", data, block.shapes[k][axis], array.shape[axis])
                struct.pack_into("<q", data, block.strides[k][axis], stride)
        for offset, value, scalar in zip(block.scalars, scalars, self.trace.scalars, strict=True):
            raw = _bytes(self._width(scalar.dtype), value)
            data[offset : offset + len(raw)] = raw
        for offset, count in zip(block.groups, groups, strict=True):
            struct.pack_into("<q", data, offset, count)
        return np.frombuffer(bytes(data), np.uint8).copy()

    def _width(self, dtype: DType) -> np.dtype[np.generic]:
        if dtype.bits == 0:
            return np.dtype(np.int32 if self.trace.index_bits == 32 else np.int64)
        return np.dtype(np.uint8) if dtype is bool_ else dtype.numpy


def _bytes(kind: np.dtype[np.generic], value: int | float | bool) -> bytes:
    return np.array(value).astype(kind).tobytes()
