"""Operations that are done at once: a builder whose values are all known numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from khaljit.codegen.math.expand import expand
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, f32, f64
from khaljit.tracer.ir import Value
from khaljit.tracer.numerics import from_bits, meaning, to_memory
from khaljit.tracer.ops import MATH, OPS, Op

__all__ = ["Evaluator", "known", "number_of"]


def known(dtype: DType, number: Any, args: tuple[Value, ...] = ()) -> Value:
    """A value that is a number, held as NumPy does."""
    bits = int.from_bytes(to_memory(dtype, np.asarray(number)).tobytes(), "little")
    return Value(Op.CONST, dtype, args, bits)


def number_of(value: Value, index_bits: int) -> Any:
    """The NumPy scalar of a known value; float32 for bf16."""
    assert isinstance(value.attr, int)
    return from_bits(value.type, value.attr, index_bits)[()]


class Evaluator(Builder):
    """Does pure operations as it is asked to build them.

    The elementary functions go through the expansions that code generators get, so their results
    are the same bits. Callers silence NumPy's warnings.
    """

    def __init__(self, index_bits: int, *, fastmath: bool = False) -> None:
        super().__init__()
        self.index_bits = index_bits
        self.fastmath = fastmath

    def pure(
        self, op: Op, args: tuple[Value, ...] = (), attr: object = None, dtype: DType | None = None
    ) -> Value:
        """The number that an operation gives."""
        if op is Op.CONST:
            return Value(op, dtype, (), attr)
        types = tuple(arg.type for arg in args)
        rule = OPS[op].result
        result = dtype if rule is None else rule(*types)
        assert result is not None
        if op in MATH:
            return self._elementary(op, result, args)
        operands = tuple(from_bits(arg.type, arg.attr, self.index_bits) for arg in args)  # type: ignore[arg-type]
        return known(result, meaning(op, result, types, self.index_bits)(*operands))

    def _elementary(self, op: Op, result: DType, args: tuple[Value, ...]) -> Value:
        works = f64 if result is f64 else f32  # as the legaliser has it for narrower floats
        wide = tuple(self.cast(arg, works) for arg in args)
        plain = Evaluator(self.index_bits)  # in expansions nothing is contracted
        return self.cast(expand(plain, op, wide, self.fastmath), result)
