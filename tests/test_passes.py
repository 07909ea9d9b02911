"""Each pass before and after, in the text form."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import pytest

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import bool_, f64, i32
from khaljit.tracer.errors import Site
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    Note,
    Space,
    Trace,
    Value,
    effects,
    values,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.passes.bounds import bounds
from khaljit.tracer.passes.choose import choose
from khaljit.tracer.passes.contract import contract
from khaljit.tracer.passes.dead import dead
from khaljit.tracer.passes.invariant import invariant
from khaljit.tracer.passes.once import once
from khaljit.tracer.passes.report_bounds import report_bounds
from khaljit.tracer.passes.simplify import simplify
from khaljit.tracer.passes.unroll import unroll
from khaljit.tracer.text import print_trace
from khaljit.tracer.verify import verify
from tests.building import array_param, kernel, pointwise

Pass = Callable[[Trace], Trace]

_HEAD = """\
kernel k index=32 contract
array a: f32[?] contiguous aligned same_shape=0 same_view=0
array out: f32[?] contiguous aligned same_shape=0 same_view=1
array grid: i32[?, ?] contiguous aligned same_shape=2 same_view=2
array d: f64[?] contiguous aligned same_shape=3 same_view=3
array h: f16[?] contiguous aligned same_shape=4 same_view=4
scalar n: i32
scalar c: bool
scalar e: bool
"""


def _parsed(body: str, head: str = _HEAD) -> Trace:
    trace = parse(head + textwrap.dedent(body))
    verify(trace)
    return trace


def _check(run: Pass, before: str, after: str, head: str = _HEAD) -> None:
    """A pass turns one text into another. (Leading blank lines are for reading.)"""
    done = run(_parsed(before.lstrip("\n"), head))
    verify(done)
    # Both go through the printer, so that numbers are given out alike.
    assert print_trace(done) == print_trace(_parsed(after.lstrip("\n"), head))


# contract


def test_a_sum_with_a_product_is_fused_and_the_second_operand_comes_first() -> None:
    _check(
        contract,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = load out[%0]
          %3: f32 = mul %1, %2
          %4: f32 = mul %2, %2
          %5: f32 = add %3, %4
          %6: f32 = add %3, %1
          %7: f32 = mul %5, %6
          store out[%0] <- %7
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = load out[%0]
          %3: f32 = mul %1, %2
          %4: f32 = fma %2, %2, %3
          %5: f32 = fma %1, %2, %1
          %6: f32 = mul %4, %5
          store out[%0] <- %6
          yield
        }
        """,
    )


def test_a_difference_with_a_product_is_fused_with_a_sign() -> None:
    _check(
        contract,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = load out[%0]
          %3: f32 = mul %1, %2
          %4: f32 = sub %1, %3
          store out[%0] <- %4
          %5: f32 = sub %3, %2
          store a[%0] <- %5
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = load out[%0]
          %3: f32 = neg %1
          %4: f32 = fma %3, %2, %1
          store out[%0] <- %4
          %5: f32 = neg %2
          %6: f32 = fma %1, %2, %5
          store a[%0] <- %6
          yield
        }
        """,
    )


def test_integers_and_16_bit_floats_are_not_contracted() -> None:
    body = """
        {
          %0: index = id global 0
          %1: f16 = load h[%0]
          %2: f16 = mul %1, %1
          %3: f16 = add %2, %1
          store h[%0] <- %3
          %4: i32 = mul n, n
          %5: i32 = add %4, n
          store grid[%5, 0:index] <- %5
          yield
        }
        """
    _check(contract, body, body)


def test_f64_is_contracted() -> None:
    trace = pointwise(lambda b, x, y: b.pure(Op.SUB, (x, b.pure(Op.MUL, (x, y)))), (f64, f64), f64)
    assert {Op.FMA, Op.NEG} <= {value.op for value in values(contract(trace).body)}


def test_nothing_is_contracted_where_that_was_forbidden() -> None:
    head = _HEAD.replace(" contract", "")
    body = """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = mul %1, %1
          %3: f32 = add %2, %1
          store out[%0] <- %3
          yield
        }
        """
    _check(contract, body, body, head)


# simplify


def test_constants_fold_and_identities_go() -> None:
    _check(
        simplify,
        """
        {
          %0: index = id global 0
          %1: index = mul %0, 1:index
          %2: f32 = load a[%1]
          %3: f32 = mul 2.0:f32, 3.0:f32
          %4: f32 = add %2, %3
          %5: f32 = select c, %4, %4
          %6: index = mul %1, 8:index
          store out[%6] <- %5
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = add %1, 6.0:f32
          %3: index = shl %0, 3:index
          store out[%3] <- %2
          yield
        }
        """,
    )


def test_arrays_of_one_shape_share_their_extents() -> None:
    _check(
        simplify,
        """
        {
          %0: index = shape out 0
          store out[%0] <- 0.0:f32
          yield
        }
        """,
        """
        {
          %0: index = shape a 0
          store out[%0] <- 0.0:f32
          yield
        }
        """,
    )


# once


def test_a_block_with_early_exits_becomes_branches() -> None:
    _check(
        once,
        """
        {
          %0: index = id global 0
          %1: f32 = loop {
            if c {
              break 1.0:f32
            }
            %2: f32 = load a[%0]
            if e {
              return
            }
            break %2
          }
          store out[%0] <- %1
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = if c {
            yield 1.0:f32
          } else {
            %2: f32 = load a[%0]
            if e {
              return
            }
            yield %2
          }
          store out[%0] <- %1
          yield
        }
        """,
    )


def test_exits_deep_in_branches_take_the_rest_with_them() -> None:
    _check(
        once,
        """
        {
          %0: index = id global 0
          %1: f32 = loop {
            %2: f32 = if c {
              if e {
                break 1.0:f32
              }
              %3: f32 = load a[%0]
              yield %3
            } else {
              break 2.0:f32
            }
            %4: f32 = add %2, 1.0:f32
            break %4
          }
          store out[%0] <- %1
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = if c {
            %2: f32 = if e {
              yield 1.0:f32
            } else {
              %3: f32 = load a[%0]
              %4: f32 = add %3, 1.0:f32
              yield %4
            }
            yield %2
          } else {
            yield 2.0:f32
          }
          store out[%0] <- %1
          yield
        }
        """,
    )


def test_a_block_without_branches_is_no_block() -> None:
    _check(
        once,
        """
        {
          %0: index = id global 0
          %1: f32 = loop (%2: index = 3:index) {
            %3: f32 = load a[%2]
            break %3
          }
          store out[%0] <- %1
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[3:index]
          store out[%0] <- %1
          yield
        }
        """,
    )


@pytest.mark.parametrize(
    "body",
    [
        # goes round
        """
        {
          %0: i32 = loop (%1: i32 = 0:i32) {
            %2: bool = ge %1, n
            if %2 {
              break %1
            }
            %3: i32 = add %1, 1:i32
            continue %3
          }
          store grid[%0, %0] <- %0
          yield
        }
        """,
        # both arms of the branch that holds a break go on
        """
        {
          %0: i32 = loop {
            if c {
              if e {
                break n
              }
              yield
            }
            store grid[n, n] <- 1:i32
            break 2:i32
          }
          store grid[%0, %0] <- %0
          yield
        }
        """,
    ],
)
def test_other_loops_are_left_alone(body: str) -> None:
    _check(once, body, body)


def test_a_long_run_of_early_exits_becomes_nested_branches() -> None:
    lines = ["{", "  %0: i32 = loop {"]
    for k in range(400):
        lines += [f"    %{k + 1}: bool = eq n, {k}:i32", f"    if %{k + 1} {{"]
        lines += [f"      break {k}:i32", "    }"]
    lines += ["    break 0:i32", "  }", "  store grid[%0, %0] <- %0", "  yield", "}", ""]
    done = once(_parsed("\n".join(lines)))
    assert sum(effect.op is Op.IF for effect in effects(done.body)) == 400
    assert all(effect.op is not Op.LOOP for effect in effects(done.body))


# choose


def test_pure_arms_become_selects_and_known_conditions_choose() -> None:
    _check(
        choose,
        """
        {
          %0: index = id global 0
          %1: f32, %2: f32 = if c {
            yield 1.0:f32, 3.0:f32
          } else {
            if c {
              store out[%0] <- 4.0:f32
              yield
            }
            yield 2.0:f32, 3.0:f32
          }
          %3: f32 = add %1, %2
          if c {
            if c {
              store out[%0] <- %3
              yield
            } else {
              return
            }
            yield
          }
          yield
        }
        """,
        """
        {
          if c {
            %0: index = id global 0
            %1: f32 = select c, 1.0:f32, 2.0:f32
            %2: f32 = add %1, 3.0:f32
            store out[%0] <- %2
            yield
          }
          yield
        }
        """,
    )


def test_a_condition_is_known_behind_a_branch_that_goes_on_in_one_arm() -> None:
    _check(
        choose,
        """
        {
          %0: bool = lt n, 3:i32
          %1: bool = or %0, c
          if %1 {
            return
          }
          %2: bool = ge n, 3:i32
          if %2 {
            store grid[n, n] <- 1:i32
            yield
          }
          if c {
            store grid[n, n] <- 2:i32
            yield
          }
          yield
        }
        """,
        """
        {
          %0: bool = lt n, 3:i32
          %1: bool = or %0, c
          if %1 {
            return
          }
          store grid[n, n] <- 1:i32
          yield
        }
        """,
    )


def test_a_false_comparison_of_floats_says_nothing_of_its_opposite() -> None:
    body = """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: bool = lt %1, 0.0:f32
          %3: bool = ge %1, 0.0:f32
          if %2 {
            return
          }
          if %3 {
            store out[%0] <- 2.0:f32
            yield
          }
          yield
        }
        """
    _check(choose, body, body)


def test_a_constant_condition_leaves_one_arm_with_its_end() -> None:
    _check(
        choose,
        """
        {
          if true:bool {
            return
          } else {
            store grid[n, n] <- 1:i32
            yield
          }
          store grid[n, n] <- 2:i32
          yield
        }
        """.replace("true:bool", "1:bool"),
        """
        {
          return
        }
        """,
    )


def test_what_is_dear_stays_in_its_arm() -> None:
    body = """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = if c {
            %3: f32 = exp %1
            %4: f32 = log %3
            %5: f32 = sin %4
            yield %5
          } else {
            yield %1
          }
          store out[%0] <- %2
          yield
        }
        """
    _check(choose, body, body)


def test_a_decided_guard_goes_or_takes_the_access_with_it() -> None:
    _check(
        choose,
        """
        {
          if c {
            %0: f32 = load a at n if c unchecked
            %1: bool = not c
            store out at n if %1 unchecked <- %0
            %2: f32 = load a at n if %1 unchecked
            store out at n if e unchecked <- %2
            yield
          }
          yield
        }
        """,
        """
        {
          if c {
            %0: f32 = load a at n unchecked
            store out at n if e unchecked <- 0.0:f32
            yield
          }
          yield
        }
        """,
    )


# invariant


def test_carried_values_that_never_change_are_not_carried() -> None:
    _check(
        invariant,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = loop (%3: f32 = %1, %4: i32 = 0:i32) {
            %5: bool = ge %4, n
            if %5 {
              break %3
            }
            %6: i32 = add %4, 1:i32
            continue %3, %6
          }
          store out[%0] <- %2
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32 = loop (%4: i32 = 0:i32) {
            %5: bool = ge %4, n
            if %5 {
              break %1
            }
            %6: i32 = add %4, 1:i32
            continue %6
          }
          store out[%0] <- %2
          yield
        }
        """,
    )


# unroll


def _counted(limit: str, step: int, body: str, start: int = 0, op: str = "ge") -> str:
    return f"""\
{{
  %0: f32 = loop (%1: i32 = {start}:i32, %2: f32 = 0.0:f32) {{
    %3: bool = {op} %1, {limit}
    if %3 {{
      break %2
    }}
{textwrap.indent(textwrap.dedent(body).strip(chr(10)), "    ")}
    %5: f32 = add %2, %4
    %6: i32 = add %1, {step}:i32
    continue %6, %5
  }}
  %7: index = id global 0
  store out[%7] <- %0
  yield
}}
"""


def test_a_small_counted_loop_is_unrolled() -> None:
    _check(
        lambda trace: simplify(unroll(trace)),
        _counted("5:i32", 3, "%4: f32 = load a[%1]"),
        """
        {
          %0: f32 = load a[0:i32]
          %1: f32 = load a[3:i32]
          %2: index = id global 0
          %3: f32 = add %0, 0.0:f32
          %4: f32 = add %3, %1
          store out[%2] <- %4
          yield
        }
        """,
    )


def test_what_a_loop_does_alike_in_each_iteration_is_done_as_often() -> None:
    """Each copy of an effect is an effect of its own, though nothing in it changes."""
    _check(
        unroll,
        _counted("2:i32", 1, "%4: f32 = load a[3:i32]"),
        """
        {
          %0: f32 = load a[3:i32]
          %1: f32 = load a[3:i32]
          %2: index = id global 0
          %3: f32 = add %0, 0.0:f32
          %4: f32 = add %3, %1
          store out[%2] <- %4
          yield
        }
        """,
    )


def test_a_loop_that_never_runs_is_what_it_starts_from() -> None:
    _check(
        unroll,
        _counted("0:i32", 1, "%4: f32 = load a[%1]"),
        """
        {
          %0: index = id global 0
          store out[%0] <- 0.0:f32
          yield
        }
        """,
    )


def test_a_loop_counts_down_and_wraps_as_its_type_does() -> None:
    down = unroll(_parsed(_counted("0:i32", -2, "%4: f32 = load a[%1]", 5, "le")))
    assert sum(effect.op is Op.LOAD for effect in effects(down.body)) == 3
    most = (1 << 31) - 1
    wrapped = unroll(_parsed(_counted("0:i32", 1, "%4: f32 = load a[%1]", most - 1, "lt")))
    assert sum(effect.op is Op.LOAD for effect in effects(wrapped.body)) == 2


@pytest.mark.parametrize(
    "body",
    [
        _counted("n", 1, "%4: f32 = load a[%1]"),
        _counted("1000:i32", 1, "%4: f32 = load a[%1]"),
        _counted("3:i32", 0, "%4: f32 = load a[%1]"),
        _counted("2:i32", 1, "%4: f32 = load a[%1]\nif c {\n  break %4\n}"),
    ],
)
def test_other_counted_loops_stay_loops(body: str) -> None:
    trace = _parsed(body)
    assert print_trace(unroll(trace)) == print_trace(trace)


# dead


def test_what_nothing_depends_on_goes() -> None:
    _check(
        dead,
        """
        {
          %0: index = id global 0
          %1: f32 = load a[%0]
          %2: f32, %3: f32 = loop (%4: f32 = 1.0:f32, %5: i32 = 0:i32, %6: f32 = 0.0:f32) {
            %7: bool = ge %5, 2:i32
            if %7 {
              break %4, %6
            }
            %8: f32 = load a[%5]
            %9: f32 = add %4, %8
            %10: f32 = add %6, %8
            %11: i32 = add %5, 1:i32
            continue %9, %11, %10
          }
          %12: f32, %13: f32 = if c {
            %14: f32 = load a[%0]
            yield %14, %1
          } else {
            yield %2, %2
          }
          if e {
            %15: f32 = load a[%0]
            yield
          }
          store out[%0] <- %12
          yield
        }
        """,
        """
        {
          %0: index = id global 0
          %2: f32 = loop (%4: f32 = 1.0:f32, %5: i32 = 0:i32) {
            %7: bool = ge %5, 2:i32
            if %7 {
              break %4
            }
            %8: f32 = load a[%5]
            %9: f32 = add %4, %8
            %11: i32 = add %5, 1:i32
            continue %9, %11
          }
          %12: f32 = if c {
            %14: f32 = load a[%0]
            yield %14
          } else {
            yield %2
          }
          store out[%0] <- %12
          yield
        }
        """,
    )


def test_effects_and_what_leads_to_them_stay() -> None:
    trace = _effects()
    assert print_trace(dead(trace)) == print_trace(trace)


def _effects() -> Trace:
    """A loop with a return, an atomic, a barrier and an assert, of which nothing is dead."""
    memory = Memory(Space.ARRAY, 0, Element.scalar(i32), (None,))
    params = [ArrayParam("cells", memory, True, True, 0, 0)]

    def build(b: Builder) -> None:
        (k,) = b.open((i32,))
        _exit_if(b, b.pure(Op.GE, (k, b.scalar(0, i32))), Op.BREAK)
        _exit_if(b, b.scalar(1, bool_), Op.RETURN)
        access = AtomicAccess(0, kind="add")
        b.effect(Op.ATOMIC, (b.memory(memory), k, b.const(i32, 1)), access, i32)
        b.effect(Op.BARRIER, (), "storage")
        b.end(Op.CONTINUE, (b.pure(Op.ADD, (k, b.const(i32, 1))),))
        b.loop((b.const(i32, 0),), b.close(), ())
        b.effect(Op.ASSERT, (b.scalar(1, bool_),), Note("never"))

    return kernel(build, params, [i32, bool_])


def _exit_if(b: Builder, condition: Value, op: Op, args: tuple[Value, ...] = ()) -> None:
    b.open()
    b.end(op, args)
    then = b.close()
    b.open()
    b.end(Op.YIELD)
    b.if_(condition, then, b.close())


# report_bounds


def test_indices_out_of_bounds_are_reported_with_the_shape_and_the_line() -> None:
    site = Site(__file__, 7)
    params = [array_param(0, i32, 2)]

    def build(b: Builder) -> None:
        b.at = site
        memory, i = b.memory(params[0].memory), b.id("global")
        b.store(memory, (b.const(i32, 1), i), b.const(i32, 5), Access())

    trace = report_bounds(kernel(build, params))
    verify(trace)
    assert trace.sites == (site,)
    array = np.zeros((3, 4), np.int32)
    report = interpret(trace, [array], [], (6, 1, 1))
    text = "index ({}, {}) is out of bounds of a0 of shape ({}, {})"
    assert report.failure == (Note(text), (4, 0, 0), (1, 4, 3, 4))
    assert array.tolist() == [[0] * 4, [5] * 4, [0] * 4]


def test_what_is_proven_in_bounds_is_not_reported() -> None:
    done = bounds(
        report_bounds(
            _parsed(
                """\
{
  %0: index = id global 0
  %1: index = shape a 0
  %2: bool = lt %0, %1
  if %2 {
    store a[%0] <- 1.0:f32
    yield
  }
  yield
}
"""
            )
        )
    )
    assert all(effect.op is not Op.ASSERT for effect in effects(done.body))
