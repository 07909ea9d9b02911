"""From a recording to its code, through the cache.

record -> key -> cached? read : contract, compile and store; `loading` makes it ready to launch
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.aside import Aside
from khaljit.backends.base import Target
from khaljit.cache.artifact import Artifact
from khaljit.cache.errors import CacheStoreError
from khaljit.cache.keys import Key
from khaljit.cache.store import Found, Store
from khaljit.codegen.reports import NOTES
from khaljit.generators import RUNNING, generators
from khaljit.keying import key_of
from khaljit.logs import log, wants
from khaljit.origin import Origin
from khaljit.tracer.errors import (
    CacheError,
    CapabilityError,
    InternalError,
    KhaljitError,
    TraceError,
)
from khaljit.tracer.ir import Trace, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.cache.info import Info

__all__ = [
    "COUNTS",
    "Compiled",
    "again",
    "cache_info",
    "canonical_key",
    "compile_trace",
    "find",
    "ready",
    "store",
]

MAX_FAILED: Final = 256  # errors of compilations that are remembered

# How often this process did what; `kernel.cache_info()` shows a kernel's own.
COUNTS: Final[Counter[str]] = Counter()


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A trace with its artifact.

    Attributes:
        trace: as it was recorded, with the parameters of its reports.
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
    with _errors():
        return Store.open()


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of the store, which ``KHALJIT_CACHE_STRICT=1`` asks for, as khaljit's own."""
    try:
        yield
    except CacheStoreError as error:
        raise CacheError(error.message, mend=error.mend) from None


def ready() -> None:
    """Do what a first launch needs of any kernel, while a device is opened, which takes longer."""
    with suppress(CacheError):  # which is the launch's to tell
        store()
    generators()


def cache_info() -> Info:
    """What the cache holds, and how it did in this process: see `khaljit.cache.info.Info`.

    >>> import khaljit as kj
    >>> info = kj.cache_info()
    >>> info.hits == sum(info.sources.values()) and info.misses == sum(info.reasons.values())
    True
    """
    with _errors():
        return store().info()


def compile_trace(trace: Trace, target: Target, origin: Origin | None = None) -> Compiled:
    """The artifact of a recorded trace: from the cache, or compiled now and stored.

    Args:
        origin: of the trace, where it is known: for lists, for ``KHALJIT_RECORD``, for the salt.
    """
    trace, name = canonical_key(trace, target, origin)
    if not target.kept:
        return Compiled(trace, name, target.compile(trace), False, origin)
    if origin is not None:
        origin.record(target.text)
    with _errors():
        return _look_up(trace, name, target, origin) or _build(trace, name, target, origin)


def again(compiled: Compiled, target: Target) -> Compiled:
    """Compile what the cache had and could not be loaded."""
    store().discard(compiled.key)
    return compile_trace(compiled.trace, target, compiled.origin)


def find(trace: Trace, target: Target, origin: Origin | None = None) -> Compiled | None:
    """The artifact of a recorded trace, if it is in the cache."""
    return _look_up(*canonical_key(trace, target, origin), target, origin)


def canonical_key(trace: Trace, target: Target, origin: Origin | None = None) -> tuple[Trace, Key]:
    """A recorded trace with the parameters of its reports, and the key of its code.

    Refuses barriers that not all reach.
    """
    ops = {effect.op for effect in effects(trace.body)}
    if Op.BARRIER in ops or Op.SUBGROUP in ops:
        from khaljit.tracer.convergence import check  # an analysis, for those who need it

        check(trace)
    if target.reports and not ops.isdisjoint(NOTES):
        from khaljit.codegen.numbering import with_reports  # a pass, for those that report

        trace = with_reports(trace)
    return trace, key_of(trace, target, origin.salt if origin else None)


def _look_up(trace: Trace, name: Key, target: Target, origin: Origin | None) -> Compiled | None:
    """What the cache has of a trace for a target, else for one of its substitutes."""
    for other in _usable(target):
        if other is not target:
            name = key_of(trace, other, origin.salt if origin else None)
        found = store().look(name, other.tool_version)
        if wants("cache"):
            _log(found, trace, other, name)
        if found.artifact is not None:
            _count("cached")
            return Compiled(trace, name, found.artifact, True, origin)
    return None


def _usable(target: Target) -> Iterator[Target]:
    """A target; and after a miss, as it takes time to find out what is here, its substitutes."""
    yield target
    yield from target.substitutes()


def _build(trace: Trace, name: Key, target: Target, origin: Origin | None) -> Compiled:
    """Compile a trace, or take what another thread or process compiled meanwhile."""
    with store().building(name, target.tool_version) as building:
        if building.artifact is not None:
            _count("cached")
            if wants("cache"):
                _log(building.found, trace, target, name)
            return Compiled(trace, name, building.artifact, True, origin)
        _count("compiled")
        began = time.perf_counter()
        aside = Aside(lambda: _for_keeping(target, origin))
        artifact = _compiled(trace, name, target, origin, aside.start)
        milliseconds = 1e3 * (time.perf_counter() - began)
        log("compile", f"{trace.name} for {target.text} in {milliseconds:.1f} ms")
        about, keeps = aside.result()
        artifact = artifact.told(about)
        if keeps:
            store().put(name, artifact)
        return Compiled(trace, name, artifact, False, origin)


def _for_keeping(target: Target, origin: Origin | None) -> tuple[dict[str, Any], bool]:
    """What the cache's lists say of code that is made now, and whether it may be kept."""
    store().open_ahead()
    about = {} if origin is None else origin.about(target.text)
    return about, not RUNNING.have_changed()


def _compiled(
    trace: Trace,
    name: Key,
    target: Target,
    origin: Origin | None,
    emitted: Callable[[], None],
) -> Artifact:
    """What a target makes of a trace; what failed once fails at once, with the same error."""
    place = (name, trace.name, trace.sites, origin and origin.kernel.__wrapped__.__code__)
    with _LOCK:
        failed = _FAILED.get(place)
    if failed is not None:
        raise copy.copy(failed)
    from khaljit.tracer.passes.contract import contract  # a pass, for those who compile

    try:
        return target.compile(contract(trace), emitted)
    except (CapabilityError, InternalError, TraceError) as error:  # others may pass
        with _LOCK:
            _FAILED[place] = copy.copy(error)
            while len(_FAILED) > MAX_FAILED:
                _FAILED.popitem(last=False)
        raise


def _count(what: str) -> None:
    with _LOCK:
        COUNTS[what] += 1


def _log(found: Found, trace: Trace, target: Target, name: Key) -> None:
    result = f"hit, from {found.outcome}" if found.artifact else f"miss, {found.outcome}"
    detail = f" ({found.detail})" if found.detail else ""
    log("cache", f"{result}{detail}: {trace.name} for {target.text}, {name}")


_FAILED: Final[OrderedDict[object, KhaljitError]] = OrderedDict()
_LOCK: Final = threading.Lock()
