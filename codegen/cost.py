"""A rough estimate of what one invocation of a trace costs, in simple operations.

It decides whether a launch is worth waking other threads for; a factor of two either way does
not matter.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.ir import Region, Trace
from khaljit.tracer.ops import Op
from khaljit.tracer.schedule import Schedule, schedule

__all__ = ["cost"]

ITERATIONS: Final = 16  # of a loop of which nothing is known
_COSTS: Final = {
    **{Op.DIV: 8, Op.SQRT: 8, Op.TRUNCDIV: 16, Op.TRUNCMOD: 16},
    **{Op.LOAD: 4, Op.STORE: 4, Op.ATOMIC: 32, Op.BARRIER: 32},
}


def cost(trace: Trace) -> int:
    """Simple operations of one invocation."""
    return max(1, _region(schedule(trace), trace.body))


def _region(places: Schedule, region: Region) -> int:
    total = 0
    for value in places.items[region]:
        inner = sum(_region(places, one) for one in value.regions)
        times = ITERATIONS if value.op is Op.LOOP else 1
        total += _COSTS.get(value.op, 1) + inner * times
    return total
