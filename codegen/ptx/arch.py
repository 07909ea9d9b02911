"""GPU architectures to generate PTX for: what their instruction sets have.

A program names the lowest ``.version`` that what is used of an architecture needs, so that it
loads with every driver that knows the architecture at all.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.tracer.records import dataclass

__all__ = ["ARCHITECTURES", "Architecture"]


@final
@dataclass(frozen=True, slots=True)
class Architecture:
    """A row: one architecture that PTX is written for.

    Attributes:
        name: for ``.target``.
        version: lowest ``.version`` that knows the architecture, as (major, minor).
        number: ``80`` for ``sm_80``; instruction sets grow with it.
    """

    name: str
    version: tuple[int, int]
    number: int

    @property
    def reduces(self) -> bool:
        """Whether warps reduce 32-bit integers by one instruction."""
        return self.number >= 80

    @property
    def has_extremes_of_three(self) -> bool:
        """Whether the assembler may take the least or greatest of three integers at once."""
        return self.number >= 90

    @property
    def reads_constants(self) -> bool:
        """Whether f64 constants are better read from constant memory than given as immediates.

        The assembler for others puts them there itself, or spills registers for them.
        """
        return self.number == 90

    @property
    def propagates(self) -> bool:
        """Whether f32 has ``min`` and ``max`` that let NaN win."""
        return self.number >= 80


ARCHITECTURES: Final = {
    row.name: row
    for row in (
        Architecture("sm_75", (6, 3), 75),
        Architecture("sm_80", (7, 0), 80),
        Architecture("sm_90", (7, 8), 90),
        Architecture("sm_100", (8, 6), 100),
        Architecture("sm_120", (8, 7), 120),
    )
}
