"""Collectives of a workgroup, written as kernels are: trees and scans in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from khaljit.tracer.arithmetic import select, truth
from khaljit.tracer.coerce import like, to_scalar
from khaljit.tracer.intrinsics.ids import local_index
from khaljit.tracer.intrinsics.numbers import max, min
from khaljit.tracer.intrinsics.storage import barrier, shared
from khaljit.tracer.memory import Array
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import fail
from khaljit.tracer.recorder import Recorder, current

__all__ = [
    "workgroup_add",
    "workgroup_all",
    "workgroup_any",
    "workgroup_broadcast",
    "workgroup_exclusive_add",
    "workgroup_inclusive_add",
    "workgroup_max",
    "workgroup_min",
]


def _tree(x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    recorder = current("a workgroup collective")
    if recorder.workgroup is None:
        fail("a workgroup collective needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    count = math.prod(recorder.workgroup)
    scalar = to_scalar(recorder, x)
    memory = shared(scalar.dtype, count)
    here = local_index()
    barrier()
    memory[here] = scalar
    barrier()
    width = 1 << (count - 1).bit_length()
    while width > 1:
        width //= 2
        _when(recorder, (here < width) & (here + width < count), memory, here, width, combine)
        barrier()
    return memory[0]


def _when(
    recorder: Recorder,
    condition: Any,
    memory: Array,
    here: Any,
    width: int,
    combine: Callable[[Any, Any], Any],
) -> None:
    builder = recorder.builder
    builder.open()
    memory[here] = combine(memory[here], memory[here + width])
    builder.end(Op.YIELD)
    then = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(truth(condition), then, builder.close())


def workgroup_add(x: Any) -> Any:
    """The sum over the workgroup, by a fixed tree; the same for every invocation."""
    return _tree(x, lambda a, b: a + b)


def workgroup_min(x: Any) -> Any:
    """The least over the workgroup."""
    return _tree(x, min)


def workgroup_max(x: Any) -> Any:
    """The greatest over the workgroup."""
    return _tree(x, max)


def workgroup_any(x: Any) -> Any:
    """Whether a condition holds for any invocation of the workgroup."""
    return _tree(x, lambda a, b: a | b)


def workgroup_all(x: Any) -> Any:
    """Whether a condition holds for all invocations of the workgroup."""
    return _tree(x, lambda a, b: a & b)


def workgroup_inclusive_add(x: Any) -> Any:
    """The sum over this and all earlier invocations of the workgroup, by local index."""
    return _scan(x)[0]


def workgroup_exclusive_add(x: Any) -> Any:
    """The sum over all earlier invocations of the workgroup, by local index."""
    return _scan(x)[1]


def _scan(x: Any) -> tuple[Any, Any]:
    """Hillis and Steele's scan: doubling distances, a copy in shared memory between steps."""
    recorder = current("a workgroup scan")
    if recorder.workgroup is None:
        fail("a workgroup scan needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    count = math.prod(recorder.workgroup)
    total = to_scalar(recorder, x)
    memory = shared(total.dtype, count)
    here = local_index()
    distance_ = 1
    while True:
        barrier()
        memory[here] = total
        barrier()
        if distance_ >= count:
            break
        before = select(here >= distance_, memory[here - distance_], like(total, 0))
        total = total + before
        distance_ *= 2
    exclusive = select(here >= 1, memory[here - 1], like(total, 0))
    return total, exclusive


def workgroup_broadcast(x: Any, source: Any = 0) -> Any:
    """The value of one invocation of the workgroup, by its local index, for all of them."""
    recorder = current("kj.workgroup_broadcast")
    if recorder.workgroup is None:
        fail("a workgroup collective needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    scalar = to_scalar(recorder, x)
    memory = shared(scalar.dtype, math.prod(recorder.workgroup))
    barrier()
    memory[local_index()] = scalar
    barrier()
    return memory[source]
