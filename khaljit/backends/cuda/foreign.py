"""Hand-written PTX and cubins on a GPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.annotations import ArrayOf
from khaljit.arguments import Operand
from khaljit.backends.base import Loaded
from khaljit.backends.cuda.kernel import Module, chosen_stream, hand_back
from khaljit.grids import Grid, Indirect
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.intrinsics.vectors import VectorType

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice
    from khaljit.foreign import CodeInterface

__all__ = ["ForeignLoaded"]

LIMITS: Final = ((1 << 31) - 1, 65535, 65535)  # workgroups on an axis
_WORDS: Final = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


@final
class ForeignLoaded(Loaded):
    """A function of a module; its parameters are pointers and numbers, each by its own size."""

    def __init__(self, device: CudaDevice, code: bytes | str, interface: CodeInterface) -> None:
        self._device: Final = device
        self._interface: Final = interface
        image = code.encode() if isinstance(code, str) else code
        self._module: Final = Module(device, image, interface.entry, interface.name)

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Enqueue on the stream; counts that the device would read are read by the host, since the
        code cannot be changed."""
        device = self._device
        device.enter()
        if isinstance(groups, Indirect):
            groups = groups.read()
            if 0 in groups:
                return
        if any(count > limit for count, limit in zip(groups, LIMITS, strict=True)):
            raise ArgumentValueError(
                f"kernel {self._interface.name}: {groups} workgroups, and CUDA takes at most "
                f"{LIMITS}",
                mend="use more axes: hand-written code computes its own ids",
            )
        owners: list[Any] = [operand.owner for operand in operands]
        memories = [owner.buffer for owner in owners]
        values = [ctypes.create_string_buffer(one) for one in self._bytes(operands, numbers)]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        stream = chosen_stream(device, memories)
        where = ctypes.addressof(pointers)
        self._module.run(groups, self._interface.workgroup, 0, stream, where)
        hand_back(device, memories, stream)

    def _bytes(
        self, operands: Sequence[Operand], numbers: Sequence[int | float | bool]
    ) -> list[bytes]:
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
