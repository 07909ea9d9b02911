"""Hand-written PTX and cubins on a GPU."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.annotations import ArrayOf
from khaljit.arguments import Operand
from khaljit.arrays import Array
from khaljit.backends.base import Loaded
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
        if not image.startswith(b"\x7fELF"):
            image += b"\0"
        what = f"loading kernel {interface.name}"
        self._module: Final = device.call("cuModuleLoadData", image, what=what)
        weakref.finalize(self, device.unload, self._module)
        self._function: Final = device.call(
            "cuModuleGetFunction", self._module, interface.entry.encode(), what=what
        )
        self._what: Final = f"launching kernel {interface.name}"

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Enqueue on the stream."""
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
        values = [ctypes.create_string_buffer(one) for one in self._bytes(operands, numbers)]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        device.call(
            "cuLaunchKernel",
            self._function,
            *groups,
            *self._interface.workgroup,
            0,
            device.stream,
            ctypes.addressof(pointers),
            0,
            what=self._what,
        )

    def _bytes(
        self, operands: Sequence[Operand], numbers: Sequence[int | float | bool]
    ) -> list[bytes]:
        """Each argument in the order of the parameters."""
        arrays, rest = iter(operands), iter(numbers)
        found = []
        for annotation in self._interface.parameters.annotations:
            if isinstance(annotation, ArrayOf):
                array: Any = next(arrays).owner
                assert isinstance(array, Array)
                found.append(struct.pack("<Q", array.address))
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
