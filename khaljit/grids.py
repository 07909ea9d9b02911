"""Grids and workgroups: how many invocations a launch runs, and how many of them together."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from khaljit.graphs.capture import unwatched
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError
from khaljit.tracer.records import dataclass

__all__ = [
    "Grid",
    "Indirect",
    "Workgroup",
    "Workgroups",
    "groups_of",
    "over",
    "parse_grid",
    "parse_workgroup",
]

MAX_EXTENT: Final = (1 << 63) - 1

Grid = tuple[int, int, int]
Workgroup = tuple[int, int, int]


@final
@dataclass(frozen=True, slots=True)
class Workgroups:
    """A grid given in workgroups per axis, not in invocations: ``kernel[kj.Workgroups(8)]``."""

    x: int
    y: int = 1
    z: int = 1


@final
@dataclass(frozen=True, slots=True)
class Indirect:
    """A grid that the device reads: three u32 counts of workgroups in an array.

    Attributes:
        array: of u32, on the device that the kernel runs on.
        offset: of the first count, in elements.
    """

    array: Any
    offset: int = 0

    def __post_init__(self) -> None:
        dtype = getattr(self.array, "dtype", None)
        if getattr(dtype, "name", None) not in ("u32", "uint32") or self.array.ndim != 1:
            raise ArgumentTypeError(
                "an indirect grid is read from an array of u32 with one axis",
                mend="device.zeros(3, kj.u32)",
            )
        if type(self.offset) is not int or not 0 <= self.offset <= self.array.size - 3:
            raise ArgumentValueError(
                f"an indirect grid at offset {self.offset!r} of {self.array.size} elements",
                mend="three counts must fit behind the offset",
            )

    def read(self) -> Grid:
        """The counts, read on the host; for devices whose memory is the host's."""
        with unwatched():
            first, second, third = np.asarray(self.array)[self.offset : self.offset + 3].tolist()
        return first, second, third


def over(array: Any) -> tuple[int, ...]:
    """The grid that covers an array's shape: ``kernel[kj.over(image)]``, with ``kj.index(n)``.

    >>> over(np.zeros((3, 5)))
    (5, 3)
    """
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple):
        raise ArgumentTypeError(
            f"kj.over takes an array, not a {type(array).__name__}", mend="write kj.over(a)"
        )
    if len(shape) > 3:
        raise ArgumentValueError(
            f"an array of {len(shape)} axes has no grid: a grid has 1 to 3 axes",
            mend="launch over array.size and take the index apart",
        )
    return tuple(reversed(shape)) or (1,)


def parse_grid(grid: Any) -> tuple[Grid, bool]:
    """Extents in x, y and z, and whether they count workgroups.

    Raises ArgumentTypeError or ArgumentValueError for what is no grid.
    """
    if type(grid) is int and 0 <= grid <= MAX_EXTENT:
        return (grid, 1, 1), False
    if isinstance(grid, Workgroups):
        return (_extent(grid.x, grid), _extent(grid.y, grid), _extent(grid.z, grid)), True
    parts = grid if isinstance(grid, tuple) else (grid,)
    if not 1 <= len(parts) <= 3:
        raise ArgumentValueError(
            f"the grid {grid!r} has {len(parts)} axes", mend="a grid has 1 to 3 axes: kernel[w, h]"
        )
    x, y, z = (*(_extent(part, grid) for part in parts), 1, 1)[:3]
    return (x, y, z), False


def _instead(part: Any) -> str:
    """What to write for something in a grid that is no int."""
    if hasattr(part, "shape"):
        return "to cover an array, write kernel[a.size] or kernel[kj.over(a)]"
    if isinstance(part, float):
        return "divide with //, or write int(...): a grid counts invocations"
    return "a grid is an int or a tuple of ints: kernel[n], kernel[w, h]"


def _extent(part: Any, grid: Any) -> int:
    if isinstance(part, bool | np.bool_) or not isinstance(part, int | np.integer):
        raise ArgumentTypeError(
            f"the grid {grid!r} holds a {type(part).__name__}",
            mend=_instead(part),
        )
    if part < 0:
        raise ArgumentValueError(
            f"the grid {grid!r} is negative", mend="a grid counts invocations: 0 or more per axis"
        )
    if part > MAX_EXTENT:
        raise ArgumentValueError(
            f"the grid {grid!r} is too large", mend="at most 2**63 - 1 an axis"
        )
    return int(part)


def groups_of(grid: Grid, counts_groups: bool, workgroup: Workgroup | None) -> Grid:
    """How many workgroups cover a grid; without a fixed workgroup every invocation is one.

    >>> groups_of((100, 1, 1), False, (64, 1, 1))
    (2, 1, 1)
    """
    if counts_groups:
        if workgroup is None:
            raise ArgumentValueError(
                "the grid counts workgroups, and the backend chooses their size for this kernel",
                mend="fix it: @kj.jit(workgroup=64), or launch a grid of invocations",
            )
        groups = grid
    else:
        x, y, z = workgroup or (1, 1, 1)
        groups = (-(-grid[0] // x), -(-grid[1] // y), -(-grid[2] // z))
    if groups[0] * groups[1] * groups[2] > MAX_EXTENT:
        raise ArgumentValueError(
            f"the grid {grid!r} has more than 2**63 - 1 workgroups", mend="launch it in parts"
        )
    return groups


def parse_workgroup(size: int | tuple[int, ...] | None) -> Workgroup | None:
    if size is None:
        return None
    parts = size if isinstance(size, tuple) else (size,)
    whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in parts)
    if not whole or not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise ArgumentValueError(
            f"workgroup={size!r}", mend="a workgroup is a positive int or a tuple of up to three"
        )
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return (x, y, z)
