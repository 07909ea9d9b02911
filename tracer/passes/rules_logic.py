"""Rules for bits, comparisons, selection and casts; see ``rules.py`` for the laws of rules."""

from __future__ import annotations

from typing import Final

from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.rules import Maker, holds, is_number, is_ones, rule

_SWAPPED: Final = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}
_NEGATED: Final = {
    Op.EQ: Op.NE,
    Op.NE: Op.EQ,
    Op.LT: Op.GE,
    Op.GE: Op.LT,
    Op.GT: Op.LE,
    Op.LE: Op.GT,
}


@rule(Op.AND, Op.OR, Op.XOR)
def bits_with_constant(make: Maker, v: Value) -> Value | None:
    """x & 0 -> 0, x & ~0 -> x, x | 0 -> x, x | ~0 -> ~0, x ^ 0 -> x, x ^ ~0 -> ~x."""
    x, y = v.args
    if is_number(y, 0):
        return y if v.op is Op.AND else x
    if is_ones(y):
        return {Op.AND: x, Op.OR: y}.get(v.op) or make.op(Op.NOT, x)
    return None


@rule(Op.AND, Op.OR, Op.XOR)
def bits_of_same(make: Maker, v: Value) -> Value | None:
    """x & x -> x, x | x -> x, x ^ x -> 0."""
    x, y = v.args
    if x is not y:
        return None
    return make.const(v.type, 0) if v.op is Op.XOR else x


@rule(Op.AND, Op.OR, Op.XOR)
def bits_of_complement(make: Maker, v: Value) -> Value | None:
    """x & ~x -> 0, x | ~x -> ~0, x ^ ~x -> ~0."""
    x, y = v.args
    opposite = (x.op is Op.NOT and x.args[0] is y) or (y.op is Op.NOT and y.args[0] is x)
    if not opposite:
        return None
    zero = make.const(v.type, 0)
    return zero if v.op is Op.AND else make.op(Op.NOT, zero)


@rule(Op.AND, Op.OR, Op.XOR)
def bits_constants(make: Maker, v: Value) -> Value | None:
    """(x & c) & d -> x & (c & d); likewise | and ^."""
    x, d = v.args
    if d.op is not Op.CONST or x.op is not v.op or x.args[1].op is not Op.CONST:
        return None
    return make.op(v.op, x.args[0], make.op(v.op, x.args[1], d))


@rule(Op.AND, Op.OR)
def bits_absorbed(make: Maker, v: Value) -> Value | None:
    """(x & y) & y -> x & y, (x | y) & y -> y, and the same with & and | exchanged."""
    other = Op.OR if v.op is Op.AND else Op.AND
    for compound, part in (v.args, v.args[::-1]):
        if compound.op is v.op and part in compound.args:
            return compound
        if compound.op is other and part in compound.args:
            return part
    return None


@rule(Op.NOT)
def not_not(make: Maker, v: Value) -> Value | None:
    """~~x -> x."""
    x = v.args[0]
    return x.args[0] if x.op is Op.NOT else None


@rule(Op.NOT)
def not_comparison(make: Maker, v: Value) -> Value | None:
    """not x == y -> x != y; not x < y -> x >= y but for floats, where NaN makes both false."""
    x = v.args[0]
    if x.op not in _NEGATED:
        return None
    if x.args[0].type.is_float and x.op not in (Op.EQ, Op.NE):
        return None
    return make.op(_NEGATED[x.op], *x.args)


@rule(Op.SHL, Op.SHR)
def shift_by_constant(make: Maker, v: Value) -> Value | None:
    """x << 0 -> x; at or past the width: 0, or x >> width - 1 for signed types."""
    x, y = v.args
    if is_number(x, 0) or is_number(y, 0):
        return x
    amount, width = constant(y), make.bits(v.type)
    if not isinstance(amount, int) or 0 <= amount < width:
        return None
    if v.op is Op.SHR and v.type.is_signed:
        return make.op(Op.SHR, x, width - 1)
    return make.const(v.type, 0)


@rule(Op.SHL, Op.SHR)
def shift_twice(make: Maker, v: Value) -> Value | None:
    """(x << c) << d -> x << (c + d) while that is below the width; likewise >>."""
    x, y = v.args
    if x.op is not v.op:
        return None
    outer, inner = constant(y), constant(x.args[1])
    if not isinstance(outer, int) or not isinstance(inner, int) or min(outer, inner) < 0:
        return None
    total = outer + inner
    return make.op(v.op, x.args[0], total) if total < make.bits(v.type) else None


@rule(Op.LT, Op.LE, Op.GT, Op.GE)
def compare_constant_right(make: Maker, v: Value) -> Value | None:
    """c < x -> x > c, and so on."""
    x, y = v.args
    if x.op is Op.CONST and y.op is not Op.CONST:
        return make.op(_SWAPPED[v.op], y, x)
    return None


@rule(Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)
def compare_same(make: Maker, v: Value) -> Value | None:
    """x == x -> true, x < x -> false, and so on; NaN leaves only < and > for floats."""
    x, y = v.args
    if x is not y:
        return None
    if v.op in (Op.LT, Op.GT):
        return make.const(bool_, False)
    return None if x.type.is_float else make.const(bool_, v.op in (Op.EQ, Op.LE, Op.GE))


@rule(Op.LT, Op.LE, Op.GT, Op.GE)
def compare_limit(make: Maker, v: Value) -> Value | None:
    """x < least -> false, x <= greatest -> true, x < greatest -> x != greatest, and so on."""
    x, y = v.args
    if not x.type.is_integer or not x.type.bits:
        return None
    least, greatest = x.type.limits
    end = least if v.op in (Op.LT, Op.GE) else greatest
    if is_number(y, end):
        return make.const(bool_, v.op in (Op.GE, Op.LE))
    other = greatest if v.op in (Op.LT, Op.GE) else least
    if is_number(y, other):
        return make.op(Op.NE if v.op in (Op.LT, Op.GT) else Op.EQ, x, y)
    return None


@rule(Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)
def compare_widened(make: Maker, v: Value) -> Value | None:
    """wide(x) < c -> x < c, true or false, for integers."""
    x, y = v.args
    number = constant(y)
    if x.op is not Op.CAST or not isinstance(number, int) or not x.type.is_integer:
        return None
    narrow = x.args[0].type
    if not narrow.is_integer or not narrow.bits or not holds(x.type, narrow):
        return None
    least, greatest = narrow.limits
    if least <= number <= greatest:
        return make.op(v.op, x.args[0], number)
    if v.op in (Op.EQ, Op.NE):
        return make.const(bool_, v.op is Op.NE)
    return make.const(bool_, (v.op in (Op.LT, Op.LE)) == (number > greatest))


@rule(Op.EQ, Op.NE)
def compare_bool(make: Maker, v: Value) -> Value | None:
    """x == true -> x, x == false -> not x, and != the other way round."""
    x, y = v.args
    if x.dtype is not bool_ or y.op is not Op.CONST:
        return None
    return x if (v.op is Op.EQ) == bool(y.attr) else make.op(Op.NOT, x)


@rule(Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)
def compare_choice(make: Maker, v: Value) -> Value | None:
    """select(p, c, d) < e -> select(p, c < e, d < e), whose arms are constants."""
    x, e = v.args
    if e.op is not Op.CONST:
        return None
    if x.op is Op.CAST and x.args[0].dtype is bool_:
        p, c, d = x.args[0], make.const(x.type, 1), make.const(x.type, 0)
    elif x.op is Op.SELECT:
        p, c, d = x.args
    else:
        return None
    if c.op is not Op.CONST or d.op is not Op.CONST:
        return None
    return make.select(p, make.op(v.op, c, e), make.op(v.op, d, e))


@rule(Op.SELECT)
def select_known(make: Maker, v: Value) -> Value | None:
    """select(true, x, y) -> x, select(false, x, y) -> y, select(p, x, x) -> x."""
    p, x, y = v.args
    if p.op is Op.CONST:
        return x if p.attr else y
    return x if x is y else None


@rule(Op.SELECT)
def select_negated(make: Maker, v: Value) -> Value | None:
    """select(not p, x, y) -> select(p, y, x)."""
    p, x, y = v.args
    return make.select(p.args[0], y, x) if p.op is Op.NOT else None


@rule(Op.SELECT)
def select_bool(make: Maker, v: Value) -> Value | None:
    """select(p, true, false) -> p, (p, false, true) -> not p, (p, x, false) -> p and x, ..."""
    p, x, y = v.args
    if v.dtype is not bool_:
        return None
    if is_ones(x) and is_number(y, 0):
        return p
    if is_number(x, 0) and is_ones(y):
        return make.op(Op.NOT, p)
    if is_number(y, 0) or x is p:
        return make.op(Op.AND if is_number(y, 0) else Op.OR, p, x if is_number(y, 0) else y)
    if is_ones(x) or y is p:
        return make.op(Op.OR if is_ones(x) else Op.AND, p, y if is_ones(x) else x)
    return None


@rule(Op.SELECT)
def select_twice(make: Maker, v: Value) -> Value | None:
    """select(p, select(p, x, y), z) -> select(p, x, z), and likewise in the other arm."""
    p, x, y = v.args
    if x.op is Op.SELECT and x.args[0] is p:
        return make.select(p, x.args[1], y)
    if y.op is Op.SELECT and y.args[0] is p:
        return make.select(p, x, y.args[2])
    return None


@rule(Op.CAST)
def cast_to_bool(make: Maker, v: Value) -> Value | None:
    """bool(x) -> x != 0."""
    x = v.args[0]
    return make.op(Op.NE, x, 0) if v.dtype is bool_ else None


@rule(Op.CAST)
def cast_exact(make: Maker, v: Value) -> Value | None:
    """C(B(x)) -> C(x) where B holds x exactly; from B float to C integer C has to, too."""
    between = v.args[0]
    if between.op is not Op.CAST:
        return None
    x = between.args[0]
    a, b, c = x.type, between.type, v.type
    if not holds(b, a):
        return None
    # A float that is too large saturates, an integer wraps.
    if b.is_float and not c.is_float and not a.is_float and not holds(c, a):
        return None
    return make.cast(x, c)


@rule(Op.CAST)
def cast_wrapped(make: Maker, v: Value) -> Value | None:
    """C(B(x)) -> C(x) for integers where C keeps no more bits than B did."""
    between = v.args[0]
    if between.op is not Op.CAST:
        return None
    x = between.args[0]
    if not (x.type.is_integer and between.type.is_integer and v.type.is_integer):
        return None
    return make.cast(x, v.type) if make.bits(v.type) <= make.bits(between.type) else None


@rule(Op.BITCAST)
def bitcast_twice(make: Maker, v: Value) -> Value | None:
    """bitcast(bitcast(x)) -> bitcast(x)."""
    x = v.args[0]
    return make.bitcast(x.args[0], v.type) if x.op is Op.BITCAST else None
