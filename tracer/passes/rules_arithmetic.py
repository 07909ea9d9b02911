"""Rules for arithmetic; see ``rules.py`` for the laws of rules."""

from __future__ import annotations

import math

from khaljit.tracer.build import constant
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.rules import Maker, is_number, power_of_two, rule


@rule(Op.ADD)
def add_zero(make: Maker, v: Value) -> Value | None:
    """x + 0 -> x for integers; x + -0.0 -> x for floats (-0.0 + 0.0 is 0.0)."""
    x, y = v.args
    return x if is_number(y, -0.0 if v.type.is_float else 0) else None


@rule(Op.ADD)
def add_constants(make: Maker, v: Value) -> Value | None:
    """(x + c) + d -> x + (c + d) for integers."""
    x, d = v.args
    if v.type.is_float or d.op is not Op.CONST or x.op is not Op.ADD:
        return None
    y, c = x.args
    return make.op(Op.ADD, y, make.op(Op.ADD, c, d)) if c.op is Op.CONST else None


@rule(Op.ADD)
def add_negated(make: Maker, v: Value) -> Value | None:
    """x + -y -> x - y, and -x + y -> y - x."""
    x, y = v.args
    if y.op is Op.NEG:
        return make.op(Op.SUB, x, y.args[0])
    return make.op(Op.SUB, y, x.args[0]) if x.op is Op.NEG else None


@rule(Op.ADD)
def add_difference(make: Maker, v: Value) -> Value | None:
    """(x - y) + y -> x and y + (x - y) -> x for integers."""
    if v.type.is_float:
        return None
    for difference, other in (v.args, v.args[::-1]):
        if difference.op is Op.SUB and difference.args[1] is other:
            return difference.args[0]
    return None


@rule(Op.SUB)
def subtract_constant(make: Maker, v: Value) -> Value | None:
    """x - c -> x + -c for integers; x - 0.0 -> x for floats."""
    x, y = v.args
    if v.type.is_float:
        return x if is_number(y, 0.0) else None
    return make.op(Op.ADD, x, make.op(Op.NEG, y)) if y.op is Op.CONST else None


@rule(Op.SUB)
def subtract_itself(make: Maker, v: Value) -> Value | None:
    """x - x -> 0 for integers."""
    return make.const(v.type, 0) if v.args[0] is v.args[1] and not v.type.is_float else None


@rule(Op.SUB)
def subtract_from_zero(make: Maker, v: Value) -> Value | None:
    """0 - x -> -x for integers; -0.0 - x -> -x for floats."""
    x, y = v.args
    return make.op(Op.NEG, y) if is_number(x, -0.0 if v.type.is_float else 0) else None


@rule(Op.SUB)
def subtract_negated(make: Maker, v: Value) -> Value | None:
    """x - -y -> x + y."""
    x, y = v.args
    return make.op(Op.ADD, x, y.args[0]) if y.op is Op.NEG else None


@rule(Op.SUB)
def subtract_part(make: Maker, v: Value) -> Value | None:
    """(x + y) - x -> y and (x + y) - y -> x for integers."""
    total, other = v.args
    if v.type.is_float or total.op is not Op.ADD or other not in total.args:
        return None
    x, y = total.args
    return y if other is x else x


@rule(Op.MUL)
def multiply_by_small(make: Maker, v: Value) -> Value | None:
    """x * 1 -> x, x * -1 -> -x; x * 0 -> 0 for integers."""
    x, y = v.args
    if is_number(y, 1):
        return x
    if is_number(y, 0) and not v.type.is_float:
        return y
    signed = v.type.is_float or v.type.is_signed
    return make.op(Op.NEG, x) if signed and is_number(y, -1) else None


@rule(Op.MUL)
def multiply_by_power_of_two(make: Maker, v: Value) -> Value | None:
    """x * 2^k -> x << k for integers."""
    k = power_of_two(v.args[1])
    return None if k is None or k >= make.bits(v.type) else make.op(Op.SHL, v.args[0], k)


@rule(Op.MUL)
def multiply_constants(make: Maker, v: Value) -> Value | None:
    """(x * c) * d -> x * (c * d) for integers; a shift counts as a product."""
    x, d = v.args
    if v.type.is_float or d.op is not Op.CONST or x.op not in (Op.MUL, Op.SHL):
        return None
    y, c = x.args
    if c.op is not Op.CONST:
        return None
    if x.op is Op.SHL:
        c = make.op(Op.SHL, make.const(v.type, 1), c)
    return make.op(Op.MUL, y, make.op(Op.MUL, c, d))


@rule(Op.MUL, Op.DIV)
def multiply_negated(make: Maker, v: Value) -> Value | None:
    """-x * -y -> x * y, and likewise for division."""
    x, y = v.args
    if x.op is Op.NEG and y.op is Op.NEG:
        return make.op(v.op, x.args[0], y.args[0])
    return None


@rule(Op.DIV)
def divide_by_power_of_two(make: Maker, v: Value) -> Value | None:
    """x / c -> x * (1 / c) where c and 1 / c are powers of two and normal: both are exact."""
    c = constant(v.args[1])
    if not isinstance(c, float) or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
        return None
    inverse = make.const(v.type, 1 / c)
    least = {"f16": 2.0**-14, "f64": 2.0**-1022}.get(v.type.name, 2.0**-126)
    if min(abs(c), abs(1 / c)) < least or constant(inverse) != 1 / c:
        return None
    return make.op(Op.MUL, v.args[0], inverse)


@rule(Op.FLOORDIV, Op.TRUNCDIV)
def divide_by_small(make: Maker, v: Value) -> Value | None:
    """x // 1 -> x, x // 0 -> 0, x // -1 -> -x for integers."""
    x, y = v.args
    if v.type.is_float:
        return None
    if is_number(y, 1):
        return x
    if is_number(y, 0):
        return y
    return make.op(Op.NEG, x) if v.type.is_signed and is_number(y, -1) else None


@rule(Op.MOD, Op.TRUNCMOD)
def modulo_small(make: Maker, v: Value) -> Value | None:
    """x % 1 -> 0, x % 0 -> 0, x % -1 -> 0 for integers."""
    y = v.args[1]
    if v.type.is_float:
        return None
    small = is_number(y, 0) or is_number(y, 1) or (v.type.is_signed and is_number(y, -1))
    return make.const(v.type, 0) if small else None


@rule(Op.FLOORDIV)
def divide_by_power_of_two_down(make: Maker, v: Value) -> Value | None:
    """x // 2^k -> x >> k for integers: both round down."""
    k = power_of_two(v.args[1])
    return None if k is None or k >= make.bits(v.type) else make.op(Op.SHR, v.args[0], k)


@rule(Op.MOD)
def modulo_power_of_two(make: Maker, v: Value) -> Value | None:
    """x % 2^k -> x & (2^k - 1) for integers: the remainder is never negative."""
    k = power_of_two(v.args[1])
    if k is None or k >= make.bits(v.type):
        return None
    return make.op(Op.AND, v.args[0], (1 << k) - 1)


@rule(Op.MOD)
def modulo_twice(make: Maker, v: Value) -> Value | None:
    """(x % y) % y -> x % y for integers."""
    x, y = v.args
    twice = not v.type.is_float and x.op is Op.MOD and x.args[1] is y
    return x if twice else None


@rule(Op.NEG)
def negate_negated(make: Maker, v: Value) -> Value | None:
    """--x -> x; -(x - y) -> y - x for integers."""
    x = v.args[0]
    if x.op is Op.NEG:
        return x.args[0]
    if x.op is Op.SUB and not v.type.is_float:
        return make.op(Op.SUB, x.args[1], x.args[0])
    return None


@rule(Op.ABS)
def absolute_of_sign(make: Maker, v: Value) -> Value | None:
    """abs(-x) -> abs(x), abs(abs(x)) -> abs(x), abs(x) -> x for unsigned types."""
    x = v.args[0]
    if x.op is Op.ABS or not (v.type.is_float or v.type.is_signed):
        return x
    return make.op(Op.ABS, x.args[0]) if x.op is Op.NEG else None


@rule(Op.MIN, Op.MAX, Op.MINIMUM, Op.MAXIMUM)
def least_of_same(make: Maker, v: Value) -> Value | None:
    """min(x, x) -> x."""
    return v.args[0] if v.args[0] is v.args[1] else None


@rule(Op.MIN, Op.MAX, Op.MINIMUM, Op.MAXIMUM)
def least_of_limits(make: Maker, v: Value) -> Value | None:
    """min(x, greatest) -> x and min(x, least) -> least for integers; max likewise."""
    x, y = v.args
    if not v.type.is_integer or not v.type.bits:
        return None
    ends = v.type.limits if v.op in (Op.MIN, Op.MINIMUM) else v.type.limits[::-1]
    if is_number(y, ends[0]):
        return y
    return x if is_number(y, ends[1]) else None


@rule(Op.MINIMUM, Op.MAXIMUM)
def propagate_nothing(make: Maker, v: Value) -> Value | None:
    """minimum(x, y) -> min(x, y) for integers, which have no NaN."""
    plain = Op.MIN if v.op is Op.MINIMUM else Op.MAX
    return make.op(plain, *v.args) if v.type.is_integer else None


@rule(Op.FMA)
def fuse_with_one(make: Maker, v: Value) -> Value | None:
    """fma(x, 1, y) -> x + y, fma(x, -1, y) -> y - x; the product is exact."""
    for x, factor in (v.args[:2], v.args[1::-1]):
        if is_number(factor, 1.0):
            return make.op(Op.ADD, x, v.args[2])
        if is_number(factor, -1.0):
            return make.op(Op.SUB, v.args[2], x)
    return None


@rule(Op.FMA)
def fuse_with_zero(make: Maker, v: Value) -> Value | None:
    """fma(x, y, -0.0) -> x * y; with 0.0 a product of -0.0 would become 0.0."""
    x, y, z = v.args
    return make.op(Op.MUL, x, y) if is_number(z, -0.0) else None


@rule(Op.FMA)
def fuse_negated(make: Maker, v: Value) -> Value | None:
    """fma(-x, -y, z) -> fma(x, y, z)."""
    x, y, z = v.args
    if x.op is Op.NEG and y.op is Op.NEG:
        return make.op(Op.FMA, x.args[0], y.args[0], z)
    return None


@rule(Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND)
def round_whole(make: Maker, v: Value) -> Value | None:
    """floor(floor(x)) -> floor(x), whatever the two ways of rounding."""
    inner = v.args[0].op
    return v.args[0] if inner in (Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND) else None
