"""Loops while recording: ``while``, ``for``, and functions that return early.

A loop begins on the host. One over a `Range` is recorded from the start; the others become traced
at a test, or at the first jump that stands under a traced branch, and begin again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from khaljit.tracer.arithmetic import truth
from khaljit.tracer.errors import TraceError
from khaljit.tracer.flow import Construct
from khaljit.tracer.frames import Frame, closed, leave_unless
from khaljit.tracer.merges import State, read
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, fail
from khaljit.tracer.ranges import Counting, Range
from khaljit.tracer.recorder import Recorder, user_site
from khaljit.tracer.state import RETURNED, UNSET

__all__ = ["Block", "ForEach", "ForRange", "Loop", "While"]

MAX_HOST_ITERATIONS: Final = 1_000_000


class Loop(Construct):
    """What ``while``, ``for`` and functions share: host first, traced when need be."""

    def __init__(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        super().__init__(recorder, names)
        self._frame: Frame | None = None
        self._iterations = 0
        self._started = False

    @property
    def frame(self) -> Frame:
        """What is recorded of a traced loop."""
        assert self._frame is not None
        return self._frame

    def start(self, scope: Mapping[str, object]) -> None:
        recorder = self.recorder
        self._before = read(scope, self.names)
        self._snapshot = recorder.builder.snapshot()
        self._counts = dict(recorder.counts)
        self._frames = len(recorder.frames)
        recorder.constructs.append(self)

    def next(self) -> bool:
        """Whether the body runs, for the first time or again."""
        first, self._started = not self._started, True
        runs = self._enter() if first else self._resume()
        if not runs:
            self.recorder.constructs.remove(self)
        return runs

    def _enter(self) -> bool:
        return True

    def _resume(self) -> bool:
        """After the body: take what jumps to this loop, and close what is recorded."""
        raise NotImplementedError

    def _left(self) -> bool:
        """Whether a jump leaves this loop; one that begins it again or goes on is taken."""
        if self.recorder.jump is None:
            return False
        kind = self.jumped()
        if kind == "again":
            self._begin_again()
        return kind is None or kind == "break"

    def _begin_again(self) -> None:
        """Forget what was recorded since the start, and be traced from there."""
        recorder = self.recorder
        recorder.builder.rollback(self._snapshot)
        recorder.counts = dict(self._counts)
        del recorder.frames[self._frames :]
        self.traced = self.load = True
        self._iterations = 0

    def _count(self) -> None:
        self._iterations += 1
        if self._iterations > MAX_HOST_ITERATIONS:
            raise TraceError(
                f"a loop has run {MAX_HOST_ITERATIONS} times while the kernel was recorded",
                at=user_site(),
                mend="its condition never involves a run-time value; loop over kj values, or "
                "compute the result outside the kernel",
            )

    def break_(self, scope: Mapping[str, object]) -> None:
        if self.traced:
            self._exit(Op.BREAK, read(scope, self.names))
        else:
            self.jump("again" if self.crossed() else "break")

    def continue_(self, scope: Mapping[str, object]) -> None:
        if self.traced:
            self._exit(Op.CONTINUE, read(scope, self.names))
        else:
            self.jump("again" if self.crossed() else "continue")

    def leave(self, scope: Mapping[str, object]) -> None:
        """The end of the body is reached."""
        if self.reached():
            self._exit(Op.CONTINUE, read(scope, self.names))

    def _exit(self, kind: Op, state: State) -> None:
        self.frame.exit(kind, state)


@final
class While(Loop):
    """A ``while`` loop."""

    def __init__(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        super().__init__(recorder, names)
        self._done = False

    def _resume(self) -> bool:
        if self._left():
            return False
        if not self.traced:
            if self._done or self.recorder.builder.ended:  # by a jump to a traced loop further out
                return False
            self._count()
            return True
        if self._frame is None:
            self._frame = Frame(self.recorder, self.names, self._before)
        else:
            self._end_unreachable()
            after = self._frame.close()
            if after is not None:
                self.values = after
                return False
        self.values = self._frame.open()
        return True

    def test(self, value: object, scope: Mapping[str, object]) -> bool:
        """Whether the body is entered, by the loop's condition."""
        if self.recorder.jump is not None or self.recorder.builder.ended:
            return False
        if not self.traced:
            if isinstance(value, Scalar):
                self._begin_again()
                return False
            self._done = not value
            return not self._done
        state = read(scope, self.names)
        if not isinstance(value, Scalar):
            if not value:
                self.frame.exit(Op.BREAK, state)
            return bool(value)
        leave_unless(self.frame, truth(value), state)
        return True


@final
class ForRange(Loop):
    """A ``for`` loop over a `Range`: its counter is carried beside the variables.

    Args:
        counter: the loop variable, where it is a name that the body leaves alone.
    """

    def __init__(
        self, recorder: Recorder, bounds: Range, names: tuple[str, ...], counter: str | None
    ) -> None:
        super().__init__(recorder, names)
        self.traced = self.load = True
        self._name = counter
        self._runs = bounds.on_host and len(bounds) > 0
        self._counting = Counting(recorder, bounds)

    def _enter(self) -> bool:
        before = (self._counting.start, *self._before)
        self._frame = Frame(self.recorder, ("the counter", *self.names), before)
        return self._open()

    def _resume(self) -> bool:
        if self.recorder.jump is not None:
            return False
        self._end_unreachable()
        after = self.frame.close()
        if after is None:
            return self._open()
        self.values = after[1:]
        return False

    def _open(self) -> bool:
        """Record an iteration."""
        counter, *rest = self.frame.open()
        assert isinstance(counter, Scalar)
        self.values = tuple(rest)
        self.item = counter
        ended = (counter, *self._ended(counter))
        leave_unless(self.frame, self._counting.before_end(counter), ended)
        return True

    def _ended(self, counter: Scalar) -> State:
        """The variables where the counter has reached the end.

        Behind a loop that is known to run, the loop variable has its last value.
        """
        if self._name is None or not self._runs:
            return self.values
        place = self.names.index(self._name)
        if self.values[place] is not UNSET:
            return self.values
        last = self._counting.before(counter)
        return (*self.values[:place], last, *self.values[place + 1 :])

    def _exit(self, kind: Op, state: State) -> None:
        if kind is Op.BREAK:
            self.frame.exit(kind, (self.item, *state))
            return
        after = self._counting.after(self.item)
        if self._counting.may_wrap:
            advanced = self._counting.advanced(self.item, after)
            leave_unless(self.frame, advanced, (self.item, *state))
        self.frame.exit(kind, (after, *state))


@final
class ForEach(Loop):
    """A ``for`` loop over something of the host: its body is recorded once for each item.

    Once it is traced, all iterations stand in one recorded loop that runs once, which ``break``
    leaves; where there is a ``continue``, each stands in another that it leaves.

    Args:
        continues: the body has a ``continue``.
    """

    def __init__(
        self, recorder: Recorder, iterable: object, names: tuple[str, ...], continues: bool
    ) -> None:
        super().__init__(recorder, names)
        self.item: object = None
        self._continues = continues
        self._iteration: Frame | None = None
        self._items = _host_items(iterable)

    def _enter(self) -> bool:
        return self._next_item()

    def _resume(self) -> bool:
        if self._left():
            return False
        if self._iteration is not None:
            self._end_unreachable()
            self._state = closed(self._iteration)
            self._iteration = None
        return self._next_item()

    def _begin_again(self) -> None:
        super()._begin_again()
        self._frame = self._once()
        self._state = self._before

    def _once(self) -> Frame:
        """An open loop that runs once and carries nothing: a place to jump out of."""
        frame = Frame(self.recorder, self.names, (UNSET,) * len(self.names))
        frame.open()
        return frame

    def _next_item(self) -> bool:
        ended = self.recorder.builder.ended
        if self._iterations == len(self._items) or ended:
            if self.traced:
                if not ended:
                    self.frame.exit(Op.BREAK, self._state)
                self.values = closed(self.frame)
            return False
        self.item = self._items[self._iterations]
        self._count()
        if self.traced:
            self.values = self._state
            if self._continues:
                self._iteration = self._once()
        return True

    def _exit(self, kind: Op, state: State) -> None:
        if kind is Op.BREAK:
            self.frame.exit(kind, state)
        elif self._iteration is not None:
            self._iteration.exit(Op.BREAK, state)
        else:  # the end of the body
            self._state = state


def _host_items(iterable: object) -> list[object]:
    if isinstance(iterable, Scalar):
        fail("a number is iterated", "write `for i in range(n)`")
    items: list[object] = []
    for item in iterable:  # type: ignore[attr-defined]  # raises TypeError for what is not iterable
        items.append(item)
        if len(items) > MAX_HOST_ITERATIONS:
            fail(f"a host iterable has more than {MAX_HOST_ITERATIONS} items")
    return items


@final
class Block(Loop):
    """A function that returns early: in the root function a traced return ends the invocation;
    elsewhere the function becomes a loop that runs once, left with the returned value."""

    def __init__(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        super().__init__(recorder, names)
        self._root = len(recorder.calls) == 1
        self.result: object = None

    def _resume(self) -> bool:
        recorder = self.recorder
        if self.jumped() == "again":
            self._begin_again()
            self._frame = Frame(recorder, (RETURNED,), (UNSET,))
            self._frame.open()
            self.values = self._before
            return True
        if self.traced and recorder.jump is None:
            if not recorder.builder.ended:
                self.frame.exit(Op.BREAK, (None,))
            self.result = closed(self.frame)[0]
        return False

    def return_(self, value: object) -> None:
        if self.traced:
            self.frame.exit(Op.BREAK, (value,))
        elif not self.crossed():
            self.result = value
            self.jump("return")
        elif self._root:
            if value is not None:
                fail("a kernel returns a value", "kernels return None: store results to an array")
            self.recorder.builder.end(Op.RETURN)
        else:
            self.jump("again")
