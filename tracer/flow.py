"""Control flow while recording: what the hooks in rewritten source drive, and its branches.

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

Loops are in ``loops.py``; what is recorded of one while it is open is a `Frame` (``frames.py``). A
function with early returns becomes a loop that runs once, which ``passes/once.py`` turns into
branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from khaljit.tracer.arithmetic import truth
from khaljit.tracer.frames import Exit
from khaljit.tracer.merges import Merge, State, read
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.recorder import Recorder
from khaljit.tracer.state import UNSET

__all__ = ["Chain", "Construct", "If"]


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

    def reached(self) -> bool:
        """Whether recorded code goes on to here, so that variables flow on."""
        return self.traced and self.recorder.jump is None and not self.recorder.builder.ended

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
        if self.reached():
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
