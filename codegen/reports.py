"""What kernels report: failed assertions and prints, on a hidden array that the host reads.

A kernel that asserts or prints gets two more parameters, behind all others: the *report*, an array
of 32-bit words that all kernels of a device share, and its own number. ``numbering.py`` adds them
before the key is made, and numbers the notes, so that host and code agree on which is which;
``writing_reports.py`` turns the notes into stores.

The report begins with a header: whether something failed; how many words of the log are used; how
many prints did not fit; the record of the first failure. Behind it is the log, a record per print.
A record is the kernel's number, the note's number, the invocation's global id (x, y, z, of the
index type), and the note's operands; what has 64 bits takes two words, all else takes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.dtypes import DType, bf16, bool_, i32, i64, index
from khaljit.tracer.errors import Site
from khaljit.tracer.ir import (
    Note,
    Trace,
    effects,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = [
    "DROPPED",
    "FAILED",
    "FAILURE",
    "HEADER",
    "NAME",
    "NOTES",
    "USED",
    "Announcement",
    "Record",
    "announcements",
    "has_report",
    "read_record",
    "words_of",
]

FAILED, USED, DROPPED, FAILURE, HEADER = 0, 1, 2, 3, 128  # positions of words
NAME: Final = "kj.report"  # which no parameter of a user's has
NOTES: Final = frozenset({Op.PRINT, Op.ASSERT})
"""The effects that report."""


def has_report(trace: Trace) -> bool:
    """Whether a trace has the hidden parameters."""
    return bool(trace.arrays) and trace.arrays[-1].name == NAME


@final
@dataclass(frozen=True, slots=True)
class Announcement:
    """A note as the host knows it.

    Attributes:
        fails: it belongs to an assertion.
        template: its text, see ``tracer/messages.py``.
        at: its place in the user's source.
        types: of its operands, ``index`` by its width.
    """

    fails: bool
    template: str
    at: Site | None
    types: tuple[DType, ...]


def announcements(trace: Trace) -> tuple[Announcement, ...]:
    """The notes of a trace with the hidden parameters, by number."""
    found: dict[int, Announcement] = {}
    for effect in effects(trace.body):
        note = effect.attr
        if isinstance(note, Note):
            fails = effect.op is Op.ASSERT
            types = tuple(_sized(arg.type, trace.index_bits) for arg in effect.args[fails:])
            found[note.site] = Announcement(fails, note.text, trace.sites[note.site], types)
    return tuple(found[number] for number in range(len(found)))


def _sized(dtype: DType, index_bits: int) -> DType:
    if dtype is not index:
        return dtype
    return i32 if index_bits == 32 else i64


def words_of(types: Sequence[DType]) -> int:
    """How many words values take in a record."""
    return sum(2 if dtype.bits == 64 else 1 for dtype in types)


@final
@dataclass(frozen=True, slots=True)
class Record:
    """A record as NumPy scalars.

    Attributes:
        size: its words.
    """

    invocation: tuple[int, int, int]
    operands: tuple[Any, ...]
    size: int


def read_record(words: np.ndarray[Any, Any], types: Sequence[DType], index_bits: int) -> Record:
    """The record at the start of some words, whose note has operands of the given types."""
    position = _sized(index, index_bits)
    at, numbers = 2, []
    for dtype in (position, position, position, *types):
        count = words_of((dtype,))
        numbers.append(_number(words[at : at + count], dtype))
        at += count
    x, y, z = (int(number) for number in numbers[:3])
    return Record((x, y, z), tuple(numbers[3:]), at)


def _number(words: np.ndarray[Any, Any], dtype: DType) -> Any:
    """The value of a type whose bits are in the low bits of some words."""
    if dtype is bool_:
        return np.bool_(words[0] != 0)
    if dtype is bf16:
        return (words << 16).view(np.float32)[0]
    raw: np.ndarray[Any, Any] = words.copy()
    return raw.astype("<u4", copy=False).view(np.uint8)[: dtype.size].view(dtype.numpy)[0]
