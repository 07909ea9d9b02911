"""Debuggers of the user's Python, while kernels are recorded and where they run in threads.

A debugger watches by a trace function, which each thread has for itself, or by ``sys.monitoring``,
which Python 3.12 brought and pdb takes since 3.14, for the thread it was started in alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["no_debugger", "trace_function"]


@contextmanager
def no_debugger() -> Iterator[None]:
    """No debugger stops in what runs here."""
    trace = sys.gettrace()
    monitoring: Any = getattr(sys, "monitoring", None)
    tool = None
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        tool = monitoring.DEBUGGER_ID
        events = monitoring.get_events(tool)
        monitoring.set_events(tool, 0)
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        if tool is not None:
            monitoring.set_events(tool, events)


def trace_function() -> Callable[..., Any] | None:
    """What another thread has to trace by, so that this thread's debugger stops there as well."""
    trace = sys.gettrace()
    monitoring: Any = getattr(sys, "monitoring", None)
    if trace is not None or monitoring is None:
        return trace
    if monitoring.get_tool(monitoring.DEBUGGER_ID) is None:
        return None
    start = monitoring.DEBUGGER_ID, monitoring.events.PY_START
    callback = monitoring.register_callback(*start, None)  # there is no other way to ask for it
    monitoring.register_callback(*start, callback)
    tracer = getattr(getattr(callback, "__wrapped__", None), "__self__", None)
    return getattr(tracer, "_tracefunc", None)  # pdb's; others watch all threads
