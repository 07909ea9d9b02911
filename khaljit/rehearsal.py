"""A first launch for practice, while a device is opened.

Python runs code several times as slowly the first time in a process as later, and most of a first
launch is such code. Opening a GPU is waiting for its driver, which leaves the interpreter alone, so
meanwhile a kernel is launched that nobody asked for, on a device that runs nothing, and the
rewritten code of the program's own kernels is fetched. Where one of these was not kept, it is new,
and will be compiled: then that is practised too. All ends when the device is there.

It is the driver's call that has a thread: this one's processor is the one that has to know the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, TypeVar

import khaljit as kj
from khaljit import compiler
from khaljit.aside import Aside
from khaljit.backends.null import NullDevice
from khaljit.devices import target
from khaljit.jit import recent
from khaljit.logs import log

__all__ = ["rehearse", "rehearsing"]

T = TypeVar("T")

TIMES: Final = 3  # a fourth makes little difference
PAUSE: Final = 0.002  # seconds between two, once all is known

# The modules of a compilation, each of which is a step of its own
_COMPILING: Final = (
    "tracer.passes.contract",
    "backends.stages",
    "codegen.ptx.emit",
    "signature_text",
    "cache.filesystems",
    "cache.flight",
    "cache.index",
)


def rehearsing(call: Callable[[], T], name: str, stage: str) -> T:
    """What a call of a driver's gives; rehearses while it is waited for. See `rehearse`."""
    aside = Aside(call)
    aside.start()
    try:
        rehearse(name, stage, aside.is_done)
        _stay_ready(aside)
    except Exception as error:  # whose kernel it matters for is told then
        log("compile", f"the rehearsal for {name} failed: {error}")
    return aside.result()


def rehearse(name: str, stage: str, is_over: Callable[[], bool] = lambda: False) -> None:
    """Practise, step by step, until it is over.

    Args:
        name: a target's, such as ``cuda:sm_90``.
        stage: of its code, up to which a compilation is practised.
    """
    for _ in _steps(name, stage):
        if is_over():
            return


def _stay_ready(aside: Aside[Any]) -> None:
    """Go on, a third of the time: a processor that waits forgets the way, and runs slower after."""
    arguments = _arguments()
    while not aside.is_done(PAUSE):
        _launch(arguments)


def _arguments() -> tuple[Any, ...]:
    device = NullDevice()
    return device.zeros(1), device.zeros(1), device.zeros((1, 1)), 1.0


def _launch(arguments: tuple[Any, ...]) -> None:
    kj.jit(_practice)[1](*arguments)  # another kernel each time, with plans of its own


def _steps(name: str, stage: str) -> Iterator[None]:
    compiler.ready()
    yield
    arguments = _arguments()
    for _ in range(TIMES):
        _launch(arguments)
        yield
    for kernel in recent():
        kernel.rewrite_ahead()
        yield
    if "khaljit.tracer.syntax.functions" not in sys.modules:  # all were kept
        return
    for module in _COMPILING:
        with suppress(ImportError):  # a Python without SQLite has no index
            import_module(f"khaljit.{module}")
        yield
    for _ in range(TIMES):
        kj.jit(_practice).source(stage, *arguments, target=name)
        yield
    target(name).load_tools()


def _practice(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32], z: kj.Array2[kj.f32], a: kj.f32) -> None:
    """Some of what most kernels are made of."""
    i = kj.global_id(0)
    if i < y.size:
        total, weight = 0.0, 0.0
        for j in range(z.shape[1]):
            difference = x[j] - x[i]
            inverse = a / kj.sqrt(difference * difference + 0.01)
            weight += inverse
            total += inverse * z[i, j]
        y[i] = total * y[i] + weight
        if total > weight:
            y[i] = weight
