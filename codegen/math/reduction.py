"""Arguments of sin, cos and tan, reduced modulo pi / 2.

Below a limit: Cody & Waite (1980) in three fused steps, whose first is exact. Above: Payne & Hanek
(1983) in integers: only the bits of 2 / pi that matter for the argument's exponent are multiplied
by its significand, kept in three words. Good for every finite number.
"""

from __future__ import annotations

import math
from typing import Final, final

from khaljit.codegen.math.kit import (
    Format,
    Num,
    Rare,
    add_exactly,
    add_ordered,
    either,
    fma,
    multiply_exactly,
    select,
)
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["reduce", "reduce_precisely"]

# 2 / pi, 1216 bits after the binary point.
_TWO_OVER_PI: Final = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424d"
    "d2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639"
    "835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f46"
    "3f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab",
    16,
)
_BITS: Final = 1216


@final
@dataclass(frozen=True, slots=True)
class _Table:
    """Constants of one format.

    Attributes:
        parts: pi / 2, cut into three positive parts.
        limit: exponent from which on integers do the work.
        steps: how far the window into 2 / pi may have to move, in words, as powers of two.
        scaled: high and low part of pi / 2 in units of the fixed-point fraction.
    """

    parts: tuple[float, float, float]
    limit: int
    steps: tuple[int, ...]
    scaled: tuple[float, float]


_TABLES: Final[dict[DType, _Table]] = {
    f32: _Table(
        (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
        17,
        (2, 1),
        (1.462918119976564e-09, -4.07094042765558e-17),
    ),
    f64: _Table(
        (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
        32,
        (8, 4, 2, 1),
        (3.4061215800865545e-19, 1.3277647201629795e-35),
    ),
}


def reduce(x: Num, huge: Rare) -> tuple[Num, Num]:
    """r in about +-pi/4 and an unsigned n with x = r + n pi / 2.

    That holds but for multiples of 2 pi, and for huge x of |x|. Infinity and NaN give NaN.
    """
    table = _TABLES[x.dtype]
    k, n, r = _first_step(x, table)
    for part in table.parts[1:]:
        r = fma(k, -part, r)

    def slow() -> tuple[Num, Num]:
        slow_r, _, slow_n = _reduce_huge(x, table)
        return slow_r, slow_n

    r, n = either(_is_huge(x), huge, slow, (r, n))
    return r, n


def reduce_precisely(x: Num, huge: Rare) -> tuple[Num, Num, Num]:
    """`reduce` to twice the precision: r, what rounding took from r, and n."""
    table = _TABLES[x.dtype]
    k, n, r = _first_step(x, table)
    product, product_rest = multiply_exactly(k, table.parts[1])
    r, rest = add_exactly(r, -product)
    r, rest = add_ordered(r, fma(k, -table.parts[2], rest - product_rest))
    r, rest, n = either(_is_huge(x), huge, lambda: _reduce_huge(x, table), (r, rest, n))
    return r, rest, n


def _is_huge(x: Num) -> Num:
    return abs(x) >= 2.0 ** _TABLES[x.dtype].limit


def _first_step(x: Num, table: _Table) -> tuple[Num, Num, Num]:
    """k, k in the low bits of an integer, and x - k p exactly, p the first part of pi / 2."""
    shifted = fma(x, 2.0 / math.pi, x.format.shifter)
    k = shifted - x.format.shifter
    return k, shifted.bits(), fma(k, -table.parts[0], x)


def _reduce_huge(x: Num, table: _Table) -> tuple[Num, Num, Num]:
    """Of |x| >= 2**limit; the fixed-point product keeps 2 bits before the point."""
    form = x.format
    width = form.dtype.bits
    bits = x.bits() & (form.sign_bit - 1)
    offset = (bits >> form.fraction) - (form.bias + table.limit)
    significand = (bits & ((1 << form.fraction) - 1)) | (1 << form.fraction)
    first, second, third = _window(offset, table, form)
    low = significand * second
    middle = low + significand.op(Op.MULHI, third)
    carry = select(middle < low, low.of(1), 0)
    top = significand * first + significand.op(Op.MULHI, second) + carry
    n = (top + (1 << (width - 3))) >> (width - 2)
    whole = (top - (n << (width - 2))).reinterpret(form.signed)
    high = whole.cast(form.dtype)
    rest = (whole - high.cast(form.signed)).cast(form.dtype)
    rest = fma(middle.cast(form.dtype), 2.0**-width, rest)
    unit, unit_rest = table.scaled
    rest = fma(high, unit_rest, rest * unit)
    r = fma(high, unit, rest)
    return r + (x - x), fma(high, unit, -r) + rest, n


def _window(offset: Num, table: _Table, form: Format) -> tuple[Num, Num, Num]:
    """Three words of 2 / pi; their first bit has weight 2 times the significand's lowest bit.

    The word is found by moving the whole table, a power of two at a time; the bit by shifts.
    """
    width = form.dtype.bits
    count = sum(table.steps) + 4
    zeros = form.precision - table.limit + 1  # bits at and before the binary point
    digits = _TWO_OVER_PI >> (_BITS + zeros - count * width)
    mask = (1 << width) - 1
    words = [offset.of(digits >> width * k & mask) for k in reversed(range(count))]
    index = offset >> (width.bit_length() - 1)
    for step in table.steps:
        move = (index & step).ne(0)
        words = [select(move, words[k + step], words[k]) for k in range(len(words) - step)]
    left = offset & (width - 1)
    right = width - left
    first, second, third, fourth = words
    return (
        (first << left) | (second >> right),
        (second << left) | (third >> right),
        (third << left) | (fourth >> right),
    )
