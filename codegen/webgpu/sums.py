"""Keeps drivers from simplifying sums whose rounding errors matter.

Nothing that a driver is told through wgpu forbids it to take floats for real numbers: some make
``x`` of ``(x + s) - s``, which is how a number is rounded, and 0 of what a sum has lost. So where
a sum or product is part of a sum and has something in common with the rest, it is passed through
an operation that no driver sees through: its bits are or-ed with a parameter that happens to be 0.

Before::

    %r = sub (add %x 12582912.0) 12582912.0

After::

    %t = add %x 12582912.0
    %r = sub (bitcast f32 (or (bitcast u32 %t) (scalar zero))) 12582912.0

A product that is part of a sum or of another product is hidden as well, unless fast maths is asked
for: what may be rounded once is an ``fma`` already, and products are not to be regrouped. So is a
sum in a sum where there is a constant to gather: ``(x + y) - 0.1`` is not ``x + (y - 0.1)``.
The same goes for ``x - x``, which is NaN for infinity and NaN, and for constants 0, since ``x * 0``
and ``x + 0`` are not what they would be without NaN and -0, and for what is read from local memory,
where a driver may find the 0 that was stored; and for ``select(x > c, c, x)``, which
is NaN for NaN, as a minimum is not.

What sums have in common is looked for a few steps deep. Polynomials and plain chains of sums have
nothing, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.writing import Writer
from khaljit.tracer.build import constant
from khaljit.tracer.ir import Space, Value
from khaljit.tracer.ops import Op

__all__ = ["Sums", "chooses_extreme"]

_SUMS: Final = frozenset({Op.ADD, Op.SUB, Op.FMA})
_PARTED: Final = _SUMS | {Op.MUL}
_ORDERS: Final = frozenset({Op.LT, Op.LE, Op.GT, Op.GE})
_PRODUCTS: Final = frozenset({Op.MUL, Op.FMA})
# Of 0 these are 0.
_SAME_ZERO: Final = frozenset(
    {Op.CAST, Op.BITCAST, Op.NEG, Op.ABS, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND}
)
_DEPTH: Final = 4
_CONSTANT: Final = "constant"


@final
class Sums:
    """Builds sums of floats.

    Args:
        writer: builds everything else.
        zero: gives an integer that is 0 as wide as a float.
        fast: products may be regrouped, and fused with sums.
    """

    def __init__(self, writer: Writer, zero: Callable[[Value], Value], fast: bool) -> None:
        self._write: Final = writer
        self._zero: Final = zero
        self._fast: Final = fast
        self._hidden: Final[dict[Value, Value]] = {}  # what is hidden, by what hides it
        self._parts: Final[dict[tuple[Value, int], frozenset[object]]] = {}

    def operands(self, op: Op, args: tuple[Value, ...]) -> tuple[Value, ...]:
        """The operands of a sum, product or quotient, hidden where that makes a difference."""
        if op is Op.FMA:
            product = self._of(_factors(args[:2]), _DEPTH)
            args = (*args[:2], self._apart(args[2], product))
        elif op in _SUMS:
            x, y = args
            if x is y:
                return x, self.hide(y)
            args = self._apart(x, self._within(y, _DEPTH)), self._apart(y, self._within(x, _DEPTH))
        if not self._fast and op is not Op.FMA:
            args = tuple(self.hide(arg) if _is_product(arg) else arg for arg in args)
        if not self._fast and op in (Op.ADD, Op.SUB) and any(map(_has_constant, args)):
            args = tuple(self.hide(arg) if arg.op in _SUMS else arg for arg in args)
        return tuple(self.hide(arg) if _is_zero(arg) else arg for arg in args)

    def chosen(self, condition: Value, yes: Value, no: Value) -> tuple[Value, Value, Value]:
        """The operands of a selection of an extreme, kept from becoming one, which loses a NaN."""
        if yes.op is Op.CONST:
            return condition, yes, self.hide(no)
        return condition, self.hide(yes), no

    def hide(self, x: Value) -> Value:
        """A value that no driver knows anything about."""
        w = self._write
        hidden = w.bitcast(w.or_(w.bits(x), self._zero(x)), x.type)
        self._hidden[hidden] = x
        return hidden

    def _apart(self, x: Value, other: frozenset[object]) -> Value:
        """An operand, hidden if it is a sum or product that shares a part with another."""
        plain = x.args[0] if x.op is Op.NEG else x
        if plain.op not in _PARTED or not self._within(x, _DEPTH) & other:
            return x
        return self.hide(x)

    def _within(self, x: Value, depth: int) -> frozenset[object]:
        """What a value is made up of, as far as sums, products and negations go."""
        key = x, depth
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._found(x, depth)
        return found

    def _found(self, x: Value, depth: int) -> frozenset[object]:
        x = self._hidden.get(x, x)
        if x.op is Op.CONST:
            return frozenset((_CONSTANT,))
        if depth == 0 or x.op not in (*_SUMS, Op.NEG, Op.MUL):
            return frozenset((x,))
        args = x.args
        if x.op in _PRODUCTS:
            args = (*_factors(args[:2]), *args[2:])
        return self._of(args, depth - 1) | {x}

    def _of(self, args: tuple[Value, ...], depth: int) -> frozenset[object]:
        parts: frozenset[object] = frozenset()
        for arg in args:
            parts |= self._within(arg, depth)
        return parts


def chooses_extreme(op: Op, args: tuple[Value, ...]) -> bool:
    """Whether an operation selects the lesser or greater of two numbers that it compares."""
    if op is not Op.SELECT:
        return False
    compared = args[0].args[0] if args[0].op is Op.NOT else args[0]
    return compared.op in _ORDERS and set(args[1:]) == set(compared.args)


def _factors(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """The factors of a product that count: weighted sums have constants in common, harmlessly."""
    return tuple(arg for arg in args if arg.op is not Op.CONST)


def _has_constant(x: Value) -> bool:
    """Whether a number, or a part of a sum, is a constant that a driver may gather."""
    parts = x.args[2:] if x.op is Op.FMA else x.args
    return x.op is Op.CONST or (x.op in _SUMS and any(arg.op is Op.CONST for arg in parts))


def _is_product(x: Value) -> bool:
    return (x.args[0] if x.op is Op.NEG else x).op is Op.MUL


def _is_zero(x: Value) -> bool:
    """Whether a driver may know that a number is 0.

    A constant, what local memory holds, or an integer before: loops that drivers unroll count.
    """
    while x.op in _SAME_ZERO:
        if x.op is Op.CAST and not x.args[0].type.is_float:
            return True
        x = x.args[0]
    return constant(x) == 0.0 or (x.op is Op.LOAD and x.memory.space is Space.LOCAL)
