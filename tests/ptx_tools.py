"""What tests of the CUDA code generator share: emit, run in the model of the machine, assemble."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import khaljit as kj
from khaljit.backends import stages
from khaljit.codegen.caps import row
from khaljit.codegen.program import Program
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.codegen.ptx.emit import PtxEmitter
from khaljit.tracer.dtypes import (
    DType,
    f32,
)
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import (
    Options,
    Trace,
)
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.record import ArrayArgument, ScalarArgument, record
from khaljit.tracer.vectors import vec
from tests.ptx_machine import run_program

__all__ = [
    "SMS",
    "Argument",
    "argument",
    "assemble",
    "copy_kernel",
    "emit",
    "is_lean",
    "legal",
    "matmul_trace",
    "recorded",
    "run",
    "tool",
]

SMS = tuple(ARCHITECTURES)

Argument = ArrayArgument | ScalarArgument


def legal(trace: Trace, sm: str = "sm_90") -> Trace:
    return stages.legal(contract(trace), row(f"ptx:{sm}"))


def emit(trace: Trace, sm: str = "sm_90") -> Program:
    return PtxEmitter(sm).emit(legal(trace, sm))


def run(
    trace: Trace,
    arrays: Sequence[Array],
    scalars: Sequence[int | float | bool],
    groups: tuple[int, int, int],
    sm: str = "sm_90",
    *,
    folded: bool = False,
) -> None:
    ready = legal(trace, sm)
    program = PtxEmitter(sm, folded=folded).emit(ready)
    run_program(ready, program, arrays, scalars, groups, folded=folded)


def recorded(function: Any, arguments: Sequence[tuple[str, Argument]], **facts: Any) -> Trace:
    return record(function, arguments, **facts).trace


def argument(dtype: DType, ndim: int = 1, count: int = 1, **facts: Any) -> ArrayArgument:
    return ArrayArgument(dtype if count == 1 else vec(count, dtype), ndim, **facts)


# Tools.


@functools.cache
def tool(name: str) -> str:
    """A tool of NVIDIA's, from its wheel, the path, or an installed toolkit."""
    places = [shutil.which(name), f"/usr/local/cuda/bin/{name}"]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        places.insert(0, f"{folder}/cu13/bin/{name}")
    for place in places:
        if place is not None and Path(place).is_file():
            return place
    pytest.skip(f"no {name} here: pip install nvidia-cuda-{name.replace('ptxas', 'nvcc')}")


def assemble(program: Program, sm: str, folder: Path) -> str:
    """Assemble a program; gives what ptxas says of it."""
    source = folder / "kernel.ptx"
    source.write_text(program.text)
    done = subprocess.run(
        [tool("ptxas"), "-v", "-arch", sm, str(source), "-o", str(folder / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{said}\n{program.text}"
    assert "warning" not in said.lower(), said
    return said


def is_lean(said: str) -> bool:
    """Whether nothing is spilled and no local memory is used."""
    return bool(
        re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", said)
    )


# Kernels.


def copy_kernel(count: int, dtype: DType = f32, **facts: Any) -> Trace:
    def copy(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            y[i] = x[i] + y[i]

    facts = {"aligned": True, **facts}
    arguments: list[tuple[str, Argument]] = [
        ("x", argument(dtype, 1, count, **facts)),
        ("y", argument(dtype, 1, count, same_shape=0, **facts)),
    ]
    return recorded(copy, arguments)


def matmul(a: Any, b: Any, c: Any) -> None:
    column, line = kj.global_id(0), kj.global_id(1)
    if line < c.shape[0] and column < c.shape[1]:
        total = 0.0
        for t in range(a.shape[1]):
            total += a[line, t] * b[t, column]
        c[line, column] = total


def matmul_trace(bits: int = 32, **options: bool) -> Trace:
    arguments: list[tuple[str, Argument]] = [
        ("a", argument(f32, 2)),
        ("b", argument(f32, 2, same_shape=0)),
        ("c", argument(f32, 2, same_shape=0)),
    ]
    given = Options(**options)
    return recorded(matmul, arguments, workgroup=(16, 16, 1), index_bits=bits, options=given)
