"""Compiling ahead of time, in processes of their own: what ``khaljit warm`` does.

A piece of work is one specialisation with its targets: its kernel is imported where it is compiled,
in a process that was spawned, since one that was forked may have a driver or threads half alive in
it. What is in the cache is left alone, so warming again goes on where it was broken off.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stdout
from functools import lru_cache
from types import ModuleType
from typing import Final, Literal, final

from khaljit import compiler, modules
from khaljit.devices import target as target_of
from khaljit.jit import Kernel, jit
from khaljit.manifest import Manifest, Specialisation
from khaljit.tracer.errors import ArgumentValueError, KhaljitError
from khaljit.tracer.records import dataclass

__all__ = ["Outcome", "Work", "collect", "load_kernel", "warm"]

AHEAD: Final = 2  # pieces of work handed out per worker, so that none waits for the next


@final
@dataclass(frozen=True, slots=True)
class Work:
    """A specialisation, and the targets to compile it for, as texts."""

    specialisation: Specialisation
    targets: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a specialisation for one target.

    Attributes:
        state: ``compiled`` now; ``there`` already; ``missing``, where nothing was to be compiled;
            ``failed``, for the reason that ``message`` gives.
    """

    specialisation: Specialisation
    target: str
    state: Literal["compiled", "there", "missing", "failed"]
    seconds: float = 0.0
    message: str = ""


# What there is to do.


def load_kernel(path: str) -> Kernel:
    """The kernel at a path such as ``package.module:kernel``; ArgumentValueError where none is."""
    found = modules.find(path)
    if not isinstance(found, Kernel):
        raise ArgumentValueError(
            f"{path} is no kernel", mend="name a function decorated with @kj.jit"
        )
    return found


def collect(sources: Sequence[str], targets: Sequence[str]) -> list[Work]:
    """What some manifests, scripts and modules ask for.

    Args:
        sources: ``*.json`` is a manifest. The kernels of a module, of the modules of a package,
            and of a script (``*.py``) declare their signatures: ``@kj.jit(signatures=[...])``.
        targets: to compile for, as `khaljit.devices.target` takes them. If none is given, those
            that a manifest lists, and this machine's CPU for the others.

    Raises:
        ArgumentValueError: a source or a target is none, or nothing is to be done.
    """
    targets = [target_of(one).text for one in targets]
    manifest = Manifest()
    for source in sources:
        if source.endswith(".json"):
            for one, recorded in Manifest.read(source).targets.items():
                manifest.targets.setdefault(one, set()).update(_chosen(recorded, targets))
        else:
            for one in _declared(source):
                for target in targets or [target_of("cpu:native").text]:
                    manifest.add(one, target)
    if not manifest.targets:
        raise ArgumentValueError(
            f"no kernel of {', '.join(sources)} says what to compile",
            mend='declare it: @kj.jit(signatures=["f32[:], f32"]); or record what a program uses: '
            "KHALJIT_RECORD=manifest.json python program.py",
        )
    return [Work(one, tuple(sorted(found))) for one, found in sorted(manifest.targets.items())]


def _chosen(recorded: Iterable[str], targets: Sequence[str]) -> list[str]:
    """The recorded targets, or given ones, with the variants that were recorded of their kind."""
    if not targets:
        return list(recorded)
    chosen = list(targets)
    for one in recorded:
        base, _, variant = one.partition("/")
        if variant:
            chosen += [
                f"{target if ':' in target else f'{target}:'}/{variant}"
                for target in targets
                if "/" not in target and target.partition(":")[0] == base.partition(":")[0]
            ]
    return chosen


def _declared(source: str) -> Iterator[Specialisation]:
    """What the kernels of a script, module or package declare."""
    with redirect_stdout(sys.stderr):
        found = {source: modules.load_module(source)}
        path = getattr(found[source], "__path__", ())
        for one in pkgutil.walk_packages(path, f"{source}."):
            if not one.name.endswith(".__main__"):
                found[one.name] = modules.load_module(one.name)
    seen: set[int] = set()
    for name, module in found.items():
        for place, kernel in _kernels(module):
            if id(kernel) not in seen:
                seen.add(id(kernel))
                for signature, options in kernel.specialisations:
                    yield Specialisation.of(f"{name}:{place}", signature, options)


def _kernels(module: ModuleType) -> Iterator[tuple[str, Kernel]]:
    """The kernels in a module and in its classes, by name."""
    for name, value in vars(module).items():
        if isinstance(value, Kernel):
            yield name, value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner in vars(value):
                kernel = getattr(value, inner, None)
                if isinstance(kernel, Kernel):
                    yield f"{name}.{inner}", kernel


# Doing it.


def warm(work: Sequence[Work], workers: int, *, check: bool = False) -> Iterator[Outcome]:
    """Compile what is not in the cache, and go on past what fails.

    Args:
        workers: how many processes compile at once.
        check: only look whether it is there.
    """
    if compiler.store().directory is None:
        raise ArgumentValueError(
            "there is no cache on disk to warm",
            mend="unset KHALJIT_CACHE, or set KHALJIT_CACHE_DIR",
        )
    waiting = deque(work)
    while waiting:
        flying: dict[Future[list[Outcome]], Work] = {}
        pool = _pool(min(workers, len(waiting)))
        try:
            while waiting or flying:
                while waiting and len(flying) < AHEAD * workers:
                    flying[pool.submit(_compile, waiting[0], check)] = waiting[0]
                    waiting.popleft()
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    outcomes = future.result()
                    del flying[future]
                    yield from outcomes
        except BrokenProcessPool:
            pass
        finally:
            pool.shutdown(cancel_futures=True)
        for future, one in flying.items():  # a process died: with one of these
            if future.done() and future.exception() is None:
                yield from future.result()
            else:
                yield from _compile_alone(one, check)


def _compile_alone(work: Work, check: bool) -> Iterator[Outcome]:
    """Each target in a process that may die."""
    for target in work.targets:
        with _pool(1) as pool:
            future = pool.submit(_compile, Work(work.specialisation, (target,)), check)
            try:
                yield from future.result()
            except BrokenProcessPool:
                message = "the process that compiled it died"
                yield Outcome(work.specialisation, target, "failed", message=message)


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
    )


def _begin() -> None:
    """Make a worker: it records nothing, leaves standard output to its parent, who is also the one
    to be interrupted, and a cache that cannot be written to is a failure."""
    os.environ.pop("KHALJIT_RECORD", None)
    os.environ["KHALJIT_CACHE_STRICT"] = "1"
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile(work: Work, check: bool) -> list[Outcome]:
    return [_compile_for(work.specialisation, target, check) for target in work.targets]


def _compile_for(one: Specialisation, target: str, check: bool) -> Outcome:
    begun = time.perf_counter()
    try:
        request = _kernel(one.kernel, one.options).request(one.signature, target=target)
        if check:
            state = "there" if compiler.find(*request) else "missing"
        else:
            state = "there" if compiler.compile_trace(*request).cached else "compiled"
    except KhaljitError as error:
        return Outcome(one, target, "failed", time.perf_counter() - begun, str(error))
    except (Exception, SystemExit) as error:  # whatever an imported module raises
        message = f"{type(error).__name__}: {error}"
        return Outcome(one, target, "failed", time.perf_counter() - begun, message)
    return Outcome(one, target, state, time.perf_counter() - begun)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _kernel(path: str, options: str) -> Kernel:
    """A kernel with the options that a specialisation names."""
    chosen = json.loads(options)
    if "workgroup" in chosen:
        chosen["workgroup"] = tuple(chosen["workgroup"])
    kernel = load_kernel(path)
    made = jit(kernel.__wrapped__, **chosen)  # type: ignore[attr-defined]
    assert isinstance(made, Kernel)
    return made
