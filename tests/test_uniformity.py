"""What is said to be uniform is uniform in every run, and what should be said is said."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.text import parse
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


def of_stored(body: str, workgroup: str = "8,4,1", bits: int = 32) -> list[tuple[Scope, int | None]]:
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
