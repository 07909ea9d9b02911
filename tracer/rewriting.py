"""Walks a trace and rebuilds it: the machinery under every pass.

A pass is a `Rewriter` that overrides what it changes; what it leaves alone is copied. Laws:

* Every value of the old trace is rebuilt once, operands before users, so a pass is linear in the
  size of the trace. Chains of operations are followed without recursion.
* What would be rebuilt as it was is not: values, effects, regions and the trace itself stay the
  same objects where nothing in them changes. So a pass that finds nothing to do gives the trace
  back, and the next one has little to build. Where effects are copied more than once, each copy is
  new (`copying`).
* Regions nest as deep as the user likes. Methods that walk them are therefore written as
  generators: they yield the walk of a nested ``if`` or ``loop`` and are sent its outcome; `drive`
  keeps the stack of suspended walks in a list, so no depth raises RecursionError. What is no
  deeper is walked by ``yield from``, which goes past `drive`.
* A new value takes the source site of the old value that it was built for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final, TypeVar

from khaljit.tracer.build import Builder, pool_of
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Region, Trace, Value
from khaljit.tracer.ops import OPS, Op

__all__ = ["Rewriter", "Walk", "drive"]

T = TypeVar("T")

# A walk yields further walks and is sent what they return.
Walk = Generator[Any, Any, T]


def drive(walk: Walk[T]) -> T:
    """Run a walk and all that it yields to their end; gives what the walk returns."""
    stack: list[Walk[Any]] = [walk]
    outcome: Any = None
    while True:
        try:
            inner = stack[-1].send(outcome)
        except StopIteration as stop:
            stack.pop()
            outcome = stop.value
            if not stack:
                result: T = outcome
                return result
        else:
            stack.append(inner)
            outcome = None


class Rewriter:
    """Copies a trace; subclasses override `keeps`, `dtype`, `pure`, `effect`, `if_`, `loop`, `end`.

    Attributes:
        trace: the old trace.
        builder: builds the new one.
        values: the new value of each old one met so far.
        results: the new results of each old ``if`` and ``loop`` met so far.
        pooled: whether equal pure values of the old trace are one; else they become one.
        copying: effects are built more than once, so each time anew.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace: Final = trace
        pool = pool_of(trace)
        self.pooled: Final = pool is not None
        self.builder: Final = Builder(pool)
        self.values: Final[dict[Value, Value]] = {}
        self.results: Final[dict[Value, tuple[Value, ...]]] = {}
        self.copying = False
        # No pure value met so far has changed, nor will one unless what it depends on does.
        self._alike = self.pooled and type(self).pure is Rewriter.pure

    def run(self) -> Trace:
        """The new trace; the old one where nothing changes."""
        body = drive(self.region(self.trace.body))
        if body is self.trace.body:
            return self.trace
        return self.trace.having(body, self.builder.pool)

    # What a pass may change.

    def keeps(self, value: Value) -> bool:
        """Whether an old effect is rebuilt at all."""
        return True

    def dtype(self, dtype: DType) -> DType:
        """The new type for an old one, where the type is stated rather than derived."""
        return dtype

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        """The new value for an old pure one, whose new operands are ``args``."""
        return self.copy(value, args)

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        """Build the new effect for an old one without regions; gives what stands for its value."""
        dtype = value.dtype
        return self.builder.effect(
            value.op, args, value.attr, None if dtype is None else self.dtype(dtype)
        )

    def if_(self, value: Value) -> Walk[tuple[Value, ...]]:
        """Build what an ``if`` becomes; gives what stands for its results."""
        condition = self.value(value.args[0])
        then = yield from self.region(value.regions[0])
        orelse = yield from self.region(value.regions[1])
        self.about(value)
        return self.branch(condition, then, orelse)

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        """Build what a ``loop`` becomes; gives what stands for its results."""
        initial = self.all(value.args)
        body = yield from self.region(value.regions[0])
        self.about(value)
        return self.builder.loop(initial, body, self.types(value))

    def end(self, value: Value) -> None:
        """Build the end of the innermost open region."""
        args = self.all(value.args)
        self.about(value)
        self.builder.end(value.op, args)

    # What passes call.

    def about(self, value: Value) -> None:
        """What is built next is an old effect or end, and has its source site."""
        self.builder.at = value.at
        self.builder.old = None if self.copying else value

    def copy(self, value: Value, args: tuple[Value, ...]) -> Value:
        """The same pure operation on other operands."""
        dtype = value.dtype
        if dtype is not None:
            dtype = self.dtype(dtype) if OPS[value.op].result is None else None
        if self.pooled and args == value.args and (dtype is None or dtype is value.dtype):
            return value
        return self.builder.pure(value.op, args, value.attr, dtype)

    def branch(self, condition: Value, then: Region, orelse: Region) -> tuple[Value, ...]:
        """Build an ``if``. What cannot be reached behind one that goes on nowhere is left out."""
        results = self.builder.if_(condition, then, orelse)
        if then.end.op is not Op.YIELD and orelse.end.op is not Op.YIELD:
            self.builder.end(Op.RETURN)
        return results

    def types(self, value: Value) -> tuple[DType, ...]:
        """The new types of the results of an old ``if`` or ``loop``."""
        assert isinstance(value.attr, tuple)
        return tuple(self.dtype(dtype) for dtype in value.attr)

    def region(self, region: Region) -> Walk[Region]:
        """Rebuild a region as a region of its own."""
        self.enter(region)
        yield from self.contents(region)
        return self.leave(region)

    def enter(self, region: Region) -> tuple[Value, ...]:
        """Open a region for an old one; gives its parameters."""
        params = region.params
        if self.copying or not self._stay(params):
            new = self.builder.open([self.dtype(param.type) for param in params])
        else:
            new = self.builder.reopen(params)
        self.bind(params, new)
        return new

    def bind(self, old: tuple[Value, ...], new: tuple[Value, ...]) -> None:
        """From here on, these new values are what some old parameters are."""
        if old != new:
            self._alike = False
        self.values.update(zip(old, new, strict=True))

    def leave(self, region: Region) -> Region:
        """Close the region that was opened for an old one."""
        return self.builder.close(None if self.copying else region)

    def _stay(self, params: tuple[Value, ...]) -> bool:
        """Whether old parameters are those of a new region, too."""
        return all(
            [
                param.attr == position and self.dtype(param.type) is param.dtype
                for position, param in enumerate(params)
            ]
        )

    def contents(self, region: Region) -> Walk[None]:
        """Rebuild a region's effects and its end into the innermost open region."""
        yield from self.body(region)
        if not self.builder.ended:
            self.end(region.end)

    def body(self, region: Region) -> Walk[None]:
        """Rebuild a region's effects into the innermost open region, short of its end."""
        for effect in region.body:
            if not self.keeps(effect):
                continue
            if effect.regions:
                self.gives(effect, (yield self.structure(effect)))
            else:
                self.simple(effect)
            if self.builder.ended:  # what was put in place of the effect has no successor
                return

    def gives(self, node: Value, results: tuple[Value, ...]) -> None:
        """From here on, these values are what an old ``if`` or ``loop`` gives."""
        if self._alike and any([result.args != (node,) for result in results]):
            self._alike = False
        self.results[node] = results

    def structure(self, effect: Value) -> Walk[tuple[Value, ...]]:
        """Rebuild an ``if`` or ``loop``; gives what stands for its results."""
        return self.if_(effect) if effect.op is Op.IF else self.loop(effect)

    def simple(self, effect: Value) -> None:
        """Rebuild an effect without regions."""
        args = self.all(effect.args)
        self.about(effect)
        built = self.effect(effect, args)
        if built is not effect:
            self._alike = False
        if built is not None:
            self.values[effect] = built

    def forget(self, known: int) -> None:
        """Forget what was built since there were so many values: the next copy has its own."""
        while len(self.values) > known:
            self.values.popitem()

    def all(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """The new values for some old ones."""
        old = tuple(values)
        if self._alike:
            return old
        new: tuple[Any, ...] = tuple(map(self.values.get, old))
        return tuple(map(self.value, old)) if None in new else new

    def value(self, value: Value) -> Value:
        """The new value for an old one."""
        if self._alike:
            return value
        known = self.values
        found = known.get(value)
        if found is not None:
            return found
        builder, find, pure = self.builder, known.get, self.pure
        stack = [value]
        while stack:
            top = stack[-1]
            args: tuple[Any, ...] = tuple(map(find, top.args))
            if None not in args:
                stack.pop()
                builder.at = top.at
                known[top] = pure(top, args)
            elif top.op is Op.RESULT:  # of a node, which is no value itself
                assert isinstance(top.attr, int)
                known[stack.pop()] = self.results[top.args[0]][top.attr]
            else:
                stack.append(top.args[args.index(None)])
        return known[value]
