"""What a WebGPU program asks of its host: the buffers to bind and the parameters to pack.

Buffers are bound in group 0. Several array parameters may share one binding, since a buffer must
not be bound twice when one of the bindings is written; each then has its offset from the start of
the binding as a parameter.

Parameters are what the code reads and nothing more: scalars, extents, strides, offsets, the grid.
They stand in one block of little-endian slots, which travels with the dispatch (an *immediate*,
once called push constant) where it fits, else in a uniform buffer at a binding of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, final

from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType
from khaljit.tracer.records import dataclass

__all__ = ["Binding", "Interface", "Slot", "Source"]

_FORMATS: Final = {4: "<I", 8: "<Q"}


@final
@dataclass(frozen=True, slots=True)
class Source:
    """What a parameter is.

    Attributes:
        kind: ``scalar`` (of the kernel), ``shape``, ``stride`` or ``offset`` (of an array
            parameter, in elements, or in units of the element's alignment), ``extent`` (of the
            grid, in invocations), ``groups`` (of the grid, in workgroups) or ``zero``, which is 0.
        number: of the scalar or array parameter; 0 for what is about the grid.
        axis: of the array or grid.
        half: 0 or 1 for the lower or upper 32 bits of an integer of 64; None for the whole.
    """

    kind: str
    number: int = 0
    axis: int = 0
    half: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter in the block.

    Attributes:
        source: what it is.
        dtype: the type of the whole; a bool is a word that is 0 or 1, and what is narrower than
            32 bits is a word that holds its bits, extended by the sign if it has one.
        at: byte offset of the slot.
        size: its bytes, 4 or 8.
    """

    source: Source
    dtype: DType
    at: int
    size: int

    def pack(self, number: int | float | bool) -> bytes:
        """The bytes of a number in this slot.

        >>> from khaljit.tracer.dtypes import i8, i64
        >>> Slot(Source("scalar"), i8, 0, 4).pack(-2).hex()
        'feffffff'
        >>> Slot(Source("scalar", half=1), i64, 0, 4).pack(-2).hex()
        'ffffffff'
        """
        bits = to_bits(self.dtype, number)
        if self.dtype.is_signed and bits >> self.dtype.bits - 1:
            bits -= 1 << self.dtype.bits
        if self.source.half is not None:
            bits >>= 32 * self.source.half
        return struct.pack(_FORMATS[self.size], bits & ((1 << 8 * self.size) - 1))


@final
@dataclass(frozen=True, slots=True)
class Binding:
    """One storage buffer of group 0; its number there is its position in `Interface.bindings`.

    Attributes:
        arrays: the array parameters that live in it.
        writable: it is written, or read by atomics: bound as read-write storage.
        size: a binding has at least so many bytes, even for an array without elements.
        used: the code touches it. Others need not be bound.
    """

    arrays: tuple[int, ...]
    writable: bool
    size: int
    used: bool


@final
@dataclass(frozen=True, slots=True)
class Interface:
    """All that a launch has to bind and to pack.

    Attributes:
        bindings: the storage buffers of array parameters, from binding 0 on.
        uniform: binding of the uniform buffer with the parameters; None where they are immediates.
        slots: the parameters, by rising offset.
        size: bytes of the block of parameters, a multiple of 16; 0 where there are none.
        folded: workgroups are counted along one line: the host dispatches at least as many as
            the grid has, in any shape, and the code finds out which one it is.
        whole: the grid is cut to its invocations by the code (the workgroup is the backend's).
    """

    bindings: tuple[Binding, ...]
    uniform: int | None
    slots: tuple[Slot, ...]
    size: int
    folded: bool
    whole: bool

    def pack(self, number: Callable[[Source], int | float | bool]) -> bytes:
        """The block of parameters, from what each one is; nobody is asked for ``zero``."""
        block = bytearray(self.size)
        for slot in self.slots:
            if slot.source.kind != "zero":
                block[slot.at : slot.at + slot.size] = slot.pack(number(slot.source))
        return bytes(block)
