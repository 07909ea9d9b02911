"""Arrays of a device as the host sees them: made, viewed, filled and written."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from tests.numpy_numbers import rounded_to_bf16

Rng = np.random.Generator


def _bits(values: Any) -> np.ndarray[Any, Any]:
    """What bf16 has of numbers."""
    rounded = rounded_to_bf16(np.asarray(values, np.float32))
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)


def test_bf16_is_made_of_numbers_everywhere(device: Device, rng: Rng) -> None:
    values = rng.normal(size=37).astype(np.float32)
    made = [device.array(values, kj.bf16), device.array(values.tolist(), kj.bf16)]
    made += [device.empty(37, kj.bf16) for _ in range(3)]
    made[2].write(values)
    made[3][:] = values
    for k, value in enumerate(values):
        made[4][k] = float(value)
    for one in made:
        np.testing.assert_array_equal(one.numpy(), _bits(values))
    np.testing.assert_array_equal(device.full(3, 1.5, kj.bf16).numpy(), _bits([1.5] * 3))
    strided = device.zeros((4, 6), kj.bf16)
    strided[:, ::2] = -2
    np.testing.assert_array_equal(strided.numpy(), _bits([[-2, 0] * 3] * 4))
    vectors = device.full(2, 0.1, kj.vec(3, kj.bf16))
    np.testing.assert_array_equal(vectors.numpy(), _bits([[0.1] * 3] * 2))


def test_numbers_become_bf16_with_one_rounding(device: Device) -> None:
    values = [1 + 2.0**-8 + 2.0**-40, (1 << 60) + (1 << 52) + 1, 1e39, -np.inf, 0.0, -0.0]
    bits = [0x3F81, 0x5D81, 0x7F80, 0xFF80, 0, 0x8000]
    found = device.array(np.array(values, object).astype(np.float64), kj.bf16).numpy()
    assert found.tolist() == [*bits[:1], 0x5D80, *bits[2:]]  # float64 has no such integer
    whole = device.array(np.array(values[1:2], np.int64), kj.bf16)
    assert whole.numpy().tolist() == bits[1:2]
    assert np.isnan((device.array([np.nan], kj.bf16).numpy().astype(np.uint32) << 16).view("f4"))


def test_uint16_is_the_bits_of_bf16(device: Device, rng: Rng) -> None:
    bits = rng.integers(0, 1 << 16, 50).astype(np.uint16)
    one = device.array(bits, kj.bf16)
    other = device.zeros(50, kj.bf16)
    other[:] = one.numpy()
    assert (one.numpy() == bits).all()
    assert (other.numpy() == bits).all()


def test_an_array_that_is_made_of_an_array_keeps_its_type(device: Device) -> None:
    for dtype, value in ((kj.i64, 1 << 40), (kj.f16, 0.1), (kj.bf16, 0.1), (kj.vec3, 0.5)):
        try:
            source = device.full((3, 4), value, dtype)
        except kj.CapabilityError:
            continue
        for part in (source, source[1:, ::2]):
            made = device.array(part)
            assert (made.dtype, made.shape) == (dtype, part.shape)
            np.testing.assert_array_equal(made.numpy(), part.numpy())
            elsewhere = kj.device("null").array(part)
            assert (elsewhere.dtype, elsewhere.shape) == (dtype, part.shape)
        source.fill(0)
        assert made.numpy().any()


def test_an_array_is_made_of_bf16_by_its_numbers(device: Device) -> None:
    source = device.array([1.5, -2, 0.1], kj.bf16)
    found = device.array(source, kj.f32).numpy()
    assert found.tolist() == [1.5, -2, float(rounded_to_bf16(np.array([0.1], np.float32))[0])]


def test_only_literals_become_narrow(device: Device) -> None:
    assert device.array([1.5, 2]).dtype is kj.f32
    assert device.array(range(3)).dtype is kj.i32
    assert device.array(3).dtype is kj.i32
    assert kj.device("cpu").array(memoryview(np.zeros(2).data)).dtype is kj.f64
    assert kj.device("cpu").array(np.float64(2)).dtype is kj.f64


def test_an_index_for_every_axis_is_a_view_of_one_element(device: Device) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = device.array(values)
    assert array[1, 2].shape == ()
    assert array[1, np.int64(-1)].numpy() == 7
    assert [float(one.numpy()) for one in array[2]] == [8, 9, 10, 11]
    array[0, 1] = 50
    array[2, -1] = array[1, 0]
    row = array[1]
    row[2] = np.float32(-1)
    values[0, 1], values[2, -1], values[1, 2] = 50, 4, -1
    np.testing.assert_array_equal(array.numpy(), values)
    assert [part.shape for part in array] == [(4,)] * 3
    with pytest.raises(TypeError, match="no length"):
        iter(array[0, 0])


def test_an_array_has_other_shapes(device: Device) -> None:
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    array = device.array(values)
    for shape in ((24,), (2, -1), (3, 2, 4), (1, 24, 1)):
        np.testing.assert_array_equal(array.reshape(*shape).numpy(), values.reshape(shape))
    array.reshape((-1,))[7] = 100
    assert array.numpy()[1, 1] == 100
    assert array[1:3].reshape(12)[0].numpy() == 6
    wrong: tuple[Any, ...] = ((5, 5), (-1, -1), (-1, 7), ("a",))
    for extents in wrong:
        with pytest.raises(kj.ArgumentValueError, match="has no shape"):
            array.reshape(*extents)
    with pytest.raises(kj.ArgumentValueError, match="one behind the other"):
        array[:, ::2].reshape(12)


@pytest.mark.parametrize("key", [[0, 1], np.array([True] * 4), True, "a", (0, [1])], ids=repr)
def test_an_index_that_makes_no_view_is_refused(key: Any) -> None:
    array = kj.device("cpu").zeros((4, 6))
    with pytest.raises(kj.ArgumentTypeError, match="is indexed with") as caught:
        array[key]
    assert "numpy()" in (caught.value.mend or "")


def test_values_of_another_shape_are_refused(device: Device) -> None:
    array = device.zeros((4, 6))
    array[:] = np.arange(6)
    assert (array.numpy() == np.arange(6)).all()
    with pytest.raises(kj.ArgumentValueError, match=r"shape \(4,\) .* shape \(4, 6\)"):
        array[:] = np.zeros(4)
    with pytest.raises(kj.ArgumentValueError, match=r"shape \(2,\) .* shape \(\)"):
        array[0, 0] = [1, 2]


def test_arrays_are_not_pickled_and_not_copied_in_part(device: Device) -> None:
    for action in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(kj.ArgumentTypeError, match="neither pickled nor copied"):
            action(device.zeros(3))
