"""Types that meet: literals and strong types, casts, and what a store converts."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.build import to_bits, to_number
from khaljit.tracer.dtypes import DType, MixError, bool_, f32, f64, i32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.ir import Value
from khaljit.tracer.proxy import Literal, Proxy, Scalar, Vector, describe, fail, is_literal, live
from khaljit.tracer.recorder import Recorder, recording

__all__ = [
    "cast",
    "fits",
    "like",
    "literal_type",
    "replaced",
    "store_cast",
    "to_scalar",
    "unify",
    "unsettled_type",
]


def literal_type(value: Literal) -> DType:
    """The type of a literal that meets no other type."""
    if isinstance(value, bool):
        return bool_
    return f32 if isinstance(value, float) else i32


def fits(value: Literal, dtype: DType) -> bool:
    """Whether a literal can be of a type without changing what it is (rounding apart)."""
    if dtype.is_float:
        if isinstance(value, float) and not math.isfinite(value):
            return True
        try:
            number = float(value)
        except OverflowError:
            return False
        return math.isfinite(float(to_number(dtype, to_bits(dtype, number))))
    if dtype is bool_:
        return isinstance(value, bool)
    if isinstance(value, float):
        return False
    low, high = dtype.limits
    return low <= value <= high


def to_scalar(recorder: Recorder, value: object, literal: DType | None = None) -> Scalar:
    """A scalar proxy of a number; a literal takes the type ``literal`` (or its own if None)."""
    if isinstance(value, Scalar):
        value._live()
        return value
    if isinstance(value, Enum) and isinstance(value.value, int | float):
        value = value.value
    if is_literal(value):
        assert isinstance(value, bool | int | float)
        dtype = literal or literal_type(value)
        if not dtype.is_float and isinstance(value, float):
            dtype = f64 if dtype.bits == 64 else f32
        if dtype is bool_ and not isinstance(value, bool):
            dtype = literal_type(value)
        if not fits(value, dtype):
            fail(f"the literal {value!r} does not fit {dtype.name}", _literal_mend(value, dtype))
        return Scalar(recorder, recorder.builder.const(dtype, value))
    if isinstance(value, np.generic):
        strong = dtypes.by_numpy(value.dtype)
        if strong is not None:
            number = value.item()
            assert isinstance(number, bool | int | float)
            return Scalar(recorder, recorder.builder.const(strong, number))
    if isinstance(value, np.ndarray):
        fail(
            "a NumPy array is captured by the kernel",
            "pass it as an argument, or make small fixed data kj.constant(array)",
        )
    fail(
        f"{describe(value)} is used as a number",
        "kernels compute with numbers, vectors and array elements; tuples are taken apart by index",
    )


def _literal_mend(value: Literal, dtype: DType) -> str:
    if isinstance(value, float) or dtype.is_float:
        return f"use a wider type: kj.f64({value!r})"
    if value < 0 and not dtype.is_signed and -value <= dtype.limits[1]:
        return f"cast it, which wraps: kj.{dtype.name}({value!r})"
    for wider in (dtypes.i32, dtypes.u32, dtypes.i64, dtypes.u64):
        if fits(value, wider):
            text = f"{value:#x}" if value > 0xFFFF else repr(value)
            return f"say which type is meant: kj.{wider.name}({text})"
    return "no type of khaljit holds it"


def unify(recorder: Recorder, a: object, b: object, what: str) -> tuple[Value, Value]:
    """Two operands as values of one type."""
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        if a.value.dtype is b.value.dtype:
            return a.value, b.value
        return _unify_strong(recorder, a, b, what)
    if isinstance(b, Scalar):
        left = _meet(recorder, a, b)
        return _unify_strong(recorder, left, b, what)
    if isinstance(a, Scalar):
        right = _meet(recorder, b, a)
        return _unify_strong(recorder, a, right, what)
    return _unify_strong(recorder, to_scalar(recorder, a), to_scalar(recorder, b), what)


def _meet(recorder: Recorder, literal: object, other: Scalar) -> Scalar:
    return to_scalar(recorder, literal, other.dtype)


def _unify_strong(recorder: Recorder, a: Scalar, b: Scalar, what: str) -> tuple[Value, Value]:
    dtype = common_type(a, b, what)
    builder = recorder.builder
    return builder.cast(a.value, dtype), builder.cast(b.value, dtype)


def common_type(a: Scalar, b: Scalar, what: str) -> DType:
    if a.dtype is b.dtype:
        return a.dtype
    if a.tentative != b.tentative:
        return unsettled_type(a, b.dtype) if a.tentative else unsettled_type(b, a.dtype)
    try:
        return dtypes.promote(a.dtype, b.dtype)
    except MixError:
        fail(
            f"{what} of {a.dtype.name} and {b.dtype.name}: no type holds both",
            f"cast one: kj.{a.dtype.name}(...) or kj.{b.dtype.name}(...)",
        )


def unsettled_type(loose: Scalar, strong: DType) -> DType:
    """The type of an unsettled loop variable with a settled operand: the operand's, if it can be.

    Where settling the variable as its default type would have given another type, its loop must
    be recorded again once the variable's type is known.
    """
    dtype = strong
    if loose.dtype.is_float and not dtype.is_float:
        dtype = f64 if dtype.bits == 64 else f32
    elif loose.dtype is not bool_ and dtype is bool_:
        dtype = loose.dtype
    try:
        settled = dtypes.promote(loose.dtype, strong)
    except MixError:
        settled = None
    if settled is not dtype:
        loose._recorder.unsettled = True
    return dtype


def cast(value: Any, dtype: DType) -> Any:
    """An explicit cast: any number to any type."""
    if is_vector(value):
        return value.mapped(lambda item: cast(item, dtype))
    recorder = live(value)
    recorder.mark()
    if is_literal(value):
        assert isinstance(value, bool | int | float)
        if not dtype.is_float and isinstance(value, float):
            return Scalar(
                recorder, recorder.builder.const(dtype, int(dtypes.host_cast(dtype, value)))
            )
        return Scalar(recorder, recorder.builder.const(dtype, value))
    scalar = to_scalar(recorder, value)
    return Scalar(recorder, recorder.builder.cast(scalar.value, dtype))


def _recorded_cast(value: object, dtype: DType) -> Any:
    """A cast of a plain number; None where no kernel is being recorded."""
    return None if recording() is None else cast(value, dtype)


dtypes.RECORDED_CASTS.append(_recorded_cast)


def like(value: Any, number: int) -> Any:
    """A number in the type of a value."""
    return cast(number, value.dtype)


def store_cast(recorder: Recorder, value: object, dtype: DType, where: str) -> Scalar:
    """What a store does to a value: integers wrap, floats round, float to integer is refused."""
    if (isinstance(value, Proxy) and not isinstance(value, Scalar)) or isinstance(
        value, tuple | list
    ):
        fail(f"{describe(value)} is stored to {where}, whose type is {dtype.name}")
    if is_literal(value):
        assert isinstance(value, bool | int | float)
        if isinstance(value, float) and not dtype.is_float:
            fail(
                f"the literal {value!r} is stored to {where}, whose type is {dtype.name}",
                f"cast it: kj.{dtype.name}({value!r})",
            )
        if dtype is not bool_:
            return to_scalar(recorder, value, dtype)
    scalar = to_scalar(recorder, value)
    if scalar.dtype.is_float and not dtype.is_float:
        fail(
            f"{scalar.dtype.name} is stored to {where}, whose type is {dtype.name}",
            f"cast it: kj.{dtype.name}(...) truncates and saturates, round(...) rounds",
        )
    if dtype is bool_ and scalar.dtype is not bool_:
        fail(
            f"{scalar.dtype.name} is stored to {where}, whose type is bool",
            "compare it: x != 0",
        )
    return Scalar(recorder, recorder.builder.cast(scalar.value, dtype))


def replaced(vector: Vector, places: tuple[int, ...], value: Any) -> Vector:
    """A vector with some components changed, converted as stores are."""
    if len(set(places)) != len(places):
        fail("a swizzle that is assigned to names a component twice")
    new = value.items if is_vector(value) else (value,)
    if len(new) != len(places):
        fail(f"{describe(value)} does not fit {len(places)} components")
    recorder = live(vector)
    return vector.with_items(
        {
            place: store_cast(recorder, item, vector.dtype, "the component")
            for place, item in zip(places, new, strict=True)
        }
    )
