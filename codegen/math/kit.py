"""What the expansions are written in: traced numbers with Python's operators.

Laws of every expansion of this package:

* pure operations only, no loads: all lanes compute all paths, `select` picks; the one branch is
  `either`, for what only rare arguments need;
* total operations only, so garbage on a path that is not picked is harmless;
* the floating-point operations stand in the order written here, fused only where ``fma`` says so;
  nothing may contract or reassociate them later, for error-free transformations rely on it;
* f32 uses f32, i32 and u32 alone; f64 uses f64, i64 and u64.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, f32, f64, i32, i64, u32, u64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import NORMAL, Op
from khaljit.tracer.records import dataclass

__all__ = [
    "FORMATS",
    "LN_2",
    "LOG2_E",
    "Format",
    "Num",
    "Rare",
    "add_exactly",
    "add_ordered",
    "either",
    "fma",
    "horner",
    "is_unusual",
    "multiply_exactly",
    "power_of_two",
    "quotient",
    "root",
    "select",
    "with_sign",
]

# Written out, since the host's logarithms may differ from machine to machine.
LN_2: Final = 0.6931471805599453
LOG2_E: Final = 1.4426950408889634


@final
@dataclass(frozen=True, slots=True)
class Format:
    """A binary interchange format of IEEE 754.

    Attributes:
        signed, unsigned: the integers of the same width.
        precision: bits of the significand, the hidden one among them.
        bias: of the exponent; also the largest exponent.
    """

    dtype: DType
    signed: DType
    unsigned: DType
    precision: int
    bias: int

    @property
    def fraction(self) -> int:
        """Bits of the stored fraction; the exponent's lowest bit stands at this position."""
        return self.precision - 1

    @property
    def tiny(self) -> float:
        """The least normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def exponent_bits(self) -> int:
        """The sign and the exponent; as a signed number, what to round down to a power of 2."""
        return -1 << self.fraction

    @property
    def step(self) -> float:
        """The unit of exponents in expansions: integers of 32 bits cast as they stand."""
        return 2.0**-self.fraction if self.dtype is f32 else 1.0

    @property
    def tiny_bits(self) -> int:
        return 1 << self.fraction

    @property
    def infinity_bits(self) -> int:
        return 2 * self.bias + 1 << self.fraction

    @property
    def shifter(self) -> float:
        """1.5 * 2**fraction: adding it rounds to an integer that stands in the lowest bits."""
        return 1.5 * 2.0**self.fraction

    @property
    def one_bits(self) -> int:
        return self.bias << self.fraction

    @property
    def sign_bit(self) -> int:
        return 1 << (self.dtype.bits - 1)


FORMATS: Final = {
    f32: Format(f32, i32, u32, 24, 127),
    f64: Format(f64, i64, u64, 53, 1023),
}


@final
class Num:
    """A traced value with the operators of Python; plain numbers take its type."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder: Final = builder
        self.value: Final = value

    @property
    def dtype(self) -> DType:
        return self.value.type

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    def of(self, number: Num | float) -> Num:
        """A number of this type."""
        if isinstance(number, Num):
            return number
        return Num(self.builder, self.builder.const(self.dtype, number))

    def op(self, op: Op, *others: Num | float) -> Num:
        """An operation whose operands all have this type."""
        args = (self.value, *(self.of(other).value for other in others))
        return Num(self.builder, self.builder.pure(op, args))

    def __add__(self, other: Num | float) -> Num:
        return self.op(Op.ADD, other)

    def __sub__(self, other: Num | float) -> Num:
        return self.op(Op.SUB, other)

    def __rsub__(self, other: float) -> Num:
        return self.of(other).op(Op.SUB, self)

    def __mul__(self, other: Num | float) -> Num:
        return self.op(Op.MUL, other)

    def __truediv__(self, other: Num | float) -> Num:
        return self.op(Op.DIV, other)

    def __rtruediv__(self, other: float) -> Num:
        return self.of(other).op(Op.DIV, self)

    def __neg__(self) -> Num:
        return self.op(Op.NEG)

    def __abs__(self) -> Num:
        return self.op(Op.ABS)

    def __and__(self, other: Num | int) -> Num:
        return self.op(Op.AND, other)

    def __or__(self, other: Num | int) -> Num:
        return self.op(Op.OR, other)

    def __xor__(self, other: Num | int) -> Num:
        return self.op(Op.XOR, other)

    def __invert__(self) -> Num:
        return self.op(Op.NOT)

    def __lshift__(self, other: Num | int) -> Num:
        return self.op(Op.SHL, other)

    def __rshift__(self, other: Num | int) -> Num:
        return self.op(Op.SHR, other)

    def __lt__(self, other: Num | float) -> Num:
        return self.op(Op.LT, other)

    def __gt__(self, other: Num | float) -> Num:
        return self.op(Op.GT, other)

    def __ge__(self, other: Num | float) -> Num:
        return self.op(Op.GE, other)

    def eq(self, other: Num | float) -> Num:
        return self.op(Op.EQ, other)

    def ne(self, other: Num | float) -> Num:
        return self.op(Op.NE, other)

    def sqrt(self) -> Num:
        return self.op(Op.SQRT)

    def bits(self) -> Num:
        """The bits of a float as an unsigned integer."""
        return self.reinterpret(self.format.unsigned)

    def signed_bits(self) -> Num:
        """The bits of a float as a signed integer."""
        return self.reinterpret(self.format.signed)

    def reinterpret(self, dtype: DType) -> Num:
        value = self.builder.pure(Op.BITCAST, (self.value,), dtype=dtype)
        return Num(self.builder, value)

    def cast(self, dtype: DType) -> Num:
        return Num(self.builder, self.builder.pure(Op.CAST, (self.value,), dtype=dtype))


class Rare(enum.Enum):
    """What is done about arguments that need more work than others, and are rare."""

    IGNORED = "ignored"  # results there mean little
    SELECTED = "selected"  # the work is done for all
    BRANCHED = "branched"  # an ``if``, an effect, holds it


def either(
    condition: Num, rare: Rare, slow: Callable[[], tuple[Num, ...]], plain: tuple[Num, ...]
) -> tuple[Num, ...]:
    """The ``slow`` values where the condition holds, which it seldom does, else the others."""
    if rare is Rare.IGNORED:
        return plain
    if rare is Rare.SELECTED:
        return tuple(select(condition, yes, no) for yes, no in zip(slow(), plain, strict=True))
    builder = condition.builder
    arms = []
    for results in (slow(), plain):
        builder.open()
        builder.end(Op.YIELD, tuple(result.value for result in results))
        arms.append(builder.close())
    return tuple(Num(builder, result) for result in builder.if_(condition.value, *arms))


def fma(a: Num, b: Num | float, c: Num | float) -> Num:
    """a * b + c, rounded once."""
    return a.op(Op.FMA, b, c)


def select(condition: Num, yes: Num, no: Num | float) -> Num:
    """One of two values of the type of ``yes``."""
    builder = condition.builder
    args = (condition.value, yes.value, yes.of(no).value)
    return Num(builder, builder.pure(Op.SELECT, args))


def quotient(x: Num | float, y: Num) -> Num:
    """x / y where operands and result are far from overflow and underflow, x may be 0: `NORMAL`."""
    return Num(y.builder, y.builder.pure(Op.DIV, (y.of(x).value, y.value), NORMAL))


def root(x: Num) -> Num:
    """The square root of 0 or of a number far from overflow and underflow: `NORMAL`."""
    return Num(x.builder, x.builder.pure(Op.SQRT, (x.value,), NORMAL))


def horner(x: Num, coefficients: Sequence[float]) -> Num:
    """The polynomial with these coefficients, the constant one first."""
    total = x.of(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = fma(total, x, coefficient)
    return total


def with_sign(magnitude: Num, sign: Num) -> Num:
    """A number with the sign bit of another set as well, for results that have it but at 0."""
    mask = magnitude.format.sign_bit
    return (magnitude.bits() | (sign.bits() & mask)).reinterpret(magnitude.dtype)


def is_unusual(x: Num) -> Num:
    """Whether x is anything but a positive normal number."""
    form = x.format
    return x.bits() - form.tiny_bits >= form.infinity_bits - form.tiny_bits


def power_of_two(exponent: Num, dtype: DType) -> Num:
    """2**exponent for an integer that is a normal number's exponent, else garbage."""
    form = FORMATS[dtype]
    return ((exponent << form.fraction) + form.one_bits).reinterpret(dtype)


def multiply_exactly(a: Num, b: Num | float) -> tuple[Num, Num]:
    """The product as the sum of its rounded value and its error (Dekker's product, by FMA)."""
    high = a * b
    return high, fma(a, b, -high)


def add_ordered(a: Num, b: Num) -> tuple[Num, Num]:
    """The sum and its error, where |a| >= |b| or a is 0 (Dekker's Fast2Sum)."""
    high = a + b
    return high, b - (high - a)


def add_exactly(a: Num, b: Num) -> tuple[Num, Num]:
    """The sum and its error, whatever the order (Knuth's TwoSum)."""
    high = a + b
    other = high - a
    return high, (a - (high - other)) + (b - other)
