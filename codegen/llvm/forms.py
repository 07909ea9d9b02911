"""LLVM's spellings: of types, constants and the regular operations.

A form is a format string. Its letters:

* ``{t}`` the type of the operands, ``{r}`` that of the result: ``float`` or ``<16 x float>``;
* ``{m}`` the operands' type as it is mangled into intrinsics: ``f32`` or ``v16f32``;
* ``{zero} {ones}`` the constants with no and with all bits set, of the operands' type;
* ``{f}`` what the hardware may approximate, where the kernel allows it;
* ``{0} {1} {2}`` the operands.

16-bit floats are carried as their bits (i16) and become ``half`` only while they are cast, so that
moving them needs no instructions of their own.
"""

from __future__ import annotations

import struct
from typing import Final, final

from khaljit.tracer.build import to_number
from khaljit.tracer.dtypes import (
    FLOATS,
    INTEGERS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["APPROXIMATE", "FORMS", "STORED", "TYPES", "Width", "literal"]

TYPES: Final = {
    bool_: "i1",
    i8: "i8",
    u8: "i8",
    i16: "i16",
    u16: "i16",
    i32: "i32",
    u32: "i32",
    i64: "i64",
    u64: "i64",
    f16: "i16",
    bf16: "i16",
    f32: "float",
    f64: "double",
}
# What stands in memory where it differs: a bool is a byte.
STORED: Final = {**TYPES, bool_: "i8"}

_MANGLED: Final = {"float": "f32", "double": "f64", "half": "f16"}


@final
@dataclass(frozen=True, slots=True)
class Width:
    """How many lanes an instruction works on: 0 for a scalar instruction."""

    lanes: int

    def of(self, type_: str) -> str:
        """A type of this many lanes of a scalar type."""
        return f"<{self.lanes} x {type_}>" if self.lanes else type_

    def type(self, dtype: DType) -> str:
        return self.of(TYPES[dtype])

    def mangle(self, type_: str) -> str:
        """A scalar type with the lanes, as it stands in an intrinsic's name."""
        plain = _MANGLED.get(type_, type_)
        return f"v{self.lanes}{plain}" if self.lanes else plain

    def const(self, type_: str, text: str) -> str:
        """A constant with the same text in all lanes, without its type."""
        return f"splat ({type_} {text})" if self.lanes else text


def literal(dtype: DType, bits: int) -> str:
    """The text of a scalar constant.

    >>> literal(f32, 0x3f800000), literal(i8, 0xff)
    ('0x3ff0000000000000', '-1')
    """
    if dtype is bool_:
        return "true" if bits else "false"
    if dtype is f32:  # LLVM writes a float by the bits of the double of the same value
        value = struct.unpack("<f", struct.pack("<I", bits))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016x}"
    if dtype is f64:
        return f"0x{bits:016x}"
    return str(bits if dtype.is_float else to_number(dtype, bits))


_SIGNED: Final = tuple(t for t in INTEGERS if t.is_signed)
_UNSIGNED: Final = tuple(t for t in INTEGERS if not t.is_signed)
_WIDE_FLOATS: Final = tuple(t for t in FLOATS if t.bits >= 32)


def _intrinsic(name: str, arity: int, *more: str) -> str:
    operands = [f"{{t}} {{{k}}}" for k in range(arity)]
    return f"call {{t}} @llvm.{name}.{{m}}({', '.join((*operands, *more))})"


_EVERY_INTEGER: Final = {
    Op.ADD: "add {t} {0}, {1}",
    Op.SUB: "sub {t} {0}, {1}",
    Op.MUL: "mul {t} {0}, {1}",
    Op.NEG: "sub {t} {zero}, {0}",
    Op.AND: "and {t} {0}, {1}",
    Op.OR: "or {t} {0}, {1}",
    Op.XOR: "xor {t} {0}, {1}",
    Op.NOT: "xor {t} {0}, {ones}",
    Op.SHL: "shl {t} {0}, {1}",
    Op.EQ: "icmp eq {t} {0}, {1}",
    Op.NE: "icmp ne {t} {0}, {1}",
    Op.REVERSE_BITS: _intrinsic("bitreverse", 1),
}
_SIGNED_FORMS: Final = {
    Op.ABS: _intrinsic("abs", 1, "i1 false"),
    Op.MIN: _intrinsic("smin", 2),
    Op.MAX: _intrinsic("smax", 2),
    Op.SHR: "ashr {t} {0}, {1}",
    Op.LT: "icmp slt {t} {0}, {1}",
    Op.LE: "icmp sle {t} {0}, {1}",
    Op.GT: "icmp sgt {t} {0}, {1}",
    Op.GE: "icmp sge {t} {0}, {1}",
}
_UNSIGNED_FORMS: Final = {
    Op.ABS: "or {t} {0}, {0}",
    Op.MIN: _intrinsic("umin", 2),
    Op.MAX: _intrinsic("umax", 2),
    Op.SHR: "lshr {t} {0}, {1}",
    Op.LT: "icmp ult {t} {0}, {1}",
    Op.LE: "icmp ule {t} {0}, {1}",
    Op.GT: "icmp ugt {t} {0}, {1}",
    Op.GE: "icmp uge {t} {0}, {1}",
}
_FLOAT_FORMS: Final = {
    Op.ADD: "fadd {t} {0}, {1}",
    Op.SUB: "fsub {t} {0}, {1}",
    Op.MUL: "fmul {t} {0}, {1}",
    Op.DIV: "fdiv {f}{t} {0}, {1}",
    Op.NEG: "fneg {t} {0}",
    Op.ABS: _intrinsic("fabs", 1),
    Op.MIN: _intrinsic("minimumnum", 2),
    Op.MAX: _intrinsic("maximumnum", 2),
    Op.MINIMUM: _intrinsic("minimum", 2),
    Op.MAXIMUM: _intrinsic("maximum", 2),
    Op.FMA: _intrinsic("fma", 3),
    Op.SQRT: "call {f}{t} @llvm.sqrt.{m}({t} {0})",
    Op.FLOOR: _intrinsic("floor", 1),
    Op.CEIL: _intrinsic("ceil", 1),
    Op.TRUNC: _intrinsic("trunc", 1),
    Op.ROUND: _intrinsic("roundeven", 1),
    Op.EQ: "fcmp oeq {t} {0}, {1}",
    Op.NE: "fcmp une {t} {0}, {1}",
    Op.LT: "fcmp olt {t} {0}, {1}",
    Op.LE: "fcmp ole {t} {0}, {1}",
    Op.GT: "fcmp ogt {t} {0}, {1}",
    Op.GE: "fcmp oge {t} {0}, {1}",
}
_BOOL_OPS: Final = (Op.AND, Op.OR, Op.XOR, Op.NOT, Op.EQ, Op.NE)


def _forms() -> dict[tuple[Op, DType], str]:
    forms: dict[tuple[Op, DType], str] = {}
    for dtypes, table in (
        (INTEGERS, _EVERY_INTEGER),
        (_SIGNED, _SIGNED_FORMS),
        (_UNSIGNED, _UNSIGNED_FORMS),
        (_WIDE_FLOATS, _FLOAT_FORMS),
        ((bool_,), {op: _EVERY_INTEGER[op] for op in _BOOL_OPS}),
    ):
        forms.update({(op, dtype): form for op, form in table.items() for dtype in dtypes})
    for dtype in INTEGERS:  # integers have no NaN to tell these apart
        forms[Op.MINIMUM, dtype] = forms[Op.MIN, dtype]
        forms[Op.MAXIMUM, dtype] = forms[Op.MAX, dtype]
    return forms


# With fastmath, f32 only: quotients and roots start from the hardware's estimates.
APPROXIMATE: Final = "arcp afn "

# By operation and type of the first operand.
FORMS: Final = _forms()
