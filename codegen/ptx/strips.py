"""Counted loops run several iterations a turn, without checks, as far as all are in bounds.

Before::

    loop (%i = 0, %s = %x) {
        if (ge %i %n) { break %s }
        %a = load a at ... if (and %inside (lt (bitcast u32 %i) %extent))
        continue (add %i 1) (add %s %a)
    }

After, the loop before being what does the rest::

    %fine = and %inside (le (bitcast u32 %n) %extent)
    %stop = select %fine (and %n -4) 0
    %i0, %s0 = loop (%i = 0, %s = %x) {
        if (ge %i %stop) { break %i %s }
        %a, %b, %c, %d = load a at ... , the offsets for %i to %i + 3
        continue (add %i 4) (add (add (add (add %s %a) %b) %c) %d)
    }
    loop (%i = %i0, %s = %s0) { as before }

The loads of a turn are on their way at once, and the conditions that the loop does not change, or
that hold up to some iteration, are looked at before it. What an iteration computes, and in which
order, stays.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.ptx.loops import (
    compared,
    conditions,
    is_plain,
    leave_where,
    varying,
    way_out,
)
from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType, Kind
from khaljit.tracer.ir import Access, Region, Space, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass, replace
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["strip_loops"]

_TURN: Final = 4  # iterations of a turn; the assembler makes it four times as many where that pays
_MOST_OPERATIONS: Final = 64  # of an iteration
_MOST_CONDITIONS: Final = 8
_MOST_AHEAD: Final = 1 << 16  # of the counter, by an index
_ACCESSES: Final = frozenset({Op.LOAD, Op.STORE})


def strip_loops(trace: Trace) -> Trace:
    """Strip the innermost loops of a legal trace that read memory."""
    found = {
        effect: strip
        for effect in effects(trace.body)
        if effect.op is Op.LOOP and (strip := _match(effect)) is not None
    }
    return _Strips(trace, found).run() if found else trace


@final
@dataclass(frozen=True, slots=True)
class _Bound:
    """The counter, and so much more, is below an unsigned number."""

    ahead: int
    bound: Value


@final
@dataclass(frozen=True, slots=True)
class _Strip:
    """A loop that counts from a constant to a limit by 1.

    Attributes:
        number: of the counter among the parameters.
        start: where it begins.
        limit: what it stays below.
        holds: conditions on which all accesses of ``free`` happen in all iterations.
        free: accesses whose guards are made up of those.
    """

    number: int
    start: int
    limit: Value
    holds: tuple[Value | _Bound, ...]
    free: frozenset[Value]


def _match(loop: Value) -> _Strip | None:
    """What a loop goes through, if it is one to strip."""
    (body,) = loop.regions
    head = way_out(body.body[0]) if body.body else None
    if head is None or body.end.op is not Op.CONTINUE or not all(map(is_plain, body.body[1:])):
        return None
    counter, limit = compared(head[0], Op.GE, Op.LT)
    if counter not in body.params or counter is None or limit is None:
        return None
    number = body.params.index(counter)
    start, following = constant(loop.args[number]), body.end.args[number]
    inside = varying(body)
    if not counter.type.is_signed or start is None or start < 0 or limit in inside:
        return None
    if following.op is not Op.ADD or following.args[0] is not counter:
        return None
    if constant(following.args[1]) != 1 or len(inside) > _MOST_OPERATIONS or not _reads(body):
        return None
    holds: dict[Value | _Bound, None] = {}
    free = set()
    for access in effects(body):
        if access.op not in _ACCESSES or access.guard is None:
            continue
        parts = [_held(part, counter, inside) for part in conditions(access.guard)]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts) and len(holds | dict.fromkeys(known)) <= _MOST_CONDITIONS:
            holds |= dict.fromkeys(known)
            free.add(access)
    return _Strip(number, int(start), limit, tuple(holds), frozenset(free))


def _reads(body: Region) -> bool:
    return any(
        effect.op is Op.LOAD and effect.memory.space in (Space.ARRAY, Space.SHARED)
        for effect in effects(body)
    )


def _held(condition: Value, counter: Value, inside: frozenset[Value]) -> Value | _Bound | None:
    """What a condition asks for to hold in all iterations, if that is told before them."""
    if condition not in inside:
        return condition
    if condition.op is not Op.LT or condition.args[0].type.kind is not Kind.UNSIGNED:
        return None
    index, bound = condition.args
    if bound in inside or index.op is not Op.BITCAST:
        return None
    index = index.args[0]
    ahead = constant(index.args[1]) if index.op is Op.ADD else 0
    if (index.args[0] if index.op is Op.ADD else index) is not counter or ahead is None:
        return None
    return _Bound(int(ahead), bound) if 0 <= ahead <= _MOST_AHEAD else None


@final
class _Strips(Rewriter):
    def __init__(self, trace: Trace, found: dict[Value, _Strip]) -> None:
        super().__init__(trace)
        self._found: Final = found
        self._free: dict[Value, Access] = {}
        self._write: Final = Writer(self.builder, self._plain)

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is Op.ADD and value.type.is_integer:  # offsets that differ by a constant
            x, y = args
            add = self.builder.pure
            for a, b in ((x, y), (y, x)):
                if b.op is Op.ADD and b.args[1].op is Op.CONST:
                    return add(Op.ADD, (add(Op.ADD, (a, b.args[0])), b.args[1]))
        return self.copy(value, args)

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value not in self._free:
            return super().effect(value, args)
        return self.builder.effect(value.op, (*args[:2], *args[3:]), self._free[value], value.dtype)

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        strip = self._found.get(value)
        if strip is None:
            results: tuple[Value, ...] = yield super().loop(value)
            return results
        initial, (body,) = self.all(value.args), value.regions
        types = [param.type for param in body.params]
        stop = self._stop(strip)
        carried = params = self.builder.open(types)
        leave_where(self.builder, self._write.ge(params[strip.number], stop), params)
        self._free = {one: replace(one.access, guarded=False) for one in strip.free}
        self.copying = True
        inner, number = Region((), body.body[1:], body.end), strip.number
        for turn in range(1, 1 + _TURN):
            known = len(self.values)
            self.bind(body.params, carried)
            yield self.body(inner)
            carried = self.all(body.end.args)
            counted = self._write.add(params[number], turn)
            carried = (*carried[:number], counted, *carried[number + 1 :])
            self.forget(known)
        self._free, self.copying = {}, False
        self.builder.end(Op.CONTINUE, carried)
        reached = self.builder.loop(initial, self.builder.close(), tuple(types))
        rest = yield self.region(body)
        return self.builder.loop(reached, rest, self.types(value))

    def _stop(self, strip: _Strip) -> Value:
        """What the counter stays below while whole turns are in bounds."""
        w, limit = self._write, self.value(strip.limit)
        start = w.const(limit.type, strip.start)
        stop = w.and_(limit, -_TURN)
        if strip.start:
            whole = w.add(w.and_(w.sub(limit, start), -_TURN), start)
            stop = w.select(w.lt(start, limit), whole, start)
        for hold in strip.holds:
            stop = w.select(self._holds(hold, limit), stop, start)
        return stop

    def _holds(self, hold: Value | _Bound, limit: Value) -> Value:
        if isinstance(hold, Value):
            return self.value(hold)
        unsigned = self._write.bitcast(limit, UNSIGNED[limit.type.bits])
        return self._write.op(Op.LE, self._write.add(unsigned, hold.ahead), self.value(hold.bound))
