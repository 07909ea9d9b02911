"""Code that is loaded: each artifact once per device, for all kernels that need it."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Final, final

from khaljit.backends.base import Device, Loaded
from khaljit.codegen.reports import has_report
from khaljit.compiler import Compiled, again
from khaljit.graphs.capture import apart
from khaljit.logs import log

__all__ = ["load"]

MAX_IDLE: Final = 1024
"""Kernels that a device keeps loaded though nobody holds them."""

_LOCK: Final = threading.Lock()


@final
class Modules:
    """What a device has loaded, by content: what the code is, and where its messages point.

    Whatever is held, by a plan or a graph, is found; of the rest, those used last. So kernels that
    are made in a loop share their code, and do not pile up.
    """

    def __init__(self) -> None:
        self._held: Final[weakref.WeakValueDictionary[object, Loaded]] = (
            weakref.WeakValueDictionary()
        )
        self._recent: Final[OrderedDict[object, Loaded]] = OrderedDict()

    @classmethod
    def of(cls, device: Device) -> Modules:
        """Those of a device."""
        with _LOCK:
            if device.modules is None:
                device.modules = cls()
            return device.modules

    def get(self, content: object) -> Loaded | None:
        with _LOCK:
            found = self._held.get(content)
            if found is not None:
                self._keep(content, found)
            return found

    def put(self, content: object, loaded: Loaded) -> Loaded:
        """Keep what was loaded; gives what another thread loaded first, if one did."""
        with _LOCK:
            found = self._held.setdefault(content, loaded)
            self._keep(content, found)
            return found

    def _keep(self, content: object, loaded: Loaded) -> None:
        self._recent[content] = loaded
        self._recent.move_to_end(content)
        while len(self._recent) > MAX_IDLE:
            self._recent.popitem(last=False)


def load(device: Device, compiled: Compiled) -> Loaded:
    """An artifact on a device, loaded once while it is in use."""
    modules = Modules.of(device)
    trace = compiled.trace
    content = (compiled.key, trace.name, trace.sites)
    found = modules.get(content)
    if found is not None:
        return found
    with apart(device):
        found = _loaded(device, compiled)
        found.origin = compiled.origin
        if has_report(trace):
            from khaljit.backends.reporting import Reporting  # for kernels that print or assert

            found = Reporting(device, found, trace)
    return modules.put(content, found)


def _loaded(device: Device, compiled: Compiled) -> Loaded:
    """Load what the cache had, or what is compiled where that cannot be loaded."""
    try:
        return device.load_artifact(compiled.artifact, compiled.trace)
    except Exception as error:
        if not compiled.cached or device.lost:
            raise
        log("cache", f"{compiled.trace.name} cannot be loaded ({error}); it is compiled again")
    compiled = again(compiled, device.target)
    return device.load_artifact(compiled.artifact, compiled.trace)
