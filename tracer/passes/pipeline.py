"""The order of the passes, from a canonical trace to a lowered one.

`contract` stands apart: it runs before the key is made, and its outcome is what the rest gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.lower_access import lower_access

__all__ = ["PIPELINE", "optimise"]

PIPELINE: Final[tuple[Callable[[Trace], Trace], ...]] = (lower_access,)


def optimise(trace: Trace) -> Trace:
    """Run all passes over a canonical trace; gives a lowered one."""
    for step in PIPELINE:
        trace = step(trace)
    return trace
