"""What is said to be uniform is uniform in every run, and what should be said is said."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.parsing import parse
from khaljit.tracer.uniformity import MAX_STRIDE, Scope, Uniformity, analyse
from tests.random_traces import random_trace

_HEAD = """kernel k workgroup={workgroup} index={bits}
array a: i32[?] contiguous aligned same_shape=0 same_view=0
array b: i32[?] contiguous aligned same_shape=0 same_view=1
array same: i32[?] contiguous aligned same_shape=0 same_view=1
scalar n: i32
shared0: i32[8]
local0: i32[8]
table0: i16[2] = 01000200
"""


def read(body: str, workgroup: str = "8,4,1", bits: int = 32) -> Trace:
    """The trace of a body; its values are looked at through stores to b."""
    return parse(_HEAD.format(workgroup=workgroup, bits=bits) + "{\n" + body + "\nyield\n}\n")


def stored(trace: Trace) -> list[Value]:
    """The operands of stores, in order."""
    order = values(trace.body)
    return [value.operands[0] for value in order if value.op is Op.STORE]


def of_stored(
    body: str, workgroup: str = "8,4,1", bits: int = 32
) -> list[tuple[Scope, int | None]]:
    trace = read(body, workgroup, bits)
    found = analyse(trace)
    return [(found.scope[value], found.stride[value]) for value in stored(trace)]


def store(*names: str) -> str:
    """Stores of i32 values to b."""
    return "\n".join(f"store b[0:i32] <- {name}" for name in names)


@pytest.mark.parametrize("seed", range(60))
def test_claims_about_values_and_control_flow_hold_when_a_random_trace_runs(seed: int) -> None:
    made = random_trace(seed, watch=True, collectives=seed % 2 == 0, size=60)
    rng = np.random.default_rng(seed)
    trace = made.trace
    assert trace.workgroup is not None
    first = rng.integers(-4, 9, (5, 4), np.int32)
    strange = np.zeros((), _mixed())
    arrays = [first, rng.random((4, 3), np.float32), first, strange]
    if trace.arrays[2].same_view == 2:
        arrays[2] = rng.integers(-4, 9, (5, 4), np.int32)
    report = interpret(trace, arrays, [3, 2.5, 1], (3, 2, 2), subgroup_size=4)
    found = analyse(trace)
    lines = [line.split() for line in report.printed]
    runs: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for line in lines:
        watched = made.watched[int(line[0])]
        counters = line[6:] if watched is None else line[7:]
        runs[(line[0], *counters)].append(line)
    x, y, z = trace.workgroup
    lanes = {Scope.GRID: 12 * x * y * z, Scope.WORKGROUP: x * y * z, Scope.SUBGROUP: x & -x}
    lanes[Scope.SUBGROUP] = min(4, lanes[Scope.SUBGROUP])
    for run in runs.values():
        number = int(run[0][0])
        _hold(found, made.watched[number], made.prints[number], run, lanes, trace.index_bits)


def _mixed() -> np.dtype[np.void]:
    return np.dtype(
        {
            "names": ["a", "b", "c"],
            "formats": ["<f4", "<i4", "i1"],
            "offsets": [0, 8, 12],
            "itemsize": 16,
        }
    )


def _hold(
    found: Uniformity,
    watched: Value | None,
    effect: Value,
    run: list[list[str]],
    lanes: dict[Scope, int],
    index_bits: int,
) -> None:
    """Check all claims on the lines that one dynamic instance of a print gave."""
    for scope, columns in ((Scope.GRID, 0), (Scope.WORKGROUP, 3), (Scope.SUBGROUP, 4)):
        groups: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
        for line in run:
            groups[tuple(line[1 : 1 + columns])].append(line)
        for group in groups.values():
            if found.reach[effect] <= scope:
                assert len(group) == lanes[scope], "some are missing"
            if watched is None:
                continue
            if found.scope[watched] <= scope:
                assert len({line[6] for line in group}) == 1
            stride = found.stride[watched]
            if scope is Scope.SUBGROUP and stride is not None and watched.type.is_integer:
                span = 1 << (watched.type.bits or index_bits)
                bases = {(int(line[6]) - stride * int(line[5])) % span for line in group}
                assert len(bases) == 1


@pytest.mark.parametrize(
    ("name", "workgroup", "scope", "stride"),
    [
        ("global 0", "8,4,1", Scope.VARYING, 1),
        ("global 1", "8,4,1", Scope.SUBGROUP, 0),
        ("global 2", "8,4,1", Scope.WORKGROUP, 0),
        ("local 0", "8,1,1", Scope.VARYING, 1),
        ("local 1", "8,1,1", Scope.WORKGROUP, 0),
        ("global 0", "1,8,1", Scope.VARYING, 1),  # lanes may run over workgroups of one column
        ("local_index 0", "8,4,1", Scope.VARYING, 1),
        ("lane 0", "8,4,1", Scope.VARYING, 1),
        ("subgroup 0", "8,4,1", Scope.SUBGROUP, 0),
        ("workgroup 1", "8,4,1", Scope.WORKGROUP, 0),
        ("num_workgroups 0", "8,4,1", Scope.GRID, 0),
        ("subgroup_size 0", "8,4,1", Scope.GRID, 0),
    ],
)
def test_ids_are_as_uniform_as_lanes_along_x_make_them(
    name: str, workgroup: str, scope: Scope, stride: int
) -> None:
    body = f"%0: index = id {name}\n%1: i32 = cast %0\n{store('%1')}"
    assert of_stored(body, workgroup) == [(scope, stride)]


def test_lanes_that_do_not_share_rows_make_y_varying_and_x_no_longer_affine() -> None:
    trace = read(
        "%0: index = id global 0\n%1: i32 = cast %0\n%2: index = id global 1\n%3: i32 = cast %2\n"
        "%4: index = id lane 0\n%5: i32 = cast %4\n" + store("%1", "%3", "%5")
    )
    found = analyse(trace, rows=False)
    assert [(found.scope[v], found.stride[v]) for v in stored(trace)] == [
        (Scope.VARYING, None),
        (Scope.VARYING, None),
        (Scope.VARYING, 1),
    ]
    flat = read("%0: index = id global 0\n%1: i32 = cast %0\n" + store("%1"), "64,1,1")
    assert analyse(flat, rows=False).stride[stored(flat)[0]] == 1


@pytest.mark.parametrize(
    ("load", "scope"),
    [
        ("i32 = load a[n]", Scope.GRID),
        ("i32 = load a[%l]", Scope.VARYING),
        ("i32 = load b[n]", Scope.SUBGROUP),  # stored to below
        ("i32 = load same[n]", Scope.SUBGROUP),  # the same view as b
        ("i32 = load shared0[n]", Scope.SUBGROUP),
        ("i32 = load local0[n]", Scope.VARYING),
        ("i32 = load a at n if %c", Scope.VARYING),
        ("i32 = load a at n if %u", Scope.GRID),
        ("i32 = atomic add relaxed b[n] <- n", Scope.VARYING),
        ("i32 = subgroup add %l", Scope.SUBGROUP),
        ("i32 = subgroup broadcast %l, 0:i32", Scope.SUBGROUP),
        ("i32 = subgroup broadcast %l, 3:i32", Scope.VARYING),  # there may be no such lane
        ("i32 = subgroup shuffle %l, 0:i32", Scope.VARYING),
        ("i32 = subgroup exclusive_add n", Scope.VARYING),
    ],
)
def test_loads_and_collectives_are_no_more_uniform_than_others_let_them_be(
    load: str, scope: Scope
) -> None:
    body = (
        "%0: index = id lane 0\n%1: i32 = cast %0\n%2: bool = lt %1, n\n%3: bool = lt n, 4:i32\n"
        f"%4: {load}\n" + store("%4")
    )
    body = body.replace("%l", "%1").replace("%c", "%2").replace("%u", "%3")
    stride = 0 if scope <= Scope.SUBGROUP else None
    assert of_stored(body) == [(scope, stride)]


def test_a_table_at_a_constant_index_is_the_same_everywhere() -> None:
    body = "%0: i16 = load table0[1:i32]\n%1: i32 = cast %0\n"
    assert of_stored(body + store("%1")) == [(Scope.CONSTANT, 0)]


_SELECT = "i32 = select %3, %1, %2"


@pytest.mark.parametrize(
    ("lines", "bits", "stride"),
    [
        (["i32 = cast %0", "i32 = add %1, n"], 32, 1),
        (["i32 = cast %0", "i32 = sub n, %1"], 32, -1),
        (["i32 = cast %0", "i32 = neg %1"], 32, -1),
        (["i32 = cast %0", "i32 = mul %1, -3:i32"], 32, -3),
        (["i32 = cast %0", "i32 = mul %1, n"], 32, None),
        (["i32 = cast %0", "i32 = shl %1, 4:i32"], 32, 16),
        (["i32 = cast %0", "i32 = shl %1, 32:i32"], 32, 0),
        (["i32 = cast %0", "i32 = shl %1, n"], 32, None),
        (["i32 = cast %0", "i32 = xor %1, 1:i32"], 32, None),
        (["i32 = cast %0", f"i32 = mul %1, {MAX_STRIDE}:i32"], 32, MAX_STRIDE),
        (["i32 = cast %0", f"i32 = mul %1, {MAX_STRIDE + 1}:i32"], 32, None),
        (["i32 = cast %0", "bool = lt n, 4:i32", "i32 = select %2, %1, %1"], 32, 1),
        (
            ["i32 = cast %0", "i32 = add %1, 7:i32", "bool = lt n, 4:i32", _SELECT],
            32,
            1,
        ),
        (
            ["i32 = cast %0", "i32 = add %1, 7:i32", "bool = lt %1, 4:i32", _SELECT],
            32,
            None,
        ),
        (["u32 = cast %0", "i32 = cast %1"], 32, 1),
        (["u32 = cast %0", "i32 = bitcast %1"], 32, 1),
        (["i64 = cast %0", "i64 = add %1, 5:i64", "i32 = cast %2"], 32, 1),
        # What may have wrapped stays affine in its own width only.
        (["u8 = cast %0", "i32 = cast %1"], 32, None),
        (["i32 = cast %0", "i32 = add %1, n", "i64 = cast %2", "i32 = cast %3"], 32, None),
        (["i32 = cast %0", "i64 = cast %1", "i32 = cast %2"], 64, None),
        (["f32 = cast %0", "i32 = cast %1"], 32, None),
    ],
)
def test_strides_follow_affine_arithmetic(lines: list[str], bits: int, stride: int | None) -> None:
    body = "\n".join(["%0: index = id global 0", *(f"%{k + 1}: {x}" for k, x in enumerate(lines))])
    assert of_stored(f"{body}\n{store(f'%{len(lines)}')}", bits=bits) == [(Scope.VARYING, stride)]


_LANE = "%0: index = id lane 0\n%1: i32 = cast %0\n%2: bool = lt %1, n\n%3: bool = lt n, 9:i32\n"


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("%2", ("1:i32", "2:i32"), (Scope.VARYING, None)),
        ("%3", ("1:i32", "2:i32"), (Scope.GRID, 0)),
        ("%2", ("n", "n"), (Scope.GRID, 0)),
        ("%2", ("%1", "%1"), (Scope.VARYING, 1)),
        ("%3", ("%1", "%1"), (Scope.VARYING, 1)),
    ],
)
def test_the_result_of_an_if_depends_on_its_condition_where_the_arms_differ(
    condition: str, values: tuple[str, str], expected: tuple[Scope, int | None]
) -> None:
    body = (
        f"{_LANE}%4: i32 = if {condition} {{\nyield {values[0]}\n}} else {{\n"
        f"yield {values[1]}\n}}\n" + store("%4")
    )
    assert of_stored(body) == [expected]


def test_an_arm_that_returns_gives_no_value_to_the_result() -> None:
    body = f"{_LANE}%4: i32 = if %2 {{\nreturn\n}} else {{\nyield n\n}}\n" + store("%4")
    assert of_stored(body) == [(Scope.GRID, 0)]


def loop(leave: str, carry: str = "%5", result: str = "%5", more: str = "") -> str:
    """A loop that counts in %5 and leaves by a condition; %9 is its result."""
    return (
        f"{_LANE}%9: i32 = loop (%5: i32 = 0:i32) {{\n%6: bool = ge %5, {leave}\n"
        f"if %6 {{\nbreak {result}\n}}\n{more}%7: i32 = add {carry}, 1:i32\ncontinue %7\n}}\n"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (loop("n"), (Scope.GRID, 0)),
        (loop("9:i32"), (Scope.CONSTANT, 0)),
        (loop("%1"), (Scope.VARYING, None)),
        (loop("%1", result="n"), (Scope.GRID, 0)),  # the same whenever it is left
        (loop("%1", result="7:i32"), (Scope.CONSTANT, 0)),
        (loop("n", carry="%1"), (Scope.VARYING, None)),  # 0, then lane + 1
        (loop("n", more="if %2 {\ncontinue 3:i32\n}\n"), (Scope.VARYING, None)),
        (loop("n", more="if %3 {\ncontinue 3:i32\n}\n"), (Scope.GRID, 0)),
        # Those that continue early miss the second way out.
        (
            loop("n", more="if %2 {\ncontinue 3:i32\n}\nif %3 {\nbreak %5\n}\n"),
            (Scope.VARYING, None),
        ),
    ],
)
def test_the_result_of_a_loop_depends_on_who_leaves_when(
    body: str, expected: tuple[Scope, int | None]
) -> None:
    assert of_stored(body + store("%9")) == [expected]


def test_early_continues_make_ways_out_after_them_divergent() -> None:
    body = (
        f"{_LANE}loop (%5: i32 = 0:i32) {{\n%7: i32 = add %5, 1:i32\n"
        "if %2 {\ncontinue %7\n}\nif %3 {\nbreak\n}\ncontinue %7\n}\n"
    )
    (exits,) = analyse(read(body)).exits.values()
    assert exits is Scope.VARYING
    (exits,) = analyse(read(body.replace("if %2", "if %3"))).exits.values()
    assert exits is Scope.GRID


def test_carried_values_keep_a_stride_that_every_iteration_keeps() -> None:
    body = (
        f"{_LANE}%9: i32, %10: i32 = loop (%4: i32 = %1, %5: i32 = 0:i32) {{\n"
        "%6: bool = ge %5, n\nif %6 {\nbreak %4, %5\n}\n"
        "%7: i32 = add %4, 64:i32\n%8: i32 = add %5, 1:i32\ncontinue %7, %8\n}\n"
    )
    assert of_stored(body + store("%9", "%10")) == [(Scope.VARYING, 1), (Scope.GRID, 0)]
    twice = body.replace("%7: i32 = add %4, 64:i32", "%7: i32 = add %4, %4")
    assert of_stored(twice + store("%9"))[0] == (Scope.VARYING, None)


def test_what_varies_late_in_a_nested_loop_is_found() -> None:
    body = (
        f"{_LANE}%20: i32 = loop (%4: i32 = 0:i32, %5: i32 = 0:i32, %6: i32 = 0:i32) {{\n"
        "%7: i32 = loop (%8: i32 = 0:i32, %9: i32 = %4) {\n"
        "%10: bool = ge %8, 3:i32\nif %10 {\nbreak %9\n}\n"
        "%11: i32 = add %8, 1:i32\ncontinue %11, %5\n}\n"
        "%12: bool = ge %6, n\nif %12 {\nbreak %7\n}\n"
        "%13: i32 = add %6, 1:i32\ncontinue %7, %1, %13\n}\n"
    )
    assert of_stored(body + store("%20")) == [(Scope.VARYING, None)]


def reaches(body: str) -> list[Scope]:
    """The reach of each barrier of a body."""
    trace = read(body)
    found = analyse(trace)
    return [scope for effect, scope in found.reach.items() if effect.op is Op.BARRIER]


_BARRIER = "barrier workgroup\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"if %2 {{\n{_BARRIER}yield\n}}\n{_BARRIER}", [Scope.VARYING, Scope.CONSTANT]),
        (f"if %3 {{\n{_BARRIER}yield\n}}\n", [Scope.GRID]),
        (f"if %2 {{\nreturn\n}}\n{_BARRIER}", [Scope.VARYING]),
        (f"if %3 {{\nreturn\n}}\n{_BARRIER}", [Scope.GRID]),
        (
            f"if %3 {{\n{_BARRIER}if %2 {{\nreturn\n}}\n{_BARRIER}yield\n}}\n{_BARRIER}",
            [Scope.GRID, Scope.VARYING, Scope.VARYING],
        ),
        (f"if %2 {{\nreturn\n}} else {{\n{_BARRIER}yield\n}}\n", [Scope.VARYING]),
    ],
)
def test_branches_part_and_join_and_returns_part_for_good(body: str, expected: list[Scope]) -> None:
    assert reaches(_LANE + body) == expected


@pytest.mark.parametrize(
    ("leave", "more", "expected"),
    [
        ("n", _BARRIER, [Scope.GRID, Scope.CONSTANT]),
        ("%1", _BARRIER, [Scope.VARYING, Scope.CONSTANT]),
        # Those that left are missing in the next iteration, even before the way out.
        ("n", f"{_BARRIER}if %2 {{\nbreak 0:i32\n}}\n", [Scope.VARYING, Scope.CONSTANT]),
        ("n", f"{_BARRIER}if %2 {{\nreturn\n}}\n", [Scope.VARYING, Scope.VARYING]),
        # Those that continue are back at the start of the next iteration.
        (
            "n",
            f"{_BARRIER}if %2 {{\ncontinue 3:i32\n}}\n{_BARRIER}",
            [Scope.VARYING, Scope.VARYING, Scope.CONSTANT],
        ),
    ],
)
def test_loops_part_until_they_are_left(leave: str, more: str, expected: list[Scope]) -> None:
    assert reaches(loop(leave, more=more) + _BARRIER) == expected


def test_the_way_on_after_a_continue_is_apart_and_the_next_iteration_is_not() -> None:
    body = (
        f"{_LANE}loop (%5: i32 = 0:i32) {{\n%6: bool = ge %5, n\nif %6 {{\nbreak\n}}\n{_BARRIER}"
        f"%7: i32 = add %5, 1:i32\nif %2 {{\ncontinue %7\n}}\n{_BARRIER}continue %7\n}}\n"
    )
    assert reaches(body) == [Scope.GRID, Scope.VARYING]


def test_regions_are_entered_as_their_owner_lets_them() -> None:
    trace = read(f"{_LANE}if %2 {{\nif %3 {{\n{_BARRIER}yield\n}}\nyield\n}}\n")
    found = analyse(trace)
    (outer,) = trace.body.body
    (inner,) = outer.regions[0].body
    assert found.control[trace.body] is Scope.CONSTANT
    assert found.control[outer.regions[0]] is Scope.VARYING
    assert found.control[inner.regions[0]] is Scope.VARYING
