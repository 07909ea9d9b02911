"""The store: what was compiled once, kept for the next process.

Reading is a look at files (`files`), writing goes through an index (`index`, or `plain` on network
file systems). Laws:

* Nothing that goes wrong here stops the run: a bad entry is a miss, a failed write is a lost entry.
  The first trouble gives one `CacheWarning` and the run goes on in memory, unless
  ``KHALJIT_CACHE_STRICT=1`` asks for a `CacheStoreError`.
* What was just put is served from memory and never read back.
* One entry is built by one thread of one process at a time, as far as waiting for it is worth it.
* A store may be used by any thread, and on both sides of a fork.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

from khaljit.cache import place
from khaljit.cache.artifact import FORMAT, Artifact, pack, unpack
from khaljit.cache.errors import CacheStoreError, CacheWarning, CorruptError, FormatError
from khaljit.cache.files import Files, UntrustedError, identity, identity_of
from khaljit.cache.keys import Key
from khaljit.cache.memory import Memory
from khaljit.cache.uses import Uses

if TYPE_CHECKING:
    from khaljit.cache.flight import Lease

__all__ = ["Building", "Found", "Info", "Store", "Tools"]

MEMORY_LIMIT: Final = 256 << 20
"""Bytes of artifacts that are kept in memory."""

WAIT: Final = 30.0
"""Seconds to wait for another who builds the same entry."""

SOURCES: Final[frozenset[str]] = frozenset({"memory", "disk", "remote"})

Tools = Callable[[str], str | None]
"""The version of a tool that is installed here, given its name; None where none is."""


class Found(NamedTuple):
    """What a look brought.

    Attributes:
        artifact: None after a miss.
        outcome: where it was (``memory``, ``disk``, ``remote``), that it was ``built``; or why it
            is not there: ``absent``, ``tool`` (another version of a tool made it), ``corrupt``,
            ``format``, ``unreadable``, ``untrusted``.
        detail: the reason in words, where there is more to say.
    """

    artifact: Artifact | None
    outcome: str
    detail: str = ""


@final
@dataclass(frozen=True, slots=True)
class Info:
    """What a store holds, and how it did in this process.

    Attributes:
        directory: where it is; None where it is in memory alone.
        limit: most bytes.
        entries_limit: most entries.
        remote: the second tier; None where there is none.
        sources: how many hits were found where, see `Found.outcome`.
        reasons: how many misses had which reason.
    """

    directory: str | None
    entries: int
    bytes: int
    limit: int
    entries_limit: int
    remote: str | None
    hits: int
    misses: int
    sources: Mapping[str, int]
    reasons: Mapping[str, int]


@final
@dataclass(slots=True)
class Building:
    """The right to build an entry; or what another built while this waited for it."""

    found: Found

    @property
    def artifact(self) -> Artifact | None:
        return self.found.artifact


class _Index(Protocol):
    """Who keeps a store's bound; every method may raise OSError."""

    mended: bool

    def put(self, identity: str, data: bytes) -> None: ...
    def remove(self, identity: str) -> None: ...
    def clear(self) -> None: ...
    def trim(self) -> None: ...


@final
class Store:
    """Entries on disk and in memory. Open one with `Store.open`."""

    def __init__(self, directory: Path | None, limit: int, entries: int, wait: float) -> None:
        self.directory: Final = directory
        self.limit: Final = limit
        self.entries: Final = entries
        self.files: Final = (
            Files(place.for_system(str(directory / str(FORMAT)))) if directory else None
        )
        self._wait: Final = wait
        self._memory: Final = Memory(MEMORY_LIMIT)
        self._uses: Final = Uses(self.files.root) if self.files else None
        if self._uses is not None:
            weakref.finalize(self, self._uses.flush)
        self._outcomes: Final[Counter[str]] = Counter()
        self._warned = False
        self._writes = directory is not None
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process, and is begun again after a fork."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._flights: dict[str, threading.Event] = {}
        self._index: _Index | None = None

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        limit: int | None = None,
        entries: int | None = None,
        wait: float = WAIT,
    ) -> Store:
        """Open the store of a directory.

        Args:
            directory: where; by default what the environment says (`place`).
            limit: bytes that it may take; by default what the environment says.
            entries: entries that it may hold; by default what the environment says.
            wait: seconds to wait for another who builds the same entry.
        """
        if place.is_disabled():
            return cls(None, 0, 0, wait)
        try:
            limit = place.limit() if limit is None else limit
            entries = place.entries() if entries is None else entries
            folder = place.directory() if directory is None else Path(directory).absolute()
            place.prepare(folder)
        except CacheStoreError as error:
            store = cls(None, 0, 0, wait)
            store.trouble(error)
            return store
        return cls(folder, limit, entries, wait)

    # -- using it ------------------------------------------------------------------------------

    def get(self, key: Key, tools: Tools) -> Artifact | None:
        """The artifact of a key, unless there is none that can be used here."""
        return self.look(key, tools).artifact

    def look(self, key: Key, tools: Tools) -> Found:
        """The same with where it was, or why it is not there."""
        self._check_process()
        found = self._find(key, tools)
        with self._lock:
            self._outcomes[found.outcome] += 1
        return found

    def put(self, key: Key, artifact: Artifact) -> None:
        """Keep an artifact."""
        self._check_process()
        with self._lock:
            self._memory.put(key, artifact)
        if self._writes:
            kept = artifact if place.keeps_text() else artifact.without_text()
            data = pack(key, kept)
            self.with_index(lambda index: index.put(identity(key, artifact), data))

    def forget(self, key: Key) -> None:
        """Keep a key's artifact no longer in memory."""
        self._check_process()
        with self._lock:
            self._memory.drop(key)

    def discard(self, key: Key) -> None:
        """Move a key's entries away: what they hold could not be loaded."""
        self.forget(key)
        if self.files is not None:
            for name in self._candidates(key):
                self.files.quarantine(name)

    @contextmanager
    def building(self, key: Key, tools: Tools) -> Iterator[Building]:
        """Hold the right to build a key's entry, or get what another built meanwhile.

        Where it yields an artifact, use it; where it yields None, build and `put` inside.
        """
        self._check_process()
        with self._lock:
            ahead = self._flights.get(key)
            event = self._flights.setdefault(key, threading.Event())
        if ahead is not None:
            ahead.wait(self._wait)
            yield Building(self._find(key, tools))
            return
        lease = self._lease(key)
        try:
            yield Building(self._await(key, tools, lease))
        finally:
            if lease is not None:
                lease.drop()
            with self._lock:
                if self._flights.get(key) is event:
                    del self._flights[key]
            event.set()

    def obtain(self, key: Key, tools: Tools, build: Callable[[], Artifact]) -> Artifact:
        """The artifact of a key, built if there is none."""
        found = self.find_or_build(key, tools, build)
        assert found.artifact is not None
        return found.artifact

    def find_or_build(self, key: Key, tools: Tools, build: Callable[[], Artifact]) -> Found:
        """The artifact of a key, built if there is none; with where it comes from, and why it had
        to be built."""
        found = self.look(key, tools)
        if found.artifact is not None:
            return found
        with self.building(key, tools) as building:
            if building.artifact is not None:
                return building.found
            artifact = build()
            self.put(key, artifact)
        return Found(artifact, "built", found.detail or found.outcome)

    def clear(self) -> None:
        """Delete all entries, also those in memory."""
        self._check_process()
        with self._lock:
            self._memory.clear()
        if self.files is None:
            return
        if os.path.exists(self.files.root):
            self.with_index(lambda index: index.clear())
        for name, _ in self.files.all():
            self.files.remove(name)

    def info(self) -> Info:
        """What it holds, and how it did in this process."""
        sizes = [status.st_size for _, status in self.files.all()] if self.files else []
        with self._lock:
            outcomes = dict(self._outcomes)
        sources = {name: outcomes.pop(name) for name in SOURCES & outcomes.keys()}
        return Info(
            directory=str(self.directory) if self.directory else None,
            entries=len(sizes),
            bytes=sum(sizes),
            limit=self.limit,
            entries_limit=self.entries,
            remote=None,
            hits=sum(sources.values()),
            misses=sum(outcomes.values()),
            sources=sources,
            reasons=outcomes,
        )

    # -- how it is done ------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()
            if self._uses is not None:
                self._uses.begin()

    def _find(self, key: Key, tools: Tools) -> Found:
        with self._lock:
            artifact = self._memory.get(key)
        if artifact is not None:
            return Found(artifact, "memory")
        best = Found(None, "absent")
        if self.files is None:
            return best
        try:
            for name in self.files.candidates(key):
                found = self._read(name, key, tools)
                if found.artifact is not None:
                    assert self._uses is not None
                    with self._lock:
                        self._memory.put(key, found.artifact)
                        self._uses.count(identity_of(name))
                    return found
                if found.outcome != "absent":
                    best = found
        except OSError as error:
            return Found(None, "unreadable", str(error))
        return best

    def _read(self, name: str, key: Key, tools: Tools) -> Found:
        assert self.files is not None
        try:
            artifact = unpack(self.files.read(name), key)
        except FileNotFoundError:  # evicted while we looked
            return Found(None, "absent")
        except UntrustedError as error:
            return Found(None, "untrusted", str(error))
        except OSError as error:
            return Found(None, "unreadable", str(error))
        except FormatError as error:
            return Found(None, "format", str(error))
        except CorruptError as error:
            self.files.quarantine(name)
            return Found(None, "corrupt", str(error))
        refusal = _refusal(artifact, tools)
        return Found(None, "tool", refusal) if refusal else Found(artifact, "disk")

    def _candidates(self, key: Key) -> list[str]:
        assert self.files is not None
        try:
            return self.files.candidates(key)
        except OSError:
            return []

    def _lease(self, key: Key) -> Lease | None:
        if self.files is None or not self._writes:
            return None
        from khaljit.cache.flight import Lease  # for those who build

        return Lease(os.path.join(self.files.root, "leases", key))

    def _await(self, key: Key, tools: Tools, lease: Lease | None) -> Found:
        """Take the lease, or wait for what its holder builds."""
        if lease is None:
            return Found(None, "absent")
        deadline = time.monotonic() + self._wait
        pause = 0.001
        while True:
            taken = lease.take()
            found = self._find(key, tools)  # also now: it may be there since we looked
            if taken or found.artifact is not None or time.monotonic() > deadline:
                return found
            lease.break_if_dead()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def with_index(self, use: Callable[[_Index], None]) -> None:
        """Use the index; after a failure nothing more is written in this process."""
        try:
            with self._lock:
                if self._index is None:
                    self._index = self._open_index()
                index = self._index
            use(index)
        except OSError as error:
            self._writes = False
            self.trouble(
                CacheStoreError(
                    f"the cache in {self.directory} cannot be written to ({error})",
                    "make room or give the right to write there, set KHALJIT_CACHE_DIR to another "
                    "directory, or KHALJIT_CACHE=0",
                )
            )
            return
        except CacheStoreError as error:
            self._writes = False
            self.trouble(error)
            return
        if index.mended:
            index.mended = False
            self.trouble(
                CacheStoreError(
                    f"the index of the cache in {self.directory} was damaged and begun again",
                    "nothing to do; should it happen again, check that file system",
                )
            )

    def _open_index(self) -> _Index:
        from khaljit.cache.filesystems import is_network

        assert self.files is not None
        os.makedirs(self.files.root, mode=0o700, exist_ok=True)
        place.check(self.files.root)
        if not is_network(self.files.root):
            try:
                from khaljit.cache.index import Index  # diskcache: 10 ms, for writers only
            except ImportError:  # a Python that was built without SQLite
                pass
            else:
                return Index(self.files, self.limit, self.entries)
        from khaljit.cache.plain import PlainIndex

        return PlainIndex(self.files, self.limit, self.entries)

    def trouble(self, error: CacheStoreError) -> None:
        """Warn, the first time; or raise, where that is asked for."""
        if place.is_strict():
            raise error
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{error.message}; going on without it\n  mend: {error.mend}",
                CacheWarning,
                stacklevel=4,
            )


def _refusal(artifact: Artifact, tools: Tools) -> str:
    """Why what a tool made may not be used where another version of it is installed; empty where
    it may."""
    if artifact.tool is None or artifact.shipped:
        return ""
    name, version = artifact.tool
    here = tools(name)
    if here in (None, version):
        return ""
    return f"{name} {version} made it, and {name} {here} is here"
