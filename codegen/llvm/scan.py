"""Looks at object code: does it call, or refer to, anything outside itself?

The cache keeps kernels as machine code that is mapped without a linker, so an undefined symbol or
a relocation that the loader does not know is a defect of the code generator.
"""

from __future__ import annotations

import struct
from typing import Final

from khaljit.tracer.errors import InternalError

__all__ = ["scan"]

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_MAGIC: Final = b"\x7fELF"
_SYMBOLS, _RELOCATIONS = 2, 4  # types of sections
_ALLOCATED: Final = 2
_WRITABLE: Final = 1

# Kinds of relocations by machine: those that call-free code has.
_ALLOWED: Final = {
    62: frozenset({2}),  # x86-64: relative, 32 bits
    183: frozenset({275, 277, 278, 284, 285, 286, 299}),  # aarch64: page and offset in page
}


def scan(code: bytes) -> None:
    """InternalError where an object needs anything that it does not hold."""
    if not code.startswith(_MAGIC):
        raise InternalError("the generated object code is no ELF file")
    header = _HEADER.unpack_from(code)
    machine, start, size, count, names = header[2], header[6], header[11], header[12], header[13]
    sections = [_SECTION.unpack_from(code, start + k * size) for k in range(count)]
    allowed = _ALLOWED[machine]
    label = sections[names][4]
    for section in sections:  # symbols first: a name says more than a relocation
        if section[1] == _SYMBOLS:
            _check_symbols(code, section[4], section[5], sections[section[6]][4])
    for section in sections:
        kind, flags, at, length, target = (section[k] for k in (1, 2, 4, 5, 7))
        if kind == _RELOCATIONS and sections[target][2] & _ALLOCATED:
            if not _name(code, label, sections[target][0]).startswith(".eh_frame"):
                _check_relocations(code, at, length, allowed)
        elif flags & _ALLOCATED and flags & _WRITABLE and length:
            raise InternalError("the generated code has writable data")


def _name(code: bytes, names: int, at: int) -> str:
    return code[names + at : code.index(0, names + at)].decode()


def _check_symbols(code: bytes, at: int, length: int, names: int) -> None:
    for k in range(1, length // _SYMBOL.size):  # the first is always empty
        symbol = _SYMBOL.unpack_from(code, at + k * _SYMBOL.size)
        if symbol[3] == 0:
            raise InternalError(f"the generated code calls {_name(code, names, symbol[0])}")


def _check_relocations(code: bytes, at: int, length: int, allowed: frozenset[int]) -> None:
    for k in range(length // _RELOCATION.size):
        kind = _RELOCATION.unpack_from(code, at + k * _RELOCATION.size)[1] & 0xFFFFFFFF
        if kind not in allowed:
            raise InternalError(f"the generated code has a relocation of kind {kind}")
