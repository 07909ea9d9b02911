"""A call that is made beside a longer one which leaves the interpreter alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar, final

__all__ = ["Aside"]

T = TypeVar("T")


@final
class Aside(Generic[T]):
    """A call, made in a thread from `start` on, or by `result` where nobody started it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Final = call
        self._done: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if that has not been done."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="khaljit aside", daemon=True)
            with suppress(RuntimeError):  # there are no more threads to be had
                thread.start()
                self._thread = thread

    def result(self) -> T:
        """What the call gives, or raises."""
        if self._thread is None:
            return self._call()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._done[0]

    def _run(self) -> None:
        try:
            self._done.append(self._call())
        except BaseException as error:  # for `result` to raise
            self._error = error
