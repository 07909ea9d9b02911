"""Loops over a range with a step count their iterations, so that the assembler can unroll them.

Before, where ``%step`` is above 0 or the loop is left after one iteration::

    loop (%i = %start, %s = %x) {
        if (ge %i %n) { break %s }
        %t = ... %i ... %s ...
        if (le (add %i %step) %i) { break %t }         # the counter would wrap
        continue (add %i %step) %t
    }

After::

    loop (%k = 0, %i = %start, %s = %x) {
        if (ge %k %trips) { break %s }
        %t = ... %i ... %s ...
        continue (add %k 1) (add %i %step) %t
    }

with the number of iterations computed before: a division, so not for a loop in another one. A loop
that has a second exit is not unrolled, and waits for each of its loads in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Region, Trace, Value, effects
from khaljit.tracer.nesting import Place, places
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["count_trips"]

# What keeps a loop from being unrolled, or makes that useless.
_HEAVY: Final = frozenset({Op.LOOP, Op.BARRIER, Op.SUBGROUP, Op.BREAK, Op.CONTINUE, Op.RETURN})


def count_trips(trace: Trace) -> Trace:
    """Count the iterations of the loops of a trace that are told by a step."""
    found = {}
    for place in places(trace.body):
        for effect in place.region.body:
            if effect.op is Op.LOOP and not _in_loop(place):
                stride = _match(effect)
                if stride is not None:
                    found[effect] = stride
    return _Trips(trace, found).run() if found else trace


def _in_loop(place: Place | None) -> bool:
    while place is not None:
        if place.is_loop:
            return True
        place = place.parent
    return False


@final
@dataclass(frozen=True, slots=True)
class _Stride:
    """What a loop goes through: from a parameter's start to a limit by a step."""

    number: int
    limit: Value
    step: Value


def _match(loop: Value) -> _Stride | None:
    """What a loop goes through, if it has the form above."""
    (body,) = loop.regions
    if len(body.body) < 2 or body.end.op is not Op.CONTINUE:
        return None
    head, last = _exit(body.body[0]), _exit(body.body[-1])
    if head is None or last is None or any(map(_is_heavy, body.body[1:-1])):
        return None
    counter, limit = _compared(head[0], Op.GE, Op.LT)
    following, same = _compared(last[0], Op.LE, Op.GT)
    if counter not in body.params or same is not counter or following is None or limit is None:
        return None
    number = body.params.index(counter)
    step = _step(counter, following)
    if body.end.args[number] is not following or step is None or not counter.type.is_signed:
        return None
    inside = _inside(body)
    if limit in inside or step in inside:
        return None
    after = dict(zip(body.params, body.end.args, strict=True))
    leaves = (after.get(given) if given in after else given for given in head[1])
    if any(given in inside and given not in after for given in head[1]):
        return None
    return _Stride(number, limit, step) if tuple(leaves) == last[1] else None


def _exit(branch: Value) -> tuple[Value, tuple[Value, ...]] | None:
    """The condition of a branch that is no more than a way out, and what leaves there."""
    if branch.op is not Op.IF or any(arm.body for arm in branch.regions):
        return None
    then, orelse = branch.regions
    if then.end.op is not Op.BREAK or orelse.end.op is not Op.YIELD:
        return None
    return branch.args[0], then.end.args


def _compared(condition: Value, op: Op, opposite: Op) -> tuple[Value | None, Value | None]:
    """The operands of a comparison, or of its opposite negated."""
    if condition.op is Op.NOT:
        condition, op = condition.args[0], opposite
    return condition.args if condition.op is op else (None, None)  # type: ignore[return-value]  # a pair


def _step(counter: Value, following: Value) -> Value | None:
    """What is added to a counter."""
    if following.op is not Op.ADD or counter not in following.args:
        return None
    first, second = following.args
    step = second if first is counter else first
    number = constant(step)
    return step if step is not counter and (number is None or number > 0) else None


def _is_heavy(effect: Value) -> bool:
    return effect.op in _HEAVY or any(
        inner.op in _HEAVY for region in effect.regions for inner in effects(region)
    )


def _inside(body: Region) -> set[Value]:
    """What depends on an iteration: parameters, effects, and what is computed from those."""
    inside = set(body.params)
    inside.update(effects(body))
    stack = [arg for effect in effects(body) for arg in effect.args]
    order: list[Value] = []
    seen: set[Value] = set()
    while stack:
        value = stack[-1]
        missing = [arg for arg in value.args if arg not in seen]
        if value in seen or not missing:
            stack.pop()
            if value not in seen:
                seen.add(value)
                order.append(value)
        else:
            stack.extend(missing)
    for value in order:
        if any(arg in inside for arg in value.args):
            inside.add(value)
    return inside


@final
class _Trips(Rewriter):
    def __init__(self, trace: Trace, found: dict[Value, _Stride]) -> None:
        super().__init__(trace)
        self._found: Final = found
        self._write: Final = Writer(self.builder, self._plain)

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        stride = self._found.get(value)
        if stride is None:
            results: tuple[Value, ...] = yield super().loop(value)
            return results
        builder, (body,) = self.builder, value.regions
        initial = self.all(value.args)
        trips = self._trips(initial[stride.number], stride)
        zero = builder.const(trips.type, 0)
        count, *params = builder.open((trips.type, *(param.type for param in body.params)))
        self.values.update(zip(body.params, params, strict=True))
        builder.open()
        builder.end(Op.BREAK, self.all(body.body[0].regions[0].end.args))
        leave = builder.close()
        builder.open()
        builder.end(Op.YIELD)
        builder.if_(self._write.ge(count, trips), leave, builder.close())
        yield self.body(Region((), body.body[1:-1], body.end))
        builder.end(Op.CONTINUE, (self._write.add(count, 1), *self.all(body.end.args)))
        return builder.loop((zero, *initial), builder.close(), self.types(value))

    def _trips(self, start: Value, stride: _Stride) -> Value:
        """How many iterations there are; one where the step is not above 0."""
        w, limit, step = self._write, self.value(stride.limit), self.value(stride.step)
        unsigned = UNSIGNED[start.type.bits]
        distance = w.sub(w.sub(w.bitcast(limit, unsigned), w.bitcast(start, unsigned)), 1)
        number = constant(step)
        if number is None:
            forward = w.gt(step, 0)
            by = w.select(forward, w.bitcast(step, unsigned), 1)
            whole = w.op(Op.TRUNCDIV, w.select(forward, distance, 0), by)
        else:
            whole = w.op(Op.TRUNCDIV, distance, int(number))
        return w.select(w.lt(start, limit), w.add(whole, 1), w.const(unsigned, 0))
