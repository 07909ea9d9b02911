"""Negations and magnitudes that an assembler does not lose in a minimum of three.

ptxas 13.0 makes one instruction of ``min (min a (neg b)) c`` on signed 32-bit integers, and leaves
the negation out; likewise for ``max`` and ``abs``, and wherever the negation has got to by way of
copies. So kernels that take such extremes negate and take magnitudes by other operations.

Before::

    %m = min (min %a (neg %b)) (abs %c)

After::

    %s = shr %c 31
    %m = min (min %a (add (not %b) 1)) (sub (xor %c %s) %s)
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["keep_signs"]

_EXTREMES: Final = frozenset({Op.MIN, Op.MAX})
_SIGNS: Final = frozenset({Op.NEG, Op.ABS})


def keep_signs(trace: Trace) -> Trace:
    """The trace without negations and magnitudes that may be lost."""
    order = values(trace.body)
    for ops in (_EXTREMES, _SIGNS):
        if not any(value.op in ops and _is_affected(value.type) for value in order):
            return trace
    return _Signs(trace).run()


def _is_affected(dtype: DType) -> bool:
    """Signed integers in registers of 32 bits."""
    return dtype.is_integer and dtype.is_signed and dtype.bits <= 32


@final
class _Signs(Rewriter):
    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op not in _SIGNS or not _is_affected(value.type):
            return self.copy(value, args)
        w, (x,) = Writer(self.builder, self._plain), args
        if value.op is Op.NEG:
            return w.add(w.op(Op.NOT, x), 1)
        sign = w.shr(x, value.type.bits - 1)
        return w.sub(w.xor(x, sign), sign)

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)
