"""Collectives of a subgroup. All its lanes come to one together; vectors go component by component.

A lane that asks for the value of one outside its subgroup gets its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from khaljit.tracer import dtypes
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.dtypes import DType, bool_, u32
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
    "subgroup_exclusive_max",
    "subgroup_exclusive_min",
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


_F = TypeVar("_F", bound=Callable[..., Any])

# What a collective takes, in the words of messages.
_NUMBERS: Final = "a number"
_BITS: Final = "an integer or a bool"
_CONDITION: Final = "a condition"
_ANY: Final = ""


def _takes(what: str, dtype: DType) -> bool:
    """Whether a collective that takes something takes a dtype."""
    if what == _CONDITION:
        return dtype is bool_
    return not (what == _NUMBERS and dtype is bool_) and not (what == _BITS and dtype.is_float)


def _subgroup(kind: str, what: str, x: Any, *more: Any) -> Any:
    if isinstance(x, Vector):
        return x.mapped(lambda item: _subgroup(kind, what, item, *more))
    recorder = current(f"kj.subgroup_{kind}")
    recorder.mark()
    scalar = to_scalar(recorder, x)
    if not _takes(what, scalar.dtype):
        fail(f"kj.subgroup_{kind} takes {what}, not {scalar.dtype.name}", _MENDS[what])
    others = tuple(to_scalar(recorder, one, dtypes.index) for one in more)
    for one in others:
        if not one.dtype.is_integer:
            fail(f"kj.subgroup_{kind} takes a lane, not {one.dtype.name}", "cast: kj.i32(...)")
    dtype = u32 if kind == "ballot" else scalar.dtype
    operands = (scalar.value, *(one.value for one in others))
    return Scalar(recorder, recorder.builder.effect(Op.SUBGROUP, operands, kind, dtype))


_MENDS: Final = {
    _NUMBERS: "cast to a number: kj.i32(flag)",
    _BITS: "take its bits: kj.bitcast(x, kj.u32)",
    _CONDITION: "compare: x != 0",
}


def _of_one(kind: str, what: str, text: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return _subgroup(kind, what, x)

    return _named(function, kind, text)


def _of_two(kind: str, text: str) -> Callable[[Any, Any], Any]:
    def function(x: Any, lane: Any) -> Any:
        return _subgroup(kind, _ANY, x, lane)

    return _named(function, kind, text)


def _named(function: _F, kind: str, text: str) -> _F:
    function.__name__ = function.__qualname__ = f"subgroup_{kind}"
    function.__doc__ = text
    return function


subgroup_add = _of_one("add", _NUMBERS, "The sum over the subgroup.")
subgroup_mul = _of_one("mul", _NUMBERS, "The product over the subgroup.")
subgroup_min = _of_one("min", _NUMBERS, "The least over the subgroup.")
subgroup_max = _of_one("max", _NUMBERS, "The greatest over the subgroup.")
subgroup_and = _of_one("and", _BITS, "The common bits of the subgroup.")
subgroup_or = _of_one("or", _BITS, "The bits that any invocation of the subgroup has.")
subgroup_xor = _of_one("xor", _BITS, "The parity of each bit over the subgroup.")
subgroup_inclusive_add = _of_one("inclusive_add", _NUMBERS, "The sum up to this lane.")
subgroup_exclusive_add = _of_one("exclusive_add", _NUMBERS, "The sum before this lane.")
subgroup_inclusive_mul = _of_one("inclusive_mul", _NUMBERS, "The product up to this lane.")
subgroup_exclusive_mul = _of_one("exclusive_mul", _NUMBERS, "The product before this lane.")
subgroup_inclusive_min = _of_one("inclusive_min", _NUMBERS, "The least up to this lane.")
subgroup_exclusive_min = _of_one(
    "exclusive_min",
    _NUMBERS,
    "The least before this lane; the type's greatest, or infinity, first.",
)
subgroup_inclusive_max = _of_one("inclusive_max", _NUMBERS, "The greatest up to this lane.")
subgroup_exclusive_max = _of_one(
    "exclusive_max",
    _NUMBERS,
    "The greatest before this lane; the type's least, or -infinity, first.",
)
subgroup_broadcast = _of_two("broadcast", "The value of one lane, the same for all that ask.")
subgroup_broadcast_first = _of_one("broadcast_first", _ANY, "The first lane's value.")
subgroup_shuffle = _of_two("shuffle", "The value of the lane that this lane names.")
subgroup_shuffle_xor = _of_two("shuffle_xor", "The value of lane ``lane ^ mask``.")
subgroup_shuffle_up = _of_two("shuffle_up", "The value of the lane that stands so far before.")
subgroup_shuffle_down = _of_two("shuffle_down", "The value of the lane that stands so far behind.")
subgroup_ballot = _of_one(
    "ballot", _CONDITION, "A u32 with a bit for each of the first 32 lanes: the condition holds."
)
subgroup_any = _of_one("any", _CONDITION, "Whether the condition holds for any lane.")
subgroup_all = _of_one("all", _CONDITION, "Whether the condition holds for all lanes.")


def subgroup_elect() -> Any:
    """Whether this is the first lane."""
    recorder = current("kj.subgroup_elect")
    recorder.mark()
    return Scalar(recorder, recorder.builder.effect(Op.SUBGROUP, (), "elect", bool_))
