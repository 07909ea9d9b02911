"""What enqueueing a kernel costs the host on CUDA, beside a loop of machine code.

``python -m benchmarks.cuda_launch`` prints microseconds per launch and ratios to that loop, which
calls cuLaunchKernel with everything ready. All ways of khaljit's launch the same function of the
same module on the same stream as the loop, peers a kernel of their own with as many arguments, in
turns; a turn is shorter than the driver's queue, and is waited for apart.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import khaljit as kj
from benchmarks import cuda_launch_peers, kernels
from khaljit.backends.cpu.features import probe
from khaljit.backends.cpu.loader import load
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.kernel import CudaKernel
from khaljit.codegen.llvm.assemble import assemble
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.extension import NATIVE

ELEMENTS: Final = 16
CALLS: Final = 500  # of a turn; the driver's queue holds 1,024

# What a C program compiles to that launches in a loop; {enter} is there if it sets the context too.
LOOP: Final = """
define i32 @loop(
    ptr %launch, ptr %function, ptr %stream, ptr %params, i32 %block, i64 %n, ptr %set, ptr %context
) nounwind {{
start:
  br label %turn
turn:
  %i = phi i64 [0, %start], [%following, %turn]
  {enter}
  %status = call i32 %launch(ptr %function, i32 1, i32 1, i32 1, i32 %block, i32 1, i32 1, i32 0,
                             ptr %stream, ptr %params, ptr null)
  %following = add i64 %i, 1
  %more = icmp slt i64 %following, %n
  %good = icmp eq i32 %status, 0
  %again = and i1 %more, %good
  br i1 %again, label %turn, label %out
out:
  ret i32 %status
}}
"""
ENTER: Final = "%entered = call i32 %set(ptr %context)"

# A kernel that takes its arguments one by one, as other compilers pass them.
APART: Final = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry apart({parameters})
{{
    ret;
}}
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
            "machine code": self._machine_code(self._function, self._params),
            "machine code, a parameter each": self._apart(),
            "machine code, context set each time": self._machine_code(
                self._function, self._params, ENTER
            ),
            "khaljit, launch kept": self._hoisted,
            "khaljit, by subscript": self._subscript,
            "khaljit, bound": self._bound(),
            "khaljit by Python": self._by_python,
            "cuda.bindings, pointers": self._bindings,
        }
        return found | cuda_launch_peers.installed(ELEMENTS, self._args)

    def _machine_code(self, function: int, params: Any, enter: str = "") -> Callable[[int], None]:
        text = LOOP.format(enter=enter)
        image = load(assemble(text, CpuTarget(probe().level)))
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, pointer, pointer, pointer, ctypes.c_int, size, pointer, pointer
        )
        loop, where = kind(image.address("loop")), driver.address("cuLaunchKernel")
        place, context = driver.address("cuCtxSetCurrent"), int(self._device.context.handle)
        stream, address = self._device.own.handle, ctypes.addressof(params)

        def run(count: int) -> None:
            assert image is not None  # keeps the code
            status = loop(where, function, stream, address, self._block, count, place, context)
            assert status == 0, status

        return run

    def _apart(self) -> Callable[[int], None]:
        """The loop on a kernel that does nothing, whose arguments are passed one by one."""
        data = [one.address if isinstance(one, kj.Array) else 0 for one in self._args]
        kinds = [".u64" if isinstance(one, kj.Array) else ".f32" for one in self._args]
        parameters = ", ".join(f".param {kind} p{k}" for k, kind in enumerate(kinds))
        text = APART.format(parameters=parameters)
        self._module: Any = self._device.call("cuModuleLoadData", text.encode() + b"\0")
        function = int(self._device.call("cuModuleGetFunction", self._module, b"apart"))
        self._values: Any = (ctypes.c_uint64 * len(data))(*data)
        start = ctypes.addressof(self._values)
        self._pointers: Any = (ctypes.c_void_p * len(data))(
            *(start + 8 * k for k in range(len(data)))
        )
        return self._machine_code(function, self._pointers)

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
        ratios = [f"{found[way] / found['machine code']:.3f}" for found in measured.values()]
        table.add_row(way, *times, *ratios)
    console = Console(width=140)
    console.print(f"{device.describe()}, native extension: {NATIVE is not None}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
