"""The registry of simplification rules, and the `Maker` that applies them.

A rule is a plain function; its docstring is its law. It is given a value whose operands have been
simplified, and gives a better value or None. Laws of rules:

* The new value has the same bits for all operands, -0.0, infinities and wrapping included; only
  the sign and payload of NaN may differ.
* It is made of operands of the old one and of no more operations than the old one was, so applying
  rules comes to an end and never makes code worse.
* Constants stand on the right of commutative operations, so no rule is written twice for its
  mirror.
* ``index`` is at least 32 bits wide; what depends on more asks `Maker.bits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.tracer.build import Builder, constant, to_bits
from khaljit.tracer.dtypes import DType, bool_, index
from khaljit.tracer.ir import Value
from khaljit.tracer.numerics import evaluate, from_bits, to_memory
from khaljit.tracer.ops import MATH, Op

__all__ = ["RULES", "Maker", "Rule", "holds", "is_number", "is_ones", "power_of_two", "rule"]

Operand = Value | int | float

Rule = Callable[["Maker", Value], Value | None]

RULES: Final[dict[Op, list[Rule]]] = {}


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Register a rule for some operations."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES.setdefault(op, []).append(function)
        return function

    return register


def is_number(value: Value, number: int | float) -> bool:
    """Whether a value is the constant of this number; -0.0 is not 0.0."""
    return value.op is Op.CONST and value.attr == to_bits(value.type, number)


def is_ones(value: Value) -> bool:
    """Whether a value is the constant with all bits set (True for bool)."""
    if value.op is not Op.CONST:
        return False
    bits = 1 if value.dtype is bool_ else value.type.bits or 64
    return value.attr == (1 << bits) - 1


def power_of_two(value: Value) -> int | None:
    """k of a constant integer 2^k, k > 0, that is positive; None for all else."""
    number = constant(value)
    if not isinstance(number, int) or number < 2 or number & (number - 1):
        return None
    return number.bit_length() - 1


@final
class Maker:
    """Makes pure values in their simplest form.

    Args:
        builder: builds them.
        index_bits: the width of ``index``.
    """

    def __init__(self, builder: Builder, index_bits: int) -> None:
        self.builder: Final = builder
        self._index_bits: Final = index_bits
        self._simplest: Final = builder.pool.simplest

    def bits(self, dtype: DType) -> int:
        """The width of a type."""
        return dtype.bits or self._index_bits

    def make(
        self, op: Op, args: tuple[Value, ...], attr: object = None, dtype: DType | None = None
    ) -> Value:
        """The simplest value of an operation on simple operands."""
        return self.simplified(self.builder.pure(op, args, attr, dtype))

    def simplified(self, value: Value) -> Value:
        """The simplest value that equals one of the builder's, with simple operands."""
        found = self._simplest.get(value)
        if found is None:
            found = self._simplest[value] = self._simplified(value)
        return found

    def _simplified(self, value: Value) -> Value:
        folded = self._folded(value)
        if folded is not None:
            return folded
        for function in RULES.get(value.op, ()):
            better = function(self, value)
            if better is not None:
                return better
        return value

    def _folded(self, value: Value) -> Value | None:
        """The constant that an operation on constants is.

        Elementary functions are left: what they are is what the legaliser expands them to.
        """
        args = value.args
        if not args or args[0].op is not Op.CONST or value.op in MATH:
            return None
        if any(arg.op is not Op.CONST for arg in args):
            return None
        operands = []
        for arg in args:
            assert isinstance(arg.attr, int)
            operands.append(from_bits(arg.type, arg.attr, self._index_bits))
        types = tuple(arg.type for arg in value.args)
        dtype = value.type
        result = evaluate(value.op, dtype, types, tuple(operands), self._index_bits)
        if not dtype.is_float:
            return self.builder.const(dtype, int(result))
        raw = to_memory(dtype, result)
        return self.builder.const_bits(dtype, int.from_bytes(raw.tobytes(), "little"))

    # What rules write with.

    def const(self, dtype: DType, number: int | float) -> Value:
        return self.builder.const(dtype, number)

    def op(self, op: Op, *operands: Operand) -> Value:
        """An operation whose operands have one type; numbers become constants of it."""
        dtype = next(operand.type for operand in operands if isinstance(operand, Value))
        return self.make(
            op,
            tuple(o if isinstance(o, Value) else self.builder.const(dtype, o) for o in operands),
        )

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.make(Op.SELECT, (condition, yes, no))

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else self.make(Op.CAST, (value,), None, dtype)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else self.make(Op.BITCAST, (value,), None, dtype)


# Integers up to which a float type holds every one.
_EXACT: Final = {"f16": 1 << 11, "bf16": 1 << 8, "f32": 1 << 24, "f64": 1 << 53}


def holds(wide: DType, narrow: DType) -> bool:
    """Whether a type holds every value of another exactly."""
    if wide is narrow or narrow is bool_:
        return True
    if wide is bool_:
        return False
    if narrow.is_float:
        return wide.is_float and wide.bits > narrow.bits
    least, most = narrow.limits  # of ``index`` those of 64 bits
    if wide.is_float:
        exact = _EXACT[wide.name]
        return -exact <= least and most <= exact
    low, high = (-(1 << 31), (1 << 31) - 1) if wide is index else wide.limits
    return low <= least and most <= high
