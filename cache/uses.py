"""How often entries were of use: a journal, for people who list them.

Readers write nothing but this, once, at their end: a line ``<identity> <count>`` for each entry
that they read. It is a matter of interest and never of truth, so whatever is wrong with it is
passed over.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, final

__all__ = ["Uses", "totals"]

LONG: Final = 1 << 20
"""Bytes at which the lines of an entry are made one again."""

MOST: Final = 10_000
"""Entries that are then kept, those of most use."""

APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@final
class Uses:
    """What a process has read and not yet written down."""

    def __init__(self, root: str) -> None:
        self._root: Final = root
        self.begin()

    def begin(self) -> None:
        """Begin at nothing, as a forked child does."""
        self._process = os.getpid()
        self._counts: Counter[str] = Counter()

    def count(self, identity: str) -> None:
        """An entry was of use."""
        self._counts[identity] += 1

    def flush(self) -> None:
        """Write it down."""
        counts, self._counts = self._counts, Counter()
        if counts and self._process == os.getpid():
            _note(self._root, counts)


def _note(root: str, counts: Mapping[str, int]) -> None:
    path = _path(root)
    with suppress(OSError):
        if _append(path, counts) > LONG:
            away = f"{path}.{os.urandom(4).hex()}"
            os.rename(path, away)
            _append(path, dict(_read(away).most_common(MOST)))
            os.remove(away)


def totals(root: str) -> Counter[str]:
    """How often each entry was of use."""
    return _read(_path(root))


def _path(root: str) -> str:
    return os.path.join(root, "uses")


def _append(path: str, counts: Mapping[str, int]) -> int:
    """Add lines; gives how long the journal is now."""
    lines = "".join(f"{identity} {count}\n" for identity, count in counts.items())
    handle = os.open(path, APPEND, 0o600)
    try:
        os.write(handle, lines.encode())
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _read(path: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            identity, _, count = line.partition(" ")
            if count.strip().isdecimal():
                counts[identity] += int(count)
    return counts
