"""Writes the text of one LLVM function: names, blocks, instructions, stack slots.

Names are numbered in the order of writing, so the same trace always gives the same text. Blocks
are strict: an instruction stands in an open block, and a block is opened by its label and closed
by its terminator.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["Writer"]


@final
class Writer:
    """The body of a function in the making.

    Attributes:
        block: label of the open block; None where the last one was closed.
        fastmath: whether the kernel allows approximations.
        signals: whether signalling NaN must be made quiet before they are compared (`Level`).
    """

    def __init__(self, *, fastmath: bool = False, signals: bool = False) -> None:
        self.block: str | None = None
        self.fastmath: Final = fastmath
        self.signals: Final = signals
        self._lines: Final[list[str]] = []
        self._slots: Final[list[str]] = []
        self._names = 0

    def _fresh(self) -> int:
        self._names += 1
        return self._names

    @property
    def here(self) -> str:
        """The open block, where there is one."""
        assert self.block is not None
        return self.block

    # Instructions.

    def let(self, instruction: str) -> str:
        """An instruction with a value; gives the value's name."""
        name = f"%v{self._fresh()}"
        self.do(f"{name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """An instruction without a value."""
        assert self.block is not None, "an instruction stands in a block"
        self._lines.append(f"  {instruction}")

    def slot(self, type_: str) -> str:
        """A stack slot, which LLVM turns into registers; gives its name."""
        name = f"%s{self._fresh()}"
        self._slots.append(f"  {name} = alloca {type_}")
        return name

    # Blocks.

    def label(self) -> str:
        return f"b{self._fresh()}"

    def open(self, label: str) -> None:
        """Begin a block, falling into it from the open one."""
        if self.block is not None:
            self.jump(label)
        self._lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self._close(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str, more: str = "") -> None:
        self._close(f"br i1 {condition}, label %{yes}, label %{no}{more}")

    def stop(self, terminator: str) -> None:
        """End the open block by any other terminator."""
        self._close(terminator)

    def _close(self, terminator: str) -> None:
        self.do(terminator)
        self.block = None

    def fork(self, condition: str, *, yes: bool, to: str) -> None:
        """Go to a label where the condition is ``yes``; else on, in a new block."""
        on = self.label()
        self.branch(condition, *((to, on) if yes else (on, to)))
        self.open(on)

    def phi(self, type_: str, edges: list[tuple[str, str]]) -> str:
        """A value that depends on the block that control comes from: (value, block) pairs."""
        values = {value for value, _ in edges}
        if len(values) == 1:
            return values.pop()
        pairs = ", ".join(f"[ {value}, %{block} ]" for value, block in edges)
        return self.let(f"phi {type_} {pairs}")

    def text(self) -> str:
        """The function's body: the slots in an entry block, then everything in order."""
        assert self.block is None, "the last block is closed"
        first = self._lines[0].rstrip(":")
        return "\n".join(("entry:", *self._slots, f"  br label %{first}", *self._lines))
