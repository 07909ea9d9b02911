"""Invocations as the interpreter sees them: their order, their ids, and subgroup operations.

A `Grid` is a run of whole workgroups whose invocations are the lanes of NumPy arrays: workgroup
after workgroup (x fastest), inside one by local index (x fastest). A subgroup is as many
consecutive lanes as the largest power of two that divides the workgroup's x size, up to a limit.

Subgroup operations see the active lanes only. Sums and the like go through the lanes in order, so
a sum of floats is rounded after each. A lane that asks for the value of one outside the subgroup
gets its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.dtypes import DType
from khaljit.tracer.floats import Array
from khaljit.tracer.numerics import held, meaning
from khaljit.tracer.ops import COMBINE

__all__ = ["Grid", "collective"]


@final
class Grid:
    """Some whole workgroups of a grid.

    Attributes:
        workgroup: invocations of a workgroup in x, y, z.
        groups: workgroups of the whole grid in x, y, z.
        first: number of the first workgroup that is here.
        count: how many workgroups are here.
        size: invocations of a workgroup.
        lanes: invocations here.
        subgroup: lanes of a subgroup.
    """

    def __init__(
        self,
        workgroup: tuple[int, int, int],
        groups: tuple[int, int, int],
        first: int,
        count: int,
        subgroup_limit: int,
    ) -> None:
        self.workgroup: Final = workgroup
        self.groups: Final = groups
        self.first: Final = first
        self.count: Final = count
        self.size: Final = workgroup[0] * workgroup[1] * workgroup[2]
        self.lanes: Final = count * self.size
        subgroup = workgroup[0] & -workgroup[0]  # the largest power of two that divides it
        while subgroup > subgroup_limit:
            subgroup //= 2
        self.subgroup: Final = subgroup

    def id(self, name: str, axis: int) -> Array:
        """An id (see ``ir.IDS``) of every lane as int64; zero-dimensional where all have one."""
        if name == "global":
            inside = self.id("local", axis)
            return self.id("workgroup", axis) * self.workgroup[axis] + inside
        if name in ("workgroup", "local"):
            extents = self.groups if name == "workgroup" else self.workgroup
            below = extents[0] * extents[1] if axis == 2 else extents[0] ** axis
            return self._number(name) // below % extents[axis]
        if name in ("local_index", "lane", "subgroup"):
            index = self._number("local")
            if name == "local_index":
                return index
            return index % self.subgroup if name == "lane" else index // self.subgroup
        constants = {
            "num_workgroups": self.groups[axis],
            "workgroup_size": self.workgroup[axis],
            "num_subgroups": self.size // self.subgroup,
            "subgroup_size": self.subgroup,
        }
        return np.array(constants[name], np.int64)

    def position(self, lane: int) -> tuple[int, int, int]:
        """The global id of a lane."""
        return (
            int(self.id("global", 0)[lane]),
            int(self.id("global", 1)[lane]),
            int(self.id("global", 2)[lane]),
        )

    def _number(self, name: str) -> Array:
        """Number of each lane's workgroup in the grid, or of the lane in its workgroup."""
        lanes = np.arange(self.lanes, dtype=np.int64)
        return lanes // self.size + self.first if name == "workgroup" else lanes % self.size


def collective(
    name: str, dtype: DType | None, operands: list[Array], active: Array, size: int, index_bits: int
) -> Array:
    """A subgroup operation on operands with an element per lane; ``dtype`` is the first one's.

    >>> x = np.arange(4, dtype=np.int64)
    >>> from khaljit.tracer.dtypes import i64
    >>> collective("inclusive_add", i64, [x], x >= 0, 2, 64)
    array([0, 1, 2, 5])
    """
    parts = [operand.reshape(-1, size) for operand in operands]
    live = active.reshape(-1, size)
    direct = _DIRECT.get(name)
    if direct is not None:
        result = direct(live, *parts)
    else:
        assert dtype is not None, f"{name} has an operand"
        prefix, _, suffix = name.rpartition("_")
        function = meaning(COMBINE[suffix], dtype, (dtype, dtype), index_bits)
        start = _identity(suffix, held(dtype, index_bits))
        result = _scan(function, start, prefix, parts[0], live)
    return np.broadcast_to(result, live.shape).reshape(-1)


def _identity(name: str, kind: np.dtype[Any]) -> Array:
    """What the first lane of an exclusive scan gets."""
    if name in ("min", "max"):
        if kind.kind == "f":
            return np.array(np.inf if name == "min" else -np.inf, kind)
        limits = np.iinfo(kind)
        return np.array(limits.max if name == "min" else limits.min, kind)
    return np.array({"mul": 1, "and": -1}.get(name, 0)).astype(kind)


def _scan(
    function: Callable[..., Array], start: Array, prefix: str, x: Array, live: Array
) -> Array:
    """Combine the active lanes in order: all of them, or for each lane those up to or below it."""
    total = np.broadcast_to(start, x.shape[:1])
    begun = np.zeros(x.shape[0], np.bool_)
    inclusive = np.empty(x.shape, x.dtype)
    exclusive = np.empty(x.shape, x.dtype)
    for lane in range(x.shape[1]):
        exclusive[:, lane] = total
        combined = np.where(begun, function(total, x[:, lane]), x[:, lane])
        total = np.where(live[:, lane], combined, total)
        begun = begun | live[:, lane]
        inclusive[:, lane] = total
    return {"": total[:, np.newaxis], "inclusive": inclusive, "exclusive": exclusive}[prefix]


def _take(live: Array, x: Array, source: Array) -> Array:
    """Each lane's x from the lane ``source``, its own where there is no such lane."""
    own = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    wide = source.astype(np.int64)
    inside = (wide >= 0) & (wide < x.shape[1])
    return np.take_along_axis(x, np.where(inside, wide, own), axis=1)


def _first(live: Array) -> Array:
    """Number of each subgroup's first active lane."""
    numbers: Array = np.argmax(live, axis=1, keepdims=True)
    return numbers


def _own(x: Array) -> Array:
    return np.arange(x.shape[1], dtype=np.int64)


def _ballot(live: Array, x: Array) -> Array:
    """A bit per lane, for the first 32."""
    places = np.uint32(1) << np.arange(min(x.shape[1], 32), dtype=np.uint32)
    voted = (live & x)[:, :32]
    masks: Array = np.where(voted, places, 0).sum(axis=1, keepdims=True, dtype=np.uint32)
    return masks


_DIRECT: Final[dict[str, Callable[..., Array]]] = {
    "broadcast": _take,
    "broadcast_first": lambda live, x: _take(live, x, np.broadcast_to(_first(live), x.shape)),
    "shuffle": _take,
    "shuffle_xor": lambda live, x, mask: _take(live, x, _own(x) ^ mask.astype(np.int64)),
    "shuffle_up": lambda live, x, delta: _take(live, x, _own(x) - delta.astype(np.int64)),
    "shuffle_down": lambda live, x, delta: _take(live, x, _own(x) + delta.astype(np.int64)),
    "ballot": _ballot,
    "any": lambda live, x: (live & x).any(axis=1, keepdims=True),
    "all": lambda live, x: (x | ~live).all(axis=1, keepdims=True),
    "elect": lambda live: _first(live) == np.arange(live.shape[1]),
}
