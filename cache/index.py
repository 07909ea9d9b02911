"""The index: which entries there are, how large they are, and which go first.

It is a diskcache with a disk of our own. It is opened to write only: a process that finds all it
needs never imports it. What it says is a matter of space and never of truth, as each entry proves
itself. Laws:

* Nothing is pickled or unpickled, whatever stands in the database: keys are text, values are bytes
  in files, anything else is refused.
* A lock that others hold is waited for `PATIENCE` seconds, no longer.
* A file that the index does not know is taken in, when a write happens to look at its folder.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, final

import diskcache
from diskcache.core import MODE_BINARY

from khaljit.cache import place
from khaljit.cache.files import ABANDONED, Files, identity_of, is_entry, last_use

__all__ = ["Index"]

PATIENCE: Final = 2.0
BATCH: Final = 16
DATABASE: Final = ("cache.db", "cache.db-journal")

DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""SQLite's primary codes for a database that is broken, or has other tables than it should."""


_IN_USE: Final = threading.RLock()
"""Held while a thread is inside SQLite. A fork in that moment would leave the child with SQLite's
own locks held by nobody, so it waits."""

if hasattr(os, "register_at_fork"):  # systems with fork
    os.register_at_fork(
        before=_IN_USE.acquire, after_in_parent=_IN_USE.release, after_in_child=_IN_USE.release
    )


@final
class EntryDisk(diskcache.Disk):  # type: ignore[misc]  # it has no types
    """Keys are text and values are entries' bytes, in files that `Files` names."""

    def __init__(self, directory: str, **settings: object) -> None:
        super().__init__(directory)
        self._files: Final = Files(directory)

    def put(self, key: object) -> tuple[str, bool]:
        if not isinstance(key, str):
            raise TypeError("keys are text")
        return str(key), True

    def get(self, key: object, raw: object) -> str:
        if not isinstance(key, str) or not raw:
            raise TypeError("keys are text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, str, None]:
        if not isinstance(value, bytes) or not isinstance(key, str) or read:
            raise TypeError("values are bytes")
        return len(value), int(MODE_BINARY), self._files.publish(key, value), None

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        if mode != MODE_BINARY or not isinstance(filename, str) or not is_entry(filename) or read:
            raise TypeError("values are bytes in files")
        return self._files.read(filename)

    def remove(self, file_path: object) -> None:
        if isinstance(file_path, str):
            self._files.remove(file_path)


@final
class _Database(diskcache.Cache):  # type: ignore[misc]  # it has no types
    """A diskcache that leaves no connection behind when opening it fails."""

    def __init__(self, directory: str, **settings: object) -> None:
        try:
            super().__init__(directory, **settings)
        except BaseException:
            self.close()
            raise


@final
class Index:
    """The index of a store's files. Every method may raise OSError."""

    def __init__(self, files: Files, limit: int, entries: int) -> None:
        self._files: Final = files
        self._limit: Final = limit
        self._entries: Final = entries
        self.mended = False
        """Whether the database was damaged and begun again. Files are the truth, so nothing was
        lost but the order of eviction."""
        self._check()
        try:
            try:
                with _IN_USE:
                    self._cache = _connect(files.root, limit)
            except (sqlite3.Error, TypeError, ValueError) as error:
                self._mend(error)
        except (sqlite3.Error, diskcache.Timeout) as error:
            raise OSError(str(error) or "its index is locked") from error

    def put(self, identity: str, data: bytes) -> None:
        """Write an entry's file and its row, then keep to the bound."""
        self._use(lambda: self._put(identity, data))

    def _put(self, identity: str, data: bytes) -> None:
        self._cache.set(identity, data)
        for folder in random.sample(self._files.folders(), 1):
            self._adopt(folder)
        self._trim()

    def remove(self, identity: str) -> None:
        """Delete an entry that has a row."""
        self._use(lambda: self._cache.delete(identity))

    def clear(self) -> None:
        """Delete every entry that has a row."""
        self._use(lambda: self._cache.clear())

    def trim(self) -> None:
        """Keep to the bound."""
        self._use(self._trim)

    def _use(self, work: Callable[[], object]) -> None:
        """Do something with the database; once more where it was damaged."""
        try:
            try:
                with self._connected():
                    work()
            except sqlite3.Error as error:
                self._mend(error)
                with self._connected():
                    work()
        except (sqlite3.Error, diskcache.Timeout) as error:
            raise OSError(str(error) or "its index is locked") from error

    def _check(self) -> None:
        """Believe no database that others can write to; raises CacheStoreError."""
        with suppress(FileNotFoundError):
            for name in DATABASE:
                place.check(os.path.join(self._files.root, name))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """No connection outlives a use: none is inherited by a fork, none is left by a thread."""
        with _IN_USE:
            try:
                yield
            finally:
                self._cache.close()

    def _mend(self, error: Exception) -> None:
        """Move a damaged database away and begin again; other errors are raised again."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF not in DAMAGE:
            raise error  # locked, full, read-only: not the database's own fault
        self.mended = True
        away = os.path.join(self._files.root, "quarantine")
        os.makedirs(away, mode=0o700, exist_ok=True)
        for name in reversed(DATABASE):  # a journal is of one database only
            with suppress(FileNotFoundError):
                os.replace(os.path.join(self._files.root, name), os.path.join(away, name))
        with _IN_USE:
            self._cache = _connect(self._files.root, self._limit)

    def _adopt(self, folder: str) -> None:
        """Take in what a writer left without a row when it was killed, or a lost index knew.

        Files of the last hour are left alone: their writers may be about to do it.
        """
        known = None
        for name, status in self._files.in_folder(folder):
            if time.time() - status.st_ctime < ABANDONED:
                continue
            if known is None:
                known = self._names(folder)
            identity = identity_of(name)
            if identity not in known:
                self._insert(identity, name, status)
            elif known[identity] != name:
                self._files.remove(name)  # replaced, and its writer died before deleting it

    def _names(self, folder: str) -> dict[str, str]:
        """The files that the index knows in one folder."""
        rows = self._cache._sql(
            "SELECT key, filename FROM Cache WHERE key >= ? AND key < ? AND raw = 1",
            (folder, folder + "g"),  # the digit after f
        )
        return dict(rows.fetchall())

    def _insert(self, identity: str, name: str, status: os.stat_result) -> None:
        columns = (None, None, status.st_size, int(MODE_BINARY), name, None)
        with self._cache._transact() as (sql, _):
            found = sql("SELECT 1 FROM Cache WHERE key = ? AND raw = 1", (identity,)).fetchall()
            if not found:
                self._cache._row_insert(identity, True, status.st_mtime, columns)

    def _trim(self) -> None:
        """Delete what was not used for the longest, until the bound is kept.

        Readers write nothing but their file's time, so a row whose file is newer is first brought
        up to date; to no more than this moment, so that each row is at most once.
        """
        now = time.time()
        while True:
            size = self._cache.volume() - self._cache.size_limit
            count = len(self._cache) - self._entries
            if size <= 0 and count <= 0:
                return
            with self._cache._transact() as (sql, cleanup):
                rows = sql(
                    "SELECT rowid, filename, access_time, size FROM Cache "
                    "ORDER BY access_time LIMIT ?",
                    (BATCH,),
                ).fetchall()
                if not rows:
                    return
                for row, name, known, bytes_ in rows:
                    used = self._last_use(name, now)
                    if used > known:
                        sql("UPDATE Cache SET access_time = ? WHERE rowid = ?", (used, row))
                    elif size > 0 or count > 0:
                        sql("DELETE FROM Cache WHERE rowid = ?", (row,))
                        cleanup(name)
                        size -= bytes_
                        count -= 1

    def _last_use(self, name: object, now: float) -> float:
        try:
            return last_use(os.stat(os.path.join(self._files.root, str(name))), now)
        except OSError:
            return 0.0


def _connect(root: str, limit: int) -> Any:
    # diskcache would wait for a lock for a minute; whoever holds it now lets go in time or never
    with closing(sqlite3.connect(os.path.join(root, "cache.db"), timeout=PATIENCE)) as probe:
        probe.execute("BEGIN IMMEDIATE")
        probe.rollback()
    cache = _Database(
        root,
        timeout=PATIENCE,
        disk=EntryDisk,
        size_limit=limit,
        cull_limit=0,  # `_trim` does it
        eviction_policy="least-recently-used",
        sqlite_journal_mode="truncate",  # works on network file systems, unlike "wal"
        sqlite_synchronous=0,  # what a power failure breaks is begun again
        sqlite_mmap_size=0,
    )
    cache.close()
    return cache
