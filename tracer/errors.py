"""The exception tree.

    KhaljitError
    ├── TraceError            the kernel's Python cannot be recorded
    ├── CapabilityError       the target lacks something that the kernel needs
    ├── ArgumentError         what was passed does not fit the kernel or the call
    │   ├── ArgumentTypeError       also a TypeError
    │   ├── ArgumentValueError      also a ValueError
    │   └── ArgumentOverflowError   also an OverflowError
    ├── DeviceError           a device is missing, lost, or refused a command
    ├── GraphError            no graph can hold it, or a graph holds no longer
    ├── KernelError           reported by a kernel that ran: a failed assert, an index out of bounds
    ├── CacheError            the cache failed and KHALJIT_CACHE_STRICT=1 asked for an error
    └── InternalError         a defect of khaljit itself

    UserWarning
    ├── PerformanceWarning    something is right, and slower than it needs to be
    └── TraceWarning          a kernel is recorded, and likely not what was meant

Every message says what is wrong, where in the user's kernel, and how to mend it. Catch by class,
never by text.
"""

from __future__ import annotations

import linecache
from itertools import islice
from types import CodeType
from typing import final

__all__ = [
    "ArgumentError",
    "ArgumentOverflowError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "CacheError",
    "CapabilityError",
    "DeviceError",
    "GraphError",
    "InternalError",
    "KernelError",
    "KhaljitError",
    "PerformanceWarning",
    "Site",
    "TraceError",
    "TraceWarning",
]


class TraceWarning(UserWarning):
    """A kernel that can be recorded, and is likely not what was meant."""


@final
class Site:
    """A place in the user's source: a line and, where they are known, its columns.

    Columns count UTF-8 bytes from 0, as CPython's position tables do. A site made from a bytecode
    instruction looks its position up when it is first asked for, since most are never asked.
    """

    __slots__ = ("_code", "_offset", "_span")

    def __init__(
        self, file: str, line: int, start: int | None = None, end: int | None = None
    ) -> None:
        self._code: CodeType | None = None
        self._offset = 0
        self._span: tuple[str, int, int | None, int | None] | None = (file, line, start, end)

    @classmethod
    def of_instruction(cls, code: CodeType, offset: int) -> Site:
        """The source span of the bytecode instruction at a byte offset."""
        site = cls.__new__(cls)
        site._code = code
        site._offset = offset
        site._span = None
        return site

    def _resolve(self) -> tuple[str, int, int | None, int | None]:
        if self._span is None:
            assert self._code is not None
            positions = next(islice(self._code.co_positions(), self._offset // 2, None))
            line, last, start, end = positions
            if last != line:  # the caret stays on the first line of a longer expression
                end = None
            self._span = (self._code.co_filename, line or self._code.co_firstlineno, start, end)
        return self._span

    @property
    def file(self) -> str:
        return self._resolve()[0]

    @property
    def line(self) -> int:
        return self._resolve()[1]

    @property
    def start(self) -> int | None:
        return self._resolve()[2]

    @property
    def end(self) -> int | None:
        return self._resolve()[3]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and self._resolve() == other._resolve()

    def __hash__(self) -> int:
        return hash(self._resolve())

    def __repr__(self) -> str:
        return f"Site({', '.join(repr(part) for part in self._resolve())})"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def excerpt(self) -> str:
        """The source line with a caret line below it; empty when the source is not at hand."""
        source = linecache.getline(self.file, self.line).rstrip("\n")
        if not source.strip():
            return ""
        body = source.lstrip()
        if self.start is None:
            return f"    {body}"
        margin = len(source) - len(body)
        encoded = source.encode()
        start = len(encoded[: self.start].decode(errors="replace"))
        end = len(source)
        if self.end is not None:
            end = len(encoded[: self.end].decode(errors="replace"))
        width = max(1, end - start)
        return f"    {body}\n    {' ' * (start - margin)}{'^' * width}"


class KhaljitError(Exception):
    """Base of all errors that khaljit raises on purpose.

    Args:
        message: what is wrong, in one sentence.
        at: the place in the user's kernel, where there is one.
        mend: what to do about it.
    """

    def __init__(self, message: str, *, at: Site | None = None, mend: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.mend = mend

    def __str__(self) -> str:
        lines = [self.message]
        if self.at is not None:
            lines.append(f"  at {self.at}")
            excerpt = self.at.excerpt()
            if excerpt:
                lines.append(excerpt)
        if self.mend is not None:
            lines.append(f"  mend: {self.mend}")
        return "\n".join(lines)


class TraceError(KhaljitError):
    """The kernel's Python cannot be recorded."""


class CapabilityError(KhaljitError):
    """The target lacks something that the kernel needs."""


class ArgumentError(KhaljitError):
    """What was passed does not fit the kernel or the call."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type, dtype or number of dimensions, or there are too many."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument or grid has a value that cannot be used."""


class ArgumentOverflowError(ArgumentError, OverflowError):
    """A number does not fit the dtype that it is passed as."""


class DeviceError(KhaljitError):
    """A device is missing, lost, or refused a command."""


class GraphError(KhaljitError):
    """A graph cannot hold what happens while it is captured, or does not hold any longer."""


class KernelError(KhaljitError):
    """Reported by a kernel that ran: a failed assert, or an index out of bounds in debug mode."""


class CacheError(KhaljitError):
    """The cache failed and ``KHALJIT_CACHE_STRICT=1`` asked for an error."""


class InternalError(KhaljitError):
    """A defect of khaljit itself; please report it with the message."""


@final
class PerformanceWarning(UserWarning):
    """Something is right, and slower than it needs to be."""
