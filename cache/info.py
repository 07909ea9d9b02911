"""What `Store.info` tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

__all__ = ["Info"]


@final
@dataclass(frozen=True, slots=True)
class Info:
    """What a store holds, and how it did in this process.

    Attributes:
        directory: where it is; None where it is in memory alone.
        limit: most bytes.
        entries_limit: most entries.
        memos: what is kept beside the entries, see `memos`: rewritten functions.
        remote: the second tier; None where there is none.
        sources: how many hits were found where, see `Found.outcome`.
        reasons: how many misses had which reason.
    """

    directory: str | None
    entries: int
    bytes: int
    limit: int
    entries_limit: int
    memos: int
    memo_bytes: int
    remote: str | None
    hits: int
    misses: int
    sources: Mapping[str, int]
    reasons: Mapping[str, int]
