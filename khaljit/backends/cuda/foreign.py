"""Hand-written PTX and cubins on a GPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.annotations import ArrayOf
from khaljit.backends.base import Loaded
from khaljit.backends.cuda.kernel import Module, chosen_stream, hand_back, read_grid
from khaljit.backends.cuda.memory import Memory
from khaljit.backends.cuda.streams import Stream
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.intrinsics.vectors import VectorType
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice
    from khaljit.foreign import CodeInterface

__all__ = ["ForeignLoaded"]

LIMITS: Final = ((1 << 31) - 1, 65535, 65535)  # workgroups on an axis
Numbers = Sequence[int | float | bool]
_WORDS: Final = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


@final
class Values:
    """Memory for what a function takes, and the pointers to it that the driver takes."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values: Final = [ctypes.create_string_buffer(one, len(one)) for one in values]
        self._pointers: Final = (ctypes.c_void_p * max(len(values), 1))(
            *map(ctypes.addressof, self._values)
        )
        self.address: Final = ctypes.addressof(self._pointers)

    def set(self, values: Sequence[bytes]) -> None:
        """Put other values there."""
        for memory, one in zip(self._values, values, strict=True):
            ctypes.memmove(memory, one, len(one))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ForeignLaunch:
    """A launch with all read but the numbers."""

    loaded: ForeignLoaded
    operands: Sequence[Operand]
    memories: Sequence[Memory]
    groups: Grid

    def __call__(self, numbers: Numbers) -> None:
        """Enqueue it."""
        device = self.loaded.device
        device.enter()
        stream = chosen_stream(device, self.memories)
        self.loaded.run(self.groups, stream, Values(self.loaded.bytes(self.operands, numbers)))
        hand_back(device, self.memories, stream)

    def on(self, operands: Sequence[Operand]) -> ForeignLaunch:
        """The same on other arrays."""
        return self.loaded.bind(operands, self.groups)

    def new_block(self) -> Values:
        """Memory for what the function takes."""
        zeros = [0] * self.loaded.count
        return Values(self.loaded.bytes(self.operands, zeros))

    def fill(self, block: Values, numbers: Numbers) -> None:
        """Write there what the function takes."""
        block.set(self.loaded.bytes(self.operands, numbers))

    def node_params(self, block: Values) -> Any:
        """It as the driver's graphs have it."""
        return self.loaded.node_params(self.groups, block)


@final
class ForeignLoaded(Loaded):
    """A function of a module; its parameters are pointers and numbers, each by its own size."""

    def __init__(self, device: CudaDevice, code: bytes | str, interface: CodeInterface) -> None:
        self.device: Final = device
        self._interface: Final = interface
        image = code.encode() if isinstance(code, str) else code
        self.count: Final = sum(
            one.count if isinstance(one, VectorType) else 1 for one in interface.numbers
        )
        self._module: Final = Module(device, image, interface.entry, interface.name)

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Numbers,
        groups: Grid | Indirect,
    ) -> None:
        """Enqueue on the stream; counts that the device would read are read by the host, since the
        code cannot be changed."""
        self.device.enter()
        if isinstance(groups, Indirect):
            groups = read_grid(self._interface.name, groups)
            if 0 in groups:
                return
        self.bind(operands, groups)(numbers)

    def bind(self, operands: Sequence[Operand], groups: Grid | Indirect) -> ForeignLaunch:
        """A launch with all read but the numbers."""
        assert not isinstance(groups, Indirect)
        if any(count > limit for count, limit in zip(groups, LIMITS, strict=True)):
            raise ArgumentValueError(
                f"kernel {self._interface.name}: {groups} workgroups, and CUDA takes at most "
                f"{LIMITS}",
                mend="use more axes: hand-written code computes its own ids",
            )
        owners: list[Any] = [operand.owner for operand in operands]
        return ForeignLaunch(self, operands, [owner.buffer for owner in owners], groups)

    def run(self, groups: Grid, stream: Stream, values: Values) -> None:
        """Enqueue on a stream."""
        self._module.run(groups, self._interface.workgroup, 0, stream, values.address)

    def node_params(self, groups: Grid, values: Values) -> Any:
        """A launch as the driver's graphs have it."""
        return self._module.node_params(groups, self._interface.workgroup, 0, values.address)

    def bytes(self, operands: Sequence[Operand], numbers: Numbers) -> list[bytes]:
        """Each argument in the order of the parameters."""
        arrays, rest = iter(operands), iter(numbers)
        found = []
        for annotation in self._interface.parameters.annotations:
            if isinstance(annotation, ArrayOf):
                found.append(struct.pack("<Q", next(arrays).address))
            elif isinstance(annotation, VectorType):
                found.append(
                    b"".join(_number(annotation.dtype, next(rest)) for _ in range(annotation.count))
                )
            else:
                assert isinstance(annotation, DType)
                found.append(_number(annotation, next(rest)))
        return found


def _number(dtype: DType, number: int | float | bool) -> bytes:
    return struct.pack(_WORDS[dtype.size], to_bits(dtype, number))
