"""Signatures written as text, in the grammar of `khaljit.signatures`."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final, final

import numpy as np

from khaljit import modules
from khaljit.entries import Group, Signature
from khaljit.signatures import TYPES
from khaljit.tracer.dtypes import DType, by_numpy
from khaljit.tracer.elements import ElementType, name_of
from khaljit.tracer.record import ArrayArgument, ConstArgument, ScalarArgument, ValueArgument
from khaljit.tracer.vectors import VectorType

__all__ = ["write_signature"]

AXES: Final = "nmkpqr"  # names of axes that equal shapes share


def write_signature(signature: Signature) -> str:
    """The text of a launch signature.

    Constants that no text stands for, such as a lambda, are written as ``<lambda>``, which does not
    parse.
    """
    writer = _Writer(signature)
    items = ", ".join(writer.item(entry) for entry in signature.arguments)
    return items + ("; index 64" if signature.index_bits == 64 else "")


@final
class _Writer:
    """Writes items in order, which numbers the arrays."""

    def __init__(self, signature: Signature) -> None:
        self._shapes: Final = signature.shapes
        self._views: Final = signature.views
        self._next = 0

    def item(self, entry: Any) -> str:
        if isinstance(entry, Group):
            parts = ", ".join(self.item(part) for part in entry.parts)
            if entry.make is tuple:
                return f"({parts},)" if len(entry.parts) == 1 else f"({parts})"
            return f"{modules.path_of(entry.make) or f'<{entry.make.__name__}>'}({parts})"
        argument = getattr(entry, "argument", entry)
        if isinstance(argument, ArrayArgument):
            return self._array(argument)
        if isinstance(argument, ValueArgument):
            return _kind(argument.kind)
        if isinstance(argument, ScalarArgument):
            return argument.dtype.name
        assert isinstance(argument, ConstArgument)
        return _written(argument.value)

    def _array(self, argument: ArrayArgument) -> str:
        number = self._next
        self._next += 1
        name = _kind(argument.kind)
        axes = [":"] * argument.ndim
        first = self._shapes[number]
        if self._shapes.count(first) > 1:
            classes = sorted({one for one in self._shapes if self._shapes.count(one) > 1})
            suffix = str(classes.index(first) or "")
            axes = [AXES[axis % len(AXES)] + suffix for axis in range(argument.ndim)]
        if axes and not argument.contiguous:
            axes[-1] = "::" if axes[-1] == ":" else f"{axes[-1]}::"
        view = self._views[number]
        shared = f" as v{view}" if self._views.count(view) > 1 else ""
        return f"{name}[{', '.join(axes)}]{'' if argument.aligned else ' unaligned'}{shared}"


def _kind(kind: ElementType) -> str:
    """The text of a type."""
    name = name_of(kind)
    if not isinstance(kind, type) or name.endswith(("}", ")")) or TYPES.get(name) is kind:
        return name
    return modules.path_of(kind) or f"<{name}>"


def _written(value: Any) -> str:
    """The text of a constant."""
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"={value!r}"
    if isinstance(value, DType | VectorType):
        return f"={value.name}"
    if type(value) is tuple:
        parts = [_written(part).removeprefix("=") for part in value]
        return f"=({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if isinstance(value, np.generic):
        dtype = by_numpy(value.dtype)
        return f"={dtype.name}({value.item()!r})" if dtype else f"<{type(value).__name__}>"
    if isinstance(value, Enum):
        owner = modules.path_of(type(value))
        return f"={owner}.{value.name}" if owner else f"<{type(value).__name__}>"
    path = modules.path_of(value)
    return f"={path}" if path else f"<{getattr(value, '__name__', type(value).__name__)}>"
