"""How many lanes a subgroup has: vectors as wide as the machine's, and several of them.

The widest type of the hot code (the innermost loops, or everything) fills one vector of the
machine. Several such vectors per value hide the latency of one behind the others, as long as what
is live at once still fits the registers.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.llvm.target import Level
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.ir import Region, Trace, Value, regions, values
from khaljit.tracer.ops import Op
from khaljit.tracer.uniformity import Scope, Uniformity

__all__ = ["choose_lanes", "observes_workgroups"]

MOST_LANES: Final = 64
MOST_VOTERS: Final = 32  # a ballot has a bit each for this many
MOST_PARTS: Final = 4

_GRID_IDS: Final = frozenset({"global", "num_workgroups", "workgroup_size"})


def observes_workgroups(trace: Trace) -> bool:
    """Whether anything in a kernel can tell which invocations form a workgroup or subgroup."""
    for value in values(trace.body):
        if value.op in (Op.BARRIER, Op.SUBGROUP):
            return True
        if value.op is Op.ID and _name(value) not in _GRID_IDS:
            return True
        if value.op is Op.MEMORY and value.attr is not None and _is_shared(value):
            return True
    return False


def _name(value: Value) -> str:
    assert isinstance(value.attr, tuple)
    return str(value.attr[0])


def _is_shared(value: Value) -> bool:
    from khaljit.tracer.ir import Memory, Space

    return isinstance(value.attr, Memory) and value.attr.space is Space.SHARED


def choose_lanes(
    trace: Trace,
    level: Level,
    uniformity: Uniformity,
    items: dict[Region, tuple[Value, ...]],
) -> tuple[int, int]:
    """Lanes of a vector, and vectors of a subgroup."""
    hot = _innermost(trace.body)
    varying = [
        [value for value in (*region.params, *items[region]) if _is_vector(value, uniformity)]
        for region in hot
    ]
    per_part = min(level.vector_bits // _widest(varying), MOST_LANES)
    parts = 1
    while parts < MOST_PARTS and per_part * parts < MOST_LANES and all(
        2 * parts * _pressure(found) <= level.registers for found in varying
    ):
        parts *= 2
    most = MOST_LANES
    if observes_workgroups(trace):
        assert trace.workgroup is not None
        most = trace.workgroup[0] & -trace.workgroup[0]
        if any(value.op is Op.SUBGROUP and value.attr == "ballot" for value in values(trace.body)):
            most = min(most, MOST_VOTERS)
    per_part = min(per_part, most)
    return per_part, min(parts, most // per_part)


def _innermost(top: Region) -> list[Region]:
    """The bodies of the innermost loops with the arms in them; all regions if there is no loop."""
    loops = [
        effect.regions[0]
        for region in regions(top)
        for effect in region.body
        if effect.op is Op.LOOP and not _has_loop(effect.regions[0])
    ]
    return [region for body in loops or [top] for region in regions(body)]


def _has_loop(region: Region) -> bool:
    return any(effect.op is Op.LOOP for inner in regions(region) for effect in inner.body)


def _is_vector(value: Value, uniformity: Uniformity) -> bool:
    """Whether a value takes vector registers."""
    return (
        value.dtype is not None
        and value.dtype is not bool_
        and isinstance(uniformity.scope.get(value), Scope)
        and uniformity.scope[value] is Scope.VARYING
        and uniformity.stride[value] is None
    )


def _widest(varying: list[list[Value]]) -> int:
    """Bits of the widest float there is, or of the widest integer."""
    found = [value.type for group in varying for value in group]
    floats = [dtype.bits for dtype in found if dtype.is_float]
    return max(floats or [dtype.bits for dtype in found] or [32])


def _pressure(varying: list[Value]) -> int:
    """An estimate of how many vectors are live at once: about a third of what is computed."""
    return max(len(varying) // 3, 1)
