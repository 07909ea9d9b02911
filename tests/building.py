"""Traces for the tests of passes: small kernels built by hand, and values that find mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, bf16, bool_
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    Element,
    Memory,
    Options,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.numerics import memory_type
from khaljit.tracer.ops import Op

__all__ = ["array_param", "bits_equal", "edge_values", "kernel", "pointwise", "run_pointwise"]


def array_param(
    number: int, element: DType | Element, ndim: int = 1, same_shape: int | None = None
) -> ArrayParam:
    """An array parameter, contiguous inside."""
    if isinstance(element, DType):
        element = Element.scalar(element)
    memory = Memory(Space.ARRAY, number, element, (None,) * ndim)
    shape = number if same_shape is None else same_shape
    return ArrayParam(f"a{number}", memory, True, True, shape, number)


def kernel(
    build: Callable[[Builder], None],
    arrays: Sequence[ArrayParam] = (),
    scalars: Sequence[DType] = (),
    *,
    workgroup: tuple[int, int, int] | None = None,
    index_bits: int = 32,
    options: Options | None = None,
) -> Trace:
    """A trace whose top region ``build`` fills, its end included unless that is a plain yield."""
    builder = Builder()
    builder.open()
    build(builder)
    if not builder.ended:
        builder.end(Op.YIELD)
    named = tuple(ScalarParam(f"s{k}", dtype) for k, dtype in enumerate(scalars))
    body = builder.close()
    return Trace("kernel", tuple(arrays), named, workgroup, index_bits, options or Options(), body)


def pointwise(
    make: Callable[..., Value],
    operand_types: Sequence[DType],
    result: DType,
    options: Options | None = None,
) -> Trace:
    """out[i] = make(builder, a[i], b[i], ...) over arrays of the operand types, out last."""
    params = [array_param(k, dtype, 1, 0) for k, dtype in enumerate((*operand_types, result))]

    def build(builder: Builder) -> None:
        i = builder.id("global")
        memories = [builder.memory(param.memory) for param in params]
        operands = [
            builder.load(memory, (i,), dtype, Access())
            for memory, dtype in zip(memories[:-1], operand_types, strict=True)
        ]
        builder.store(memories[-1], (i,), make(builder, *operands), Access())

    return kernel(build, params, options=options)


def run_pointwise(trace: Trace, operands: Sequence[Array], result: DType) -> Array:
    """The output of a `pointwise` kernel on arrays of raw memory."""
    count = len(operands[0])
    out = np.zeros(count, memory_type(result))
    interpret(trace, [*(a.copy() for a in operands), out], [], (count, 1, 1))
    return out


def edge_values(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Raw memory of a type: limits, zeros, NaN, infinities, small numbers and random bits."""
    kind = memory_type(dtype)
    if dtype is bool_:
        return rng.integers(0, 2, count, np.uint8)
    unsigned = np.dtype(f"u{kind.itemsize}")
    width = 8 * kind.itemsize
    values: Array = rng.integers(0, 1 << width, count, unsigned, endpoint=False)
    small = rng.integers(-9, 10, count)
    if dtype is bf16:
        numbers = (small / 2).astype(np.float32).view(np.uint32) >> 16
        small_bits: Array = numbers.astype(np.uint16)
    elif dtype.is_float:
        small_bits = (small / 2).astype(kind).view(unsigned)
    else:
        small_bits = small.astype(np.int64).astype(kind).view(unsigned)
    values = np.where(rng.random(count) < 0.3, small_bits, values)
    corners = np.array(_corners(dtype, width), np.uint64).astype(unsigned)
    picked = corners[rng.integers(0, len(corners), count)]
    values = np.where(rng.random(count) < 0.4, picked, values)
    return values.astype(unsigned).view(kind)


def _corners(dtype: DType, width: int) -> list[int]:
    top = 1 << width - 1
    near = [0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]
    if not dtype.is_float:
        return [*near, 7, 8, width - 1, width, width + 1, 2 * top - width]
    mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[dtype.name]
    one = ((1 << width - mantissa - 2) - 1) << mantissa
    infinity = top - (1 << mantissa)
    least = 1 << mantissa  # the least normal number
    halves = [one - 1, one, one + 1, one - (1 << mantissa), one + (1 << mantissa - 1)]
    ends = [infinity, infinity - 1, infinity + (1 << mantissa - 1), least, least - 1, least + 1]
    positive = [0, 1, 2, *halves, *ends, one + (mantissa << mantissa), one + (least >> 1)]
    return [*positive, *(bits + top for bits in positive)]


def bits_equal(dtype: DType, a: Array, b: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where two arrays of raw memory hold the same bits, all NaN being one."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    same = a.view(unsigned) == b.view(unsigned)
    if dtype is bf16:
        return np.asarray(same | ((a & 0x7FFF) > 0x7F80) & ((b & 0x7FFF) > 0x7F80))
    if dtype.is_float:
        return np.asarray(same | np.isnan(a) & np.isnan(b))
    return np.asarray(same)
