"""How many signatures a kernel is specialised for: kept within bounds, and warned of."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, Final

from khaljit.entries import Signature
from khaljit.tracer.errors import PerformanceWarning

__all__ = ["keep_within_bounds"]

MANY: Final = 64
"""Specialisations of one kernel that are no accident."""

MOST: Final = 1024
"""Plans that a kernel keeps; those made first go first."""

SHOWN: Final = 3


def keep_within_bounds(
    kernel: str,
    names: Sequence[str],
    plans: MutableMapping[tuple[Any, Signature], Any],
    *,
    warns: bool = True,
) -> None:
    """Warn when a kernel has many plans, once; drop the oldest when it has too many.

    Args:
        warns: not for kernels of khaljit's own, which take every array that there is.
    """
    if len(plans) == MANY + 1 and warns:
        warnings.warn(_explained(kernel, names, [key[1] for key in plans]), PerformanceWarning, 6)
    while len(plans) > MOST:
        del plans[next(iter(plans))]


def _explained(kernel: str, names: Sequence[str], signatures: Iterable[Signature]) -> str:
    """Which argument varies, and how."""
    from khaljit.signature_text import write_signature  # for those who are warned
    from khaljit.signatures import split_signature

    texts = [list(split_signature(write_signature(one).partition(";")[0])) for one in signatures]
    columns = list(zip(*texts, strict=True))
    counts = [len(set(column)) for column in columns]
    worst = counts.index(max(counts))
    seen = list(dict.fromkeys(columns[worst]))
    return (
        f"kernel {kernel} was specialised more than {MANY} times: parameter {names[worst]} came in "
        f"{len(seen)} kinds, such as {', '.join(seen[:SHOWN])}\n  mend: pass what changes often as "
        "a run-time number, not as a kj.Const; keep the layouts of arrays alike"
    )
