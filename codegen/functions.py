"""Expands the elementary functions that a target lacks into arithmetic.

Imported where a kernel has such functions: the library behind it is the half of the legaliser.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.caps import Caps
from khaljit.codegen.expanding import Expanding
from khaljit.codegen.math.expand import BRANCHING, BRANCHING_LANES, Reduced, expand
from khaljit.tracer.dtypes import bf16, f16, f32
from khaljit.tracer.ir import Region, Trace, Value
from khaljit.tracer.ops import MATH, Op
from khaljit.tracer.rewriting import Walk

__all__ = ["expand_functions"]


def expand_functions(trace: Trace, caps: Caps) -> Trace:
    """The trace without the elementary functions that a target's row lacks."""
    return _Functions(trace, caps).run()


class _Functions(Expanding):
    def __init__(self, trace: Trace, caps: Caps) -> None:
        super().__init__(trace, caps)
        self.reduced: Final[Reduced] = {}
        self.branching: Final = BRANCHING_LANES if caps.vectors else BRANCHING

    def region(self, region: Region) -> Walk[Region]:
        known = len(self.reduced)
        closed = yield from super().region(region)
        while len(self.reduced) > known:
            self.reduced.popitem()
        return closed

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        fastmath = self.trace.options.fastmath
        if value.op not in MATH or self.caps.takes(value.op, value.type, fastmath):
            return self.copy(value, args)
        if value.dtype in (f16, bf16):  # taken by the target, yet its functions are those of f32
            wide = tuple(self.builder.cast(arg, f32) for arg in args)
            return self.builder.cast(self._expanded(value.op, wide), value.type)
        return self._expanded(value.op, args)

    def _expanded(self, op: Op, args: tuple[Value, ...]) -> Value:
        self.branches += (op, args[0].type) in self.branching
        fastmath = self.trace.options.fastmath
        return expand(self.builder, op, args, fastmath, self.branching, self.reduced)
