"""Collectives of a subgroup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from khaljit.tracer import dtypes
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.dtypes import bool_, u32
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.recorder import current

__all__ = [
    "subgroup_add",
    "subgroup_all",
    "subgroup_and",
    "subgroup_any",
    "subgroup_ballot",
    "subgroup_broadcast",
    "subgroup_broadcast_first",
    "subgroup_elect",
    "subgroup_exclusive_add",
    "subgroup_exclusive_mul",
    "subgroup_inclusive_add",
    "subgroup_inclusive_max",
    "subgroup_inclusive_min",
    "subgroup_inclusive_mul",
    "subgroup_max",
    "subgroup_min",
    "subgroup_mul",
    "subgroup_or",
    "subgroup_shuffle",
    "subgroup_shuffle_down",
    "subgroup_shuffle_up",
    "subgroup_shuffle_xor",
    "subgroup_xor",
]


def _subgroup(kind: str, x: Any, *more: Any) -> Any:
    if isinstance(x, Vector):
        return x.mapped(lambda item: _subgroup(kind, item, *more))
    recorder = current(f"kj.subgroup_{kind}")
    recorder.mark()
    scalar = to_scalar(recorder, x)
    others = tuple(to_scalar(recorder, one, dtypes.index).value for one in more)
    dtype = {"ballot": u32}.get(kind, scalar.dtype)
    if kind in ("ballot", "any", "all") and scalar.dtype is not bool_:
        fail(f"kj.subgroup_{kind} takes a condition, not {scalar.dtype.name}")
    value = recorder.builder.effect(Op.SUBGROUP, (scalar.value, *others), kind, dtype)
    return Scalar(recorder, value)


def _subgroup_function(kind: str, text: str) -> Callable[..., Any]:
    def function(x: Any, *more: Any) -> Any:
        return _subgroup(kind, x, *more)

    function.__name__ = function.__qualname__ = f"subgroup_{kind}"
    function.__doc__ = text
    return function


subgroup_add = _subgroup_function("add", "The sum over the subgroup.")
subgroup_mul = _subgroup_function("mul", "The product over the subgroup.")
subgroup_min = _subgroup_function("min", "The least over the subgroup.")
subgroup_max = _subgroup_function("max", "The greatest over the subgroup.")
subgroup_and = _subgroup_function("and", "The common bits of the subgroup.")
subgroup_or = _subgroup_function("or", "The bits that any invocation of the subgroup has.")
subgroup_xor = _subgroup_function("xor", "The parity of each bit over the subgroup.")
subgroup_inclusive_add = _subgroup_function("inclusive_add", "The sum up to this lane.")
subgroup_exclusive_add = _subgroup_function("exclusive_add", "The sum before this lane.")
subgroup_inclusive_mul = _subgroup_function("inclusive_mul", "The product up to this lane.")
subgroup_exclusive_mul = _subgroup_function("exclusive_mul", "The product before this lane.")
subgroup_inclusive_min = _subgroup_function("inclusive_min", "The least up to this lane.")
subgroup_inclusive_max = _subgroup_function("inclusive_max", "The greatest up to this lane.")
subgroup_broadcast = _subgroup_function("broadcast", "The value of one lane, for all.")
subgroup_broadcast_first = _subgroup_function("broadcast_first", "The lowest active lane's value.")
subgroup_shuffle = _subgroup_function("shuffle", "The value of the lane that this lane names.")
subgroup_shuffle_xor = _subgroup_function("shuffle_xor", "The value of lane ``lane ^ mask``.")
subgroup_shuffle_up = _subgroup_function("shuffle_up", "The value of a lower lane.")
subgroup_shuffle_down = _subgroup_function("shuffle_down", "The value of a higher lane.")
subgroup_ballot = _subgroup_function("ballot", "A bit per lane for which the condition holds.")
subgroup_any = _subgroup_function("any", "Whether the condition holds for any lane.")
subgroup_all = _subgroup_function("all", "Whether the condition holds for all lanes.")


def subgroup_elect() -> Any:
    """Whether this is the lowest active lane."""
    recorder = current("kj.subgroup_elect")
    recorder.mark()
    return Scalar(recorder, recorder.builder.effect(Op.SUBGROUP, (), "elect", bool_))
