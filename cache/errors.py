"""What the cache says when it is in trouble.

CacheWarning          given once per store: what is wrong, and that the run goes on in memory
CacheStoreError       the same as an error, when ``KHALJIT_CACHE_STRICT=1`` asks for it
CorruptError          an entry that is not what was written
FormatError           an entry that another khaljit wrote, in its own format
"""

from __future__ import annotations

from typing import final

__all__ = ["CacheStoreError", "CacheWarning", "CorruptError", "FormatError"]


@final
class CacheWarning(UserWarning):
    """The cache on disk cannot be used; nothing is lost but time."""


@final
class CacheStoreError(Exception):
    """The cache on disk cannot be used, and the user asked for that to be an error."""

    def __init__(self, message: str, mend: str) -> None:
        super().__init__(f"{message}\n  mend: {mend}")
        self.message = message
        self.mend = mend


@final
class CorruptError(Exception):
    """An entry that fails its checks, with what is wrong about it."""


@final
class FormatError(Exception):
    """An entry that is for another khaljit: no mistake, and left alone."""
