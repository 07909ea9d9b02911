"""The CPU as a device: arrays in host memory, kernels as machine code on a pool of threads."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from khaljit.backends.base import Loaded, NativeTarget
from khaljit.backends.cpu.features import probe
from khaljit.backends.cpu.loader import Image, load
from khaljit.backends.cpu.pool import available_threads, make_pool
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.host import HostDevice
from khaljit.cache.artifact import Artifact
from khaljit.codegen.layout import SLOT, ParameterBlock
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.extension import NATIVE
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.build import to_bits
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.ir import Trace, effects
from khaljit.tracer.ops import Op

if TYPE_CHECKING:
    from khaljit.backends.replay import Replay
    from khaljit.graphs.nodes import Node

__all__ = ["CpuDevice", "CpuKernel"]

# A launch of fewer simple operations than this runs in the calling thread: waking another one
# takes longer.
WORTH_THREADS: Final = 200_000
CHUNKS_PER_THREAD: Final = 8
_MASK: Final = (1 << 64) - 1


@final
class CpuDevice(HostDevice):
    """The processor that Python runs on.

    Args:
        threads: how many a launch may use; by default what the process is granted.
    """

    kind: ClassVar[str] = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and (type(threads) is not int or threads < 1):
            raise ArgumentValueError(
                f"kj.device('cpu', threads={threads!r})", mend="threads is an int, 1 or more"
            )
        self.name = "cpu"
        self.threads: Final = threads or available_threads()
        self.host: Final = probe()
        self.target = Cpu(CpuTarget(self.host.level))
        self.pool: Final = make_pool(self.threads)

    def load_artifact(self, artifact: Artifact, trace: Trace) -> Loaded:
        """Map an object file into executable memory."""
        return CpuKernel(self, load(artifact.payload), artifact.plan, trace)

    def replay_of(self, nodes: Sequence[Node]) -> Replay:
        """A native list; a plain one where nothing can make the code that runs it."""
        from khaljit.backends.cpu.replay import CpuReplay
        from khaljit.backends.cpu.runs import runner_of

        runner = runner_of(self.target)
        return super().replay_of(nodes) if runner is None else CpuReplay(self, runner, nodes)

    def describe(self) -> Mapping[str, str]:
        """Processor, level and threads."""
        return {
            "processor": self.host.name,
            "level": self.host.level,
            "vectors": f"{self.host.vector_bits} bits",
            "threads": str(self.threads),
        }


@final
class CpuKernel(Loaded):
    """Machine code of one kernel.

    Attributes:
        address: of its entry.
        block_bytes: of its parameter block.
        first_number: the slot of its first number.
        arena_bytes: of scratch memory that each thread needs.
    """

    def __init__(
        self, device: CpuDevice, image: Image, plan: Mapping[str, Any], trace: Trace
    ) -> None:
        self._pool: Final = device.pool
        self._threads: Final = device.threads
        self._image: Final = image
        self.address: Final = image.address(plan["entry"])
        self.arena_bytes: Final[int] = plan["arena"]
        self._item: Final[tuple[int, ...]] = tuple(plan["item"])
        self._workgroup: Final[tuple[int, ...]] = tuple(plan["workgroup"])
        self._cost: Final[int] = plan["cost"]
        self.block_bytes: Final = ParameterBlock.of(trace).size
        self.first_number: Final = sum(1 + 2 * array.memory.ndim for array in trace.arrays)
        self._pack: Final = struct.Struct(f"<{self.block_bytes // SLOT}Q").pack
        self._types: Final = tuple(scalar.dtype for scalar in trace.scalars)
        self._is_brief: Final = all(one.op is not Op.LOOP for one in effects(trace.body))

    def native(self) -> NativeTarget | None:
        """The entry point, and when to share the work out."""
        if NATIVE is None:
            return None
        values = (
            self.address,
            self._pool,
            self,
            self.arena_bytes,
            self._item,
            float(self._cost),
            float(WORTH_THREADS),
            CHUNKS_PER_THREAD,
            self._is_brief,
        )
        return NativeTarget("cpu", values)

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Run to completion."""
        if isinstance(groups, Indirect):
            groups = groups.read()
            if 0 in groups:
                return
        block = ctypes.c_char.from_buffer(bytearray(self.pack(operands, numbers, groups)))
        total, chunk = self.share(groups)
        self._pool.run(self.address, ctypes.addressof(block), total, chunk, self.arena_bytes)

    def pack(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid,
    ) -> bytes:
        """The parameter block."""
        slots: list[int] = []
        for operand in operands:
            slots.append(operand.address)
            slots += operand.shape
            slots += operand.strides
        slots += map(to_bits, self._types, numbers)
        slots += groups
        return self._pack(*[slot & _MASK for slot in slots])

    def share(self, groups: Grid) -> tuple[int, int]:
        """How many items a grid has, and how many a thread takes at a time."""
        total = 1
        for count, size, item in zip(groups, self._workgroup, self._item, strict=True):
            total *= -(-count * size // item)
        if self._threads > 1 and self.work(groups) >= WORTH_THREADS:
            return total, max(1, total // (self._threads * CHUNKS_PER_THREAD))
        return total, total

    def work(self, groups: Grid) -> int:
        """Roughly the simple operations of a launch."""
        work = self._cost
        for count, size in zip(groups, self._workgroup, strict=True):
            work *= count * size
        return work
