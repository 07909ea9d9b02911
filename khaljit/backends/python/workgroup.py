"""The invocations of a workgroup, one after the other, or in turns where they wait for each other.

Each invocation that may have to wait runs in a thread of its own, and only one of them at a time:
who comes to a barrier or a subgroup operation hands over to the next. The order is that of the
local index, or a shuffled one; the same seed gives the same order.
"""

from __future__ import annotations

import contextvars
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.backends.python.evaluate import number_of
from khaljit.debuggers import trace_function
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import InternalError
from khaljit.tracer.ir import Memory, Value
from khaljit.tracer.lanes import Grid, collective
from khaljit.tracer.storage import Window, block_window

__all__ = ["Workgroup"]

SUBGROUP: Final = 8  # lanes, at most


@final
class _Abandoned(BaseException):
    """Unwinds an invocation that waits when another one has failed."""


@final
class _Turn:
    """One invocation: its thread, and what it waits for.

    Attributes:
        go: released when it may go on.
        scope: the group and name of what it waits for; None while it can go on.
        operands: what it brought there.
        found: what it gets.
    """

    __slots__ = ("done", "error", "found", "go", "operands", "scope", "thread")

    def __init__(self) -> None:
        self.go: Final = threading.Semaphore(0)
        self.thread: threading.Thread | None = None
        self.scope: tuple[int, str] | None = None
        self.operands: Sequence[Value] = ()
        self.found: Any = None
        self.done = False
        self.error: BaseException | None = None


@final
class Workgroup:
    """One workgroup of a launch.

    Args:
        size: its invocations in x, y, z.
        groups: the grid's workgroups.
        number: which one of them it is.
        index_bits: width of ``index``.
        shuffle: chooses who goes next; None takes the local index.
    """

    def __init__(
        self,
        size: tuple[int, int, int],
        groups: tuple[int, int, int],
        number: int,
        index_bits: int,
        shuffle: random.Random | None,
    ) -> None:
        self._grid: Final = Grid(size, groups, number, 1, SUBGROUP)
        self._bits: Final = index_bits
        self._shuffle: Final = shuffle
        self._ids: Final[dict[tuple[str, int], np.ndarray[Any, Any]]] = {}
        self._shared: Final[dict[Memory, Window]] = {}
        self._turns: list[_Turn] = []
        self._back: Final = threading.Semaphore(0)  # released when an invocation hands over
        self._abandoned = False

    def id(self, name: str, axis: int, lane: int) -> int:
        """An id of an invocation; see ``ir.IDS``."""
        found = self._ids.get((name, axis))
        if found is None:
            every = np.broadcast_to(self._grid.id(name, axis), self._grid.lanes)
            found = self._ids[name, axis] = every
        return int(found[lane])

    def position(self, lane: int) -> tuple[int, int, int]:
        """The global id of an invocation."""
        return self.id("global", 0, lane), self.id("global", 1, lane), self.id("global", 2, lane)

    def window(self, memory: Memory) -> Window:
        """Shared memory, filled with random bytes at first."""
        found = self._shared.get(memory)
        if found is None:
            found = self._shared[memory] = block_window(memory, np.array(0), 1, poison=True)
        return found

    # Running.

    def run(self, body: Callable[[int], None], *, together: bool) -> None:
        """Run all invocations; ``together`` if they may wait for each other."""
        if not together:
            for lane in self._ordered(list(range(self._grid.lanes))):
                body(lane)
            return
        self._turns = [_Turn() for _ in range(self._grid.lanes)]
        trace = trace_function()
        for lane, turn in enumerate(self._turns):
            context = contextvars.copy_context()
            turn.thread = threading.Thread(
                target=context.run,
                args=(self._bounded, turn, body, lane, trace),
                name=f"invocation {self.position(lane)}",
                daemon=True,
            )
        try:
            self._take_turns()
        finally:
            self._abandon()

    def _bounded(self, turn: _Turn, body: Callable[[int], None], lane: int, trace: Any) -> None:
        """The whole life of an invocation's thread."""
        turn.go.acquire()
        try:
            if not self._abandoned:
                if trace is not None:
                    sys.settrace(trace)  # a debugger's breakpoints hold here too
                body(lane)
        except _Abandoned:
            pass
        except BaseException as error:
            turn.error = error
        finally:
            sys.settrace(None)
            turn.done = True
            self._back.release()

    def _take_turns(self) -> None:
        while True:
            ready = [turn for turn in self._turns if not turn.done and turn.scope is None]
            if not ready:
                if all(turn.done for turn in self._turns):
                    return
                raise InternalError("some invocations wait for others that are gone")
            for turn in self._ordered(ready):
                if turn.scope is None and not turn.done:
                    self._let(turn)
                    if turn.error is not None:
                        raise turn.error

    def _let(self, turn: _Turn) -> None:
        """Let an invocation run until it waits or ends."""
        assert turn.thread is not None
        if turn.thread.ident is None:
            turn.thread.start()
        turn.go.release()
        self._back.acquire()

    def _abandon(self) -> None:
        """End what still waits, and its threads."""
        self._abandoned = True
        for turn in self._turns:
            if turn.thread is None or turn.thread.ident is None:
                continue
            if not turn.done:
                self._let(turn)
            turn.thread.join()

    def _ordered(self, items: list[Any]) -> list[Any]:
        if self._shuffle is not None:
            self._shuffle.shuffle(items)
        return items

    # Waiting for others.

    def meet(self, lane: int, name: str | None, operands: Sequence[Value]) -> Any:
        """Wait for the workgroup (no name) or the subgroup; gives what a subgroup operation of
        that name finds, where the name is not empty."""
        turn, size = self._turns[lane], self._grid.subgroup
        first, count = (0, self._grid.lanes) if name is None else (lane // size * size, size)
        turn.scope, turn.operands = (first, name or ""), operands
        others = self._turns[first : first + count]
        if all(other.scope == turn.scope for other in others):
            if name:
                self._compute(name, others)
            for other in others:
                other.scope = None
        self._back.release()
        turn.go.acquire()
        if self._abandoned:
            raise _Abandoned
        return turn.found

    def _compute(self, name: str, turns: list[_Turn]) -> None:
        """What a subgroup operation gives to each of its lanes."""
        dtype: DType | None = None
        columns = []
        for position, operand in enumerate(turns[0].operands):
            dtype = operand.type if position == 0 else dtype
            numbers = [number_of(turn.operands[position], self._bits) for turn in turns]
            columns.append(np.array(numbers))
        active = np.ones(len(turns), np.bool_)
        found = collective(name, dtype, columns, active, len(turns), self._bits)
        for turn, one in zip(turns, found, strict=True):
            turn.found = one
