"""Native launches mean what Python's mean: the same results, and the same errors.

Each kernel is launched once, so that it has a plan, and then again. `by_python` goes the Python
way whatever there is natively.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit import extension
from khaljit.backends.cpu.device import CpuDevice
from khaljit.extension import NATIVE, NUMBER_TYPES
from khaljit.jit import Kernel
from tests.conftest import REQUIRED

if NATIVE is None and "native" not in REQUIRED:
    pytest.skip("the native extension is not built", allow_module_level=True)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KHALJIT_DEVICE", raising=False)


@pytest.fixture
def by_way_of_python(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that Python launches, one entry a launch."""
    seen: list[Kernel] = []
    launch = Kernel.launch

    def noted(self: Kernel, *args: Any) -> None:
        seen.append(self)
        launch(self, *args)

    monkeypatch.setattr(Kernel, "launch", noted)
    return seen


def by_python(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    kernel.launch(kernel.on(grid).groups, args, kwargs)


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def ramp(n: int = 16) -> np.ndarray[Any, Any]:
    return np.arange(n, dtype=np.float32)


def saxpy() -> Any:
    """A kernel of its own for a test."""

    @kj.jit
    def kernel(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32) -> None:
        i = kj.global_id(0)
        if i < y.size:
            y[i] = a * x[i] + y[i]

    return kernel


def test_the_extension_is_there() -> None:
    assert NATIVE is not None


def test_the_second_launch_is_native(by_way_of_python: list[Kernel]) -> None:
    kernel, x, y = saxpy(), ramp(), np.zeros(16, np.float32)
    for _ in range(3):
        kernel[16](x, y, 2.0)
    launch = kernel[16]
    launch(x, y, 2.0)
    launch(x, a=2.0, y=y)
    assert (y == 10 * x).all()
    assert by_way_of_python == [kernel]


def test_arrays_of_a_device_are_launched_natively(by_way_of_python: list[Kernel]) -> None:
    kernel, cpu = saxpy(), kj.device("cpu")
    x, y = cpu.array(ramp()), cpu.zeros(16)
    for n in (16, 16, 16):
        kernel[n](x, y, 1.0)
    assert (y.numpy() == 3 * ramp()).all()
    kernel[8](x[8:], y[8:], 1.0)  # another place in the same buffer
    assert (y.numpy() == np.where(ramp() < 8, 3, 4) * ramp()).all()
    assert by_way_of_python == [kernel]


# Wrong calls.


@kj.jit
def annotated(
    x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], a: kj.f32, n: kj.i32, flag: kj.bool
) -> None:
    i = kj.global_id(0)
    if i < y.size:
        y[i] = a * x[i] + kj.f32(n) if flag else x[i]


@kj.jit
def free(x: Any, y: Any, a: Any) -> None:
    i = kj.global_id(0)
    if i < y.size:
        y[i] = x[i] + kj.f32(a)


@kj.jit
def small(y: kj.Array1[kj.f32], a: kj.u8, b: kj.i64, c: kj.u64, h: kj.f16) -> None:
    y[0] = kj.f32(a) + kj.f32(b) + kj.f32(c) + kj.f32(h)


GOOD: dict[Any, Callable[[], tuple[Any, ...]]] = {
    annotated: lambda: (ramp(), np.zeros(16, np.float32), 2.0, 3, True),
    free: lambda: (ramp(), np.zeros(16, np.float32), 2.0),
    small: lambda: (np.zeros(4, np.float32), 1, 2, 3, 4.0),
}


def replaced(kernel: Any, place: int, value: Any) -> tuple[Any, int, tuple[Any, ...], Any]:
    args = list(GOOD[kernel]())
    args[place] = value
    return kernel, 16, tuple(args), {}


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(16, np.float32)
    array.flags.writeable = False
    return array


def unaligned() -> np.ndarray[Any, Any]:
    return np.zeros(16 * 4 + 1, np.uint8)[1:].view(np.float32)


def odd_strides() -> np.ndarray[Any, Any]:
    return np.zeros(16, np.dtype([("a", np.float32), ("b", np.uint8)]))["a"]


def overlapping(shift: int) -> tuple[Any, int, tuple[Any, ...], Any]:
    whole = ramp(32)
    return annotated, 16, (whole[:16], whole[shift : 16 + shift], 1.0, 1, True), {}


class Sub(np.ndarray[Any, Any]):
    pass


def on_another_device() -> Any:
    return kj.device("null").zeros(16)


WRONG: dict[str, Callable[[], tuple[Any, Any, tuple[Any, ...], dict[str, Any]]]] = {
    "no arguments": lambda: (annotated, 16, (), {}),
    "too few": lambda: (annotated, 16, GOOD[annotated]()[:-1], {}),
    "too many": lambda: (annotated, 16, (*GOOD[annotated](), 1), {}),
    "an unknown keyword": lambda: (annotated, 16, GOOD[annotated](), {"z": 1}),
    "given twice": lambda: (annotated, 16, GOOD[annotated](), {"x": ramp()}),
    "a keyword in place of another": lambda: (annotated, 16, GOOD[annotated]()[:-1], {"b": True}),
    "f64 for f32": lambda: replaced(annotated, 0, np.zeros(16)),
    "i32 for f32": lambda: replaced(annotated, 0, np.zeros(16, np.int32)),
    "f16 for f32": lambda: replaced(annotated, 1, np.zeros(16, np.float16)),
    "bool for f32": lambda: replaced(annotated, 1, np.zeros(16, bool)),
    "complex": lambda: replaced(annotated, 0, np.zeros(16, np.complex64)),
    "object": lambda: replaced(annotated, 0, np.zeros(16, object)),
    "text": lambda: replaced(annotated, 0, np.array(["a"] * 16)),
    "dates": lambda: replaced(annotated, 0, np.zeros(16, "datetime64[s]")),
    "records": lambda: replaced(annotated, 0, np.zeros(16, [("a", "f4")])),
    "swapped bytes": lambda: replaced(annotated, 0, ramp().astype(">f4")),
    "two axes": lambda: replaced(annotated, 0, np.zeros((4, 4), np.float32)),
    "no axis": lambda: replaced(annotated, 0, np.zeros((), np.float32)),
    "read-only output": lambda: replaced(annotated, 1, read_only()),
    "broadcast output": lambda: replaced(annotated, 1, np.broadcast_to(f32(1), 16)),
    "unaligned": lambda: replaced(annotated, 0, unaligned()),
    "odd strides": lambda: replaced(annotated, 0, odd_strides()),
    "overlapping by one": lambda: overlapping(1),
    "overlapping by half": lambda: overlapping(8),
    "a masked array": lambda: replaced(annotated, 0, np.ma.masked_array(ramp())),
    "a subclass with two axes": lambda: replaced(annotated, 0, np.ones((4, 4), "f4").view(Sub)),
    "a list": lambda: replaced(annotated, 0, [1.0] * 16),
    "a tuple": lambda: replaced(annotated, 0, (1.0,) * 16),
    "a number for an array": lambda: replaced(annotated, 0, 1.0),
    "text for an array": lambda: replaced(annotated, 0, "x"),
    "bytes for an array": lambda: replaced(annotated, 0, b"x" * 64),
    "another device beside NumPy": lambda: replaced(annotated, 0, on_another_device()),
    "an array for a number": lambda: replaced(annotated, 2, f32(1.0)),
    "text for a number": lambda: replaced(annotated, 2, "1"),
    "complex for a number": lambda: replaced(annotated, 2, 1j),
    "a float beyond f32": lambda: replaced(annotated, 2, 1e39),
    "an int beyond f32": lambda: replaced(annotated, 2, 10**39),
    "NumPy's float beyond f32": lambda: replaced(annotated, 2, np.float64(-1e39)),
    "a float for an int": lambda: replaced(annotated, 3, 1.0),
    "NaN for an int": lambda: replaced(annotated, 3, math.nan),
    "NumPy's float for an int": lambda: replaced(annotated, 3, np.float32(2)),
    "2**31 for i32": lambda: replaced(annotated, 3, 1 << 31),
    "-2**31 - 1 for i32": lambda: replaced(annotated, 3, -(1 << 31) - 1),
    "2**100 for i32": lambda: replaced(annotated, 3, 1 << 100),
    "an int for bool": lambda: replaced(annotated, 4, 1),
    "a float for bool": lambda: replaced(annotated, 4, 1.0),
    "256 for u8": lambda: replaced(small, 1, 256),
    "-1 for u8": lambda: replaced(small, 1, -1),
    "2**63 for i64": lambda: replaced(small, 2, 1 << 63),
    "-1 for u64": lambda: replaced(small, 3, -1),
    "2**64 for u64": lambda: replaced(small, 3, 1 << 64),
    "65536 for f16": lambda: replaced(small, 4, 65536.0),
    "2**31 without annotation": lambda: replaced(free, 2, 1 << 31),
    "a decimal": lambda: replaced(free, 2, __import__("decimal").Decimal(1)),
    "a set": lambda: replaced(free, 2, {1}),
    "a negative grid": lambda: (annotated, -1, GOOD[annotated](), {}),
    "a huge grid": lambda: (annotated, 1 << 64, GOOD[annotated](), {}),
    "a grid of a float": lambda: (annotated, 16.0, GOOD[annotated](), {}),
    "a grid of bool": lambda: (annotated, True, GOOD[annotated](), {}),
    "a grid of text": lambda: (annotated, "16", GOOD[annotated](), {}),
    "a grid of four": lambda: (annotated, (1, 1, 1, 1), GOOD[annotated](), {}),
    "a grid of none": lambda: (annotated, (), GOOD[annotated](), {}),
    "a grid with a negative part": lambda: (annotated, (4, -4), GOOD[annotated](), {}),
    "too many workgroups": lambda: (annotated, (1 << 40, 1 << 40), GOOD[annotated](), {}),
    "a grid of workgroups": lambda: (annotated, kj.Workgroups(1), GOOD[annotated](), {}),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_give_the_same_error_by_both_ways(what: str) -> None:
    kernel, grid, args, kwargs = WRONG[what]()
    for _ in range(2):
        kernel[16](*GOOD[kernel]())

    def native() -> None:
        kernel[grid](*args, **kwargs)

    errors = []
    for call in (native, functools.partial(by_python, kernel, grid, args, kwargs)):
        with pytest.raises(kj.KhaljitError) as caught:
            call()
        errors.append(caught.value)
    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])
    assert errors[0].mend, "it says how to mend it"


# Right calls, of all forms.


def forms(rng: np.random.Generator, n: int) -> list[np.ndarray[Any, Any]]:
    """Arrays of n elements that lie in memory in different ways."""
    whole = rng.random(4 * n + 8, np.float32)
    return [
        rng.random(n, np.float32),
        whole[1 : n + 1],  # aligned to 4 bytes only
        whole[: 2 * n : 2],
        whole[::-1][:n],
        whole[3 : 3 + 3 * n : 3][::-1],
        rng.random((n, 3), np.float32)[:, 1],
        rng.random(n, np.float32).view(Sub),
    ]


@pytest.mark.parametrize("n", [0, 1, 2, 15, 64, 1000])
def test_arrays_of_every_form(n: int, rng: np.random.Generator) -> None:
    kernel = saxpy()
    for x, form in itertools.product(forms(rng, n), range(7)):
        for _ in range(2):
            y = forms(rng, n)[form]
            expected = np.float32(0.5) * x + y
            kernel[n](x, y, 0.5)
            assert np.allclose(np.asarray(y), expected, rtol=1e-6)


def test_arrays_of_different_lengths(rng: np.random.Generator) -> None:
    kernel = saxpy()
    for sizes in ((5, 5), (5, 7), (7, 5), (7, 7), (5, 7), (7, 5), (1, 1), (0, 3), (3, 0)):
        x, y = (rng.random(size, np.float32) for size in sizes)
        padded = np.zeros_like(y)
        padded[: x.size] = x[: y.size]
        expected = padded + y
        kernel[y.size](x, y, 1.0)
        assert np.allclose(y, expected, rtol=1e-6)


def test_the_same_view_twice_and_views_without_a_common_element(rng: np.random.Generator) -> None:
    kernel = saxpy()
    for _ in range(3):
        x, y = rng.random(9, np.float32), rng.random(9, np.float32)
        expected = x + y
        kernel[9](x, y, 1.0)
        assert np.allclose(y, expected)
        expected = 2 * x
        kernel[9](x, x, 1.0)
        assert np.allclose(x, expected)
        whole = rng.random(20, np.float32)
        expected = whole[::2] + whole[1::2]
        kernel[10](whole[::2], whole[1::2], 1.0)
        assert np.allclose(whole[1::2], expected)


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")  # of NumPy 2.5
def test_arrays_that_change_in_place_are_read_again(by_way_of_python: list[Kernel]) -> None:
    kernel, x, y = saxpy(), ramp(), np.zeros(16, np.float32)

    def refused(match: str) -> None:
        with pytest.raises(kj.ArgumentError, match=match):
            kernel[16](x, y, 1.0)

    for _ in range(2):
        kernel[16](x, y, 1.0)
    for shape in ((4, 4), (16, 1)):
        x.shape = shape
        refused("1 axis")
    x.shape = 16
    y.dtype = np.dtype(np.int32)  # type: ignore[misc,assignment]
    refused("int32|i32")
    y.dtype = np.dtype(np.float32)  # type: ignore[misc]
    y.flags.writeable = False
    refused("read-only")
    y.flags.writeable = True
    before = len(by_way_of_python)
    kernel[16](x, y, 1.0)
    assert (y == 3 * ramp()).all()
    x.resize(40, refcheck=False)
    x[:] = np.arange(40)
    kernel[16](x, y, 1.0)
    assert (y == 4 * ramp()).all()
    assert len(by_way_of_python) <= before + 1  # other shapes, which are another signature


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
def test_arrays_in_one_place_are_told_apart(by_way_of_python: list[Kernel]) -> None:
    """Only their shape, strides or class differ from those of the launch before."""
    kernel, room, y = saxpy(), ramp(32), np.zeros(16, np.float32)
    x = room[:16]
    for _ in range(3):
        kernel[16](x, y, 1.0)
    kernel[16](x[:8], y[:8], 1.0)
    assert (y == np.where(ramp() < 8, 4, 3) * ramp()).all()
    for step in (2, 2, 2, 3, 4, 2):
        kernel[8](room[::step][:8], y[:8], 0.0)
        y[:] = 0
        kernel[8](room[::step][:8], y[:8], 1.0)
        assert (y[:8] == room[::step][:8]).all()
    kernel[16](x, y, 0.0)
    x.strides = (8,)
    y[:] = 0
    kernel[16](x, y, 1.0)
    assert (y == room[::2]).all()

    class Special(np.ndarray[Any, Any]):
        pass

    for _ in range(3):
        kernel[16](x, y, 0.0)
    before = len(by_way_of_python)
    for _ in range(3):
        kernel[16](x.view(Special), y, 1.0)
    assert (y == 4 * room[::2]).all()
    assert len(by_way_of_python) == before + 3


def test_sizes_that_grow_out_of_the_type_of_index() -> None:
    @kj.jit
    def sizes(x: kj.Array1[kj.i8], out: kj.Array1[kj.i64]) -> None:
        out[0] = kj.i64(x.size)

    room, out = np.zeros((1 << 31) + 8, np.int8), np.zeros(1, np.int64)  # nobody touches its pages
    for n in (4, 4, 4, 1 << 31, (1 << 31) + 1, 4, 3, (1 << 31) + 8, 4):
        sizes[1](room[:n], out)
        assert int(out[0]) == n


def test_arrays_in_turn(by_way_of_python: list[Kernel], rng: np.random.Generator) -> None:
    """What was read of one array says nothing of the next, whatever came in between."""
    kernel, one, out = saxpy(), ramp(33), np.zeros(33, np.float32)
    kernel[33](one, out, 1.0)
    for _ in range(50):
        n = int(rng.integers(1, 33))
        x, y = rng.random(n, np.float32), rng.random(n, np.float32)
        expected = np.float32(2) * x + y
        kernel[n](x, y, 2.0)
        assert np.allclose(y, expected)
        for args in 2 * [(one, one[1:], 1.0)] + 2 * [(one[:-4], one[4:], 1.0)]:
            with pytest.raises(kj.ArgumentError, match="overlap"):
                kernel[16](*args)
        same = one.copy()
        kernel[33](one, one, 0.0)
        assert (one == same).all()


def test_many_axes(rng: np.random.Generator) -> None:
    @kj.jit
    def add(x: kj.Array3[kj.i64], y: kj.Array3[kj.i64]) -> None:
        i, j, k = kj.index(3)
        if i < y.shape[0] and j < y.shape[1] and k < y.shape[2]:
            y[i, j, k] += x[i, j, k]

    for _ in range(2):
        x, y = (rng.integers(0, 1 << 40, (3, 4, 5)) for _ in range(2))
        for form in (x, x[::-1], x.transpose(0, 2, 1).copy().transpose(0, 2, 1), x[:, :, ::-1]):
            expected = y + form
            add[kj.over(y)](form, y)
            assert (y == expected).all()
            add[5, 4, 3](form, y)
            y -= form
            assert (y == expected).all()


def test_vectors_and_other_elements(by_way_of_python: list[Kernel]) -> None:
    @kj.jit
    def double(v: kj.Array1[kj.vec3], b: kj.Array1[kj.bf16], m: kj.Array1[kj.bool]) -> None:
        i = kj.global_id(0)
        if i < v.size and m[i]:
            v[i] = v[i] * 2.0
            b[i] = b[i] + kj.bf16(1.0)

    v, b = np.ones((4, 3), np.float32), np.zeros(4, np.uint16)
    mask = np.array([True, False, True, False])
    for k in range(1, 4):
        double[4](v, b, mask)
        assert (v == np.where(mask, 2**k, 1)[:, None]).all()
    assert by_way_of_python == [double]
    with pytest.raises(kj.ArgumentTypeError, match="last axes"):
        double[4](np.ones((4, 6), np.float32)[:, ::2], b, mask)


# Numbers.

NAMES = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64")
VALUES: list[Any] = [
    *(0, 1, -1, 127, 128, 255, 256, -128, 65535, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32),
    *((1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, True, False),
    *(0.0, -0.0, 0.1, 1e-7, 1e-42, 65504.0, 65519.0, 65520.0, 3.5e38, 1e300, -1e300, math.inf),
    *(kind(value) for kind in NUMBER_TYPES for value in (0, 1, 100)),
    *(
        np.float64(0.1),
        np.float16(0.1),
        np.uint64((1 << 64) - 1),
        np.int8(-1),
        np.float32(-math.inf),
    ),
]


def outcome(launch: Callable[[], None], out: np.ndarray[Any, Any]) -> object:
    out[...] = 0
    try:
        launch()
    except kj.KhaljitError as error:
        return type(error), str(error)
    return out.tobytes()


def compare_numbers(kernel: Any, out: np.ndarray[Any, Any]) -> None:
    for value in VALUES:
        by_native = outcome(lambda: kernel[1](out, value), out)  # noqa: B023
        assert by_native == outcome(lambda: by_python(kernel, 1, (out, value), {}), out), value  # noqa: B023


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_every_type(name: str) -> None:
    dtype = getattr(kj, name)

    def put(out: Any, value: Any) -> None:
        out[0] = value

    put.__annotations__ = {"value": dtype}
    kernel = kj.jit(put)
    out = np.zeros(1, dtype.numpy)
    kernel[1](out, dtype.numpy.type(1))
    compare_numbers(kernel, out)


def test_numbers_without_annotation() -> None:
    @kj.jit
    def put(out: Any, value: Any) -> None:
        out[0] = kj.f64(value)

    compare_numbers(put, np.zeros(1))
    compare_numbers(put, np.zeros(1))


# What was read while recording.

SHARED = 2.0
COUNTER = 0


def test_a_changed_global_cell_attribute_or_default_is_noticed(
    monkeypatch: pytest.MonkeyPatch, by_way_of_python: list[Kernel]
) -> None:
    class Settings:
        gain = 3.0

    settings = Settings()
    offset = 4.0

    @kj.jit
    def kernel(y: kj.Array1[kj.f32]) -> None:
        y[0] = SHARED + 10 * settings.gain + 100 * offset

    y = np.zeros(1, np.float32)

    def found() -> float:
        kernel[1](y)
        return float(y[0])

    assert [found(), found()] == [432.0, 432.0]
    monkeypatch.setitem(globals(), "SHARED", 1.0)
    assert [found(), found()] == [431.0, 431.0]
    settings.gain = 5.0
    assert [found(), found()] == [451.0, 451.0]
    offset = 1.0
    assert [found(), found()] == [151.0, 151.0]
    assert len(by_way_of_python) == 4


def test_a_changed_cell_is_noticed(by_way_of_python: list[Kernel]) -> None:
    offset = 4.0

    @kj.jit
    def kernel(y: kj.Array1[kj.f32]) -> None:
        y[0] = offset

    y = np.zeros(1, np.float32)
    for offset in (4.0, 5.0, 6.0):
        for _ in range(3):
            kernel[1](y)
            assert y[0] == offset
    assert len(by_way_of_python) == 3


@pytest.mark.parametrize("same", [True, False])
def test_a_changed_slot_is_noticed_and_a_property_in_its_place(
    same: bool, by_way_of_python: list[Kernel]
) -> None:
    class Settings:
        __slots__ = ("gain",)

        def __init__(self, gain: float) -> None:
            self.gain = gain

    settings = Settings(3.0)

    @kj.jit
    def kernel(y: kj.Array1[kj.f32]) -> None:
        y[0] = settings.gain

    y = np.zeros(1, np.float32)

    def found() -> float:
        for _ in range(3):
            kernel[1](y)
        return float(y[0])

    assert [found(), found()] == [3.0, 3.0]
    settings.gain = 5.0
    assert [found(), found()] == [5.0, 5.0]
    assert len(by_way_of_python) == 2
    if not same:
        settings.gain = float(str(settings.gain))  # equal, and another object
    assert found() == 5.0
    assert len(by_way_of_python) == 2
    Settings.gain = property(lambda self: 7.0)  # type: ignore[assignment,misc]
    assert [found(), found()] == [7.0, 7.0]


def test_other_globals_may_change_at_will(
    monkeypatch: pytest.MonkeyPatch, by_way_of_python: list[Kernel]
) -> None:
    @kj.jit
    def kernel(y: kj.Array1[kj.f32]) -> None:
        y[0] = SHARED

    y = np.zeros(1, np.float32)
    for k in range(5):
        monkeypatch.setitem(globals(), "COUNTER", k)
        monkeypatch.setitem(globals(), "SHARED", float(str(SHARED)))  # equal, and another object
        kernel[1](y)
    assert y[0] == 2.0
    assert by_way_of_python == [kernel]


def test_the_first_context_is_noticed() -> None:
    """In a process that has set none before."""
    script = """
import tests.test_native as t
import khaljit as kj

kernel, cpu = t.saxpy(), kj.device("cpu")
x, y = t.ramp(), t.ramp()
one, other = cpu.array(x), cpu.zeros(16)
for _ in range(4):
    kernel[16](x, y, 0.0)
with kj.use("null"):
    kernel[16](x, y, 1.0)
assert (y == x).all()
for _ in range(4):
    kernel[16](one, other, 0.0)
with cpu.capture() as graph:
    kernel[16](one, other, 1.0)
assert not other.numpy().any()
graph.launch()
assert (other.numpy() == x).all()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_context_says_where_a_launch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x, y = saxpy(), ramp(), np.zeros(16, np.float32)
    kernel[16](x, y, 1.0)
    kernel[16](x, y, 1.0)
    with kj.use("null"):
        kernel[16](x, y, 1.0)
        with kj.use("cpu"):
            kernel[16](x, y, 1.0)
            kernel[16](x, y, 1.0)
    assert (y == 4 * x).all()
    monkeypatch.setenv("KHALJIT_DEVICE", "null")
    kernel[16](x, y, 1.0)
    assert (y == 4 * x).all()
    monkeypatch.delenv("KHALJIT_DEVICE")
    with kj.device("cpu").profile() as profile:
        kernel[16](x, y, 1.0)
    assert len(profile.entries()) == 1
    assert (y == 5 * x).all()
    launch = kernel[16]
    for name, more in (("cpu", 1), ("null", 0), ("cpu", 1)):
        with kj.use(name):
            for _ in range(3):
                launch(x, y, 0.0)
            y[:] = 0
            launch(x, y, 1.0)
        assert (y == more * x).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_plans_of_the_parent_process_hold_no_more() -> None:
    script = """
import os, sys
import numpy as np
import khaljit as kj
from khaljit.jit import Kernel

@kj.jit
def double(x: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = 2.0 * x[i]

def main() -> bool:
    x = np.ones(16, np.float32)
    launch = double[16]
    for _ in range(3):
        launch(x)
    by_python = []
    before = Kernel.launch
    Kernel.launch = lambda self, *args: (by_python.append(self), before(self, *args))
    launch(x)
    child = os.fork()
    if child == 0:
        launch(x)
        os._exit(0 if by_python and (x == 32).all() else 1)
    return os.waitpid(child, 0)[1] == 0 and not by_python

sys.exit(not main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_capture_takes_launches_that_have_plans() -> None:
    kernel, cpu = saxpy(), kj.device("cpu")
    x, y = cpu.array(ramp()), cpu.zeros(16)
    for a in (1.0, 1.0, 0.0, 0.0):
        kernel[16](x, y, a)
    with cpu.capture() as graph:
        kernel[16](x, y, 1.0)
    assert (y.numpy() == 2 * ramp()).all()
    graph.launch()
    kernel[16](x, y, 1.0)
    assert (y.numpy() == 4 * ramp()).all()


def test_one_of_several_cpu_devices_runs_its_arrays() -> None:
    kernel = saxpy()
    first, second = kj.device("cpu"), kj.device("cpu", threads=1)
    x, y = first.array(ramp()), second.zeros(16)
    kernel[16](x, first.zeros(16), 1.0)
    kernel[16](second.array(ramp()), y, 1.0)
    kernel[16](second.array(ramp()), y, 1.0)
    assert (y.numpy() == 2 * ramp()).all()
    with pytest.raises(kj.ArgumentValueError, match="live on"):
        kernel[16](x, y, 1.0)


# Forms of calls.


def test_defaults_keywords_and_constants(by_way_of_python: list[Kernel]) -> None:
    @kj.jit
    def kernel(y: Any, a: kj.f32 = 2.0, b: kj.Const[int] = 10, c: Any = None) -> None:
        y[0] = a + b + (0.0 if c is None else c)

    y = np.zeros(1, np.float32)
    calls: dict[Callable[[], None], int] = {
        lambda: kernel[1](y): 12,
        lambda: kernel[1](y, 3.0): 13,
        lambda: kernel[1](y, a=4.0): 14,
        lambda: kernel[1](y, b=20, a=1.0): 21,
        lambda: kernel[1](y, 1.0, 20): 21,
        lambda: kernel[1](y, 1.0, 20, 5.0): 26,
        lambda: kernel[1](y, 1.0, 20, None): 21,
        lambda: kernel[1](y, b=30): 32,
        lambda: kernel.with_options(b=40)[1](y, 0.0): 40,
    }
    for _ in range(2):
        for call, expected in calls.items():
            call()
            assert y[0] == expected
    assert sum(one is kernel for one in by_way_of_python) < 14


def test_keyword_only_and_positional_only_parameters_stay_so() -> None:
    @kj.jit
    def kernel(y: Any, /, a: Any, *, b: Any) -> None:
        y[0] = a + b

    y = np.zeros(1, np.float32)
    for _ in range(2):
        kernel[1](y, 1.0, b=2.0)
        assert y[0] == 3
        launch: Any = kernel[1]
        with pytest.raises(kj.ArgumentTypeError):
            launch(y, 1.0, 2.0)
        with pytest.raises(kj.ArgumentTypeError):
            launch(y=y, a=1.0, b=2.0)


def test_methods_have_plans_of_their_own() -> None:
    class Model:
        def __init__(self, gain: float) -> None:
            self.gain = gain

        @kj.jit
        def apply(self, y: Any) -> None:
            y[0] = self.gain

    y = np.zeros(1, np.float32)
    one, other = Model(1.0), Model(2.0)
    for model in (one, other, one, other):
        model.apply[1](y)
        assert y[0] == model.gain
    one.gain = 5.0
    one.apply[1](y)
    assert y[0] == 5


def test_more_parameters_than_a_plan_has_room_for() -> None:
    names = [f"p{k}" for k in range(80)]
    scope: dict[str, Any] = {}
    exec(f"def total(out, {', '.join(names)}):\n    out[0] = {' + '.join(names)}\n", scope)
    kernel, out = kj.jit(scope["total"]), np.zeros(1, np.int32)
    for _ in range(2):
        kernel[1](out, *range(80))
        assert out[0] == sum(range(80))


def test_an_empty_grid_runs_nothing_and_checks_its_arguments() -> None:
    kernel, x, y = saxpy(), ramp(), np.zeros(16, np.float32)
    for _ in range(2):
        kernel[0](x, y, 1.0)
        kernel[0, 5](x, y, 1.0)
    assert not y.any()
    with pytest.raises(kj.ArgumentTypeError):
        kernel[0](x, y, "1")


def launch_grids_in_turn(seed: int) -> None:
    """One plan for few invocations, none, and so many that threads share them."""

    @kj.jit
    def count(y: kj.Array1[kj.i32]) -> None:
        kj.atomic_add(y, kj.global_id(0) + 10 * kj.global_id(1), 1)

    rng = np.random.default_rng(seed)
    grids: list[tuple[Any, int, int]] = [
        (1, 1, 1), (10, 10, 1), ((7, 3), 7, 3), (0, 0, 0), ((10, 10), 10, 10), ((0, 4), 0, 0),
    ]  # fmt: skip
    kept = [(count[grid], x, y) for grid, x, y in grids]
    out, expected = np.zeros(1 << 17, np.int32), np.zeros(1 << 17, np.int32)
    for turn in range(60):
        which = int(rng.integers(len(grids) + 1))
        if which == len(grids):
            count[out.size](out)
            expected += 1
            continue
        grid, x, y = grids[which]
        (count[grid] if turn % 2 else kept[which][0])(out)
        for row in range(y):
            expected[10 * row : 10 * row + x] += 1
        assert (out == expected).all()


def test_grids_in_turn(by_way_of_python: list[Kernel], rng: np.random.Generator) -> None:
    launch_grids_in_turn(int(rng.integers(1 << 32)))
    assert len(by_way_of_python) == 1


def test_grids_in_turn_where_no_context_was_ever_set(rng: np.random.Generator) -> None:
    script = f"import tests.test_native as t; t.launch_grids_in_turn({rng.integers(1 << 32)})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_brief_kernels_with_memory_of_their_own() -> None:
    @kj.jit
    def pick(y: kj.Array1[kj.i32], k: kj.i32) -> None:
        i = kj.global_id(0)
        own = kj.local(kj.i32, 4)
        own[k] = i
        own[(k + 1) % 4] = 2 * i
        y[i] = own[k] + own[(k + 1) % 4]

    for k in range(5):
        y = np.zeros(16, np.int32)
        pick[16](y, k % 4)
        assert (y == 3 * np.arange(16)).all()


def test_more_signatures_than_plans_are_kept() -> None:
    @kj.jit
    def kernel(y: Any, a: Any) -> None:
        y[0] = a

    for _ in range(2):
        for name in NAMES[1:]:
            y = np.zeros(1, getattr(kj, name).numpy)
            kernel[1](y, y.dtype.type(7))
            assert y[0] == 7


# Bound launches.


@pytest.mark.parametrize("native", [True, False])
def test_a_bound_launch_keeps_its_arguments(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr("khaljit.launching.NATIVE", None)
    kernel, x, y = saxpy(), ramp(), np.zeros(16, np.float32)
    step = kernel[16].bind(x, y, 1.0)
    assert not y.any(), "binding runs nothing"
    step()
    step(a=2.0)
    step()
    assert (y == 4 * x).all()
    z = np.zeros(16, np.float32)
    step(y=z)
    assert (z == x).all()
    with pytest.raises(kj.ArgumentTypeError, match="b"):
        step(b=1.0)
    with pytest.raises(kj.ArgumentTypeError, match="names"):
        step(1.0)
    with pytest.raises(kj.ArgumentTypeError, match="str"):
        step(a="1")
    with pytest.raises(kj.ArgumentTypeError):
        kernel[16].bind(x, y)


def test_a_bound_launch_takes_arguments_that_were_left_to_their_defaults() -> None:
    @kj.jit
    def kernel(y: Any, a: kj.f32 = 1.0, b: kj.f32 = 2.0) -> None:
        y[0] = a + b

    y = np.zeros(1, np.float32)
    step = kernel[1].bind(y)
    for _ in range(2):
        step()
        assert y[0] == 3
        step(b=5.0)
        assert y[0] == 6
    assert "kernel" in repr(step)


def test_launches_are_described() -> None:
    kernel = saxpy()
    assert repr(kernel[16]) == "<<khaljit kernel kernel> with (16, 1, 1) workgroups>"
    assert kernel[2, 3].groups == (2, 3, 1)


# The extension itself.


def test_it_is_not_used_where_structs_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extension._load() is NATIVE

    class Other:
        def __init__(self, **changes: Any) -> None:
            self.__dict__.update(changes)

        def __getattr__(self, name: str) -> Any:
            return getattr(NATIVE, name)

    for name in ("describe_array", "describe_number"):
        other = Other(**{name: lambda value: None})
        monkeypatch.setattr("khaljit._native", other)
        monkeypatch.setattr("sys.modules", {**__import__("sys").modules, "khaljit._native": other})
        assert extension._load() is None
        monkeypatch.undo()
    monkeypatch.setenv("KHALJIT_NATIVE", "0")
    assert extension._load() is None


def test_a_million_launches_from_eight_threads_leak_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "KHALJIT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.stress_launches", "--launches", "1000000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native: True" in done.stdout


def test_workers_go_with_their_pool() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("the system does not list threads")
    before = len(list(tasks.iterdir()))
    device = CpuDevice(threads=4)
    big = device.zeros(1 << 16)

    @kj.jit
    def slow(x: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            for k in range(20):
                x[i] += kj.f32(k)

    for _ in range(3):
        slow[big.size](big)
    assert device.pool.started == 3
    assert len(list(tasks.iterdir())) == before + 3
    del device, big, slow
    for _ in range(1000):
        gc.collect()
        if len(list(tasks.iterdir())) == before:
            return
        time.sleep(0.01)
    pytest.fail("the workers stay")


def test_workers_sleep_while_there_is_nothing_to_do() -> None:
    device = CpuDevice(threads=3)
    big = device.zeros(1 << 16)

    @kj.jit
    def slow(x: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            for k in range(20):
                x[i] += kj.f32(k)

    for _ in range(5):
        slow[big.size](big)
    assert device.pool.started == 2
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1  # each would have taken all of it


def test_kernels_that_assert_are_repeated_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        gpu = kj.device("webgpu")
    except kj.DeviceError as error:
        pytest.skip(error.message)

    @kj.jit
    def checked(x: kj.Array1[kj.i32], least: kj.i32) -> None:
        i = kj.global_id(0)
        if i < x.size:
            assert x[i] >= least, "too small"
            x[i] += 1

    x = gpu.array(np.arange(8, dtype=np.int32))
    checked[8](x, 0)

    def unexpected(self: Kernel, *_: Any) -> None:
        raise AssertionError(self)

    monkeypatch.setattr(Kernel, "prepare", unexpected)
    for _ in range(3):
        checked[8](x, least=0)
    gpu.synchronize()
    assert (x.numpy() == np.arange(8) + 4).all()
    checked[8](x, 5)
    with pytest.raises(kj.KernelError, match="too small"):
        gpu.synchronize()


def test_a_guard_that_moves_an_array_is_no_danger() -> None:
    class Sly:
        gain = 1.0
        target: Any = None

        def __getattr__(self, name: str) -> float:
            if self.target is not None:
                self.target.resize(4096, refcheck=False)  # its memory goes elsewhere
                self.target[:] = 0
            return 2.0

    sly = Sly()

    @kj.jit
    def kernel(y: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < y.size:
            y[i] = sly.other

    for _ in range(2):
        kernel[64](np.zeros(64, np.float32))
    y = np.zeros(64, np.float32)
    sly.target = y
    kernel[64](y)
    assert y.size == 4096
    assert (y[:64] == 2).all()
