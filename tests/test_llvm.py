"""The CPU code generator, run here on every level that this machine has, against the interpreter.

Pure operations have their own file, random kernels too.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from khaljit.backends.cpu.loader import load
from khaljit.codegen.llvm.assemble import assemble, disassembly
from khaljit.codegen.llvm.emit import LlvmEmitter
from khaljit.codegen.llvm.scan import scan
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import (
    DType,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    index,
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.errors import InternalError
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    ATOMICS,
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Options,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import Op
from tests.building import array_param, kernel
from tests.machine_code import AARCH64, HERE, X86_64, compile_object
from tests.running import Compiled, compile_trace, legal, levels_here

FREE = Access(checked=False)

every_level = pytest.mark.parametrize("level", levels_here())
few_levels = pytest.mark.parametrize("level", levels_here()[::3] or levels_here())


def when(builder: Builder, condition: Value, then: Callable[[], object]) -> None:
    """An ``if`` without results and without an else."""
    builder.open()
    then()
    if not builder.ended:
        builder.end(Op.YIELD)
    arm = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(condition, arm, builder.close())


def loop(
    builder: Builder,
    count: Value,
    carried: Sequence[Value],
    body: Callable[..., Sequence[Value]],
) -> tuple[Value, ...]:
    """``for k in range(count)`` over carried values."""
    types = tuple(value.type for value in carried)
    k, *params = builder.open((count.type, *types))
    when(
        builder,
        builder.pure(Op.GE, (k, count)),
        lambda: builder.end(Op.BREAK, tuple(params)),
    )
    following = body(k, *params)
    one = builder.const(count.type, 1)
    builder.end(Op.CONTINUE, (builder.pure(Op.ADD, (k, one)), *following))
    zero = builder.const(count.type, 0)
    return builder.loop((zero, *carried), builder.close(), types)


def agree(
    trace: Trace,
    arrays: Sequence[Array],
    scalars: Sequence[int | float] = (),
    groups: tuple[int, int, int] = (1, 1, 1),
    *,
    level: str,
) -> None:
    """A kernel leaves the same in its arrays as when it is interpreted."""
    compare(trace, compile_trace(trace, level), arrays, scalars, groups)


def compare(
    trace: Trace,
    compiled: Compiled,
    arrays: Sequence[Array],
    scalars: Sequence[int | float],
    groups: tuple[int, int, int],
) -> None:
    found, wanted = [a.copy() for a in arrays], [a.copy() for a in arrays]
    interpret(trace, wanted, list(scalars), groups, subgroup_size=compiled.program.lanes)
    compiled.run(found, scalars, groups, chunk=3)
    for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(got, want, f"array {k}")


# Lanes, tails and grids.


def scale_and_add(checked: bool, guarded: bool) -> Trace:
    params = [array_param(0, f32), array_param(1, f32, 1, 0)]

    def build(b: Builder) -> None:
        x, y = (b.memory(param.memory) for param in params)
        i = b.id("global")

        def body() -> None:
            access = Access(checked=checked)
            values = (b.load(x, (i,), f32, access), b.scalar(0, f32))
            product = b.pure(Op.MUL, values)
            b.store(y, (i,), b.pure(Op.ADD, (product, b.load(y, (i,), f32, access))), access)

        if guarded:
            when(b, b.pure(Op.LT, (i, b.shape(x, 0))), body)
        else:
            body()

    return kernel(build, params, [f32])


@every_level
@pytest.mark.parametrize(("checked", "guarded"), [(True, True), (True, False), (False, True)])
def test_nothing_outside_an_array_is_touched(level: str, checked: bool, guarded: bool) -> None:
    compiled = compile_trace(scale_and_add(checked, guarded), level)
    rng = np.random.default_rng()
    for count in (0, 1, 2, 15, 16, 17, 63, 64, 65, 200):
        whole = rng.random(count + 200, np.float32)
        x, y = rng.random(count, np.float32), whole[100 : 100 + count]
        want = whole.copy()
        want[100 : 100 + count] += x * np.float32(2.5)
        compiled.run([x, y], [2.5], (count + 70, 1, 1))
        np.testing.assert_array_equal(whole, want)


@every_level
def test_every_invocation_of_a_grid_of_three_axes_runs_once(level: str) -> None:
    params = [array_param(0, i32, 3)]

    def build(b: Builder) -> None:
        out = b.memory(params[0].memory)
        at = tuple(b.id("global", axis) for axis in (2, 1, 0))
        b.effect(
            Op.ATOMIC, (out, *at, b.const(i32, 1)), AtomicAccess(checked=False, kind="add"), i32
        )

    compiled = compile_trace(kernel(build, params), level)
    for shape in ((1, 1, 1), (2, 3, 70), (3, 1, 64), (5, 7, 3), (1, 2, 129)):
        for chunk in (1, 2, 1000):
            out = np.zeros(shape, np.int32)
            compiled.run([out], [], (shape[2], shape[1], shape[0]), chunk)
            assert (out == 1).all()


def test_items_may_be_taken_by_several_callers() -> None:
    """The counter is shared: what one call has taken, another leaves alone."""
    compiled = compile_trace(scale_and_add(True, False))
    x = np.ones(1000, np.float32)
    y = np.zeros(1000, np.float32)
    compiled.run([x, y], [1.0], (1000, 1, 1), chunk=1)
    assert (y == 1).all()


# Addresses.


def move(
    element: Element | DType, offset: Callable[[Builder, Value], Value], leaves: Sequence[int]
) -> tuple[Trace, list[ArrayParam]]:
    """out[f(i)] = in[f(i)] + 1 leaf by leaf."""
    params = [array_param(0, element), array_param(1, element, 1, 0)]
    types = dict(params[0].memory.element.leaves)

    def build(b: Builder) -> None:
        source, out = (b.memory(param.memory) for param in params)
        at = (offset(b, b.id("global")),)
        loaded = [b.load(source, at, types[leaf], Access(leaf)) for leaf in leaves]
        for leaf, value in zip(leaves, loaded, strict=True):
            more = b.pure(Op.ADD, (value, b.const(value.type, 1)))
            b.store(out, at, more, Access(leaf))

    return kernel(build, params, [i32]), params


OFFSETS: dict[str, Callable[[Builder, Value], Value]] = {
    "i": lambda b, i: i,
    "i + 3": lambda b, i: b.pure(Op.ADD, (i, b.const(index, 3))),
    "i - 3": lambda b, i: b.pure(Op.SUB, (i, b.const(index, 3))),
    "2 i": lambda b, i: b.pure(Op.MUL, (i, b.const(index, 2))),
    "3 i + 1": lambda b, i: b.pure(
        Op.ADD, (b.pure(Op.MUL, (i, b.const(index, 3))), b.const(index, 1))
    ),
    "99 - i": lambda b, i: b.pure(Op.SUB, (b.const(index, 99), i)),
    "9 i": lambda b, i: b.pure(Op.MUL, (i, b.const(index, 9))),
    "i ^ 5": lambda b, i: b.pure(Op.XOR, (i, b.const(index, 5))),
}
MIXED = Element(16, 4, ((0, f32), (4, i32), (8, u8), (12, f32)))


@pytest.mark.parametrize("offset", list(OFFSETS))
@pytest.mark.parametrize(
    ("element", "leaves"),
    [
        (f32, (0,)),
        (u8, (0,)),
        (i64, (0,)),
        (Element.vector(f32, 2), (0, 4)),
        (Element.vector(f32, 3), (0, 4, 8)),
        (Element.vector(f32, 3), (8, 0)),
        (Element.vector(u8, 4), (0, 1, 2, 3)),
        (Element.vector(f64, 3), (16, 8, 0)),
        (Element(8, 4, ((0, f32), (4, i32))), (0, 4)),
        (MIXED, (0, 4, 8, 12)),
    ],
    ids=["f32", "u8", "i64", "vec2", "vec3", "two of vec3", "u8x4", "dvec3", "pair", "mixed"],
)
def test_elements_are_moved_whatever_the_distance_of_lanes(
    element: Element | DType, leaves: tuple[int, ...], offset: str
) -> None:
    trace, params = move(element, OFFSETS[offset], leaves)
    rng = np.random.default_rng()
    size = params[0].memory.element.size
    compiled = compile_trace(trace, rng.choice(levels_here()[-2:]))
    for count in (1, 70, 150):
        source, out = (rng.integers(0, 200, (count, size), np.uint8) for _ in range(2))
        if params[0].memory.element.leaves[0][1].is_float:  # no NaN, whose bits are not defined
            source[:] = 1
        compare(trace, compiled, [source, out], [0], (count, 1, 1))


@every_level
def test_strides_of_views_are_run_time_values(level: str) -> None:
    params = [array_param(0, f32, 2), array_param(1, f32, 2, 0)]
    params = [
        ArrayParam(p.name, p.memory, False, False, p.same_shape, k) for k, p in enumerate(params)
    ]

    def build(b: Builder) -> None:
        source, out = (b.memory(param.memory) for param in params)
        at = (b.id("global", 1), b.id("global", 0))
        b.store(out, at, b.load(source, at, f32, Access()), Access())

    rng = np.random.default_rng()
    source, out = rng.random((40, 90), np.float32), np.zeros((100, 100), np.float32)
    compiled = compile_trace(kernel(build, params), level)
    for view in (source[::2, ::3], source[::-1, 5:80:2], source.T, source[3:4, ::-1]):
        target = out.T[: view.shape[0], : view.shape[1]]
        out[:] = 0
        compiled.run([view, target], [], (view.shape[1] + 3, view.shape[0] + 1, 1))
        np.testing.assert_array_equal(target, view)
        assert np.count_nonzero(out) == np.count_nonzero(view)


@every_level
def test_offsets_beyond_32_bits_are_exact(level: str) -> None:
    """A stride that takes two elements four gigabytes apart, over memory that is hardly touched."""
    params = [array_param(0, u8, 2)]
    params = [ArrayParam("a", params[0].memory, True, True, 0, 0)]

    def build(b: Builder) -> None:
        a = b.memory(params[0].memory)
        b.store(a, (b.id("global", 1), b.id("global", 0)), b.const(u8, 7), Access())

    far = np.zeros(3 * (1 << 31) + 10, np.uint8)  # pages that nobody touches take no memory
    view = np.lib.stride_tricks.as_strided(far, (4, 5), (1 << 31, 1))
    compile_trace(kernel(build, params, index_bits=64), level).run([view], [], (5, 4, 1))
    assert (view == 7).all()


@every_level
def test_the_last_of_several_lanes_that_store_to_one_place_stays(level: str) -> None:
    params = [array_param(0, i32), array_param(1, i32)]

    def build(b: Builder) -> None:
        a, limit = (b.memory(param.memory) for param in params)
        i, zero = b.id("global"), b.const(index, 0)
        bound = b.load(limit, (zero,), i32, Access())
        when(
            b,
            b.pure(Op.LT, (b.cast(i, i32), bound)),
            lambda: b.store(a, (zero,), b.cast(i, i32), Access()),
        )

    compiled = compile_trace(kernel(build, params), level)
    for count in (0, 1, 7, 33, 64, 65):
        out = np.full(1, -1, np.int32)
        compiled.run([out, np.array([count], np.int32)], [], (90, 1, 1))
        assert out[0] == count - 1


@every_level
def test_tables_are_read_where_lanes_ask(level: str) -> None:
    data = np.arange(100, 117, dtype=np.int16)
    params = [array_param(0, i16)]

    def build(b: Builder) -> None:
        table = b.memory(Memory(Space.TABLE, 0, Element.scalar(i16), (17,), data.tobytes()))
        i = b.id("global")
        at = b.pure(Op.MOD, (b.pure(Op.MUL, (i, i)), b.const(index, 17)))
        value = b.pure(
            Op.ADD, (b.load(table, (at,), i16, FREE), b.load(table, (i,), i16, Access()))
        )
        b.store(b.memory(params[0].memory), (i,), value, FREE)

    agree(kernel(build, params), [np.zeros(77, np.int16)], (), (77, 1, 1), level=level)


# Control flow by hand; random kernels have the rest.


@every_level
def test_lanes_leave_loops_at_their_own_time(level: str) -> None:
    """Collatz: the lanes' numbers of steps differ widely, and all values are carried."""
    params = [array_param(0, i32)]

    def build(b: Builder) -> None:
        i = b.id("global")
        n, steps = b.open((i32, i32))
        when(b, b.pure(Op.LE, (n, b.const(i32, 1))), lambda: b.end(Op.BREAK, (steps,)))
        more = b.pure(Op.ADD, (steps, b.const(i32, 1)))
        odd = b.pure(Op.NE, (b.pure(Op.AND, (n, b.const(i32, 1))), b.const(i32, 0)))
        tripled = b.pure(Op.ADD, (b.pure(Op.MUL, (n, b.const(i32, 3))), b.const(i32, 1)))
        when(b, odd, lambda: b.end(Op.CONTINUE, (tripled, more)))
        b.end(Op.CONTINUE, (b.pure(Op.SHR, (n, b.const(i32, 1))), more))
        body = b.close()
        (count,) = b.loop((b.cast(i, i32), b.const(i32, 0)), body, (i32,))
        b.store(b.memory(params[0].memory), (i,), count, Access())

    agree(kernel(build, params), [np.zeros(501, np.int32)], (), (520, 1, 1), level=level)


@every_level
def test_a_loop_that_cannot_continue_runs_once(level: str) -> None:
    params = [array_param(0, i32)]

    def build(b: Builder) -> None:
        i = b.id("global")
        (x,) = b.open((i32,))
        when(b, b.pure(Op.LT, (x, b.const(i32, 20))), lambda: b.end(Op.BREAK, (b.const(i32, -1),)))
        b.end(Op.BREAK, (x,))
        body = b.close()
        (found,) = b.loop((b.cast(i, i32),), body, (i32,))
        b.store(b.memory(params[0].memory), (i,), found, Access())

    agree(kernel(build, params), [np.zeros(70, np.int32)], (), (70, 1, 1), level=level)


@every_level
def test_lanes_that_returned_in_a_loop_do_nothing_more(level: str) -> None:
    params = [array_param(0, i32)]

    def build(b: Builder) -> None:
        i, out = b.id("global"), b.memory(params[0].memory)
        limit = b.pure(Op.AND, (b.cast(i, i32), b.const(i32, 15)))

        def body(k: Value, total: Value) -> Sequence[Value]:
            when(b, b.pure(Op.EQ, (k, limit)), lambda: b.end(Op.RETURN))
            return (b.pure(Op.ADD, (total, k)),)

        (total,) = loop(b, b.const(i32, 9), (b.const(i32, 100),), body)
        b.store(out, (i,), total, Access())

    agree(kernel(build, params), [np.zeros(99, np.int32)], (), (99, 1, 1), level=level)


# Workgroups.


def tiled_product(tile: int) -> tuple[Trace, list[ArrayParam]]:
    """Matrix product through tiles in shared memory, with barriers in a loop."""
    params = [array_param(k, f32, 2) for k in range(3)]
    tiles = [Memory(Space.SHARED, k, Element.scalar(f32), (tile, tile)) for k in range(2)]

    def build(b: Builder) -> None:
        left, right, out = (b.memory(param.memory) for param in params)
        a, c = (b.memory(memory) for memory in tiles)
        x, y = b.id("local", 0), b.id("local", 1)
        row, column = b.id("global", 1), b.id("global", 0)
        size = b.const(index, tile)
        inner = b.shape(left, 1)
        steps = b.pure(Op.FLOORDIV, (b.pure(Op.ADD, (inner, b.const(index, tile - 1))), size))

        def step(t: Value, total: Value) -> Sequence[Value]:
            first = b.pure(Op.MUL, (t, size))
            across = b.load(left, (row, b.pure(Op.ADD, (first, x))), f32, Access())
            down = b.load(right, (b.pure(Op.ADD, (first, y)), column), f32, Access())
            b.store(a, (y, x), across, FREE)
            b.store(c, (y, x), down, FREE)
            b.effect(Op.BARRIER, (), "workgroup")

            def add(k: Value, partial: Value) -> Sequence[Value]:
                values = (b.load(a, (y, k), f32, FREE), b.load(c, (k, x), f32, FREE))
                return (b.pure(Op.ADD, (partial, b.pure(Op.MUL, values))),)

            (more,) = loop(b, size, (total,), add)
            b.effect(Op.BARRIER, (), "workgroup")
            return (more,)

        (total,) = loop(b, steps, (b.const(f32, 0),), step)
        b.store(out, (row, column), total, Access())

    return kernel(build, params, workgroup=(tile, tile, 1)), params


@every_level
@pytest.mark.parametrize("tile", [3, 4, 8, 16])
def test_a_product_through_shared_tiles_is_right(level: str, tile: int) -> None:
    trace, _ = tiled_product(tile)
    rng = np.random.default_rng()
    a, c = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((37, 21), (21, 45)))
    out = np.zeros((37, 45), np.float32)
    groups = (-(-45 // tile), -(-37 // tile), 1)
    compile_trace(trace, level).run([a, c, out], [], groups)
    np.testing.assert_array_equal(out, a @ c)


@every_level
@pytest.mark.parametrize("lanes", [(8, 1, 1), (8, 1, 4), (4, 2, 2), (2, 1, 4)])
def test_rows_of_lanes_share_what_they_read(level: str, lanes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng()
    a, c = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((37, 21), (21, 45)))
    out = np.zeros((37, 45), np.float32)
    compile_trace(tiled_product(8)[0], level, lanes).run([a, c, out], [], (6, 5, 1))
    np.testing.assert_array_equal(out, a @ c)


def plain_product() -> Trace:
    """Matrix product, an element an invocation, guarded by hand."""
    params = [array_param(k, f32, 2) for k in range(3)]

    def build(b: Builder) -> None:
        left, right, out = (b.memory(param.memory) for param in params)
        x, y = b.id("global", 0), b.id("global", 1)

        def body() -> None:
            def add(k: Value, total: Value) -> Sequence[Value]:
                values = (b.load(left, (y, k), f32, FREE), b.load(right, (k, x), f32, FREE))
                return (b.pure(Op.ADD, (total, b.pure(Op.MUL, values))),)

            (total,) = loop(b, b.shape(left, 1), (b.const(f32, 0),), add)
            b.store(out, (y, x), total, FREE)

        across = b.pure(Op.LT, (x, b.shape(out, 1)))
        when(b, b.pure(Op.AND, (across, b.pure(Op.LT, (y, b.shape(out, 0))))), body)

    return kernel(build, params)


@every_level
def test_a_product_without_workgroups_runs_in_rows(level: str) -> None:
    compiled = compile_trace(plain_product(), level)
    assert compiled.program.item[1] > 1
    rng = np.random.default_rng()
    for height, width in ((37, 45), (1, 300), (6, 64), (4, 1)):
        a = rng.integers(-9, 9, (height, 21)).astype(np.float32)
        c = rng.integers(-9, 9, (21, width)).astype(np.float32)
        whole = np.full((height + 2, width), 7, np.float32)
        out = whole[1:-1]
        compiled.run([a, c, out], [], (width + 5, height + 3, 1))
        np.testing.assert_array_equal(out, a @ c)
        assert (whole[[0, -1]] == 7).all()


def test_what_barriers_part_is_combined_before_it_is_kept() -> None:
    """Of a tiled product only the sum lives across barriers, not what it is made of."""
    trace = legal(tiled_product(16)[0], "x86-64-v4", optimised=True)
    program = LlvmEmitter(CpuTarget("x86-64-v4"), (16, 1, 1)).emit(trace)
    tiles, sums = 2 * 16 * 16 * 4, 16 * 16 * 4
    assert program.arena <= tiles + 3 * sums


@every_level
def test_values_and_local_arrays_live_across_barriers(level: str) -> None:
    params = [array_param(0, i64), array_param(1, i64)]
    shared = Memory(Space.SHARED, 0, Element.scalar(i64), (96,))
    local = Memory(Space.LOCAL, 0, Element.scalar(i64), (3,))

    def build(b: Builder) -> None:
        out, source = (b.memory(param.memory) for param in params)
        own, both = b.memory(local), b.memory(shared)
        i, k = b.id("global"), b.id("local_index")
        loaded = b.load(source, (i,), i64, Access())
        squared = b.pure(Op.MUL, (loaded, loaded))
        for slot in range(3):
            b.store(own, (b.const(index, slot),), b.pure(Op.ADD, (squared, b.cast(k, i64))), FREE)
        b.store(both, (k,), squared, FREE)
        b.effect(Op.BARRIER, (), "workgroup")
        opposite = b.load(both, (b.pure(Op.SUB, (b.const(index, 95), k)),), i64, FREE)
        b.effect(Op.BARRIER, (), "workgroup")
        slot_ = b.pure(Op.MOD, (k, b.const(index, 3)))
        kept = b.load(own, (slot_,), i64, FREE)
        total = b.pure(Op.ADD, (b.pure(Op.SUB, (kept, opposite)), squared))
        b.store(out, (i,), total, Access())

    rng = np.random.default_rng()
    source = rng.integers(-99, 99, 400)
    trace = kernel(build, params, workgroup=(96, 1, 1))
    agree(trace, [np.zeros(400, np.int64), source], (), (5, 1, 1), level=level)


# Atomics.


@few_levels
@pytest.mark.parametrize("space", [Space.ARRAY, Space.SHARED], ids=["array", "shared"])
@pytest.mark.parametrize("dtype", [i8, u16, i32, u32, i64, u64, f32, f64], ids=lambda t: t.name)
def test_atomics_do_and_give_what_they_should(level: str, dtype: DType, space: Space) -> None:
    """One after another over lanes, at places where lanes meet, some of them out of bounds."""
    kinds = [k for k in ATOMICS if not (dtype.is_float and k in ("and", "or", "xor"))]
    outs = [array_param(1 + k, dtype) for k in range(len(kinds))]
    cells = [array_param(1 + len(kinds) + k, dtype) for k in range(len(kinds))]
    params = [array_param(0, i32), *outs, *cells]

    def build(b: Builder) -> None:
        i = b.id("global")
        at = b.load(b.memory(params[0].memory), (i,), i32, Access())
        small = b.pure(Op.MOD, (b.cast(i, i32), b.const(i32, 5)))
        each = b.pure(Op.MOD, (i, b.const(index, 7)))
        for k, kind in enumerate(kinds):
            cell = b.memory(cells[k].memory)
            target = cell
            if space is Space.SHARED:
                target = b.memory(Memory(Space.SHARED, k, Element.scalar(dtype), (7,)))
                b.store(target, (each,), b.load(cell, (each,), dtype, Access()), FREE)
                b.effect(Op.BARRIER, (), "workgroup")
            operands = (b.cast(small, dtype), b.cast(at, dtype))[: ATOMICS[kind]]
            old = b.effect(Op.ATOMIC, (target, at, *operands), AtomicAccess(kind=kind), dtype)
            b.store(b.memory(outs[k].memory), (i,), old, Access())
            if space is Space.SHARED:
                b.effect(Op.BARRIER, (), "workgroup")
                b.store(cell, (each,), b.load(target, (each,), dtype, FREE), Access())

    rng = np.random.default_rng()
    where = rng.integers(-1, 8, 70).astype(np.int32)
    arrays = [where, *(np.zeros(70, dtype.numpy) for _ in kinds)]
    arrays += [rng.integers(0, 5, 7).astype(dtype.numpy) for _ in kinds]
    agree(kernel(build, params, workgroup=(70, 1, 1)), arrays, level=level)


@every_level
@pytest.mark.parametrize("kind", ["add", "sub", "min", "max", "and", "or", "xor"])
def test_an_atomic_at_one_place_counts_every_active_lane(level: str, kind: str) -> None:
    params = [array_param(0, i32), array_param(1, i32)]

    def build(b: Builder) -> None:
        out, source = (b.memory(param.memory) for param in params)
        i = b.id("global")
        x = b.load(source, (i,), i32, Access())

        def count() -> None:
            access = AtomicAccess(kind=kind)
            b.effect(Op.ATOMIC, (out, b.const(index, 1), x), access, i32)
            b.effect(Op.ATOMIC, (out, b.const(index, 9), x), access, i32)  # out of bounds

        when(b, b.pure(Op.GT, (x, b.const(i32, 3))), count)

    rng = np.random.default_rng()
    arrays = [np.full(3, 5, np.int32), rng.integers(-9, 99, 150).astype(np.int32)]
    agree(kernel(build, params), arrays, (), (150, 1, 1), level=level)


# Subgroups.


@few_levels
@pytest.mark.parametrize("size", [1, 2, 8, 24, 64])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
def test_collectives_see_the_active_lanes(level: str, size: int, masked: bool) -> None:
    names = ["add", "mul", "min", "max", "and", "or", "xor"]
    names += [f"{kind}_{name}" for kind in ("inclusive", "exclusive") for name in names[:4]]
    names += ["broadcast_first", "any", "all", "ballot", "elect"]
    if not masked:
        names += ["broadcast", "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down"]
    params = [array_param(0, i32)] + [array_param(1 + k, i32) for k in range(len(names))]

    def build(b: Builder) -> None:
        i = b.id("global")
        x = b.load(b.memory(params[0].memory), (i,), i32, Access())

        def all_of_them() -> None:
            for param, name in zip(params[1:], names, strict=True):
                b.store(b.memory(param.memory), (i,), collective(b, name, x), Access())

        if masked:
            when(b, b.pure(Op.GT, (x, b.const(i32, 0))), all_of_them)
        else:
            all_of_them()

    rng = np.random.default_rng()
    x = rng.integers(-5, 9, 3 * size).astype(np.int32)
    arrays = [x, *(np.zeros(3 * size, np.int32) for _ in names)]
    trace = kernel(build, params, workgroup=(size, 1, 1))
    agree(trace, arrays, (), (3, 1, 1), level=level)


def collective(b: Builder, name: str, x: Value) -> Value:
    """A subgroup operation on a value, as an i32."""
    lane = b.cast(b.id("lane"), i32)
    if name in ("any", "all", "ballot"):
        even = b.pure(Op.EQ, (b.pure(Op.AND, (x, b.const(i32, 1))), b.const(i32, 0)))
        result = u32 if name == "ballot" else bool_
        return b.cast(b.effect(Op.SUBGROUP, (even,), name, result), i32)
    if name == "elect":
        return b.cast(b.effect(Op.SUBGROUP, (), name, bool_), i32)
    operands: tuple[Value, ...] = (x,)
    if name == "broadcast":
        operands = (x, b.const(i32, 0))
    elif name == "shuffle":
        operands = (x, b.pure(Op.SUB, (b.const(i32, 5), lane)))
    elif name.startswith("shuffle"):
        operands = (x, b.pure(Op.AND, (lane, b.const(i32, 3))))
    return b.effect(Op.SUBGROUP, operands, name, i32)


@every_level
def test_scans_of_floats_keep_zeros_and_skip_nan(level: str) -> None:
    names = ["min", "max", "inclusive_min", "exclusive_max", "exclusive_min"]
    params = [array_param(0, f32)] + [array_param(1 + k, f32) for k in range(len(names))]

    def build(b: Builder) -> None:
        i = b.id("global")
        x = b.load(b.memory(params[0].memory), (i,), f32, Access())
        for param, name in zip(params[1:], names, strict=True):
            found = b.effect(Op.SUBGROUP, (x,), name, f32)
            b.store(b.memory(param.memory), (i,), found, Access())

    x = np.array([np.nan, 3, -0.0, 0.0, np.inf, -7, 2, np.nan] * 2, np.float32)
    arrays = [x, *(np.zeros(16, np.float32) for _ in names)]
    agree(kernel(build, params, workgroup=(8, 1, 1)), arrays, (), (2, 1, 1), level=level)


# Asserts.


# The environment, and the object code.


# Per processor: what sets and gets the control word, the word that flushes subnormals to zero and
# rounds up, and the bits of it that only tell what happened.
CONTROL = {
    X86_64: (
        """
define void @set(i64 %word) {
  %at = alloca i32
  %low = trunc i64 %word to i32
  store i32 %low, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}
define i64 @get() {
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %low = load i32, ptr %at
  %word = zext i32 %low to i64
  ret i64 %word
}
""",
        0x1F80 | 0x8040 | 0x4000,
        0x3F,
    ),
    AARCH64: (
        """
define void @set(i64 %word) {
  call void @llvm.aarch64.set.fpcr(i64 %word)
  ret void
}
define i64 @get() {
  %word = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %word
}
""",
        1 << 24 | 1 << 22,
        0,
    ),
}


def test_the_floating_point_environment_is_set_and_given_back() -> None:
    """Under flushing to zero and rounding up, subnormals are kept, and the word comes back."""
    text, odd, flags = CONTROL[HERE]
    image = load(compile_object(text))
    put = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(image.address("set"))
    get = ctypes.CFUNCTYPE(ctypes.c_uint64)(image.address("get"))
    trace = scale_and_add(False, True)
    compiled = compile_trace(trace)
    x, y = np.full(70, 1e-40, np.float32), np.zeros(70, np.float32)
    before = get()
    try:
        put(odd)
        compiled.run([x, y], [0.5], (70, 1, 1))
        after = get()
    finally:
        put(before)
    assert after & ~flags == odd & ~flags
    np.testing.assert_array_equal(y, np.full(70, 5e-41, np.float32))


@every_level
def test_one_thread_takes_all_items_without_the_counter(level: str) -> None:
    compiled = compile_trace(scale_and_add(False, True), level)
    x = np.arange(200, dtype=np.float32)
    for count in (0, 1, 200):
        y = np.zeros(200, np.float32)
        total = compiled.items((count, 1, 1))
        left = compiled.run([x[:count], y[:count]], [2.0], (count, 1, 1), chunk=total)
        assert left == 0
        np.testing.assert_array_equal(y, np.where(x < count, 2 * x, 0))


@pytest.mark.parametrize("system", ["linux", "win32", "darwin"])
@pytest.mark.parametrize("level", list(LEVELS))
def test_object_code_for_every_processor_is_whole(level: str, system: str) -> None:
    target = CpuTarget(level, system=system)
    for trace in (scale_and_add(True, True), tiled_product(8)[0]):
        program = LlvmEmitter(target).emit(legal(trace, level, optimised=True))
        code = assemble(program.text, target)
        assert code.startswith(b"\x7fELF")
        assert code == assemble(program.text, target)


def test_the_same_trace_gives_the_same_text() -> None:
    target = CpuTarget("x86-64-v4")
    texts = {LlvmEmitter(target).emit(legal(tiled_product(8)[0], target.level)).text for _ in "ab"}
    assert len(texts) == 1


def test_products_and_sums_are_not_fused() -> None:
    target = CpuTarget("x86-64-v3")
    text = LlvmEmitter(target).emit(legal(scale_and_add(False, True), target.level)).text
    assembly = disassembly(text, target)
    assert "vmulps" in assembly
    assert "fmadd" not in assembly


@every_level
def test_fastmath_approximates_quotients_and_roots(level: str) -> None:
    params = [array_param(0, f32), array_param(1, f32, 1, 0)]

    def build(b: Builder) -> None:
        x, y = (b.memory(param.memory) for param in params)
        i = b.id("global")
        root = b.pure(Op.SQRT, (b.load(x, (i,), f32, Access()),))
        b.store(y, (i,), b.pure(Op.DIV, (b.const(f32, 1), root)), Access())

    fast = kernel(build, params, options=Options(fastmath=True))
    x = np.random.default_rng().random(500, np.float32) + np.float32(0.01)
    y = np.zeros(500, np.float32)
    compile_trace(fast, level).run([x, y], [], (500, 1, 1))
    np.testing.assert_allclose(y, 1 / np.sqrt(x), rtol=1e-6)
    target = CpuTarget(level)
    texts = [
        disassembly(LlvmEmitter(target).emit(legal(trace, level)).text, target)
        for trace in (fast, kernel(build, params))
    ]
    assert re.search("sqrtps|fsqrt", texts[1])
    assert "rsqrt" in texts[0]
    assert "rsqrt" not in texts[1]


def test_estimates_are_refined_as_often_as_they_need() -> None:
    """Those of AArch64 have 8 bits, so that one step leaves 1e-5."""
    params = [array_param(0, f32)]

    def build(b: Builder) -> None:
        x, i = b.memory(params[0].memory), b.id("global")
        root = b.pure(Op.SQRT, (b.load(x, (i,), f32, Access()),))
        b.store(x, (i,), b.pure(Op.DIV, (b.const(f32, 1), root)), Access())

    target = CpuTarget("aarch64")
    fast = legal(kernel(build, params, options=Options(fastmath=True)), target.level)
    text = disassembly(LlvmEmitter(target).emit(fast).text, target)
    assert text.count("frsqrts") == 2 * text.count("frsqrte") > 0


def test_what_is_joined_to_a_minimum_signals_nothing() -> None:
    """On AArch64 the minimum of a signalling NaN is NaN, and LLVM looks at a minimum here."""
    params = [array_param(0, f32), array_param(1, f32), array_param(2, bool_)]

    def build(b: Builder) -> None:
        x, y, out = (b.memory(param.memory) for param in params)
        i, limit = b.id("global"), b.const(f32, 0.5)
        less = [b.pure(Op.LT, (b.load(one, (i,), f32, Access()), limit)) for one in (x, y)]
        b.store(out, (i,), b.pure(Op.OR, (less[0], less[1])), Access())

    target = CpuTarget("aarch64")
    text = LlvmEmitter(target, (4, 1, 1)).emit(legal(kernel(build, params), target.level)).text
    joined = re.findall(r"fminnm\s+\S+, (\S+), (\S+)\n", disassembly(text, target))
    quieted = sum(one == other for one, other in joined)
    assert quieted == 2 * (len(joined) - quieted) > 0


def test_checked_accesses_cost_nothing_in_full_subgroups() -> None:
    """One version without masks: the unmasked stores are there, guarded by scalar comparisons."""
    target = CpuTarget("x86-64-v4")
    text = (
        LlvmEmitter(target, (16, 1, 1)).emit(legal(scale_and_add(True, False), target.level)).text
    )
    assert "store <16 x float>" in text
    assert text.count("@llvm.masked.store") == 1


def test_calls_and_foreign_symbols_are_refused() -> None:
    text = """
declare float @cosf(float)
define float @f(float %x) {
  %y = call float @cosf(float %x)
  ret float %y
}
"""
    with pytest.raises(InternalError, match="cosf"):
        scan(compile_object(text))


def test_writable_data_is_refused() -> None:
    text = "@count = global i32 5\ndefine i32 @f() {\n %y = load i32, ptr @count\n ret i32 %y\n}"
    with pytest.raises(InternalError):
        scan(compile_object(text))


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(InternalError, match="ELF"):
        scan(b"MZ\x00\x00")


def test_text_that_llvm_refuses_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="LLVM refuses"):
        assemble("define void @f() { ret i32 1 }", CpuTarget("x86-64-v3"))


def test_half_floats_are_moved_and_converted() -> None:
    params = [array_param(0, f16), array_param(1, f16)]

    def build(b: Builder) -> None:
        source, out = (b.memory(param.memory) for param in params)
        i = b.id("global")
        x = b.load(source, (i,), f16, Access())
        b.store(out, (i,), b.pure(Op.ADD, (x, b.const(f16, 1))), Access())

    rng = np.random.default_rng()
    arrays = [rng.random(70).astype(np.float16), np.zeros(70, np.float16)]
    agree(kernel(build, params), arrays, (), (70, 1, 1), level=levels_here()[-1])
