"""Kernels on a GPU: loading their code, packing their arguments, launching them.

A launch makes as few objects as it can: the bytes of the parameter block are packed into memory
that launches share, since the driver has read them when the call returns.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import struct
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit import compiler
from khaljit.arrays import Array
from khaljit.backends.base import Loaded, NativeTarget
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.driver import DriverError
from khaljit.backends.cuda.memory import Memory
from khaljit.backends.cuda.streams import CHOSEN, Stream
from khaljit.backends.cuda.target import Cuda
from khaljit.cache.artifact import Artifact
from khaljit.codegen.layout import SLOT, ParameterBlock
from khaljit.extension import NATIVE
from khaljit.graphs.capture import apart
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, f32, f64, u32
from khaljit.tracer.errors import ArgumentValueError, DeviceError, GraphError
from khaljit.tracer.ir import Trace
from khaljit.tracer.recorder import Attribute, Guard, user_site
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice

__all__ = [
    "Block",
    "BoundLaunch",
    "CudaKernel",
    "Module",
    "chosen_stream",
    "hand_back",
    "read_grid",
]

MAX_X: Final = (1 << 31) - 1
MAX_YZ: Final = 65535
LOG_BYTES: Final = 8192
MASK: Final = (1 << 64) - 1

Numbers = Sequence[int | float | bool]

if NATIVE is not None:
    NATIVE.know_memory(Memory, True)


@final
class Module:
    """Code that is loaded, with the one kernel of it that is launched."""

    def __init__(self, device: CudaDevice, image: bytes, entry: str, name: str) -> None:
        self._device: Final = device
        self._handle: Any = None
        self.name: Final = name
        self.what: Final = f"launching kernel {name}"
        if not image.startswith(b"\x7fELF"):
            image += b"\0"
        try:
            self._handle = device.call("cuModuleLoadData", image, what=f"loading kernel {name}")
        except DriverError as error:
            log = _compile_log(image)
            raise DriverError(f"{error.message}{log}", error.code, mend=error.mend) from None
        self.function: Final = device.call(
            "cuModuleGetFunction",
            self._handle,
            entry.encode(),
            what=f"looking for {entry} in the code of kernel {name}",
        )
        # Now, not at the first launch, which may be in a capture: loading there would break it.
        device.call("cuFuncLoad", self.function, what=f"loading kernel {name}")
        self._launch: Final[Callable[..., Any]] = driver.library().cuLaunchKernel

    def __del__(self) -> None:
        if self._handle is not None and not sys.is_finalizing():
            self._device.drop("cuModuleUnload", self._handle)

    def allow_shared(self, nbytes: int) -> None:
        """Allot dynamic shared memory at each launch, beyond what every kernel may have."""
        device, most = self._device, self._device.most_shared
        if nbytes > most:
            raise DeviceError(
                f"kernel {self.name} takes {nbytes:,} bytes of shared memory, and a workgroup on "
                f"{device} has at most {most:,}",
                mend="use smaller shared arrays",
            )
        kind = driver.library().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device.call("cuFuncSetAttribute", self.function, kind, nbytes)

    def run(
        self,
        blocks: Sequence[int],
        block: tuple[int, int, int],
        shared: int,
        stream: Stream,
        parameters: int,
    ) -> None:
        """Enqueue; ``parameters`` is the address of pointers to what the kernel takes."""
        device = self._device
        (status,) = self._launch(
            self.function, *blocks, *block, shared, stream.handle, parameters, 0
        )
        if status:
            self.fail(status, block, shared)
        device.recent.append(self.name)
        if stream.captured is not None:
            stream.captured.commands += 1

    def node_params(
        self, blocks: Sequence[int], block: tuple[int, int, int], shared: int, parameters: int
    ) -> Any:
        """A launch as the driver's graphs have it."""
        params = driver.library().CUDA_KERNEL_NODE_PARAMS()
        params.func = self.function
        params.gridDimX, params.gridDimY, params.gridDimZ = blocks
        params.blockDimX, params.blockDimY, params.blockDimZ = block
        params.sharedMemBytes = shared
        params.kernelParams = parameters
        return params

    def fail(self, status: Any, block: tuple[int, int, int], shared: int) -> None:
        """Raise the error for what the driver said of a launch."""
        raise self._device.explained(self._failure(driver.fail(status, self.what), block, shared))

    def _failure(self, error: DriverError, block: tuple[int, int, int], shared: int) -> DriverError:
        """An error of a launch, with what it asked for and what there is."""
        if error.sticky:
            return error
        device, kinds = self._device, driver.library().CUfunction_attribute
        names = ("NUM_REGS", "SHARED_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
        registers, static, most = (
            device.call(
                "cuFuncGetAttribute", getattr(kinds, f"CU_FUNC_ATTRIBUTE_{one}"), self.function
            )
            for one in names
        )
        return DriverError(
            f"{error.message}: its workgroup of {block} is {math.prod(block)} invocations of "
            f"{registers} registers and {static + shared:,} bytes of shared memory; {device} "
            f"takes at most {most} such invocations, {device.most_registers:,} registers and "
            f"{device.most_shared:,} bytes",
            error.code,
            mend=error.mend or "use a smaller workgroup or less shared memory",
        )


def _compile_log(image: bytes) -> str:
    """What the driver's compiler says of PTX that it refuses."""
    if image.startswith(b"\x7fELF"):
        return ""
    library = driver.library()
    options, log = library.CUjit_option, bytearray(LOG_BYTES)
    library.cuModuleLoadDataEx(
        image,
        2,
        [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES],
        [log, LOG_BYTES],
    )
    said = log.partition(b"\0")[0].decode(errors="replace").strip()
    return f"\n{said}" if said else ""


@final
class Block:
    """Memory for the parameter block of one launch, and the pointer to it that the driver takes."""

    __slots__ = ("_pointers", "address", "data")

    def __init__(self, size: int) -> None:
        self.data: Final = bytearray(size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.data))
        self._pointers: Final = ctypes.c_void_p(start)  # one: arrays of ctypes are slow to make
        self.address: Final = ctypes.addressof(self._pointers)


def chosen_stream(device: CudaDevice, memories: Sequence[Memory]) -> Stream:
    """Where a launch goes, which then waits for what else is done with its memory."""
    stream = CHOSEN.get()
    if stream is not None and stream.captured is not None:
        stream.captured.memories.update(dict.fromkeys(memories))  # in order when it is launched
        return stream
    if stream is None:
        stream = device.own
        for memory in memories:
            if memory.home is not None:
                stream = memory.home
                break
    for memory in memories:
        if memory.stream is not stream:
            device.order(memory, stream)
    if stream is not device.own:
        device.others.add(stream)
    if device.timing is not None:
        device.timing.on(stream)
    return stream


def hand_back(device: CudaDevice, memories: Sequence[Memory], stream: Stream) -> None:
    """Let other libraries' streams wait for a launch on their memory that went elsewhere."""
    if stream.captured is not None:
        return
    for memory in memories:
        home = memory.home
        if home is not None and home is not memory.stream:
            device.wait(stream, home)
            memory.stream = home


@final
@dataclass(frozen=True, slots=True, eq=False)
class BoundLaunch:
    """A launch with all read but the numbers.

    Attributes:
        slots: of the arrays in the parameter block.
        memories: that they are in, and that the grid is read from.
        groups: workgroups per axis, or where the GPU reads them.
        blocks: blocks of threads per axis.
    """

    kernel: CudaKernel
    slots: Sequence[int]
    memories: Sequence[Memory]
    groups: Sequence[int]
    blocks: Sequence[int]

    def __call__(self, numbers: Numbers) -> None:
        """Enqueue it."""
        self.kernel.enter()
        self.kernel.enqueue(self, numbers)

    def on(self, operands: Sequence[Operand]) -> BoundLaunch:
        """The same on other arrays; the grid is read from where it was."""
        slots, memories = _read(operands)
        memories += self.memories[len(operands) :]
        return dataclasses.replace(self, slots=slots, memories=memories)

    def new_block(self) -> Block:
        """Memory for what the kernel takes."""
        return self.kernel.new_block()

    def fill(self, block: Block, numbers: Numbers) -> None:
        """Write there what the kernel takes."""
        self.kernel.fill(block, self, numbers)

    def node_params(self, block: Block) -> Any:
        """It as the driver's graphs have it."""
        return self.kernel.node_params(self, block)


def read_grid(kernel: str, groups: Indirect) -> Grid:
    """A grid that the host has to read."""
    stream = CHOSEN.get()
    if stream is not None and stream.captured is not None:
        raise GraphError(
            f"kernel {kernel}: the host would have to read the grid while a graph is captured",
            at=user_site(),
            mend="let the GPU read it: unset KHALJIT_CUDA_INDIRECT_SYNC, keep the counts on the "
            "kernel's own GPU, and use a kernel of khaljit's",
        )
    return groups.read()


@final
class CudaKernel(Loaded):
    """A kernel that khaljit compiled."""

    def __init__(self, device: CudaDevice, artifact: Artifact, trace: Trace) -> None:
        plan = artifact.plan
        self._device: Final = device
        self._trace: Final = trace
        self._module: Final = Module(device, artifact.payload, plan["entry"], trace.name)
        self._block: Final[tuple[int, int, int]] = tuple(plan["workgroup"])
        self._item: Final[tuple[int, int, int]] = tuple(plan["item"])
        self._shared: Final[int] = plan["shared"]
        if self._shared:
            self._module.allow_shared(self._shared)
        layout = ParameterBlock.of(trace)
        types = tuple(scalar.dtype for scalar in trace.scalars)
        arrays = "".join(f"Q{2 * array.memory.ndim}q" for array in trace.arrays)
        scalars = "".join(map(_format, types))
        self._pack: Final = struct.Struct(f"<{arrays}{scalars}3Q").pack_into
        self._bits: Final = struct.Struct(f"<{arrays}{len(types)}Q3Q").pack_into
        self._types: Final = types
        self._plain: Final = all(_is_plain(dtype) for dtype in types)
        self._size: Final = layout.size
        self._blocks: Final[list[Block]] = []  # that no launch is writing to
        self._variants: Final[dict[str, CudaKernel]] = {}

    def launch(
        self, operands: Sequence[Operand], numbers: Numbers, groups: Grid | Indirect
    ) -> None:
        """Enqueue on the stream."""
        self._device.enter()
        if isinstance(groups, Indirect) and self._host_reads(groups):
            groups = read_grid(self._trace.name, groups)
            if 0 in groups:
                return
        self.bind(operands, groups)(numbers)

    def native(self) -> NativeTarget | None:
        """The driver's own functions, for launches on the device's stream; what is timed
        or on another stream goes by Python."""
        device, module = self._device, self._module
        enter, launch = device.functions
        if enter is None or launch is None:
            return None
        values = (
            enter,
            launch,
            int(device.context.handle),
            int(module.function),
            device.own.handle,
            device.own,
            self._block,
            self._item,
            self._shared,
            device.recent.append,
            module.name,
            lambda status: module.fail(driver.status(status), self._block, self._shared),
            self,
        )
        reads = (Attribute(device, "timing"), Attribute(device, "dead"))
        return NativeTarget("cuda", values, tuple(Guard(one.name, one, one()) for one in reads))

    def repeat(self, key: bytes, arrays: Sequence[Array[Any]], numbers: Sequence[Any]) -> None:
        """Enqueue on the stream."""
        *slots, x, y, z = struct.unpack(f"={len(key) // SLOT}q", key)
        kernel, blocks = self._fitting((x, y, z))
        memories = [array.buffer for array in arrays]
        BoundLaunch(kernel, slots, memories, (x, y, z), blocks)(numbers)

    def bind(self, operands: Sequence[Operand], groups: Grid | Indirect) -> BoundLaunch:
        """A launch with all read but the numbers; it keeps the arrays' memory."""
        if isinstance(groups, Indirect):
            return self._bind_indirect(operands, groups)
        kernel, blocks = self._fitting(groups)
        return BoundLaunch(kernel, *_read(operands), groups, blocks)

    def _fitting(self, groups: Grid) -> tuple[CudaKernel, Sequence[int]]:
        """The form of the kernel that a grid is launched with, and its blocks of threads."""
        blocks = self._blocks_of(groups)
        if blocks[0] <= MAX_X and blocks[1] <= MAX_YZ and blocks[2] <= MAX_YZ:
            return self, blocks
        total = math.prod(blocks)
        if total > MAX_X:
            raise ArgumentValueError(
                f"kernel {self._trace.name}: {total} workgroups are too many for one launch",
                mend=f"at most {MAX_X}: launch it in parts, or loop with kj.grid_stride",
            )
        return self._variant("folded"), (total, 1, 1)

    def _blocks_of(self, groups: Grid) -> Sequence[int]:
        """Blocks of threads for a grid of workgroups."""
        workgroup = self._trace.workgroup or (1, 1, 1)
        return [
            -(-count * size // (block * item))
            for count, size, block, item in zip(
                groups, workgroup, self._block, self._item, strict=True
            )
        ]

    def _host_reads(self, groups: Indirect) -> bool:
        """Whether the host has to read a grid; else the GPU does, when it comes to the launch."""
        counts = groups.array
        on_host = os.environ.get("KHALJIT_CUDA_INDIRECT_SYNC") == "1"
        return on_host or not isinstance(counts, Array) or counts.device is not self._device

    def _bind_indirect(self, operands: Sequence[Operand], groups: Indirect) -> BoundLaunch:
        device, counts = self._device, groups.array
        memory, address = counts.buffer, counts.address + u32.size * groups.offset
        written = any(
            isinstance(operand.owner, Array)
            and (operand.owner.buffer is memory or operand.owner.param is not None)
            for operand in operands
        )
        if written or not counts.is_contiguous:
            own = device.scratch((3,), u32)  # what the kernel writes is not its own grid
            device.copy(counts[groups.offset : groups.offset + 3], own)
            memory, address = own.buffer, own.address
        blocks = (device.resident_blocks, 1, 1)
        slots, memories = _read(operands)
        memories.append(memory)
        return BoundLaunch(self._variant("resident"), slots, memories, (address, 0, 0), blocks)

    def _variant(self, kind: str) -> CudaKernel:
        """The same kernel for another way of launching; compiled when it is first needed."""
        found = self._variants.get(kind)
        if found is None:
            target = Cuda(self._device.architecture, form=kind)
            compiled = compiler.compile_trace(self._trace, target, self.origin)
            with apart(self._device):
                found = CudaKernel(self._device, compiled.artifact, self._trace)
            self._variants[kind] = found
        return found

    def enter(self) -> None:
        """Ready this thread for calls."""
        self._device.enter()

    def enqueue(self, launch: BoundLaunch, numbers: Numbers) -> None:
        """Run a launch of this form of the kernel on the stream."""
        device, memories = self._device, launch.memories
        stream = chosen_stream(device, memories)
        try:
            block = self._blocks.pop()
        except IndexError:
            block = Block(self._size)
        try:
            self.fill(block, launch, numbers)
            self._module.run(launch.blocks, self._block, self._shared, stream, block.address)
        finally:
            self._blocks.append(block)
        hand_back(device, memories, stream)

    def node_params(self, launch: BoundLaunch, block: Block) -> Any:
        """A launch as the driver's graphs have it."""
        return self._module.node_params(launch.blocks, self._block, self._shared, block.address)

    def new_block(self) -> Block:
        """Memory for a parameter block."""
        return Block(self._size)

    def fill(self, block: Block, launch: BoundLaunch, numbers: Numbers) -> None:
        """Pack the parameter block of a launch."""
        self._fill(block, [*launch.slots, *numbers, *launch.groups], len(launch.slots))

    def _fill(self, block: Block, slots: list[Any], arrays: int) -> None:
        """Pack the parameter block; numbers that the format does not take, by their bits."""
        if self._plain:
            try:
                self._pack(block.data, 0, *slots)
            except (OverflowError, struct.error):
                pass  # a float beyond f32: its bits are those of infinity
            else:
                return
        for position, dtype in enumerate(self._types, arrays):
            slots[position] = to_bits(dtype, slots[position]) & MASK
        self._bits(block.data, 0, *slots)


def _read(operands: Sequence[Operand]) -> tuple[list[int], list[Memory]]:
    """The slots of arrays in the parameter block, and the memory that they are in."""
    slots: list[int] = []
    memories: list[Memory] = []
    for operand in operands:
        memories.append(operand.owner.buffer)  # type: ignore[union-attr]  # an Array
        slots.append(operand.address)
        slots += operand.shape
        slots += operand.strides
    return slots, memories


def _is_plain(dtype: DType) -> bool:
    """Whether the ``struct`` module packs numbers of a type as they are."""
    return dtype is f32 or dtype is f64 or not dtype.is_float


def _format(dtype: DType) -> str:
    """The slot of a number, for ``struct``."""
    if dtype is f32:
        return "f4x"
    if dtype is f64:
        return "d"
    return "q" if dtype.is_signed else "Q"
