"""Looks for larger errors of f64 around the largest that were seen.

2^30 arguments are few: they lie far apart where a function is at its worst. So the search starts
from there, draws arguments around, and goes on around the worst of those, ever closer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import numpy as np

import khaljit as kj
from benchmarks import math_kernels as kernels
from benchmarks.math_judges import Array, Verdict, judge_f64
from khaljit.tracer.dtypes import f64
from khaljit.tracer.ops import Op

__all__ = ["searched"]

WIDTHS: Final = (2**-3, 2**-4, 2**-6, 2**-8, 2**-11)  # relative to the arguments
PLACES: Final = 48  # to start from; half as many each time
DRAWN: Final = 1 << 16  # around a place

Map = Callable[[Callable[[Verdict], Verdict], Iterable[Verdict]], Iterable[Verdict]]


def searched(device: Any, op: Op, seen: Iterable[Verdict], each: Map = map) -> list[Verdict]:
    """What was seen and what was found around the worst of it, the largest error first.

    Args:
        each: goes to several places: one by one, or with threads.
    """
    apply = kernels.apply(op)
    places = sorted(seen, key=_order)
    for k, width in enumerate(WIDTHS):
        factors = 1 + width * np.random.default_rng(k).uniform(-1, 1, (2, DRAWN))
        around = partial(_around, device, op, apply, factors)
        places = sorted([*places, *each(around, places[: PLACES >> k])], key=_order)
    return places


def _order(place: Verdict) -> tuple[float, float, float]:
    return -place.worst, place.x, place.y


def _around(device: Any, op: Op, apply: Any, factors: Array, place: Verdict) -> Verdict:
    x, y = place.x * factors[0], place.y * factors[1]
    with kj.use(device):
        out = device.empty(DRAWN, f64)
        apply[DRAWN](device.array(x), device.array(y), out)
    return judge_f64(op, x, y, out.numpy())
