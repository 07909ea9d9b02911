"""What rewriting a function depends on, and who keeps what came of it for the next process.

Rewriting looks at the code object and at the text of its file, and at nothing else that can differ
between two runs of one khaljit in one Python. So where both are the same, the rewritten code is.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from types import CodeType
from typing import Final, Protocol, final

from khaljit.tracer.records import dataclass

__all__ = ["Identity", "Keeper", "codes", "identify", "is_newer"]

_STARTED: Final = time.time()


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """A code object whose source is in a file.

    Attributes:
        code: all that stands in it, the same in every process.
        text: its file, whole.
    """

    code: bytes
    text: bytes


class Keeper(Protocol):
    """Where rewritten code is kept. No trouble with that is an error."""

    def get(self, identity: Identity) -> bytes | None: ...
    def put(self, identity: Identity, data: bytes) -> None: ...


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


def is_newer(status: os.stat_result) -> bool:
    """Whether a file was edited after this process began, so that it may not be what runs."""
    return status.st_mtime > _STARTED


def identify(code: CodeType) -> Identity | None:
    """The identity of a code object; None where no file has its source for certain."""
    if code.co_filename.startswith("<"):
        return None
    try:
        with open(code.co_filename, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or is_newer(status):
                return None
            text = file.read()
    except (OSError, ValueError):  # there is none; a name with a null
        return None
    return Identity(repr(_contents(code)).encode(), text)


def _contents(code: CodeType) -> tuple[object, ...]:
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_firstlineno,
        code.co_filename,
        code.co_name,
        code.co_qualname,
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
        code.co_code,
        code.co_linetable,
        code.co_exceptiontable,
        tuple(map(_constant, code.co_consts)),
    )


def _constant(value: object) -> object:
    """A constant as something whose text is its own alone. No constant is a list."""
    if isinstance(value, CodeType):
        return [_contents(value)]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return value
