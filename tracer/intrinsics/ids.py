"""Where an invocation is: ids, sizes, and loops over the grid."""

from __future__ import annotations

from typing import Any, Final

from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.ranges import Range
from khaljit.tracer.recorder import Recorder, current

__all__ = [
    "global_id",
    "grid_stride",
    "index",
    "lane_id",
    "local_id",
    "local_index",
    "max_subgroups",
    "num_subgroups",
    "num_workgroups",
    "subgroup_id",
    "subgroup_size",
    "unroll",
    "workgroup_id",
    "workgroup_size",
]

SMALLEST_SUBGROUP: Final = 2


def _id(name: str, axis: int | None, axes: int = 3) -> Any:
    recorder = current(f"kj.{name}")
    recorder.mark()
    if axis is None and axes == 3:
        return Vector(recorder, tuple(_one_id(recorder, name, k) for k in range(3)))
    if axis is not None and (type(axis) is not int or not 0 <= axis < 3):
        fail(f"axis {axis!r} does not exist", "axes are 0 (x, the fastest), 1 (y) and 2 (z)")
    return _one_id(recorder, name, axis or 0)


def _one_id(recorder: Recorder, name: str, axis: int) -> Scalar:
    return Scalar(recorder, recorder.builder.id(name, axis))


def global_id(axis: int | None = None) -> Any:
    """This invocation's position in the grid along an axis (0 is x); all three without one."""
    return _id("global", axis)


def local_id(axis: int | None = None) -> Any:
    """This invocation's position in its workgroup."""
    return _id("local", axis)


def workgroup_id(axis: int | None = None) -> Any:
    """The position of this invocation's workgroup among the workgroups."""
    return _id("workgroup", axis)


def num_workgroups(axis: int | None = None) -> Any:
    """How many workgroups run along an axis."""
    return _id("num_workgroups", axis)


def workgroup_size(axis: int | None = None) -> Any:
    """Invocations in a workgroup along an axis: a Python int, known while recording."""
    recorder = current("kj.workgroup_size")
    if recorder.workgroup is None:
        fail(
            "the workgroup size is used, and the backend is to choose it",
            "fix it: @kj.jit(workgroup=64)",
        )
    return recorder.workgroup if axis is None else recorder.workgroup[axis]


def local_index() -> Any:
    """This invocation's position in its workgroup, counted x fastest."""
    return _id("local_index", None, 1)


def subgroup_id() -> Any:
    """The position of this invocation's subgroup in its workgroup."""
    return _id("subgroup", None, 1)


def lane_id() -> Any:
    """This invocation's position in its subgroup."""
    return _id("lane", None, 1)


def num_subgroups() -> Any:
    """Subgroups in a workgroup."""
    return _id("num_subgroups", None, 1)


def subgroup_size() -> Any:
    """Invocations in a subgroup; the device's choice."""
    return _id("subgroup_size", None, 1)


def max_subgroups() -> int:
    """Subgroups that a workgroup has at most, on any device: a Python int, to size shared memory.

    Devices have subgroups of two lanes or more, but on the CPU where the x size is odd.
    """
    x, y, z = (int(extent) for extent in workgroup_size())
    return x * y * z // min(x & -x, SMALLEST_SUBGROUP)


def index(ndim: int = 1) -> Any:
    """This invocation's index into an array of ``ndim`` axes, in the array's axis order.

    ``y, x = kj.index(2)`` goes with the grid ``kernel[kj.over(image)]``.
    """
    if ndim == 1:
        return global_id(0)
    if type(ndim) is not int or not 1 <= ndim <= 3:
        fail(f"kj.index({ndim!r}): a grid has 1 to 3 axes")
    return tuple(global_id(axis) for axis in range(ndim - 1, -1, -1))


def grid_stride(n: Any) -> Range:
    """Iterate over ``range(n)`` shared out over the whole grid: one loop for any grid size."""
    recorder = current("kj.grid_stride")
    total = num_workgroups(0) * (recorder.workgroup[0] if recorder.workgroup else 1)
    return Range(global_id(0), n, total, forward=True)


def unroll(iterable: Any) -> list[Any]:
    """Repeat a loop's body while recording, once per item: ``for k in kj.unroll(range(4))``."""
    return list(iterable.host() if isinstance(iterable, Range) else iterable)
