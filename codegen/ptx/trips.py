"""Loops over a range with a step count their iterations, so that the assembler can unroll them.

Before::

    loop (%i = %start, %s = %x) {
        if (ge %i %n) { break %s }
        %t = ... %i ... %s ...
        if (le (add %i %step) %i) { break %t }         # the counter wraps
        continue (add %i %step) %t
    }

After::

    loop (%k = 0, %i = %start, %s = %x) {
        if (ge %k %trips) { break %s }
        %t = ... %i ... %s ...
        continue (add %k 1) (add %i %step) %t
    }

with the number of iterations computed before: a division, so not for a loop in another one. A loop
that is not unrolled waits for each of its loads in turn, and one with a second exit, or a step that
is no constant, is not.

The second exit may be missing where the counter surely does not wrap: where the limit and a step
above 0 are known to be small, as extents and counts of invocations are (`index_reach`).
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.ptx.loops import compared, is_plain, leave_where, varying, way_out
from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType, index_reach
from khaljit.tracer.ir import Region, Trace, Value
from khaljit.tracer.nesting import Place, places
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["count_trips"]


def count_trips(trace: Trace) -> Trace:
    """Count the iterations of the loops of a trace that are told by a step."""
    found = {}
    for place in places(trace.body):
        for effect in place.region.body:
            if effect.op is Op.LOOP and not _in_loop(place):
                stride = _match(effect, trace)
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
    """What a loop goes through: from the start of a parameter to a limit by a step.

    ``checks`` says whether its body ends in a second exit.
    """

    number: int
    limit: Value
    step: Value
    checks: bool


def _match(loop: Value, trace: Trace) -> _Stride | None:
    """What a loop goes through, if it has the form above."""
    (body,) = loop.regions
    if not body.body or body.end.op is not Op.CONTINUE:
        return None
    head, last = way_out(body.body[0]), way_out(body.body[-1])
    checks = len(body.body) > 1 and last is not None
    if head is None or not all(map(is_plain, body.body[1 : len(body.body) - checks])):
        return None
    counter, limit = compared(head[0], Op.GE, Op.LT)
    if counter not in body.params or counter is None or limit is None:
        return None
    number = body.params.index(counter)
    step = _step(counter, body.end.args[number])
    inside = varying(body)
    if step is None or not counter.type.is_signed or limit in inside or step in inside:
        return None
    stride = _Stride(number, limit, step, checks)
    if not checks:
        known = constant(step) not in (None, 1) or _counts(step, trace)
        return stride if known and _most(limit, trace) + _most(step, trace) <= 0 else None
    assert last is not None
    following, same = compared(last[0], Op.LE, Op.GT)
    wraps = following is body.end.args[number] and same is counter
    return stride if wraps and _ends_alike(body, head[1], last[1], inside) else None


def _ends_alike(
    body: Region, head: tuple[Value, ...], last: tuple[Value, ...], inside: frozenset[Value]
) -> bool:
    """Whether leaving at the end is the same as going on and leaving at the head."""
    after = dict(zip(body.params, body.end.args, strict=True))
    return all(
        (after.get(one) is other) if one in after else (one is other and one not in inside)
        for one, other in zip(head, last, strict=True)
    )


def _step(counter: Value, following: Value) -> Value | None:
    """What is added to a counter."""
    if following.op is not Op.ADD or counter not in following.args:
        return None
    first, second = following.args
    step = second if first is counter else first
    number = constant(step)
    return step if step is not counter and (number is None or number > 0) else None


def _most(value: Value, trace: Trace) -> int:
    """By how much an extent, count or constant may be above half of what its type holds."""
    reach = index_reach(value.type.bits)
    number = constant(value)
    if number is not None:
        return int(number) - reach
    if value.op is Op.SHAPE or _counts(value, trace):
        return 0
    return reach


def _counts(value: Value, trace: Trace) -> bool:
    """Whether a value is the number of invocations along an axis."""
    factor = 1
    while value.op in (Op.MUL, Op.SHL) and (number := constant(value.args[1])) is not None:
        factor *= int(number) if value.op is Op.MUL else 1 << int(number)
        value = value.args[0]
    if value.op is not Op.ID or not isinstance(value.attr, tuple):
        return False
    name, axis = value.attr
    return bool(name == "num_workgroups" and factor == (trace.workgroup or (1, 1, 1))[axis])


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
        self.bind(body.params, tuple(params))
        leaving = self.all(body.body[0].regions[0].end.args)
        leave_where(builder, self._write.ge(count, trips), leaving)
        inner = body.body[1 : len(body.body) - stride.checks]
        yield self.body(Region((), inner, body.end))
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
