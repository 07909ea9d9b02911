"""What enqueueing a kernel costs the host on CUDA, beside a loop of machine code.

``python -m benchmarks.cuda_launch`` prints microseconds per launch and ratios to that loop, which
calls cuLaunchKernel with everything ready. All ways launch the same function of the same module on
the same stream, in turns; a turn is shorter than the driver's queue, and is waited for apart.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import kernels
from khaljit.backends.cpu.features import probe
from khaljit.backends.cpu.loader import load
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.kernel import CudaKernel
from khaljit.codegen.llvm.assemble import assemble
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.extension import NATIVE

ELEMENTS: Final = 16
CALLS: Final = 500  # of a turn; the driver's queue holds 1,024

LOOP: Final = """
define i32 @loop(
    ptr %launch, ptr %function, ptr %stream, ptr %params, i32 %block, i64 %n
) nounwind {
start:
  br label %turn
turn:
  %i = phi i64 [0, %start], [%following, %turn]
  %status = call i32 %launch(ptr %function, i32 1, i32 1, i32 1, i32 %block, i32 1, i32 1, i32 0,
                             ptr %stream, ptr %params, ptr null)
  %following = add i64 %i, 1
  %more = icmp slt i64 %following, %n
  %good = icmp eq i32 %status, 0
  %again = and i1 %more, %good
  br i1 %again, label %turn, label %out
out:
  ret i32 %status
}
"""


class Case:
    """One kernel with its arguments, and all ways of launching it."""

    def __init__(self, device: Any, function: Any, args: tuple[Any, ...]) -> None:
        self._device: Final = device
        self._kernel: Final = kernels.variant(function, "khaljit")
        self._args: Final = args
        self._launch: Final = self._kernel[ELEMENTS]
        for _ in range(3):
            self._launch(*args)
        device.synchronize()
        dispatch = self._launch.prepare(args, {})
        loaded = dispatch.loaded
        assert isinstance(loaded, CudaKernel)
        self._function: Final = int(loaded._module.function)
        self._block: Final = loaded._block[0]
        slots: list[int] = []
        for operand in dispatch.operands:
            slots += (operand.address, *operand.shape, *operand.strides)
        numbers = [int(np.float32(one).view(np.uint32)) for one in dispatch.numbers]
        whole = (*slots, *numbers, *dispatch.groups)
        self._data: Final = (ctypes.c_uint64 * len(whole))(*whole)
        self._params: Final = (ctypes.c_void_p * 1)(ctypes.addressof(self._data))

    def ways(self) -> dict[str, Callable[[int], None]]:
        """Each enqueues the kernel so many times."""
        found = {
            "machine code": self._machine_code(),
            "khaljit, launch kept": self._hoisted,
            "khaljit, by subscript": self._subscript,
            "khaljit, bound": self._bound(),
            "khaljit by Python": self._by_python,
            "cuda.bindings, pointers": self._bindings,
        }
        if importlib.util.find_spec("cupy") is not None:
            found["CuPy RawKernel"] = self._cupy()
        return found

    def _machine_code(self) -> Callable[[int], None]:
        image = load(assemble(LOOP, CpuTarget(probe().level)))
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, pointer, pointer, pointer, ctypes.c_int, size
        )
        loop, where = kind(image.address("loop")), driver.address("cuLaunchKernel")
        stream, params = self._device.own.handle, ctypes.addressof(self._params)

        def run(count: int) -> None:
            assert image is not None  # keeps the code
            status = loop(where, self._function, stream, params, self._block, count)
            assert status == 0, status

        return run

    def _hoisted(self, count: int) -> None:
        launch, args = self._launch, self._args
        for _ in range(count):
            launch(*args)

    def _subscript(self, count: int) -> None:
        kernel, args = self._kernel, self._args
        for _ in range(count):
            kernel[ELEMENTS](*args)

    def _bound(self) -> Callable[[int], None]:
        bound = self._launch.bind(*self._args)

        def run(count: int) -> None:
            for _ in range(count):
                bound()

        return run

    def _by_python(self, count: int) -> None:
        launch, groups, args = self._kernel.launch, self._launch.groups, self._args
        for _ in range(count):
            launch(groups, args, {})

    def _bindings(self, count: int) -> None:
        launch, stream = driver.library().cuLaunchKernel, self._device.own.handle
        params, function, block = ctypes.addressof(self._params), self._function, self._block
        for _ in range(count):
            launch(function, 1, 1, 1, block, 1, 1, 0, stream, params, 0)

    def _cupy(self) -> Callable[[int], None]:
        """A kernel of CuPy's own with as many arguments."""
        cupy = importlib.import_module("cupy")
        count = len(self._args)
        names = [f"a{k}" for k in range(count)]
        kinds = ["float*" if isinstance(one, kj.Array) else "float" for one in self._args]
        text = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, names, strict=True))
        source = f'extern "C" __global__ void f({text}) {{ a0[threadIdx.x] = 1; }}'
        kernel = cupy.RawKernel(source, "f")
        args = tuple(
            cupy.zeros(ELEMENTS, np.float32) if isinstance(one, kj.Array) else np.float32(one)
            for one in self._args
        )

        def run(turns: int) -> None:
            for _ in range(turns):
                kernel((1,), (ELEMENTS,), args)

        return run

    def measure(self, rounds: int) -> dict[str, float]:
        """Median seconds per launch of each way, in turns."""
        ways = self.ways()
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 2):
            for name, run in ways.items():
                start = time.perf_counter()
                run(CALLS)
                taken = time.perf_counter() - start
                self._device.synchronize()
                if turn > 1:
                    seconds[name].append(taken / CALLS)
        return {name: median(found) for name, found in seconds.items()}


def main(rounds: Annotated[int, typer.Option(help="turns of each way")] = 40) -> None:
    """Measure and print."""
    device = kj.device("cuda")
    arrays = [device.array(np.arange(ELEMENTS, dtype=np.float32) + k) for k in range(8)]
    cases = {
        "2 arrays and a number": Case(device, kernels.launch_2, (arrays[0], arrays[1], 2.0)),
        "8 arrays": Case(device, kernels.launch_8, tuple(arrays)),
    }
    measured = {name: case.measure(rounds) for name, case in cases.items()}
    table = Table("way", *(f"{name}, us" for name in cases), *(f"ratio, {name}" for name in cases))
    for way in next(iter(measured.values())):
        times = [f"{found[way] * 1e6:.2f}" for found in measured.values()]
        ratios = [f"{found[way] / found['machine code']:.2f}" for found in measured.values()]
        table.add_row(way, *times, *ratios)
    console = Console(width=140)
    console.print(f"{device.describe()}, native extension: {NATIVE is not None}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
