"""Branches that need not branch: known conditions, selects instead of pure arms, empty arms.

Before::

    %x = if %p { yield (add %a 1) } else { yield %b }
    if %p { store out[%i] %x  yield } else { yield }
    if (and %p (not %p)) { ... }

After::

    store out[%i] ... only where %p; what is read there is
    %x = select %p (add %a 1) %b

A condition is known where it is a constant, and where it or its opposite has been decided on the
way (``paths.py``); so is the guard of a lowered access. Arms without effects become selects if what
they compute is cheap, since a select computes both. A result that is the same value on all ways is
that value.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.ir import Access, Region, Trace, Value
from khaljit.tracer.ops import COMPARISONS, MATH, Op
from khaljit.tracer.passes.paths import PathRewriter, literals
from khaljit.tracer.records import replace
from khaljit.tracer.rewriting import Walk

__all__ = ["choose"]

# What both arms of a select may cost, in simple operations, and what others count.
_BUDGET: Final = 32
_COSTS: Final = {
    **dict.fromkeys(MATH, 16),
    **dict.fromkeys((Op.DIV, Op.SQRT, Op.FLOORDIV, Op.MOD, Op.MULHI), 8),
    **dict.fromkeys((Op.CONST, Op.PARAM, Op.RESULT, Op.MEMORY, Op.SCALAR, Op.ID), 0),
}
_OPPOSITES: Final = {
    Op.EQ: Op.NE,
    Op.NE: Op.EQ,
    Op.LT: Op.GE,
    Op.GE: Op.LT,
    Op.GT: Op.LE,
    Op.LE: Op.GT,
}


def choose(trace: Trace) -> Trace:
    """Replace branches by their only arm or by selects, where that is known or cheap."""
    return _Choose(trace).run()


class _Choose(PathRewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._known: Final[dict[Value, bool]] = {}

    # What is known.

    def assume(self, condition: Value, truth: bool) -> None:
        for value, holds in literals(condition, truth):
            self._known.setdefault(value, holds)

    def mark(self) -> int:
        return len(self._known)

    def forget(self, mark: int) -> None:
        while len(self._known) > mark:
            self._known.popitem()

    def _decided(self, condition: Value) -> bool | None:
        """Whether a condition is known to hold or not."""
        if condition.op is Op.CONST:
            return bool(condition.attr)
        known = self._known.get(condition)
        if known is None and condition.op is Op.NOT:
            known = self._known.get(condition.args[0])
            return None if known is None else not known
        if known is None and condition.op in COMPARISONS:
            opposite = self._known.get(self.builder.pure(_OPPOSITES[condition.op], condition.args))
            # With NaN both may be false, never both true.
            if opposite or (opposite is False and not condition.args[0].type.is_float):
                return not opposite
        return known

    # Guards of lowered accesses.

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        access = value.attr
        decided = None
        if isinstance(access, Access) and access.guarded:
            decided = self._decided(args[2])
        if decided is None:
            return super().effect(value, args)
        if decided:
            assert isinstance(access, Access)
            access = replace(access, guarded=False)
            return self.builder.effect(value.op, (*args[:2], *args[3:]), access, value.dtype)
        # Nothing is touched; a load or atomic gives 0.
        return None if value.dtype is None else self.builder.const(value.dtype, 0)

    # Branches.

    def if_(self, value: Value) -> Walk[tuple[Value, ...]]:
        condition = self.value(value.args[0])
        decided = self._decided(condition)
        if decided is not None:
            return (yield from self.taken(value, decided))
        return (yield from super().if_(value))

    def joined(self, condition: Value, then: Region, orelse: Region) -> tuple[Value, ...]:
        if self._is_select(then, orelse):
            return tuple(
                yes if yes is no else self.builder.select(condition, yes, no)
                for yes, no in zip(then.end.args, orelse.end.args, strict=True)
            )
        results = self.branch(condition, then, orelse)
        goes_on = [arm for arm in (then, orelse) if arm.end.op is Op.YIELD]
        return _forwarded(goes_on, results)

    def _is_select(self, then: Region, orelse: Region) -> bool:
        if then.body or orelse.body or then.end.op is not Op.YIELD or orelse.end.op is not Op.YIELD:
            return False
        chosen = [
            value
            for pair in zip(then.end.args, orelse.end.args, strict=True)
            if pair[0] is not pair[1]
            for value in pair
        ]
        return _is_cheap(chosen)


def _forwarded(goes_on: list[Region], results: tuple[Value, ...]) -> tuple[Value, ...]:
    """Results, but for those that are known to be one value that exists outside the arms."""
    if len(goes_on) == 1 and not goes_on[0].body:
        return goes_on[0].end.args
    if len(goes_on) == 2:
        # What both arms have is of neither.
        pairs = zip(results, goes_on[0].end.args, goes_on[1].end.args, strict=True)
        return tuple(yes if yes is no else result for result, yes, no in pairs)
    return results


def _is_cheap(roots: list[Value]) -> bool:
    """Whether the pure values under some roots cost less than the budget, if none existed yet."""
    cost, seen, stack = 0, set(roots), list(roots)
    while stack:
        value = stack.pop()
        if value.is_effect:
            continue
        cost += _COSTS.get(value.op, 1)
        if cost > _BUDGET:
            return False
        fresh = [arg for arg in value.args if arg not in seen]
        seen.update(fresh)
        if value.op is not Op.RESULT:
            stack.extend(fresh)
    return True
