"""The sentences of ``docs/numerics.md``, each a test on every device."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

Array = np.ndarray[Any, np.dtype[Any]]
PAGE = Path(__file__).parent.parent / "docs" / "numerics.md"


def apply(function: Callable[..., Any], result: Any, *columns: Any, **options: Any) -> Array:
    """A function of numbers on rows of them, as an array of a type."""

    @kj.jit(**options)
    def kernel(ins: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = function(*[one[i] for one in ins])

    arrays = tuple(map(np.asarray, columns))
    out = np.zeros(len(arrays[0]), result.numpy)
    kernel[len(out)](arrays, out)
    return out


def refused(message: str, function: Callable[..., Any], result: Any, *columns: Any) -> None:
    with pytest.raises(kj.TraceError, match=message) as caught:
        apply(function, result, *columns)
    assert caught.value.at is not None


def special(device: Device) -> None:
    """Skip where NaN, infinities and subnormals are the driver's."""
    if device.kind == "webgpu":
        pytest.skip("NaN, infinities, zeros' signs and subnormals are the driver's on WebGPU")


def i32s(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def f32s(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


MOST, LEAST = 2**31 - 1, -(2**31)


# Types.


def test_literals_take_the_other_type(device: Device) -> None:
    found = apply(lambda x: x * 2 + 1, kj.u8, np.array([127, 200], np.uint8))
    assert found.tolist() == [255, 145]
    halves = apply(lambda x: x + 0.1, kj.f32, np.array([1], np.float16))
    assert halves[0] == np.float16(1) + np.float16(0.1)


def test_literals_that_do_not_fit_are_refused(device: Device) -> None:
    refused("300", lambda x: x + 300, kj.u8, np.zeros(1, np.uint8))
    refused("-1", lambda x: x + -1, kj.u8, np.zeros(1, np.uint8))


def test_literals_out_of_range_compare_as_numbers(device: Device) -> None:
    assert apply(lambda x: x < 300, kj.bool, np.array([255], np.uint8)).tolist() == [True]
    assert apply(lambda x: x > -1, kj.bool, np.array([0], np.uint8)).tolist() == [True]


def test_the_wider_type_wins(device: Device) -> None:
    small, wide = np.array([100], np.int8), np.array([1000], np.int16)
    assert apply(lambda x, y: x * y + x, kj.i16, small, wide)[0] == np.int16(100100 - 2 * 65536 + 0)
    assert apply(lambda x, y: x + y, kj.i32, np.array([255], np.uint8), i32s(-256)).tolist() == [-1]


def test_integers_meet_floats_in_the_float_type(device: Device) -> None:
    found = apply(lambda x, y: x + y, kj.f32, i32s(2**24 + 1), f32s(0.0))
    assert found[0] == np.float32(2**24)
    half = apply(lambda x, y: x + y, kj.f32, i32s(2049), np.array([0], np.float16))
    assert half[0] == 2048


def test_types_without_a_common_type_are_refused(device: Device) -> None:
    refused("no type holds both", lambda x, y: x + y, kj.i32, i32s(1), np.array([1], np.uint32))
    refused(
        "no type holds both",
        lambda x, y: x + y,
        kj.i32,
        np.array([1], np.int8),
        np.array([1], np.uint64),
    )


def test_ids_take_the_type_they_meet(device: Device) -> None:
    found = apply(lambda x: x + kj.global_id(0), kj.u64, np.array([2**63, 2**63], np.uint64))
    assert found.tolist() == [2**63, 2**63 + 1]
    floats = apply(lambda x: x * kj.global_id(0), kj.f32, f32s(0.5, 0.5))
    assert floats.tolist() == [0.0, 0.5]


def test_float_functions_of_integers_are_f32(device: Device) -> None:
    assert apply(lambda x: kj.sqrt(x) * 0.5, kj.f32, i32s(4, 9)).tolist() == [1.0, 1.5]


# Integers.


def test_integers_wrap(device: Device) -> None:
    found = apply(lambda x, y: x + y, kj.i32, i32s(MOST, LEAST), i32s(1, -1))
    assert found.tolist() == [LEAST, MOST]
    assert apply(lambda x: x * x, kj.i32, i32s(65536)).tolist() == [0]
    assert apply(lambda x: -x, kj.i32, i32s(LEAST)).tolist() == [LEAST]
    assert apply(abs, kj.i32, i32s(LEAST)).tolist() == [LEAST]


@pytest.mark.parametrize("dtype", [kj.i8, kj.i16, kj.i32, kj.i64], ids=str)
def test_the_magnitude_of_the_least_integer_is_itself_and_negative(
    dtype: Any, device: Device
) -> None:
    least = np.iinfo(dtype.numpy).min
    x = np.array([least, least + 1, -1, 0, 1], dtype.numpy)
    assert apply(abs, dtype, x).tolist() == [least, -(least + 1), 1, 0, 1]
    assert apply(lambda x: kj.i32(abs(x) < 0), kj.i32, x).tolist() == [1, 0, 0, 0, 0]
    assert apply(lambda x: 0 ** abs(x), dtype, x).tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("dtype", [kj.i8, kj.u8, kj.i32, kj.u32], ids=str)
@pytest.mark.parametrize("extreme", [kj.min, kj.max, kj.minimum, kj.maximum])
def test_extremes_of_three_keep_negations(extreme: Any, dtype: Any, device: Device) -> None:
    drawn = np.random.default_rng().integers(0, 19, (3, 99)).astype(dtype.numpy)
    x, y, z = drawn - drawn.dtype.type(9) if dtype.is_signed else drawn
    found = apply(lambda a, b, c: extreme(extreme(a, -b), c), dtype, x, y, z)
    numpy = np.minimum if extreme in (kj.min, kj.minimum) else np.maximum
    assert found.tolist() == numpy(numpy(x, -y), z).tolist()
    found = apply(lambda a, b, c: extreme(extreme(a, -abs(b)), c), dtype, x, y, z)
    assert found.tolist() == numpy(numpy(x, -abs(y)), z).tolist()


@pytest.mark.parametrize("dtype", [kj.i8, kj.i32, kj.u32], ids=str)
def test_clamped_integers_equal_themselves_in_the_range_alone(dtype: Any, device: Device) -> None:
    x = np.arange(-9 if dtype.is_signed else 0, 99).astype(dtype.numpy)
    most = np.full_like(x, 42)
    within = (x >= 0) & (x <= 42)
    for clamped in (
        lambda a, b: kj.max(kj.min(a, b), 0) == a,
        lambda a, b: kj.max(kj.min(a, 42), 0) == a,
        lambda a, b: kj.clamp(a, 0, b) == a,
    ):
        found = apply(lambda a, b, test=clamped: kj.i32(test(a, b)), kj.i32, x, most)
        assert found.tolist() == within.tolist()
    least = np.full_like(x, 3)
    for least_or, rule in (
        (lambda a, b: kj.max(kj.max(a, b), 0) == b, x <= least),
        (lambda a, b: kj.max(kj.min(a, b), 0) == b, x >= least),
        (lambda a, b: kj.max(kj.max(a, b), 0) != b, x > least),
    ):
        found = apply(lambda a, b, test=least_or: kj.i32(test(a, b)), kj.i32, x, least)
        assert found.tolist() == rule.tolist()


@pytest.mark.parametrize("dtype", [kj.i8, kj.u8, kj.i16, kj.u16], ids=str)
def test_upper_halves_of_products_of_narrow_numbers(dtype: Any, device: Device) -> None:
    limits = np.iinfo(dtype.numpy)
    drawn = np.random.default_rng().integers(limits.min, limits.max, (2, 99), endpoint=True)
    x, y = drawn.astype(dtype.numpy)
    upper = ((x.astype(np.int64) * y) >> 32).astype(dtype.numpy).tolist()
    by_name = apply(lambda a, b: dtype(kj.mulhi(kj.i32(a), kj.i32(b))), dtype, x, y)
    by_shift = apply(lambda a, b: dtype((kj.i64(a) * kj.i64(b)) >> 32), dtype, x, y)
    assert by_name.tolist() == upper
    assert by_shift.tolist() == upper


def test_floor_division_and_modulo_floor(device: Device) -> None:
    x, y = i32s(7, -7, 7, -7), i32s(2, 2, -2, -2)
    assert apply(lambda a, b: a // b, kj.i32, x, y).tolist() == [3, -4, -4, 3]
    assert apply(lambda a, b: a % b, kj.i32, x, y).tolist() == [1, 1, -1, -1]


def test_division_by_zero_gives_zero(device: Device) -> None:
    assert apply(lambda a, b: a // b, kj.i32, i32s(7, -7), i32s(0, 0)).tolist() == [0, 0]
    assert apply(lambda a, b: a % b, kj.i32, i32s(7, -7), i32s(0, 0)).tolist() == [0, 0]


def test_the_least_number_divided_by_minus_one_is_itself(device: Device) -> None:
    assert apply(lambda a, b: a // b, kj.i32, i32s(LEAST), i32s(-1)).tolist() == [LEAST]
    assert apply(lambda a, b: a % b, kj.i32, i32s(LEAST), i32s(-1)).tolist() == [0]


def test_negative_powers_of_integers_are_zero(device: Device) -> None:
    found = apply(lambda a, b: a**b, kj.i32, i32s(2, 1, -1, -1, 0, 3), i32s(-1, -5, -3, -4, -1, 4))
    assert found.tolist() == [0, 1, -1, 1, 0, 81]


def test_shifts_by_the_width_or_more_give_zero_or_the_sign(device: Device) -> None:
    x, y = i32s(5, -5, 5, -5), i32s(32, 40, -1, 31)
    assert apply(lambda a, b: a << b, kj.i32, x, y).tolist() == [0, 0, 0, LEAST]
    assert apply(lambda a, b: a >> b, kj.i32, x, y).tolist() == [0, -1, 0, -1]
    high = np.array([2**31], np.uint32)
    assert apply(lambda a, b: a >> b, kj.u32, high, np.array([32], np.uint32)).tolist() == [0]


def test_quotients_of_integers_are_floats(device: Device) -> None:
    assert apply(lambda a, b: a / b, kj.f32, i32s(7, -1), i32s(2, 4)).tolist() == [3.5, -0.25]


# Floats.


def test_sums_and_products_are_rounded_to_nearest_even(device: Device) -> None:
    x, y = f32s(1.0, 16777216.0, 16777218.0), f32s(2.0**-24, 1.0, 1.0)
    found = apply(lambda a, b: a + b, kj.f32, x, y)
    assert found.tolist() == [1.0, 16777216.0, 16777220.0]


def test_a_product_in_a_sum_is_contracted(device: Device) -> None:
    x = f32s(1 + 2.0**-12)
    if device.kind == "webgpu":
        pytest.skip("contraction is asked of the driver, and made up for where it fuses nothing")
    fused = np.float32(float(x[0]) ** 2 - 1.0)
    assert apply(lambda a: a * a - 1.0, kj.f32, x)[0] == fused
    assert apply(lambda a: a * a - 1.0, kj.f32, x, contract=False)[0] == x[0] * x[0] - 1


def test_the_right_product_of_two_is_contracted(device: Device) -> None:
    if device.kind == "webgpu":
        pytest.skip("contraction is asked of the driver, and made up for where it fuses nothing")
    x, y = f32s(1 + 2.0**-12), f32s(1 - 2.0**-12)
    found = apply(lambda a, b: a * a + b * b, kj.f32, x, y)
    assert found[0] == np.float32(float(y[0]) ** 2 + float(x[0] * x[0]))


def test_half_floats_are_rounded_after_each_operation(device: Device) -> None:
    x = np.array([1 + 2.0**-10], np.float16)
    assert apply(lambda a: a * a - 1.0, kj.f32, x)[0] == np.float32(x[0] * x[0] - np.float16(1))


def test_division_by_a_zero_float_gives_infinity_or_nan(device: Device) -> None:
    special(device)
    found = apply(lambda a, b: a / b, kj.f32, f32s(1, -1, 0), f32s(0, 0, 0))
    np.testing.assert_array_equal(found, f32s(np.inf, -np.inf, np.nan))


def test_modulo_of_floats_has_the_sign_of_the_divisor(device: Device) -> None:
    x, y = f32s(5.5, -5.5, 5.5, -5.5), f32s(2, 2, -2, -2)
    assert apply(lambda a, b: a % b, kj.f32, x, y).tolist() == [1.5, 0.5, -0.5, -1.5]
    assert apply(lambda a, b: a // b, kj.f32, x, y).tolist() == [2, -3, -3, 2]


def test_comparisons_with_nan_are_false(device: Device) -> None:
    special(device)
    x = f32s(np.nan)
    for function in (lambda a: a < 1, lambda a: a >= 1, lambda a: a == a):
        assert not apply(function, kj.bool, x)[0]
    assert apply(lambda a: a != a, kj.bool, x)[0]


def test_min_and_max_skip_nan(device: Device) -> None:
    special(device)
    x, y = f32s(np.nan, 2, np.nan), f32s(1, np.nan, np.nan)
    np.testing.assert_array_equal(apply(min, kj.f32, x, y), f32s(1, 2, np.nan))
    np.testing.assert_array_equal(apply(max, kj.f32, x, y), f32s(1, 2, np.nan))
    np.testing.assert_array_equal(apply(lambda a: min(a, 1.5), kj.f32, y), f32s(1, 1.5, 1.5))
    np.testing.assert_array_equal(apply(lambda a: max(a, 1.5), kj.f32, y), f32s(1.5, 1.5, 1.5))


def test_minimum_and_maximum_give_nan(device: Device) -> None:
    special(device)
    x, y = f32s(np.nan, 2, 3), f32s(1, np.nan, 1)
    np.testing.assert_array_equal(apply(kj.minimum, kj.f32, x, y), f32s(np.nan, np.nan, 1))
    np.testing.assert_array_equal(apply(kj.maximum, kj.f32, x, y), f32s(np.nan, np.nan, 3))
    for extreme, found in ((kj.minimum, 2.5), (kj.maximum, 3)):
        clamped = apply(lambda a, f=extreme: f(a, 2.5), kj.f32, x[[0, 2]])
        np.testing.assert_array_equal(clamped, f32s(np.nan, found))


def test_minus_zero_is_below_zero_for_min_and_max(device: Device) -> None:
    special(device)
    x, y = f32s(0.0, -0.0), f32s(-0.0, 0.0)
    assert np.signbit(apply(min, kj.f32, x, y)).all()
    assert not np.signbit(apply(max, kj.f32, x, y)).any()


def test_minus_zero_equals_zero_and_keeps_its_sign(device: Device) -> None:
    special(device)
    x = f32s(-0.0)
    assert apply(lambda a: a == 0.0, kj.bool, x)[0]
    assert np.signbit(apply(lambda a: a * 1.0, kj.f32, x))[0]
    assert np.signbit(apply(kj.floor, kj.f32, x))[0]


def test_subnormals_are_kept(device: Device) -> None:
    special(device)
    x = f32s(2.0**-140, 2.0**-126)
    np.testing.assert_array_equal(apply(lambda a: a * 0.5, kj.f32, x), x / 2)


def test_round_breaks_ties_to_even(device: Device) -> None:
    x = f32s(0.5, 1.5, 2.5, -2.5, 2.6)
    assert apply(round, kj.i32, x).tolist() == [0, 2, 2, -2, 3]
    assert apply(kj.round, kj.f32, x).tolist() == [0, 2, 2, -2, 3]


# Conversions.


def test_casts_to_integers_are_cut_and_saturate(device: Device) -> None:
    x = f32s(2.9, -2.9, 3e9, -3e9)
    assert apply(kj.i32, kj.i32, x).tolist() == [2, -2, MOST, LEAST]
    assert apply(kj.u8, kj.u8, f32s(-1.5, 255.9, 300.0)).tolist() == [0, 255, 255]


def test_casts_of_nan_give_zero(device: Device) -> None:
    special(device)
    assert apply(kj.i32, kj.i32, f32s(np.nan, np.inf)).tolist() == [0, MOST]


def test_casts_between_integers_wrap(device: Device) -> None:
    assert apply(kj.u8, kj.u8, i32s(-1, 300)).tolist() == [255, 44]
    assert apply(kj.i8, kj.i8, i32s(200)).tolist() == [-56]


def test_stores_convert_numbers(device: Device) -> None:
    assert apply(lambda x: x, kj.u8, i32s(300)).tolist() == [44]
    assert apply(lambda x: x, kj.f32, i32s(3)).tolist() == [3.0]


def test_stores_of_floats_to_integers_are_refused(device: Device) -> None:
    refused("f32 is stored to out", lambda x: x, kj.i32, f32s(1.0))


# Memory.


def test_reads_out_of_bounds_give_zero(device: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        out[i] = a[i - 2]

    a, out = i32s(1, 2, 3), i32s(9, 9, 9, 9, 9, 9)
    kernel[6](a, out)
    assert out.tolist() == [0, 0, 1, 2, 3, 0]


def test_writes_and_atomics_out_of_bounds_do_nothing(device: Device) -> None:
    @kj.jit
    def kernel(whole: kj.Array1[kj.i32], n: kj.i32) -> None:
        i = kj.global_id(0)
        whole[i - n] = 5
        kj.atomic_add(whole, i + n, 1)

    whole = i32s(0, 0, 0)
    kernel[6](whole, 3)
    assert whole.tolist() == [5, 5, 5]


# The page itself.


def rows(heading: str) -> list[tuple[str, str]]:
    """The two columns of a table under a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    pairs = [re.split(r" \| ", line.strip("| ")) for line in lines]
    return [(pair[0], pair[1]) for pair in pairs if not pair[0].startswith("-")]


def test_each_sentence_of_the_page_names_its_test() -> None:
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    here = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.args.args[:1]
        and node.name.startswith("test_")
    }
    sections = ("Types", "Integers", "Floats", "Conversions", "Memory")
    named = [test.strip("`") for section in sections for _, test in rows(section)]
    assert sorted(named) == sorted(here)
