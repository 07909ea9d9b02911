"""Where pure values are computed."""

from __future__ import annotations

import pytest

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import i32
from khaljit.tracer.ir import Access, Options, Region, Trace, Value, effects, regions, values
from khaljit.tracer.ops import Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.schedule import CODELESS, Schedule, schedule
from tests.random_traces import random_trace

_HEAD = """kernel k index=32
array a: i32[?] contiguous aligned same_shape=0 same_view=0
scalar n: i32
"""


def read(body: str) -> Trace:
    return parse(_HEAD + "{\n" + body + "\nyield\n}\n")


def shown(trace: Trace, region: Region) -> list[str]:
    """The operations of a region's items."""
    return [item.op.value for item in schedule(trace).items[region]]


def check_order(trace: Trace, found: Schedule) -> None:
    """Everything is computed once, after its operands and in a region around its users."""
    computed: set[Value] = set()

    def use(user: Value, existing: set[Value]) -> None:
        for operand in user.args:
            if operand.op in (Op.CONST, Op.MEMORY):
                continue
            node = operand.args[0] if operand.op is Op.RESULT else operand
            assert node in existing, f"{operand} is not there for {user}"

    def walk(region: Region, around: set[Value]) -> None:
        existing = around | set(region.params)
        items = found.items[region]
        assert tuple(item for item in items if item.is_effect) == region.body
        for item in items:
            assert item not in computed
            computed.add(item)
            use(item, existing)
            for inner in item.regions:
                walk(inner, existing)
            existing.add(item)
        use(region.end, existing)

    walk(trace.body, set())
    ends = {region.end for region in regions(trace.body)}
    needed = {v for v in values(trace.body) if v.op not in CODELESS}
    assert computed == needed - ends


@pytest.mark.parametrize("seed", range(60))
def test_random_traces_are_computed_once_and_in_order(seed: int) -> None:
    trace = random_trace(seed, collectives=True).trace
    check_order(trace, schedule(trace))


@pytest.mark.parametrize("seed", range(20))
def test_values_are_computed_just_before_the_first_effect_that_needs_them(seed: int) -> None:
    trace = random_trace(seed).trace
    found = schedule(trace)
    for region, items in found.items.items():
        waiting: set[Value] = set()
        for item in (*items, region.end):
            if not item.is_effect:
                waiting.add(item)
                continue
            needed = {v for inner in item.regions for v in values(inner)} | set(item.args)
            stack = list(needed)
            while stack:
                stack.extend(arg for arg in stack.pop().args if arg not in needed)
                needed.update(stack)
            assert waiting <= needed
            waiting.clear()


def test_a_value_goes_to_the_arm_that_alone_needs_it() -> None:
    trace = read(
        "%0: i32 = mul n, n\n%1: bool = lt n, 3:i32\n"
        "if %1 {\nstore a[0:i32] <- %0\nyield\n}\nstore a[1:i32] <- n"
    )
    assert shown(trace, trace.body) == ["scalar", "lt", "if", "store"]
    assert shown(trace, trace.body.body[0].regions[0]) == ["mul", "store"]


def test_a_value_that_both_arms_need_is_computed_before_the_if() -> None:
    trace = read(
        "%0: i32 = mul n, n\n%1: bool = lt n, 3:i32\n"
        "if %1 {\nstore a[0:i32] <- %0\nyield\n} else {\nstore a[1:i32] <- %0\nyield\n}"
    )
    assert shown(trace, trace.body) == ["scalar", "lt", "mul", "if"]


def loop(inside: str) -> Trace:
    return read(
        "loop (%0: i32 = 0:i32) {\n%1: bool = ge %0, n\nif %1 {\nbreak\n}\n"
        f"{inside}\n%2: i32 = add %0, 1:i32\ncontinue %2\n}}"
    )


def test_what_does_not_change_in_a_loop_is_raised_out_of_it_even_from_an_arm() -> None:
    trace = loop(
        "%3: i32 = mul n, n\n%4: i32 = load a[%0]\n%5: bool = lt %4, n\n"
        "if %5 {\n%6: i32 = add %3, 7:i32\n%7: i32 = add %6, %4\nstore a[%0] <- %7\nyield\n}"
    )
    assert shown(trace, trace.body) == ["scalar", "mul", "add", "loop"]
    body = trace.body.body[0].regions[0]
    assert shown(trace, body) == ["ge", "if", "load", "lt", "if", "add"]
    assert shown(trace, body.body[2].regions[0]) == ["add", "store"]


def test_a_value_is_raised_only_as_far_as_its_operands_exist() -> None:
    trace = loop(
        "loop (%3: i32 = 0:i32) {\n%4: bool = ge %3, n\nif %4 {\nbreak\n}\n"
        "%5: i32 = mul %0, %0\nstore a[%3] <- %5\n%6: i32 = add %3, 1:i32\ncontinue %6\n}"
    )
    outer = trace.body.body[0].regions[0]
    assert shown(trace, trace.body) == ["scalar", "loop"]
    assert shown(trace, outer) == ["ge", "if", "mul", "loop", "add"]


def test_what_an_outer_arm_alone_needs_in_its_loop_stays_in_the_arm() -> None:
    trace = read(
        "%1: bool = lt n, 3:i32\n%2: i32 = mul n, n\nif %1 {\n"
        "loop (%3: i32 = 0:i32) {\n%4: bool = ge %3, %2\nif %4 {\nbreak\n}\ncontinue %3\n}\n"
        "yield\n}"
    )
    assert shown(trace, trace.body) == ["scalar", "lt", "if"]
    assert shown(trace, trace.body.body[0].regions[0]) == ["mul", "loop"]


def test_results_are_used_where_their_if_stands() -> None:
    trace = read(
        "%1: bool = lt n, 3:i32\n%2: i32 = if %1 {\nyield n\n} else {\nyield 4:i32\n}\n"
        "%3: i32 = mul %2, %2\nloop {\nstore a[%3] <- %3\nbreak\n}"
    )
    assert shown(trace, trace.body) == ["scalar", "lt", "if", "mul", "loop"]


def test_a_chain_of_5000_operations_and_1500_nested_regions_need_no_recursion() -> None:
    builder = Builder()
    builder.open()
    zero = builder.const(i32, 0)
    memory = builder.memory(read("store a[0:i32] <- n").arrays[0].memory)
    value = builder.load(memory, (zero,), i32, Access())
    for _ in range(5000):
        value = builder.pure(Op.MUL, (value, value))
    condition = builder.pure(Op.LT, (value, zero))
    for _ in range(1500):
        builder.open()
    builder.store(memory, (value,), value, Access())
    for _ in range(1500):
        builder.end(Op.YIELD)
        then = builder.close()
        builder.open()
        builder.end(Op.YIELD)
        builder.if_(condition, then, builder.close())
    builder.end(Op.YIELD)
    trace = Trace("deep", read("").arrays, (), None, 32, Options(), builder.close())
    assert len(schedule(trace).items[trace.body]) == 5003
    assert sum(1 for _ in effects(trace.body)) == 1 + 1500 + 1 + 3001
