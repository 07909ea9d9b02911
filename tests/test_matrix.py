"""The behaviour matrix: every operation of numbers in every dtype, on every device.

The judge is plain Python: integers without end that are wrapped, NumPy's floats, and exact
fractions that are rounded once. Memory and what invocations share stand in
``test_matrix_memory.py``, elementary functions in ``test_matrix_functions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import (
    ALL,
    FLOATS,
    INTEGERS,
    DType,
    Kind,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    index,
)
from tests import plain
from tests.agreement import comparable
from tests.matrix import (
    Operation,
    able,
    array_of,
    each,
    expect,
    judged,
    kernel,
    operands,
    poisoned,
    scalars,
    unless_able,
)

Rng = np.random.Generator

_UNSIGNED: Final = tuple(dtype for dtype in INTEGERS if dtype.kind is Kind.UNSIGNED)
_NUMBERS: Final = (*INTEGERS, *FLOATS)


# Integers.

_INTEGER: Final[Mapping[str, Operation]] = {
    "x + y": lambda kj, x, y: x + y,
    "x - y": lambda kj, x, y: x - y,
    "x * y": lambda kj, x, y: x * y,
    "x // y": lambda kj, x, y: x // y,
    "x % y": lambda kj, x, y: x % y,
    "x & y": lambda kj, x, y: x & y,
    "x | y": lambda kj, x, y: x | y,
    "x ^ y": lambda kj, x, y: x ^ y,
    "x << y": lambda kj, x, y: x << y,
    "x >> y": lambda kj, x, y: x >> y,
    "min": lambda kj, x, y: kj.min(x, y),
    "max": lambda kj, x, y: kj.max(x, y),
    "minimum": lambda kj, x, y: kj.minimum(x, y),
    "maximum": lambda kj, x, y: kj.maximum(x, y),
    "mulhi": lambda kj, x, y: kj.mulhi(x, y),
    "select": lambda kj, x, y: kj.select(x < y, x, y),
    "clamp": lambda kj, x, y: kj.clamp(x, y, 100),
    "-x": lambda kj, x, y: -x,
    "~x": lambda kj, x, y: ~x,
    "abs": lambda kj, x, y: kj.abs(x),
    "sign": lambda kj, x, y: kj.sign(x),
    "reverse_bits": lambda kj, x, y: kj.reverse_bits(x),
    "floor": lambda kj, x, y: kj.floor(x),
    "x + 3": lambda kj, x, y: x + 3,
    "3 - x": lambda kj, x, y: 3 - x,
    "x * 7": lambda kj, x, y: x * 7,
    "x // 3": lambda kj, x, y: x // 3,
    "x // 8": lambda kj, x, y: x // 8,
    "x % 7": lambda kj, x, y: x % 7,
    "x % 16": lambda kj, x, y: x % 16,
    "100 // y": lambda kj, x, y: 100 // y,
    "100 % y": lambda kj, x, y: 100 % y,
    "x << 5": lambda kj, x, y: x << 5,
    "x >> 3": lambda kj, x, y: x >> 3,
    "x << 70": lambda kj, x, y: x << 70,
    "x >> 70": lambda kj, x, y: x >> 70,
    "1 << y": lambda kj, x, y: 1 << y,
    "x ** 0": lambda kj, x, y: x**0,
    "x ** 3": lambda kj, x, y: x**3,
    "x ** 13": lambda kj, x, y: x**13,
}


@each(INTEGERS)
def test_integer_arithmetic_wraps_and_is_total(device: Device, rng: Rng, dtype: DType) -> None:
    given = [(dtype, array) for array in operands(rng, dtype, 2)]
    judged(device, _INTEGER, given, dtype)


_SIGNED: Final[Mapping[str, Operation]] = {
    "x // -3": lambda kj, x, y: x // -3,
    "x % -7": lambda kj, x, y: x % -7,
    "-100 // y": lambda kj, x, y: -100 // y,
    "-1 % y": lambda kj, x, y: -1 % y,
    "x >> -1": lambda kj, x, y: x >> -1,
    "x << -1": lambda kj, x, y: x << -1,
}


@each(tuple(dtype for dtype in INTEGERS if dtype.is_signed))
def test_negative_divisors_and_amounts(device: Device, rng: Rng, dtype: DType) -> None:
    judged(device, _SIGNED, [(dtype, array) for array in operands(rng, dtype, 2)], dtype)


@each(INTEGERS)
def test_powers_wrap_and_negative_exponents_give_zero(
    device: Device, rng: Rng, dtype: DType
) -> None:
    base, exponent = operands(rng, dtype, 2, 457)
    judged(device, {"x ** y": lambda kj, x, y: x**y}, [(dtype, base), (dtype, exponent)], dtype)


_COUNTS: Final[Mapping[str, Operation]] = {
    "popcount": lambda kj, x: kj.popcount(x),
    "clz": lambda kj, x: kj.clz(x),
    "ctz": lambda kj, x: kj.ctz(x),
}


@each(INTEGERS)
def test_bit_counts_are_i32(device: Device, rng: Rng, dtype: DType) -> None:
    judged(device, _COUNTS, [(dtype, operands(rng, dtype, 1)[0])], i32)


_FIELDS: Final[Mapping[str, Operation]] = {
    "extract_bits": lambda kj, x, y, z: kj.extract_bits(x, 3, 4),
    "extract_bits run-time": lambda kj, x, y, z: kj.extract_bits(x, z & 3, (z >> 2) & 3),
    "extract_bits all": lambda kj, x, y, z: kj.extract_bits(x, 0, x.dtype.bits),
    "insert_bits": lambda kj, x, y, z: kj.insert_bits(x, y, 2, 5),
    "insert_bits run-time": lambda kj, x, y, z: kj.insert_bits(x, y, z & 3, (z >> 2) & 3),
    "insert_bits all": lambda kj, x, y, z: kj.insert_bits(x, y, 0, x.dtype.bits),
}


@each(INTEGERS)
def test_bit_fields(device: Device, rng: Rng, dtype: DType) -> None:
    judged(device, _FIELDS, [(dtype, array) for array in operands(rng, dtype, 3)], dtype)


_ROTATIONS: Final[Mapping[str, Operation]] = {
    "rotate": lambda kj, x, y: kj.rotate(x, y),
    "rotate 0": lambda kj, x, y: kj.rotate(x, 0),
    "rotate 3": lambda kj, x, y: kj.rotate(x, 3),
    "rotate -1": lambda kj, x, y: kj.rotate(x, -1),
    "rotate 69": lambda kj, x, y: kj.rotate(x, 69),
}


@each(_UNSIGNED)
def test_rotations(device: Device, rng: Rng, dtype: DType) -> None:
    judged(device, _ROTATIONS, [(dtype, array) for array in operands(rng, dtype, 2)], dtype)


# Floats.

_FLOAT: Final[Mapping[str, Operation]] = {
    "x + y": lambda kj, x, y: x + y,
    "x - y": lambda kj, x, y: x - y,
    "x * y": lambda kj, x, y: x * y,
    "x / y": lambda kj, x, y: x / y,
    "min": lambda kj, x, y: kj.min(x, y),
    "max": lambda kj, x, y: kj.max(x, y),
    "minimum": lambda kj, x, y: kj.minimum(x, y),
    "maximum": lambda kj, x, y: kj.maximum(x, y),
    "select": lambda kj, x, y: kj.select(x < y, x, y),
    "clamp": lambda kj, x, y: kj.clamp(x, y, 1.5),
    "-x": lambda kj, x, y: -x,
    "abs": lambda kj, x, y: kj.abs(x),
    "sign": lambda kj, x, y: kj.sign(x),
    "copysign": lambda kj, x, y: kj.copysign(x, kj.select(kj.isnan(y), 1.0, y)),
    "sqrt": lambda kj, x, y: kj.sqrt(x),
    "floor": lambda kj, x, y: kj.floor(x),
    "ceil": lambda kj, x, y: kj.ceil(x),
    "trunc": lambda kj, x, y: kj.trunc(x),
    "round": lambda kj, x, y: kj.round(x),
    "x + 0.1": lambda kj, x, y: x + 0.1,
    "2 - x": lambda kj, x, y: 2 - x,
    "x * 2.5": lambda kj, x, y: x * 2.5,
    "x / 3": lambda kj, x, y: x / 3,
    "1 / y": lambda kj, x, y: 1 / y,
    "x ** 1": lambda kj, x, y: x**1,
    "x ** 2": lambda kj, x, y: x**2,
    "x ** 3": lambda kj, x, y: x**3,
}
_LOOSE: Final = dict.fromkeys(("x / y", "x / 3", "1 / y", "sqrt"), 2)


@each(FLOATS)
def test_float_arithmetic_is_correctly_rounded(device: Device, rng: Rng, dtype: DType) -> None:
    given = [(dtype, array) for array in operands(rng, dtype, 2)]
    loose = _LOOSE if dtype is not f16 else {**_LOOSE, "x ** 3": 1}  # one rounding or two
    judged(device, _FLOAT, given, dtype, loose)


@each(FLOATS)
def test_floor_division_and_modulo_of_floats(device: Device, rng: Rng, dtype: DType) -> None:
    given = [(dtype, array) for array in operands(rng, dtype, 2, 457)]
    table: Mapping[str, Operation] = {
        "x // y": lambda kj, x, y: x // y,
        "x % y": lambda kj, x, y: x % y,
        "x % 0.3": lambda kj, x, y: x % 0.3,
    }
    judged(device, table, given, dtype)


@each(FLOATS)
def test_fma_rounds_once(device: Device, rng: Rng, dtype: DType) -> None:
    given = [(dtype, array) for array in operands(rng, dtype, 3)]
    table: Mapping[str, Operation] = {"fma": lambda kj, x, y, z: kj.fma(x, y, z)}
    judged(device, table, given, dtype, others=[{"fma": lambda kj, x, y, z: x * y + z}])


_SUMS: Final[Mapping[str, Operation]] = {
    "x * y + z": lambda kj, x, y, z: x * y + z,
    "z + x * y": lambda kj, x, y, z: z + x * y,
    "x * y - z": lambda kj, x, y, z: x * y - z,
    "z - x * y": lambda kj, x, y, z: z - x * y,
    "x * y + y * z": lambda kj, x, y, z: x * y + y * z,
}
_FUSED: Final[Mapping[str, Operation]] = {
    "x * y + z": lambda kj, x, y, z: kj.fma(x, y, z),
    "z + x * y": lambda kj, x, y, z: kj.fma(x, y, z),
    "x * y - z": lambda kj, x, y, z: kj.fma(x, y, -z),
    "z - x * y": lambda kj, x, y, z: kj.fma(-x, y, z),
    "x * y + y * z": lambda kj, x, y, z: kj.fma(y, z, x * y),
}


# What f16 may be where products, or all, are computed with the precision of f32.
_FUSED_FIRST: Final[Mapping[str, Operation]] = {
    **_FUSED,
    "x * y + y * z": lambda kj, x, y, z: kj.fma(x, y, y * z),
}


def _widely(operation: Operation) -> Operation:
    return lambda kj, x, y, z: kj.f16(operation(kj, kj.f64(x), kj.f64(y), kj.f64(z)))


_WIDE: Final = {name: _widely(operation) for name, operation in _SUMS.items()}


@pytest.mark.parametrize("contract", [False, True])
@each(FLOATS)
def test_products_and_sums_contract_as_told(
    device: Device, rng: Rng, dtype: DType, contract: bool
) -> None:
    given = [(dtype, array) for array in operands(rng, dtype, 3)]
    fused = contract and dtype in (f32, f64)

    def chosen(name: str) -> Operation:
        # The kernel takes the sum; the judge, which never contracts, what the rule makes of it.
        written, meant = _SUMS[name], _FUSED[name] if fused else _SUMS[name]
        return lambda names, x, y, z: (meant if names is plain.NAMES else written)(names, x, y, z)

    table = {name: chosen(name) for name in _SUMS}
    others = [_SUMS] if fused else [_FUSED, _FUSED_FIRST, _WIDE] if dtype is f16 else []
    judged(device, table, given, dtype, others=others, contract=contract)


_CLASSES: Final[Mapping[str, Operation]] = {
    "isnan": lambda kj, x: kj.isnan(x),
    "isinf": lambda kj, x: kj.isinf(x),
    "isfinite": lambda kj, x: kj.isfinite(x),
}


@each(FLOATS)
def test_classes_of_floats(device: Device, rng: Rng, dtype: DType) -> None:
    judged(device, _CLASSES, [(dtype, operands(rng, dtype, 1)[0])], bool_)


# Comparisons and conditions.

_COMPARISONS: Final[Mapping[str, Operation]] = {
    "x == y": lambda kj, x, y: x == y,
    "x != y": lambda kj, x, y: x != y,
    "x < y": lambda kj, x, y: x < y,
    "x <= y": lambda kj, x, y: x <= y,
    "x > y": lambda kj, x, y: x > y,
    "x >= y": lambda kj, x, y: x >= y,
    "x < -1": lambda kj, x, y: x < -1,
    "300 > x": lambda kj, x, y: x < 300,
    "x == 2": lambda kj, x, y: x == 2,
    "0 < x <= y": lambda kj, x, y: 0 < x <= y,
    "bool": lambda kj, x, y: kj.bool(x),
    "not": lambda kj, x, y: not x < y,
    "and": lambda kj, x, y: x < y and y < 3,
    "or": lambda kj, x, y: x < y or y < 3,
}


@each(_NUMBERS)
def test_comparisons(device: Device, rng: Rng, dtype: DType) -> None:
    judged(device, _COMPARISONS, [(dtype, array) for array in operands(rng, dtype, 2)], bool_)


_LOGIC: Final[Mapping[str, Operation]] = {
    "x & y": lambda kj, x, y: x & y,
    "x | y": lambda kj, x, y: x | y,
    "x ^ y": lambda kj, x, y: x ^ y,
    "~x": lambda kj, x, y: ~x,
    "x == y": lambda kj, x, y: x == y,
    "x != y": lambda kj, x, y: x != y,
    "x < y": lambda kj, x, y: x < y,
    "x >= y": lambda kj, x, y: x >= y,
    "not": lambda kj, x, y: not x,
    "and": lambda kj, x, y: x and y,
    "or": lambda kj, x, y: x or y,
    "select": lambda kj, x, y: kj.select(x, y, True),
    "i32": lambda kj, x, y: kj.i32(x) + kj.i32(y) == 1,
}


def test_logic(device: Device, rng: Rng) -> None:
    judged(device, _LOGIC, [(bool_, array) for array in operands(rng, bool_, 2, 101)], bool_)


# Types that meet.


@each(ALL)
def test_casts_to_every_type(device: Device, rng: Rng, dtype: DType) -> None:
    size = 401
    source = operands(rng, dtype, 1, size)[0]
    targets = [one for one in ALL if able(device, one, dtype)] or [f64]

    def body(a: Any, outs: Any) -> None:
        i = kj.global_id(0)
        for target, out in zip(targets, outs, strict=True):
            out[i] = target(a[i])

    outs = tuple(poisoned(size, one) for one in targets)
    annotations = {"a": array_of(dtype), "outs": tuple[tuple(map(array_of, targets))]}  # type: ignore[misc]  # made at run time
    with unless_able(able(device, dtype)):
        kernel(body, annotations)[size](source, outs)
    if not able(device, dtype):
        return
    with np.errstate(all="ignore"):
        for target, out in zip(targets, outs, strict=True):
            cast = [plain.of(target, one) for one in scalars(dtype, source)]
            expected = np.array([plain.to_memory(one) for one in cast], target.numpy)
            expect(device, target, out, expected, [(dtype, source)], f"{target.name}(x)")


@each(tuple(dtype for dtype in ALL if dtype is not bool_))
def test_bitcasts(device: Device, rng: Rng, dtype: DType) -> None:
    source = operands(rng, dtype, 1)[0]
    if dtype.is_float:  # the bits of a NaN are unspecified
        plain_bits = comparable(dtype, source)
        nan = comparable(dtype, np.array([0x7FC0 if dtype is bf16 else np.nan], dtype.numpy))
        source[plain_bits == nan] = 0
    for target in ALL:
        if target is bool_ or target.bits != dtype.bits:
            continue
        table = {"bitcast": lambda kj, x, name=target.name: kj.bitcast(x, getattr(kj, name))}
        judged(device, table, [(dtype, source)], target)


def common(a: DType, b: DType) -> DType | None:
    """The type of a sum: NumPy's, but that integers give way to floats as they are, and that
    what only f64 would hold has none."""
    if a is b:
        return a
    if bool_ in (a, b):
        return a if b is bool_ else b
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if {a, b} == {f16, bf16}:
        return f32
    if a.is_float:
        return max(a, b, key=lambda one: one.bits)
    if a.bits == b.bits:  # of different sign
        return None
    numpy = np.result_type(a.numpy, b.numpy)
    return next((one for one in INTEGERS if one.numpy == numpy), None)


@each(_NUMBERS)
def test_types_that_meet(dtype: DType) -> None:
    for other in ALL:
        found: list[DType] = []

        def body(a: Any, b: Any, found: list[DType] = found) -> None:
            found[:] = [(a[0] + b[0]).dtype, (b[0] * a[0]).dtype, (a[0] + kj.global_id(0)).dtype]

        def noted(a: Any, b: Any) -> None:
            body(a, b)  # called in this very round

        expected = common(dtype, other)
        made = kernel(noted, {"a": array_of(dtype), "b": array_of(other)})
        arrays = (np.zeros(1, dtype.numpy), np.zeros(1, other.numpy))
        if expected is None:
            with pytest.raises(kj.TraceError, match="no type holds both"):
                made.trace(*arrays)
        else:
            made.trace(*arrays)
            assert found == [expected, expected, dtype], f"{dtype.name} with {other.name}"


@each(INTEGERS)
def test_quotients_of_integers_are_floats(device: Device, rng: Rng, dtype: DType) -> None:
    result = f64 if dtype.bits == 64 else f32
    given = [(dtype, array) for array in operands(rng, dtype, 2)]
    table: Mapping[str, Operation] = {
        "x / y": lambda kj, x, y: x / y,
        "x / 2": lambda kj, x, y: x / 2,
        "x + 0.5": lambda kj, x, y: x + 0.5,
    }
    judged(device, table, given, result, {"x / y": 2})


def test_index_takes_the_type_that_it_meets() -> None:
    for dtype in _NUMBERS:
        found: list[DType] = []

        def body(a: Any, found: list[DType] = found) -> None:
            i = kj.global_id(0)
            one: Any = i + 1
            found[:] = [(i + a[i]).dtype, (a.size * a[i]).dtype, one.dtype]

        def noted(a: Any) -> None:
            body(a)  # called in this very round

        kernel(noted, {"a": array_of(dtype)}).trace(np.zeros(1, dtype.numpy))
        assert found == [dtype, dtype, index]
