"""Collectives of a workgroup, written as kernels are: trees and scans in shared memory.

What they give to all invocations alike is known to be uniform, so that a branch or loop on it may
hold barriers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from khaljit.tracer.arithmetic import select, truth
from khaljit.tracer.coerce import like, to_scalar
from khaljit.tracer.dtypes import u16, u32, u64
from khaljit.tracer.intrinsics.bits import bitcast
from khaljit.tracer.intrinsics.ids import local_index
from khaljit.tracer.intrinsics.numbers import max, min
from khaljit.tracer.intrinsics.storage import barrier, shared
from khaljit.tracer.ir import Note
from khaljit.tracer.memory import Array
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.recorder import Recorder, current

__all__ = [
    "uniform",
    "workgroup_add",
    "workgroup_all",
    "workgroup_any",
    "workgroup_broadcast",
    "workgroup_exclusive_add",
    "workgroup_inclusive_add",
    "workgroup_max",
    "workgroup_min",
]

UNSIGNED: Final = {16: u16, 32: u32, 64: u64}


def _tree(x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    recorder, count = _workgroup("a workgroup collective")
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
    return _same(recorder, memory, 0)


def _workgroup(what: str) -> tuple[Recorder, int]:
    """The recording, and the invocations of a workgroup."""
    recorder = current(what)
    if recorder.workgroup is None:
        fail(f"{what} needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    return recorder, math.prod(recorder.workgroup)


def _same(recorder: Recorder, memory: Array, place: Any) -> Scalar:
    """An element of shared memory that all read between two barriers."""
    source, indices, access = memory._scalar(place)
    access = replace(access, uniform=True)
    return Scalar(recorder, recorder.builder.load(source, indices, memory.dtype, access))


def _when(
    recorder: Recorder,
    condition: Any,
    memory: Array,
    here: Any,
    width: int,
    combine: Callable[[Any, Any], Any],
) -> None:
    def step() -> None:
        memory[here] = combine(memory[here], memory[here + width])

    recorder.when(truth(condition), step)


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
    recorder, count = _workgroup("a workgroup scan")
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
    recorder, count = _workgroup("a workgroup collective")
    scalar = to_scalar(recorder, x)
    memory = shared(scalar.dtype, count)
    barrier()
    memory[local_index()] = scalar
    barrier()
    return _same(recorder, memory, source)


def uniform(x: Any) -> Any:
    """A value that is the same for all invocations of the workgroup, which khaljit cannot see.

    Asserts that it is, and may then decide a branch or loop with barriers in it. Must be reached by
    the whole workgroup together, as `barrier` must.
    """
    if isinstance(x, Vector):
        return x.mapped(uniform)
    recorder, _ = _workgroup("kj.uniform")
    recorder.mark()
    scalar = to_scalar(recorder, x)
    memory = shared(scalar.dtype, 1)
    barrier()
    recorder.when(truth(local_index() == 0), lambda: memory.__setitem__(0, scalar))
    barrier()
    found = _same(recorder, memory, 0)
    bits = UNSIGNED.get(scalar.dtype.bits) if scalar.dtype.is_float else None
    equal = found == scalar if bits is None else bitcast(found, bits) == bitcast(scalar, bits)
    note = Note("kj.uniform: {} is not the workgroup's {}", recorder.note_site())
    recorder.builder.effect(Op.ASSERT, (truth(equal), scalar.value, found.value), note)
    return found
