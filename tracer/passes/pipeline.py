"""The order of the passes, from a canonical trace to a lowered one.

`contract` stands apart: it runs before the key is made, and its outcome is what the rest gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.tracer.build import pool_of
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.bounds import bounds
from khaljit.tracer.passes.choose import choose
from khaljit.tracer.passes.dead import dead
from khaljit.tracer.passes.invariant import invariant
from khaljit.tracer.passes.lower_access import lower_access
from khaljit.tracer.passes.once import once
from khaljit.tracer.passes.simplify import simplify
from khaljit.tracer.passes.unroll import unroll

__all__ = ["PIPELINE", "optimise"]

PIPELINE: Final[tuple[Callable[[Trace], Trace], ...]] = (
    simplify,
    once,
    choose,
    invariant,
    unroll,
    simplify,  # the counters of unrolled loops are constants now
    choose,
    bounds,
    dead,
    lower_access,
    simplify,  # the arithmetic of offsets
    choose,  # guards that are decided
    dead,
)


def optimise(trace: Trace) -> Trace:
    """Run all passes over a canonical trace; gives a lowered one.

    A pass that finds nothing to do gives back the trace itself. What it gave finds it nothing to do
    in, so it is not asked about that again.
    """
    pool = pool_of(trace)
    if pool is not None:  # one for all passes
        trace = trace.having(trace.body, pool)
    settled: dict[Callable[[Trace], Trace], Trace] = {}
    for step in PIPELINE:
        if settled.get(step) is not trace:
            trace = settled[step] = step(trace)
    return trace
