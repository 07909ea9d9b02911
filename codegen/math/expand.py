"""The elementary functions as expansions into trace operations: the same bits on every target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.math import error, exponential, logarithm, power, trigonometric
from khaljit.codegen.math.kit import Num
from khaljit.tracer.build import Builder
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["expand"]

_ONE: Final[dict[Op, Callable[[Num, bool], Num]]] = {
    Op.EXP: exponential.exp,
    Op.EXP2: exponential.exp2,
    Op.LOG: logarithm.log,
    Op.LOG2: logarithm.log2,
    Op.LOG10: logarithm.log10,
    Op.LOG1P: logarithm.log1p,
    Op.RSQRT: power.rsqrt,
    Op.TANH: exponential.tanh,
    Op.ERF: error.erf,
    Op.SIN: trigonometric.sin,
    Op.COS: trigonometric.cos,
}

_TWO: Final[dict[Op, Callable[[Num, Num, bool], Num]]] = {
    Op.POW: power.pow_,
}


def expand(builder: Builder, op: Op, args: tuple[Value, ...], fastmath: bool) -> Value:
    numbers = tuple(Num(builder, arg) for arg in args)
    if op in _TWO:
        return _TWO[op](*numbers, fastmath).value
    return _ONE[op](numbers[0], fastmath).value
