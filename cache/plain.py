"""The bound kept without a database, where SQLite cannot be relied on: by looking at the files.

The same as `index.Index` to those who write. Two writers need not know of each other: each looks at
all files now and then, so between two looks the cache may be larger than its bound by a part.
"""

from __future__ import annotations

import os
import time
from typing import Final, final

from khaljit.cache.files import ABANDONED, Files, identity_of, last_use

__all__ = ["PlainIndex"]

PART: Final = 16
"""Of its bound, a process writes one part of so many between two looks at all files."""


@final
class PlainIndex:
    """The files of a store, bounded. Every method may raise OSError."""

    def __init__(self, files: Files, limit: int, entries: int) -> None:
        self._files: Final = files
        self._limit: Final = limit
        self._entries: Final = entries
        self._bytes = limit  # written since the last look; the first write looks
        self._count = 0
        self.mended = False

    def put(self, identity: str, data: bytes) -> None:
        """Write an entry's file in place of its older ones, then keep to the bound."""
        before = self._named(identity)
        self._files.publish(identity, data)
        for name in before:
            self._files.remove(name)
        self._bytes += len(data)
        self._count += 1
        if self._bytes * PART > self._limit or self._count * PART > self._entries:
            self.trim()

    def remove(self, identity: str) -> None:
        """Delete an entry."""
        for name in self._named(identity):
            self._files.remove(name)

    def clear(self) -> None:
        """Nothing besides the files themselves."""

    def trim(self) -> None:
        """Delete what was not used for the longest, until the bound is kept; and what others have
        replaced."""
        self._bytes = self._count = 0
        now = time.time()
        kept = sorted(
            ((last_use(status, now), name, status) for name, status in self._files.all()),
            key=lambda one: one[:2],
            reverse=True,
        )
        seen: dict[str, float] = {}
        size = 0
        for count, (used, name, status) in enumerate(kept, 1):
            newer = seen.setdefault(identity_of(name), used)
            replaced = newer > used and now - status.st_ctime > ABANDONED
            size += status.st_size
            if replaced or size > self._limit or count > self._entries:
                self._files.remove(name)

    def _named(self, identity: str) -> list[str]:
        folder, rest = identity[:2], identity[2:] + "."
        try:
            names = os.listdir(os.path.join(self._files.root, folder))
        except FileNotFoundError:
            return []
        return [f"{folder}/{name}" for name in names if name.startswith(rest)]
