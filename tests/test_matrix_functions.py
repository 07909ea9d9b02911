"""The behaviour matrix: elementary functions in every dtype, on every device, within their errors.

The judge is mpmath. f32 and f64 are within 4 units in the last place (``codegen/math/bounds.py``
promises less); the 16-bit floats are computed in f32 and rounded; functions of integers are those
of f32, of f64 where they have 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import FLOATS, INTEGERS, DType, bf16, f16, f32, f64
from tests import plain
from tests.matrix import able, apart, array_of, each, kernel, poisoned, scalars, unless_able

Rng = np.random.Generator
Array = NDArray[Any]

_MP: Final[Any] = mpmath.mp.clone()
_MP.prec = 140
_MOST: Final = 4.0  # units in the last place
_MOST_GAMMA: Final = 10.0  # of gamma and lgamma, whose sums cancel
_SIZE: Final = 257

# Name: the exact function, and the operands' ranges.
_FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], tuple[tuple[float, float], ...]]]] = {
    "exp": (_MP.exp, ((-80, 80),)),
    "exp2": (lambda x: _MP.mpf(2) ** x, ((-120, 120),)),
    "exp10": (lambda x: _MP.mpf(10) ** x, ((-35, 35),)),
    "expm1": (_MP.expm1, ((-30, 80),)),
    "log": (_MP.log, ((0, 1e5),)),
    "log2": (lambda x: _MP.log(x, 2), ((0, 1e5),)),
    "log10": (_MP.log10, ((0, 1e5),)),
    "log1p": (_MP.log1p, ((-1, 100),)),
    "sqrt": (_MP.sqrt, ((0, 1e5),)),
    "rsqrt": (lambda x: 1 / _MP.sqrt(x), ((0, 1e5),)),
    "cbrt": (lambda x: _MP.sign(x) * _MP.cbrt(abs(x)), ((-1e5, 1e5),)),
    "sin": (_MP.sin, ((-1000, 1000),)),
    "cos": (_MP.cos, ((-1000, 1000),)),
    "tan": (_MP.tan, ((-1000, 1000),)),
    "asin": (_MP.asin, ((-1, 1),)),
    "acos": (_MP.acos, ((-1, 1),)),
    "atan": (_MP.atan, ((-100, 100),)),
    "sinh": (_MP.sinh, ((-80, 80),)),
    "cosh": (_MP.cosh, ((-80, 80),)),
    "tanh": (_MP.tanh, ((-20, 20),)),
    "asinh": (_MP.asinh, ((-1e5, 1e5),)),
    "acosh": (_MP.acosh, ((1, 1e5),)),
    "atanh": (_MP.atanh, ((-1, 1),)),
    "erf": (_MP.erf, ((-5, 5),)),
    "erfc": (_MP.erfc, ((-5, 8),)),
    "gamma": (_MP.gamma, ((0.5, 30),)),
    "lgamma": (_MP.loggamma, ((3, 1000),)),
    "pow": (_MP.power, ((0, 30), (-20, 20))),
    "hypot": (_MP.hypot, ((-1e5, 1e5), (-1e5, 1e5))),
    "atan2": (_MP.atan2, ((-10, 10), (-10, 10))),
}


def drawn(rng: Rng, dtype: DType, low: float, high: float) -> Array:
    """Numbers of a range, some of them close to zero or whole."""
    if not dtype.is_float:
        bottom, top = max(math.ceil(low), dtype.limits[0]), min(math.floor(high), dtype.limits[1])
        return rng.integers(bottom, top, _SIZE, endpoint=True).astype(dtype.numpy)
    values = rng.uniform(low, high, _SIZE)
    values[::5] = np.trunc(values[::5]) + 0.0  # no -0: mpmath has none
    if low <= 0:
        values[::7] *= 10.0 ** rng.uniform(-4, 0, values[::7].size)
    if dtype is bf16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    most = float(np.finfo(dtype.numpy).max)
    return np.clip(values, -most, most).astype(dtype.numpy)


def measured(device: Device, name: str, dtype: DType, given: list[Array], result: DType) -> Array:
    """What a function gives on a device."""

    def of_one(out: Any, a: Any) -> None:
        i = kj.global_id(0)
        out[i] = getattr(kj, name)(a[i])

    def of_two(out: Any, a: Any, b: Any) -> None:
        i = kj.global_id(0)
        out[i] = getattr(kj, name)(a[i], b[i])

    out = poisoned(_SIZE, result)
    annotations = {one: array_of(dtype) for one in "ab"[: len(given)]}
    body = of_one if len(given) == 1 else of_two
    with unless_able(able(device, dtype, result)):
        kernel(body, {"out": array_of(result), **annotations})[_SIZE](out, *given)
    return out


def error(dtype: DType, actual: plain.Number, exact: Any) -> float:
    """The distance in units in the last place of the exact result."""
    value = float(actual.value)
    largest = {f16: 65504.0, bf16: 3.3895e38, f32: 3.4028234e38, f64: 1.7976931348623157e308}[dtype]
    if abs(exact) > largest:
        return 0.0 if abs(value) >= largest * 0.999 else math.inf
    digits, least = {f16: (11, -24), bf16: (8, -133), f32: (24, -149), f64: (53, -1074)}[dtype]
    exponent = int(_MP.floor(_MP.log(abs(exact), 2))) if exact != 0 else least
    unit = _MP.mpf(2) ** max(exponent - digits + 1, least)
    return float(abs(_MP.mpf(value) - exact) / unit)


def check(device: Device, rng: Rng, name: str, dtype: DType, result: DType, most: float) -> None:
    function, ranges = _FUNCTIONS[name]
    given = [drawn(rng, dtype, *bounds) for bounds in ranges]
    out = measured(device, name, dtype, given, result)
    if not able(device, dtype, result):
        return
    columns = [scalars(dtype, array) for array in given]
    for *args, actual in zip(*columns, scalars(result, out), strict=True):
        try:
            exact = function(*(_MP.mpf(float(arg.value)) for arg in args))
        except (ValueError, ZeroDivisionError):  # a pole
            continue
        if _MP.isinf(exact) or _MP.im(exact) != 0:
            continue
        off = error(result, actual, _MP.re(exact))
        assert off <= most, f"{name}{args} gives {actual}, not {exact}: {off} units off"


@pytest.mark.parametrize("name", _FUNCTIONS)
@each([f32, f64])
def test_functions_are_close(device: Device, rng: Rng, name: str, dtype: DType) -> None:
    most = _MOST_GAMMA if name in ("gamma", "lgamma") else _MOST
    check(device, rng, name, dtype, dtype, most)


@each([f16, bf16])
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_of_narrow_floats_are_those_of_f32(
    device: Device, rng: Rng, name: str, dtype: DType
) -> None:
    check(device, rng, name, dtype, dtype, 0.51)


@each(INTEGERS)
@pytest.mark.parametrize("name", ["exp2", "sqrt", "atan", "hypot"])
def test_functions_of_integers_are_floats(
    device: Device, rng: Rng, name: str, dtype: DType
) -> None:
    check(device, rng, name, dtype, f64 if dtype.bits == 64 else f32, _MOST)


_SPECIAL: Final[Mapping[str, tuple[float, ...]]] = {
    # Of 0, -0, inf, -inf, NaN.
    "exp": (1.0, 1.0, math.inf, 0.0, math.nan),
    "log": (-math.inf, -math.inf, math.inf, math.nan, math.nan),
    "sqrt": (0.0, -0.0, math.inf, math.nan, math.nan),
    "rsqrt": (math.inf, -math.inf, 0.0, math.nan, math.nan),
    "cbrt": (0.0, -0.0, math.inf, -math.inf, math.nan),
    "sin": (0.0, -0.0, math.nan, math.nan, math.nan),
    "cos": (1.0, 1.0, math.nan, math.nan, math.nan),
    "tan": (0.0, -0.0, math.nan, math.nan, math.nan),
    "atan": (0.0, -0.0, math.pi / 2, -math.pi / 2, math.nan),
    "sinh": (0.0, -0.0, math.inf, -math.inf, math.nan),
    "tanh": (0.0, -0.0, 1.0, -1.0, math.nan),
    "erf": (0.0, -0.0, 1.0, -1.0, math.nan),
}


@each(FLOATS)
def test_functions_of_special_values(device: Device, dtype: DType) -> None:

    given = [plain.of(dtype, value) for value in (0.0, -0.0, math.inf, -math.inf, math.nan)]
    array = np.array([plain.to_memory(one) for one in given], dtype.numpy)

    def body(out: Any, a: Any) -> None:
        i = kj.global_id(0)
        for k, name in enumerate(_SPECIAL):
            out[k, i] = getattr(kj, name)(a[i])

    out = poisoned((len(_SPECIAL), 5), dtype)
    with unless_able(able(device, dtype)):
        kernel(body, {"out": array_of(dtype, 2), "a": array_of(dtype)})[5](out, array)
    if not able(device, dtype) or apart(device):
        return
    for row, (name, expected) in zip(out, _SPECIAL.items(), strict=True):
        seen = [float(one.value) for one in scalars(dtype, row)]
        wanted = [float(plain.of(dtype, one).value) for one in expected]
        for a, b in zip(seen, wanted, strict=True):
            close = a == pytest.approx(b, rel=1e-6, nan_ok=True) if b else a == b
            assert close, f"{name}: {seen}"
            assert math.isnan(b) or math.copysign(1, a) == math.copysign(1, b), f"{name}: {seen}"
