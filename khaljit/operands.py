"""Array arguments of a launch: where they lie, and whether two of them overlap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from khaljit.arrays import Array
from khaljit.tracer.elements import ElementType, element_of
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.records import dataclass

__all__ = ["Operand", "check_operands", "first_equal", "views"]

# Steps to spend on telling whether two interleaved views share an element; NumPy's stubs allow
# only its two special values.
OVERLAP_WORK: Final = 100_000


@final
@dataclass(slots=True)
class Operand:
    """An array argument of one launch.

    Attributes:
        name: the parameter's, for messages.
        owner: the NumPy array or khaljit array that was passed.
        dtype: the type of its elements.
        shape: of the axes that the kernel sees.
        strides: in the units that kernels count.
        address: of the first element; what tells places apart where a device has none.
    """

    name: str
    owner: np.ndarray[Any, Any] | Array[Any]
    dtype: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int

    def span(self) -> tuple[int, int]:
        """The addresses between which it lies."""
        element = element_of(self.dtype)
        align = element.align
        start, stop = self.address, self.address + element.size
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if extent == 0:
                return start, start
            if stride < 0:
                start += (extent - 1) * stride * align
            else:
                stop += (extent - 1) * stride * align
        return start, stop


def first_equal(items: Sequence[object]) -> tuple[int, ...]:
    """Per item the position of the first that equals it."""
    return tuple(items.index(item) for item in items)


def views(operands: Sequence[Operand]) -> tuple[int, ...]:
    """Per array the first one that is the very same view."""
    return first_equal([_view_of(one) for one in operands])


def _view_of(operand: Operand) -> tuple[object, ...]:
    return operand.address, operand.dtype, operand.shape, operand.strides


def check_operands(kernel: str, operands: Sequence[Operand], written: Sequence[bool]) -> None:
    """What is written can be written, and overlaps nothing but the very same view."""
    for operand, writes in zip(operands, written, strict=True):
        owner = operand.owner
        if writes and (
            not owner.flags.writeable
            if isinstance(owner, np.ndarray)
            else getattr(owner.buffer, "read_only", False)
        ):
            raise ArgumentValueError(
                f"kernel {kernel} writes parameter {operand.name}, and got a read-only array",
                mend="pass a copy: array.copy()",
            )
    for (a, writes_a), (b, writes_b) in itertools.combinations(
        zip(operands, written, strict=True), 2
    ):
        if (writes_a or writes_b) and _overlap(a, b):
            raise ArgumentValueError(
                f"kernel {kernel}: parameters {a.name} and {b.name} overlap in part, and one of "
                "them is written",
                mend="pass the very same view twice, or a copy of one",
            )


def _overlap(a: Operand, b: Operand) -> bool:
    """Whether two arrays share memory without being the same view."""
    start, stop = a.span()
    other_start, other_stop = b.span()
    if start >= other_stop or other_start >= stop:
        return False
    if a.address == b.address and a.shape == b.shape and a.strides == b.strides:
        return False
    one, other = _host(a), _host(b)
    try:
        return bool(np.shares_memory(one, other, max_work=OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _host(operand: Operand) -> np.ndarray[Any, Any]:
    """An array that lies where the argument does, for comparing places; never looked into."""
    owner = operand.owner
    return np.asarray(_Place(owner)) if isinstance(owner, Array) else owner


class _Place:
    """A device's array as NumPy's array interface describes memory."""

    def __init__(self, array: Array[Any]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (array.address, True),
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
        }
