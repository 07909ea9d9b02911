"""Bits of integers, and the bits of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from khaljit.tracer import dtypes
from khaljit.tracer.arithmetic import binary, compare, select
from khaljit.tracer.coerce import cast, like, to_scalar
from khaljit.tracer.dtypes import DType, bool_, u32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, fail
from khaljit.tracer.recorder import current

__all__ = [
    "bitcast",
    "clz",
    "ctz",
    "extract_bits",
    "insert_bits",
    "mulhi",
    "popcount",
    "reverse_bits",
    "rotate",
]


def bitcast(x: Any, dtype: DType) -> Any:
    """The same bits as another type of the same width."""
    if is_vector(x):
        return x.mapped(lambda item: bitcast(item, dtype))
    recorder = current("kj.bitcast")
    recorder.mark()
    scalar = to_scalar(recorder, x)
    if (
        scalar.dtype is dtypes.index
        or scalar.dtype.bits != dtype.bits
        or bool_ in (scalar.dtype, dtype)
    ):
        fail(
            f"the bits of {scalar.dtype.name} do not make {dtype.name}",
            "both types need the same width; cast first",
        )
    return Scalar(recorder, recorder.builder.bitcast(scalar.value, dtype))


def _bit_function(op: Op, text: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if is_vector(x):
            return x.mapped(function)
        recorder = current(f"kj.{op.value}")
        recorder.mark()
        scalar = to_scalar(recorder, x)
        if not scalar.dtype.is_integer:
            fail(f"kj.{op.value} of {scalar.dtype.name}", "it takes integers: cast or kj.bitcast")
        return Scalar(recorder, recorder.builder.pure(op, (scalar.value,)))

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


popcount = _bit_function(Op.POPCOUNT, "How many bits are set; an i32.")
clz = _bit_function(Op.CLZ, "Zero bits above the highest set one; the width for 0; an i32.")
ctz = _bit_function(Op.CTZ, "Zero bits below the lowest set one; the width for 0; an i32.")
reverse_bits = _bit_function(Op.REVERSE_BITS, "The bits in the opposite order.")


def mulhi(a: Any, b: Any) -> Any:
    """The upper half of the double-width product of two integers."""
    current("kj.mulhi")
    return binary(Op.MULHI, a, b)


def rotate(x: Any, amount: Any) -> Any:
    """The bits moved up cyclically by an amount (taken modulo the width); unsigned types."""
    recorder = current("kj.rotate")
    scalar = to_scalar(recorder, x, u32)
    if scalar.dtype.kind is not dtypes.Kind.UNSIGNED:
        fail(f"kj.rotate of {scalar.dtype.name}", "cast to an unsigned type first")
    bits = scalar.dtype.bits
    up = cast(amount, scalar.dtype) & (bits - 1)
    return (scalar << up) | (scalar >> ((bits - up) & (bits - 1)))


def extract_bits(x: Any, offset: Any, count: Any) -> Any:
    """``count`` bits from bit ``offset`` up; sign-extended for signed types."""
    recorder = current("kj.extract_bits")
    scalar = to_scalar(recorder, x)
    bits = scalar.dtype.bits
    count = cast(count, scalar.dtype)
    left = bits - count - cast(offset, scalar.dtype)
    return select(compare(Op.EQ, count, 0), like(scalar, 0), (scalar << left) >> (bits - count))


def insert_bits(x: Any, new: Any, offset: Any, count: Any) -> Any:
    """``x`` with ``count`` bits from bit ``offset`` up replaced by the low bits of ``new``."""
    recorder = current("kj.insert_bits")
    scalar = to_scalar(recorder, x)
    offset = cast(offset, scalar.dtype)
    ones = ~(like(scalar, -1) << cast(count, scalar.dtype))
    mask = ones << offset
    return (scalar & ~mask) | ((cast(new, scalar.dtype) << offset) & mask)
