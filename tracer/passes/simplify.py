"""Folds constants and applies the rules of ``rules_*.py`` to every pure value.

Before::

    %a = mul %i 8
    %b = select (not %p) %x %x
    store out[%a] (add %b (mul 2 3))

After::

    store out[(shl %i 3)] (add %x 6)

Arrays of one shape share the extents of the first of them. Constants of type ``index`` are wrapped
to its width.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.dtypes import index
from khaljit.tracer.ir import Space, Trace, Value, values
from khaljit.tracer.ops import OPS, Op
from khaljit.tracer.passes import rules_arithmetic, rules_logic
from khaljit.tracer.passes.rules import Maker
from khaljit.tracer.rewriting import Rewriter

__all__ = ["RULE_FILES", "simplify"]

# Pure values that only their region or node gives.
_FIXED: Final = frozenset({Op.PARAM, Op.RESULT})
# Importing a file registers its rules.
RULE_FILES: Final = (rules_arithmetic, rules_logic)


def simplify(trace: Trace) -> Trace:
    """Give every pure value its simplest form."""
    simplifying = _Simplify(trace)
    return trace if simplifying.finds_nothing() else simplifying.run()


class _Simplify(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.maker: Final = Maker(self.builder, trace.index_bits)

    def finds_nothing(self) -> bool:
        """Whether every value has its simplest form."""
        return self.pooled and all(
            self.pure(value, value.args) is value
            for value in values(self.trace.body)
            if value.op not in _FIXED and not OPS[value.op].effect
        )

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is Op.SHAPE and value.memory.space is Space.ARRAY:
            first = self.trace.arrays[value.memory.number].same_shape
            memory = self.builder.memory(self.trace.arrays[first].memory)
            return self.builder.pure(Op.SHAPE, (memory,), value.attr, value.dtype)
        if value.op is Op.CONST and value.dtype is index:
            return self.builder.const(index, self._wrapped(value))
        if self.pooled and args == value.args:
            return self.maker.simplified(value)
        stated = value.dtype if OPS[value.op].result is None else None
        return self.maker.make(value.op, args, value.attr, stated)

    def _wrapped(self, value: Value) -> int:
        """An ``index`` constant as wide as ``index`` is here."""
        assert isinstance(value.attr, int)
        half = 1 << self.trace.index_bits - 1
        return (value.attr + half) % (2 * half) - half
