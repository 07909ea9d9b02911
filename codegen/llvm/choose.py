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
MOST_ROWS: Final = 4
PASSING: Final = 6  # registers for what a loop computes on the way
# Vectors of kernels without a loop, by how many values they compute at most: those that hardly
# compute wait for memory, which likes short runs; long ones would be long code.
STRAIGHT: Final = ((24, 2), (120, 4), (400, 2))
MOST_COPIES: Final = 600  # instructions of a kernel with very many lanes, about

_SUBGROUP_IDS: Final = frozenset({"subgroup", "lane", "num_subgroups", "subgroup_size"})
_ROW_IDS: Final = frozenset({("global", 1), ("local", 1), ("local_index", 0)})
_GRID_IDS: Final = frozenset({"global", "num_workgroups", "workgroup_size", "first", "lanes"})


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
    whole: Uniformity,
    items: dict[Region, tuple[Value, ...]],
) -> tuple[int, int, int]:
    """Lanes of a vector, vectors of a row, and rows of a subgroup.

    ``whole`` is the uniformity of several rows together.
    """
    hot = _innermost(trace.body)
    varying = [
        value
        for region in hot
        for value in (*region.params, *items[region])
        if _is_vector(value, uniformity)
    ]
    per_part = min(level.vector_bits // _widest(varying), MOST_LANES)
    fitting = _fitting(trace, level, uniformity, items, varying)
    together = observes_workgroups(trace)
    most, depth = MOST_LANES, MOST_ROWS
    if together:
        assert trace.workgroup is not None
        most, depth = _power(trace.workgroup[0]), _power(trace.workgroup[1])
    if _votes(trace):
        most = min(most, MOST_VOTERS)
    per_part = min(per_part, most)
    if _rows_share(trace.body, uniformity, whole) and _is_free(trace, uniformity):
        rows = _doubled(min(depth, MOST_ROWS), fitting)
        return per_part, _doubled(min(most // per_part, MOST_PARTS), fitting // rows), rows
    size = sum(len(found) for found in items.values())
    fits = MOST_LANES < most <= MOST_WIDE_LANES and most // per_part * size <= MOST_COPIES
    if fits and _is_free(trace, uniformity):
        return per_part, _doubled(most // per_part, fitting), 1
    parts = min(most, MOST_LANES) // per_part
    return per_part, _doubled(min(parts, MOST_PARTS), fitting), 1


def _power(extent: int) -> int:
    """The largest power of two that divides a number."""
    return extent & -extent


def _doubled(most: int, fitting: int) -> int:
    """The largest power of two up to either limit, 1 at least."""
    count = 1
    while 2 * count <= min(most, fitting):
        count *= 2
    return count


def _votes(trace: Trace) -> bool:
    return any(value.op is Op.SUBGROUP and value.attr == "ballot" for value in values(trace.body))


def _rows_share(top: Region, uniformity: Uniformity, whole: Uniformity) -> bool:
    """Whether rows of invocations read the same vectors in a hot loop that all go through alike.

    A product of matrices does: a row of the second factor serves every row of the result.
    """
    shared = apart = False
    for loop in _innermost_loops(top):
        if whole.exits[loop] > Scope.SUBGROUP:
            continue
        for effect in loop.regions[0].body:
            if effect.op is not Op.LOAD or effect.memory.space is Space.LOCAL:
                continue
            offset = effect.indices[0]
            if uniformity.stride[offset]:
                shared = shared or not _reads_rows(offset)
            elif uniformity.stride[offset] == 0:
                apart = apart or whole.scope[offset] is Scope.VARYING
    return shared and apart


def _reads_rows(offset: Value) -> bool:
    """Whether an offset differs from row to row."""
    seen = {offset}
    stack = [offset]
    while stack:
        value = stack.pop()
        if value.op is Op.ID and value.attr in _ROW_IDS:
            return True
        for arg in value.args:
            if arg not in seen:
                seen.add(arg)
                stack.append(arg)
    return False


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
    bodies = [loop.regions[0] for loop in _innermost_loops(top)]
    return [region for body in bodies or [top] for region in regions(body)]


def _innermost_loops(top: Region) -> list[Value]:
    """The loops with no loop inside."""
    return [
        effect
        for region in regions(top)
        for effect in region.body
        if effect.op is Op.LOOP and not _has_loop(effect.regions[0])
    ]


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


def _widest(varying: list[Value]) -> int:
    """Bits of the widest float there is, or of the widest integer."""
    found = [value.type for value in varying]
    floats = [dtype.bits for dtype in found if dtype.is_float]
    return max(floats or [dtype.bits for dtype in found] or [32])


def _fitting(
    trace: Trace,
    level: Level,
    uniformity: Uniformity,
    items: dict[Region, tuple[Value, ...]],
    varying: list[Value],
) -> int:
    """How many vectors of each value the registers hold at once, about.

    A loop holds what it carries and what it reads from outside; straight code is so short that
    its latency is what counts, or so long that its size does.
    """
    loops = _innermost_loops(trace.body)
    if not loops:
        return next((parts for most, parts in STRAIGHT if len(varying) <= most), 1)
    used = {arg for value in values(trace.body) for arg in value.args}
    held = max(len(_held(loop, uniformity, items, used)) for loop in loops)
    return max(level.registers - PASSING, 1) // max(held, 1)


def _held(
    loop: Value,
    uniformity: Uniformity,
    items: dict[Region, tuple[Value, ...]],
    used: set[Value],
) -> set[Value]:
    """The vectors that a loop holds all the time."""
    body = loop.regions[0]
    inside: set[Value] = set()
    read: set[Value] = set()
    for region in regions(body):
        inside.update(items[region])
        for value in (*items[region], region.end):
            read.update(value.args)
    results = [value for value in used if value.op is Op.RESULT and value.args[0] is loop]
    apart = uniformity.exits[loop] > Scope.SUBGROUP
    held = (read - inside) | set(results if apart else ())
    return {
        value
        for value in held
        if value.op is not Op.RESULT or value.args[0] not in inside
        if _is_vector(value, uniformity)
    }
