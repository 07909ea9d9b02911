"""Negations that an assembler does not lose in a minimum of three.

ptxas 13.0 makes one instruction of ``min (min a (neg b)) c`` on 32-bit integers, and leaves the
negation out; likewise for ``max``, and wherever the negation has got to by way of copies. So
kernels that take such extremes negate by other operations.

Before::

    %m = min (min %a (neg %b)) %c

After::

    %m = min (min %a (add (not %b) 1)) %c
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["keep_signs"]

_EXTREMES: Final = frozenset({Op.MIN, Op.MAX, Op.MINIMUM, Op.MAXIMUM})
_NEGATION: Final = frozenset({Op.NEG})


def keep_signs(trace: Trace) -> Trace:
    """The trace without negations that may be lost."""
    order = values(trace.body)
    for ops in (_EXTREMES, _NEGATION):
        if not any(value.op in ops and _is_affected(value.type) for value in order):
            return trace
    return _Signs(trace).run()


def _is_affected(dtype: DType) -> bool:
    """Integers in registers of 32 bits."""
    return dtype.is_integer and dtype.bits <= 32


@final
class _Signs(Rewriter):
    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is not Op.NEG or not _is_affected(value.type):
            return self.copy(value, args)
        w = Writer(self.builder, self._plain)
        return w.add(w.op(Op.NOT, args[0]), 1)

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)
