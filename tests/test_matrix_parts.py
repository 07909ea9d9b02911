"""The behaviour matrix: floats by their parts, in every dtype, on every device; exact results.

The judge is Python's ``math`` on the operands as float64, which holds every float exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import FLOATS, DType, bf16, f32, i8, i32, i64, u8, u32, u64
from tests import plain
from tests.matrix import (
    able,
    array_of,
    each,
    expect,
    kernel,
    operands,
    poisoned,
    scalars,
    unless_able,
)

Rng = np.random.Generator
Array = NDArray[Any]


def memory(dtype: DType, values: list[Any]) -> Array:
    """Numbers that a type holds, as its memory."""
    return np.array([plain.to_memory(plain.of(dtype, one)) for one in values], dtype.numpy)


def floats(dtype: DType, array: Array) -> list[float]:
    return [float(one.value) for one in scalars(dtype, array)]


def applied(function: Callable[..., Any], given: list[Array], dtype: DType, out: Array) -> None:
    """Runs a kernel that stores a function of operands of one type in columns of ``out``."""

    def of_one(out: Any, a: Any) -> None:
        i = kj.global_id(0)
        for k, result in enumerate(function(a[i])):
            out[i, k] = result

    def of_two(out: Any, a: Any, b: Any) -> None:
        i = kj.global_id(0)
        for k, result in enumerate(function(a[i], b[i])):
            out[i, k] = result

    annotations = {one: array_of(dtype) for one in "ab"[: len(given)]}
    body = of_one if len(given) == 1 else of_two
    kernel(body, {"out": array_of(dtype, 2), **annotations})[len(out)](out, *given)


def _fmod(x: float, y: float) -> float:
    try:
        return math.fmod(x, y)
    except ValueError:
        return math.nan


def _remainder(x: float, y: float) -> float:
    try:
        return math.copysign(math.remainder(x, y), x) if abs(x) == 0 else math.remainder(x, y)
    except ValueError:
        return math.nan


def _next(dtype: DType) -> Callable[[float, float], float]:
    """The neighbour by counting the type's numbers in order."""
    width = dtype.bits
    unsigned = np.dtype(f"u{width // 8}")

    def place(x: float) -> int:
        bits = int(memory(dtype, [x]).view(unsigned)[0])
        return bits if bits < 1 << width - 1 else (1 << width - 1) - bits

    def number(place: int) -> float:
        bits = place if place >= 0 else (1 << width - 1) - place
        return floats(dtype, np.array([bits], unsigned).view(dtype.numpy))[0]

    def neighbour(x: float, y: float) -> float:
        if math.isnan(x) or math.isnan(y):
            return math.nan
        if x == y:
            return y
        moved = place(x) + (1 if y > x else -1)
        return number(moved) if moved else math.copysign(0.0, x)

    return neighbour


# Name: of two operands.
_PAIRS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "copysign": math.copysign,
    "fmod": _fmod,
    "remainder": _remainder,
}


@each(FLOATS)
def test_functions_of_two_are_exact(device: Device, rng: Rng, dtype: DType) -> None:
    a, b = operands(rng, dtype, 2)
    judges = {**_PAIRS, "nextafter": _next(dtype)}
    out = poisoned((a.size, len(judges)), dtype)
    with unless_able(able(device, dtype)):
        applied(lambda x, y: [getattr(kj, name)(x, y) for name in judges], [a, b], dtype, out)
    if not able(device, dtype):
        return
    pairs = list(zip(floats(dtype, a), floats(dtype, b), strict=True))
    for column, (name, judge) in zip(out.T, judges.items(), strict=True):
        expected = memory(dtype, [judge(x, y) for x, y in pairs])
        expect(device, dtype, column.copy(), expected, [(dtype, a), (dtype, b)], name)


def _fract(dtype: DType) -> Callable[[float], float]:
    def fract(x: float) -> float:
        return (
            float(plain.of(dtype, x - float(np.floor(x))).value) if math.isfinite(x) else math.nan
        )

    return fract


@each(FLOATS)
def test_functions_of_one_are_exact(device: Device, rng: Rng, dtype: DType) -> None:
    (a,) = operands(rng, dtype, 1)
    out = poisoned((a.size, 5), dtype)

    def function(x: Any) -> list[Any]:
        mantissa, exponent = kj.frexp(x)
        return [kj.fract(x), *kj.modf(x), mantissa, exponent]

    with unless_able(able(device, dtype)):
        applied(function, [a], dtype, out)
    if not able(device, dtype):
        return
    given = floats(dtype, a)
    judges: list[Callable[[float], Any]] = [
        _fract(dtype),
        lambda x: math.modf(x)[0],
        lambda x: math.modf(x)[1],
        lambda x: math.frexp(x)[0],
        lambda x: math.frexp(x)[1],
    ]
    for column, judge in zip(out.T, judges, strict=True):
        expected = memory(dtype, [float(judge(x)) for x in given])
        expect(device, dtype, column.copy(), expected, [(dtype, a)])


def _scaled(dtype: DType, x: float, exponent: int) -> float:
    """x * 2**exponent rounded once: in f64 it is exact, or as f64 has it."""
    if not math.isfinite(x) or x == 0:
        return x
    try:
        wide = math.ldexp(x, exponent)
    except OverflowError:
        return math.copysign(math.inf, x)
    with np.errstate(over="ignore"):
        return float(plain.of(dtype, wide).value)


@pytest.mark.parametrize("integer", [i8, u8, i32, u32, i64, u64], ids=str)
@each(FLOATS)
def test_ldexp_rounds_once(device: Device, rng: Rng, dtype: DType, integer: DType) -> None:
    (a,) = operands(rng, dtype, 1)
    low, high = integer.limits
    reach = {f32: 300, bf16: 300}.get(dtype, 50 if dtype.bits == 16 else 2200)
    exponents = rng.integers(max(low, -reach), min(high, reach), a.size, endpoint=True)
    n = exponents.astype(integer.numpy)
    n[:4] = low, high, 0, 1
    out = poisoned(a.size, dtype)

    def body(out: Any, a: Any, n: Any) -> None:
        i = kj.global_id(0)
        out[i] = kj.ldexp(a[i], n[i])

    types = {"out": array_of(dtype), "a": array_of(dtype), "n": array_of(integer)}
    with unless_able(able(device, dtype)):
        kernel(body, types)[a.size](out, a, n)
    if not able(device, dtype):
        return
    pairs = zip(floats(dtype, a), n.tolist(), strict=True)
    expected = memory(dtype, [_scaled(dtype, x, k) for x, k in pairs])
    expect(device, dtype, out, expected, [(dtype, a)])


def test_ldexp_of_a_float_exponent_is_refused(device: Device) -> None:
    @kj.jit
    def body(out: kj.Array1[kj.f32]) -> None:
        out[0] = kj.ldexp(out[0], out[0])  # type: ignore[call-overload]  # what is refused

    with pytest.raises(kj.TraceError, match="the exponent is an integer"):
        body[1](np.zeros(1, np.float32))


def test_vectors_go_component_by_component(device: Device) -> None:
    @kj.jit
    def body(a: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
        v = kj.vec3(a[0], a[1], a[2])
        mantissa, exponent = kj.frexp(v)
        back = kj.ldexp(mantissa, exponent)
        signed = kj.copysign(back, -1.0)
        sine, cosine = kj.sincos(kj.vec2(a[0], a[1]))
        for k in range(3):
            out[k] = back[k]
            out[3 + k] = signed[k]
        out[6] = sine.x * sine.x + cosine.x * cosine.x
        out[7] = kj.fmod(v, kj.vec3(1.0, 2.0, 3.0)).z

    a = np.array([1.5, -2.25, 5.0], np.float32)
    out = np.zeros(8, np.float32)
    body[1](a, out)
    np.testing.assert_array_equal(out[:3], a)
    np.testing.assert_array_equal(out[3:6], -abs(a))
    assert out[6] == pytest.approx(1.0, abs=1e-6)
    assert out[7] == 2.0


def test_vectors_of_different_lengths_are_refused(device: Device) -> None:
    @kj.jit
    def body(out: kj.Array1[kj.f32]) -> None:
        out[0] = kj.fmod(kj.vec2(1.0, 2.0), kj.vec3(1.0, 2.0, 3.0)).x

    with pytest.raises(kj.TraceError, match=r"kj\.fmod of vectors of 2 and 3"):
        body[1](np.zeros(1, np.float32))


def test_host_names_mean_these_functions(device: Device) -> None:
    @kj.jit(contract=False)
    def body(a: kj.Array1[kj.f32], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        x = a[i]
        out[0, i] = math.fmod(x, 0.75) - kj.fmod(x, 0.75)
        out[1, i] = math.remainder(x, 0.75) - kj.remainder(x, 0.75)
        out[2, i] = math.ldexp(x, 3) - np.ldexp(x, 3)
        out[3, i] = math.frexp(x)[0] - np.frexp(x)[0]
        out[4, i] = math.nextafter(x, 9.0) - np.nextafter(x, np.float32(9))
        out[5, i] = math.modf(x)[0] - np.modf(x)[0]
        out[6, i] = np.fmod(x, 0.75) - math.fmod(x, 0.75)
        out[7, i] = math.hypot(x, 2.0, 3.0) - kj.hypot(kj.hypot(x, 2.0), 3.0)
        out[8, i] = kj.f32(np.signbit(x)) - kj.f32(kj.signbit(x))
        out[9, i] = np.deg2rad(x) - math.radians(x)
        out[10, i] = np.fix(x) - math.trunc(x)
        out[11, i] = np.reciprocal(x) - 1.0 / x
        out[12, i] = kj.f32(np.less(x, 1.0)) - kj.f32(x < 1.0)

    a = np.array([0.5, -1.75, 3.25, 100.5], np.float32)
    out = np.full((13, 4), 7, np.float32)
    body[4](a, out)
    np.testing.assert_array_equal(out, 0)
