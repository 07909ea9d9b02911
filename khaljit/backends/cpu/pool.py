"""The threads that launches run on: how many there are, and the pool of them.

The pool is native code (``khaljit/native/pool.c``), or Python (`workers`) where that is not built.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from typing import Any, Final

from khaljit.extension import NATIVE
from khaljit.tracer.errors import ArgumentValueError

__all__ = ["POOLS", "available_threads", "make_pool"]

POOLS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""All that there are: a child process after a fork has none of their threads."""


def make_pool(threads: int) -> Any:
    """A pool of so many threads, the caller's among them."""
    if NATIVE is None:
        from khaljit.backends.cpu.workers import Pool

        return Pool(threads)
    pool = NATIVE.Pool(threads)
    POOLS.add(pool)
    return pool


def _after_fork() -> None:
    for pool in list(POOLS):
        pool.reset()


if hasattr(os, "register_at_fork"):  # systems with fork
    os.register_at_fork(after_in_child=_after_fork)


def available_threads() -> int:
    """How many threads this process should use.

    ``KHALJIT_NUM_THREADS`` if it is set; else the processors that this process may run on, but no
    more than its control groups grant it time for.
    """
    setting = os.environ.get("KHALJIT_NUM_THREADS", "").strip()
    if setting:
        if not setting.isdecimal() or int(setting) == 0:
            raise ArgumentValueError(
                f"KHALJIT_NUM_THREADS is {setting!r}",
                mend="set it to a positive whole number, or unset it",
            )
        return int(setting)
    granted = _granted_processors("/proc/self/cgroup", "/sys/fs/cgroup")
    return max(1, math.ceil(min(_processors(), granted)))


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _granted_processors(membership: str, root: str) -> float:
    """The smallest quota, in processors, of this process's control groups and those above."""
    try:
        lines = _text(membership).splitlines()
    except OSError:
        return math.inf
    granted = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            granted = min(granted, _least(root, path, _quota_of_version_2))
        elif "cpu" in controllers.split(","):
            for mount in {f"{root}/{controllers}", f"{root}/cpu"}:
                granted = min(granted, _least(mount, path, _quota_of_version_1))
    return granted


def _least(mount: str, path: str, quota: Callable[[str], float]) -> float:
    """The least quota from a group up to the mount's own root, which a container may sit below."""
    granted = quota(mount)
    group = path.strip("/")
    while group:
        granted = min(granted, quota(f"{mount}/{group}"))
        group = group.rpartition("/")[0]
    return granted


def _quota_of_version_2(group: str) -> float:
    try:
        quota, period = _text(f"{group}/cpu.max").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _quota_of_version_1(group: str) -> float:
    try:
        quota = int(_text(f"{group}/cpu.cfs_quota_us"))
        period = int(_text(f"{group}/cpu.cfs_period_us"))
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _text(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode()
