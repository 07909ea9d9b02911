"""Shorthand for writing expansions: operations as methods, Python numbers as constants.

A `Writer` sends every operation through one function, so the same expansion serves whoever has
to look at each operation that it is made of. Where an operand is a Python number it becomes a
constant of the other operand's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["SIGNED", "UNSIGNED", "FloatFormat", "Writer", "format_of"]

UNSIGNED: Final = {8: u8, 16: u16, 32: u32, 64: u64}
SIGNED: Final = {8: i8, 16: i16, 32: i32, 64: i64}

Operand = Value | int | float


@final
class FloatFormat:
    """The parts of a binary float format: ``mantissa`` bits stored, and the exponent's bias."""

    __slots__ = ("bias", "bits", "mantissa")

    def __init__(self, bits: int, mantissa: int) -> None:
        self.bits: Final = bits
        self.mantissa: Final = mantissa
        self.bias: Final = (1 << bits - mantissa - 2) - 1

    @property
    def sign(self) -> int:
        """The bits with the sign alone."""
        return 1 << self.bits - 1

    @property
    def infinity(self) -> int:
        """The bits of infinity: the exponent all ones."""
        return self.sign - (1 << self.mantissa)


_FORMATS: Final = {f32: FloatFormat(32, 23), f64: FloatFormat(64, 52)}


def format_of(dtype: DType) -> FloatFormat:
    """The format of f32 or f64."""
    return _FORMATS[dtype]


@final
class Writer:
    """Writes operations.

    Args:
        builder: makes constants and bitcasts.
        pure: makes everything else.
    """

    def __init__(
        self, builder: Builder, pure: Callable[[Op, tuple[Value, ...], DType | None], Value]
    ) -> None:
        self.builder: Final = builder
        self._pure: Final = pure

    def const(self, dtype: DType, number: int | float) -> Value:
        return self.builder.const(dtype, number)

    def op(self, op: Op, *operands: Operand) -> Value:
        """Any operation whose operands have one type, which at least one of them shows."""
        for operand in operands:
            if isinstance(operand, Value):
                dtype = operand.type
                break
        args = tuple([self._operand(operand, dtype) for operand in operands])
        return self._pure(op, args, None)

    def _operand(self, operand: Operand, dtype: DType) -> Value:
        return operand if isinstance(operand, Value) else self.builder.const(dtype, operand)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else self._pure(Op.CAST, (value,), dtype)

    def bits(self, value: Value) -> Value:
        """The bits of a value, without sign."""
        return self.bitcast(value, UNSIGNED[value.type.bits])

    def bitcast(self, value: Value, dtype: DType) -> Value:
        """The bits of a value as another type; of a constant at once, and never twice."""
        if value.op is Op.CONST and isinstance(value.attr, int):
            return self.builder.const_bits(dtype, value.attr)
        if value.op is Op.BITCAST:
            value = value.args[0]
        return self.builder.bitcast(value, dtype)

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        shown = yes if isinstance(yes, Value) else no
        assert isinstance(shown, Value)
        args = (condition, self._operand(yes, shown.type), self._operand(no, shown.type))
        return self._pure(Op.SELECT, args, None)

    def add(self, x: Value, y: Operand) -> Value:
        return self.op(Op.ADD, x, y)

    def sub(self, x: Operand, y: Operand) -> Value:
        return self.op(Op.SUB, x, y)

    def mul(self, x: Value, y: Operand) -> Value:
        return self.op(Op.MUL, x, y)

    def neg(self, x: Value) -> Value:
        return self.op(Op.NEG, x)

    def abs(self, x: Value) -> Value:
        return self.op(Op.ABS, x)

    def min(self, x: Value, y: Operand) -> Value:
        return self.op(Op.MIN, x, y)

    def max(self, x: Value, y: Operand) -> Value:
        return self.op(Op.MAX, x, y)

    def and_(self, x: Value, y: Operand) -> Value:
        return self.op(Op.AND, x, y)

    def or_(self, x: Value, y: Operand) -> Value:
        return self.op(Op.OR, x, y)

    def xor(self, x: Value, y: Operand) -> Value:
        return self.op(Op.XOR, x, y)

    def not_(self, x: Value) -> Value:
        return self.op(Op.NOT, x)

    def shl(self, x: Value, y: Operand) -> Value:
        return self.op(Op.SHL, x, y)

    def shr(self, x: Value, y: Operand) -> Value:
        return self.op(Op.SHR, x, y)

    def eq(self, x: Value, y: Operand) -> Value:
        return self.op(Op.EQ, x, y)

    def ne(self, x: Value, y: Operand) -> Value:
        return self.op(Op.NE, x, y)

    def lt(self, x: Value, y: Operand) -> Value:
        return self.op(Op.LT, x, y)

    def le(self, x: Value, y: Operand) -> Value:
        return self.op(Op.LE, x, y)

    def gt(self, x: Value, y: Operand) -> Value:
        return self.op(Op.GT, x, y)

    def ge(self, x: Value, y: Operand) -> Value:
        return self.op(Op.GE, x, y)
