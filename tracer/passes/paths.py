"""What is known on the way to an effect: the conditions that have been decided before it.

In the arms of an ``if`` its condition is known; behind an ``if`` of which only one arm goes on, the
condition is known to the end of the region. Values never change, so what was known at the start of
a loop holds in it and behind it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from khaljit.tracer.ir import Region, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["PathRewriter", "literals"]


def literals(condition: Value, truth: bool) -> Iterator[tuple[Value, bool]]:
    """The conditions that follow from one: itself, and the parts of a conjunction that holds.

    ``a and b`` being true, so are a and b; ``a or b`` being false, so are a and b.
    """
    stack = [(condition, truth)]
    while stack:
        value, holds = stack.pop()
        yield value, holds
        if value.op is Op.NOT:
            stack.append((value.args[0], not holds))
        elif value.op is (Op.AND if holds else Op.OR):
            stack.extend((arg, holds) for arg in reversed(value.args))


class PathRewriter(Rewriter):
    """A rewriter that is told which conditions hold where it is."""

    @abstractmethod
    def assume(self, condition: Value, truth: bool) -> None:
        """From here on, a new value of type bool is known."""

    @abstractmethod
    def mark(self) -> int:
        """A mark of what is known now."""

    @abstractmethod
    def forget(self, mark: int) -> None:
        """Forget what became known since the mark."""

    def if_(self, value: Value) -> Walk[tuple[Value, ...]]:
        condition = self.value(value.args[0])
        mark = self.mark()
        self.assume(condition, True)
        then = yield from self.region(value.regions[0])
        self.forget(mark)
        self.assume(condition, False)
        orelse = yield from self.region(value.regions[1])
        self.forget(mark)
        self.about(value)
        results = self.joined(condition, then, orelse)
        goes_on = then.end.op is Op.YIELD, orelse.end.op is Op.YIELD
        if goes_on[0] is not goes_on[1]:
            self.assume(condition, goes_on[0])
        return results

    def joined(self, condition: Value, then: Region, orelse: Region) -> tuple[Value, ...]:
        """What an ``if`` of these arms gives."""
        return self.branch(condition, then, orelse)

    def taken(self, value: Value, truth: bool) -> Walk[tuple[Value, ...]]:
        """The arm of an ``if`` whose condition is known, in place of the ``if``."""
        arm = value.regions[0 if truth else 1]
        yield from self.body(arm)
        if self.builder.ended:
            return ()
        if arm.end.op is Op.YIELD:
            return self.all(arm.end.args)
        self.end(arm.end)
        return ()

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        mark = self.mark()
        results = yield from super().loop(value)
        self.forget(mark)
        return results
