"""Random kernels whose results do not depend on the order in which invocations run.

Each invocation folds what it computes into its own element of ``out``; what they share are
counters that they add to atomically, and shared memory around barriers. Control flow is wild:
nested conditionals and loops that lanes leave by every way there is, at different times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, bool_, f32, i16, i32, i64, index, u8, u32
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Options,
    Region,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import Op

__all__ = ["COUNTERS", "INPUTS", "random_kernel"]

INPUTS: Final = 37  # elements of the array that is read
COUNTERS: Final = 5

_TYPES: Final = (i32, u32, i64, f32, bool_, u8)
_WORDS: Final = (i32, u32, i64)


def random_kernel(
    seed: int, workgroup: tuple[int, int, int] | None, *, barriers: bool = False, size: int = 45
) -> Trace:
    """A kernel (out: u32 per invocation, in: i32, counters: i32; n: i32, x: f32)."""
    return _Maker(random.Random(seed), workgroup, barriers, size).make()


@dataclass
class _Maker:
    rng: random.Random
    workgroup: tuple[int, int, int] | None
    barriers: bool
    size: int
    b: Builder = field(default_factory=Builder)
    pools: list[list[Value]] = field(default_factory=list)
    loops: list[tuple[tuple[DType, ...], tuple[DType, ...]]] = field(default_factory=list)
    counters: list[Value] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)  # all invocations go through the loop
    apart: int = 0  # depth of control flow that invocations may not go through together

    def make(self) -> Trace:
        self.out = Memory(Space.ARRAY, 0, Element.scalar(u32), (None,))
        self.input = Memory(Space.ARRAY, 1, Element.scalar(i32), (None,))
        self.count = Memory(Space.ARRAY, 2, Element.scalar(i32), (None,))
        self.local = Memory(Space.LOCAL, 0, Element.scalar(i32), (4,))
        self.pair = Memory(Space.LOCAL, 1, Element(8, 4, ((0, f32), (4, u8))), (3,))
        x, y, z = self.workgroup or (1, 1, 1)
        self.shared = Memory(Space.SHARED, 0, Element.scalar(i32), (x * y * z,))
        self.table = Memory(Space.TABLE, 0, Element.scalar(i16), (8,), self.rng.randbytes(16))
        body = self.region((), self.top)
        params = tuple(
            ArrayParam(name, memory, True, True, k, k)
            for k, (name, memory) in enumerate(
                (("out", self.out), ("input", self.input), ("count", self.count))
            )
        )
        scalars = (ScalarParam("n", i32), ScalarParam("x", f32))
        bits = self.rng.choice((32, 64))
        return Trace("random", params, scalars, self.workgroup, bits, Options(), body)

    def top(self) -> None:
        b = self.b
        for memory, dtype in ((self.local, i32), (self.pair, f32)):
            for k in range(memory.count):
                at = (b.const(index, k),)
                b.store(b.memory(memory), at, b.cast(b.id("global"), dtype), Access())
        for k in range(3):
            at = (b.const(index, k),)
            b.store(b.memory(self.pair), at, b.cast(b.id("global"), u8), Access(4))
        self.statements(self.size)
        if not b.ended:
            b.end(Op.YIELD)

    def region(self, params: tuple[DType, ...], fill: Callable[[], None]) -> Region:
        self.pools.append(list(self.b.open(params)))
        fill()
        self.pools.pop()
        return self.b.close()

    def statements(self, most: int) -> None:
        for _ in range(self.rng.randint(1, max(1, most))):
            if self.size <= 0 or self.b.ended:
                return
            self.size -= 1
            if not self.statement():
                return

    # Values.

    def pick(self, dtype: DType) -> Value:
        for _ in range(3):
            pool = self.rng.choice(self.pools)
            if pool:
                return self.converted(self.rng.choice(pool), dtype)
        return self.converted(self.leaf(), dtype)

    def converted(self, value: Value, dtype: DType) -> Value:
        if dtype is bool_ and value.dtype is not bool_:
            return self.b.pure(Op.LT, (self.converted(value, i32), self.leaf_of(i32)))
        return self.b.cast(value, dtype)

    def leaf_of(self, dtype: DType) -> Value:
        choice = self.rng.randrange(3)
        if choice == 0:
            return self.b.cast(self.b.scalar(0, i32), dtype)
        return self.b.const(dtype, self.rng.choice((0, 1, 2, 3, 7, 16, 40)))

    def leaf(self) -> Value:
        choice = self.rng.randrange(8)
        if choice < 3:
            return self.b.id("global", self.rng.choice((0, 0, 0, 1, 2)))
        if choice == 3:
            return self.b.scalar(1, f32)
        if choice == 4 and self.workgroup is not None:
            name = self.rng.choice(("local", "workgroup", "local_index", "num_workgroups"))
            return self.b.id(name, self.rng.randrange(3 if name != "local_index" else 1))
        if choice == 5:
            return self.b.shape(self.b.memory(self.input), 0)
        return self.leaf_of(self.rng.choice(_WORDS))

    def uniform(self, dtype: DType) -> Value:
        """A value that the whole workgroup has."""
        b = self.b
        value = b.pure(Op.ADD, (b.cast(b.scalar(0, i32), i32), b.const(i32, self.rng.randrange(4))))
        if self.workgroup is not None and self.rng.random() < 0.5:
            value = b.pure(Op.ADD, (value, b.cast(b.id("workgroup"), i32)))
        if self.rng.random() < 0.3:
            at = (b.const(index, self.rng.randrange(INPUTS)),)
            value = b.pure(Op.ADD, (value, b.load(b.memory(self.input), at, i32, Access())))
        return self.converted(value, dtype)

    def pure(self) -> Value:
        b, rng = self.b, self.rng
        dtype = rng.choice(_WORDS)
        kind = rng.randrange(9)
        if kind < 3:
            op = rng.choice((Op.ADD, Op.SUB, Op.MUL))
            return b.pure(op, (self.pick(dtype), self.pick(dtype)))
        if kind == 3:
            return b.pure(Op.ADD, (self.pick(index), b.const(index, rng.randint(-3, 3))))
        if kind == 4:
            ops = (Op.FLOORDIV, Op.MOD, Op.SHR, Op.AND, Op.XOR, Op.MIN, Op.MULHI)
            return b.pure(rng.choice(ops), (self.pick(dtype), self.pick(dtype)))
        if kind == 5:
            small = b.cast(b.pure(Op.AND, (self.pick(i32), b.const(i32, 255))), f32)
            return b.pure(rng.choice((Op.ADD, Op.MUL, Op.MIN)), (small, b.scalar(1, f32)))
        if kind == 6:
            return b.select(self.pick(bool_), self.pick(dtype), self.pick(dtype))
        if kind == 7:
            return b.pure(Op.AND, (self.pick(bool_), self.pick(bool_)))
        return b.pure(rng.choice((Op.LT, Op.EQ, Op.GE)), (self.pick(dtype), self.pick(dtype)))

    # Statements.

    def statement(self) -> bool:
        """One statement; False where nothing can follow it."""
        choice = self.rng.randrange(14)
        if choice < 3:
            self.pools[-1].append(self.pure())
        elif choice < 5:
            self.access()
        elif choice == 5:
            self.count_up()
        elif choice < 8 and len(self.pools) < 6:
            self.loop()
        elif choice < 11 and len(self.pools) < 6:
            return self.branch()
        elif choice == 11 and self.barriers and self.apart == 0:
            self.exchange()
        else:
            self.fold()
        return True

    def own(self) -> Value:
        """The number of this invocation."""
        b = self.b
        x, y, _ = self.workgroup or (1, 1, 1)
        width = b.pure(Op.MUL, (b.id("num_workgroups", 0), b.const(index, x)))
        height = b.pure(Op.MUL, (b.id("num_workgroups", 1), b.const(index, y)))
        row = b.pure(Op.ADD, (b.pure(Op.MUL, (b.id("global", 2), height)), b.id("global", 1)))
        return b.pure(Op.ADD, (b.pure(Op.MUL, (row, width)), b.id("global", 0)))

    def fold(self) -> None:
        """Mix a value into this invocation's result."""
        b, at = self.b, (self.own(),)
        memory = b.memory(self.out)
        old = b.load(memory, at, u32, Access())
        mixed = b.pure(Op.MUL, (old, b.const(u32, 0x9E3779B1)))
        value = self.pick(self.rng.choice(_TYPES))
        raw = b.bitcast(value, u32) if value.dtype is f32 else b.cast(value, u32)
        b.store(memory, at, b.pure(Op.ADD, (mixed, raw)), Access())

    def access(self) -> None:
        b, rng = self.b, self.rng
        kind = rng.randrange(6)
        if kind < 2:
            at = (self.pick(rng.choice((i32, index, u32))),)
            self.pools[-1].append(b.load(b.memory(self.input), at, i32, Access()))
        elif kind == 2:
            at = (b.pure(Op.AND, (self.pick(i32), b.const(i32, 7))),)
            self.pools[-1].append(b.load(b.memory(self.table), at, i16, Access(checked=False)))
        elif kind == 3:
            at = (self.pick(rng.choice((i32, index))),)
            b.store(b.memory(self.local), at, self.pick(i32), Access())
        elif kind == 4:
            at = (b.const(index, rng.randrange(3)),)
            if rng.random() < 0.5:
                at = (b.pure(Op.MOD, (self.pick(index), b.const(index, 3))),)
            leaf, dtype = rng.choice(((0, f32), (4, u8)))
            if rng.random() < 0.5:
                b.store(b.memory(self.pair), at, self.pick(dtype), Access(leaf))
            else:
                self.pools[-1].append(b.load(b.memory(self.pair), at, dtype, Access(leaf)))
        else:
            at = (self.pick(index),)
            self.pools[-1].append(b.load(b.memory(self.local), at, i32, Access()))

    def count_up(self) -> None:
        b = self.b
        at: tuple[Value, ...] = (b.const(index, self.rng.randrange(COUNTERS)),)
        if self.rng.random() < 0.5:
            at = (self.pick(i32),)
        kind = self.rng.choice(("add", "sub"))
        value = self.pick(i32)
        b.effect(Op.ATOMIC, (b.memory(self.count), *at, value), AtomicAccess(kind=kind), i32)

    def exchange(self) -> None:
        """Through shared memory, from another invocation of the workgroup."""
        b, shared = self.b, self.b.memory(self.shared)
        b.effect(Op.BARRIER, (), "workgroup")
        b.store(shared, (b.id("local_index"),), self.pick(i32), Access())
        b.effect(Op.BARRIER, (), self.rng.choice(("workgroup", "storage")))
        moved = b.pure(Op.ADD, (b.id("local_index"), b.const(index, self.rng.randrange(9))))
        at = b.pure(Op.MOD, (moved, b.const(index, self.shared.count)))
        self.pools[-1].append(b.load(shared, (at,), i32, Access()))

    def types(self) -> tuple[DType, ...]:
        return tuple(self.rng.choice(_TYPES) for _ in range(self.rng.randrange(4)))

    def branch(self) -> bool:
        together = self.rng.random() < 0.4
        condition = self.uniform(bool_) if together else self.pick(bool_)
        types = self.types()
        ways = []
        for _ in range(2):
            ends = [Op.YIELD] * 5
            if self.loops and self.may_leave(together):
                ends += [Op.BREAK, Op.CONTINUE]
            if self.rng.random() < 0.15 and not self.barriers:
                ends.append(Op.RETURN)
            ways.append(self.rng.choice(ends))
        if not together:
            self.apart += 1
        arms = [self.region((), self.arm(way, types)) for way in ways]
        if not together:
            self.apart -= 1
        self.pools[-1] += self.b.if_(condition, arms[0], arms[1])
        return Op.YIELD in ways

    def may_leave(self, together: bool) -> bool:
        """Whether a loop may be left from an arm: not one that all go through, by some."""
        return not self.barriers or not self.whole[-1] or (together and self.apart == 0)

    def arm(self, way: Op, types: tuple[DType, ...]) -> Callable[[], None]:
        def fill() -> None:
            self.statements(5)
            if self.b.ended:
                return
            if way is Op.YIELD:
                self.b.end(way, tuple(self.pick(dtype) for dtype in types))
            elif way is Op.RETURN:
                self.b.end(way)
            else:
                self.leave(way)

        return fill

    def leave(self, way: Op) -> None:
        carried, results = self.loops[-1]
        if way is Op.BREAK:
            self.b.end(way, tuple(self.pick(dtype) for dtype in results))
            return
        one = self.b.const(i32, 1)
        following = self.b.pure(Op.ADD, (self.counters[-1], one))
        self.b.end(way, (following, *(self.pick(dtype) for dtype in carried[1:])))

    def loop(self) -> None:
        b = self.b
        together = self.apart == 0 and (self.barriers or self.rng.random() < 0.4)
        carried, results = (i32, *self.types()), self.types()
        initial = (b.const(i32, 0), *(self.pick(dtype) for dtype in carried[1:]))
        if together:
            limit = b.pure(Op.AND, (self.uniform(i32), b.const(i32, 3)))
        else:
            limit = b.pure(Op.AND, (self.pick(i32), b.const(i32, self.rng.choice((3, 7)))))

        def body() -> None:
            counter = self.pools[-1][0]
            self.counters.append(counter)
            self.loops.append((carried, results))
            self.whole.append(together)
            self.apart += not together
            b.open()
            self.pools.append([])
            self.leave(Op.BREAK)
            self.pools.pop()
            then = b.close()
            b.open()
            b.end(Op.YIELD)
            b.if_(b.pure(Op.GE, (counter, limit)), then, b.close())
            self.statements(7)
            if not b.ended:
                self.leave(self.rng.choice((Op.CONTINUE, Op.CONTINUE, Op.CONTINUE, Op.BREAK)))
            self.apart -= not together
            self.loops.pop()
            self.whole.pop()
            self.counters.pop()

        region = self.region(carried, body)
        self.pools[-1] += b.loop(initial, region, results)
