"""Hand-written WGSL and SPIR-V on a WebGPU device."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from khaljit.arrays import Array
from khaljit.backends.base import Loaded
from khaljit.backends.webgpu.buffers import Memory
from khaljit.backends.webgpu.loaded import MAX_GROUPS
from khaljit.backends.webgpu.pipeline import STORAGE, Pipeline, Prepared, Range
from khaljit.grids import Grid, Indirect, Workgroup
from khaljit.operands import Operand
from khaljit.tracer.dtypes import DType, bool_, f16, f32, f64, i32, i64, u32, u64
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError
from khaljit.tracer.intrinsics.vectors import VectorType

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice
    from khaljit.foreign import CodeInterface

__all__ = ["ForeignLoaded", "block_layout"]

_FORMATS: Final[dict[DType, str]] = {
    **{bool_: "I", f16: "e", f32: "f", f64: "d"},
    **{i32: "i", u32: "I", i64: "q", u64: "Q"},
}
HEADER: Final = 5  # words of a SPIR-V module before its first instruction
ENTRY_POINT: Final = 15
EXECUTION_MODE: Final = 16
LOCAL_SIZE: Final = 17
_UNIFORM: Final = 16  # bytes that the size of a uniform buffer is a multiple of


@final
class ForeignLoaded(Loaded):
    """A pipeline whose arrays are bound as ranges of buffers."""

    def __init__(self, device: WebGpuDevice, code: bytes | str, interface: CodeInterface) -> None:
        name = interface.name
        _check_workgroup(code, interface)
        self._device: Final = device
        self._interface: Final = interface
        layout, size = block_layout(interface.numbers, name)
        self._numbers: Final = struct.Struct(layout)
        self._empty: Final[dict[bool, Memory]] = {}
        uniform = None
        if size and interface.uniform is not None:
            size = -(-size // _UNIFORM) * _UNIFORM
            uniform = (interface.uniform, size)
        elif size > device.immediates:
            raise ArgumentValueError(
                f"kernel {name}: {size} bytes of numbers, and {device} passes at most "
                f"{device.immediates} as immediates",
                mend="read them from a uniform buffer, and say where: uniform=BINDING",
            )
        self._size: Final = size
        self._pipeline: Final = Pipeline(
            device,
            name,
            device.foreign_module(code, name),
            interface.entry,
            {number: STORAGE[written] for number, written in enumerate(interface.written)},
            uniform,
            size if uniform is None else 0,
        )

    def launch(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int | float | bool],
        groups: Grid | Indirect,
    ) -> None:
        """Record a dispatch."""
        with self._device.lock:
            self.prepare(operands, groups).record(numbers)

    def prepare(self, operands: Sequence[Operand], groups: Grid | Indirect) -> Prepared:
        """A dispatch of these arrays, ready but for its numbers."""
        device, pipeline = self._device, self._pipeline
        counts: Sequence[int] | tuple[Memory, int]
        if isinstance(groups, Indirect):
            counts = (groups.array.buffer, groups.array.offset + 4 * groups.offset)
        else:
            counts = groups
            if max(groups) > MAX_GROUPS:
                raise ArgumentValueError(
                    f"kernel {pipeline.name}: {groups} workgroups, and WebGPU takes at most "
                    f"{MAX_GROUPS} on an axis",
                    mend="use more axes: hand-written code computes its own ids",
                )
        ranges = [
            self._range(operand, written)
            for operand, written in zip(operands, self._interface.written, strict=True)
        ]
        key = (pipeline.number, *[part for one in ranges for part in (one[0].address, *one[1:])])
        with device.lock:
            group = device.groups.get(key)
            if group is None:
                self._refuse_mixed_use(operands)
                group = pipeline.bind(key, dict(enumerate(ranges)))
        return Prepared(pipeline, group, self._pack, counts)

    def _pack(self, numbers: Sequence[int | float | bool]) -> bytes:
        return self._numbers.pack(*numbers).ljust(self._size, b"\0")

    def _range(self, operand: Operand, written: bool) -> Range:
        """Where an array lies; those without elements are bound to a few bytes of nobody's."""
        array = operand.owner
        assert isinstance(array, Array)
        if not array.size:
            if written not in self._empty:
                self._empty[written] = self._device.allocate(0)
            return self._empty[written], 0, self._empty[written].nbytes
        alignment = self._device.limits["min-storage-buffer-offset-alignment"]
        if array.offset % alignment:
            raise ArgumentValueError(
                f"kernel {self._interface.name}: parameter {operand.name} begins at byte "
                f"{array.offset} of its buffer",
                mend=f"bind slices that begin at multiples of {alignment} bytes, or pass the "
                "whole array and an offset",
            )
        return array.buffer, array.offset, -(-array.nbytes // 4) * 4

    def _refuse_mixed_use(self, operands: Sequence[Operand]) -> None:
        uses: dict[int, tuple[bool, str]] = {}
        for operand, written in zip(operands, self._interface.written, strict=True):
            assert isinstance(operand.owner, Array)
            address = operand.owner.buffer.address
            first, name = uses.setdefault(address, (written, operand.name))
            if first is not written:
                raise ArgumentValueError(
                    f"kernel {self._interface.name}: parameters {name} and {operand.name} share "
                    "a buffer, and one of them is const",
                    mend="WebGPU binds a buffer in one way per dispatch: declare both without "
                    "const, or copy one",
                )


def block_layout(numbers: Sequence[DType | VectorType], kernel: str) -> tuple[str, int]:
    """The format of `struct` for numbers in a struct of WGSL, and its bytes.

    >>> from khaljit.tracer.dtypes import f32, u32
    >>> block_layout([u32, f32], "k")
    ('<0x1I0x1f', 8)
    """
    parts, at, alignment = ["<"], 0, 4
    for number in numbers:
        dtype, count = (
            (number.dtype, number.count) if isinstance(number, VectorType) else (number, 1)
        )
        letter = _FORMATS.get(dtype)
        if letter is None:
            raise ArgumentTypeError(
                f"kernel {kernel}: WGSL has no numbers of type {dtype!r}",
                mend="pass kj.i32, kj.u32 or kj.f32",
            )
        size = 4 if dtype is bool_ else dtype.size
        own = size * (4 if count == 3 else count)
        alignment = max(alignment, own)
        start = -(-at // own) * own
        parts.append(f"{start - at}x{count}{letter}")
        at = start + size * count
    whole = -(-at // alignment) * alignment
    return "".join(parts), whole if numbers else 0


def _check_workgroup(code: bytes | str, interface: CodeInterface) -> None:
    """Refuse a workgroup that is not the code's, where the code says it in numbers."""
    own = (_of_spirv if isinstance(code, bytes) else _of_wgsl)(code, interface.entry)  # type: ignore[arg-type]
    if own is not None and own != interface.workgroup:
        raise ArgumentValueError(
            f"kernel {interface.name}: workgroup={interface.workgroup}, and the code says {own}",
            mend=f"workgroup={own}",
        )


def _of_wgsl(code: str, entry: str) -> Workgroup | None:
    """The workgroup size of an entry point of WGSL, where it is given in numbers."""
    attributes = r"(?:\s|@\w+(?:\([^)]*\))?)*"
    pattern = rf"@workgroup_size\(([\s\d,ui]+)\){attributes}fn\s+{re.escape(entry)}\b"
    found = re.search(pattern, code)
    if found is None:
        return None
    x, y, z = (*map(int, re.findall(r"\d+", found[1])), 1, 1)[:3]
    return x, y, z


def _of_spirv(code: bytes, entry: str) -> Workgroup | None:
    """The workgroup size of an entry point of a SPIR-V module, where it is given in numbers."""
    words = struct.unpack(f"={len(code) // 4}I", code[: len(code) // 4 * 4])
    at, point = HEADER, None
    while at < len(words) and words[at] >> 16:
        size, op = words[at] >> 16, words[at] & 0xFFFF
        if op == ENTRY_POINT:
            name = struct.pack(f"={size - 3}I", *words[at + 3 : at + size]).split(b"\0")[0]
            if name == entry.encode():
                point = words[at + 2]
        elif op == EXECUTION_MODE and words[at + 1 : at + 3] == (point, LOCAL_SIZE):
            x, y, z = words[at + 3 : at + 6]
            return x, y, z
        at += size
    return None
