"""What works on this machine, and what to do about the rest: ``khaljit doctor``.

Every kind of device is opened and runs a kernel whose result is checked; what is missing comes
with the way to get it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final, final

import numpy as np

import khaljit as kj
from khaljit import compiler
from khaljit.backends.base import Device
from khaljit.backends.webgpu import adapters
from khaljit.extension import NATIVE
from khaljit.tracer.errors import DeviceError, KhaljitError
from khaljit.tracer.records import dataclass

__all__ = ["Finding", "adapter_facts", "examine"]

PACKAGES: Final = ("numpy", "llvmlite", "wgpu", "diskcache", "xxhash")
SIZE: Final = 1000


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        good: it is as it should be; None where it is only said.
        mends: what to do about it.
        broken: it is here and does not work.
    """

    subject: str
    good: bool | None
    text: str
    mends: tuple[str, ...] = ()
    broken: bool = False


@kj.jit
def _trial(a: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    a[i] = a[i] * 3.0 + 1.0


def examine() -> Iterator[Finding]:
    """Look at everything in turn."""
    yield Finding(
        "system", None, f"Python {platform.python_version()}, {sys.platform}, {platform.machine()}"
    )
    yield Finding("packages", None, ", ".join(map(_package, PACKAGES)))
    yield _launching()
    yield _cache()
    for kind, found in kj.devices().items():
        if isinstance(found, Device):
            yield _run(kind, found)
        else:
            yield Finding(kind, False, found.message, _mends(kind, found))
    yield from _cuda()
    yield _choice()


def adapter_facts() -> dict[str, dict[str, str]]:
    """Every WebGPU adapter by the name of its device, with what it is, has and lacks."""
    try:
        found = adapters.adapters()
    except DeviceError:
        return {}
    return {
        f"webgpu:{number}": adapters.facts(one.info, one.features, one.limits)
        for number, one in enumerate(found)
    }


def _package(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"{name} missing"


def _launching() -> Finding:
    if NATIVE is not None:
        return Finding("launching", True, "native")
    if os.environ.get("KHALJIT_NATIVE") == "0":
        return Finding("launching", False, "by Python, which is slow", ("unset KHALJIT_NATIVE",))
    return Finding(
        "launching",
        False,
        "by Python, which is slow: the native extension was not built, or NumPy differs from it",
        ("install khaljit again where there are a C compiler and Python's headers",),
    )


def _cache() -> Finding:
    found = compiler.store().info()
    if found.directory is None:
        return Finding("cache", False, "in memory only", ("make KHALJIT_CACHE_DIR writable",))
    return Finding("cache", True, f"{found.entries} entries in {found.directory}")


def _run(kind: str, found: Device) -> Finding:
    """The device's facts, once a kernel has given the right result."""
    facts = ", ".join(f"{name}: {value}" for name, value in found.describe().items())
    values = np.arange(SIZE, dtype=np.float32)
    try:
        array = found.array(values)
        _trial[SIZE](array)
        result = array.numpy()
    except KhaljitError as error:
        return Finding(
            kind, False, f"{facts}; a kernel fails: {error.message}", _mends(kind, error), True
        )
    if kind != "null" and not (result == values * 3 + 1).all():
        return Finding(kind, False, f"{facts}; a kernel gives a wrong result", ("report it",), True)
    return Finding(kind, True, facts)


def _mends(kind: str, error: KhaljitError) -> tuple[str, ...]:
    own = (error.mend,) if error.mend else ()
    if kind == "webgpu":
        return (*own, *(f"{system}: {command}" for system, command in adapters.DRIVERS.items()))
    return own


def _cuda() -> Iterator[Finding]:
    """What CUDA needs, each with what it is for."""
    from khaljit.backends.cuda.doctor import examine as examine_cuda

    for part in examine_cuda():
        subject = f"cuda: {part.name}"
        if part.found is None:
            yield Finding(subject, False, "missing", (part.note,))
        else:
            yield Finding(subject, True, f"{part.found}; {part.note}")


def _choice() -> Finding:
    found = kj.device("auto")
    return Finding("auto", None, f"{found}: {found.reason}")
