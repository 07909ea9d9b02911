"""A call that is made beside a longer one which leaves the interpreter alone."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

__all__ = ["Aside"]

T = TypeVar("T")


@final
class Aside(Generic[T]):
    """A call, made in a thread from `start` on, or by `result` where nobody started it.

    Objects of `threading` wait until their thread runs, and give it the interpreter: the longer
    call would begin that much later.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Final = call
        self._given: list[T] = []
        self._error: BaseException | None = None
        self._running: _thread.LockType | None = None

    def start(self) -> None:
        """Begin, if that has not been done."""
        if self._running is not None:
            return
        running = _thread.allocate_lock()
        running.acquire()
        try:
            _thread.start_new_thread(self._run, (running,))
        except RuntimeError:  # there are no more threads to be had
            return
        self._running = running

    def is_done(self, seconds: float = 0.0) -> bool:
        """Whether `result` would not wait, now or within some seconds."""
        if self._running is None:
            return True
        done = self._running.acquire(timeout=seconds)
        if done:
            self._running.release()
        return done

    def result(self) -> T:
        """What the call gives, or raises."""
        if self._running is None:
            return self._call()
        with self._running:
            pass
        if self._error is not None:
            raise self._error
        return self._given[0]

    def _run(self, running: _thread.LockType) -> None:
        try:
            self._given.append(self._call())
        except BaseException as error:  # for `result` to raise
            self._error = error
        finally:
            running.release()
