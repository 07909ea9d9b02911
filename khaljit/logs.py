"""What khaljit does, a line at a time: ``KHALJIT_LOG=cache,compile`` prints to standard error."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Final

__all__ = ["log", "wants"]

TOPICS: Final = ("cache", "compile", "all")


@lru_cache(maxsize=8)
def _topics(setting: str) -> frozenset[str]:
    """The topics of a setting; what is none is told, once."""
    topics = frozenset(word.strip().lower() for word in setting.split(",") if word.strip())
    for unknown in sorted(topics.difference(TOPICS)):
        known = ", ".join(TOPICS)
        print(f"khaljit: KHALJIT_LOG has no topic {unknown!r}, only {known}", file=sys.stderr)
    return topics


def wants(topic: str) -> bool:
    """Whether lines about a topic are asked for; ``all`` asks for every one."""
    setting = os.environ.get("KHALJIT_LOG")
    return bool(setting) and not _topics(setting or "").isdisjoint((topic, "all"))


def log(topic: str, line: str) -> None:
    """Print a line about a topic, if it is asked for."""
    if wants(topic):
        print(f"khaljit {topic}: {line}", file=sys.stderr, flush=True)
