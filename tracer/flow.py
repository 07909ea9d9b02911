"""Control flow while recording: what the hooks in rewritten source drive.

The rewriter (``rewrite.py``) turns every ``if``, ``while``, ``for`` and every function with early
returns into a Python loop over a `Construct`::

    c = hooks.if_(test, ("x", "y"))          # names assigned inside
    c.start(locals())
    while c.next():
        x, y = c.values                      # where c.load says so
        if c.arm: ...
        else: ...
        c.leave(locals())
    x, y = c.values

A construct begins on the host: plain Python conditions and iterables run as plain Python. It
becomes *traced* when a run-time value decides: an ``if`` at its test, a loop at its test or at
the first jump that stands under a traced branch. Becoming traced late means that what was
recorded since its start is forgotten and recorded again.

What is recorded of a loop while it is open is a `Frame` (``frames.py``). A function with early
returns becomes a loop that runs once, which ``passes/once.py`` turns into branches.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final, final

from khaljit.tracer.arithmetic import binary, compare, truth
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.dtypes import DType, MixError, index, promote
from khaljit.tracer.errors import TraceError
from khaljit.tracer.frames import Exit, Frame, Merge, State, closed, leave_unless, read
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.recorder import Recorder, recording, user_frame, user_site
from khaljit.tracer.state import UNSET

__all__ = ["Block", "Chain", "Construct", "For", "If", "Range", "While"]

MAX_HOST_ITERATIONS: Final = 1_000_000


class Construct:
    """A control-flow construct of the user's source while it runs.

    Attributes:
        traced: decided by run-time values, so that it is recorded.
        load: the variables are to be read from ``values`` now.
        values: the variables assigned inside, in the order of their names.
    """

    def __init__(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        self.recorder = recorder
        self.names = names
        self.traced = False
        self.load = False
        self.values: State = ()

    def _end_unreachable(self) -> None:
        """Nothing can follow in this region."""
        if not self.recorder.builder.ended:
            self.recorder.builder.end(Op.RETURN)

    def crossed(self) -> bool:
        """Whether a jump to this construct crosses a traced one."""
        constructs = self.recorder.constructs
        return any(inner.traced for inner in constructs[constructs.index(self) + 1 :])

    def jump(self, kind: str) -> None:
        """Unwind the host's control flow to this construct."""
        self.recorder.jump = (self, kind)

    def jumped(self) -> str | None:
        """The jump that arrives here, if one does."""
        jump = self.recorder.jump
        if jump is not None and jump[0] is self:
            self.recorder.jump = None
            return jump[1]
        return None


@final
class If(Construct):
    """An ``if`` statement."""

    def __init__(self, recorder: Recorder, test: object, names: tuple[str, ...]) -> None:
        super().__init__(recorder, names)
        self.arm = True
        self._stage = 0
        if isinstance(test, Scalar):
            self.traced = self.load = True
            self._condition = truth(test)
        elif isinstance(test, Vector):
            fail("a vector is used as a condition", "reduce it: kj.any(v) or kj.all(v)")
        else:
            self.arm = bool(test)

    def start(self, scope: Mapping[str, object]) -> None:
        if self.traced:
            self._before = read(scope, self.names)
            self._fallen: list[Exit | None] = [None, None]
            self._regions: list[Any] = []
            self.site = self.recorder.builder.at

    def next(self) -> bool:
        if not self.traced:
            self._stage += 1
            return self._stage == 1
        recorder, builder = self.recorder, self.recorder.builder
        if self._stage == 0:
            recorder.constructs.append(self)
        else:
            if recorder.jump is not None:  # an outer construct starts again: forget all this
                recorder.constructs.remove(self)
                self.values = self._before
                return False
            if not builder.ended:
                self._end_unreachable()
            self._regions.append(builder.close())
        if self._stage == 2:
            recorder.constructs.pop()
            self._merge()
            return False
        self.arm = self._stage == 0
        self._stage += 1
        self.values = self._before
        builder.open()
        return True

    def leave(self, scope: Mapping[str, object]) -> None:
        """The end of an arm is reached."""
        if self.traced and self.recorder.jump is None and not self.recorder.builder.ended:
            end = self.recorder.builder.end(Op.YIELD)
            self._fallen[0 if self.arm else 1] = Exit(end, read(scope, self.names))

    def _merge(self) -> None:
        recorder, builder = self.recorder, self.recorder.builder
        fallen = [exit for exit in self._fallen if exit is not None]
        builder.at = self.site
        if not fallen:
            builder.if_(self._condition, *self._regions)
            self._end_unreachable()
            self.values = (UNSET,) * len(self.names)
            return
        changed = self._changed(fallen)
        names = tuple(self.names[k] for k in changed)
        states = [tuple(exit.state[k] for k in changed) for exit in fallen]
        merged = Merge(recorder, names, states, "at the branch", always=len(fallen) == 1)
        for path, exit in enumerate(fallen):
            builder.complete(exit.end, tuple(merged.values(path)))
        results = builder.if_(self._condition, *self._regions)
        after = list(self._before)
        for k, value in zip(changed, merged.assemble(results), strict=True):
            after[k] = value
        self.values = tuple(after)

    def _changed(self, fallen: list[Exit]) -> list[int]:
        """Positions of the variables that some path has assigned."""
        return [
            k
            for k, value in enumerate(self._before)
            if any(exit.state[k] is not value for exit in fallen)
        ]


@final
class Chain:
    """An ``if`` with ``elif``: each `If` stands in the ``else`` of the one before it.

    One Python loop drives them all, since Python nests only twenty loops. Its body does what
    ``step`` says: the arm of test k where it is 2k, the test after it where it is 2k + 1 (or
    the ``else``, at the end).
    """

    def __init__(self, recorder: Recorder, test: object, names: tuple[str, ...]) -> None:
        self.recorder = recorder
        self.names = names
        self.load = False
        self.values: State = ()
        self.step = 0
        self._stack = [If(recorder, test, names)]
        self._scope: Mapping[str, object] = {}

    def start(self, scope: Mapping[str, object]) -> None:
        self._scope = scope
        self._stack[-1].start(scope)

    def next(self) -> bool:
        while True:
            top = self._stack[-1]
            if top.next():
                self.load, self.values = top.load, top.values
                self.step = 2 * (len(self._stack) - 1) + (not top.arm)
                return True
            self._stack.pop()
            if top.traced:
                self._scope = {**self._scope, **dict(zip(self.names, top.values, strict=True))}
                self.load = True
            if not self._stack:
                self.values = read(self._scope, self.names)
                return False
            self._stack[-1].leave(self._scope)

    def test(self, value: object, scope: Mapping[str, object]) -> None:
        """The test of an ``elif``."""
        self._stack.append(If(self.recorder, value, self.names))
        self._stack[-1].start(scope)

    def leave(self, scope: Mapping[str, object]) -> None:
        """The end of an arm is reached, or that of a test, which begins an arm."""
        self._scope = scope
        top = self._stack[-1]
        if self.step == 2 * (len(self._stack) - 1) + (not top.arm):
            top.leave(scope)


class Loop(Construct):
    """What ``while``, ``for`` and functions share: host first, traced when need be."""

    def __init__(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        super().__init__(recorder, names)
        self.frame: Frame | None = None
        self._iterations = 0
        self._started = False
        self.done = False

    def start(self, scope: Mapping[str, object]) -> None:
        self._before = read(scope, self.names)
        self._snapshot = self.recorder.builder.snapshot()
        self._counts = dict(self.recorder.counts)
        self._frames = len(self.recorder.frames)
        self._state = self._before

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

    def _exit(self, kind: Op, state: State) -> None:
        assert self.frame is not None
        self.frame.exit(kind, state)

    def _once(self) -> Frame:
        """An open loop that runs once and carries nothing: a place to jump out of."""
        frame = Frame(self.recorder, self.names, (UNSET,) * len(self.names))
        frame.open()
        return frame

    def _finish(self) -> None:
        self.recorder.constructs.remove(self)


@final
class While(Loop):
    """A ``while`` loop."""

    def next(self) -> bool:
        recorder = self.recorder
        if not self._started:
            self._started = True
            recorder.constructs.append(self)
            return True
        if recorder.jump is not None:
            kind = self.jumped()
            if kind is None or kind == "break":
                self._finish()
                return False
            if kind == "again":
                self._begin_again()
        if not self.traced:
            if self.done or recorder.builder.ended:  # by a jump to a traced construct further out
                self._finish()
                return False
            self._count()
            return True
        if self.frame is None:
            self.frame = Frame(recorder, self.names, self._before)
        else:
            self._end_unreachable()
            after = self.frame.close()
            if after is not None:
                self.values = after
                self._finish()
                return False
        self.values = self.frame.open()
        return True

    def test(self, value: object, scope: Mapping[str, object]) -> bool:
        """Whether the body is entered, by the loop's condition."""
        if self.recorder.jump is not None or self.recorder.builder.ended:
            return False
        if not self.traced:
            if isinstance(value, Scalar):
                self._begin_again()
                return False
            self.done = not value
            return not self.done
        assert self.frame is not None
        state = read(scope, self.names)
        if not isinstance(value, Scalar):
            if not value:
                self.frame.exit(Op.BREAK, state)
            return bool(value)
        leave_unless(self.frame, truth(value), state)
        return True

    def leave(self, scope: Mapping[str, object]) -> None:
        """The end of the body is reached."""
        if self.traced and self.recorder.jump is None and not self.recorder.builder.ended:
            assert self.frame is not None
            self.frame.exit(Op.CONTINUE, read(scope, self.names))


@final
class Range:
    """``range`` inside a kernel; iterated on the host when its ends are Python numbers, and where
    kernels run as they are.

    ``forward`` says that a run-time step is known to be positive.
    """

    def __init__(self, start: Any, stop: Any, step: Any, forward: bool = False) -> None:
        self.start, self.stop, self.step, self.forward = start, stop, step, forward

    @property
    def on_host(self) -> bool:
        return all(type(end) is int for end in (self.start, self.stop, self.step))

    def host(self) -> range:
        if not self.on_host:
            fail(
                "a range over run-time values is used as a list of numbers",
                "use it in a `for` statement",
            )
        return range(self.start, self.stop, self.step)

    def __iter__(self) -> Any:
        recorder = recording()
        if recorder is None or not recorder.steps or (self.on_host and _in_comprehension()):
            return iter(self.host())
        dtype = _range_type(self)
        start, stop, step = map(operator.index, (self.start, self.stop, self.step))
        numbers = range(start, stop, step) if step else ()  # as recorded loops have it
        return (Scalar(recorder, recorder.builder.const(dtype, number)) for number in numbers)

    def __len__(self) -> int:
        return len(self.host())

    def __getitem__(self, key: int) -> int:
        return self.host()[key]


@final
class For(Loop):
    """A ``for`` loop: recorded over a `Range`, repeated on the host over anything else.

    Args:
        continues: the body has a ``continue``.
        counter: the loop variable, where it is a name that the body leaves alone.
    """

    def __init__(
        self,
        recorder: Recorder,
        iterable: object,
        names: tuple[str, ...],
        continues: bool,
        counter: str | None,
    ) -> None:
        super().__init__(recorder, names)
        self.item: object = None
        self._continues = continues
        self._name = counter
        self._inner: Frame | None = None
        if isinstance(iterable, Range):
            self.traced = self.load = True
            self._range: Range | None = iterable
            self._bounds(iterable)
        else:
            self._range = None
            self._items = _host_items(iterable)

    def _bounds(self, bounds: Range) -> None:
        """The ends of a recorded loop in one type."""
        recorder = self.recorder
        dtype = _range_type(bounds)
        self._start = _as_type(recorder, bounds.start, dtype)
        self._stop = _as_type(recorder, bounds.stop, dtype)
        self._step = (
            bounds.step if type(bounds.step) is int else _as_type(recorder, bounds.step, dtype)
        )

    def next(self) -> bool:
        if self._range is not None:
            return self._next_recorded()
        recorder = self.recorder
        if not self._started:
            self._started = True
            recorder.constructs.append(self)
        elif recorder.jump is not None:
            kind = self.jumped()
            if kind is None or kind == "break":
                self._finish()
                return False
            if kind == "again":
                self._begin_again()
                self.frame = self._once()
                self._state = self._before
        elif self.traced:
            self._close_iteration()
        return self._next_item()

    def _close_iteration(self) -> None:
        if self._inner is not None:
            self._end_unreachable()
            self._state = closed(self._inner)
            self._inner = None

    def _next_item(self) -> bool:
        recorder = self.recorder
        if self._iterations == len(self._items) or recorder.builder.ended:
            if self.traced:
                self._close_block()
            self._finish()
            return False
        self.item = self._items[self._iterations]
        self._count()
        if self.traced:
            self.values = self._state
            if self._continues:
                self._inner = self._once()
        return True

    def _close_block(self) -> None:
        assert self.frame is not None
        if not self.recorder.builder.ended:
            self.frame.exit(Op.BREAK, self._state)
        self.values = closed(self.frame)

    def _exit(self, kind: Op, state: State) -> None:
        if self._range is not None:
            self._jump_recorded(kind, state)
        elif kind is Op.CONTINUE:
            assert self._inner is not None
            self._inner.exit(Op.BREAK, state)
        else:
            assert self.frame is not None
            self.frame.exit(kind, state)

    def leave(self, scope: Mapping[str, object]) -> None:
        """The end of the body is reached."""
        if not self.traced or self.recorder.jump is not None or self.recorder.builder.ended:
            return
        state = read(scope, self.names)
        if self._range is not None:
            self._jump_recorded(Op.CONTINUE, state)
        elif self._inner is not None:
            self._inner.exit(Op.BREAK, state)
        else:
            self._state = state

    # Recorded over a Range: the counter is carried beside the variables.

    def _next_recorded(self) -> bool:
        recorder = self.recorder
        if not self._started:
            self._started = True
            recorder.constructs.append(self)
            self.frame = Frame(recorder, ("the counter", *self.names), (self._start, *self._before))
        else:
            if recorder.jump is not None:
                self._finish()
                return False
            assert self.frame is not None
            self._end_unreachable()
            after = self.frame.close()
            if after is not None:
                self.values = after[1:]
                self._finish()
                return False
        assert self.frame is not None
        counter, *rest = self.frame.open()
        assert isinstance(counter, Scalar)
        self.values = tuple(rest)
        self.item = self._counter = counter
        ended = (counter, *self._ended(counter))
        leave_unless(self.frame, truth(self._goes_on(counter)), ended)
        return True

    def _ended(self, counter: Scalar) -> State:
        """The variables where the counter has reached the end.

        Behind a loop that is known to run, the loop variable has its last value.
        """
        assert self._range is not None
        if self._name is None or not self._range.on_host or len(self._range) == 0:
            return self.values
        place = self.names.index(self._name)
        if self.values[place] is not UNSET:
            return self.values
        last = binary(Op.SUB, counter, self._step)
        return (*self.values[:place], last, *self.values[place + 1 :])

    def _goes_on(self, counter: Scalar) -> Any:
        """Whether the counter is still before the end."""
        upward = compare(Op.LT, counter, self._stop)
        if type(self._step) is int:
            return upward if self._step > 0 else compare(Op.GT, counter, self._stop)
        assert self._range is not None
        if self._range.forward:
            return upward
        downward = compare(Op.GT, counter, self._stop)
        up, down = compare(Op.GT, self._step, 0), compare(Op.LT, self._step, 0)
        return (upward & up) | (downward & down)

    def _jump_recorded(self, kind: Op, state: State) -> None:
        assert self.frame is not None
        if kind is Op.BREAK:
            self.frame.exit(kind, (self._counter, *state))
            return
        after = binary(Op.ADD, self._counter, self._step)
        if self._step not in (1, -1) if type(self._step) is int else True:
            # Past the largest number of the type the counter would wrap and never end.
            leave_unless(self.frame, truth(self._advanced(after)), (self._counter, *state))
        self.frame.exit(kind, (after, *state))

    def _advanced(self, after: Scalar) -> Any:
        """Whether the counter moved in the direction of the step."""
        upward = compare(Op.GT, after, self._counter)
        downward = compare(Op.LT, after, self._counter)
        if type(self._step) is int:
            return upward if self._step > 0 else downward
        assert self._range is not None
        if self._range.forward:
            return upward
        up = compare(Op.GT, self._step, 0)
        return (upward & up) | (downward & ~up)


def _in_comprehension() -> bool:
    """Whether a comprehension iterates, which is repeated on the host."""
    frame = user_frame()
    return frame is not None and frame.f_code.co_name.startswith("<")


def _range_type(bounds: Range) -> DType:
    """The type of the counter: that of the ends that have one, else ``index``."""
    dtype: DType | None = None
    for end in (bounds.start, bounds.stop, bounds.step):
        if not isinstance(end, Scalar):
            continue
        if not end.dtype.is_integer:
            fail(f"range of {end.dtype.name}", "its ends are integers: cast with kj.i32(...)")
        try:
            dtype = end.dtype if dtype is None else promote(dtype, end.dtype)
        except MixError as error:
            fail(f"range over mixed types: {error}", f"cast an end: {' or '.join(error.mends)}")
    return dtype or index


def _as_type(recorder: Recorder, value: object, dtype: DType) -> Scalar:
    scalar = to_scalar(recorder, value, dtype)
    return Scalar(recorder, recorder.builder.cast(scalar.value, dtype))


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

    def next(self) -> bool:
        recorder = self.recorder
        if not self._started:
            self._started = True
            recorder.constructs.append(self)
            return True
        kind = self.jumped() if recorder.jump is not None else None
        if kind == "again":
            self._begin_again()
            self.frame = Frame(recorder, ("the returned value",), (UNSET,))
            self.frame.open()
            self.values = self._before
            return True
        if self.traced:
            assert self.frame is not None
            if recorder.jump is None:
                if not recorder.builder.ended:
                    self.frame.exit(Op.BREAK, (None,))
                self.result = closed(self.frame)[0]
        self._finish()
        return False

    def return_(self, value: object) -> None:
        if self.traced:
            assert self.frame is not None
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
