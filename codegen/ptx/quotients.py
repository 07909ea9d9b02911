"""Quotients and roots whose operands are known to be of moderate size, without a call.

``div.rn``, ``rcp.rn`` and ``sqrt.rn`` test their operands and call a function for unusual ones,
around which registers are saved and over which nothing is scheduled. These are the instructions
that the assembler makes of the others, so the results are the same: the hardware's approximation,
Newton's steps, and a last one from the residual, which rounds correctly (Markstein 1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from khaljit.codegen.ptx.forms import TYPES, literal
from khaljit.codegen.ptx.writer import Writer
from khaljit.tracer.build import constant, to_bits
from khaljit.tracer.dtypes import DType, f32
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["normal"]

# The lower halves of f64's approximations, of which the hardware gives the upper ones: numbers, or
# what is added to the operand's upper half.
_QUOTIENT_LOW: Final = "1"
_RECIPROCAL_LOW: Final = "0x300402"
_ROOT_LOW: Final = "0xFCB00000"
# What 0 is replaced by where a root's approximation is infinite or would be.
_LARGE_ROOT: Final = 2.0**100
_LEAST_UPPER_HALF: Final = (1023 - 800) << 20
_HALVED: Final = "0xFFF00000"  # an exponent less 1


def normal(w: Writer, value: Value, operands: Sequence[str]) -> str:
    """A quotient or root that is `NORMAL`."""
    kind = TYPES[value.type].register
    held = [w.held(kind, operand) for operand in operands]
    steps = _Steps(w, value.type)
    if value.op is Op.SQRT:
        return steps.root(held[0])
    if constant(value.args[0]) == 1:
        return steps.reciprocal(held[1], steps.sum_with_upper(held[1], _RECIPROCAL_LOW))
    return steps.quotient(*held)


class _Steps:
    """The instructions of one result."""

    def __init__(self, w: Writer, dtype: DType) -> None:
        self.w: Final = w
        self.dtype: Final = dtype
        self.kind: Final = TYPES[dtype].register

    def reciprocal(self, x: str, low: str) -> str:
        minus, seed = self.negative(x), self.seed("rcp", x, low)
        error = self.fma(minus, seed, self.number(1.0))
        if self.dtype is f32:
            return self.fma(seed, error, seed)
        near = self.fma(seed, self.fma(error, error, error), seed)
        return self.fma(near, self.fma(minus, near, self.number(1.0)), near)

    def quotient(self, x: str, y: str) -> str:
        inverse = self.reciprocal(y, _QUOTIENT_LOW)
        near = self.product(x, inverse)
        return self.fma(inverse, self.fma(self.negative(y), near, x), near)

    def root(self, x: str) -> str:
        if self.dtype is f32:
            seed = self.seed("rsqrt", x, "")
            inverse = self.let(f"min.f32 {{d}}, {seed}, {self.number(_LARGE_ROOT)};")
        else:
            inverse = self.inverse_root(x)
        near = self.product(x, inverse)
        error = self.fma(self.negative(near), near, x)
        return self.fma(error, self.half(inverse), near)

    def inverse_root(self, x: str) -> str:
        """Of an f64, to nearly all its bits."""
        low, high = self.halves(x)
        high = self.w.let("b32", f"max.u32 {{d}}, {high}, {_LEAST_UPPER_HALF};")
        seed = self.seed("rsqrt", self.joined(low, high), self.sum_with_upper(x, _ROOT_LOW))
        minus = self.negative(self.product(seed, seed))
        error = self.fma(x, minus, self.number(1.0))
        slope = self.fma(error, self.number(0.375), self.number(0.5))
        return self.fma(slope, self.product(seed, error), seed)

    def half(self, x: str) -> str:
        """Of a normal number; of an f64 by its exponent, since multiplying takes longer."""
        if self.dtype is f32:
            return self.product(x, self.number(0.5))
        low, high = self.halves(x)
        return self.joined(low, self.w.let("b32", f"add.u32 {{d}}, {high}, {_HALVED};"))

    def seed(self, name: str, x: str, low: str) -> str:
        """The hardware's approximation; of an f64 the upper half of it."""
        found = self.let(f"{name}.approx.ftz.{self.dtype.name} {{d}}, {x};")
        return found if self.dtype is f32 else self.joined(low, self.halves(found)[1])

    def sum_with_upper(self, x: str, number: str) -> str:
        """The upper half of an f64 plus a number; nothing of an f32."""
        if self.dtype is f32:
            return ""
        return self.w.let("b32", f"add.u32 {{d}}, {self.halves(x)[1]}, {number};")

    def halves(self, x: str) -> tuple[str, str]:
        low, high = self.w.register("b32"), self.w.register("b32")
        self.w.do(f"mov.b64 {{{low}, {high}}}, {x};")
        return low, high

    def joined(self, low: str, high: str) -> str:
        return self.w.let("b64", f"mov.b64 {{d}}, {{{low}, {high}}};")

    def number(self, number: float) -> str:
        return literal(self.dtype, to_bits(self.dtype, number))

    def negative(self, x: str) -> str:
        return self.let(f"neg.{self.dtype.name} {{d}}, {x};")

    def product(self, a: str, b: str) -> str:
        return self.let(f"mul.rn.{self.dtype.name} {{d}}, {a}, {b};")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(f"fma.rn.{self.dtype.name} {{d}}, {a}, {b}, {c};")

    def let(self, instruction: str) -> str:
        return self.w.let(self.kind, instruction)
