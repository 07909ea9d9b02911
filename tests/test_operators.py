"""Operators of the user's own classes in kernels: their code is traced through, on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import khaljit as kj

pytestmark = pytest.mark.usefixtures("device")

Rng = np.random.Generator


@dataclass(frozen=True)
class Interval:
    """With a branch in every operator."""

    low: Any
    high: Any

    def __add__(self, other: Any) -> Interval:
        if isinstance(other, Interval):
            return Interval(self.low + other.low, self.high + other.high)
        return Interval(self.low + other, self.high + other)

    __radd__ = __add__

    def __mul__(self, factor: Any) -> Interval:
        if factor < 0:
            return Interval(self.high * factor, self.low * factor)
        return Interval(self.low * factor, self.high * factor)

    def __rmul__(self, factor: Any) -> Any:
        return self * factor

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __abs__(self) -> Interval:
        if self.low >= 0:
            return self
        if self.high <= 0:
            return -self
        return Interval(self.low * 0, max(-self.low, self.high))

    def __lt__(self, other: Interval) -> Any:
        return self.high < other.low if self.low < self.high else self.low < other.low

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Interval)
        return self.low == other.low and self.high == other.high

    def __contains__(self, x: Any) -> bool:
        return bool(self.low <= x)

    def __len__(self) -> Any:
        return 2

    def __getitem__(self, place: int) -> Any:
        if place == 0:
            return self.low
        return self.high


def ends(rng: Rng, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pair = np.sort(rng.integers(-9, 9, (2, size)).astype(np.float32), axis=0)
    return pair[0], pair[1]


def test_arithmetic_of_a_class_with_branches(rng: Rng) -> None:
    def body(low: Any, high: Any, factor: Any) -> Any:
        a = Interval(low, high)
        b = 1 + a * factor + a + 2
        b += factor * a
        return abs(-b)

    @kj.jit
    def kernel(
        low: kj.Array1[kj.f32],
        high: kj.Array1[kj.f32],
        f: kj.Array1[kj.f32],
        out: kj.Array2[kj.f32],
    ) -> None:
        i = kj.global_id(0)
        b = body(low[i], high[i], f[i])
        out[i, 0], out[i, 1] = b[0], b[1]

    low, high = ends(rng, 101)
    factor = rng.integers(-3, 4, 101).astype(np.float32)
    out = np.full((101, 2), 77, np.float32)
    kernel[101](low, high, factor, out)
    expected = [body(*map(float, row)) for row in zip(low, high, factor, strict=True)]
    assert out.tolist() == [[one.low, one.high] for one in expected]


def test_comparisons_of_a_class_with_branches(rng: Rng) -> None:
    def body(low: Any, high: Any) -> Any:
        a, b = Interval(low, high), Interval(0, 3)
        return (a < b, a > b, a == b, a != b, b == b)

    @kj.jit
    def kernel(low: kj.Array1[kj.f32], high: kj.Array1[kj.f32], out: kj.Array2[kj.bool]) -> None:
        i = kj.global_id(0)
        found = body(low[i], high[i])
        for k in kj.unroll(range(5)):
            out[i, k] = found[k]

    low, high = ends(rng, 101)
    low[0], high[0] = 0, 3
    out = np.zeros((101, 5), np.bool_)
    kernel[101](low, high, out)
    expected = [body(*map(float, row)) for row in zip(low, high, strict=True)]
    assert out.tolist() == [[bool(flag) for flag in row] for row in expected]


class Complex(NamedTuple):
    re: Any
    im: Any

    def __add__(self, other: Any) -> Complex:
        return Complex(self.re + other.re, self.im + other.im)

    def __mul__(self, other: Any) -> Complex:
        return Complex(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )


def test_an_object_is_carried_through_a_loop(rng: Rng) -> None:
    """z = z * z + c, as a NamedTuple and as a dataclass."""

    def orbit(re: Any, im: Any) -> Any:
        z, c = Complex(0.0, 0.0), Complex(re, im)
        bounds = Interval(0.0, 0.0)
        count = 0
        while count < 20 and z.re * z.re + z.im * z.im < 4.0:
            z = z * z + c
            bounds = Interval(min(bounds.low, z.re), max(bounds.high, z.re))
            count += 1
        return count, bounds.low, bounds.high

    @kj.jit(contract=False)
    def kernel(c: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        out[i, 0], out[i, 1], out[i, 2] = orbit(c[i, 0], c[i, 1])

    c = (rng.random((65, 2), np.float32) - np.float32(0.7)) * 2
    out = np.full((65, 3), 77, np.float32)
    kernel[65](c, out)
    expected = np.array([orbit(*row) for row in c], np.float32)
    assert (out == expected).all()


ORIGIN = Interval(0.0, 1.0)


def test_a_captured_object_that_a_loop_replaces_is_guarded(rng: Rng) -> None:
    global ORIGIN

    @kj.jit
    def kernel(a: kj.Array1[kj.f32], n: kj.i32) -> None:
        i = kj.global_id(0)
        at = ORIGIN
        for _ in range(n):
            at = at + a[i]
        a[i] = at.high

    before = ORIGIN
    try:
        for start in (1.0, 5.0):
            ORIGIN = Interval(0.0, start)
            a = rng.integers(-9, 9, 7).astype(np.float32)
            expected = start + 3 * a
            kernel[7](a, 3)
            assert (a == expected).all()
    finally:
        ORIGIN = before


class Window:
    """A part of an array, for reading and writing."""

    def __init__(self, array: Any, start: Any) -> None:
        self.array, self.start = array, start

    def __getitem__(self, place: Any) -> Any:
        if place < 0:
            return self.array.dtype(0)
        return self.array[self.start + place]

    def __setitem__(self, place: Any, value: Any) -> None:
        if place >= 0:
            self.array[self.start + place] = value


def test_items_of_a_class_are_read_and_written_through_its_code(rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        source, target = Window(a, 3), Window(out, 1)
        target[i - 2] = source[i - 4]

    a = rng.integers(-99, 99, 20).astype(np.int32)
    out = np.full(20, 77, np.int32)
    kernel[16](a, out)
    expected = np.full(20, 77, np.int32)
    for i in range(2, 16):
        expected[i - 1] = a[i - 1] if i >= 4 else 0
    assert out.tolist() == expected.tolist()


class Left:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Right) else self.x - 1


class Right(Left):
    def __rsub__(self, other: Any) -> Any:
        return self.x * 10 if self.x > 3 else self.x * 100


def test_mirrored_methods_are_found_in_pythons_order() -> None:
    def body(x: Any) -> tuple[Any, ...]:
        # A number of khaljit's gives way, as Python's does.
        return (Left(x) - Right(x), x - Right(x), 5 - Right(x), Left(x) - Left(x))

    @kj.jit
    def kernel(out: kj.Array2[kj.i32]) -> None:
        i = kj.global_id(0)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = body(kj.i32(i))

    out = np.zeros((7, 4), np.int32)
    kernel[7](out)
    assert out.tolist() == [list(body(i)) for i in range(7)]


def test_what_has_no_operator_is_pythons_own_error() -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f32]) -> None:
        Left(a[0]) + Right(a[0])  # type: ignore[operator]  # on purpose

    with pytest.raises(
        TypeError, match=r"unsupported operand type\(s\) for \+: 'Left' and 'Right'"
    ):
        kernel[1](np.zeros(1, np.float32))
