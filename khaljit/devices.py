"""Choosing a device: by name, by environment, or the current one of the context."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from khaljit.backends.base import Device, Target
from khaljit.backends.cpu.device import CpuDevice  # the default: most processes have a use for it
from khaljit.cache import place
from khaljit.extension import Watched
from khaljit.tracer.errors import ArgumentValueError, DeviceError, KhaljitError

__all__ = ["CURRENT", "current_device", "device", "devices", "target", "use"]


def _cpu(number: int | None, **options: Any) -> Device:
    _refuse_number("cpu", number)
    return CpuDevice(**options)


def _cuda(number: int | None) -> Device:
    from khaljit.backends.cuda.device import CudaDevice
    from khaljit.rehearsal import rehearsing

    return CudaDevice(number or 0, wait=lambda call: rehearsing(call, "cuda:sm_90", "ptx"))


def _interpreter(number: int | None) -> Device:
    from khaljit.backends.reference import InterpreterDevice

    _refuse_number("interpreter", number)
    return InterpreterDevice()


def _webgpu(number: int | None, **options: Any) -> Device:
    from khaljit.backends.webgpu.device import WebGpuDevice

    return WebGpuDevice(number, **options)


def _null(number: int | None) -> Device:
    from khaljit.backends.null import NullDevice

    _refuse_number("null", number)
    return NullDevice()


def _python(number: int | None, **options: Any) -> Device:
    from khaljit.backends.python.device import PythonDevice

    _refuse_number("python", number)
    return PythonDevice(**options)


def _refuse_number(kind: str, number: int | None) -> None:
    if number:
        raise ArgumentValueError(f"there is one {kind} device", mend=f'write kj.device("{kind}")')


# Kinds of devices with what opens one; `auto` tries those that `AUTO` lists, in order, and takes
# a WebGPU adapter only if it is hardware.
_KINDS: Final[dict[str, Callable[..., Device]]] = {
    "cuda": _cuda,
    "webgpu": _webgpu,
    "cpu": _cpu,
    "interpreter": _interpreter,
    "null": _null,
    "python": _python,
}
AUTO: Final = ("cuda", "webgpu", "cpu")

_OPEN: Final[dict[tuple[object, ...], Device]] = {}
_LOCK: Final = threading.Lock()


def device(name: str = "auto", **options: Any) -> Device:
    """A device by name: ``"cuda"``, ``"webgpu"``, ``"cpu"``, ``"python"``, ``"interpreter"``,
    ``"null"``, or ``"auto"``.

    ``auto`` takes CUDA, else a WebGPU adapter that is hardware, else the CPU; ``device.reason``
    says why.

    ``kj.device("cpu", threads=2)`` limits the threads of a launch. ``kj.device("python")`` runs the
    kernel's own function, for a debugger; ``seed=`` shuffles the order of its invocations. One
    device object is made per name and options. A device that is asked for by name and missing is a
    DeviceError.
    """
    kind, _, number = name.partition(":")
    if kind == "auto":
        return device("python") if _debugging() else _auto()
    if kind not in _KINDS:
        raise ArgumentValueError(
            f"there is no kind of device called {kind!r}",
            mend=f"the kinds are {', '.join(_KINDS)}, and auto",
        )
    if number and not number.isdecimal():
        raise ArgumentValueError(f"{name!r} names no device", mend=f'write "{kind}" or "{kind}:1"')
    which = "" if number == "0" and kind == "cuda" else number  # the first one is the default
    key = (kind, which, tuple(sorted(options.items())))
    with _LOCK:
        found = _OPEN.get(key)
        if found is None or found.lost:
            found = _OPEN[key] = _KINDS[kind](int(number) if number else None, **options)
    return found


def _auto() -> Device:
    reasons = []
    for kind in AUTO:
        try:
            if kind == "webgpu":
                _expect_hardware()
            found = device(kind)
        except DeviceError as error:
            reasons.append(f"no {kind}: {error.message}")
            continue
        found.reason = "; ".join((*reasons, f"so {found}" if reasons else f"{found} comes first"))
        return found
    raise DeviceError("there is no device to run on: " + "; ".join(reasons))


def _expect_hardware() -> None:
    """Raise DeviceError where the only WebGPU adapter computes on the CPU, which is slower at that
    than khaljit's own code for it."""
    from khaljit.backends.webgpu import adapters

    adapters.choose(None, hardware=True)


def target(name: str) -> Target:
    """What code is made for. A device's name gives that device's; these need no device here:

    * ``cpu:native``, ``cpu:x86-64-v3``, ``cpu:aarch64-darwin``: a level of an instruction set, with
      the operating system (``linux``, ``darwin``, ``win32``) where it is another than this one;
    * ``cuda:sm_90``: an architecture; ``cuda:ptx``: text that the driver of any GPU compiles;
    * ``webgpu:f16+int64,shared=49152``: optional features and limits. ``webgpu`` alone is what
      every device has, and ``webgpu:native`` the device that is here.

    Raises:
        ArgumentValueError: nothing is called so.
        DeviceError: it names a device that is not here.
    """
    kind, _, detail = name.partition(":")
    if detail == "native" and kind in ("cuda", "webgpu"):
        return device(kind).target
    if kind == "webgpu" and not detail.isdecimal():
        from khaljit.backends.webgpu.target import parse as parse_webgpu

        return parse_webgpu(detail)
    if detail and not detail.isdecimal():
        if kind == "cpu":
            from khaljit.backends.cpu.target import parse as parse_cpu

            return parse_cpu(detail)
        if kind == "cuda":
            from khaljit.backends.cuda.target import parse as parse_cuda

            return parse_cuda(detail)
    return device(name).target


def devices() -> dict[str, Device | KhaljitError]:
    """Every kind of device: the device, or the error that says why it is not there."""
    found: dict[str, Device | KhaljitError] = {}
    for kind in _KINDS:
        try:
            found[kind] = device(kind)
        except KhaljitError as error:
            found[kind] = error
    return found


CURRENT: Final[Watched[Device | None]] = Watched("khaljit_device", None, is_device=True)


def current_device() -> Device:
    """The device that kernels run on when all their arrays are NumPy's.

    What `use` set; else ``KHALJIT_DEVICE``; else the CPU. ``KHALJIT_INTERPRET=1`` is the device
    ``python`` instead of the last two.
    """
    found = CURRENT.get()
    if found is None:
        name = os.environ.get("KHALJIT_DEVICE") or "cpu"
        found = _default("python" if _debugging() else name)
    return found


def _debugging() -> bool:
    """Whether kernels are to run as plain Python."""
    return place.is_on("KHALJIT_INTERPRET")


@lru_cache(maxsize=8)
def _default(name: str) -> Device:
    return device(name)


class use:  # noqa: N801  # called like a function
    """Make a device current: ``kj.use(dev)``, or for a block ``with kj.use(dev): ...``."""

    def __init__(self, chosen: Device | str) -> None:
        self._token = CURRENT.set(device(chosen) if isinstance(chosen, str) else chosen)

    def __enter__(self) -> Device:
        return current_device()

    def __exit__(self, *exception: object) -> None:
        CURRENT.reset(self._token)
