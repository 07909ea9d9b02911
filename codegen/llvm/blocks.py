"""Grid-stride loops whose iterations do not depend on each other go through memory in blocks.

As it is written, an invocation of such a loop goes on by the size of the grid, which on a processor
is another page of memory each time. Which invocation does what cannot be seen where an iteration
knows nothing but its number, so that here the lanes of an item take a run of iterations. Before::

    loop (%i = id global 0) {
        if (ge %i n) { break }
        ...
        continue (add %i total)
    }

After, with the ids ``first`` (of the item, along x) and ``lanes`` (of an item) that only this code
generator has::

    loop (%i = (add (mul first rows) (sub (id global 0) first))) {     # rows = ceil(n / total)
        if (ge %i (min n (mul (add first lanes) rows))) { break }
        ...
        continue (add %i lanes)
    }

Where the last item lacks lanes, and where numbers are so great that a sum might wrap, the loop runs
as it was; that is decided when the kernel runs.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, final

from khaljit.tracer.ir import Region, Space, Trace, Value, effects, values
from khaljit.tracer.ops import OPS, Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["in_blocks"]

MOST: Final = 1 << 30  # iterations and invocations, so that their sum is an i32
_FREE: Final = frozenset(
    {Op.LOAD, Op.STORE, Op.ATOMIC, Op.IF, Op.LOOP, *(Op.YIELD, Op.BREAK, Op.CONTINUE)}
)


def in_blocks(trace: Trace) -> Trace:
    """Rewrite the loop of a kernel that is nothing but a grid-stride loop."""
    stride = _find(trace)
    return trace if stride is None else _Blocks(trace, stride).run()


@final
@dataclass(frozen=True, slots=True)
class _Stride:
    """A grid-stride loop.

    Attributes:
        counter: the number of the iteration.
        limit: how many there are.
        ended: whether the counter has reached it.
        following: the next number.
        total: the invocations of the grid.
        wraps: there is a second test at the end, by which a counter that would wrap ends the loop.
    """

    loop: Value
    counter: Value
    limit: Value
    ended: Value
    following: Value
    total: Value
    wraps: bool


def _find(trace: Trace) -> _Stride | None:
    if len(trace.body.body) != 1 or trace.body.body[0].op is not Op.LOOP:
        return None
    loop = trace.body.body[0]
    region = loop.regions[0]
    if loop.attr or len(region.params) != 1 or not region.body:
        return None
    counter, test, end = region.params[0], region.body[0], region.end
    if not _is_id(loop.args[0], "global") or end.op is not Op.CONTINUE or test.op is not Op.IF:
        return None
    ended, following = test.args[0], end.args[0]
    if ended.op is not Op.GE or following.op is not Op.ADD or not _leaves(test):
        return None
    limit, total = ended.args[1], following.args[1]
    if ended.args[0] is not counter or following.args[0] is not counter:
        return None
    wraps = len(region.body) > 1 and _tests_wrapping(region.body[-1], following, counter)
    found = _Stride(loop, counter, limit, ended, following, total, wraps)
    fits = _is_total(total, trace) and _is_same_for_all(limit)
    return found if fits and _is_free(trace, found) else None


def _is_id(value: Value, name: str) -> bool:
    return value.op is Op.ID and value.attr == (name, 0)


def _tests_wrapping(test: Value, following: Value, counter: Value) -> bool:
    """``if (not (gt %following %counter)) { break }``"""
    if test.op is not Op.IF or not _leaves(test):
        return False
    condition = test.args[0]
    if condition.op is Op.NOT:
        condition = condition.args[0]
    return condition.op in (Op.GT, Op.LE) and condition.args == (following, counter)


def _leaves(test: Value) -> bool:
    """``if %ended { break } else { yield }``"""
    then, orelse = test.regions
    return not (then.body or orelse.body) and (then.end.op, orelse.end.op) == (Op.BREAK, Op.YIELD)


def _is_total(value: Value, trace: Trace) -> bool:
    """The invocations of the grid along x."""
    size = 1 if trace.workgroup is None else trace.workgroup[0]
    if size == 1:
        return _is_id(value, "num_workgroups")
    if value.op not in (Op.MUL, Op.SHL) or not _is_id(value.args[0], "num_workgroups"):
        return False
    factor = value.args[1].attr
    if value.args[1].op is not Op.CONST or not isinstance(factor, int):
        return False
    return (factor if value.op is Op.MUL else 1 << factor) == size


def _is_same_for_all(value: Value) -> bool:
    """Whether a value is made of parameters, shapes and constants."""
    stack = [value]
    while stack:
        top = stack.pop()
        if top.op in (Op.SCALAR, Op.SHAPE, Op.STRIDE, Op.CONST):
            continue
        if OPS[top.op].result is None and top.op is not Op.CAST:
            return False
        stack.extend(top.args)
    return True


def _is_free(trace: Trace, stride: _Stride) -> bool:
    """Whether nobody can tell in which order, and by which invocation, iterations are done."""
    reached = values(trace.body)
    uses = Counter(arg for value in reached for arg in value.args)
    own = stride.loop.args[0]
    if (uses[stride.ended], uses[own], uses[stride.following]) != (1, 1, 1 + stride.wraps):
        return False
    if any(
        value.op is Op.ID and value is not own and not _is_id(value, "num_workgroups")
        for value in reached
    ):
        return False
    inside = [effect for effect in effects(trace.body) if effect is not trace.body.end]
    if any(effect.op not in _FREE for effect in inside):
        return False
    accesses = [effect for effect in inside if effect.op in (Op.LOAD, Op.STORE, Op.ATOMIC)]
    if any(
        effect.memory.space not in (Space.ARRAY, Space.TABLE)
        or (effect.op is Op.ATOMIC and uses[effect])
        for effect in accesses
    ):
        return False
    return _jumps(stride.loop) == 2 + stride.wraps and _do_not_meet(trace, accesses, stride.counter)


def _do_not_meet(trace: Trace, accesses: list[Value], counter: Value) -> bool:
    """Whether no iteration touches what another one stores to."""
    places: dict[int, set[Value]] = {}
    stored: set[int] = set()
    for access in accesses:
        if access.memory.space is Space.ARRAY:
            view = trace.arrays[access.memory.number].same_view
            places.setdefault(view, set()).add(access.indices[0])
            if access.op is Op.STORE:
                stored.add(view)
    return all(
        len(places[view]) == 1 and all(_tells(offset, counter) for offset in places[view])
        for view in stored
    )


def _jumps(loop: Value) -> int:
    """How often a loop is left or gone on with."""
    jumps = 0
    stack: list[Region] = [loop.regions[0]]
    while stack:
        region = stack.pop()
        jumps += region.end.op in (Op.BREAK, Op.CONTINUE)
        for effect in region.body:
            if effect.op is not Op.LOOP:
                stack.extend(effect.regions)
    return jumps


def _tells(offset: Value, counter: Value) -> bool:
    """Whether each iteration has an offset of its own."""
    while offset is not counter:
        moved = offset.op is Op.ADD and _is_same_for_all(offset.args[1])
        spread = offset.op is Op.MUL and offset.args[1].op is Op.CONST and offset.args[1].attr
        if not (moved or spread or offset.op is Op.CAST):
            return False
        offset = offset.args[0]
    return True


@final
class _Blocks(Rewriter):
    def __init__(self, trace: Trace, stride: _Stride) -> None:
        super().__init__(trace)
        self._stride: Final = stride
        self._end: Value | None = None
        self._step: Value | None = None

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        if value is not self._stride.loop:
            results: tuple[Value, ...] = yield super().loop(value)
            return results
        initial = (self._prepared(),)
        body = yield self.region(value.regions[0])
        self.about(value)
        return self.builder.loop(initial, body, ())

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value is self._stride.ended:
            assert self._end is not None
            return self.builder.pure(Op.GE, (args[0], self._end))
        if value is self._stride.following:
            assert self._step is not None
            return self.builder.pure(Op.ADD, (args[0], self._step))
        return self.copy(value, args)

    def _prepared(self) -> Value:
        """Make the end and the step; gives the first number."""
        b = self.builder
        own, limit, total = self.all(
            (self._stride.loop.args[0], self._stride.limit, self._stride.total)
        )
        dtype = own.type

        def pure(op: Op, *args: Value) -> Value:
            return b.pure(op, args)

        one, most = b.const(dtype, 1), b.const(dtype, MOST)
        first, lanes = (b.pure(Op.ID, attr=(name, 0), dtype=dtype) for name in ("first", "lanes"))
        count = pure(Op.MAX, limit, b.const(dtype, 0))
        divisor = pure(Op.MAX, total, one)
        rows = pure(Op.TRUNCDIV, pure(Op.SUB, pure(Op.ADD, count, divisor), one), divisor)
        whole = pure(Op.EQ, pure(Op.AND, total, pure(Op.SUB, lanes, one)), b.const(dtype, 0))
        small = pure(Op.AND, pure(Op.LE, total, most), pure(Op.LE, limit, most))
        blocks = pure(Op.AND, whole, small)
        start = pure(Op.ADD, pure(Op.MUL, first, rows), pure(Op.SUB, own, first))
        end = pure(Op.MIN, limit, pure(Op.MUL, pure(Op.ADD, first, lanes), rows))
        self._end = pure(Op.SELECT, blocks, end, limit)
        self._step = pure(Op.SELECT, blocks, lanes, total)
        return pure(Op.SELECT, blocks, start, own)
