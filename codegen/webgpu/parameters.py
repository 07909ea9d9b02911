"""The parameters of a program, as the passes that make it find out what they need.

During the passes of this folder the number of a ``SCALAR`` value is a position in this list, which
begins with the kernel's own scalars.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.webgpu.interface import Slot, Source
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import ScalarParam, Trace, Value, values
from khaljit.tracer.ops import Op

__all__ = ["Parameters"]

_BLOCK: Final = 16  # bytes that the size of a uniform block is a multiple of


@final
class Parameters:
    """What each parameter is; one for each source."""

    def __init__(self, trace: Trace) -> None:
        self._sources: Final = [Source("scalar", k) for k in range(len(trace.scalars))]
        self._types: Final = [scalar.passed or scalar.dtype for scalar in trace.scalars]
        self._numbers: Final = {source: k for k, source in enumerate(self._sources)}

    def value(self, builder: Builder, source: Source, whole: DType, dtype: DType) -> Value:
        """The value of a parameter, as ``dtype``; ``whole`` is the type that the host packs."""
        if source not in self._numbers:
            self._numbers[source] = len(self._sources)
            self._sources.append(source)
            self._types.append(whole)
        return builder.scalar(self._numbers[source], dtype)

    def source(self, scalar: Value) -> tuple[Source, DType]:
        """What a ``SCALAR`` value is, and the type that the host packs."""
        assert isinstance(scalar.attr, int)
        return self._sources[scalar.attr], self._types[scalar.attr]

    def list(self, trace: Trace) -> tuple[ScalarParam, ...]:
        """All of them as the scalars of a trace, of the types that it reads them as."""
        types = dict(enumerate(self._types))
        for value in values(trace.body):
            if value.op is Op.SCALAR and isinstance(value.attr, int):
                types[value.attr] = value.type
        return tuple(
            ScalarParam(_name(source), types[number]) for number, source in enumerate(self._sources)
        )

    def slots(self, trace: Trace) -> tuple[dict[int, Slot], int]:
        """The slots of the parameters that a trace reads, by number, and the block's size.

        Those of 8 bytes come first, so that there are no gaps.
        """
        read = {}
        for value in values(trace.body):
            if value.op is Op.SCALAR and isinstance(value.attr, int):
                read[value.attr] = 8 if value.type.bits == 64 else 4
        slots: dict[int, Slot] = {}
        at = 0
        for number in sorted(read, key=lambda number: (-read[number], number)):
            slots[number] = Slot(self._sources[number], self._types[number], at, read[number])
            at += read[number]
        return slots, -(-at // _BLOCK) * _BLOCK


def _name(source: Source) -> str:
    parts = [source.kind, str(source.number), str(source.axis)]
    return " ".join(parts if source.half is None else [*parts, ["low", "high"][source.half]])
