"""The store: what was compiled once, kept for the next process.

Reading is a look at files (`files`), writing goes through the index (`index`). Laws:

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
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from khaljit.cache import place
from khaljit.cache.artifact import FORMAT, Artifact, pack, unpack
from khaljit.cache.errors import CacheStoreError, CacheWarning, CorruptError
from khaljit.cache.files import Files, identity
from khaljit.cache.keys import Key

if TYPE_CHECKING:
    from khaljit.cache.flight import Lease
    from khaljit.cache.index import Index

__all__ = ["Building", "Info", "Store", "Tools"]

MEMORY_LIMIT: Final = 256 << 20
"""Bytes of artifacts that are kept in memory."""

WAIT: Final = 30.0
"""Seconds to wait for another who builds the same entry."""

Tools = Callable[[str], str | None]
"""The version of a tool that is installed here, given its name; None where none is."""


@final
@dataclass(frozen=True, slots=True)
class Info:
    """What a store holds, and how it did in this process.

    Attributes:
        directory: where it is; None where it is in memory alone.
        reasons: how many misses had which reason: ``absent``, ``tool``, ``corrupt``,
            ``unreadable``.
    """

    directory: str | None
    entries: int
    bytes: int
    limit: int
    hits: int
    misses: int
    reasons: Mapping[str, int]


@final
@dataclass(slots=True)
class Building:
    """The right to build an entry; or what another built while this waited for it."""

    artifact: Artifact | None


class _Memory:
    """The artifacts of this process, those used last."""

    def __init__(self) -> None:
        self._artifacts: Final[OrderedDict[bytes, Artifact]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Artifact | None:
        artifact = self._artifacts.get(key.material)
        if artifact is not None:
            self._artifacts.move_to_end(key.material)
        return artifact

    def put(self, key: Key, artifact: Artifact) -> None:
        self.drop(key)
        self._artifacts[key.material] = artifact
        self._bytes += artifact.size
        while self._bytes > MEMORY_LIMIT and len(self._artifacts) > 1:
            _, oldest = self._artifacts.popitem(last=False)
            self._bytes -= oldest.size

    def drop(self, key: Key) -> None:
        before = self._artifacts.pop(key.material, None)
        if before is not None:
            self._bytes -= before.size


@final
class Store:
    """Entries on disk and in memory. Open one with `Store.open`."""

    def __init__(self, directory: Path | None, limit: int, wait: float) -> None:
        self.directory: Final = directory
        self._limit: Final = limit
        self._wait: Final = wait
        self._files: Final = Files(str(directory / str(FORMAT))) if directory else None
        self._memory = _Memory()
        self._outcomes: Final[Counter[str]] = Counter()
        self._warned = False
        self._writes = directory is not None
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process, and is begun again after a fork."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._flights: dict[str, threading.Event] = {}
        self._index: Index | None = None

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        limit: int | None = None,
        wait: float = WAIT,
    ) -> Store:
        """Open the store of a directory.

        Args:
            directory: where; by default what the environment says (`place`).
            limit: bytes that it may take; by default what the environment says.
            wait: seconds to wait for another who builds the same entry.
        """
        if place.is_disabled():
            return cls(None, 0, wait)
        try:
            limit = place.limit() if limit is None else limit
            folder = place.directory() if directory is None else Path(directory).absolute()
            place.prepare(folder)
        except CacheStoreError as error:
            store = cls(None, 0, wait)
            store._trouble(error)
            return store
        return cls(folder, limit, wait)

    # -- using it ------------------------------------------------------------------------------

    def get(self, key: Key, tools: Tools) -> Artifact | None:
        """The artifact of a key, unless there is none that can be used here."""
        self._check_process()
        artifact, outcome = self._find(key, tools)
        with self._lock:
            self._outcomes[outcome] += 1
        return artifact

    def put(self, key: Key, artifact: Artifact) -> None:
        """Keep an artifact."""
        self._check_process()
        with self._lock:
            self._memory.put(key, artifact)
        if self._writes:
            self._write(identity(key, artifact), pack(key, artifact))

    def discard(self, key: Key) -> None:
        """Move a key's entries away: what they hold could not be loaded."""
        self._check_process()
        with self._lock:
            self._memory.drop(key)
        if self._files is not None:
            for name in self._candidates(key):
                self._files.quarantine(name)

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
            yield Building(self._find(key, tools)[0])
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
        artifact = self.get(key, tools)
        if artifact is not None:
            return artifact
        with self.building(key, tools) as building:
            if building.artifact is not None:
                return building.artifact
            artifact = build()
            self.put(key, artifact)
            return artifact

    def clear(self) -> None:
        """Delete all entries, also those in memory."""
        self._check_process()
        with self._lock:
            self._memory = _Memory()
        if self._files is None:
            return
        if os.path.exists(os.path.join(self._files.root, "cache.db")):
            self._with_index(lambda index: index.clear())
        for name, _ in self._files.all():
            self._files.remove(name)

    def info(self) -> Info:
        """What it holds, and how it did in this process."""
        sizes = [status.st_size for _, status in self._files.all()] if self._files else []
        with self._lock:
            outcomes = dict(self._outcomes)
        hits = outcomes.pop("hit", 0)
        return Info(
            directory=str(self.directory) if self.directory else None,
            entries=len(sizes),
            bytes=sum(sizes),
            limit=self._limit,
            hits=hits,
            misses=sum(outcomes.values()),
            reasons=outcomes,
        )

    # -- how it is done ------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()

    def _find(self, key: Key, tools: Tools) -> tuple[Artifact | None, str]:
        """An artifact and ``hit``, or none and the reason."""
        with self._lock:
            artifact = self._memory.get(key)
        if artifact is not None:
            return artifact, "hit"
        if self._files is None:
            return None, "absent"
        reason = "absent"
        try:
            for name in self._files.candidates(key):
                artifact, outcome = self._read(name, key, tools)
                if artifact is not None:
                    with self._lock:
                        self._memory.put(key, artifact)
                    return artifact, outcome
                if outcome != "absent":
                    reason = outcome
        except OSError:
            reason = "unreadable"
        return None, reason

    def _read(self, name: str, key: Key, tools: Tools) -> tuple[Artifact | None, str]:
        assert self._files is not None
        try:
            artifact = unpack(self._files.read(name), key)
        except FileNotFoundError:  # evicted while we looked
            return None, "absent"
        except OSError:
            return None, "unreadable"
        except CorruptError:
            self._files.quarantine(name)
            return None, "corrupt"
        return (artifact, "hit") if _is_accepted(artifact, tools) else (None, "tool")

    def _candidates(self, key: Key) -> list[str]:
        assert self._files is not None
        try:
            return self._files.candidates(key)
        except OSError:
            return []

    def _lease(self, key: Key) -> Lease | None:
        if self._files is None or not self._writes:
            return None
        from khaljit.cache.flight import Lease  # for those who build

        return Lease(os.path.join(self._files.root, "leases", key))

    def _await(self, key: Key, tools: Tools, lease: Lease | None) -> Artifact | None:
        """Take the lease, or wait for what its holder builds."""
        if lease is None:
            return None
        deadline = time.monotonic() + self._wait
        pause = 0.001
        while True:
            taken = lease.take()
            artifact, _ = self._find(key, tools)  # also now: it may be there since we looked
            if taken or artifact is not None or time.monotonic() > deadline:
                return artifact
            lease.break_if_dead()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _write(self, identity: str, data: bytes) -> None:
        self._with_index(lambda index: index.put(identity, data))

    def _with_index(self, use: Callable[[Index], None]) -> None:
        """Use the index; after a failure nothing more is written in this process."""
        from khaljit.cache.index import FAILURES, Index  # diskcache: 10 ms, for writers only

        assert self._files is not None
        try:
            with self._lock:
                if self._index is None:
                    os.makedirs(self._files.root, mode=0o700, exist_ok=True)
                    self._index = Index(self._files, self._limit)
                index = self._index
            use(index)
        except FAILURES as error:
            self._writes = False
            self._trouble(
                CacheStoreError(
                    f"the cache in {self.directory} cannot be written to "
                    f"({str(error) or 'its index is locked'})",
                    "make room or give the right to write there, set KHALJIT_CACHE_DIR to another "
                    "directory, or KHALJIT_CACHE=0",
                )
            )
            return
        if index.mended:
            index.mended = False
            self._trouble(
                CacheStoreError(
                    f"the index of the cache in {self.directory} was damaged and begun again",
                    "nothing to do; should it happen again, check that file system",
                )
            )

    def _trouble(self, error: CacheStoreError) -> None:
        if place.is_strict():
            raise error
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{error.message}; going on without it\n  mend: {error.mend}",
                CacheWarning,
                stacklevel=4,
            )


def _is_accepted(artifact: Artifact, tools: Tools) -> bool:
    """Whether what a tool made may be used where another version of it may be installed."""
    if artifact.tool is None or artifact.shipped:
        return True
    name, version = artifact.tool
    return tools(name) in (None, version)
