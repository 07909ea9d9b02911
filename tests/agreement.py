"""Runs generated programs: on a device, and as plain Python; and tells where results differ."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import DType, bf16
from tests import plain
from tests.programs import DEFECTS, Program, arguments

__all__ = ["Results", "difference", "kernel_of", "run", "run_plain", "verdict"]

Results = dict[str, NDArray[Any]]


def kernel_of(program: Program, folder: Path) -> Any:
    """The kernel, from its source in a file that is imported."""
    name = f"program_{program.seed}"
    path = folder / f"{name}.py"
    path.write_text(program.source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module.kernel


def run(kernel: Any, program: Program, device: Device) -> Results:
    """What the arrays hold after a launch."""
    given = arguments(program)
    with kj.use(device):
        kernel[program.grid](**given)
    return {one.name: given[one.name] for one in program.arrays}


def run_plain(program: Program) -> Results:
    """The same by plain Python, one invocation after another."""
    given = arguments(program)
    scope: dict[str, Any] = dict(plain.BUILTINS)
    text = program.source.replace("import khaljit as kj", "from tests.plain import NAMES as kj")
    exec(compile(text, f"<program {program.seed}>", "exec"), scope)
    passed: dict[str, Any] = {}
    for one in program.arrays:
        passed[one.name] = plain.Memory(one.dtype, given[one.name])
    for name, dtype, _ in program.scalars:
        passed[name] = plain.scalar(dtype, given[name])
    size = (*(program.workgroup or ()), 1, 1, 1)[:3]
    grid = (*program.grid, 1, 1)[:3]
    groups = tuple(-(-count // extent) for count, extent in zip(grid, size, strict=True))
    total = [count * extent for count, extent in zip(groups, size, strict=True)]
    with np.errstate(all="ignore"):
        for z, y, x in np.ndindex(total[2], total[1], total[0]):
            here = (x, y, z)
            group = tuple(at // extent for at, extent in zip(here, size, strict=True))
            plain.invocation(**{"global": here}, workgroup=group, groups=groups, size=size)
            scope["kernel"](**passed)
    return {one.name: given[one.name] for one in program.arrays}


def comparable(dtype: DType, array: NDArray[Any]) -> NDArray[Any]:
    """The bits of an array's elements, all NaN being one."""
    if dtype is bf16:
        nan = (array & 0x7FFF) > 0x7F80
        return np.where(nan, np.uint16(0x7FC0), array)
    if dtype.is_float:
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def difference(program: Program, left: Results, right: Results) -> str | None:
    """The first elements that two runs do not agree about."""
    for one in program.arrays:
        a, b = (comparable(one.dtype, side[one.name]) for side in (left, right))
        if (a != b).any():
            place = tuple(int(k) for k in np.argwhere(a != b)[0])
            values = [side[one.name][place] for side in (left, right)]
            return f"{one.name}{list(place)}: {values[0]!r} and {values[1]!r}"
    return None


def verdict(program: Program, folder: Path, devices: list[Device]) -> str | None:
    """Run a program everywhere; what is wrong with the answers, or None if nothing is.

    Each device is compared with the one before it, the first with plain Python where that is
    possible. A program with a defect must be refused for it, and no other may be.
    """
    kernel = kernel_of(program, folder)
    if program.defect is not None:
        return _refusal(kernel, program, devices)
    results = [run(kernel, program, device) for device in devices]
    if program.plain:
        found = difference(program, run_plain(program), results[0])
        if found is not None:
            return f"plain Python and {devices[0]}: {found}"
    for k in range(1, len(devices)):
        found = difference(program, results[k - 1], results[k])
        if found is not None:
            return f"{devices[k - 1]} and {devices[k]}: {found}"
    return None


def _refusal(kernel: Any, program: Program, devices: list[Device]) -> str | None:
    assert program.defect is not None
    for device in devices:
        try:
            run(kernel, program, device)
        except kj.TraceError as error:
            if not re.search(DEFECTS[program.defect], error.message):
                return f"{device} refuses {program.defect} for another reason: {error}"
        else:
            return f"{device} does not refuse {program.defect}"
    return None
