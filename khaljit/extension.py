"""The native extension (``khaljit/native/``): loaded where it was built and fits.

It reads NumPy's structs, so it is used only if it finds in them what NumPy says. Without it, or
with ``KHALJIT_NATIVE=0``, launches mean the same and take longer.
"""

from __future__ import annotations

import os
from contextvars import ContextVar, Token
from typing import Any, Final, Generic, TypeVar, final

import numpy as np

__all__ = ["NATIVE", "NUMBER_TYPES", "Watched"]

_T = TypeVar("_T")

# Types of numbers in the order of `NumberType` in numbers.h.
NUMBER_TYPES: Final[tuple[type[np.generic], ...]] = (
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64,
)  # fmt: skip


def _load() -> Any:
    """The extension; None where there is none, it is not wanted, or NumPy's structs differ."""
    if os.environ.get("KHALJIT_NATIVE") == "0":
        return None
    try:
        from khaljit import _native
    except ImportError:
        return None
    _native.know_numpy_array(np.ndarray)
    _native.know_numbers(NUMBER_TYPES)
    return _native if _reads_arrays(_native) and _reads_numbers(_native) else None


def _reads_arrays(native: Any) -> bool:
    """Whether the extension reads of arrays what NumPy says of them."""
    block = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    fixed = np.zeros(3, np.int16)
    fixed.flags.writeable = False
    for array in (block, block[:, ::-1, 1:3], fixed, np.zeros((0, 5)), np.zeros((), np.uint8)):
        told = (
            array.__array_interface__["data"][0],
            array.shape,
            array.strides,
            array.dtype,
            array.flags.writeable,
        )
        if native.describe_array(array) != told:
            return False
    return True


def _reads_numbers(native: Any) -> bool:
    """The same of NumPy's numbers."""
    for place, kind in enumerate(NUMBER_TYPES):
        for value in (0, 1, 100):
            if native.describe_number(kind(value)) != (place, kind(value).item()):
                return False
    return True


NATIVE: Final[Any] = _load()

if NATIVE is not None and hasattr(os, "register_at_fork"):  # systems with fork
    os.register_at_fork(after_in_child=NATIVE.forked)


@final
class Watched(Generic[_T]):
    """A context variable that launches look at. Native code does so from the first time that it is
    set: any value but None and an empty dict sends each launch of its context to Python.

    Args:
        is_device: it says where launches with NumPy arrays go, and sends none to Python.
    """

    def __init__(self, name: str, default: _T, *, is_device: bool = False) -> None:
        self._variable: Final[ContextVar[_T]] = ContextVar(name, default=default)
        self._is_device: Final = is_device
        self._is_watched = NATIVE is None

    def get(self) -> _T:
        return self._variable.get()

    def set(self, value: _T) -> Token[_T]:
        if not self._is_watched:
            NATIVE.watch(self._variable, self._is_device)
            self._is_watched = True
        return self._variable.set(value)

    def reset(self, token: Token[_T]) -> None:
        self._variable.reset(token)
