"""Random traces that use every construct of the representation, and always end.

Every loop counts its iterations in its first carried value and breaks at a small number, so a
dynamic instance of an effect is told by the counters of the loops around it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, bool_, f32, i8, i16, i32, i64, index, u8, u32
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Options,
    Region,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import Op

__all__ = ["RandomTrace", "random_trace"]

_INTEGERS: Final = (i8, u8, i16, i32, u32, i64, index)
_TYPES: Final = (*_INTEGERS, f32, bool_)
_MIXED: Final = Element(16, 4, ((0, f32), (8, i32), (12, i8)))


@dataclass(frozen=True)
class RandomTrace:
    """A trace, and what its prints show.

    Attributes:
        trace: the trace.
        watched: the value that print number k shows; None for a print that only tells that it
            was reached.
        prints: the prints themselves.
    """

    trace: Trace
    watched: list[Value | None]
    prints: list[Value]


def random_trace(
    seed: int, *, watch: bool = False, collectives: bool = False, size: int = 40
) -> RandomTrace:
    """A random trace; with ``watch`` it prints values, and who computes them, as it goes."""
    return _Maker(random.Random(seed), watch, collectives, size).make()


@dataclass
class _Maker:
    rng: random.Random
    watch: bool
    collectives: bool
    size: int  # about how many statements may still come
    builder: Builder = field(default_factory=Builder)
    pools: list[list[Value]] = field(default_factory=list)
    counters: list[Value] = field(default_factory=list)
    results: list[tuple[DType, ...]] = field(default_factory=list)  # of the loops around
    carried: list[tuple[DType, ...]] = field(default_factory=list)
    watched: list[Value | None] = field(default_factory=list)
    prints: list[Value] = field(default_factory=list)

    def make(self) -> RandomTrace:
        rng = self.rng
        arrays = [
            Memory(Space.ARRAY, 0, Element.scalar(i32), (None, None)),  # never written
            Memory(Space.ARRAY, 1, Element.vector(f32, 3), (None,)),
            Memory(Space.ARRAY, 2, Element.scalar(i32), (None, None)),
            Memory(Space.ARRAY, 3, _MIXED, ()),
        ]
        self.memories = [
            *arrays,
            Memory(Space.SHARED, 0, Element.scalar(i32), (4, 2)),
            Memory(Space.LOCAL, 0, Element.scalar(f32), (3,)),
            Memory(Space.TABLE, 0, Element.scalar(i16), (5,), rng.randbytes(10)),
        ]
        view = rng.choice((0, 2))  # the third array may be the first one
        params = [
            ArrayParam("first", arrays[0], True, False, 0, 0),
            ArrayParam("points.xyz", arrays[1], False, True, 1, 1),
            ArrayParam("out", arrays[2], rng.random() < 0.5, False, 0, view),
            ArrayParam("strange name[0]", arrays[3], True, True, 3, 3),
        ]
        scalars = [ScalarParam("n", i32), ScalarParam("true", f32), ScalarParam("i", index)]
        workgroup = rng.choice(((4, 2, 1), (4, 1, 1), (8, 2, 2), (6, 3, 1)))
        options = Options(*(rng.random() < 0.5 for _ in range(4)))
        self.params = scalars
        body = self.region((), lambda: self.builder.end(rng.choice((Op.YIELD, Op.RETURN))))
        bits = rng.choice((32, 64))
        trace = Trace("random", tuple(params), tuple(scalars), workgroup, bits, options, body)
        return RandomTrace(trace, self.watched, self.prints)

    def region(self, params: tuple[DType, ...], end: Callable[[], object]) -> Region:
        """A region with random statements."""
        opened = self.builder.open(params)
        self.pools.append(list(opened))
        if params:
            self.counters.append(opened[0])
            self.leave_at_last(opened[0])
        for _ in range(self.rng.randint(0, 7) if len(self.pools) > 1 else self.size):
            if self.size <= 0:
                break
            self.size -= 1
            if not self.statement():
                break
        end()
        self.pools.pop()
        if params:
            self.counters.pop()
        return self.builder.close()

    def leave_at_last(self, counter: Value) -> None:
        """Break at an iteration that is the same for all, or not."""
        limit: Value = self.builder.const(i32, self.rng.randint(0, 4))
        if self.rng.random() < 0.4:
            mask = self.builder.const(i32, 3)
            limit = self.builder.pure(Op.AND, (self.pick(i32), mask))
        done = self.builder.pure(Op.GE, (counter, limit))
        self.builder.open()
        self.end_iteration(Op.BREAK)
        then = self.builder.close()
        self.builder.open()
        self.builder.end(Op.YIELD)
        self.builder.if_(done, then, self.builder.close())

    def end_iteration(self, op: Op) -> None:
        if op is Op.BREAK:
            self.builder.end(op, tuple(self.pick(dtype) for dtype in self.results[-1]))
            return
        one = self.builder.const(i32, 1)
        following = self.builder.pure(Op.ADD, (self.counters[-1], one))
        rest = tuple(self.pick(dtype) for dtype in self.carried[-1][1:])
        self.builder.end(op, (following, *rest))

    # Values.

    def pick(self, dtype: DType) -> Value:
        """A value of a type that exists here."""
        rng, builder = self.rng, self.builder
        for _ in range(4):
            pool = rng.choice(self.pools)
            if pool:
                value = rng.choice(pool)
                return value if value.dtype is dtype else self.converted(value, dtype)
        if rng.random() < 0.5:
            return self.converted(self.leaf(), dtype)
        if dtype.is_float:
            bits = rng.choice((0, 1 << 31, 0x7F800000, 0x7FC00000, rng.getrandbits(32)))
            return builder.const_bits(dtype, bits)
        low, high = dtype.limits
        return builder.const(dtype, rng.choice((0, 1, 2, 3, low, high, rng.randint(low, high))))

    def converted(self, value: Value, dtype: DType) -> Value:
        if dtype is bool_:
            return self.builder.pure(Op.LT, (self.converted(value, i32), self.scalar(0)))
        return self.builder.cast(value, dtype)

    def scalar(self, number: int) -> Value:
        return self.builder.scalar(number, self.params[number].dtype)

    def leaf(self) -> Value:
        rng, builder = self.rng, self.builder
        choice = rng.randrange(8)
        if choice < 3:
            return builder.id(rng.choice(("global", "local")), rng.randrange(3))
        if choice == 3:
            return builder.id(rng.choice(("lane", "subgroup", "local_index", "subgroup_size")))
        if choice == 4:
            return builder.id(rng.choice(("workgroup", "num_workgroups")), rng.randrange(3))
        if choice == 5:
            return self.scalar(rng.randrange(3))
        memory = builder.memory(self.memories[rng.choice((0, 2))])
        if choice == 6:
            return builder.shape(memory, rng.randrange(2))
        return builder.stride(memory, rng.randrange(2))

    def pure(self) -> Value:
        rng, builder = self.rng, self.builder
        dtype = rng.choice(_INTEGERS)
        kind = rng.randrange(8)
        if kind < 3:
            affine = rng.choice((Op.ADD, Op.SUB, Op.MUL, Op.SHL))
            first, second = self.pick(dtype), self.pick(dtype)
            if rng.random() < 0.5:
                first = builder.cast(builder.id(rng.choice(("global", "lane"))), dtype)
            if rng.random() < 0.7:
                second = builder.const(dtype, rng.choice((0, 1, 2, 5, -3)))
            return builder.pure(affine, (first, second))
        if kind == 3:
            more = (Op.AND, Op.XOR, Op.MIN, Op.FLOORDIV, Op.MOD, Op.SHR, Op.MULHI)
            return builder.pure(rng.choice(more), (self.pick(dtype), self.pick(dtype)))
        if kind == 4:
            return builder.pure(rng.choice((Op.NEG, Op.NOT)), (self.pick(dtype),))
        if kind == 5:
            return builder.pure(Op.FMA, (self.pick(f32), self.pick(f32), self.pick(f32)))
        if kind == 6:
            condition = self.pick(bool_)
            return builder.select(condition, self.pick(dtype), self.pick(dtype))
        return builder.pure(rng.choice((Op.EQ, Op.LT)), (self.pick(dtype), self.pick(dtype)))

    def keep(self, value: Value) -> None:
        self.pools[-1].append(value)
        if self.watch:
            self.show(value)

    def show(self, value: Value | None) -> None:
        """Print who is here, at which iteration, and the value."""
        builder = self.builder
        who = (builder.id("workgroup", k) for k in range(3))
        where = (*who, builder.id("subgroup"), builder.id("lane"))
        shown = () if value is None else (value,)
        operands = (*where, *shown, *self.counters)
        text = " ".join([str(len(self.watched)), *("{}" for _ in operands)])
        self.prints.append(builder.effect(Op.PRINT, operands, Note(text)))
        self.watched.append(value)

    # Statements.

    def statement(self) -> bool:
        """One statement; False where nothing can follow it."""
        choice = self.rng.randrange(12)
        if choice < 5:
            self.keep(self.pure())
        elif choice < 7:
            self.access()
        elif choice == 7 and len(self.pools) < 6:
            self.loop()
        elif choice < 11 and len(self.pools) < 6:
            return self.branch()
        elif self.collectives:
            self.collective()
        elif self.watch:
            self.show(None)
        else:
            condition = self.pick(bool_)
            self.builder.effect(Op.ASSERT, (condition, condition), Note('a "note"\n{}', 3))
        return True

    def collective(self) -> None:
        builder = self.builder
        name = self.rng.choice(("add", "any", "exclusive_add", "broadcast", "elect", "barrier"))
        if name == "barrier":
            builder.effect(Op.BARRIER, (), self.rng.choice(("workgroup", "storage", "subgroup")))
        elif name == "elect":
            self.keep(builder.effect(Op.SUBGROUP, (), name, bool_))
        elif name == "any":
            self.keep(builder.effect(Op.SUBGROUP, (self.pick(bool_),), name, bool_))
        elif name == "broadcast":
            lane = builder.const(i32, self.rng.choice((0, 0, 1, 9)))
            self.keep(builder.effect(Op.SUBGROUP, (self.pick(i32), lane), name, i32))
        else:
            self.keep(builder.effect(Op.SUBGROUP, (self.pick(i32),), name, i32))

    def access(self) -> None:
        rng, builder = self.rng, self.builder
        memory = rng.choice(self.memories)
        leaf, dtype = rng.choice(memory.element.leaves)
        checked = memory.space is Space.ARRAY or rng.random() < 0.8
        indices = tuple(self.position(checked) for _ in memory.shape)
        what = builder.memory(memory)
        kind = rng.randrange(4)
        written = memory.space is not Space.TABLE and memory is not self.memories[0]
        if kind == 0 and written:
            builder.store(what, indices, self.pick(dtype), Access(leaf, checked))
        elif kind == 1 and written and dtype is i32:
            access = AtomicAccess(leaf, checked, kind=rng.choice(("add", "load", "exchange")))
            operands = () if access.kind == "load" else (self.pick(dtype),)
            self.keep(builder.effect(Op.ATOMIC, (what, *indices, *operands), access, dtype))
        else:
            self.keep(builder.load(what, indices, dtype, Access(leaf, checked)))

    def position(self, checked: bool) -> Value:
        if not checked:
            return self.builder.const(i32, self.rng.randrange(2))
        if self.rng.random() < 0.4:
            return self.builder.const(index, self.rng.randrange(6))
        return self.pick(self.rng.choice((i32, index, u32)))

    def types(self) -> tuple[DType, ...]:
        return tuple(self.rng.choice(_TYPES) for _ in range(self.rng.randrange(3)))

    def branch(self) -> bool:
        condition = self.pick(bool_)
        types = self.types()
        arms = []
        for _ in range(2):
            ends = [Op.YIELD] * 4
            if self.counters:
                ends += [Op.BREAK, Op.CONTINUE]
            if self.rng.random() < 0.2:
                ends.append(Op.RETURN)
            arms.append(self.region((), self.arm_end(self.rng.choice(ends), types)))
        yields = any(arm.end.op is Op.YIELD for arm in arms)
        for result in self.builder.if_(condition, arms[0], arms[1]):
            self.keep(result)
        return yields

    def arm_end(self, op: Op, types: tuple[DType, ...]) -> Callable[[], None]:
        def end() -> None:
            if op is Op.YIELD:
                self.builder.end(op, tuple(self.pick(dtype) for dtype in types))
            elif op is Op.RETURN:
                self.builder.end(op)
            else:
                self.end_iteration(op)

        return end

    def loop(self) -> None:
        carried = (i32, *self.types())
        results = self.types()
        zero = self.builder.const(i32, 0)
        initial = (zero, *(self.pick(dtype) for dtype in carried[1:]))
        self.carried.append(carried)
        self.results.append(results)
        ends = (Op.CONTINUE,) if self.rng.random() < 0.8 else (Op.BREAK,)
        body = self.region(carried, lambda: self.end_iteration(ends[0]))
        self.carried.pop()
        self.results.pop()
        for result in self.builder.loop(initial, body, results):
            self.keep(result)
