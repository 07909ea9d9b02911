"""Pure operations as PTX instructions: the regular by form, the others by hand.

Everything here is total, as the operation table has it. What the instruction set does otherwise
is mended here: float to integer gives what it likes for NaN where 64 bits are involved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from khaljit.codegen.integers import in_width
from khaljit.codegen.ptx.arch import Architecture
from khaljit.codegen.ptx.code import Code
from khaljit.codegen.ptx.forms import TYPES, form, reciprocal
from khaljit.codegen.ptx.quotients import normal
from khaljit.codegen.ptx.writer import Writer
from khaljit.tracer.build import constant, to_bits
from khaljit.tracer.dtypes import DType, Kind, bf16, bool_, f16, f32, f64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import COMBINE, NORMAL, Op

__all__ = ["bitcast", "cast", "combine", "compute", "regular"]


def compute(code: Code, value: Value) -> str:
    """The instructions of a pure operation; gives the operand that holds the result."""
    w, op, args = code.w, value.op, value.args
    operands = list(map(code.operand, args))
    if op in _SPECIAL:
        return _SPECIAL[op](w, value, operands)
    fastmath = code.trace.options.fastmath
    if value.attr == NORMAL and not (fastmath and value.type is f32):
        return normal(w, value, operands)
    if op is Op.DIV and constant(args[0]) == 1:
        kind = TYPES[value.type].register
        return w.let(
            kind, f"{reciprocal(value.type, fastmath)} {{d}}, {w.held(kind, operands[1])};"
        )
    dtype = args[1 if op is Op.SELECT else 0].type
    return regular(w, code.architecture, op, dtype, operands, fastmath)


def regular(
    w: Writer,
    architecture: Architecture,
    op: Op,
    dtype: DType,
    operands: Sequence[str],
    fastmath: bool = False,
) -> str:
    """An operation by its form."""
    own = form(op, dtype, architecture.propagates, fastmath)
    result = w.register(own.result)
    if not any(map(w.is_register, operands)):  # constants alone, which few instructions take
        operands = (w.held(own.operand, operands[0]), *operands[1:])
    if own.needs_more:
        x = w.register(own.operand) if "{x}" in own.text else ""
        p = w.register("pred") if "{p}" in own.text else ""
        w.do(own.text.format(*operands, d=result, x=x, p=p))
    else:
        w.do(own.text.format(*operands, d=result))
    if own.narrow:
        return w.let("b32", f"{own.narrow} {{d}}, {result};")
    return result


def combine(w: Writer, architecture: Architecture, kind: str, dtype: DType, a: str, b: str) -> str:
    """What an atomic or collective of some kind makes of two values."""
    return regular(w, architecture, COMBINE[kind], dtype, (a, b))


# Shifts of 64 bits take a 32-bit amount.


def _shift(name: str) -> Callable[[Writer, Value, Sequence[str]], str]:
    def shift(w: Writer, value: Value, operands: Sequence[str]) -> str:
        dtype, amount = value.type, operands[1]
        spelling = TYPES[dtype]
        if dtype.bits == 64:
            amount = _amount(w, value.args[1], amount)
        type_ = spelling.number if name == "shr" else spelling.register
        first = operands[0]
        if not w.is_register(amount):
            first = w.held(spelling.register, first)
        result = w.let(spelling.register, f"{name}.{type_} {{d}}, {first}, {amount};")
        if spelling.narrow and name == "shl":
            return w.let("b32", f"{spelling.narrow} {{d}}, {result};")
        return result

    return shift


def _amount(w: Writer, value: Value, operand: str) -> str:
    """A 64-bit shift amount as one of 32 bits, at most the width."""
    number = constant(value)
    if number is not None:
        return str(int(number) if 0 <= number < 64 else 64)
    if not in_width(value):
        operand = w.let("b64", f"min.u64 {{d}}, {operand}, 64;")
    return w.let("b32", f"cvt.u32.u64 {{d}}, {operand};")


# Bit counts.


def _unsigned(w: Writer, dtype: DType, operand: str) -> str:
    """A small integer extended by zeros."""
    operand = w.held(TYPES[dtype].register, operand)
    if dtype.bits < 32 and dtype.is_signed:
        return w.let("b32", f"cvt.u32.u{dtype.bits} {{d}}, {operand};")
    return operand


def _popcount(w: Writer, value: Value, operands: Sequence[str]) -> str:
    dtype = value.args[0].type
    bits = _unsigned(w, dtype, operands[0])
    return w.let("b32", f"popc.{TYPES[dtype].register} {{d}}, {bits};")


def _clz(w: Writer, value: Value, operands: Sequence[str]) -> str:
    dtype = value.args[0].type
    bits = _unsigned(w, dtype, operands[0])
    count = w.let("b32", f"clz.{TYPES[dtype].register} {{d}}, {bits};")
    if dtype.bits >= 32:
        return count
    return w.let("b32", f"sub.s32 {{d}}, {count}, {32 - dtype.bits};")


def _ctz(w: Writer, value: Value, operands: Sequence[str]) -> str:
    """The leading zeros of the bits in reverse. A bit above a small type's ends the count."""
    dtype = value.args[0].type
    kind = TYPES[dtype].register
    bits = w.held(kind, operands[0])
    if dtype.bits < 32:
        bits = w.let("b32", f"or.b32 {{d}}, {bits}, {1 << dtype.bits};")
    reverse = w.let(kind, f"brev.{kind} {{d}}, {bits};")
    return w.let("b32", f"clz.{kind} {{d}}, {reverse};")


# Casts.


def _cast(w: Writer, value: Value, operands: Sequence[str]) -> str:
    return cast(w, operands[0], value.args[0].type, value.type)


def cast(w: Writer, operand: str, source: DType, to: DType) -> str:
    """A value by value in another type."""
    operand = w.held(TYPES[source].register, operand)
    if to is bool_:
        op = "neu" if source.is_float else "ne"
        zero = {f32: "0f00000000", f64: "0d0000000000000000"}.get(source, "0")
        if source in (f16, bf16):
            zero = w.held("b16", "0")
        return w.let("pred", f"setp.{op}.{TYPES[source].number} {{d}}, {operand}, {zero};")
    if source is bool_:
        return _from_bool(w, operand, to)
    if source.is_float:
        return (
            _float_to_float(w, operand, source, to)
            if to.is_float
            else _to_int(w, operand, source, to)
        )
    if to.is_float:
        return w.let(
            TYPES[to].register,
            f"cvt.rn.{TYPES[to].number}.{TYPES[source].number} {{d}}, {operand};",
        )
    return _resize(w, operand, source, to)


def _from_bool(w: Writer, operand: str, to: DType) -> str:
    spelling = TYPES[to]
    one, zero = "1", "0"
    if to.is_float:
        digits = {f32: "0f{:08X}", f64: "0d{:016X}"}.get(to, "0x{:04X}")
        one, zero = digits.format(to_bits(to, 1.0)), digits.format(0)
    return w.let(spelling.register, f"selp.{spelling.register} {{d}}, {one}, {zero}, {operand};")


def _float_to_float(w: Writer, operand: str, source: DType, to: DType) -> str:
    if source is bf16:  # the upper half of an f32
        return w.let("b32", f"mov.b32 {{d}}, {{0, {operand}}};")
    rounding = ".rn" if to.bits < source.bits else ""
    name = f"cvt{rounding}.{TYPES[to].number}.{TYPES[source].number}"
    return w.let(TYPES[to].register, f"{name} {{d}}, {operand};")


def _to_int(w: Writer, operand: str, source: DType, to: DType) -> str:
    """Truncated; saturated by the instruction, for small types by ``min`` and ``max``."""
    sign = "u" if to.kind is Kind.UNSIGNED else "s"
    wide = 64 if to.bits == 64 else 32
    kind, number = f"b{wide}", TYPES[source].number
    result = w.let(kind, f"cvt.rzi.{sign}{wide}.{number} {{d}}, {operand};")
    if to.bits < 32:
        low, high = to.limits
        result = w.let(kind, f"min.{sign}32 {{d}}, {result}, {high};")
        if low:
            result = w.let(kind, f"max.{sign}32 {{d}}, {result}, {low};")
    if source is not f64 and wide == 32:
        return result  # the instruction gives 0 for NaN
    valid = w.let("pred", f"setp.num.{number} {{d}}, {operand}, {operand};")
    return w.let(kind, f"selp.{kind} {{d}}, {result}, 0, {valid};")


def _resize(w: Writer, operand: str, source: DType, to: DType) -> str:
    """An integer in another width, wrapped."""
    if to.bits == 64:
        if source.bits == 64:
            return operand
        sign = "s" if source.is_signed else "u"
        return w.let("b64", f"cvt.{sign}64.{sign}32 {{d}}, {operand};")
    if source.bits == 64:
        operand = w.let("b32", f"cvt.u32.u64 {{d}}, {operand};")
    return _wrapped(w, operand, source, to)


def _wrapped(w: Writer, operand: str, source: DType, to: DType) -> str:
    """A 32-bit register brought into the range of a type, if what it holds may be out of it."""
    narrow = TYPES[to].narrow
    (low, high), (least, most) = to.limits, source.limits
    if not narrow or (low <= least and most <= high):
        return operand
    return w.let("b32", f"{narrow} {{d}}, {operand};")


def _bitcast(w: Writer, value: Value, operands: Sequence[str]) -> str:
    return bitcast(w, operands[0], value.args[0].type, value.type)


def bitcast(w: Writer, operand: str, source: DType, to: DType) -> str:
    """The same bits in another type: mostly the same register."""
    if bool_ in (source, to):
        return cast(w, operand, source, to)
    if source is to:
        return operand
    before, after = TYPES[source], TYPES[to]
    operand = w.held(before.register, operand)
    if before.register == after.register:
        return _wrapped(w, operand, source, to) if after.narrow else operand
    if after.register == "b16":
        return w.let("b16", f"cvt.u16.u32 {{d}}, {operand};")
    sign = "s" if to.is_signed else "u"
    return w.let("b32", f"cvt.{sign}32.{sign}16 {{d}}, {operand};")


_Special = Callable[[Writer, Value, Sequence[str]], str]

_SPECIAL: Final[dict[Op, _Special]] = {
    Op.SHL: _shift("shl"),
    Op.SHR: _shift("shr"),
    Op.POPCOUNT: _popcount,
    Op.CLZ: _clz,
    Op.CTZ: _ctz,
    Op.CAST: _cast,
    Op.BITCAST: _bitcast,
}
