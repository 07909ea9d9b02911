"""Collectives of a workgroup, written as kernels are: trees and scans in shared memory.

What they give to all invocations alike is known to be uniform, so that a branch or loop on it may
hold barriers. All collectives of one dtype share one scratch memory with an element per invocation,
and begin with a barrier, behind which nobody reads what the one before left there. Vectors go
component by component.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from khaljit.tracer.arithmetic import select, truth
from khaljit.tracer.coerce import like, to_scalar
from khaljit.tracer.dtypes import bool_, u16, u32, u64
from khaljit.tracer.intrinsics.bits import bitcast
from khaljit.tracer.intrinsics.ids import local_index
from khaljit.tracer.intrinsics.numbers import max, min
from khaljit.tracer.intrinsics.storage import barrier
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


def _begin(name: str, x: Any) -> tuple[Recorder, int, Scalar]:
    """The recording, the invocations of a workgroup, and the operand."""
    recorder = current(f"kj.{name}")
    recorder.mark()
    if recorder.workgroup is None:
        fail(f"kj.{name} needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    return recorder, math.prod(recorder.workgroup), to_scalar(recorder, x)


def _number(name: str, scalar: Scalar) -> None:
    if scalar.dtype is bool_:
        fail(f"kj.{name} of bool", "cast to a number: kj.i32(flag)")


def _shown(recorder: Recorder, scalar: Scalar, count: int) -> Array:
    """The scratch memory in which each invocation has put its operand."""
    memory = Array.whole(recorder, recorder.scratch(scalar.dtype, count), scalar.dtype, "shared")
    barrier()
    memory[local_index()] = scalar
    barrier()
    return memory


def _same(recorder: Recorder, memory: Array, place: Any) -> Scalar:
    """An element of shared memory that all read between two barriers."""
    source, indices, access = memory._scalar(place)
    access = replace(access, uniform=True)
    return Scalar(recorder, recorder.builder.load(source, indices, memory.dtype, access))


def _tree(recorder: Recorder, count: int, scalar: Scalar, combine: Callable[..., Any]) -> Scalar:
    """All operands combined, halves with halves."""
    memory = _shown(recorder, scalar, count)
    here = local_index()
    width = 1 << (count - 1).bit_length()
    while width > 1:
        width //= 2

        def step(distance: int = width) -> None:
            memory[here] = combine(memory[here], memory[here + distance])

        recorder.when(truth((here < width) & (here + width < count)), step)
        barrier()
    return _same(recorder, memory, 0)


def _combined(name: str, x: Any, combine: Callable[..., Any]) -> Any:
    if isinstance(x, Vector):
        return x.mapped(lambda item: _combined(name, item, combine))
    recorder, count, scalar = _begin(name, x)
    _number(name, scalar)
    return _tree(recorder, count, scalar, combine)


def _voted(name: str, x: Any, combine: Callable[..., Any]) -> Any:
    if isinstance(x, Vector):
        return x.mapped(lambda item: _voted(name, item, combine))
    recorder, count, scalar = _begin(name, x)
    if scalar.dtype is not bool_:
        fail(f"kj.{name} takes a condition, not {scalar.dtype.name}", "compare: x != 0")
    return _tree(recorder, count, scalar, combine)


def workgroup_add(x: Any) -> Any:
    """The sum over the workgroup, by a fixed tree; the same for every invocation."""
    return _combined("workgroup_add", x, lambda a, b: a + b)


def workgroup_min(x: Any) -> Any:
    """The least over the workgroup; NaN counts for nothing."""
    return _combined("workgroup_min", x, min)


def workgroup_max(x: Any) -> Any:
    """The greatest over the workgroup; NaN counts for nothing."""
    return _combined("workgroup_max", x, max)


def workgroup_any(x: Any) -> Any:
    """Whether a condition holds for any invocation of the workgroup."""
    return _voted("workgroup_any", x, lambda a, b: a | b)


def workgroup_all(x: Any) -> Any:
    """Whether a condition holds for all invocations of the workgroup."""
    return _voted("workgroup_all", x, lambda a, b: a & b)


def workgroup_inclusive_add(x: Any) -> Any:
    """The sum over this and all earlier invocations of the workgroup, by local index."""
    return _scan("workgroup_inclusive_add", x, False)


def workgroup_exclusive_add(x: Any) -> Any:
    """The sum over all earlier invocations of the workgroup, by local index."""
    return _scan("workgroup_exclusive_add", x, True)


def _scan(name: str, x: Any, exclusive: bool) -> Any:
    """Hillis and Steele's scan: doubling distances, all sums in shared memory between steps."""
    if isinstance(x, Vector):
        return x.mapped(lambda item: _scan(name, item, exclusive))
    recorder, count, total = _begin(name, x)
    _number(name, total)
    here, distance = local_index(), 1
    while distance < count:
        total = total + _before(_shown(recorder, total, count), here, distance, total)
        distance *= 2
    return _before(_shown(recorder, total, count), here, 1, total) if exclusive else total


def _before(memory: Array, here: Any, distance: int, like_: Scalar) -> Any:
    """What the invocation at a distance before this one has put there; 0 where there is none."""
    return select(here >= distance, memory[here - distance], like(like_, 0))


def workgroup_broadcast(x: Any, source: Any = 0) -> Any:
    """The value of one invocation of the workgroup, by its local index, for all of them."""
    if isinstance(x, Vector):
        return x.mapped(lambda item: workgroup_broadcast(item, source))
    recorder, count, scalar = _begin("workgroup_broadcast", x)
    return _same(recorder, _shown(recorder, scalar, count), source)


def uniform(x: Any) -> Any:
    """A value that is the same for all invocations of the workgroup, which khaljit cannot see.

    Asserts that it is, and may then decide a branch or loop with barriers in it. Must be reached by
    the whole workgroup together, as `barrier` must.
    """
    if isinstance(x, Vector):
        return x.mapped(uniform)
    recorder, count, scalar = _begin("uniform", x)
    found = _same(recorder, _shown(recorder, scalar, count), 0)
    bits = UNSIGNED.get(scalar.dtype.bits) if scalar.dtype.is_float else None
    equal = found == scalar if bits is None else bitcast(found, bits) == bitcast(scalar, bits)
    note = Note("kj.uniform: {} is not the workgroup's {}", recorder.note_site())
    recorder.builder.effect(Op.ASSERT, (truth(equal), scalar.value, found.value), note)
    return found
