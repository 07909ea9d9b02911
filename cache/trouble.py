"""What happens when the cache cannot do what it should: one warning, and the run goes on."""

from __future__ import annotations

import warnings
from typing import Final, final

from khaljit.cache import place
from khaljit.cache.errors import CacheStoreError, CacheWarning

__all__ = ["Trouble"]

ABOVE: Final = 6
"""Frames between the warning and those who use a store."""


@final
class Trouble:
    """The troubles of one store."""

    def __init__(self) -> None:
        self._told: Final[set[str]] = set()

    def tell(self, error: CacheStoreError, where: str = "here") -> None:
        """Warn, the first time in each place; with ``KHALJIT_CACHE_STRICT=1`` raise the error."""
        if place.is_strict():
            raise error
        if where not in self._told:
            self._told.add(where)
            warnings.warn(
                f"{error.message}; going on without it\n  mend: {error.mend}",
                CacheWarning,
                stacklevel=ABOVE,
            )
