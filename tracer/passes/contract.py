"""Contraction: which products and sums of f32 and f64 are rounded once.

Before::

    %p = mul %a %b
    store out[%i] (add %x %p)
    store out[%j] (sub %p %y)

After::

    store out[%i] (fma %a %b %x)
    store out[%j] (fma %a %b (neg %y))

The rule, part of what a kernel means: in ``x + y``, if y is a product it becomes a fused multiply
and add of y; else if x is one, of x; whatever the product's other uses. ``x - y`` likewise, with
the product's first factor or the other operand negated. The operands are x and y as they were
written, but for a constant on the left of a sum, which the builder has put on the right. The rule
looks at the trace as it was recorded, and runs once, before anything else has changed it.
"""

from __future__ import annotations

from khaljit.tracer.dtypes import f32, f64
from khaljit.tracer.ir import Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["contract"]


def contract(trace: Trace) -> Trace:
    """Fuse products into sums and differences, unless the kernel was told not to."""
    return _Contract(trace).run() if trace.options.contract else trace


class _Contract(Rewriter):
    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op not in (Op.ADD, Op.SUB) or value.dtype not in (f32, f64):
            return self.copy(value, args)
        x, y = args
        if value.args[1].op is Op.MUL:
            a, b = self.all(value.args[1].args)
            if value.op is Op.SUB:
                a = self.builder.pure(Op.NEG, (a,))
            return self.builder.pure(Op.FMA, (a, b, x))
        if value.args[0].op is Op.MUL:
            a, b = self.all(value.args[0].args)
            if value.op is Op.SUB:
                y = self.builder.pure(Op.NEG, (y,))
            return self.builder.pure(Op.FMA, (a, b, y))
        return self.copy(value, args)
