"""Enqueueing a kernel on CUDA by peers that need not be installed.

Each gives a function that enqueues so many times a kernel of its own with as many arguments, which
was compiled and launched before. A peer that is installed and does not run here says why.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import khaljit as kj

__all__ = ["Run", "installed"]

Run = Callable[[int], None]


def installed(elements: int, args: tuple[Any, ...]) -> dict[str, Run]:
    """Of those that are here; ``args`` are khaljit's, arrays and floats."""
    are_arrays = tuple(isinstance(one, kj.Array) for one in args)
    found = {}
    for name, (package, make) in _PEERS.items():
        if importlib.util.find_spec(package) is None:
            continue
        try:
            run = make(elements, are_arrays)
            run(3)
        except Exception as error:  # whatever another library raises
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            found[name] = run
    return found


def _source(are_arrays: tuple[bool, ...]) -> str:
    """CUDA C++ of a kernel that takes such arguments."""
    kinds = ("float*" if is_array else "float" for is_array in are_arrays)
    text = ", ".join(f"{kind} a{k}" for k, kind in enumerate(kinds))
    return f'extern "C" __global__ void f({text}) {{ a0[threadIdx.x] = 1; }}'


def _cupy(elements: int, are_arrays: tuple[bool, ...]) -> Run:
    cupy: Any = importlib.import_module("cupy")
    kernel = cupy.RawKernel(_source(are_arrays), "f")
    args = tuple(
        cupy.zeros(elements, np.float32) if is_array else np.float32(2) for is_array in are_arrays
    )

    def run(count: int) -> None:
        for _ in range(count):
            kernel((1,), (elements,), args)

    return run


def _cuda_core(elements: int, are_arrays: tuple[bool, ...]) -> Run:
    core: Any = importlib.import_module("cuda.core")
    if not hasattr(core, "Program"):
        core = importlib.import_module("cuda.core.experimental")
    device = core.Device()
    device.set_current()
    stream = device.create_stream()
    options = core.ProgramOptions(arch=f"sm_{''.join(map(str, device.compute_capability))}")
    code = core.Program(_source(are_arrays), code_type="c++", options=options).compile("cubin")
    kernel, config = code.get_kernel("f"), core.LaunchConfig(grid=1, block=elements)
    memory = [device.allocate(4 * elements, stream=stream) for one in are_arrays if one]
    buffers = iter(memory)
    args = tuple(next(buffers) if is_array else np.float32(2) for is_array in are_arrays)
    launch = core.launch

    def run(count: int) -> None:
        for _ in range(count):
            launch(stream, config, kernel, *args)

    return run


def _triton(elements: int, are_arrays: tuple[bool, ...]) -> Run:
    torch: Any = importlib.import_module("torch")
    module: Any = importlib.import_module("benchmarks.triton_launch")
    kernel = module.of_2 if len(are_arrays) == 3 else module.of_8
    args = tuple(
        torch.zeros(elements, device="cuda") if is_array else 2.0 for is_array in are_arrays
    )

    def run(count: int) -> None:
        for _ in range(count):
            kernel[(1,)](*args, SIZE=elements)

    return run


def _warp(elements: int, are_arrays: tuple[bool, ...]) -> Run:
    wp: Any = importlib.import_module("warp")
    wp.config.quiet = True
    wp.init()
    array = wp.array(dtype=wp.float32)

    def of_2(x, y, a):  # type: ignore[no-untyped-def]  # Warp reads the annotations
        y[wp.tid()] = a * x[wp.tid()]

    def of_8(a, b, c, d, e, f, g, out):  # type: ignore[no-untyped-def]
        out[wp.tid()] = a[wp.tid()]

    function: Any = of_2 if len(are_arrays) == 3 else of_8
    names = function.__code__.co_varnames[: len(are_arrays)]
    function.__annotations__ = {
        name: array if is_array else wp.float32
        for name, is_array in zip(names, are_arrays, strict=True)
    }
    kernel = wp.kernel(function)
    args = [
        wp.zeros(elements, dtype=wp.float32, device="cuda:0") if is_array else 2.0
        for is_array in are_arrays
    ]

    def run(count: int) -> None:
        for _ in range(count):
            wp.launch(kernel, elements, args, device="cuda:0")

    return run


_PEERS: Final[dict[str, tuple[str, Callable[[int, tuple[bool, ...]], Run]]]] = {
    "CuPy RawKernel": ("cupy", _cupy),
    "cuda.core": ("cuda.core", _cuda_core),
    "Triton": ("triton", _triton),
    "Warp": ("warp", _warp),
}
