"""The second tier: a cache that machines share, at any URL that fsspec opens.

``KHALJIT_CACHE_REMOTE`` is a folder of a cluster, ``s3://...``, ``https://...``; what is not in the
store is looked for there, and what was built goes there in the background where
``KHALJIT_CACHE_REMOTE_WRITE=1`` says so. Laws:

* Entries are machine code, so none is looked into that was not signed with the secret in
  ``KHALJIT_CACHE_REMOTE_KEY``.
* Nothing there is waited for longer than ``KHALJIT_CACHE_REMOTE_TIMEOUT`` seconds. What fails is
  left alone for a while, each time for longer.
* fsspec is imported by those who have such a URL, and by nobody else.

An object holds the entries of one key, of the tools that made it last:

    magic    8 bytes
    records  32 bytes HMAC-SHA256 of key and entry, u32 length, the entry
"""

from __future__ import annotations

import os
import queue
import re
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, final

from khaljit.cache import place
from khaljit.cache.artifact import FORMAT
from khaljit.cache.errors import CacheStoreError
from khaljit.cache.keys import Key

__all__ = ["Remote", "pack_records", "read_records"]

MAGIC: Final = b"\x89khaljir"
RECORD: Final = struct.Struct("<32sI")
VERSIONS: Final = 4
"""Entries of one key that are kept, for as many versions of a tool."""

SHORTEST: Final = 16
"""Bytes that a secret has at least."""

TIMEOUT: Final = 5.0
PAUSES: Final = (30.0, 600.0)
"""Seconds that a tier which failed is left alone: at first, and at most."""

ENDING: Final = 5.0
"""Seconds that the end of a process waits for what is still to be written."""

SECRETS: Final = re.compile(r"//[^/@]*@|\?.*")

T = TypeVar("T")


@final
class Remote:
    """The second tier of a store. Nothing but the constructor raises."""

    def __init__(self, url: str, secret: bytes, *, writes: bool, timeout: float) -> None:
        """Opens nothing yet.

        Raises:
            CacheStoreError: the secret is missing or short.
        """
        if len(secret) < SHORTEST:
            raise CacheStoreError(
                "KHALJIT_CACHE_REMOTE is set, and KHALJIT_CACHE_REMOTE_KEY "
                + ("is too short" if secret else "is not"),
                f"set it to a secret of {SHORTEST} bytes or more, the same for all who share that "
                "cache: what is read from it is run",
            )
        self.url: Final = SECRETS.sub(lambda found: "//" * found[0].startswith("//"), url)
        self.writes: Final = writes
        self._url: Final = url
        self._secret: Final = secret
        self._timeout: Final = timeout
        self._system: tuple[Any, str] | None = None
        self._lock: Final = threading.Lock()
        self._until = 0.0  # when what failed is tried again
        self._pause = PAUSES[0]
        self._error: CacheStoreError | None = None
        self._queue: Final[queue.SimpleQueue[tuple[Key, bytes] | threading.Event]] = (
            queue.SimpleQueue()
        )
        self._writer: threading.Thread | None = None
        self._process: Final = os.getpid()

    @classmethod
    def from_environment(cls) -> Remote | None:
        """The tier that the environment names, if any; raises as the constructor does."""
        url = os.environ.get("KHALJIT_CACHE_REMOTE", "").strip()
        if not url:
            return None
        setting = os.environ.get("KHALJIT_CACHE_REMOTE_TIMEOUT", "").strip()
        try:
            timeout = float(setting) if setting else TIMEOUT
        except ValueError:
            raise CacheStoreError(
                f"KHALJIT_CACHE_REMOTE_TIMEOUT is {setting!r}", "set it to a number of seconds"
            ) from None
        return cls(
            url,
            os.environ.get("KHALJIT_CACHE_REMOTE_KEY", "").encode(),
            writes=place.is_on("KHALJIT_CACHE_REMOTE_WRITE"),
            timeout=timeout,
        )

    # -- reading -------------------------------------------------------------------------------

    def fetch(self, key: Key) -> list[bytes]:
        """The entries of a key, those that are signed rightly; none where there is trouble."""
        if time.monotonic() < self._until:
            return []
        try:
            data = self._within(self._timeout, lambda: self._read(key))
        except Exception as error:  # whatever a file system of fsspec's raises
            self._failed("read", error)
            return []
        self._pause = PAUSES[0]
        if data is None:
            return []
        entries, wrong = read_records(data, key, self._secret)
        if wrong:
            self._note(
                f"an entry in the cache at {self.url} is not signed with KHALJIT_CACHE_REMOTE_KEY",
                "set the secret that its other users have; if it is that one, somebody else wrote "
                "there",
            )
        return entries

    def _read(self, key: Key) -> bytes | None:
        system, root = self._opened()
        try:
            data = system.cat_file(_path(root, key))
        except FileNotFoundError:
            return None
        return bytes(data)

    def _opened(self) -> tuple[Any, str]:
        with self._lock:
            if self._system is None:
                try:
                    import fsspec
                except ImportError:
                    raise ImportError(
                        "fsspec is not installed: pip install khaljit[remote]"
                    ) from None
                system, root = fsspec.core.url_to_fs(self._url)
                self._system = system, root.rstrip("/")
            return self._system

    def _within(self, seconds: float, work: Callable[[], T]) -> T:
        """What some work gives; TimeoutError if it takes too long, and it is left to itself."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="khaljit-cache", daemon=True)
        thread.start()
        thread.join(seconds)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"no answer within {seconds:g} s")
        return results[0]

    # -- writing -------------------------------------------------------------------------------

    def push(self, key: Key, entry: bytes) -> None:
        """Write an entry, in the background."""
        if not self.writes or time.monotonic() < self._until:
            return
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write_all, name="khaljit-cache-writer", daemon=True
                )
                self._writer.start()
        self._queue.put((key, entry))

    def flush(self, seconds: float = ENDING) -> bool:
        """Wait for what is still to be written; whether all of it was."""
        if self._writer is None or self._process != os.getpid():  # a fork leaves threads behind
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def _write_all(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            elif time.monotonic() >= self._until:
                try:
                    self._write(*item)
                except Exception as error:  # as in `fetch`
                    self._failed("written to", error)

    def _write(self, key: Key, entry: bytes) -> None:
        """Put an entry before those of its key that are there."""
        data = self._read(key)
        others = read_records(data, key, self._secret)[0] if data is not None else []
        entries = [entry, *(other for other in others if other != entry)][:VERSIONS]
        system, root = self._opened()
        path = _path(root, key)
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(path, pack_records(entries, key, self._secret))

    # -- trouble -------------------------------------------------------------------------------

    def take_error(self) -> CacheStoreError | None:
        """What went wrong since this was asked for, to be told by the caller's thread."""
        error, self._error = self._error, None
        return error

    def _failed(self, how: str, error: BaseException) -> None:
        self._until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, PAUSES[1])
        reason = str(error).strip() or type(error).__name__
        self._note(
            f"the cache at {self.url} cannot be {how} ({reason})",
            "check KHALJIT_CACHE_REMOTE and the way there, or unset it",
        )

    def _note(self, message: str, mend: str) -> None:
        self._error = CacheStoreError(message, mend)


def _path(root: str, key: Key) -> str:
    return f"{root}/{FORMAT}/{key[:2]}/{key[2:]}"


def pack_records(entries: list[bytes], key: Key, secret: bytes) -> bytes:
    """The bytes of an object."""
    records = (RECORD.pack(_signature(entry, key, secret), len(entry)) + entry for entry in entries)
    return MAGIC + b"".join(records)


def read_records(data: bytes, key: Key, secret: bytes) -> tuple[list[bytes], int]:
    """The entries in an object whose signatures are right, and how many are not. What is cut short
    ends it."""
    import hmac

    entries: list[bytes] = []
    wrong = 0
    at = len(MAGIC)
    if data[:at] != MAGIC:
        return [], 1
    while at + RECORD.size <= len(data):
        signature, length = RECORD.unpack_from(data, at)
        at += RECORD.size
        entry = data[at : at + length]
        at += length
        whole = len(entry) == length
        if whole and hmac.compare_digest(signature, _signature(entry, key, secret)):
            entries.append(entry)
        else:
            wrong += 1
    return entries, wrong


def _signature(entry: bytes, key: Key, secret: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, key.encode() + entry, "sha256")
