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
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from khaljit.cache import place
from khaljit.cache.artifact import FORMAT, Artifact, pack, unpack
from khaljit.cache.errors import CacheStoreError, CorruptError, FormatError
from khaljit.cache.files import Files, identity, identity_of
from khaljit.cache.keys import Key
from khaljit.cache.memory import Memory
from khaljit.cache.memos import Memos
from khaljit.cache.reading import SOURCES, Found, Tools, refusal, search
from khaljit.cache.trouble import Trouble
from khaljit.cache.uses import Uses
from khaljit.cache.writer import Writer

if TYPE_CHECKING:
    from khaljit.cache.flight import Lease
    from khaljit.cache.info import Info
    from khaljit.cache.remote import Remote

__all__ = ["Building", "Found", "Store", "Tools"]

MEMORY_LIMIT: Final = 256 << 20
"""Bytes of artifacts that are kept in memory."""

WAIT: Final = 30.0
"""Seconds to wait for another who builds the same entry."""


@final
class Building:
    """The right to build an entry; or what another built while this waited for it."""

    __slots__ = ("found",)

    def __init__(self, found: Found) -> None:
        self.found: Final = found

    @property
    def artifact(self) -> Artifact | None:
        return self.found.artifact


@final
class Store:
    """Entries on disk and in memory. Open one with `Store.open`."""

    def __init__(self, directory: Path | None, limit: int, entries: int, wait: float) -> None:
        self.directory: Final = directory
        self.files: Final = (
            Files(place.for_system(str(directory / str(FORMAT)))) if directory else None
        )
        self._limit: Final = limit
        self._entries: Final = entries
        self._wait: Final = wait
        self._trouble: Final = Trouble()
        self._memory: Final = Memory(MEMORY_LIMIT)
        self._outcomes: Final[Counter[str]] = Counter()
        self.writer: Final = (
            Writer(self.files, limit, entries, self._trouble) if self.files else None
        )
        self.memos: Final = Memos(self.files.root, limit, entries) if self.files else None
        self._uses: Final = Uses(self.files.root) if self.files else None
        if self._uses is not None:
            weakref.finalize(self, self._uses.flush)
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process, and is begun again after a fork."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._flights: dict[str, threading.Event] = {}
        self._tier: Remote | None = None
        self._asked = False  # whether there is a second tier

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
            store._trouble.tell(error)
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

    def open_ahead(self) -> None:
        """Open the index, which else the first `put` does; that meets anew what goes wrong."""
        self._check_process()
        if self.writer is not None and self.writer.works:
            self.writer.open_ahead()

    def put(self, key: Key, artifact: Artifact) -> None:
        """Keep an artifact."""
        self._check_process()
        data = self._keep(key, artifact)
        remote = self._remote()
        if remote is not None and remote.writes:
            remote.push(key, data or pack(key, artifact))
            self._tell(remote)

    def _keep(self, key: Key, artifact: Artifact) -> bytes | None:
        """Keep an artifact here; gives its bytes where they were needed."""
        with self._lock:
            self._memory.put(key, artifact)
        if self.writer is None or not self.writer.works:
            return None
        kept = artifact if place.keeps_text() else artifact.without_text()
        data = pack(key, kept)
        self.writer.put(identity(key, artifact), data)
        return data

    def forget(self, key: Key) -> None:
        """Keep a key's artifact no longer in memory."""
        self._check_process()
        with self._lock:
            self._memory.drop(key)

    def discard(self, key: Key) -> None:
        """Move a key's entries away: what they hold could not be loaded."""
        self.forget(key)
        if self.files is not None:
            with suppress(OSError):
                for name in self.files.candidates(key):
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
            found = self._await(key, tools, lease)
            if found.artifact is None:
                found = self._fetch(key, tools) or found
            yield Building(found)
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
        """Delete all entries, also those in memory, and all memos."""
        self._check_process()
        with self._lock:
            self._memory.clear()
        if self.files is None or self.writer is None:
            return
        if os.path.exists(self.files.root):
            self.writer.use(lambda index: index.clear())
        for name, _ in self.files.all():
            self.files.remove(name)
        if self.memos is not None:
            self.memos.clear()

    def info(self) -> Info:
        """What it holds, and how it did in this process."""
        from khaljit.cache.info import Info  # for those who ask

        sizes = _sizes(self.files)
        memos = _sizes(self.memos.files if self.memos else None)
        with self._lock:
            outcomes = dict(self._outcomes)
        sources = {name: outcomes.pop(name) for name in SOURCES & outcomes.keys()}
        return Info(
            directory=str(self.directory) if self.directory else None,
            entries=len(sizes),
            bytes=sum(sizes),
            limit=self._limit,
            entries_limit=self._entries,
            memos=len(memos),
            memo_bytes=sum(memos),
            remote=remote.url if (remote := self._remote()) else None,
            hits=sum(sources.values()),
            misses=sum(outcomes.values()),
            sources=sources,
            reasons=outcomes,
        )

    # -- how it is done ------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()
            if self._uses is not None and self.writer is not None:
                self._uses.begin()
                self.writer.begin()

    def _find(self, key: Key, tools: Tools) -> Found:
        with self._lock:
            artifact = self._memory.get(key)
        if artifact is not None:
            return Found(artifact, "memory")
        if self.files is None or self._uses is None:
            return Found(None, "absent")
        found = search(self.files, key, tools)
        if found.artifact is not None:
            with self._lock:
                self._memory.put(key, found.artifact)
                self._uses.count(identity_of(found.name))
        return found

    def _remote(self) -> Remote | None:
        """The second tier, if there is one."""
        if not self._asked:
            self._asked = True
            if os.environ.get("KHALJIT_CACHE_REMOTE") and not place.is_disabled():
                from khaljit.cache.remote import Remote  # for those who have one

                try:
                    self._tier = Remote.from_environment()
                except CacheStoreError as error:
                    self._trouble.tell(error, "remote")
                if self._tier is not None:
                    weakref.finalize(self, self._tier.flush)
        return self._tier

    def _fetch(self, key: Key, tools: Tools) -> Found | None:
        """What the second tier has of a key; it is kept here too."""
        remote = self._remote()
        if remote is None:
            return None
        entries = remote.fetch(key)
        self._tell(remote)
        for data in entries:
            try:
                artifact = unpack(data, key)
            except (CorruptError, FormatError):
                continue
            if not refusal(artifact, tools):
                self._keep(key, artifact)
                with self._lock:
                    self._outcomes["remote"] += 1
                return Found(artifact, "remote")
        return None

    def _tell(self, remote: Remote) -> None:
        error = remote.take_error()
        if error is not None:
            self._trouble.tell(error, "remote")

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until the second tier has all that it is to have; whether it has."""
        remote = self._remote()
        if remote is None:
            return True
        done = remote.flush(seconds)
        self._tell(remote)
        return done

    def _lease(self, key: Key) -> Lease | None:
        if self.files is None or self.writer is None or not self.writer.works:
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


def _sizes(files: Files | None) -> list[int]:
    return [status.st_size for _, status in files.all()] if files else []
