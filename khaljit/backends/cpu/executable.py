"""Executable memory: bytes in, an address to call out.

Laws:

* Memory is never writable and executable at once: it is mapped to be written, filled, and then made
  executable and read-only. (macOS on Apple silicon maps it both ways in name; there the processor
  itself holds the two apart, per thread.)
* Nothing is unmapped at interpreter exit, when a daemon thread may still be inside.
* Every difference between operating systems stands in this file: a system is two functions and a
  row of constants.

Not run where it was written: the paths for macOS and for Windows. That for AArch64 was run on
Linux, emulated by QEMU, with pages of 4 and of 64 KiB.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import weakref
from collections.abc import Callable
from typing import Final, Protocol, final

from khaljit.tracer.errors import DeviceError

__all__ = ["MACHINE", "Executable", "Region"]

PAGE: Final = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096

# Of the header sys/mman.h; the module `mmap` has them too, and takes longer to load than all this.
PROT_READ: Final = 1
PROT_WRITE: Final = 2
PROT_EXEC: Final = 4
MAP_PRIVATE: Final = 2
MAP_ANONYMOUS: Final = 0x20 if sys.platform == "linux" else 0x1000

DENIED: Final = (
    "allow this process to make memory executable (SELinux: the boolean deny_execmem, systemd: "
    "MemoryDenyWriteExecute, a hardened macOS runtime: the entitlement "
    "com.apple.security.cs.allow-jit), or run on another device"
)

# AArch64, arguments x0 = first byte, x1 = one past the last: clean the data cache to the point of
# unification, then drop the same lines from the instruction cache, as the architecture's reference
# manual prescribes for code that was just written.
FLUSH_AARCH64: Final = bytes.fromhex(
    "23003bd5"  # mrs  x3, ctr_el0
    "85008052"  # mov  w5, #4
    "644c50d3"  # ubfx x4, x3, #16, #4    log2 of the words in a data line
    "a420c49a"  # lsl  x4, x5, x4
    "860400d1"  # sub  x6, x4, #1
    "0600268a"  # bic  x6, x0, x6
    "267b0bd5"  # dc   cvau, x6
    "c600048b"  # add  x6, x6, x4
    "df0001eb"  # cmp  x6, x1
    "a3ffff54"  # b.lo -12
    "9f3b03d5"  # dsb  ish
    "640c4092"  # and  x4, x3, #15        the same of an instruction line
    "a420c49a"  # lsl  x4, x5, x4
    "860400d1"  # sub  x6, x4, #1
    "0600268a"  # bic  x6, x0, x6
    "26750bd5"  # ic   ivau, x6
    "c600048b"  # add  x6, x6, x4
    "df0001eb"  # cmp  x6, x1
    "a3ffff54"  # b.lo -12
    "9f3b03d5"  # dsb  ish
    "df3f03d5"  # isb
    "c0035fd6"  # ret
)


def _machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}.get(name, name)


MACHINE: Final = _machine()
"""The processor's architecture: ``x86_64``, ``aarch64``, or what the system calls it."""


class System(Protocol):
    """What an operating system does with pages; each method raises OSError where it is refused."""

    def map(self, size: int) -> int:
        """Map so many bytes, private and zero, to be written."""

    def seal(self, address: int, size: int) -> None:
        """Make them executable, and no longer writable."""

    def unmap(self, address: int, size: int) -> None:
        """Give them back."""

    def fill(self, address: int, code: bytes | bytearray) -> None:
        """Write the code into mapped, unsealed pages."""


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


Flush = Callable[[int, int], object]


@final
class Posix:
    """Linux and the like: a private mapping, and mprotect."""

    def __init__(self) -> None:
        self._flush: Flush | None = None
        library = ctypes.CDLL(None, use_errno=True)
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._mmap = library.mmap
        self._mmap.restype = pointer
        self._mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
        self._mprotect = library.mprotect
        self._mprotect.argtypes = (pointer, size, number)
        self._munmap = library.munmap
        self._munmap.argtypes = (pointer, size)

    def map(self, size: int) -> int:
        flags = MAP_PRIVATE | MAP_ANONYMOUS
        address = self._mmap(None, size, PROT_READ | PROT_WRITE, flags, -1, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise _last_error("mmap")
        return int(address)

    def fill(self, address: int, code: bytes | bytearray) -> None:
        _copy(address, code)

    def seal(self, address: int, size: int) -> None:
        self._make_executable(address, size)
        if MACHINE == "aarch64":
            if self._flush is None:
                self._flush = self._make_flush()
            self._flush(address, address + size)

    def _make_executable(self, address: int, size: int) -> None:
        if self._mprotect(address, size, PROT_READ | PROT_EXEC):
            raise _last_error("mprotect")

    def _make_flush(self) -> Flush:
        """The flush as a function, on a page that stays mapped.

        Nothing flushes the flush: the kernel itself cleans a fresh page that becomes executable.
        """
        page = self.map(PAGE)
        self.fill(page, FLUSH_AARCH64)
        self._make_executable(page, PAGE)
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(page)

    def unmap(self, address: int, size: int) -> None:
        self._munmap(address, size)


@final
class AppleSilicon:
    """macOS on aarch64: MAP_JIT pages, which each thread sees as writable or as executable."""

    MAP_JIT: Final = 0x800

    def __init__(self) -> None:
        self._posix: Final = Posix()
        library = ctypes.CDLL(None, use_errno=True)
        self._write_protect = library.pthread_jit_write_protect_np
        self._write_protect.argtypes = (ctypes.c_int,)
        self._write_protect.restype = None
        self._invalidate = library.sys_icache_invalidate
        self._invalidate.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._invalidate.restype = None

    def map(self, size: int) -> int:
        protection = PROT_READ | PROT_WRITE | PROT_EXEC
        flags = MAP_PRIVATE | MAP_ANONYMOUS | self.MAP_JIT
        address = self._posix._mmap(None, size, protection, flags, -1, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise _last_error("mmap")
        return int(address)

    def fill(self, address: int, code: bytes | bytearray) -> None:
        self._write_protect(0)
        try:
            _copy(address, code)
        finally:
            self._write_protect(1)

    def seal(self, address: int, size: int) -> None:
        self._invalidate(address, size)

    def unmap(self, address: int, size: int) -> None:
        self._posix.unmap(address, size)


@final
class Windows:
    """VirtualAlloc, VirtualProtect and FlushInstructionCache."""

    COMMIT_RESERVE: Final = 0x3000
    RELEASE: Final = 0x8000
    PAGE_READWRITE: Final = 0x04
    PAGE_EXECUTE_READ: Final = 0x20

    def __init__(self) -> None:
        library = ctypes.CDLL("kernel32", use_last_error=True)
        pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
        self._allocate = library.VirtualAlloc
        self._allocate.restype = pointer
        self._allocate.argtypes = (pointer, size, word, word)
        self._protect = library.VirtualProtect
        self._protect.argtypes = (pointer, size, word, ctypes.POINTER(word))
        self._free = library.VirtualFree
        self._free.argtypes = (pointer, size, word)
        self._flush = library.FlushInstructionCache
        self._flush.argtypes = (pointer, pointer, size)
        self._process = library.GetCurrentProcess
        self._process.restype = pointer

    def map(self, size: int) -> int:
        address = self._allocate(None, size, self.COMMIT_RESERVE, self.PAGE_READWRITE)
        if not address:
            raise OSError("VirtualAlloc failed")
        return int(address)

    def fill(self, address: int, code: bytes | bytearray) -> None:
        _copy(address, code)

    def seal(self, address: int, size: int) -> None:
        before = ctypes.c_uint32()
        if not self._protect(address, size, self.PAGE_EXECUTE_READ, ctypes.byref(before)):
            raise OSError("VirtualProtect failed")
        self._flush(self._process(), address, size)

    def unmap(self, address: int, size: int) -> None:
        self._free(address, 0, self.RELEASE)


def _copy(address: int, code: bytes | bytearray) -> None:
    ctypes.memmove(address, bytes(code), len(code))


def _system() -> System:
    if sys.platform == "win32":
        return Windows()
    if sys.platform == "darwin" and MACHINE == "aarch64":
        return AppleSilicon()
    return Posix()


SYSTEM: Final = _system()


def _unmap(address: int, size: int) -> None:
    SYSTEM.unmap(address, size)


@final
class Region:
    """Pages whose address is known before their contents: what relocations need.

    Fill it once; it is executable from then on, and unmapped when the last reference goes.
    """

    def __init__(self, size: int) -> None:
        self.size: Final = -(-max(size, 1) // PAGE) * PAGE
        try:
            self.address: Final = SYSTEM.map(self.size)
        except OSError as error:
            raise DeviceError(
                f"{self.size} bytes for machine code could not be mapped ({error})", mend=DENIED
            ) from error
        finalizer = weakref.finalize(self, _unmap, self.address, self.size)
        finalizer.atexit = False

    def fill(self, code: bytes | bytearray) -> None:
        """Write the code and make it executable."""
        if len(code) > self.size:
            raise ValueError("code larger than its region")
        try:
            SYSTEM.fill(self.address, code)
            SYSTEM.seal(self.address, self.size)
        except OSError as error:
            raise DeviceError(
                f"memory could not be made executable ({error})", mend=DENIED
            ) from error


@final
class Executable:
    """A few instructions that need no relocation, ready to be called."""

    def __init__(self, code: bytes) -> None:
        self.region: Final = Region(len(code))
        self.region.fill(code)

    @property
    def address(self) -> int:
        return self.region.address
