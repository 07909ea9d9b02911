"""How far off results of the math functions are.

f32 is judged where it was computed, by khaljit's own functions of f64. Those are judged on the
host, by the C library's functions of long double in ``math_judges.c``, which is compiled at need.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy as np

from benchmarks import math_kernels as kernels
from khaljit.tracer.dtypes import DType, f32
from khaljit.tracer.ops import Op

__all__ = ["F32Judge", "F64Judge", "Judge", "Verdict", "exact", "judge_f64", "judge_for"]

Array = np.ndarray[Any, Any]

SOURCE: Final = Path(__file__).with_suffix(".c")


class Verdict(ctypes.Structure):
    """The largest error in ulps, where it was, and how many results were wrong.

    Wrong are NaN, zeros and signs of zeros that should not be, or should. An infinity counts as
    the power of 2 after the largest float, so next to overflow either neighbour is right.
    """

    worst: float
    x: float
    y: float
    wrong: int
    _fields_ = (
        ("worst", ctypes.c_double),
        ("x", ctypes.c_double),
        ("y", ctypes.c_double),
        ("wrong", ctypes.c_int64),
    )

    def __add__(self, other: Verdict) -> Verdict:
        more = max(self, other, key=lambda one: one.worst)
        return Verdict(more.worst, more.x, more.y, self.wrong + other.wrong)


class Judge(Protocol):
    """Looks at arrays of arguments and results, as often as it is asked."""

    def add(self, x: Any, y: Any, out: Any) -> None: ...

    @property
    def verdicts(self) -> list[Verdict]:
        """Of what was added, in any parts."""


def judge_for(device: Any, op: Op, dtype: DType, chunk: int) -> Judge | None:
    """Who judges a device's results, at most ``chunk`` at a time; nobody f64 elsewhere than on the
    CPU, as results that have the same digest have the same errors."""
    if dtype is f32:
        return F32Judge(device, op, chunk)
    return F64Judge(op) if device.kind == "cpu" else None


class F32Judge:
    """Judges on a device; its arrays have all the same size."""

    def __init__(self, device: Any, op: Op, chunk: int) -> None:
        self._judge: Final = kernels.judge(op)
        self._errors: Final = device.empty(chunk, f32)
        self._invocations: Final = max(1, chunk >> 8)
        self._worst: Final = device.array(np.zeros((self._invocations, 4), np.float32))

    def add(self, x: Any, y: Any, out: Any) -> None:
        self._judge[out.size](x, y, out, self._errors)
        kernels.largest[self._invocations](x, y, self._errors, self._worst)

    @property
    def verdicts(self) -> list[Verdict]:
        worst = self._worst.numpy()
        error, x, y, _ = worst[worst[:, 0].argmax()].tolist()
        return [Verdict(error, x, y, int(worst[:, 3].sum()))]


class F64Judge:
    """Judges on the host; other threads run meanwhile. What is wrong has an infinite error."""

    def __init__(self, op: Op) -> None:
        self._op: Final = op
        self.verdicts: Final[list[Verdict]] = []
        c_library()  # once, before threads ask for it

    def add(self, x: Any, y: Any, out: Any) -> None:
        self.verdicts.append(judge_f64(self._op, x.numpy(), y.numpy(), out.numpy()))


def judge_f64(op: Op, x: Array, y: Array, out: Array) -> Verdict:
    """The worst of results; the arrays are contiguous."""
    verdict = Verdict()
    arrays, count = map(_pointer, (x, y, out)), ctypes.c_int64(x.size)
    is_lgamma = ctypes.c_bool(op is Op.LGAMMA)
    c_library().judge(_exact(op), is_lgamma, *arrays, count, ctypes.byref(verdict))
    return verdict


def exact(op: Op, x: Array, y: Array) -> Array:
    """A function of f64 arrays in long double; of ``x`` alone if it takes one argument."""
    out = np.empty(x.size, np.longdouble)
    _exact(op)(*map(_pointer, (x, y, out)), ctypes.c_int64(x.size))
    return out


def _exact(op: Op) -> Any:
    return getattr(c_library(), f"exact_{op.value}")


@cache
def c_library() -> ctypes.CDLL:
    """What ``math_judges.c`` defines; a C compiler has to be there."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "math_judges.so")
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(path), "-lm"]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(path))


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
