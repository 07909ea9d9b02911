"""Writing to a store's files, as far as that is possible: after a failure nothing more is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, final

from khaljit.cache import place
from khaljit.cache.errors import CacheStoreError
from khaljit.cache.files import Files
from khaljit.cache.trouble import Trouble

__all__ = ["Index", "Writer"]

MEND: Final = (
    "make room or give the right to write there, set KHALJIT_CACHE_DIR to another directory, or "
    "KHALJIT_CACHE=0"
)


class Index(Protocol):
    """Who keeps a store's bound. Every method may raise OSError."""

    mended: bool

    def put(self, identity: str, data: bytes) -> None: ...
    def remove(self, identity: str) -> None: ...
    def clear(self) -> None: ...
    def trim(self) -> None: ...


@final
class Writer:
    """Who writes to the files of a store.

    Attributes:
        works: whether writing is still tried.
    """

    def __init__(self, files: Files, limit: int, entries: int, trouble: Trouble) -> None:
        self.works = True
        self._files: Final = files
        self._limit: Final = limit
        self._entries: Final = entries
        self._trouble: Final = trouble
        self.begin()

    def begin(self) -> None:
        """What belongs to one process."""
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._failure: OSError | CacheStoreError | None = None

    def open_ahead(self) -> None:
        """Open the index before it is used; what goes wrong is for the use to tell."""
        with self._lock:
            if self._index is None and self._failure is None:
                try:
                    self._index = self._open()
                except (OSError, CacheStoreError) as error:
                    self._failure = error

    def put(self, identity: str, data: bytes) -> None:
        """Write an entry; where its index cannot be used, at least its file, which others adopt."""
        self.use(
            lambda index: index.put(identity, data), lambda: self._files.publish(identity, data)
        )

    def use(
        self, work: Callable[[Index], None], otherwise: Callable[[], object] | None = None
    ) -> None:
        """Do something with the index; no failure gets out but as trouble.

        Args:
            otherwise: what may be done where nothing is wrong but that the index is not to be had.
        """
        try:
            with self._lock:
                if self._index is None:
                    if self._failure is not None:
                        raise self._failure
                    self._index = self._open()
                index = self._index
            work(index)
        except OSError as error:
            self.works = False
            if otherwise is not None:
                with suppress(OSError):
                    otherwise()
            self._trouble.tell(
                CacheStoreError(
                    f"the cache in {self._files.root} cannot be written to ({error})", MEND
                )
            )
            return
        except CacheStoreError as error:
            self.works = False
            self._trouble.tell(error)
            return
        if index.mended:
            index.mended = False
            self._trouble.tell(
                CacheStoreError(
                    f"the index of the cache in {self._files.root} was damaged and begun again",
                    "nothing to do; should it happen again, check that file system",
                )
            )

    def _open(self) -> Index:
        from khaljit.cache.filesystems import is_network

        os.makedirs(self._files.root, mode=0o700, exist_ok=True)
        place.check(self._files.root)
        if not is_network(self._files.root):
            try:
                from khaljit.cache.index import Index  # diskcache: 10 ms, for writers only
            except ImportError:  # a Python that was built without SQLite
                pass
            else:
                return Index(self._files, self._limit, self._entries)
        from khaljit.cache.plain import PlainIndex

        return PlainIndex(self._files, self._limit, self._entries)
