"""Simplifies what the passes of this folder build, as they build it.

Laws: an operation on constants is its result, by NumPy's meaning (f32 and wider, integers, bool);
a bitcast of a bitcast is one; a cast back from a wider integer is the number before it; adding 0
and its like leave the other operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, bool_, i32, i64, u32, u64
from khaljit.tracer.ir import Value
from khaljit.tracer.numerics import evaluate, from_bits, to_memory
from khaljit.tracer.ops import OPS, Op

__all__ = ["folding"]

Pure = Callable[[Op, tuple[Value, ...], "DType | None"], Value]

_FOLDED: Final = frozenset({bool_, i32, u32, i64, u64})
_ONES: Final = "ones"
_NOTHING: Final = (Op.ADD, Op.SUB, Op.OR, Op.XOR, Op.SHL, Op.SHR)
# With 0, 1 or all ones on the right: the operand that is left; None for the constant 0.
_NEUTRAL: Final[dict[tuple[Op, int | str], int | None]] = {
    **{(op, 0): 0 for op in _NOTHING},
    **{(op, 0): None for op in (Op.MUL, Op.AND)},
    (Op.AND, _ONES): 0,
    (Op.OR, _ONES): 1,
    (Op.MUL, 1): 0,
    (Op.TRUNCDIV, 1): 0,
}


def folding(builder: Builder) -> Pure:
    """A function that builds pure operations, for a `Writer`."""

    def pure(op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return _simpler(builder, op, args, dtype) or builder.pure(op, args, None, dtype)

    return pure


def _simpler(
    builder: Builder, op: Op, args: tuple[Value, ...], dtype: DType | None
) -> Value | None:
    if op is Op.SELECT:
        if args[0].op is Op.CONST:
            return args[1 if args[0].attr else 2]
        return args[1] if args[1] is args[2] else None
    if any(arg.dtype not in _FOLDED for arg in args):
        return None
    if all(arg.op is Op.CONST for arg in args):
        return _computed(builder, op, args, dtype)
    if len(args) == 1:
        return _unwrapped(op, args[0], dtype)
    return _neutral(builder, op, args)


def _computed(
    builder: Builder, op: Op, args: tuple[Value, ...], dtype: DType | None
) -> Value | None:
    types = tuple(arg.type for arg in args)
    rule = OPS[op].result
    result = dtype if rule is None else rule(*types)
    if result not in _FOLDED:
        return None
    operands = tuple(from_bits(arg.type, arg.attr, 32) for arg in args if isinstance(arg.attr, int))
    found = to_memory(result, evaluate(op, result, types, operands, 32))
    return builder.const_bits(result, int.from_bytes(found.tobytes(), "little"))


def _unwrapped(op: Op, x: Value, dtype: DType | None) -> Value | None:
    if op is Op.NOT and x.op is Op.NOT:
        return x.args[0]
    if op is Op.CAST and dtype is not None and x.type.bits == 64 and dtype.bits == 32:
        source = x.args[0] if x.op is Op.BITCAST else x
        if source.op is Op.CAST and source.args[0].dtype is dtype:
            return source.args[0]
    return None


def _neutral(builder: Builder, op: Op, args: tuple[Value, ...]) -> Value | None:
    x, y = args
    if y.op is not Op.CONST or not isinstance(y.attr, int) or y.dtype is bool_:
        return None
    if op is Op.LT and y.attr == 0 and not y.type.is_signed:
        return builder.const(bool_, False)
    key = y.attr
    found = _NEUTRAL.get((op, key), -1)
    if found == -1 and key == (1 << y.type.bits) - 1:
        found = _NEUTRAL.get((op, _ONES), -1)
    if found == -1:
        return None
    return builder.const(x.type, 0) if found is None else args[found]
