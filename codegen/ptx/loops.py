"""What the passes over loops ask of them: the way out at the head, and what changes inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from khaljit.tracer.build import Builder
from khaljit.tracer.ir import Region, Value, analysis, effects, values
from khaljit.tracer.ops import Op

__all__ = ["compared", "conditions", "is_plain", "leave_where", "varying", "way_out"]

# What keeps a loop from being unrolled, or makes that useless.
_HEAVY: Final = frozenset({Op.LOOP, Op.BARRIER, Op.SUBGROUP, Op.BREAK, Op.CONTINUE, Op.RETURN})


def way_out(branch: Value) -> tuple[Value, tuple[Value, ...]] | None:
    """The condition of a branch that is no more than a way out, and what leaves there."""
    if branch.op is not Op.IF or any(arm.body for arm in branch.regions):
        return None
    then, orelse = branch.regions
    if then.end.op is not Op.BREAK or orelse.end.op is not Op.YIELD:
        return None
    return branch.args[0], then.end.args


def leave_where(builder: Builder, condition: Value, values: Iterable[Value]) -> None:
    """Build a branch that is no more than a way out of a loop."""
    builder.open()
    builder.end(Op.BREAK, tuple(values))
    leave = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(condition, leave, builder.close())


def compared(condition: Value, op: Op, opposite: Op) -> tuple[Value | None, Value | None]:
    """The operands of a comparison, or of its opposite negated."""
    if condition.op is Op.NOT:
        condition, op = condition.args[0], opposite
    return condition.args if condition.op is op else (None, None)  # type: ignore[return-value]  # a pair


def is_plain(effect: Value) -> bool:
    """Whether an effect leaves no loop, is none, and needs nobody else."""
    return effect.op not in _HEAVY and not any(
        inner.op in _HEAVY for region in effect.regions for inner in effects(region)
    )


def conditions(condition: Value) -> list[Value]:
    """The conditions that are all met where one is."""
    if condition.op is not Op.AND:
        return [condition]
    return [part for arg in condition.args for part in conditions(arg)]


@analysis
def varying(body: Region) -> frozenset[Value]:
    """What depends on an iteration: parameters, effects, and what is computed from those."""
    inside = {*body.params, *effects(body)}
    for value in values(body):
        if not inside.isdisjoint(value.args):
            inside.add(value)
    return frozenset(inside)
