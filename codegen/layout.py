"""The parameter block: where each argument of a kernel stands in the bytes that a launch passes.

One block of 8-byte little-endian slots, in this order: per array parameter its data pointer,
``ndim`` extents and ``ndim`` strides; per scalar parameter one slot, the value in its low bytes;
three counts of workgroups (x, y, z). Targets that bind buffers apart leave the pointer slots out.
Host packing and all code generators read the offsets from here.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.tracer.ir import Trace
from khaljit.tracer.records import dataclass

__all__ = ["SLOT", "ParameterBlock"]

SLOT: Final = 8  # bytes


@final
@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Byte offsets into a parameter block.

    Attributes:
        pointers: of each array's data pointer; empty where buffers are bound apart.
        shapes: of each array's extents, one per axis.
        strides: of each array's strides, one per axis.
        scalars: of each scalar.
        groups: of the counts of workgroups in x, y, z.
        size: of the whole block.
    """

    pointers: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    scalars: tuple[int, ...]
    groups: tuple[int, int, int]
    size: int

    @classmethod
    def of(cls, trace: Trace, *, pointers: bool = True) -> ParameterBlock:
        """The block of a trace's parameters, with or without the pointer slots."""
        at = 0
        data: list[int] = []
        shapes: list[tuple[int, ...]] = []
        strides: list[tuple[int, ...]] = []
        for array in trace.arrays:
            if pointers:
                data.append(at)
                at += SLOT
            extent = array.memory.ndim * SLOT
            shapes.append(tuple(range(at, at + extent, SLOT)))
            strides.append(tuple(range(at + extent, at + 2 * extent, SLOT)))
            at += 2 * extent
        scalars = tuple(range(at, at + len(trace.scalars) * SLOT, SLOT))
        at += len(scalars) * SLOT
        groups = (at, at + SLOT, at + 2 * SLOT)
        at += 3 * SLOT
        return cls(tuple(data), tuple(shapes), tuple(strides), scalars, groups, at)
