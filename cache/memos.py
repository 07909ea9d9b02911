"""Memos: what is made again in a moment when it is lost.

They are files as entries are, checked the same way when they are read. But they have no index, no
lease and no second tier, are in no export, and count as no hit or miss; and whatever goes wrong
with one is a miss, which nobody is told of.
"""

from __future__ import annotations

import os
import time
from typing import Final, final

from khaljit.cache.artifact import Artifact, pack
from khaljit.cache.files import Files, identity, identity_of, last_use
from khaljit.cache.keys import Key
from khaljit.cache.reading import search

__all__ = ["Memos"]

PART: Final = 16
"""Beside entries, memos may take one part of so many of their bounds."""

FOLDERS: Final = 256
"""Over which they are spread evenly. Each keeps to its share, so that writing one memo never looks
at all of them; the newest stays in any case."""


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
        self._limit: Final = limit // (PART * FOLDERS)
        self._count: Final = entries // (PART * FOLDERS)
        self._works = limit > 0 and entries > 0

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
            self.files.publish(identity(key, memo), pack(key, memo))
        except OSError:
            self._works = False
        self._trim(key[:2])

    def trim(self) -> None:
        """Keep to the bounds."""
        for folder in self.files.folders():
            self._trim(folder)

    def clear(self) -> None:
        """Delete them all."""
        for name, _ in self.files.all():
            self.files.remove(name)

    def _trim(self, folder: str) -> None:
        """Delete what was not used for the longest in one folder, and what was replaced."""
        now = time.time()
        found = [
            (last_use(status, now), name, status.st_size)
            for name, status in self.files.in_folder(folder)
        ]
        seen: set[str] = set()
        size = 0
        for _, name, bytes_ in sorted(found, reverse=True):
            size += bytes_
            beyond = size > self._limit or len(seen) >= self._count
            if identity_of(name) in seen or (beyond and seen):
                self.files.remove(name)
            seen.add(identity_of(name))


def _no_tool(name: str) -> None:
    """No tool makes memos."""
