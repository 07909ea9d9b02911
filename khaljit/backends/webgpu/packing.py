"""Packing the parameters of a launch: one function per kernel, made from its interface.

The function is written as an expression and evaluated, as named tuples are made: a launch then
costs one call of `struct.pack`, whatever the number of parameters. What that does not take (a
number out of the range of its slot, types without a format) goes the general way of
`Interface.pack`, which is the meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from khaljit.arrays import Array
from khaljit.codegen.webgpu.interface import Interface, Slot, Source
from khaljit.grids import Grid
from khaljit.operands import Operand
from khaljit.tracer.dtypes import DType, bool_, f16, f32, f64
from khaljit.tracer.elements import element_of

__all__ = ["NumberPacker", "Pack", "PackNumbers", "packer"]

# From operands, numbers, the grid in invocations where the workgroup is the backend's, and the
# grid in workgroups.
Pack = Callable[[Sequence[Operand], Sequence[int | float | bool], Grid, Grid], bytes]
PackNumbers = Callable[[Sequence[int | float | bool]], bytes]

_FLOATS: Final[dict[DType, str]] = {f16: "e2x", f32: "f", f64: "d"}
_WORDS: Final = {(4, True): "i", (4, False): "I", (8, True): "q", (8, False): "Q"}
_SPELLINGS: Final = {
    "scalar": "numbers[{number}]",
    "extent": "extents[{axis}]",
    "groups": "groups[{axis}]",
    "shape": "operands[{number}].shape[{axis}]",
    "stride": "operands[{number}].strides[{axis}]",
    "offset": "operands[{number}].owner.offset // {unit}",
    "zero": "0",
}


def packer(interface: Interface, units: Sequence[int]) -> Pack:
    """The function that packs a launch's parameters.

    Args:
        units: per array parameter the alignment of its elements, which offsets count.
    """

    def general(
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        extents: Grid,
        groups: Grid,
    ) -> bytes:
        return interface.pack(lambda source: _number(source, operands, numbers, extents, groups))

    formats = _formats(interface)
    if formats is None:
        return general
    spellings = ", ".join(_spelling(slot, units) for slot in interface.slots)
    made: Pack = eval(
        f"lambda operands, numbers, extents, groups: pack({spellings})",
        {"pack": struct.Struct(formats).pack},
    )

    def quick(
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        extents: Grid,
        groups: Grid,
    ) -> bytes:
        try:
            return made(operands, numbers, extents, groups)
        except (struct.error, OverflowError):
            return general(operands, numbers, extents, groups)

    return quick


@final
class NumberPacker:
    """The same for launches whose numbers alone vary."""

    def __init__(self, interface: Interface, units: Sequence[int]) -> None:
        self._interface: Final = interface
        self._formats: Final = _formats(interface)
        self._fixed: Final = all(slot.source.kind != "scalar" for slot in interface.slots)
        if self._formats is not None:
            spellings = ", ".join(
                _spelling(slot, units) if slot.source.kind == "scalar" else f"known[{place}]"
                for place, slot in enumerate(interface.slots)
            )
            self._made: Callable[..., bytes] = eval(
                f"lambda numbers, known: pack({spellings})",
                {"pack": struct.Struct(self._formats).pack},
            )

    def bind(self, operands: Sequence[Operand], extents: Grid, groups: Grid) -> PackNumbers:
        """The function for some arrays and a grid; it keeps no array."""
        known: dict[Source, int] = {
            slot.source: _number(slot.source, operands, (), extents, groups)
            for slot in self._interface.slots
            if slot.source.kind not in ("scalar", "zero")
        }

        def general(numbers: Sequence[int | float | bool]) -> bytes:
            return self._interface.pack(
                lambda one: numbers[one.number] if one.kind == "scalar" else known[one]
            )

        if self._fixed:
            block = general(())
            return lambda numbers: block
        if self._formats is None:
            return general
        made = self._made
        parts = tuple(_part(slot, known.get(slot.source, 0)) for slot in self._interface.slots)

        def quick(numbers: Sequence[int | float | bool]) -> bytes:
            try:
                return made(numbers, parts)
            except (struct.error, OverflowError):
                return general(numbers)

        return quick


def _part(slot: Slot, number: int) -> int:
    """What stands in a slot for an integer."""
    half = slot.source.half
    return number if half is None else number >> 32 * half & 0xFFFFFFFF


def _formats(interface: Interface) -> str | None:
    """The format of `struct` for the block; None where a slot has none."""
    formats, at = ["<"], 0
    for slot in interface.slots:
        form = _form(slot)
        if form is None:
            return None
        formats.append(f"{slot.at - at}x{form}")
        at = slot.at + slot.size
    return "".join((*formats, f"{interface.size - at}x"))


def _form(slot: Slot) -> str | None:
    """The letters of `struct` for a slot; None where it has none."""
    if slot.dtype.is_float:
        return _FLOATS.get(slot.dtype) if slot.source.half is None else None
    signed = slot.dtype.is_signed and slot.source.half is None
    return _WORDS[slot.size, signed]


def _spelling(slot: Slot, units: Sequence[int]) -> str:
    source = slot.source
    unit = units[source.number] if source.kind == "offset" else 1
    text = _SPELLINGS[source.kind].format(number=source.number, axis=source.axis, unit=unit)
    if slot.dtype is bool_:
        return f"int({text})"
    if source.half is not None:
        return f"({text}) >> {32 * source.half} & 0xFFFFFFFF"
    return text


def _number(
    source: Source,
    operands: Sequence[Operand],
    numbers: Sequence[int | float | bool],
    extents: Grid,
    groups: Grid,
) -> Any:
    """What a parameter of the code is, at this launch."""
    if source.kind == "scalar":
        return numbers[source.number]
    if source.kind == "extent":
        return extents[source.axis]
    if source.kind == "groups":
        return groups[source.axis]
    operand = operands[source.number]
    if source.kind == "shape":
        return operand.shape[source.axis]
    if source.kind == "stride":
        return operand.strides[source.axis]
    assert isinstance(operand.owner, Array)
    return operand.owner.offset // element_of(operand.dtype).align
