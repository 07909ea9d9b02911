"""Spellings: types, constants, and the operations that are one instruction or a fixed few.

In a form ``{d}`` is the result and ``{0}``, ``{1}``, ``{2}`` are the operands; ``{t}`` is the type
in arithmetic (``s32``), ``{b}`` the kind of register (``b32``), ``{n}`` the type's width and
``{rest}`` what it lacks of 32; ``{x}`` is one more register like the operands', ``{p}`` a
predicate, ``{nan}`` a NaN.

Integers of 8 and 16 bits live in 32-bit registers, extended by their sign. What may leave their
range (`WRAPS`) is brought back by `Spelling.narrow`.
"""

from __future__ import annotations

from functools import cache
from typing import Final, final

from khaljit.tracer.build import to_number
from khaljit.tracer.dtypes import (
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

__all__ = ["TYPES", "WRAPS", "Form", "Spelling", "form", "literal", "reciprocal"]


@final
@dataclass(frozen=True, slots=True)
class Spelling:
    """How a type is written.

    Attributes:
        register: kind of register that holds it.
        number: in arithmetic.
        memory: in loads and stores of one scalar.
        narrow: the conversion that wraps a 32-bit register to the type's range; empty where
            registers are as wide as the type.
    """

    register: str
    number: str
    memory: str
    narrow: str = ""


TYPES: Final = {
    bool_: Spelling("pred", "pred", "u8"),
    i8: Spelling("b32", "s32", "s8", "cvt.s32.s8"),
    u8: Spelling("b32", "u32", "u8", "cvt.u32.u8"),
    i16: Spelling("b32", "s32", "s16", "cvt.s32.s16"),
    u16: Spelling("b32", "u32", "u16", "cvt.u32.u16"),
    i32: Spelling("b32", "s32", "b32"),
    u32: Spelling("b32", "u32", "b32"),
    i64: Spelling("b64", "s64", "b64"),
    u64: Spelling("b64", "u64", "b64"),
    f16: Spelling("b16", "f16", "b16"),
    bf16: Spelling("b16", "bf16", "b16"),
    f32: Spelling("b32", "f32", "b32"),
    f64: Spelling("b64", "f64", "b64"),
}

_NAN: Final = {f32: "0f7FC00000", f64: "0d7FF8000000000000"}

_COMPARISONS: Final = {
    Op.EQ: "setp.eq.{t} {d}, {0}, {1};",
    Op.NE: "setp.ne.{t} {d}, {0}, {1};",
    Op.LT: "setp.lt.{t} {d}, {0}, {1};",
    Op.LE: "setp.le.{t} {d}, {0}, {1};",
    Op.GT: "setp.gt.{t} {d}, {0}, {1};",
    Op.GE: "setp.ge.{t} {d}, {0}, {1};",
}
_SELECT: Final = {Op.SELECT: "selp.{b} {d}, {1}, {2}, {0};"}

_INTEGER: Final = {
    **_COMPARISONS,
    **_SELECT,
    # Of bits: ptxas 13.0 gets ``setp.eq.s32 (max (max a b) 0) a`` wrong, all in one instruction.
    Op.EQ: "setp.eq.{b} {d}, {0}, {1};",
    Op.NE: "setp.ne.{b} {d}, {0}, {1};",
    Op.ADD: "add.{t} {d}, {0}, {1};",
    Op.SUB: "sub.{t} {d}, {0}, {1};",
    Op.MUL: "mul.lo.{t} {d}, {0}, {1};",
    Op.MIN: "min.{t} {d}, {0}, {1};",
    Op.MAX: "max.{t} {d}, {0}, {1};",
    Op.MINIMUM: "min.{t} {d}, {0}, {1};",
    Op.MAXIMUM: "max.{t} {d}, {0}, {1};",
    Op.TRUNCDIV: "div.{t} {d}, {0}, {1};",
    Op.TRUNCMOD: "rem.{t} {d}, {0}, {1};",
    Op.AND: "and.{b} {d}, {0}, {1};",
    Op.OR: "or.{b} {d}, {0}, {1};",
    Op.XOR: "xor.{b} {d}, {0}, {1};",
    Op.NOT: "not.{b} {d}, {0};",
}
_UNSIGNED: Final = {Op.NEG: "sub.{t} {d}, 0, {0};", Op.ABS: "mov.{b} {d}, {0};"}
# The product of 8- or 16-bit integers fits a register.
_MULHI: Final = {
    True: "mul.lo.{t} {d}, {0}, {1};\nshr.{t} {d}, {d}, {n};",
    False: "mul.hi.{t} {d}, {0}, {1};",
}
_REVERSE: Final = {
    True: "brev.b32 {d}, {0};\nshr.{t} {d}, {d}, {rest};",
    False: "brev.{b} {d}, {0};",
}
_NAN_WINS: Final = "setp.num.{t} {p}, {0}, {1};\nselp.{b} {d}, {x}, {nan}, {p};"
# Rounding is spelled out everywhere: without it the assembler fuses products and sums.
_FLOAT: Final = {
    **_COMPARISONS,
    **_SELECT,
    Op.NE: "setp.neu.{t} {d}, {0}, {1};",
    Op.ADD: "add.rn.{t} {d}, {0}, {1};",
    Op.SUB: "sub.rn.{t} {d}, {0}, {1};",
    Op.MUL: "mul.rn.{t} {d}, {0}, {1};",
    Op.DIV: "div.rn.{t} {d}, {0}, {1};",
    Op.FMA: "fma.rn.{t} {d}, {0}, {1}, {2};",
    Op.NEG: "neg.{t} {d}, {0};",
    Op.ABS: "abs.{t} {d}, {0};",
    Op.MIN: "min.{t} {d}, {0}, {1};",
    Op.MAX: "max.{t} {d}, {0}, {1};",
    Op.MINIMUM: f"min.{{t}} {{x}}, {{0}}, {{1}};\n{_NAN_WINS}",
    Op.MAXIMUM: f"max.{{t}} {{x}}, {{0}}, {{1}};\n{_NAN_WINS}",
    Op.SQRT: "sqrt.rn.{t} {d}, {0};",
    Op.FLOOR: "cvt.rmi.{t}.{t} {d}, {0};",
    Op.CEIL: "cvt.rpi.{t}.{t} {d}, {0};",
    Op.TRUNC: "cvt.rzi.{t}.{t} {d}, {0};",
    Op.ROUND: "cvt.rni.{t}.{t} {d}, {0};",
}
_PROPAGATING: Final = {
    Op.MINIMUM: "min.NaN.{t} {d}, {0}, {1};",
    Op.MAXIMUM: "max.NaN.{t} {d}, {0}, {1};",
}
# The sign of a 16-bit float is a bit; not every architecture has these as operations of floats.
_HALF: Final = {
    **_FLOAT,
    **_PROPAGATING,
    Op.NEG: "xor.b16 {d}, {0}, 0x8000;",
    Op.ABS: "and.b16 {d}, {0}, 0x7FFF;",
}
_BOOL: Final = {
    Op.AND: "and.pred {d}, {0}, {1};",
    Op.OR: "or.pred {d}, {0}, {1};",
    Op.XOR: "xor.pred {d}, {0}, {1};",
    Op.NE: "xor.pred {d}, {0}, {1};",
    Op.EQ: "xor.pred {d}, {0}, {1};\nnot.pred {d}, {d};",
    Op.NOT: "not.pred {d}, {0};",
    Op.SELECT: "and.pred {d}, {0}, {1};\nnot.pred {p}, {0};\nand.pred {p}, {p}, {2};\n"
    "or.pred {d}, {d}, {p};",
}

# What kernels that allow it (``fastmath``) take from the hardware, f32 only. Subnormal operands
# and results count as 0 here.
_LOG2_E: Final = "0f3FB8AA3B"
_LOG2_10: Final = "0f40549A78"
_LN_2: Final = "0f3F317218"
_LOG10_2: Final = "0f3E9A209B"
_FAST: Final = {
    Op.DIV: "div.approx.ftz.f32 {d}, {0}, {1};",
    Op.SQRT: "sqrt.approx.ftz.f32 {d}, {0};",
    Op.RSQRT: "rsqrt.approx.ftz.f32 {d}, {0};",
    Op.EXP2: "ex2.approx.ftz.f32 {d}, {0};",
    Op.EXP: f"mul.rn.f32 {{x}}, {{0}}, {_LOG2_E};\nex2.approx.ftz.f32 {{d}}, {{x}};",
    Op.EXP10: f"mul.rn.f32 {{x}}, {{0}}, {_LOG2_10};\nex2.approx.ftz.f32 {{d}}, {{x}};",
    Op.LOG2: "lg2.approx.ftz.f32 {d}, {0};",
    Op.LOG: f"lg2.approx.ftz.f32 {{x}}, {{0}};\nmul.rn.f32 {{d}}, {{x}}, {_LN_2};",
    Op.LOG10: f"lg2.approx.ftz.f32 {{x}}, {{0}};\nmul.rn.f32 {{d}}, {{x}}, {_LOG10_2};",
    Op.POW: "lg2.approx.ftz.f32 {x}, {0};\nmul.rn.f32 {x}, {x}, {1};\nex2.approx.ftz.f32 {d}, {x};",
    Op.SIN: "sin.approx.ftz.f32 {d}, {0};",
    Op.COS: "cos.approx.ftz.f32 {d}, {0};",
    Op.TAN: "sin.approx.ftz.f32 {x}, {0};\ncos.approx.ftz.f32 {d}, {0};\n"
    "div.approx.ftz.f32 {d}, {x}, {d};",
}

# Operations whose result may leave the range of an 8- or 16-bit type.
WRAPS: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.NOT, Op.SHL})


def _signed(dtype: DType) -> dict[Op, str]:
    """ptxas 13.0 takes what ``abs`` gives for non-negative; the least integer's is not."""
    sign = max(dtype.bits, 32) - 1
    flip = f"shr.{{t}} {{x}}, {{0}}, {sign};\nxor.{{b}} {{d}}, {{0}}, {{x}};\n"
    return {Op.NEG: "neg.{t} {d}, {0};", Op.ABS: f"{flip}sub.{{t}} {{d}}, {{d}}, {{x}};"}


def _table() -> dict[tuple[Op, DType], str]:
    table: dict[tuple[Op, DType], str] = {}

    def add(dtype: DType, forms: dict[Op, str]) -> None:
        table.update({(op, dtype): text for op, text in forms.items()})

    for dtype in INTEGERS:
        small = dtype.bits < 32
        add(dtype, _INTEGER)
        add(dtype, _signed(dtype) if dtype.is_signed else _UNSIGNED)
        add(dtype, {Op.MULHI: _MULHI[small], Op.REVERSE_BITS: _REVERSE[small]})
    for dtype in (f32, f64):
        add(dtype, _FLOAT)
    for dtype in (f16, bf16):
        add(dtype, _HALF)
    add(bool_, _BOOL)
    return table


_FORMS: Final = _table()


@final
class Form:
    """The form of an operation in a type.

    Attributes:
        text: where ``{d}``, ``{x}``, ``{p}`` and the operands are still to be filled in.
        result: kind of register that holds the result.
        operand: kind of register that holds an operand.
        needs_more: whether it takes registers beside those.
        narrow: the conversion of the result; empty where there is none.
    """

    __slots__ = ("narrow", "needs_more", "operand", "result", "text")

    def __init__(self, op: Op, dtype: DType, text: str) -> None:
        spelling = TYPES[dtype]
        known = {
            "t": spelling.number,
            "b": spelling.register,
            "n": str(dtype.bits),
            "rest": str(32 - dtype.bits),
            "nan": _NAN.get(dtype, ""),
        }
        for name, part in known.items():
            text = text.replace(f"{{{name}}}", part)
        self.text: Final = text
        self.result: Final = "pred" if text.startswith("setp") else spelling.register
        self.operand: Final = spelling.register
        self.needs_more: Final = "{x}" in text or "{p}" in text
        self.narrow: Final = spelling.narrow if op in WRAPS else ""


@cache
def form(op: Op, dtype: DType, propagates: bool, fastmath: bool) -> Form:
    """The form of an operation that works in a type.

    Args:
        propagates: see `Architecture`.
    """
    if dtype is f32 and fastmath and op in _FAST:
        text = _FAST[op]
    elif dtype is f32 and propagates and op in _PROPAGATING:
        text = _PROPAGATING[op]
    else:
        text = _FORMS[op, dtype]
    return Form(op, dtype, text)


def reciprocal(dtype: DType, fastmath: bool) -> str:
    """The instruction that divides 1 by a float, which is cheaper than a division."""
    if fastmath and dtype is f32:
        return "rcp.approx.ftz.f32"
    return f"rcp.rn.{TYPES[dtype].number}"


def literal(dtype: DType, bits: int) -> str:
    """A constant as an operand; predicates and 16-bit floats have to be moved to a register."""
    if dtype is f32:
        return f"0f{bits:08X}"
    if dtype is f64:
        return f"0d{bits:016X}"
    if dtype is f16 or dtype is bf16:
        return f"0x{bits:04X}"
    return str(int(to_number(dtype, bits)))
