"""Barriers and subgroup operations where control flow is not uniform are refused, with reasons."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from khaljit.tracer.build import Builder
from khaljit.tracer.convergence import check
from khaljit.tracer.dtypes import index
from khaljit.tracer.errors import Site, TraceError
from khaljit.tracer.ir import Options, Trace, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.parsing import parse
from tests.random_traces import random_trace

_HEAD = """kernel k workgroup={workgroup} index=32
array a: i32[?] contiguous aligned same_shape=0 same_view=0
array b: i32[?] contiguous aligned same_shape=0 same_view=1
scalar n: i32
shared0: i32[8]
{{
  %0: index = id local 0
  %1: i32 = cast %0
  %2: bool = lt %1, n
  %3: index = id local 1
  %4: i32 = cast %3
  %5: bool = lt %4, n
  %6: bool = lt n, 9:i32
"""


def said(trace: Trace) -> str:
    """What is said of a trace; empty if nothing."""
    try:
        check(trace)
    except TraceError as error:
        return f"{error.message} | {error.mend}"
    return ""


def outcome(body: str, workgroup: str = "32,4,1") -> str:
    return said(parse(f"{_HEAD.format(workgroup=workgroup)}{body}\nyield\n}}\n"))


def loop(inside: str, leave: str = "n") -> str:
    """A loop that counts in %10 from 0 to a limit, by way of %12."""
    return (
        f"loop (%10: i32 = 0:i32) {{\n%11: bool = ge %10, {leave}\nif %11 {{\nbreak\n}}\n"
        f"%12: i32 = add %10, 1:i32\n{inside}continue %12\n}}\n"
    )


BARRIER = "barrier workgroup\n"
STORAGE = "barrier storage\n"
SUBGROUP_BARRIER = "barrier subgroup\n"
SUM = "%20: i32 = subgroup add n\n"


@pytest.mark.parametrize(
    "body",
    [
        BARRIER + SUM,
        f"if %6 {{\n{BARRIER}yield\n}}",
        f"if %2 {{\nyield\n}}\n{BARRIER}",
        f"if %6 {{\nreturn\n}}\n{BARRIER}",
        loop(BARRIER),
        # A bound that is read from an array that nobody writes.
        f"%9: i32 = load a[n]\n{loop(BARRIER, '%9')}",
        # After the loop all are together again, whenever they left.
        loop("if %2 {\nbreak\n}\n") + BARRIER + SUM,
        loop(f"{BARRIER}if %2 {{\ncontinue %12\n}}\n"),
        loop(loop("if %2 {\nbreak\n}\n").replace("%1", "%3") + BARRIER),
        # Rows of a workgroup are not apart inside a subgroup.
        f"if %5 {{\n{SUM}{SUBGROUP_BARRIER}yield\n}}",
        f"%9: i32 = load shared0[n]\n%8: bool = lt %9, n\nif %8 {{\n{SUM}yield\n}}",
        f"%9: i32 = subgroup any %2\n{BARRIER}",
    ],
)
def test_what_all_reach_together_is_accepted(body: str) -> None:
    assert outcome(body) == ""


BRANCH = "it stands in a branch on the condition at an unknown line, which may differ between them"
LOOP = "it stands in a loop that they may leave at different iterations, by the condition"
APART = "let all invocations take the same way and guard the accesses instead"
WORKGROUP = "is not reached by all invocations of a workgroup together"
SUBGROUP = "is not reached by all invocations of a subgroup together"


@pytest.mark.parametrize(
    ("body", "name", "group", "reason", "mend"),
    [
        (f"if %2 {{\n{BARRIER}yield\n}}", "barrier()", WORKGROUP, BRANCH, "move the barrier out"),
        (
            f"if %2 {{\nyield\n}} else {{\n{STORAGE}yield\n}}",
            "storage_barrier()",
            WORKGROUP,
            BRANCH,
            "move the barrier out",
        ),
        (f"if %5 {{\n{BARRIER}yield\n}}", "barrier()", WORKGROUP, BRANCH, "move the barrier"),
        (
            f"if %2 {{\n{SUBGROUP_BARRIER}yield\n}}",
            "subgroup_barrier()",
            SUBGROUP,
            BRANCH,
            "move the barrier",
        ),
        (
            f"if %2 {{\n{SUM}yield\n}}",
            "the subgroup operation 'add'",
            SUBGROUP,
            BRANCH,
            "move the operation",
        ),
        (
            f"if %2 {{\nif %6 {{\n{BARRIER}yield\n}}\nyield\n}}",
            "barrier()",
            WORKGROUP,
            BRANCH,
            "move the barrier",
        ),
        (
            f"if %2 {{\nreturn\n}}\n{BARRIER}",
            "barrier()",
            WORKGROUP,
            "some of them return before it, by the condition",
            "guard the accesses, not the return",
        ),
        (
            f"if %2 {{\nreturn\n}}\nif %6 {{\n{BARRIER}yield\n}}",
            "barrier()",
            WORKGROUP,
            "some of them return before it",
            "guard the accesses, not the return",
        ),
        (
            loop("if %2 {\nreturn\n}\n") + BARRIER,
            "barrier()",
            WORKGROUP,
            "some of them return before it",
            "guard the accesses, not the return",
        ),
        (loop(BARRIER, "%1"), "barrier()", WORKGROUP, LOOP, APART),
        (loop(f"{BARRIER}if %2 {{\nbreak\n}}\n"), "barrier()", WORKGROUP, LOOP, APART),
        (loop(f"{SUM}if %2 {{\nreturn\n}}\n"), "the subgroup", SUBGROUP, LOOP, APART),
        (
            loop(f"if %2 {{\ncontinue %12\n}}\n{BARRIER}"),
            "barrier()",
            WORKGROUP,
            "some of them continue before it",
            APART,
        ),
        (
            loop(f"{BARRIER}if %2 {{\ncontinue %12\n}}\nif %6 {{\nbreak\n}}\n"),
            "barrier()",
            WORKGROUP,
            LOOP,
            APART,
        ),
        # Others may write the bound between two invocations' reads.
        (
            f"store b[n] <- n\n%9: i32 = load b[n]\n{loop(BARRIER, '%9')}",
            "barrier()",
            WORKGROUP,
            LOOP,
            APART,
        ),
    ],
)
def test_what_some_may_miss_is_refused_with_its_reason_and_mend(
    body: str, name: str, group: str, reason: str, mend: str
) -> None:
    found = outcome(body)
    assert found.startswith(name)
    assert group in found
    assert reason in found
    assert mend in found.partition(" | ")[2]


def test_rows_count_as_apart_where_a_subgroup_may_hold_several() -> None:
    body = f"if %5 {{\n{SUM}yield\n}}"
    assert outcome(body, "64,2,1") == ""
    assert BRANCH in outcome(body, "8,8,1")
    # With one row, y is the same for all.
    assert outcome(body, "8,1,1") == ""
    assert outcome(f"if %5 {{\n{BARRIER}yield\n}}", "8,1,1") == ""


def _kernel(path: Path) -> Trace:
    """A kernel with a guarded return before a barrier, with sites in a source file."""
    builder = Builder()

    def at(line: int, start: int, end: int) -> None:
        builder.at = Site(str(path), line, start, end)

    builder.open()
    at(2, 7, 13)
    outside: Value = builder.pure(Op.GE, (builder.id("global"), builder.const(index, 9)))
    at(2, 4, 20)
    builder.open()
    builder.end(Op.RETURN)
    then = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(outside, then, builder.close())
    at(4, 4, 16)
    builder.effect(Op.BARRIER, (), "workgroup")
    builder.end(Op.YIELD)
    return Trace("k", (), (), (8, 1, 1), 32, Options(), builder.close())


def test_the_message_shows_the_barrier_and_cites_the_condition(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("def k(a):\n    if i >= a.size:\n        return\n    kj.barrier()\n")
    linecache.checkcache()
    with pytest.raises(TraceError) as caught:
        check(_kernel(path))
    assert str(caught.value).split("\n") == [
        "barrier() is not reached by all invocations of a workgroup together: some of them"
        f" return before it, by the condition at {path}:2 (if i >= a.size:)",
        f"  at {path}:4",
        "    kj.barrier()",
        "    ^^^^^^^^^^^^",
        "  mend: guard the accesses, not the return",
    ]


@pytest.mark.parametrize("seed", range(150))
def test_random_traces_are_accepted_or_refused_with_a_reason(seed: int) -> None:
    trace = random_trace(seed, collectives=True, size=80).trace
    found = said(trace)
    assert not found or ("not reached by all" in found and not found.endswith("None"))
