"""Writes the text of one PTX kernel: registers, labels, instructions.

Registers are virtual and without number: the assembler allots the real ones. They are untyped
(``.b32`` holds i32, u32 and f32), so that a change of type alone costs nothing, and are numbered
in the order of writing, so that the same trace always gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

__all__ = ["Writer"]

_PREFIXES: Final = {"pred": "%p", "b16": "%h", "b32": "%r", "b64": "%d"}


@final
class Writer:
    """The body of a kernel in the making."""

    def __init__(self) -> None:
        self._lines: Final[list[str]] = []
        self._counts: Final = dict.fromkeys(_PREFIXES, 0)
        self.labels = 0  # how many there are

    # Registers.

    def register(self, kind: str) -> str:
        """A new register of a kind: ``pred``, ``b16``, ``b32`` or ``b64``."""
        number = self._counts[kind]
        self._counts[kind] = number + 1
        return f"{_PREFIXES[kind]}{number}"

    @staticmethod
    def is_register(operand: str) -> bool:
        """Whether an operand is a register; else it is an immediate."""
        return operand.startswith("%")

    def held(self, kind: str, operand: str) -> str:
        """The operand in a register."""
        return (
            operand
            if self.is_register(operand)
            else self.let(kind, f"mov.{kind} {{d}}, {operand};")
        )

    # Instructions.

    def do(self, instruction: str) -> None:
        """Instructions without a result, or with one in a register that exists; one a line."""
        self._lines.append(instruction)

    def let(self, kind: str, instruction: str) -> str:
        """An instruction with a result, called ``{d}`` in it; gives the result's register."""
        name = self.register(kind)
        self._lines.append(instruction.replace("{d}", name))
        return name

    def move(self, kind: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Move all sources to their destinations at once, as (destination, source)."""
        self.moves([(kind, to, source) for to, source in pairs])

    def moves(self, pending: Sequence[tuple[str, str, str]]) -> None:
        """The same for registers of several kinds: (kind, destination, source).

        A register that is both is read before it is written; a ring of them goes through one more.
        """
        left = [move for move in pending if move[1] != move[2]]
        while left:
            read = [source for _, _, source in left]
            free = next((move for move in left if move[1] not in read), None)
            if free is not None:
                left.remove(free)
                kind, to, source = free
                self.do(f"mov.{kind} {to}, {source};")
                continue
            kind, to, source = left[0]
            spare = self.let(kind, f"mov.{kind} {{d}}, {source};")
            left[0] = (kind, to, spare)

    # Labels.

    def label(self) -> str:
        """A new label."""
        self.labels += 1
        return f"$L{self.labels}"

    def open(self, label: str) -> None:
        """Where jumps to a label arrive."""
        self._lines.append(f"{label}:")

    def jump(self, label: str) -> None:
        self.do(f"bra.uni {label};")

    def branch(self, condition: str, label: str, *, yes: bool = True) -> None:
        """Jump where a predicate holds, or where it does not."""
        self.do(f"@{'' if yes else '!'}{condition} bra {label};")

    # The text.

    def text(self) -> str:
        """The declarations of all registers and everything in order."""
        declared = [
            f".reg .{kind} {_PREFIXES[kind]}<{count}>;"
            for kind, count in self._counts.items()
            if count
        ]
        return "\n".join((*declared, *self._lines))
