"""Every simplification rule keeps every bit, tried on operands of all shapes and kinds."""

from __future__ import annotations

import numpy as np
import pytest

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import ALL, DType, bf16, bool_, f16, f32, i32, i64, index, u8
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Value
from khaljit.tracer.numerics import evaluate, from_bits, from_memory, held, to_memory
from khaljit.tracer.ops import OPS, Op, TypingError
from khaljit.tracer.passes.rules import RULES, Maker, Rule, holds
from khaljit.tracer.passes.simplify import RULE_FILES
from tests.building import bits_equal, edge_values

_TYPES = (*ALL, index)
_ROUNDS = 30
_LANES = 64


class _Draw:
    """Random small values over scalar leaves, with the operands that rules look for."""

    def __init__(self, builder: Builder, rng: np.random.Generator, index_bits: int) -> None:
        self.builder = builder
        self.rng = rng
        self.index_bits = index_bits

    def leaf(self, dtype: DType) -> Value:
        number = _TYPES.index(dtype) * 3 + int(self.rng.integers(3))
        return self.builder.scalar(number, dtype)

    def const(self, dtype: DType) -> Value:
        if self.rng.random() < 0.6:
            numbers = (0, 1, 2, 4, 8, -1, 3, 0.5, -0.0, 7)
            number = numbers[int(self.rng.integers(len(numbers)))]
            if dtype.is_float or number == int(number):
                return self.builder.const(dtype, number if dtype.is_float else int(number))
        if dtype is index:
            width = self.index_bits
            ends = (-(1 << width - 1), (1 << width - 1) - 1, width, width - 1)
            return self.builder.const(index, ends[int(self.rng.integers(4))])
        raw = edge_values(dtype, 1, self.rng)
        return self.builder.const_bits(dtype, int.from_bytes(raw.tobytes(), "little"))

    def value(self, dtype: DType, depth: int, outer: Op) -> Value:
        """An operand of an operation ``outer``; rules are often about one of the same kind."""
        choice = self.rng.random()
        if choice < 0.3:
            return self.leaf(dtype)
        if choice < 0.55:
            return self.const(dtype)
        if not depth:
            return self.leaf(dtype)
        ops = [op for op in RULES if OPS[op].result is not None or op is Op.CAST]
        if self.rng.random() < 0.4:
            ops = [Op.NEG, Op.NOT, Op.CAST]
        for _ in range(8):
            op = outer if self.rng.random() < 0.4 else ops[int(self.rng.integers(len(ops)))]
            made = self.operation(op, dtype, depth)
            if made is not None and made.dtype is dtype:
                return made
        return self.leaf(dtype)

    def operation(self, op: Op, dtype: DType, depth: int) -> Value | None:
        """An operation that works in a type, or gives it if it is a cast."""
        if op is Op.BITCAST and not dtype.bits:
            return None
        if op in (Op.CAST, Op.BITCAST):
            same_width = [t for t in ALL if t.bits == dtype.bits and bool_ not in (t, dtype)]
            sources = same_width if op is Op.BITCAST else _TYPES
            if not sources:
                return None
            source = sources[int(self.rng.integers(len(sources)))]
            operand = self.value(source, depth - 1, op)
            return self.builder.pure(op, (operand,), None, dtype)
        arity = OPS[op].arity
        assert arity is not None
        types = [bool_, dtype, dtype] if op is Op.SELECT else [dtype] * arity
        args = [self.value(t, depth - 1, op) for t in types]
        if len(args) > 1 and self.rng.random() < 0.3:
            args[-1] = args[-2]  # many rules are about equal operands
        if len(args) > 1 and self.rng.random() < 0.3 and args[-2].args:
            inner = args[-2].args[int(self.rng.integers(len(args[-2].args)))]
            if inner.dtype is dtype:
                args[-1] = inner  # or about an operand that comes twice
        if len(args) == 2 and self.rng.random() < 0.3:
            args.reverse()
        try:
            return self.builder.pure(op, tuple(args))
        except TypingError:
            return None


def _evaluate(value: Value, leaves: dict[Value, Array], index_bits: int) -> Array:
    found = leaves.get(value)
    if found is not None:
        return found
    if value.op is Op.CONST:
        assert isinstance(value.attr, int)
        return from_bits(value.type, value.attr, index_bits)
    args = tuple(_evaluate(arg, leaves, index_bits) for arg in value.args)
    types = tuple(arg.type for arg in value.args)
    return evaluate(value.op, value.type, types, args, index_bits)


def _leaves(value: Value) -> set[Value]:
    if value.op is Op.SCALAR:
        return {value}
    return set().union(*(_leaves(arg) for arg in value.args))


def _raw(dtype: DType, values: Array, index_bits: int) -> Array:
    spread = np.broadcast_to(values, (_LANES,)).astype(held(dtype, index_bits))
    return to_memory(dtype, spread) if dtype is not index else spread


def _inputs(leaves: set[Value], rng: np.random.Generator, index_bits: int) -> dict[Value, Array]:
    found: dict[Value, Array] = {}
    for leaf in leaves:
        stored = leaf.type
        if stored is index:
            stored = i32 if index_bits == 32 else i64
        raw = edge_values(stored, _LANES, rng)
        found[leaf] = from_memory(stored, raw, index_bits)
    return found


@pytest.mark.parametrize("op", [op for op in Op if op in RULES])
def test_simplified_operations_have_the_same_bits(op: Op) -> None:
    rng = np.random.default_rng()
    for dtype in _TYPES:
        for index_bits in (32, 64) if dtype is index else (32,):
            builder = Builder()
            draw = _Draw(builder, rng, index_bits)
            maker = Maker(builder, index_bits)
            for _ in range(_ROUNDS):
                value = draw.operation(op, dtype, 2)
                if value is None:
                    continue
                simple = maker.make(op, value.args, value.attr, None if OPS[op].result else dtype)
                inputs = _inputs(_leaves(value) | _leaves(simple), rng, index_bits)
                before = _raw(value.type, _evaluate(value, inputs, index_bits), index_bits)
                after = _raw(value.type, _evaluate(simple, inputs, index_bits), index_bits)
                assert bits_equal(value.type, before, after).all(), (value, value.args, simple)


_RULES_BY_OP = [(op, function) for op, functions in RULES.items() for function in functions]


@pytest.mark.parametrize(
    ("op", "function"), _RULES_BY_OP, ids=[f"{op.value}-{f.__name__}" for op, f in _RULES_BY_OP]
)
def test_every_rule_applies_and_keeps_every_bit(op: Op, function: Rule) -> None:
    """Each rule alone, without the others before it: none hides behind another."""
    rng = np.random.default_rng()
    applied = 0
    for _ in range(300):
        for dtype in _TYPES:
            builder = Builder()
            draw, maker = _Draw(builder, rng, 64), Maker(builder, 64)
            for _ in range(5):
                value = draw.operation(op, dtype, 2)
                better = None if value is None else function(maker, value)
                if value is None or better is None:
                    continue
                applied += 1
                inputs = _inputs(_leaves(value) | _leaves(better), rng, 64)
                before = _raw(value.type, _evaluate(value, inputs, 64), 64)
                after = _raw(value.type, _evaluate(better, inputs, 64), 64)
                assert bits_equal(value.type, before, after).all(), (value, value.args, better)
        if applied >= 8:
            break
    assert applied


def test_every_rule_states_its_law() -> None:
    for functions in RULES.values():
        for function in functions:
            assert "->" in (function.__doc__ or ""), function


def test_rules_are_registered_by_the_rule_files() -> None:
    files = {function.__module__ for functions in RULES.values() for function in functions}
    assert files == {file.__name__ for file in RULE_FILES}


def test_zero_is_not_dropped_from_a_float_sum() -> None:
    builder = Builder()
    maker = Maker(builder, 32)
    x = builder.scalar(0, f32)
    assert maker.op(Op.ADD, x, 0.0).op is Op.ADD
    assert maker.op(Op.ADD, x, -0.0) is x


def test_elementary_functions_of_constants_are_not_folded() -> None:
    builder = Builder()
    assert Maker(builder, 32).op(Op.EXP, builder.const(f32, 1.0)).op is Op.EXP


def test_index_constants_fold_in_the_width_of_index() -> None:
    for bits, expected in ((32, -(1 << 31)), (64, 1 << 31)):
        builder = Builder()
        most = builder.const(index, (1 << 31) - 1)
        total = Maker(builder, bits).op(Op.ADD, most, 1)
        assert total is builder.const(index, expected)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (f32, f16, True),
        (f32, bf16, True),
        (f16, bf16, False),
        (bf16, f16, False),
        (f16, u8, True),
        (bf16, u8, True),
        (f32, i32, False),
        (i64, index, True),
        (index, i32, True),
        (index, i64, False),
        (u8, bool_, True),
        (bool_, u8, False),
        (i32, f16, False),
    ],
)
def test_a_type_holds_another_if_it_has_all_its_values(
    wide: DType, narrow: DType, expected: bool
) -> None:
    assert holds(wide, narrow) is expected
