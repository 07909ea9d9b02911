"""The entries of a store one by one: to list, check, delete, and carry to other machines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, final

from khaljit.cache.artifact import FORMAT, Artifact, read
from khaljit.cache.errors import CorruptError, FormatError
from khaljit.cache.files import Files, identity, identity_of
from khaljit.cache.keys import Key
from khaljit.cache.store import Store
from khaljit.cache.uses import totals

__all__ = ["Catalog", "Damage", "Entry"]


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """An entry, as its header has it; only `Catalog.check` checks the rest.

    Attributes:
        key: with its material, whose parts are `keys.parts_of(key.material)`.
        about: what its maker said of it: ``kernel``, ``signature``, ``target``, and ``created``
            in seconds since 1970.
        tool: name and version of what made it; None where nothing but khaljit did.
        pinned: whether it was imported, and is used as it is whatever tool is installed.
        size: of its file, in bytes.
        used: when it was last of use, in seconds since 1970, to within an hour.
        hits: how often processes found it, those that are still running apart.
        name: of its file, within the store.
    """

    key: Key
    about: Mapping[str, Any]
    tool: tuple[str, str] | None
    pinned: bool
    size: int
    used: float
    hits: int
    name: str


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """A file among the entries that is none, with what is wrong with it."""

    name: str
    reason: str


@final
class Catalog:
    """The entries of a store. What others do to it meanwhile is no error: an entry that is gone
    when its turn comes is left out."""

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._files: Final[Files | None] = store.files
        self._memos: Final = store.memos
        self._writer: Final = store.writer

    def entries(self) -> Iterator[Entry]:
        """All entries that can be read, in no order. Reads their headers only."""
        if self._files is not None:
            yield from _entries(self._files, totals(self._files.root))

    def find(self, digits: str) -> list[Entry]:
        """The entries whose keys begin with some digits."""
        return [entry for entry in self.entries() if entry.key.startswith(digits)]

    def artifact(self, entry: Entry) -> Artifact:
        """All of an entry, checked.

        Raises:
            OSError: it is gone, or cannot be read.
            CorruptError: it is damaged.
        """
        return read(self.data(entry))[1]

    def data(self, entry: Entry) -> bytes:
        """The bytes of an entry, checked, for `insert` elsewhere; raises as `artifact` does."""
        assert self._files is not None
        data = self._files.read(entry.name)
        material, _ = read(data)
        if material != entry.key.material:
            raise CorruptError("the entry is another key's")
        return data

    def insert(self, data: bytes, *, pin: bool = True) -> Key:
        """Put an entry that comes from elsewhere.

        Args:
            data: what `data` gave there.
            pin: use it as it is, whatever version of the tool that made it is installed here.

        Raises:
            CorruptError: it is damaged; nothing was put.
            FormatError: another khaljit wrote it.
        """
        material, artifact = read(data)
        key = Key.of(material)
        self._store.put(key, artifact.told(shipped=pin))
        return key

    def has(self, data: bytes) -> bool:
        """Whether an entry that comes from elsewhere is here already; raises as `insert` does."""
        material, artifact = read(data)
        key = Key.of(material)
        if self._files is None:
            return False
        wanted = identity(key, artifact)
        return any(identity_of(name) == wanted for name in self._files.candidates(key))

    def remove(self, entry: Entry) -> None:
        """Delete an entry."""
        assert self._files is not None
        assert self._writer is not None
        self._writer.use(lambda index: index.remove(identity_of(entry.name)))
        self._files.remove(entry.name)
        self._store.forget(entry.key)

    def check(self) -> Iterator[Entry | Damage]:
        """Check every entry whole: gives those that are good, and what is wrong with the others and
        with memos.

        What is damaged is moved away, as when it is met in a run.
        """
        if self._files is None or self._memos is None:
            return
        good = {entry.name: entry for entry in self.entries()}
        for name, damage in _checked(self._files):
            if damage is not None:
                yield damage
            elif name in good:
                yield good[name]
        for _, damage in _checked(self._memos.files):
            if damage is not None:
                yield damage

    def prune(self, unwanted: Callable[[Entry], bool] | None = None) -> int:
        """Delete what nobody needs: entries and memos beyond their bounds or unwanted, quarantined
        files, leases of the dead, and what other versions of khaljit keep here in other formats.
        Gives the bytes that it took."""
        if self._files is None or self._writer is None or self._store.directory is None:
            return 0
        assert self._memos is not None
        before = _size(str(self._store.directory))
        if unwanted is not None:
            for entry in filter(unwanted, list(self.entries())):
                self.remove(entry)
            for memo in filter(unwanted, list(_entries(self._memos.files, Counter()))):
                self._memos.files.remove(memo.name)
        self._writer.use(lambda index: index.trim())
        self._memos.trim()
        for root in (self._files.root, self._memos.files.root):
            _delete(os.path.join(root, "quarantine"))
        for name in os.listdir(self._store.directory):
            if name.isdecimal() and name != str(FORMAT):
                _delete(os.path.join(self._store.directory, name))
        return before - _size(str(self._store.directory))


def _entries(files: Files, hits: Counter[str]) -> Iterator[Entry]:
    for name, status in files.all():
        with suppress(OSError, CorruptError, FormatError):
            head = files.head(name)
            yield Entry(
                Key.of(head.material),
                head.about,
                head.tool,
                head.shipped,
                status.st_size,
                status.st_mtime,
                hits[identity_of(name)],
                name,
            )


def _checked(files: Files) -> Iterator[tuple[str, Damage | None]]:
    """Each file with what is wrong with it. What is damaged is moved away."""
    for name, _ in list(files.all()):
        try:
            material, _ = read(files.read(name))
            if not identity_of(name).startswith(Key.of(material)):
                raise CorruptError("the entry is another key's")
        except FileNotFoundError:
            continue
        except CorruptError as error:
            files.quarantine(name)
            yield name, Damage(name, str(error))
        except (FormatError, OSError) as error:
            yield name, Damage(name, str(error))
        else:
            yield name, None


def _size(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _delete(folder: str) -> None:
    for parent, folders, names in os.walk(folder, topdown=False):
        for name in names:
            with suppress(OSError):
                os.remove(os.path.join(parent, name))
        for name in folders:
            with suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    with suppress(OSError):
        os.rmdir(folder)
