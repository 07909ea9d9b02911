"""The loader: relocatable object bytes in, callable addresses out, with no LLVM at hand.

It reads ELF64 objects for x86-64 and AArch64 on every operating system, since khaljit's own code
generator emits that format everywhere. Laws:

* The object is whole: every symbol that it uses, it defines. An undefined symbol, writable data,
  or a relocation that is not in the tables below is a defect of the code generator and an
  `InternalError`, never a guess.
* Nothing is believed: an object whose tables point outside of it is refused before any memory is
  mapped, and a value that does not fit its field is refused rather than cut.
* Unwind tables and debugging data are left behind; nothing unwinds through a kernel.

Calling conventions are the emitter's: on Windows `ctypes` calls the entry by the Win64 convention
and the entry must be declared so (``win64cc`` in LLVM's terms on x86-64).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, final

from khaljit.backends.cpu.executable import MACHINE, Region
from khaljit.tracer.errors import DeviceError, InternalError
from khaljit.tracer.records import dataclass

__all__ = ["Image", "Object", "load", "read"]

EM_X86_64: Final = 62
EM_AARCH64: Final = 183
MACHINES: Final = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}

ET_REL: Final = 1
SHT_PROGBITS: Final = 1
SHT_SYMTAB: Final = 2
SHT_RELA: Final = 4
SHT_REL: Final = 9
SHF_WRITE: Final = 1
SHF_ALLOC: Final = 2
SHN_UNDEF: Final = 0
SHN_ABS: Final = 0xFFF1
SHN_LORESERVE: Final = 0xFF00
MAX_ALIGNMENT: Final = 4096  # the mapping's own

HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
SYMBOL: Final = struct.Struct("<IBBHQQ")
RELA: Final = struct.Struct("<QQq")


@final
@dataclass(frozen=True, slots=True)
class Relocation:
    """One field to fill in: where it is in the image, how, and with which symbol."""

    offset: int
    kind: int
    symbol: int
    addend: int


@final
@dataclass(frozen=True, slots=True)
class Object:
    """An object that was read and laid out, before it has an address.

    Attributes:
        machine: ``x86_64`` or ``aarch64``.
        image: the sections that are loaded, at their offsets.
        values: per symbol of the table its offset in the image; None where it is in no loaded
            section; a plain number where `absolute` says so.
        absolute: the symbols whose value is no address.
        names: per defined symbol with a name its index.
        relocations: the fields to fill in.
    """

    machine: str
    image: bytes
    values: tuple[int | None, ...]
    absolute: frozenset[int]
    names: Mapping[str, int]
    relocations: tuple[Relocation, ...]

    def link(self, base: int) -> bytearray:
        """The image with every field filled in for the address that it will lie at."""
        code = bytearray(self.image)
        patches = PATCHES[self.machine]
        for relocation in self.relocations:
            value = self.values[relocation.symbol]
            assert value is not None  # `read` refuses such an object
            if relocation.symbol not in self.absolute:
                value += base
            place = base + relocation.offset
            patches[relocation.kind](code, relocation.offset, value + relocation.addend, place)
        return code


# -- reading -----------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


def read(data: bytes) -> Object:
    """Read an object, check it, and lay its sections out.

    Raises:
        InternalError: the object is damaged, or not whole.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise InternalError(f"an object file is damaged: {error}") from error


def _read(data: bytes) -> Object:
    machine, sections = _sections(data)
    starts, image = _lay_out(data, sections)
    tables = [section for section in sections if section.kind == SHT_SYMTAB]
    if len(tables) != 1:
        raise InternalError(f"an object file has {len(tables)} symbol tables, one is needed")
    values, absolute, names, labels = _symbols(data, sections, tables[0], starts)
    relocations: list[Relocation] = []
    for section in sections:
        if section.kind in (SHT_RELA, SHT_REL) and section.info in starts:
            if section.kind == SHT_REL or sections[section.link] is not tables[0]:
                raise InternalError(f"section {section.name}: relocations of an unknown form")
            target = sections[section.info]
            relocations += _relocations(data, section, starts[section.info], target.size)
    for relocation in relocations:
        _check(machine, relocation, values, labels, len(image))
    return Object(machine, image, tuple(values), frozenset(absolute), names, tuple(relocations))


def _slice(data: bytes, section: _Section) -> memoryview:
    if section.offset + section.size > len(data):
        raise ValueError(f"section {section.name} ends past the file")
    return memoryview(data)[section.offset : section.offset + section.size]


def _string(strings: memoryview, offset: int) -> str:
    if offset >= len(strings):
        raise ValueError("a name lies outside of its table")
    return bytes(strings[offset : offset + 4096]).split(b"\0", 1)[0].decode()


def _sections(data: bytes) -> tuple[str, list[_Section]]:
    fields = HEADER.unpack_from(data)
    identity, kind, number = fields[0], fields[1], fields[2]
    if identity[:6] != b"\x7fELF\x02\x01" or kind != ET_REL or number not in MACHINES:
        raise InternalError("not a relocatable ELF64 object for x86-64 or AArch64")
    table, entry, count, strings_at = fields[6], fields[11], fields[12], fields[13]
    if entry != SECTION.size or table + count * entry > len(data):
        raise ValueError("the section table lies outside of the file")
    rows = list(SECTION.iter_unpack(memoryview(data)[table : table + count * entry]))
    names = rows[strings_at]
    strings = memoryview(data)[names[4] : names[4] + names[5]]
    return MACHINES[number], [
        _Section(_string(strings, row[0]), row[1], row[2], *row[4:9]) for row in rows
    ]


def _is_loaded(section: _Section) -> bool:
    """Whether a section belongs in memory; unwind tables do not."""
    return bool(section.flags & SHF_ALLOC and section.size) and section.name != ".eh_frame"


def _lay_out(data: bytes, sections: list[_Section]) -> tuple[dict[int, int], bytes]:
    """The offset of each loaded section in the image, and the image."""
    starts: dict[int, int] = {}
    image = bytearray()
    for index, section in enumerate(sections):
        if not _is_loaded(section):
            continue
        relocated_only = section.name.startswith(".data.rel.ro")
        if section.kind != SHT_PROGBITS or (section.flags & SHF_WRITE and not relocated_only):
            raise InternalError(f"section {section.name}: kernels have constants and code only")
        alignment = max(1, section.alignment)
        if alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
            raise InternalError(f"section {section.name}: alignment {alignment}")
        image += bytes(-len(image) % alignment)
        starts[index] = len(image)
        image += _slice(data, section)
    return starts, bytes(image)


def _symbols(
    data: bytes, sections: list[_Section], table: _Section, starts: Mapping[int, int]
) -> tuple[list[int | None], set[int], dict[str, int], list[str]]:
    strings = _slice(data, sections[table.link])
    values: list[int | None] = []
    absolute: set[int] = set()
    names: dict[str, int] = {}
    labels: list[str] = []
    for index, (name, _, _, home, value, _) in enumerate(SYMBOL.iter_unpack(_slice(data, table))):
        label = _string(strings, name)
        labels.append(label)
        if home == SHN_ABS:
            absolute.add(index)
            values.append(value)
        elif home == SHN_UNDEF or home >= SHN_LORESERVE or home not in starts:
            values.append(None)
        elif value > sections[home].size:
            raise ValueError(f"symbol {label} lies outside of its section")
        else:
            values.append(starts[home] + value)
            if label:
                names[label] = index
    return values, absolute, names, labels


def _relocations(data: bytes, section: _Section, start: int, size: int) -> list[Relocation]:
    """The relocations of one section, their offsets counted in the image."""
    relocations = []
    for offset, info, addend in RELA.iter_unpack(_slice(data, section)):
        if offset >= size:
            raise ValueError(f"section {section.name}: a field lies outside of its section")
        relocations.append(Relocation(start + offset, info & 0xFFFFFFFF, info >> 32, addend))
    return relocations


def _check(
    machine: str, relocation: Relocation, values: list[int | None], labels: list[str], size: int
) -> None:
    """Refuse a relocation that is not listed, not inside, or of a symbol that is not there."""
    kind, symbol = relocation.kind, relocation.symbol
    if kind not in PATCHES[machine]:
        raise InternalError(
            f"relocation {kind} of {labels[symbol] or 'a section'} is not one that kernels need "
            "on " + machine,
            mend="emit position-independent code of the small code model",
        )
    if values[symbol] is None:
        raise InternalError(f"machine code refers to {labels[symbol]!r}, which nothing defines")
    if relocation.offset + WIDTHS.get(kind, 4) > size:
        raise ValueError("a field lies outside of its section")


# -- patching ----------------------------------------------------------------------------------
# A patch writes into `code` at `offset`, given the value of the symbol with the addend (S + A in
# the ABI documents) and the place, the address that the field will have (P).

Patch = Callable[[bytearray, int, int, int], None]


def _fits(value: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise InternalError(f"a relocation by {value} does not fit {bits} bits")
    return value


def _absolute64(code: bytearray, offset: int, value: int, place: int) -> None:
    """S + A"""
    struct.pack_into("<Q", code, offset, value & 0xFFFFFFFFFFFFFFFF)


def _relative64(code: bytearray, offset: int, value: int, place: int) -> None:
    """S + A - P"""
    struct.pack_into("<q", code, offset, _fits(value - place, 64))


def _relative32(code: bytearray, offset: int, value: int, place: int) -> None:
    """S + A - P"""
    struct.pack_into("<i", code, offset, _fits(value - place, 32))


def _insert(code: bytearray, offset: int, field: int, mask: int) -> None:
    """Replace the masked bits of the instruction at `offset`."""
    (word,) = struct.unpack_from("<I", code, offset)
    struct.pack_into("<I", code, offset, word & ~mask | field & mask)


def _page_high21(code: bytearray, offset: int, value: int, place: int) -> None:
    """adrp: Page(S + A) - Page(P), in pages of 4 KiB, the low two bits apart from the rest."""
    pages = _fits((value >> 12) - (place >> 12), 21)
    _insert(code, offset, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5, 0x60FFFFE0)


def _low12(shift: int) -> Patch:
    def patch(code: bytearray, offset: int, value: int, place: int) -> None:
        """add, ldr, str: the low 12 bits of S + A, in units of the access."""
        low = value & 0xFFF
        if low & ((1 << shift) - 1):
            raise InternalError(f"a relocation to {low:#x} is not aligned to {1 << shift} bytes")
        _insert(code, offset, low >> shift << 10, 0x003FFC00)

    return patch


def _branch26(code: bytearray, offset: int, value: int, place: int) -> None:
    """b, bl: (S + A - P) / 4"""
    distance = _fits(value - place, 28)
    if distance & 3:
        raise InternalError(f"a branch by {distance} bytes")
    _insert(code, offset, distance >> 2, 0x03FFFFFF)


PATCHES: Final[Mapping[str, Mapping[int, Patch]]] = {
    "x86_64": {
        1: _absolute64,  # R_X86_64_64
        2: _relative32,  # R_X86_64_PC32
        4: _relative32,  # R_X86_64_PLT32: a call inside the object needs no table
        24: _relative64,  # R_X86_64_PC64
    },
    "aarch64": {
        257: _absolute64,  # R_AARCH64_ABS64
        260: _relative64,  # R_AARCH64_PREL64
        261: _relative32,  # R_AARCH64_PREL32
        275: _page_high21,  # R_AARCH64_ADR_PREL_PG_HI21
        277: _low12(0),  # R_AARCH64_ADD_ABS_LO12_NC
        278: _low12(0),  # R_AARCH64_LDST8_ABS_LO12_NC
        282: _branch26,  # R_AARCH64_JUMP26
        283: _branch26,  # R_AARCH64_CALL26
        284: _low12(1),  # R_AARCH64_LDST16_ABS_LO12_NC
        285: _low12(2),  # R_AARCH64_LDST32_ABS_LO12_NC
        286: _low12(3),  # R_AARCH64_LDST64_ABS_LO12_NC
        299: _low12(4),  # R_AARCH64_LDST128_ABS_LO12_NC
    },
}

WIDTHS: Final = {1: 8, 24: 8, 257: 8, 260: 8}
"""Bytes of the fields that are not 4 bytes wide."""


# -- loading -----------------------------------------------------------------------------------


@final
class Image:
    """Machine code in memory, callable for as long as this object is referenced."""

    def __init__(self, source: Object) -> None:
        self._names: Final = {
            name: value
            for name, index in source.names.items()
            if (value := source.values[index]) is not None
        }
        self._region: Final = Region(len(source.image))
        self._region.fill(source.link(self._region.address))

    def address(self, symbol: str) -> int:
        """The address of a symbol that the object defines."""
        offset = self._names.get(symbol)
        if offset is None:
            raise InternalError(f"machine code does not define {symbol!r}")
        return self._region.address + offset


def load(data: bytes) -> Image:
    """Map an object and make it callable.

    Raises:
        InternalError: the object is damaged, or not whole.
        DeviceError: it is for another processor, or memory cannot be made executable.
    """
    source = read(data)
    if source.machine != MACHINE:
        raise DeviceError(
            f"machine code for {source.machine} cannot run on {MACHINE}",
            mend=f"compile for {MACHINE}",
        )
    return Image(source)
