"""From a recording to something a device can launch, through the cache.

record -> contract -> key -> cached? load : compile and store -> load
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

from khaljit.backends.base import Device, Loaded, Target
from khaljit.backends.reporting import Reporting
from khaljit.cache.artifact import Artifact
from khaljit.cache.errors import CacheStoreError
from khaljit.cache.keys import Key
from khaljit.cache.store import Store
from khaljit.codegen.reports import has_report, with_reports
from khaljit.graphs.capture import apart
from khaljit.keying import key_of
from khaljit.origin import Origin
from khaljit.tracer.convergence import check
from khaljit.tracer.errors import CacheError
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.contract import contract

__all__ = ["COUNTS", "Compiled", "compile_trace", "find", "load", "store"]

MAX_LOADED: Final = 1024  # kernels kept loaded per process

# How often this process did what; `kernel.cache_info()` shows a kernel's own.
COUNTS: Final[Counter[str]] = Counter()


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A canonical trace with its artifact.

    Attributes:
        cached: where the artifact came from: True for the cache, False for the compiler.
        origin: which kernel the trace was recorded of, where that is known.
    """

    trace: Trace
    key: Key
    artifact: Artifact
    cached: bool
    origin: Origin | None


@lru_cache(maxsize=1)
def store() -> Store:
    """The process's store; made at the first use."""
    try:
        return Store.open()
    except CacheStoreError as error:
        raise CacheError(error.message, mend=error.mend) from None


def compile_trace(trace: Trace, target: Target, origin: Origin | None = None) -> Compiled:
    """The artifact of a recorded trace: from the cache, or compiled now and stored.

    Args:
        origin: of the trace, where it is known: for lists, for ``KHALJIT_RECORD``, for the salt.
    """
    trace, name = _canonical(trace, target, origin)
    if origin is not None:
        origin.record(target.text)
    try:
        found = _look_up(trace, name, target, origin)
        if found is not None:
            COUNTS["cached"] += 1
            return found
        with store().building(name, target.tool_version) as building:
            if building.artifact is not None:  # another process built it meanwhile
                COUNTS["cached"] += 1
                return Compiled(trace, name, building.artifact, True, origin)
            COUNTS["compiled"] += 1
            artifact = target.compile(trace)
            if origin is not None:
                artifact = artifact.told(origin.about(target.text))
            store().put(name, artifact)
    except CacheStoreError as error:
        raise CacheError(error.message, mend=error.mend) from None
    return Compiled(trace, name, artifact, False, origin)


def find(trace: Trace, target: Target, origin: Origin | None = None) -> Compiled | None:
    """The artifact of a recorded trace, if it is in the cache."""
    return _look_up(*_canonical(trace, target, origin), target, origin)


def _canonical(trace: Trace, target: Target, origin: Origin | None) -> tuple[Trace, Key]:
    check(trace)
    trace = contract(trace)
    if target.reports:
        trace = with_reports(trace)
    return trace, key_of(trace, target, origin.salt if origin else None)


def _look_up(trace: Trace, name: Key, target: Target, origin: Origin | None) -> Compiled | None:
    """What the cache has of a canonical trace for a target, else for one of its substitutes."""
    artifact = store().get(name, target.tool_version)
    if artifact is not None:
        return Compiled(trace, name, artifact, True, origin)
    for other in target.substitutes():
        name = key_of(trace, other, origin.salt if origin else None)
        artifact = store().get(name, other.tool_version)
        if artifact is not None:
            return Compiled(trace, name, artifact, True, origin)
    return None


_LOADED: Final[OrderedDict[tuple[Device, Key], Loaded]] = OrderedDict()
_LOCK: Final = threading.Lock()


def load(device: Device, compiled: Compiled) -> Loaded:
    """The artifact on a device; loaded once while it is in use."""
    place = (device, compiled.key)
    with _LOCK:
        found = _LOADED.get(place)
        if found is not None:
            _LOADED.move_to_end(place)
            return found
    with apart(device):
        found = device.load_artifact(compiled.artifact, compiled.trace)
        found.origin = compiled.origin
        if has_report(compiled.trace):
            found = Reporting(device, found, compiled.trace)
    with _LOCK:
        _LOADED[place] = found
        while len(_LOADED) > MAX_LOADED:
            _LOADED.popitem(last=False)
    return found
