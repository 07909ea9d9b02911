"""The worker pool: one kernel's work items, shared out over threads.

An entry is ``void entry(ptr params, ptr next, i64 total, i64 chunk, ptr arena)``: it takes `chunk`
items at a time from the counter at `next` until `total` is reached. So a launch needs no plan of
who does what; every thread that enters helps, and one alone does it all. Laws:

* The calling thread always takes part, and waits for those only who have entered. A worker that is
  busy with another launch, or too slow to wake, is not waited for; so no launch can block another.
* Workers start on first use, sleep on a lock each, and are daemons. A child process after a fork
  starts its own.
* `run` returns only when no thread is inside any more, also when it is interrupted: parameters and
  arena may then be reused.
"""

from __future__ import annotations

import _thread
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final, final

from khaljit.backends.cpu.pool import POOLS

__all__ = ["Pool"]

CACHE_LINE: Final = 64

LOOK_AGAIN: Final = 0.1
"""Seconds after which a waiting launch looks by itself: a signal can swallow what it waits for."""

Entry = Callable[[int, int, int, int, int], None]

_ENTRY: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


@lru_cache(maxsize=4096)
def _entry(address: int) -> Entry:
    """The function at an address; calling it releases the GIL."""
    return _ENTRY(address)


@final
class Arena:
    """Scratch memory of one thread, aligned to a cache line.

    It never changes, so that code which is interrupted in the middle of a launch and launches again
    cannot pull the memory from under the first.
    """

    __slots__ = ("_memory", "address", "size")

    def __init__(self, size: int) -> None:
        self._memory: Final = (ctypes.c_char * (size + CACHE_LINE))()
        self.address: Final = -(-ctypes.addressof(self._memory) // CACHE_LINE) * CACHE_LINE
        self.size: Final = size


@final
class Scratch(threading.local):
    """The calling thread's arena."""

    def __init__(self) -> None:
        self._arena = Arena(0)

    def arena(self, size: int) -> Arena:
        """An arena of at least so many bytes; hold it while its address is in use."""
        arena = self._arena
        if arena.size < size:
            arena = self._arena = Arena(size)
        return arena


@final
class Job:
    """One launch in flight. Every field but the counter is guarded by the pool's lock."""

    __slots__ = (
        "_memory", "arena_bytes", "chunk", "closed", "counter", "done", "entry", "inside", "next",
        "params", "total",
    )  # fmt: skip

    def __init__(self) -> None:
        self._memory: Final = (ctypes.c_char * (3 * CACHE_LINE))()
        start = ctypes.addressof(self._memory)
        offset = -start % CACHE_LINE
        self.counter: Final = ctypes.c_int64.from_buffer(self._memory, offset)
        self.next: Final = start + offset  # a cache line of its own: every thread adds to it
        self.done: Final = threading.Lock()
        self.done.acquire()
        self.inside = 0  # workers that have entered
        self.closed = False

    def open(self, entry: Entry, params: int, total: int, chunk: int, arena_bytes: int) -> None:
        self.entry = entry
        self.params = params
        self.total = total
        self.chunk = chunk
        self.arena_bytes = arena_bytes
        self.counter.value = 0
        self.closed = False
        self.done.acquire(blocking=False)  # released after the last launch had looked by itself

    def work(self, scratch: Scratch) -> None:
        """Enter the kernel with this thread."""
        arena = scratch.arena(self.arena_bytes)
        self.entry(self.params, self.next, self.total, self.chunk, arena.address)


@final
class Worker:
    """A sleeping thread and what it is to do next."""

    __slots__ = ("job", "wake")

    def __init__(self) -> None:
        self.wake: Final = threading.Lock()
        self.wake.acquire()
        self.job: Job | None = None

    def call(self, job: Job) -> None:
        self.job = job
        with suppress(RuntimeError):  # called before, for a launch that ended first, and not up yet
            self.wake.release()


@final
class Pool:
    """Threads that help with launches.

    Args:
        threads: how many threads a launch may use, the caller's among them.
    """

    def __init__(self, threads: int) -> None:
        self.threads: Final = threads
        self._scratch: Final = Scratch()
        self._jobs: Final[deque[Job]] = deque()  # launches that are over, for reuse
        self.reset()
        POOLS.add(self)

    def reset(self) -> None:
        """Forget all workers: at the start, and in a child process, which has none of them."""
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self.started = 0

    def run(self, address: int, params: int, total: int, chunk: int, arena_bytes: int) -> None:
        """Run a kernel's items and return when all are done.

        Args:
            address: the kernel's entry.
            params: the address of its parameter block.
            total: the number of work items.
            chunk: how many a thread takes at a time; with `total` at most this, one thread runs.
            arena_bytes: scratch memory that each thread needs.
        """
        try:
            job = self._jobs.pop()
        except IndexError:
            job = Job()
        job.open(_entry(address), params, total, chunk, arena_bytes)
        if total <= chunk or self.threads == 1:
            job.work(self._scratch)
        else:
            self._share(job, min(self.threads, -(-total // chunk)) - 1)
        self._jobs.append(job)

    def _share(self, job: Job, helpers: int) -> None:
        """Run a job with helpers, and stay until all of them are out, interrupted or not."""
        called: list[Worker] = []
        try:
            with self._lock:
                self._call(job, helpers, called)
            job.work(self._scratch)
            self._wait(job, called)
        except BaseException:
            self._leave(job, called)
            raise

    def _leave(self, job: Job, called: list[Worker]) -> None:
        """`_wait`, and go on waiting when that is interrupted too."""
        try:
            self._wait(job, called)
        except BaseException:
            self._leave(job, called)
            raise

    def _wait(self, job: Job, called: list[Worker]) -> None:
        """Close a job and wait for those who have entered."""
        while not self._close(job, called):
            job.done.acquire(timeout=LOOK_AGAIN)

    def _close(self, job: Job, called: list[Worker]) -> bool:
        with self._lock:
            return self._take_back(job, called)

    # With the lock held. These are methods of their own because CPython 3.13 does not release the
    # lock of a `with` block when a signal's handler raises between two turns of a loop in it.

    def _call(self, job: Job, helpers: int, called: list[Worker]) -> None:
        """Give the job to sleeping workers and wake them."""
        while len(self._idle) < helpers and self.started < self.threads - 1:
            if not self._start():
                break
        while len(called) < helpers and self._idle:
            called.append(self._idle.pop())
            called[-1].call(job)

    def _take_back(self, job: Job, called: list[Worker]) -> bool:
        """Take the job from those who have not entered; whether all who have are out."""
        for worker in called:
            if worker.job is job:
                worker.job = None
                self._idle.append(worker)
        job.closed = True
        return job.inside == 0

    def _start(self) -> bool:
        """Start one more worker, where the system lets us."""
        worker = Worker()
        try:
            # not `threading.Thread`, which can be interrupted between starting and being started
            _thread.start_new_thread(self._serve, (worker,))
        except RuntimeError:  # a limit on threads, or the interpreter is ending
            self.started = self.threads
            return False
        self.started += 1
        self._idle.append(worker)
        return True

    def _serve(self, worker: Worker) -> None:
        """What a worker does all its life."""
        while True:
            worker.wake.acquire()
            with self._lock:
                job = worker.job
                worker.job = None
                if job is None:  # taken back: it is among the idle already
                    continue
                job.inside += 1
            job.work(self._scratch)
            with self._lock:
                self._idle.append(worker)
                job.inside -= 1
                if job.closed and job.inside == 0:
                    job.done.release()
