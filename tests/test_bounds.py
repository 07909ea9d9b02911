"""Checks are cleared where kernels are guarded, and nowhere else.

Each case is a kernel's body with accesses; those proven in bounds are counted. Random kernels,
whose cleared accesses are watched while they run, look for a proof that is wrong.
"""

from __future__ import annotations

import random
import textwrap
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from khaljit.tracer.build import Builder, constant
from khaljit.tracer.dtypes import DType, bool_, i16, i32, i64, index, u8, u32
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Access, Element, Memory, Note, Space, Trace, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.passes.bounds import bounds
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.passes.lower_access import lower_access
from khaljit.tracer.passes.pipeline import PIPELINE
from khaljit.tracer.rewriting import Rewriter
from khaljit.tracer.verify import verify
from tests.building import array_param, kernel

_HEAD = """\
kernel k workgroup=64,1,1 index=32 contract
array a: i32[?] contiguous aligned same_shape=0 same_view=0
array b: i32[?] contiguous aligned same_shape=0 same_view=1
array grid: i32[?, ?] contiguous aligned same_shape=2 same_view=2
array other: i32[?] contiguous aligned same_shape=3 same_view=3
shared0: i32[64]
scalar n: i32
scalar i: i32
scalar u: u32
scalar w: i64
"""


def _checks(body: str, head: str = _HEAD) -> list[bool]:
    """Of each access, in order, whether it is still checked."""
    trace = parse(head + textwrap.dedent(body).strip() + "\n")
    verify(trace)
    done = bounds(trace)
    verify(done)
    return [e.attr.checked for e in effects(done.body) if isinstance(e.attr, Access)]


def _guarded(condition: str, access: str, setup: str = "") -> str:
    """An access where a condition holds."""
    lines = [
        "{",
        "  %0: index = id global 0",
        "  %1: index = shape a 0",
        *(f"  {line}" for line in setup.splitlines()),
        f"  %90: bool = {condition}",
        "  if %90 {",
        *(f"    {line}" for line in access.splitlines()),
        "    yield",
        "  }",
        "  yield",
        "}",
    ]
    return "\n".join(lines)


_PROVEN: Final = {
    "i < n": ("lt %0, %1", "store a[%0] <- 1:i32"),
    "n > i": ("gt %1, %0", "store a[%0] <- 1:i32"),
    "i <= n - 1": ("le %0, %5", "store a[%0] <- 1:i32", "%5: index = add %1, -1:index"),
    "arrays of one shape": ("lt %0, %1", "store b[%0] <- 1:i32"),
    "i + 1 < n": ("lt %5, %1", "store a[%5] <- 1:i32", "%5: index = add %0, 1:index"),
    "i + 1 < n gives i": ("lt %5, %1", "store a[%0] <- 1:i32", "%5: index = add %0, 1:index"),
    "i < n - 1 gives i + 1": (
        "lt %0, %5",
        "store a[%6] <- 1:i32",
        "%5: index = sub %1, 1:index\n%6: index = add %0, 1:index",
    ),
    "0 < i < n gives i - 1": (
        "and %5, %6",
        "store a[%7] <- 1:i32",
        "%5: bool = gt %0, 0:index\n%6: bool = lt %0, %1\n%7: index = sub %0, 1:index",
    ),
    "reversed": (
        "lt %0, %1",
        "store a[%6] <- 1:i32",
        "%5: index = sub %1, %0\n%6: index = sub %5, 1:index",
    ),
    "a scalar between": (
        "and %5, %7",
        "store a[i] <- 1:i32",
        "%5: bool = ge i, 0:i32\n%6: index = cast i\n%7: bool = lt %6, %1",
    ),
    "an unsigned scalar": (
        "lt %6, %5",
        "store a[u] <- 1:i32",
        "%5: i64 = cast %1\n%6: i64 = cast u",
    ),
    "not i >= n": ("not %5", "store a[%0] <- 1:i32", "%5: bool = ge %0, %1"),
    "clamped": (
        "lt %0, %1",
        "store a[%7] <- 1:i32",
        "%4: index = cast i\n%5: index = max %4, 0:index\n%6: index = sub %1, 1:index\n"
        "%7: index = min %5, %6",
    ),
    "wrapped around": (
        "lt %0, %1",
        "store a[%6] <- 1:i32",
        "%5: index = add %0, 5:index\n%6: index = mod %5, %1",
    ),
    "one of two": (
        "lt %0, %1",
        "store a[%6] <- 1:i32",
        "%5: bool = gt i, 3:i32\n%6: index = select %5, %0, 0:index",
    ),
    "the smaller of two": ("lt %0, %1", "store a[%5] <- 1:i32", "%5: index = min %0, 7:index"),
    "a quotient": ("lt %0, %1", "store a[%5] <- 1:i32", "%5: index = floordiv %0, 3:index"),
    "a shifted index": ("lt %0, %1", "store a[%5] <- 1:i32", "%5: index = shr %0, 2:index"),
    "masked": ("lt %0, %1", "store a[%5] <- 1:i32", "%5: index = and %0, 12:index"),
    "scaled": (
        "lt %6, %1",
        "store a[%6] <- 1:i32\nstore a[%0] <- 1:i32",
        "%7: bool = lt %0, 1000:index\n%8: index = min %0, 999:index\n%6: index = mul %0, 1:index",
    ),
    "not equal to the last": (
        "and %5, %6",
        "store a[%7] <- 1:i32",
        "%5: bool = lt %0, %1\n%6: bool = ne %0, 0:index\n%7: index = add %0, -1:index",
    ),
    "equal to what is in bounds": (
        "and %5, %6",
        "store a[%7] <- 1:i32",
        "%5: bool = lt %0, %1\n%7: index = cast i\n%6: bool = eq %7, %0",
    ),
    "the distance": (
        "and %5, %6",
        "store a[%8] <- 1:i32",
        "%4: index = cast i\n%7: index = sub %0, 3:index\n%8: index = abs %7\n"
        "%5: bool = lt %8, %1\n%6: bool = lt %0, %1",
    ),
}


@pytest.mark.parametrize("case", list(_PROVEN), ids=lambda name: name.replace(" ", "-"))
def test_guarded_accesses_lose_their_check(case: str) -> None:
    checks = _checks(_guarded(*_PROVEN[case]))
    assert checks
    assert not any(checks)


_OPEN: Final = {
    "no guard for this array": ("lt %0, %1", "store other[%0] <- 1:i32"),
    "i <= n": ("le %0, %1", "store a[%0] <- 1:i32"),
    "the wrong way": ("gt %0, %1", "store a[%0] <- 1:i32"),
    "a scalar that may be negative": (
        "lt %5, %1",
        "store a[i] <- 1:i32",
        "%5: index = cast i",
    ),
    "i - 1": ("lt %0, %1", "store a[%5] <- 1:i32", "%5: index = sub %0, 1:index"),
    "i + 1 for i < n": ("lt %0, %1", "store a[%5] <- 1:i32", "%5: index = add %0, 1:index"),
    "a sum that wraps": (
        "lt %5, %1",
        "store a[%5] <- 1:i32",
        "%4: index = add %0, %0\n%5: index = add %4, 2147483647:index",
    ),
    "a product that wraps": ("lt %5, %1", "store a[%5] <- 1:i32", "%5: index = mul %0, 4:index"),
    "either": (
        "or %5, %6",
        "store a[%0] <- 1:i32",
        "%5: bool = lt %0, %1\n%6: bool = gt i, 0:i32",
    ),
    "a wide scalar cut off": (
        "and %5, %6",
        "store a[%8] <- 1:i32",
        "%4: i64 = cast %1\n%5: bool = ge w, 0:i64\n%6: bool = lt w, 4294967296:i64\n"
        "%7: bool = lt w, %4\n%8: i32 = cast w",
    ),
    "clamped in an array that may be empty": (
        "ge %0, 0:index",
        "store a[%7] <- 1:i32",
        "%4: index = cast i\n%5: index = max %4, 0:index\n%6: index = sub %1, 1:index\n"
        "%7: index = min %5, %6",
    ),
    "around an array that may be empty": (
        "ge %0, 0:index",
        "store a[%5] <- 1:i32",
        "%5: index = mod %0, %1",
    ),
    "one of two that is not": (
        "lt %0, %1",
        "store a[%6] <- 1:i32",
        "%5: bool = gt i, 3:i32\n%6: index = select %5, %0, 1:index",
    ),
    "one axis only": (
        "lt %0, %5",
        "store grid[%0, %0] <- 1:i32",
        "%5: index = shape grid 0",
    ),
}


@pytest.mark.parametrize("case", list(_OPEN), ids=lambda name: name.replace(" ", "-"))
def test_other_accesses_keep_their_check(case: str) -> None:
    checks = _checks(_guarded(*_OPEN[case]))
    assert checks
    assert all(checks)


def test_a_return_guards_what_follows() -> None:
    assert _checks(
        """
        {
          %0: index = id global 0
          %1: index = id global 1
          %2: index = shape grid 1
          %3: index = shape grid 0
          %4: bool = ge %0, %2
          %5: bool = ge %1, %3
          %6: bool = or %4, %5
          if %6 {
            return
          }
          store grid[%1, %0] <- 1:i32
          store grid[%0, %1] <- 1:i32
          yield
        }
        """
    ) == [False, True]


def test_what_an_arm_knows_is_forgotten_behind_it() -> None:
    assert _checks(
        """
        {
          %0: index = id global 0
          %1: index = shape a 0
          %2: bool = lt %0, %1
          if %2 {
            store a[%0] <- 1:i32
            yield
          } else {
            store a[%0] <- 2:i32
            yield
          }
          store a[%0] <- 3:i32
          yield
        }
        """
    ) == [False, True, True]


def _loop(start: str, leave: str, step: str, body: str, setup: str = "") -> str:
    """A loop over a counter of type index with an access in its body."""
    lines = [
        "{",
        "  %0: index = id global 0",
        "  %1: index = shape a 0",
        *(f"  {line}" for line in setup.splitlines()),
        f"  loop (%2: index = {start}) {{",
        f"    %3: bool = {leave}",
        "    if %3 {",
        "      break",
        "    }",
        *(f"    {line}" for line in body.splitlines()),
        f"    %4: index = {step}",
        "    continue %4",
        "  }",
        "  yield",
        "}",
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("body", "proven"),
    [
        (_loop("0:index", "ge %2, %1", "add %2, 1:index", "store a[%2] <- 1:i32"), True),
        (_loop("%0", "ge %2, %1", "add %2, 1:index", "store a[%2] <- 1:i32"), True),
        # might start below 0
        (
            _loop(
                "%9",
                "ge %2, %1",
                "add %2, 1:index",
                "store a[%2] <- 1:i32",
                "%9: index = cast i",
            ),
            False,
        ),
        # downwards
        (
            _loop(
                "%9",
                "le %2, -1:index",
                "add %2, -1:index",
                "store a[%2] <- 1:i32",
                "%9: index = sub %1, 1:index",
            ),
            True,
        ),
        # shapes are far from the end of index, so the step does not wrap
        (_loop("0:index", "ge %2, %1", "add %2, 4:index", "store a[%2] <- 1:i32"), True),
        # scalars are not
        (
            _loop(
                "0:index",
                "ge %2, %9",
                "add %2, 4:index",
                "%20: bool = lt %2, %1\nif %20 {\n  store a[%2] <- 1:i32\n  yield\n}",
                "%9: index = cast n",
            ),
            False,
        ),
        # halving, as reductions do
        (
            _loop(
                "32:index",
                "le %2, 0:index",
                "shr %2, 1:index",
                "%10: index = id local 0\n%11: bool = lt %10, %2\nif %11 {\n"
                "  %12: index = add %10, %2\n  store shared0[%12] <- 1:i32\n  yield\n}",
            ),
            True,
        ),
        (_loop("1:index", "ge %2, %1", "mul %2, 2:index", "store a[%2] <- 1:i32"), True),
        (_loop("1:index", "ge %2, %1", "mul %2, 4:index", "store a[%2] <- 1:i32"), False),
        # a counter that goes both ways
        (_loop("5:index", "ge %2, %1", "sub %1, %2", "store a[%2] <- 1:i32"), True),
        (_loop("5:index", "ge %2, %1", "sub %2, %1", "store a[%2] <- 1:i32"), False),
    ],
)
def test_counters_are_known_by_induction(body: str, proven: bool) -> None:
    assert _checks(body) == [not proven]


def test_a_long_step_is_known_not_to_wrap_where_the_loop_checks_it() -> None:
    assert _checks(
        """
        {
          %0: index = id global 0
          %1: index = shape a 0
          loop (%2: index = %0) {
            %3: bool = ge %2, %1
            if %3 {
              break
            }
            store a[%2] <- 1:i32
            %4: index = add %2, 64:index
            %5: bool = le %4, %2
            if %5 {
              break
            }
            continue %4
          }
          yield
        }
        """
    ) == [False]


def test_what_is_known_of_some_axes_leaves_the_others_to_check() -> None:
    trace = parse(
        _HEAD
        + """\
{
  %0: index = id global 0
  %1: index = shape grid 0
  %2: bool = lt %0, %1
  if %2 {
    store grid[%0, 3:index] <- 1:i32
    yield
  }
  yield
}
"""
    )
    done = bounds(trace)
    (access,) = (e.attr for e in effects(done.body) if isinstance(e.attr, Access))
    assert access.checked
    assert access.inside == {0}
    (store,) = (e for e in effects(lower_access(done).body) if e.op is Op.STORE)
    guard = store.guard
    assert guard is not None
    assert guard.op is Op.LT
    assert guard.args[0].op is Op.CONST


def test_a_branch_whose_condition_is_proven_is_taken() -> None:
    done = bounds(
        parse(
            _HEAD
            + """\
{
  %0: index = id global 0
  %1: index = shape a 0
  %2: bool = ge %0, %1
  if %2 {
    return
  }
  %3: index = add %0, 1:index
  %4: bool = le %3, %1
  if %4 {
    store a[%0] <- 1:i32
    yield
  } else {
    store a[%0] <- 2:i32
    yield
  }
  %5: bool = lt %3, 0:index
  %6: bool = and %5, %4
  if %6 {
    store a[%0] <- 3:i32
    yield
  }
  yield
}
"""
        )
    )
    stores = [e for e in effects(done.body) if e.op is Op.STORE]
    assert [constant(store.operands[0]) for store in stores] == [1]
    assert sum(e.op is Op.IF for e in effects(done.body)) == 1


def test_local_ids_are_below_the_workgroup_size() -> None:
    assert _checks(
        """
        {
          %0: index = id local 0
          %1: index = id local_index 0
          %2: index = add %0, 1:index
          %3: index = sub 63:index, %0
          store shared0[%0] <- 1:i32
          store shared0[%1] <- 1:i32
          store shared0[%2] <- 1:i32
          store shared0[%3] <- 1:i32
          store shared0[63:i32] <- 1:i32
          store shared0[64:i32] <- 1:i32
          store shared0[-1:i32] <- 1:i32
          yield
        }
        """
    ) == [False, False, True, False, False, True, True]


def test_items_of_fixed_arrays_have_axes_of_their_own_beside_other_scalars() -> None:
    head = "kernel k workgroup=64,1,1 index=32 contract\n"
    head += "array p: f32x4[?] contiguous aligned same_shape=0 same_view=0\nscalar i: i32\n"
    body = """
        {
          %0: index = id global 0
          %1: bool = lt %0, 9:index
          %2: index = shape p 0
          %3: bool = lt %0, %2
          if %3 {
            %4: f32 = load p[%0, 2:index] inner=[3, 4]
            %5: f32 = load p[%0] leaf=12
            %6: f32 = load p[%0, i] inner=[3, 4]
            %7: f32 = load p[i] leaf=12
            %8: f32 = load p[%0, 3:index] inner=[3, 4]
            yield
          }
          yield
        }
        """
    assert _checks(body, head) == [False, False, True, True, True]


def test_narrow_types_and_masks_bound_what_indexes_a_table() -> None:
    head = _HEAD.replace("shared0: i32[64]", "shared0: i32[256]")
    assert _checks(
        """
        {
          %0: u8 = cast i
          %1: i8 = cast i
          %2: i32 = and i, 255:i32
          %3: i32 = mod i, 256:i32
          %4: i32 = mod i, 257:i32
          %5: i32 = cast %0
          store shared0[%0] <- 1:i32
          store shared0[%1] <- 1:i32
          store shared0[%2] <- 1:i32
          store shared0[%3] <- 1:i32
          store shared0[%4] <- 1:i32
          store shared0[%5] <- 1:i32
          yield
        }
        """,
        head,
    ) == [False, True, False, False, True, False]


def test_many_guards_are_dealt_with_in_bounded_time() -> None:
    lines = ["{", "  %0: index = id global 0", "  %1: index = shape a 0"]
    for k in range(300):
        lines += [
            f"  %{2 * k + 2}: index = cast {k}:i32",
            f"  %{2 * k + 3}: bool = gt %0, {k}:index",
        ]
        lines += [f"  if %{2 * k + 3} {{", "    return", "  }"]
        lines += ["  store a[%0] <- 1:i32"]
    assert all(_checks("\n".join([*lines, "  yield", "}"])))


# Random kernels.

_TYPES: Final = (i32, index, u32, i64, i16, u8)
_PLAIN: Final = (Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX, Op.MOD, Op.AND, Op.SHR)


class _Random:
    """Kernels with guards, loops and indices that are often in bounds and sometimes not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = Builder()
        self.params = [array_param(0, i32), array_param(1, i32, 1, 0), array_param(2, i32, 2)]
        self.scalars = (i32, i32, u32, i64, i16, u8, bool_)
        self.shared = Memory(Space.LOCAL, 0, Element.scalar(i32), (13,))
        self.pools: list[list[Value]] = [[]]
        self.depth = 0

    def trace(self) -> Trace:
        return kernel(self.fill, self.params, self.scalars, workgroup=(8, 2, 1))

    def fill(self, builder: Builder) -> None:
        self.b = builder
        for _ in range(6):
            self.statement()

    # Values.

    def leaf(self, dtype: DType) -> Value:
        rng, b = self.rng, self.b
        choice = rng.randrange(6)
        if choice == 0:
            return b.cast(b.id("global", rng.randrange(2)), dtype)
        if choice == 1:
            return b.cast(b.id("local", rng.randrange(2)), dtype)
        if choice == 2:
            numbers = [t for t in self.scalars if t is not bool_]
            number = rng.randrange(len(numbers))
            return b.cast(b.scalar(number, numbers[number]), dtype)
        if choice == 3:
            axis = rng.randrange(2)
            memory = self.params[2 if axis else rng.randrange(3)].memory
            return b.cast(b.shape(b.memory(memory), axis), dtype)
        pool = [v for pool in self.pools for v in pool]
        if choice == 4 and pool:
            return b.cast(rng.choice(pool), dtype)
        low, high = dtype.limits
        return b.const(dtype, rng.choice((0, 0, 1, 1, 2, 3, 5, 12, 13, -1, -2, low, high)))

    def value(self, dtype: DType, depth: int = 2) -> Value:
        rng, b = self.rng, self.b
        if not depth or rng.random() < 0.4:
            return self.leaf(dtype)
        op = rng.choice((*_PLAIN, *_PLAIN, Op.FLOORDIV, Op.SELECT, Op.ABS, Op.NEG, Op.SHL, Op.CAST))
        if op is Op.CAST:
            return b.cast(self.value(rng.choice(_TYPES), depth - 1), dtype)
        if op is Op.SELECT:
            return b.select(
                self.condition(1), self.value(dtype, depth - 1), self.value(dtype, depth - 1)
            )
        if op in (Op.ABS, Op.NEG):
            return b.pure(op, (self.value(dtype, depth - 1),))
        second = self.value(dtype, depth - 1)
        if rng.random() < 0.6:
            second = b.const(dtype, rng.choice((1, 1, 2, 3, 13, 0, -1)))
        return b.pure(op, (self.value(dtype, depth - 1), second))

    def condition(self, depth: int = 2) -> Value:
        rng, b = self.rng, self.b
        if depth and rng.random() < 0.5:
            op = rng.choice((Op.AND, Op.OR, Op.NOT))
            args = tuple(self.condition(depth - 1) for _ in range(1 if op is Op.NOT else 2))
            return b.pure(op, args)
        pool = [v for pool in self.pools for v in pool]
        left = rng.choice(pool) if pool and rng.random() < 0.6 else self.value(rng.choice(_TYPES))
        op = rng.choice((Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE))
        return b.pure(op, (left, self.value(left.type, 1)))

    def inside(self, position: Value, extent: Value) -> Value:
        """A guard as one writes it, or nearly."""
        rng, b = self.rng, self.b
        zero = b.const(position.type, 0)
        low = b.pure(Op.GE, (position, b.const(position.type, rng.choice((0, 0, 0, 1, -1)))))
        limit = b.cast(extent, position.type)
        if rng.random() < 0.2:
            limit = b.pure(Op.SUB, (limit, b.const(position.type, rng.choice((1, 2, -1)))))
        below = b.pure(rng.choice((Op.LT, Op.LT, Op.LT, Op.LE)), (position, limit))
        if rng.random() < 0.1:
            low = b.pure(Op.GT, (position, zero))
        return below if rng.random() < 0.4 else b.pure(Op.AND, (low, below))

    # Statements.

    def statement(self) -> None:
        choice = self.rng.randrange(10)
        if self.depth > 3 or choice < 2:
            self.access(self.value(self.rng.choice(_TYPES)))
        elif choice < 6:
            self.guarded_access()
        elif choice < 8:
            self.branch()
        else:
            self.loop()

    def block(self, end: Op, args: tuple[Value, ...] = ()) -> None:
        """A few statements in the open region, and its end."""
        self.depth += 1
        self.pools.append([])
        for _ in range(self.rng.randint(0, 2)):
            self.statement()
        self.pools.pop()
        self.depth -= 1
        self.b.end(end, args)

    def access(self, position: Value) -> None:
        b, rng = self.b, self.rng
        self.pools[-1].append(position)
        memory = rng.choice((*(param.memory for param in self.params), self.shared))
        indices: tuple[Value, ...] = (position,)
        if memory.ndim == 2:
            indices = (position, self.value(index, 1))
        b.store(b.memory(memory), indices, b.const(i32, 1), Access())

    def guarded_access(self) -> None:
        b, rng = self.b, self.rng
        position = self.value(rng.choice((i32, index, index, u32, i64)))
        memory = rng.choice((*(param.memory for param in self.params), self.shared))
        guard = self.inside(position, b.shape(b.memory(memory), 0))
        indices: tuple[Value, ...] = (position,)
        if memory.ndim == 2:
            other = self.value(index, 1)
            indices = (position, other)
            guard = b.pure(Op.AND, (guard, self.inside(other, b.shape(b.memory(memory), 1))))
        self.pools[-1] += indices
        if rng.random() < 0.2 and self.depth == 0:
            self.leave_if(b.logical_not(guard), Op.RETURN)
            b.store(b.memory(memory), indices, b.const(i32, 2), Access())
            return
        b.open()
        nearby = b.pure(Op.ADD, (position, b.const(position.type, rng.choice((0, 0, 0, 1, -1)))))
        b.store(b.memory(memory), (nearby, *indices[1:]), b.const(i32, 3), Access())
        self.block(Op.YIELD)
        then = b.close()
        b.open()
        b.end(Op.YIELD)
        b.if_(guard, then, b.close())

    def leave_if(self, condition: Value, op: Op, args: tuple[Value, ...] = ()) -> None:
        b = self.b
        b.open()
        b.end(op, args)
        then = b.close()
        b.open()
        b.end(Op.YIELD)
        b.if_(condition, then, b.close())

    def branch(self) -> None:
        b = self.b
        condition = self.condition()
        arms = []
        for _ in range(2):
            b.open()
            self.block(Op.YIELD)
            arms.append(b.close())
        b.if_(condition, arms[0], arms[1])

    def loop(self) -> None:
        """A loop over a counter, ended by another counter after a few iterations anyhow."""
        b, rng = self.b, self.rng
        dtype = rng.choice((i32, index, index, u32, i16))
        start = (
            self.value(dtype, 1) if rng.random() < 0.6 else b.const(dtype, rng.choice((0, 1, 9)))
        )
        fuel, counter = b.open((i32, dtype))
        self.leave_if(b.pure(Op.GE, (fuel, b.const(i32, 6))), Op.BREAK)
        compare = rng.choice((Op.GE, Op.GE, Op.GT, Op.LE, Op.LT, Op.NE))
        self.leave_if(b.pure(compare, (counter, self.value(dtype, 1))), Op.BREAK)
        self.pools.append([counter])
        self.depth += 1
        for _ in range(rng.randint(1, 2)):
            self.statement()
        self.depth -= 1
        self.pools.pop()
        step = b.const(dtype, rng.choice((1, 1, 2, -1, 3)))
        op = rng.choice((Op.ADD, Op.ADD, Op.ADD, Op.SUB, Op.SHR, Op.FLOORDIV, Op.MUL))
        after = b.pure(op, (counter, step))
        b.end(Op.CONTINUE, (b.pure(Op.ADD, (fuel, b.const(i32, 1))), after))
        b.loop((b.const(i32, 0), start), b.close(), ())


class _Watch(Rewriter):
    """Asserts before each access without a check that it is in bounds, and checks it again."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.count = 0

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        b = self.builder
        if isinstance(value.attr, Access) and not value.attr.checked:
            self.count += 1
            for axis, position in enumerate(args[1 : 1 + value.memory.ndim]):
                wide, zero = b.cast(position, i64), b.const(i64, 0)
                extent = b.cast(b.shape(args[0], axis), i64)
                low, below = b.pure(Op.GE, (wide, zero)), b.pure(Op.LT, (wide, extent))
                b.effect(Op.ASSERT, (b.pure(Op.AND, (low, below)), wide, extent), Note("inside"))
            return b.effect(value.op, args, replace(value.attr, checked=True), value.dtype)
        return super().effect(value, args)


def _run(trace: Trace, seed: int) -> int:
    """Run a trace with its cleared accesses watched; gives how many there are."""
    watch = _Watch(trace)
    watched = watch.run()
    rng = np.random.default_rng(seed)
    for extents in ((0, 0, 0), (1, 5, 1), (9, 3, 7), (40, 17, 16)):
        size, rows, columns = extents
        limits = ((-(1 << 31), (1 << 31) - 1),) * 2 + ((0, (1 << 32) - 1),)
        scalars: list[int | float | bool] = [
            int(rng.choice([0, 1, -1, 3, 12, size, size - 1, *limit])) for limit in limits
        ]
        scalars[2] = abs(int(scalars[2]))
        scalars += [int(rng.choice([0, -1, 1 << 32, size])), int(rng.choice([-3, 2, 32767]))]
        scalars += [int(rng.choice([0, 2, 255])), bool(rng.integers(2))]
        arrays = [np.zeros(size, np.int32), np.zeros(size, np.int32)]
        report = interpret(
            watched, [*arrays, np.zeros((rows, columns), np.int32)], scalars, (3, 2, 1)
        )
        assert report.failure is None, report.failure
    return watch.count


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_accesses_without_checks_are_in_bounds_in_random_kernels(start: int) -> None:
    cleared = 0
    for seed in range(start, start + 20):
        trace = _Random(seed).trace()
        verify(trace)
        cleared += _run(bounds(trace), seed)
        for step in (contract, *PIPELINE):
            trace = step(trace)
            if step is bounds:
                _run(trace, seed)
                break
    assert cleared > 10
