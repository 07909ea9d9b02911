"""Which code generators run here: the digest of their sources, for keys.

Equal sources give equal digests wherever they lie. The digest is of the files that this process
loads, so they are looked at when khaljit is imported. Where they are edited afterwards, what runs
is neither the old code nor the new: then the digest is one that no other process has, unless it was
made before, and what is compiled is not stored (`Sources.have_changed`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, final

import xxhash

from khaljit.cache import place
from khaljit.cache.errors import CacheStoreError

__all__ = ["FOLDERS", "RUNNING", "Sources", "generators"]

FOLDERS: Final = ("tracer", "codegen", "backends")
File = tuple[str, int, int, int, int]
HERE: Final = os.path.dirname(os.path.abspath(__file__))


@final
class Sources:
    """The sources of code generators, as they are now.

    Args:
        root: where their folders lie; khaljit itself by default.
    """

    def __init__(self, root: str = HERE) -> None:
        self._root: Final = root
        self._seen: Final = self._files()
        self._facts: Final = _digest_of(self._seen)

    def have_changed(self, folder: str = "") -> bool:
        """Whether a file is another than it was at first; one in a folder, if that is named."""
        if not folder:
            return self._files() != self._seen
        seen = [one for one in self._seen if one[0].startswith(f"{folder}/")]
        return self._files((folder,)) != (seen or self._seen)

    @cached_property
    def digest(self) -> bytes:
        """What tells them from others. Reading them all takes milliseconds, so it is kept in the
        cache beside what is seen of the files without reading them."""
        memo = _memo(self._root)
        if memo is not None:
            with suppress(OSError), open(memo, "rb", buffering=0) as file:
                known = file.read().split()
                if len(known) == 2 and known[0] == self._facts:
                    return known[1]
        try:
            found = self._read()
        except OSError:  # it is gone, or not for us to read
            return self._facts
        if self.have_changed():
            return self._facts
        if memo is not None:
            _keep(memo, self._facts + b" " + found)
        return found

    def _read(self) -> bytes:
        digest = xxhash.xxh3_128()
        for name, *_ in self._files():
            with open(os.path.join(self._root, name), "rb") as source:
                text = source.read().replace(b"\r\n", b"\n")
            digest.update(f"{name} {len(text)}\n".encode())
            digest.update(text)
        return digest.hexdigest().encode()

    def _files(self, folders: Sequence[str] = FOLDERS) -> list[File]:
        """The files by their names within the root, with what changes when they do; of a frozen
        application, the application."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(self._walk(list(folders)))
        return [(sys.executable, *_facts(os.stat(sys.executable)))]

    def _walk(self, folders: list[str]) -> Iterator[File]:
        for folder in folders:  # which grows
            with os.scandir(os.path.join(self._root, folder)) as entries:
                for entry in entries:
                    name = entry.name
                    if name.endswith((".py", ".pyc")):  # these where there are no sources
                        yield (f"{folder}/{name}", *_facts(entry.stat()))
                    elif "." not in name and name != "__pycache__" and entry.is_dir():
                        folders.append(f"{folder}/{name}")


def _digest_of(files: list[File]) -> bytes:
    return xxhash.xxh3_128_hexdigest(repr(files).encode()).encode()


def _facts(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _memo(root: str) -> str | None:
    """Where the digest of the sources in a place is kept; None where nothing is."""
    if place.is_disabled():
        return None
    try:
        folder = place.for_system(os.path.join(place.directory(), "generators"))
        with suppress(FileNotFoundError):
            place.check(folder)
    except (CacheStoreError, OSError):
        return None
    return os.path.join(folder, xxhash.xxh3_128_hexdigest(os.fsencode(root)))


def _keep(memo: str, text: bytes) -> None:
    with suppress(OSError, CacheStoreError):
        place.prepare(place.directory())
        os.makedirs(os.path.dirname(memo), mode=0o700, exist_ok=True)
        unfinished = f"{memo}.{os.urandom(4).hex()}"
        with open(unfinished, "xb") as file:
            file.write(text)
        os.replace(unfinished, memo)


RUNNING: Final = Sources()
"""Those of this process."""


def generators() -> bytes:
    """The digest of the generators that run in this process."""
    return RUNNING.digest
