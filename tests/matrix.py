"""What the behaviour matrix shares: kernels of any dtype, operands, what a device can do, and how
results are compared.

An operation is a function of khaljit's namespace and its operands, written once. A kernel applies
it to khaljit's values, `plain.NAMES` to Python's, and the results must be the same bits. Where a
target's row says that its floats are its driver's, special values are left out of the comparison.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.codegen.caps import ROWS, Caps
from khaljit.tracer.dtypes import DType, bf16, bool_, by_name, f16, f32
from tests import plain
from tests.agreement import comparable
from tests.programs import edges, numbers

__all__ = [
    "KJ",
    "SIZE",
    "Operation",
    "able",
    "able_atomic",
    "apart",
    "array_of",
    "each",
    "exact",
    "expect",
    "judged",
    "kernel",
    "needs",
    "operands",
    "poisoned",
    "row_of",
    "scalars",
    "tame",
    "unless_able",
    "whole",
]

SIZE: Final = 757
_MARGIN: Final = 60  # exponents between what a test takes and subnormals

Rng = np.random.Generator
Array = NDArray[Any]
Operation = Callable[..., Any]

# For annotations and declarations with dtypes that only the test knows.
KJ: Final[Any] = kj


def array_of(dtype: DType, ndim: int = 1, count: int = 1) -> Any:
    """The annotation of an array of a dtype, or of vectors of it."""
    element = dtype if count == 1 else kj.vec(count, dtype)
    return (KJ.Array1, KJ.Array2, KJ.Array3)[ndim - 1][element]


def kernel(body: Callable[..., None], annotations: Mapping[str, Any], **options: Any) -> Any:
    """A kernel of a body that is the same for all dtypes."""
    assert isinstance(body, types.FunctionType)
    function = types.FunctionType(
        body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__
    )
    function.__annotations__ = dict(annotations)
    return kj.jit(**options)(function)


# Operands.


def operands(rng: Rng, dtype: DType, count: int, size: int = SIZE) -> list[Array]:
    """Arrays of numbers: every combination of edge values of two, then at random."""
    special = np.array(edges(dtype), dtype.numpy)
    grid = np.array([[a, b] for a in special for b in special], dtype.numpy).T
    found = []
    for k in range(count):
        array = numbers(rng, dtype, max(size, grid.shape[1]))
        if k < 2:
            array[: grid.shape[1]] = grid[k]
        found.append(array[:size])
    return found


def poisoned(shape: int | tuple[int, ...], dtype: DType) -> Array:
    """An output nobody could mistake for a result."""
    return np.full(shape, 77, np.uint8 if dtype is bool_ else dtype.numpy).view(dtype.numpy)


def scalars(dtype: DType, array: Array) -> list[Any]:
    """The elements of an array as plain Python's numbers, which have operators."""
    return [plain.from_memory(dtype, raw) for raw in array.ravel()]


def exact(dtype: DType, values: Array) -> Array:
    """Small whole numbers in the memory of a type."""
    if dtype is bf16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.numpy)


def whole(dtype: DType, array: Array) -> list[int]:
    """Whole numbers from the memory of a type."""
    return [int(one.value) for one in scalars(dtype, array)]


# What a device can do.


def each(dtypes: Sequence[DType]) -> pytest.MarkDecorator:
    """A test for each of some dtypes."""
    return pytest.mark.parametrize("dtype", dtypes, ids=lambda dtype: dtype.name)


def row_of(device: Device) -> Caps | None:
    """The capability row of a device's target; None for the interpreter, which can do all."""
    found = getattr(device.target, "caps", None)
    if isinstance(found, Caps):
        return found
    name = device.target.name.replace("cpu:", "llvm:").replace("cuda:", "ptx:")
    return ROWS.get(name)


def able(device: Device, *dtypes: DType) -> bool:
    """Whether a device has all of some dtypes; the 16-bit floats are emulated anywhere."""
    row = row_of(device)
    return row is None or all(one in row.dtypes or one in (f16, bf16) for one in dtypes)


def needs(device: Device, *dtypes: DType) -> None:
    """Skip on a device whose row lacks a dtype; `test_matrix_memory` tests that it is refused."""
    if not able(device, *dtypes):
        names = ", ".join(one.name for one in dtypes if not able(device, one))
        pytest.skip(f"{device} has no {names}")


def able_atomic(device: Device, dtype: DType, shared: bool = False) -> bool:
    """Whether a device can change elements of a dtype atomically: all do with what they swap.

    WebGPU has no atomics of 64 bits in shared memory.
    """
    row = row_of(device)
    if row is None or not able(device, dtype):
        return row is None
    if shared and dtype.bits == 64 and apart(device):
        return False
    unit = dtype if dtype.is_integer else by_name("u8" if dtype is bool_ else f"u{dtype.bits}")
    return ("compare_exchange", unit) in row.atomics


@contextmanager
def unless_able(can: bool) -> Iterator[None]:
    """A launch that must work where the row says so, and be refused where it does not."""
    if can:
        yield
        return
    with pytest.raises(kj.CapabilityError):
        yield


def apart(device: Device) -> bool:
    """Whether special floats, and whether fma is fused, are the driver's own affair."""
    row = row_of(device)
    return row is not None and row.name.startswith("webgpu")


# Results.


def ordinary(device: Device, dtype: DType, array: Array) -> Array:
    """Which floats are numbers, neither infinite nor subnormal.

    Where a device does not keep subnormals, nor such that products of them are.
    """
    if not dtype.is_float:
        return np.ones(array.shape, np.bool_)
    row = row_of(device)
    keeps = row is None or row.subnormals or dtype not in (f32, bf16)
    if dtype is bf16:
        exponent = array >> 7 & 0xFF
        least = 1 if keeps else 1 + _MARGIN
        fine: Array = (exponent != 0xFF) & ((exponent >= least) | (array & 0x7FFF == 0))
        return fine
    tiny = float(np.finfo(array.dtype).tiny) * (1.0 if keeps else 2.0**_MARGIN)
    with np.errstate(invalid="ignore"):
        size = np.abs(array)
        fine = np.isfinite(array) & ((size >= tiny) | (size == 0))
    return fine


def tame(device: Device, dtype: DType, array: Array) -> Array:
    """The same numbers, with 0 for what is the driver's own affair where that is so."""
    return (
        np.where(ordinary(device, dtype, array), array, array.dtype.type(0))
        if apart(device)
        else array
    )


def expect(
    device: Device,
    dtype: DType,
    actual: Array,
    expected: Array,
    given: Sequence[tuple[DType, Array]] = (),
    what: str = "",
    loose: int = 0,
    others: Sequence[Array] = (),
) -> None:
    """Both hold the same bits, NaN being one.

    Args:
        given: the operands, shown where results differ.
        loose: units in the last place that a device with floats of its own may be off.
        others: what such a device may give instead.
    """
    a, b = comparable(dtype, actual), comparable(dtype, expected)
    wrong = a != b
    if apart(device) and (dtype.is_float or any(one.is_float for one, _ in given)):
        fine = ordinary(device, dtype, expected)
        for one, array in given:
            fine &= ordinary(device, one, array)
        wrong &= fine
        for other in others:
            wrong &= a != comparable(dtype, other)
        if dtype.is_float:
            wrong &= np.abs(_ordered(a) - _ordered(b)) > loose
    if wrong.any():
        place = tuple(int(k) for k in np.argwhere(wrong)[0])
        shown = ", ".join(repr(array[place]) for _, array in given)
        pytest.fail(
            f"{what} of {shown} gives {actual[place]!r}, not {expected[place]!r}: "
            f"{int(wrong.sum())} of {wrong.size} differ"
        )


def _ordered(bits: Array) -> Array:
    """The bits of floats as integers in the floats' order; both zeros are one."""
    top = 1 << (8 * bits.itemsize - 1)
    size = (bits & np.array(top - 1, bits.dtype)).astype(np.int64)
    ordered: Array = np.where(bits >= top, -size, size)
    return ordered


def judged(
    device: Device,
    table: Mapping[str, Operation],
    given: Sequence[tuple[DType, Array]],
    result: DType,
    loose: Mapping[str, int] | None = None,
    others: Sequence[Mapping[str, Operation]] = (),
    **options: Any,
) -> None:
    """Apply all operations of a table in one kernel, and compare with plain Python.

    ``loose`` and ``others`` are of `expect`, by operation.
    """
    functions = tuple(table.values())

    def body_of_one(out: Any, a: Any) -> None:
        i = kj.global_id(0)
        for k, function in enumerate(functions):
            out[i, k] = function(kj, a[i])

    def body_of_two(out: Any, a: Any, b: Any) -> None:
        i = kj.global_id(0)
        for k, function in enumerate(functions):
            out[i, k] = function(kj, a[i], b[i])

    def body_of_three(out: Any, a: Any, b: Any, c: Any) -> None:
        i = kj.global_id(0)
        for k, function in enumerate(functions):
            out[i, k] = function(kj, a[i], b[i], c[i])

    body = (body_of_one, body_of_two, body_of_three)[len(given) - 1]
    annotations = {name: array_of(one) for name, (one, _) in zip("abc", given, strict=False)}
    size = given[0][1].size
    out = poisoned((size, len(table)), result)
    launch = kernel(body, {"out": array_of(result, 2), **annotations}, **options)[size]
    can = able(device, result, *(one for one, _ in given))
    with unless_able(can):
        launch(out, *(array for _, array in given))
    if not can:
        return
    columns = [scalars(one, array) for one, array in given]
    with np.errstate(all="ignore"):
        for k, (name, function) in enumerate(table.items()):
            expected = _by_plain(function, columns, result)
            instead = [_by_plain(one[name], columns, result) for one in others if apart(device)]
            off = (loose or {}).get(name, 0)
            expect(device, result, out[:, k], expected, given, name, off, instead)


def _by_plain(function: Operation, columns: Sequence[Sequence[Any]], result: DType) -> Array:
    rows = (function(plain.NAMES, *row) for row in zip(*columns, strict=True))
    values = [plain.to_memory(plain.of(result, value)) for value in rows]
    return np.array(values, result.numpy)
