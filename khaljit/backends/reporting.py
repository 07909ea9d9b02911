"""What kernels print and which assertions fail, read from the device and told to the user.

A kernel that says something is loaded as `Reporting`, which passes the hidden parameters (see
``codegen/reports.py``). On a device with memory of its own all kernels share one report, which is
read when the device is observed; launches on the host have one each, read at their end.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, final

import numpy as np

from khaljit.arrays import Array
from khaljit.backends.base import Device, Loaded, NativeTarget
from khaljit.codegen.layout import SLOT
from khaljit.codegen.reports import (
    DROPPED,
    FAILED,
    FAILURE,
    HEADER,
    USED,
    announcements,
    read_record,
)
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.tracer.dtypes import u32
from khaljit.tracer.errors import ArgumentValueError, KernelError, Site
from khaljit.tracer.ir import Trace
from khaljit.tracer.rendering import render

__all__ = ["OwnReport", "Reporting", "Reports", "failure", "launching"]

Numbers = Sequence[int | float | bool]

_DEFAULT_BYTES: Final = 1 << 20
_LOCK: Final = threading.Lock()


def failure(
    kernel: str, message: str, at: Site | None, invocation: tuple[int, int, int]
) -> KernelError:
    """The error for an assertion that failed in an invocation, whose global id is x first."""
    return KernelError(f"kernel {kernel}: {message} in invocation {invocation}", at=at)


def log_words() -> int:
    """Words for what is printed between two observations: ``KHALJIT_PRINT_BYTES``, or 1 MiB."""
    said = os.environ.get("KHALJIT_PRINT_BYTES") or str(_DEFAULT_BYTES)
    if not said.isdecimal() or int(said) >= 1 << 31:
        raise ArgumentValueError(
            f"KHALJIT_PRINT_BYTES is {said!r}", mend="set it to a number of bytes below 2 GiB"
        )
    return int(said) // u32.size


@final
class Reports:
    """The report of a device with memory of its own."""

    def __init__(self, device: Device) -> None:
        # No cycle through the device: what it holds is freed with it.
        self._device: Final = weakref.ref(device)
        self._lock: Final = threading.RLock()
        self._kernels: Final[weakref.WeakValueDictionary[int, Reporting]] = (
            weakref.WeakValueDictionary()
        )
        self._loaded = 0
        self._launched: dict[int, Reporting] = {}  # since the device was observed
        array = device.empty(HEADER + log_words(), u32)
        device.write(array[:HEADER], np.zeros(HEADER, np.uint32))
        self.operand: Final = _operand(array)
        self._array: Final = array

    @classmethod
    def of(cls, device: Device) -> Reports:
        """The one of a device, made at the first call."""
        with _LOCK:
            if device.reports is None:
                device.reports = cls(device)
            return device.reports

    def add(self, kernel: Reporting) -> int:
        """The number of a kernel that was loaded."""
        with self._lock:
            self._loaded += 1
            self._kernels[self._loaded] = kernel
            return self._loaded

    @contextmanager
    def launching(self, *kernels: Reporting) -> Iterator[None]:
        """To be held while kernels are enqueued, so that nobody empties the report meanwhile."""
        with self._lock:
            self._launched.update({kernel.number: kernel for kernel in kernels})
            yield

    def observe(self) -> None:
        """Show what was printed, and raise the first failure, of all that was launched."""
        device = self._device()
        with self._lock:
            if not self._launched or device is None:
                return
            launched, self._launched = self._launched, {}
            header = device.read(self._array[:HEADER])
            if not header[[FAILED, USED, DROPPED]].any():
                return
            log = device.read(self._array[HEADER : HEADER + int(header[USED])])
            device.write(self._array[:HEADER], np.zeros(HEADER, np.uint32))
        kernels = {**self._kernels, **launched}
        _tell(header, log, kernels.__getitem__)


@final
class Reporting(Loaded):
    """A kernel that prints or asserts.

    Attributes:
        code: the kernel as it was loaded, which takes the hidden parameters too.
        prints: whether it prints.
    """

    def __init__(self, device: Device, loaded: Loaded, trace: Trace) -> None:
        self.name: Final = trace.name
        self.announcements: Final = announcements(trace)
        self.index_bits: Final = trace.index_bits
        self.code: Final = loaded
        self.prints: Final = not all(one.fails for one in self.announcements)
        self._device: Final = device
        self._reports: Final = Reports.of(device) if device.has_own_memory else None
        self.number: Final = self._reports.add(self) if self._reports is not None else 0

    def launch(
        self, operands: Sequence[Operand], numbers: Numbers, groups: Grid | Indirect
    ) -> None:
        """Enqueue the kernel; on the host, tell what it said."""
        if self._reports is None:
            own = OwnReport(self._device, self)
            self.code.launch((*operands, own.operand), (*numbers, self.number), groups)
            own.tell()
            return
        with self._reports.launching(self):
            self.code.launch(*self.passed(operands, numbers), groups)

    def passed(
        self, operands: Sequence[Operand], numbers: Numbers
    ) -> tuple[Sequence[Operand], Numbers]:
        """What the code takes, on a device whose kernels share a report."""
        assert self._reports is not None
        return (*operands, self._reports.operand), (*numbers, self.number)

    def native(self) -> NativeTarget | None:
        """By `repeat`, where kernels share a report."""
        if self._reports is None or self.code.native() is None:
            return None
        return NativeTarget("called", (self.repeat,))

    def repeat(self, key: bytes, arrays: Sequence[Array[Any]], numbers: Sequence[Any]) -> None:
        """Enqueue the kernel with the hidden parameters."""
        assert self._reports is not None
        (operand,), (number,) = self.passed((), ())
        owner, grid = operand.owner, 3 * SLOT
        assert isinstance(owner, Array)
        slots = (operand.address, *operand.shape, *operand.strides)
        whole = key[:-grid] + struct.pack(f"={len(slots)}q", *slots) + key[-grid:]
        with self._reports.launching(self):
            self.code.repeat(whole, (*arrays, owner), (*numbers, number))


@final
class OwnReport:
    """The report of one kernel, in the host's memory.

    Attributes:
        failed: where the word is that says whether it failed.
        prints: whether the kernel prints.
    """

    def __init__(self, device: Device, kernel: Reporting) -> None:
        array = device.scratch((HEADER + (log_words() if kernel.prints else 0),), u32)
        self._kernel: Final = kernel
        self.prints: Final = kernel.prints
        self._words: Final = array.buffer.view(np.uint32)
        self._words[:HEADER] = 0
        self.operand: Final = _operand(array)
        self.failed: Final = array.address + FAILED * u32.size

    def tell(self) -> None:
        """Show what was printed and raise what failed; then it is empty."""
        words = self._words
        if not words[:HEADER].any():
            return
        header = words[:HEADER].copy()
        words[:HEADER] = 0
        _tell(header, words[HEADER : HEADER + int(header[USED])], lambda _: self._kernel)


def launching(kernels: Sequence[Reporting]) -> AbstractContextManager[Any]:
    """To be held while kernels of one device are enqueued, so that nobody empties their report."""
    if not kernels:
        return nullcontext()
    reports = kernels[0]._reports
    assert reports is not None
    return reports.launching(*kernels)


def _operand(array: Array[Any]) -> Operand:
    return Operand("the report", array, u32, array.shape, array.units, array.address)


def _tell(
    header: np.ndarray[Any, Any], log: np.ndarray[Any, Any], kernel_of: Callable[[int], Reporting]
) -> None:
    """Print the log and what did not fit in it, and raise what failed."""
    texts = []
    while log.size:
        kernel = kernel_of(int(log[0]))
        note = kernel.announcements[int(log[1])]
        record = read_record(log, note.types, kernel.index_bits)
        texts.append(render(note.template, record.operands))
        log = log[record.size :]
    print(end="".join(texts), flush=bool(texts))
    if header[DROPPED]:
        print(
            f"{header[DROPPED]} prints of kernels are lost: there is room for {4 * log_words()} "
            "bytes; set KHALJIT_PRINT_BYTES to more, or wait for the device more often",
            file=sys.stderr,
        )
    if header[FAILED]:
        words = header[FAILURE:]
        kernel = kernel_of(int(words[0]))
        note = kernel.announcements[int(words[1])]
        record = read_record(words, note.types, kernel.index_bits)
        message = render(note.template, record.operands)
        raise failure(kernel.name, message, note.at, record.invocation)
