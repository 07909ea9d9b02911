"""Why the cache has no code for a kernel: what tells its key from the nearest one there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import final

from khaljit import compiler
from khaljit.backends.base import Target
from khaljit.cache.catalog import Catalog, Entry
from khaljit.cache.keys import parts_of
from khaljit.origin import Origin
from khaljit.tracer.ir import Trace
from khaljit.tracer.records import dataclass

__all__ = ["Explanation", "explain"]


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """A look into the cache.

    Attributes:
        reason: of a miss.
        nearest: the key of the entry that the key has most in common with.
        about: the kernel, signature and target of that entry.
        differences: by part of the key, as differences of texts.
    """

    key: str
    hit: bool
    reason: str = ""
    nearest: str | None = None
    about: str = ""
    differences: Mapping[str, str] = field(default_factory=dict)


def explain(request: tuple[Trace, Target, Origin]) -> Explanation:
    """Look for the code that `Kernel.request` asks for."""
    _, key = compiler.canonical_key(*request)
    target, store = request[1], compiler.store()
    found = store.look(key, target.tool_version)
    if found.artifact is not None:
        return Explanation(key, True)
    reason = found.detail or found.outcome
    parts = parts_of(key.material)
    entries = [one for one in Catalog(store).entries() if one.key != key]
    if found.outcome != "absent" or not entries:
        return Explanation(key, False, reason)
    nearest = _nearest(entries, parts, request[2].about(target.text))
    other = parts_of(nearest.key.material)
    names = sorted(
        name for name in parts.keys() | other.keys() if parts.get(name) != other.get(name)
    )
    differences = {name: _difference(other.get(name, b""), parts.get(name, b"")) for name in names}
    words = " ".join(
        str(nearest.about[name])
        for name in ("kernel", "signature", "target")
        if name in nearest.about
    )
    return Explanation(key, False, reason, nearest.key, words, differences)


def _nearest(
    entries: Sequence[Entry], parts: Mapping[str, bytes], about: Mapping[str, str]
) -> Entry:
    """The entry that has most in common with a key of these parts: the kernel, then parts of the
    key, then the kind of target, then lines of the trace."""

    def likeness(entry: Entry) -> tuple[object, ...]:
        other = parts_of(entry.key.material)
        equal = sum(other.get(name) == part for name, part in parts.items())
        kind = str(entry.about.get("target", "")).partition(":")[0]
        lines = other.get("trace", b"").splitlines()
        return (
            entry.about.get("kernel") == about["kernel"],
            equal,
            kind == about["target"].partition(":")[0],
            len(trace.intersection(lines)) - len(set(lines) - trace),
        )

    trace = set(parts["trace"].splitlines())
    return max(entries, key=likeness)


def _difference(there: bytes, here: bytes) -> str:
    """What differs of a part of the key: ``-`` in the entry, ``+`` in the kernel as it is now."""
    lines = difflib.unified_diff(
        there.decode().splitlines(), here.decode().splitlines(), n=1, lineterm=""
    )
    return "\n".join(f"    {line}" for line in list(lines)[2:])
