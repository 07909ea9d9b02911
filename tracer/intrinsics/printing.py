"""Printing from a kernel."""

from __future__ import annotations

from typing import Any

from khaljit.tracer.ir import Note
from khaljit.tracer.messages import Template, filled, joined
from khaljit.tracer.ops import Op
from khaljit.tracer.recorder import current

__all__ = ["print", "print_parts"]


def print(*parts: Any, sep: str = " ", end: str = "\n") -> None:
    """Print from a kernel.

    The parts are separated by ``sep`` and followed by ``end``. If the first one is a text with
    fields such as ``{}``, ``{1}`` or ``{:8.3f}``, and more parts follow, these fill the fields, as
    `str.format` does. Numbers, vectors and f-strings of them are run-time values.

    What a kernel prints is kept on the device, in order for each invocation, and shown when the
    device is next waited for or an array is read; on the CPU, at the end of the launch. There is
    room for 1 MiB between two such moments (``KHALJIT_PRINT_BYTES``); what does not fit is lost,
    and how many prints were is said on standard error.

    >>> import numpy as np
    >>> import khaljit as kj
    >>> @kj.jit
    ... def show(a: kj.Array1[kj.f32]) -> None:
    ...     i = kj.global_id(0)
    ...     kj.print("a[{}] = {:.2f}", i, a[i])
    >>> show[2](np.array([0.5, 1.25], np.float32))
    a[0] = 0.50
    a[1] = 1.25
    """
    recorder = current("kj.print")
    if len(parts) > 1 and isinstance(parts[0], str) and "{" in parts[0]:
        recorder.mark()
        _print(filled(parts[0], parts[1:], end))
    else:
        print_parts(*parts, sep=sep, end=end)


def print_parts(*parts: Any, sep: str = " ", end: str = "\n") -> None:
    """Python's own ``print``, with no format strings."""
    recorder = current("print")
    recorder.mark()
    _print(joined(parts, sep, end))


def _print(template: Template) -> None:
    recorder = current("print")
    text, operands = template
    note = Note(text, recorder.note_site())
    recorder.builder.effect(Op.PRINT, tuple(one.value for one in operands), note)
