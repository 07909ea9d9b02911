"""Processors to generate code for: a level of an instruction set, and features beyond it.

Object files are ELF whatever the operating system is, since the loader reads that format; what
differs is the calling convention and a few registers to leave alone. To add a level: its row in
`LEVELS`.
"""

from __future__ import annotations

import sys
from typing import Final, final

from khaljit.tracer.records import dataclass

__all__ = ["LEVELS", "CpuTarget", "Level"]


@final
@dataclass(frozen=True, slots=True)
class Level:
    """A level of an instruction set.

    Attributes:
        architecture: ``x86_64`` or ``aarch64``, as in LLVM's triples.
        cpu: LLVM's name for the level.
        features: of LLVM, that the level has beyond ``cpu``, or must do without.
        vector_bits: width of a vector register.
        registers: number of vector registers.
        masks: whether lanes are masked by registers of their own, in loads and stores too.
        gathers: whether it has an instruction to load lanes from apart that is worth its use.
        refinements: steps of Newton's method from its estimates of f32 to about all their digits.
        signals: whether LLVM joins ``a < t or b < t`` to ``min(a, b) < t``, with a minimum that is
            NaN where either is a signalling NaN: which numbers that are compared then must not be.
    """

    architecture: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    registers: int
    masks: bool = False
    gathers: bool = False
    refinements: int = 1
    signals: bool = False


LEVELS: Final = {
    "x86-64": Level("x86_64", "x86-64", (), 128, 16),
    "x86-64-v2": Level("x86_64", "x86-64-v2", (), 128, 16),
    "x86-64-v3": Level("x86_64", "x86-64-v3", (), 256, 16),
    "x86-64-v4": Level("x86_64", "x86-64-v4", (), 512, 32, masks=True, gathers=True),
    "aarch64": Level(
        "aarch64", "generic", ("+neon", "-outline-atomics"), 128, 32, refinements=2, signals=True
    ),
}


@final
@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A processor and operating system to generate code for.

    Attributes:
        level: a name in `LEVELS`.
        features: of LLVM (``+avx512vbmi``), named beyond the level.
        system: ``linux``, ``darwin`` or ``win32``, as ``sys.platform`` has it.
    """

    level: str
    features: tuple[str, ...] = ()
    system: str = sys.platform

    @property
    def facts(self) -> Level:
        """The level's row."""
        return LEVELS[self.level]

    @property
    def triple(self) -> str:
        """LLVM's triple; it says Linux everywhere, which gives ELF."""
        return f"{self.facts.architecture}-unknown-linux-gnu"

    @property
    def all_features(self) -> tuple[str, ...]:
        """The level's features, the named ones, and those that the operating system imposes."""
        reserved = self.facts.architecture == "aarch64" and self.system != "linux"
        return (
            *self.facts.features,
            *self.features,
            *(("+reserve-x18",) if reserved else ()),
        )

    @property
    def convention(self) -> str:
        """The calling convention of the entry point in LLVM's spelling, empty for the usual."""
        windows = self.facts.architecture == "x86_64" and self.system == "win32"
        return "win64cc" if windows else ""
