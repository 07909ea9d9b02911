"""Memos: what is made again in a moment when it is lost.

They are files as entries are, checked the same way when they are read, with a bound of their own.
But they have no index, no lease and no second tier, are in no export, and count as no hit or miss;
and whatever goes wrong with one is a miss, which nobody is told of.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from khaljit.cache.artifact import Artifact, pack
from khaljit.cache.files import Files, identity
from khaljit.cache.keys import Key
from khaljit.cache.reading import search

if TYPE_CHECKING:
    from khaljit.cache.plain import PlainIndex

__all__ = ["Memos"]

PART: Final = 16
"""Beside entries, memos may take one part of so many of their bounds."""


@final
class Memos:
    """The memos in a store's folder.

    Args:
        root: that folder.
        limit: bytes that its entries may take.
        entries: how many entries it may hold.
    """

    def __init__(self, root: str, limit: int, entries: int) -> None:
        self.files: Final = Files(os.path.join(root, "memos"))
        self._limit: Final = limit // PART
        self._count: Final = entries // PART
        self._index: PlainIndex | None = None
        self._works = True

    def get(self, key: Key) -> bytes | None:
        """What was put under a key, if it is there."""
        found = search(self.files, key, _no_tool).artifact
        return None if found is None else found.payload

    def put(self, key: Key, data: bytes) -> None:
        """Keep something under a key, as far as that is possible."""
        if not self._works:
            return
        memo = Artifact(data, {}, None)
        try:
            for folder in (os.path.dirname(self.files.root), self.files.root):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            self._opened().put(identity(key, memo), pack(key, memo))
        except OSError:
            self._works = False

    def trim(self) -> None:
        """Keep to the bound."""
        with suppress(OSError):
            self._opened().trim()

    def clear(self) -> None:
        """Delete them all."""
        for name, _ in self.files.all():
            self.files.remove(name)

    def _opened(self) -> PlainIndex:
        if self._index is None:
            from khaljit.cache.plain import PlainIndex  # for those who write

            self._index = PlainIndex(self.files, self._limit, self._count)
        return self._index


def _no_tool(name: str) -> None:
    """No tool makes memos."""
