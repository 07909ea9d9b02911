"""What this processor can do, found with no compiler at hand.

On x86-64 a few instructions of our own run CPUID and XGETBV; on AArch64 the system is asked. Laws:

* A feature counts only where the operating system keeps its registers.
* Features have LLVM's names, since that is what they are for, and come in one fixed order, since
  they go into keys. Those that no kernel gains by (AES, carry-less products) are left out, as each
  one named parts the machines that could share a cache.
* ``KHALJIT_CPU_LEVEL`` lowers what is found to a level's own features, and never raises it.

Not run where it was written: macOS and Windows. AArch64 was run on Linux, emulated by QEMU.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final, final

from khaljit.backends.cpu.executable import MACHINE, Executable
from khaljit.tracer.errors import ArgumentValueError, DeviceError
from khaljit.tracer.records import dataclass

__all__ = ["LEVELS", "HostCpu", "Registers", "lower", "probe", "x86_features"]

Registers = tuple[int, int, int, int]
"""eax, ebx, ecx, edx."""

Cpuid = Callable[[int, int], Registers]


@final
@dataclass(frozen=True, slots=True)
class HostCpu:
    """A processor, as a target of code generation.

    Attributes:
        arch: ``x86_64`` or ``aarch64``.
        level: ``x86-64`` to ``x86-64-v4``, or ``aarch64``.
        features: LLVM's names of what it has, those of the level among them.
        vector_bits: the width of the vector registers that the level uses.
        name: what its maker calls it; for people, never for keys.
    """

    arch: str
    level: str
    features: tuple[str, ...]
    vector_bits: int
    name: str

    @property
    def extra(self) -> tuple[str, ...]:
        """The features beyond the level's."""
        return tuple(name for name in self.features if name not in LEVELS[self.level])


def probe() -> HostCpu:
    """This processor, lowered as far as the user asks."""
    found = _detect()
    level = os.environ.get("KHALJIT_CPU_LEVEL", "").strip().lower()
    return lower(found, level) if level else found


@cache
def _detect() -> HostCpu:
    if MACHINE == "x86_64":
        return _detect_x86()
    if MACHINE == "aarch64":
        return _detect_aarch64()
    raise DeviceError(
        f"there is no code generator for processors of type {MACHINE}",
        mend="run on another device, or on x86-64 or AArch64",
    )


# -- levels ------------------------------------------------------------------------------------

_V1: Final = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2: Final = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3: Final = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4: Final = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "x86-64": _V1,
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "aarch64": ("fp-armv8", "neon"),
}
"""The features of each level, as the x86-64 psABI defines them; from the least to the most."""

VECTOR_BITS: Final = {
    "x86-64": 128,
    "x86-64-v2": 128,
    "x86-64-v3": 256,
    "x86-64-v4": 512,
    "aarch64": 128,
}


def _of_arch(arch: str) -> list[str]:
    prefix = "aarch64" if arch == "aarch64" else "x86-64"
    return [level for level in LEVELS if level.startswith(prefix)]


def _host(arch: str, features: Iterable[str], name: str) -> HostCpu:
    """A processor with these features: its level is the highest that has no others."""
    has = frozenset(features)
    levels = [level for level in _of_arch(arch) if has.issuperset(LEVELS[level])]
    if not levels:
        raise DeviceError(f"this processor ({name}) lacks features that every {arch} has")
    level = levels[-1]
    return HostCpu(arch, level, tuple(sorted(has)), VECTOR_BITS[level], name)


def lower(cpu: HostCpu, level: str) -> HostCpu:
    """The processor with no more than a level's features.

    Raises:
        ArgumentValueError: there is no such level, or it is above the processor's.
    """
    levels = _of_arch(cpu.arch)
    usable = levels[: levels.index(cpu.level) + 1]
    if level not in usable:
        raise ArgumentValueError(
            f"this processor cannot run code for the level {level!r}",
            mend=f"set KHALJIT_CPU_LEVEL to one of: {', '.join(usable)}",
        )
    return HostCpu(cpu.arch, level, tuple(sorted(LEVELS[level])), VECTOR_BITS[level], cpu.name)


# -- x86-64 ------------------------------------------------------------------------------------

# void cpuid(u32 leaf, u32 subleaf, u32 out[4])
_ARGUMENTS: Final = {
    "win32": "89c8 89d1",  # mov eax, ecx; mov ecx, edx          (out is in r8)
    "": "4989d0 89f8 89f1",  # mov r8, rdx; mov eax, edi; mov ecx, esi
}
_CPUID: Final = bytes.fromhex(
    "53"  # push rbx
    + _ARGUMENTS.get(sys.platform, _ARGUMENTS[""])
    + "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b c3"  # pop rbx; ret
)
# u64 xgetbv(void)
_XGETBV: Final = bytes.fromhex(
    "31c9"  # xor ecx, ecx
    "0f01d0"  # xgetbv
    "48c1e220"  # shl rdx, 32
    "4809d0"  # or rax, rdx
    "c3"  # ret
)
_XGETBV_AT: Final = 64

_EAX, _EBX, _ECX, _EDX = range(4)

# leaf, subleaf, register: bit -> feature. From the processor makers' manuals.
_BITS: Final[Mapping[tuple[int, int, int], Mapping[int, str]]] = {
    (1, 0, _EDX): {8: "cx8", 15: "cmov", 23: "mmx", 24: "fxsr", 25: "sse", 26: "sse2"},
    (1, 0, _ECX): {
        0: "sse3", 9: "ssse3", 12: "fma", 13: "cx16", 19: "sse4.1", 20: "sse4.2",
        22: "movbe", 23: "popcnt", 26: "xsave", 28: "avx", 29: "f16c",
    },
    (7, 0, _EBX): {
        3: "bmi", 5: "avx2", 8: "bmi2", 16: "avx512f", 17: "avx512dq", 21: "avx512ifma",
        28: "avx512cd", 30: "avx512bw", 31: "avx512vl",
    },
    (7, 0, _ECX): {
        1: "avx512vbmi", 6: "avx512vbmi2", 8: "gfni", 11: "avx512vnni",
        12: "avx512bitalg", 14: "avx512vpopcntdq",
    },
    (7, 0, _EDX): {23: "avx512fp16"},
    (7, 1, _EAX): {4: "avxvnni", 5: "avx512bf16", 23: "avxifma"},
    (7, 1, _EDX): {4: "avxvnniint8", 5: "avxneconvert", 10: "avxvnniint16"},
    (0x80000001, 0, _ECX): {0: "sahf", 5: "lzcnt"},
}  # fmt: skip

_OSXSAVE: Final = 1 << 27  # of leaf 1, ecx: the system switches extended state, XGETBV may be run
_AVX_STATE: Final = 0x06  # of XCR0: xmm and ymm
_AVX512_STATE: Final = 0xE6  # and the masks, the upper halves of zmm0-15, and zmm16-31
_NEEDS_AVX_STATE: Final = frozenset({"f16c", "fma", "xsave"})


def x86_features(cpuid: Cpuid, state: Callable[[], int]) -> tuple[str, ...]:
    """The features that CPUID reports and that XCR0 says the system keeps state for."""
    has: set[str] = set()
    for (leaf, subleaf, register), bits in _BITS.items():
        if cpuid(leaf & 0x80000000, 0)[_EAX] < leaf:
            continue
        if subleaf and cpuid(leaf, 0)[_EAX] < subleaf:
            continue
        word = cpuid(leaf, subleaf)[register]
        has.update(name for bit, name in bits.items() if word >> bit & 1)
    kept = state() if cpuid(1, 0)[_ECX] & _OSXSAVE else 0
    avx = kept & _AVX_STATE == _AVX_STATE and "avx" in has
    # macOS gives a thread AVX-512 state when it first uses it, so XCR0 does not show it.
    wide = kept & _AVX512_STATE == _AVX512_STATE or sys.platform == "darwin"
    avx512 = avx and wide and "avx512f" in has
    return tuple(sorted(name for name in has if _is_kept(name, avx, avx512)))


def _is_kept(name: str, avx: bool, avx512: bool) -> bool:
    if name.startswith("avx512"):
        return avx512
    if name.startswith("avx") or name in _NEEDS_AVX_STATE:
        return avx
    return True


def _brand(cpuid: Cpuid) -> str:
    if cpuid(0x80000000, 0)[_EAX] < 0x80000004:
        return MACHINE
    words = [word for leaf in range(0x80000002, 0x80000005) for word in cpuid(leaf, 0)]
    return " ".join(struct.pack("<12I", *words).split(b"\0")[0].decode("ascii", "replace").split())


def _detect_x86() -> HostCpu:
    code = Executable(_CPUID.ljust(_XGETBV_AT, b"\xcc") + _XGETBV)
    word = ctypes.c_uint32
    # One type for both, as making one takes longer than all the calls; each ignores what is not its
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, word, word, ctypes.c_void_p)
    ask, state = call(code.address), call(code.address + _XGETBV_AT)
    out = (word * 4)()

    @cache
    def cpuid(leaf: int, subleaf: int) -> Registers:
        ask(leaf, subleaf, ctypes.addressof(out))
        return out[0], out[1], out[2], out[3]

    def xcr0() -> int:
        return int(state(0, 0, None))

    return _host("x86_64", x86_features(cpuid, xcr0), _brand(cpuid))


# -- AArch64 -----------------------------------------------------------------------------------

# Linux, asm/hwcap.h: entry of the auxiliary vector, then bit -> feature.
_AT_HWCAP: Final = 16
_AT_HWCAP2: Final = 26
_HWCAPS: Final[Mapping[int, Mapping[int, str]]] = {
    _AT_HWCAP: {
        7: "crc", 8: "lse", 10: "fullfp16", 12: "rdm", 13: "jsconv", 14: "complxnum", 15: "rcpc",
        20: "dotprod", 23: "fp16fml",
    },
    _AT_HWCAP2: {13: "i8mm", 14: "bf16"},
}  # fmt: skip

# macOS: names below hw.optional.arm
_SYSCTLS: Final[Mapping[str, str]] = {
    "armv8_crc32": "crc",
    "FEAT_LSE": "lse",
    "FEAT_FP16": "fullfp16",
    "FEAT_RDM": "rdm",
    "FEAT_JSCVT": "jsconv",
    "FEAT_FCMA": "complxnum",
    "FEAT_LRCPC": "rcpc",
    "FEAT_DotProd": "dotprod",
    "FEAT_FHM": "fp16fml",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
}

# Windows, IsProcessorFeaturePresent
_PRESENT: Final[Mapping[int, str]] = {31: "crc", 34: "lse", 43: "dotprod", 44: "jsconv", 45: "rcpc"}


def hwcap_features(getauxval: Callable[[int], int]) -> tuple[str, ...]:
    """The features that Linux reports in a process's auxiliary vector."""
    return tuple(
        name
        for entry, bits in _HWCAPS.items()
        for bit, name in bits.items()
        if getauxval(entry) >> bit & 1
    )


def _ask_linux() -> tuple[str, ...]:
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype = ctypes.c_ulong
    getauxval.argtypes = (ctypes.c_ulong,)
    return hwcap_features(lambda entry: int(getauxval(entry)))


def _ask_macos() -> tuple[str, ...]:
    sysctl = ctypes.CDLL(None).sysctlbyname

    def is_set(name: str) -> bool:
        value = ctypes.c_int(0)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        key = f"hw.optional.arm.{name}".encode()
        failed = sysctl(key, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        return not failed and value.value == 1

    return tuple(feature for name, feature in _SYSCTLS.items() if is_set(name))


def _ask_windows() -> tuple[str, ...]:
    present = ctypes.CDLL("kernel32").IsProcessorFeaturePresent
    return tuple(feature for number, feature in _PRESENT.items() if present(number))


def _detect_aarch64() -> HostCpu:
    ask = {"darwin": _ask_macos, "win32": _ask_windows}.get(sys.platform, _ask_linux)
    return _host("aarch64", {*LEVELS["aarch64"], *ask()}, MACHINE)
