"""Atomics on local memory: nobody else sees it, so they are plain accesses.

Before::

    %old = atomic add %local[%k] %x

After::

    %old = load %local[%k]
    store %local[%k] (add %old %x)
"""

from __future__ import annotations

from khaljit.codegen.writing import UNSIGNED
from khaljit.tracer.build import Builder
from khaljit.tracer.ir import Access, AtomicAccess, Space, Trace, Value, effects
from khaljit.tracer.ops import COMBINE, Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["private_atomics"]


def private_atomics(trace: Trace) -> Trace:
    """Replace the atomics on local memory."""
    return _Private(trace).run() if any(map(_is_private, effects(trace.body))) else trace


def _is_private(effect: Value) -> bool:
    return effect.op is Op.ATOMIC and effect.memory.space is Space.LOCAL


class _Private(Rewriter):
    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if not _is_private(value):
            return super().effect(value, args)
        assert isinstance(value.attr, AtomicAccess)
        old, builder = value.attr, self.builder
        access = Access(old.leaf, old.checked, old.flat, old.guarded)
        start = len(args) - len(value.operands)
        place, operands = args[:start], args[start:]
        if old.kind == "store":
            builder.effect(Op.STORE, (*place, *operands), access)
            return None
        found = builder.effect(Op.LOAD, place, access, value.type)
        if old.kind != "load":
            builder.effect(Op.STORE, (*place, _new(builder, old.kind, found, operands)), access)
        return found


def _new(builder: Builder, kind: str, found: Value, operands: tuple[Value, ...]) -> Value:
    """What the memory holds afterwards."""
    if kind == "exchange":
        return operands[0]
    if kind == "compare_exchange":
        bits = UNSIGNED[found.type.bits]
        both = (builder.bitcast(found, bits), builder.bitcast(operands[0], bits))
        same = builder.pure(Op.EQ, both)
        return builder.select(same, operands[1], found)
    return builder.pure(COMBINE[kind], (found, operands[0]))
