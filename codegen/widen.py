"""The 16-bit floats on targets that have them, but not all operations: those in f32.

f32 holds more than twice the bits of a significand and two more, so computing there and rounding
rounds once. Casts that the target lacks go through f32 as well, those from wider types rounded to
odd on the way. (Targets without the types themselves: ``narrow.py``.)
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.rounding import f64_to_f32_odd, integer_to_f32_odd
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, bf16, bool_, f16, f32, f64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import COMPARISONS, Op

__all__ = ["NARROW", "cast", "computed"]

NARROW: Final = frozenset({f16, bf16})


def computed(w: Writer, op: Op, args: tuple[Value, ...]) -> Value:
    """An operation on 16-bit floats of one type; fused multiply-add is not among them."""
    result = w.op(op, *(w.cast(arg, f32) for arg in args))
    return result if op in COMPARISONS else w.cast(result, args[0].type)


def cast(w: Writer, value: Value, dtype: DType) -> Value:
    """A value in another type, one of the two a 16-bit float, rounded once."""
    if value.dtype in NARROW:
        return w.cast(w.cast(value, f32), dtype)
    if value.dtype is f64:
        return w.cast(f64_to_f32_odd(w, value), dtype)
    if value.dtype is bool_:
        return w.cast(w.cast(value, f32), dtype)
    return w.cast(integer_to_f32_odd(w, value), dtype)
