"""How many lanes a subgroup has: vectors as wide as the machine's, and several of them.

The widest type of the hot code (the innermost loops, or everything) fills one vector of the
machine. Several such vectors per value hide the latency of one behind the others, as long as what
is live at once still fits the registers.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.llvm.target import Level
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.ir import Memory, Region, Space, Trace, Value, regions, values
from khaljit.tracer.ops import Op
from khaljit.tracer.uniformity import Scope, Uniformity

__all__ = ["choose_lanes", "observes_workgroups"]

MOST_LANES: Final = 64  # where anything counts subgroups, or goes lane by lane
MOST_WIDE_LANES: Final = 256
MOST_VOTERS: Final = 32  # a ballot has a bit each for this many
MOST_PARTS: Final = 4
MOST_COPIES: Final = 600  # instructions of a kernel with very many lanes, about

_SUBGROUP_IDS: Final = frozenset({"subgroup", "lane", "num_subgroups", "subgroup_size"})
_GRID_IDS: Final = frozenset({"global", "num_workgroups", "workgroup_size"})


def observes_workgroups(trace: Trace) -> bool:
    """Whether anything in a kernel can tell which invocations form a workgroup or subgroup."""
    for value in values(trace.body):
        if value.op in (Op.BARRIER, Op.SUBGROUP):
            return True
        if value.op is Op.ID and _name(value) not in _GRID_IDS:
            return True
        if isinstance(value.attr, Memory) and value.attr.space is Space.SHARED:
            return True
    return False


def _name(value: Value) -> str:
    assert isinstance(value.attr, tuple)
    return str(value.attr[0])


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
    pressure = max((_pressure(found) for found in varying), default=1)
    if not observes_workgroups(trace):
        return per_part, _parts(per_part, MOST_LANES, pressure, level)
    assert trace.workgroup is not None
    most = trace.workgroup[0] & -trace.workgroup[0]
    if any(value.op is Op.SUBGROUP and value.attr == "ballot" for value in values(trace.body)):
        most = min(most, MOST_VOTERS)
    per_part = min(per_part, most)
    size = sum(len(found) for found in items.values())
    fits = MOST_LANES < most <= MOST_WIDE_LANES and most // per_part * size <= MOST_COPIES
    if fits and _is_free(trace, uniformity):
        return per_part, _parts(per_part, most, pressure, level, MOST_WIDE_LANES)
    return per_part, _parts(per_part, min(most, MOST_LANES), pressure, level)


def _parts(
    per_part: int, most_lanes: int, pressure: int, level: Level, most_parts: int = MOST_PARTS
) -> int:
    """Vectors of a subgroup: as many as the registers hold what is live at once of."""
    parts = 1
    while (
        parts < most_parts
        and per_part * parts < most_lanes
        and 2 * parts * pressure <= level.registers
    ):
        parts *= 2
    return parts


def _is_free(trace: Trace, uniformity: Uniformity) -> bool:
    """Whether nothing counts subgroups or goes lane by lane."""
    for value in values(trace.body):
        if value.op is Op.SUBGROUP:
            return False
        if value.op is Op.ID and _name(value) in _SUBGROUP_IDS:
            return False
        if value.op is Op.ATOMIC and uniformity.scope[value.indices[0]] is Scope.VARYING:
            return False
    return True


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
        and uniformity.scope.get(value) is Scope.VARYING
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
