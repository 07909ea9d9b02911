"""Several small numbers in one u32, as shading languages pack them: the first one lowest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from khaljit.tracer.coerce import cast, to_scalar
from khaljit.tracer.dtypes import DType, f16, f32, i8, i16, u8, u16, u32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.intrinsics.bits import bitcast
from khaljit.tracer.intrinsics.numbers import max, min, round
from khaljit.tracer.proxy import Scalar, Vector, fail
from khaljit.tracer.recorder import current

__all__ = [
    "pack_half2x16",
    "pack_snorm2x16",
    "pack_snorm4x8",
    "pack_unorm2x16",
    "pack_unorm4x8",
    "unpack_half2x16",
    "unpack_snorm2x16",
    "unpack_snorm4x8",
    "unpack_unorm2x16",
    "unpack_unorm4x8",
]


def _packing(
    name: str, count: int, encode: Callable[[Any], Any], text: str
) -> Callable[[Any], Any]:
    bits = 32 // count

    def function(v: Any) -> Any:
        recorder = current(f"kj.{name}")
        recorder.mark()
        if not is_vector(v) or len(v) != count or not v.dtype.is_float:
            fail(f"kj.{name} packs {count} floats", f"pass a kj.vec{count}")
        packed: Any = None
        for place, item in enumerate(v.items):
            own = cast(encode(cast(item, f32)), u32)
            packed = own if packed is None else packed | (own << bits * place)
        return packed

    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


def _unpacking(
    name: str, count: int, decode: Callable[[Any], Any], text: str
) -> Callable[[Any], Any]:
    bits = 32 // count
    unit = u8 if count == 4 else u16

    def function(x: Any) -> Any:
        recorder = current(f"kj.{name}")
        recorder.mark()
        packed: Any = to_scalar(recorder, x, u32)
        if packed.dtype is not u32:
            fail(f"kj.{name} of {packed.dtype.name}", "it takes a u32")
        parts = [decode(cast(packed >> bits * place, unit)) for place in range(count)]
        return Vector(recorder, tuple(parts))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


def _normed(signed: DType | None, unit: DType, most: float) -> Callable[[Any], Any]:
    def encode(x: Any) -> Any:
        number = round(min(max(x, 0.0 if signed is None else -1.0), 1.0) * most)
        return cast(number, unit) if signed is None else bitcast(cast(number, signed), unit)

    return encode


def _denormed(signed: DType | None, most: float) -> Callable[[Any], Any]:
    def decode(x: Scalar) -> Any:
        if signed is None:
            return cast(x, f32) / most
        return max(cast(bitcast(x, signed), f32) / most, -1.0)

    return decode


_SNORM = "clipped to -1 and 1 and rounded to {}ths, ties to even; NaN as -1."
_UNORM = "clipped to 0 and 1 and rounded to {}ths, ties to even; NaN as 0."

pack_half2x16 = _packing(
    "pack_half2x16", 2, lambda x: bitcast(cast(x, f16), u16), "Two floats of a vec2 as f16."
)
pack_snorm4x8 = _packing(
    "pack_snorm4x8", 4, _normed(i8, u8, 127.0), f"Four floats of a vec4, {_SNORM.format(127)}"
)
pack_unorm4x8 = _packing(
    "pack_unorm4x8", 4, _normed(None, u8, 255.0), f"Four floats of a vec4, {_UNORM.format(255)}"
)
pack_snorm2x16 = _packing(
    "pack_snorm2x16", 2, _normed(i16, u16, 32767.0), f"Two floats of a vec2, {_SNORM.format(32767)}"
)
pack_unorm2x16 = _packing(
    "pack_unorm2x16",
    2,
    _normed(None, u16, 65535.0),
    f"Two floats of a vec2, {_UNORM.format(65535)}",
)
unpack_half2x16 = _unpacking(
    "unpack_half2x16",
    2,
    lambda x: cast(bitcast(x, f16), f32),
    "The two f16 in a u32, as a vec2.",
)
unpack_snorm4x8 = _unpacking(
    "unpack_snorm4x8", 4, _denormed(i8, 127.0), "Four bytes from -127 to 127 as a vec4 in [-1, 1]."
)
unpack_unorm4x8 = _unpacking(
    "unpack_unorm4x8", 4, _denormed(None, 255.0), "Four bytes from 0 to 255 as a vec4 in [0, 1]."
)
unpack_snorm2x16 = _unpacking(
    "unpack_snorm2x16",
    2,
    _denormed(i16, 32767.0),
    "Two numbers from -32767 to 32767 as a vec2 in [-1, 1].",
)
unpack_unorm2x16 = _unpacking(
    "unpack_unorm2x16",
    2,
    _denormed(None, 65535.0),
    "Two numbers from 0 to 65535 as a vec2 in [0, 1].",
)
