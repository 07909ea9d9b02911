"""The 16-bit floats on targets that do not compute with them: carried as u16, computed in f32.

Before, for bf16::

    store out[%k] (add %x %y)

After::

    store out[%k] (round (add (f32 %x) (f32 %y)))     # round and f32 in integer operations

Laws:

* A value of such a type is its bits, everywhere: in parameters, memory, and across regions.
* f32 holds more than twice the bits of a significand and two more, so computing an operation of
  the table there and rounding the result rounds once. Fused multiply-add takes f64 and rounding to
  odd. Casts from wider types than f32 round to odd on the way.
* NaN stays NaN; its sign and payload may change.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.atomics import Encoding, through_bits
from khaljit.codegen.caps import Caps
from khaljit.codegen.fused import fma_in_f64
from khaljit.codegen.rounding import (
    f16_to_f32,
    f32_to_bf16,
    f32_to_f16,
    f64_to_f32_odd,
    integer_to_f32_odd,
    integer_to_f32_odd_by_bits,
    sum_to_odd,
)
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, bf16, bool_, f16, f32, f64, u16, u32
from khaljit.tracer.ir import AtomicAccess, Element, Memory, ScalarParam, Trace, Value, values
from khaljit.tracer.ops import COMPARISONS, Op
from khaljit.tracer.records import replace
from khaljit.tracer.rewriting import Rewriter

__all__ = ["carry_narrow"]

# Collectives that move values between lanes; the others compute with them.
_MOVES: Final = frozenset(
    {"broadcast", "broadcast_first", "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down"}
)


def carry_narrow(trace: Trace, caps: Caps) -> Trace:
    """Rewrite what a lowered trace does with 16-bit floats that the target does not select."""
    carried = frozenset(t for t in (f16, bf16) if not caps.takes(Op.SELECT, t))
    return _Narrow(trace, caps, carried).run() if carried and _holds(trace, carried) else trace


def _holds(trace: Trace, dtypes: frozenset[DType]) -> bool:
    """Whether a trace has anything to do with some types."""
    order = values(trace.body)
    memories = [array.memory for array in trace.arrays]
    memories += [value.attr for value in order if isinstance(value.attr, Memory)]
    return (
        any(scalar.dtype in dtypes for scalar in trace.scalars)
        or any(value.dtype in dtypes for value in order)
        or any(dtype in dtypes for memory in memories for _, dtype in memory.element.leaves)
    )


class _Narrow(Rewriter):
    def __init__(self, trace: Trace, caps: Caps, carried: frozenset[DType]) -> None:
        super().__init__(trace)
        self.caps: Final = caps
        self.carried: Final = carried
        self.write: Final = Writer(self.builder, self._plain)

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        return self.builder.pure(op, args, None, dtype)

    def run(self) -> Trace:
        trace = super().run()
        arrays = tuple(replace(a, memory=self._memory(a.memory)) for a in trace.arrays)
        scalars = tuple(ScalarParam(s.name, self.dtype(s.dtype), s.dtype) for s in trace.scalars)
        return replace(trace, arrays=arrays, scalars=scalars)

    def dtype(self, dtype: DType) -> DType:
        return u16 if dtype in self.carried else dtype

    def _memory(self, memory: Memory) -> Memory:
        leaves = tuple((at, self.dtype(dtype)) for at, dtype in memory.element.leaves)
        element = Element(memory.element.size, memory.element.align, leaves)
        return replace(memory, element=element)

    # Between u16 and f32.

    def widened(self, value: Value, dtype: DType) -> Value:
        """f32 of a value that was of ``dtype``; anything but a carried float stays."""
        w = self.write
        if dtype not in self.carried:
            return value
        if dtype is bf16:
            return w.bitcast(w.shl(w.cast(value, u32), 16), f32)
        if (f16, f32) in self.caps.casts:
            return w.cast(w.bitcast(value, f16), f32)
        return f16_to_f32(w, value)

    def narrowed(self, value: Value, dtype: DType) -> Value:
        """The bits of a carried float from a value of any other type, rounded once."""
        w = self.write
        if value.dtype is f64:
            value = f64_to_f32_odd(w, value)
        elif value.dtype is bool_:
            value = w.cast(value, f32)
        elif value.dtype is not f32:
            # Integers that f32 rounds are infinite in f16, but not in bf16.
            value = w.cast(value, f32) if dtype is f16 else self._odd(value)
        if dtype is bf16:
            return f32_to_bf16(w, value)
        if (f32, f16) in self.caps.casts:
            return w.bitcast(w.cast(value, f16), u16)
        return f32_to_f16(w, value)

    def _odd(self, value: Value) -> Value:
        """An integer rounded to odd in f32."""
        if f64 in self.caps.dtypes or value.type.bits <= 16:
            return integer_to_f32_odd(self.write, value)
        return integer_to_f32_odd_by_bits(self.write, value)

    # Values.

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is Op.MEMORY:
            assert isinstance(value.attr, Memory)
            return self.builder.memory(self._memory(value.attr))
        operand_types = tuple(arg.dtype for arg in value.args)
        if value.dtype not in self.carried and not self.carried.intersection(operand_types):
            return self.copy(value, args)
        if value.op is Op.CAST:
            wide = self.widened(args[0], value.args[0].type)
            if value.dtype in self.carried:
                return self.narrowed(wide, value.type)
            return self.write.cast(wide, value.type)
        if value.op is Op.BITCAST:
            return self.builder.bitcast(args[0], self.dtype(value.type))
        if value.op in (Op.CONST, Op.SCALAR, Op.SELECT):
            return self.copy(value, args)
        if value.op is Op.NEG:
            return self.write.xor(args[0], 0x8000)
        if value.op is Op.ABS:
            return self.write.and_(args[0], 0x7FFF)
        return self._computed(value.op, args, value.args[0].type)

    def _computed(self, op: Op, args: tuple[Value, ...], dtype: DType) -> Value:
        """An operation of the table, whose operands were all of a carried type."""
        wide = tuple(self.widened(arg, dtype) for arg in args)
        if op is Op.FMA:
            if f64 in self.caps.dtypes:
                return self.narrowed(fma_in_f64(self.write, *wide), dtype)
            product = self.write.mul(wide[0], wide[1])  # exact, but for bf16 at the limits of f32
            return self.narrowed(sum_to_odd(self.write, product, wide[2]), dtype)
        result = self.builder.pure(op, wide)
        return result if op in COMPARISONS else self.narrowed(result, dtype)

    # Effects.

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op is Op.ATOMIC and value.dtype in self.carried:
            return self._atomic(value, args)
        if value.op is Op.SUBGROUP and value.dtype in self.carried and value.attr not in _MOVES:
            wide = tuple(self.widened(arg, value.type) for arg in args)
            result = self.builder.effect(value.op, wide, value.attr, f32)
            return self.narrowed(result, value.type)
        return super().effect(value, args)

    def _atomic(self, value: Value, args: tuple[Value, ...]) -> Value:
        assert isinstance(value.attr, AtomicAccess)
        dtype = value.type
        encoding = Encoding(
            unit=u16,
            encode=lambda bits: bits,
            decode=lambda bits: bits,
            combine=lambda op, x, y: self._computed(op, (x, y), dtype),
        )
        count = len(value.operands)
        place, operands = args[: len(args) - count], args[len(args) - count :]
        return through_bits(self.write, value.attr, place, operands, encoding)
