"""The entries as files: published whole, found by name alone, read with no database.

An entry's file is ``<2 digits>/<30 digits>.<variant>.<random>``: the key's digits, a short hash of
the tool that made it (so that two versions of a tool can share a cache without replacing each
other's entries), and a part that makes each written file a new one. So a file is never changed or
replaced, readers need no lock, and whatever passes its checks is right wherever it came from. Laws:

* A file gets its name when it is complete.
* Only eviction and clearing delete entries; a bad one is moved away.
* A file's time of modification is when it was last of use, to within `USED`.
* A file that others could have written is not read.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar, final

import xxhash

from khaljit.cache import place
from khaljit.cache.artifact import Artifact, Head, head
from khaljit.cache.keys import Key

__all__ = [
    "ABANDONED",
    "Files",
    "UntrustedError",
    "identity",
    "identity_of",
    "is_entry",
    "last_use",
]

USED: Final = 3600.0
"""Seconds within which a second use of an entry is not written down, and by which clocks may
differ."""

ABANDONED: Final = 3600.0
"""Seconds after which an unfinished file is nobody's."""

QUARANTINED: Final = 32
"""How many bad entries are kept to be looked at."""

RETRIES: Final = 5 if sys.platform == "win32" else 0
"""How often a refusal is taken for a passing one: on Windows a file is locked while any program,
such as a virus scanner, looks at it."""

PAUSE: Final = 0.01

ENTRY: Final = r"[0-9a-f]{2}/[0-9a-f]{30}\.[0-9a-f]{8}\.[0-9a-f]{12}"
UNFINISHED: Final = "new-"


def last_use(status: os.stat_result, now: float) -> float:
    """When a file was last of use. One of a time that is still to come, since a clock was set back,
    counts as long ago: else it would outlive all that is written from now on."""
    return 0.0 if status.st_mtime > now + USED else min(status.st_mtime, now)


def is_entry(name: str) -> bool:
    """Whether this is the relative name of an entry's file."""
    return re.fullmatch(ENTRY, name, re.ASCII) is not None


def identity_of(name: str) -> str:
    """What the index calls the entry in a file: key and variant."""
    return name.replace("/", "").rsplit(".", 1)[0]


T = TypeVar("T")


class UntrustedError(OSError):
    """A file that others can write to."""


def patiently(operation: Callable[[], T]) -> T:
    """Do it, again where it is refused and that may pass; raises OSError."""
    for _ in range(RETRIES):
        with suppress(PermissionError):
            return operation()
        time.sleep(PAUSE)
    return operation()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@final
class Files:
    """The files of a store."""

    def __init__(self, root: str) -> None:
        self.root: Final = root

    def candidates(self, key: Key) -> list[str]:
        """The names of the files that may hold a key's entry; raises OSError."""
        folder, rest = key[:2], key[2:] + "."
        try:
            names = os.listdir(os.path.join(self.root, folder))
        except FileNotFoundError:
            return []
        return sorted(f"{folder}/{name}" for name in names if name.startswith(rest))

    def read(self, name: str) -> bytes:
        """The bytes of a file, which is of use now; raises OSError."""
        path = os.path.join(self.root, name)
        with patiently(lambda: open(path, "rb", buffering=0)) as file:
            status = os.fstat(file.fileno())
            if not place.is_private(status):
                raise UntrustedError(f"{path} can be written to by others")
            data = file.read()
        if abs(time.time() - status.st_mtime) > USED:
            with suppress(OSError):  # a cache that cannot be written to is as good
                os.utime(path)
        return data

    def head(self, name: str) -> Head:
        """What stands at the beginning of a file; raises OSError, or as `artifact.head` does."""
        with open(os.path.join(self.root, name), "rb") as file:
            return head(file)

    def publish(self, identity: str, data: bytes) -> str:
        """Write a new file, whole or not at all, and give its name; raises OSError."""
        folder = identity[:2]
        made = os.urandom(6).hex()
        path = os.path.join(self.root, folder)
        os.makedirs(path, mode=0o700, exist_ok=True)
        unfinished = os.path.join(path, UNFINISHED + made)
        name = f"{folder}/{identity[2:]}.{made}"
        try:
            with open(unfinished, "xb", buffering=0, opener=_private) as file:
                written = file.write(data)
                if written != len(data):
                    raise OSError("the file system took only a part")
            patiently(lambda: os.rename(unfinished, os.path.join(self.root, name)))
        except BaseException:
            with suppress(OSError):
                os.remove(unfinished)
            raise
        return name

    def quarantine(self, name: str) -> None:
        """Move a bad file to where nothing reads it."""
        away = os.path.join(self.root, "quarantine")
        path = os.path.join(self.root, name)
        with suppress(OSError):
            os.makedirs(away, mode=0o700, exist_ok=True)
            if len(os.listdir(away)) < QUARANTINED:
                os.rename(path, os.path.join(away, name.replace("/", "")))
                return
        with suppress(OSError):
            os.remove(path)

    def remove(self, name: str) -> None:
        """Delete an entry's file, if it is one and is there."""
        if is_entry(name):
            with suppress(OSError):
                os.remove(os.path.join(self.root, name))

    def folders(self) -> list[str]:
        """The folders that hold entries."""
        with suppress(OSError):
            return [name for name in os.listdir(self.root) if len(name) == 2]
        return []

    def in_folder(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """The entries in one folder. What was left unfinished long ago is deleted on the way."""
        try:
            names = os.listdir(os.path.join(self.root, folder))
        except OSError:
            return
        for name in names:
            path = os.path.join(self.root, folder, name)
            with suppress(OSError):
                status = os.stat(path)
                if is_entry(f"{folder}/{name}"):
                    yield f"{folder}/{name}", status
                elif name.startswith(UNFINISHED) and time.time() - status.st_mtime > ABANDONED:
                    os.remove(path)

    def all(self) -> Iterator[tuple[str, os.stat_result]]:
        """All entries."""
        for folder in self.folders():
            yield from self.in_folder(folder)


def identity(key: Key, artifact: Artifact) -> str:
    """What the index calls an artifact's entry."""
    tool = " ".join(artifact.tool) if artifact.tool else ""
    return f"{key}.{xxhash.xxh32_hexdigest(tool.encode())}"
