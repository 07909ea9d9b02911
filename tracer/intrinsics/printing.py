"""Printing from a kernel."""

from __future__ import annotations

from typing import Any

from khaljit.tracer.ir import Note
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector
from khaljit.tracer.recorder import current

__all__ = [
    "print",
]


def print(*parts: Any, sep: str = " ") -> None:
    """Print from a kernel: the parts, separated; run-time values are filled in on the device."""
    recorder = current("kj.print")
    recorder.mark()
    texts, operands = [], []
    for part in parts:
        if isinstance(part, Scalar):
            texts.append("{}")
            operands.append(part.value)
        elif isinstance(part, Vector):
            texts.append("(" + ", ".join(["{}"] * len(part)) + ")")
            operands += [item.value for item in part.items]
        else:
            texts.append(str(part).replace("{", "{{").replace("}", "}}"))
    note = Note(sep.join(texts), recorder.note_site())
    recorder.builder.effect(Op.PRINT, tuple(operands), note)
