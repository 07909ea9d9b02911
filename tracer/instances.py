"""Values outside kernels: instances of structs, and what fields of every kind hold there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from khaljit.tracer.build import to_number
from khaljit.tracer.dtypes import DType, FixedArray, bf16
from khaljit.tracer.elements import (
    ElementType,
    host_dtype,
    is_struct,
    name_of,
    struct_layout,
    tail,
)
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError
from khaljit.tracer.hostvectors import HostVector, host_scalar
from khaljit.tracer.proxy import is_literal
from khaljit.tracer.recorder import Change
from khaljit.tracer.vectors import VectorType

__all__ = [
    "CHANGE",
    "field_values",
    "host_scalars",
    "host_value",
    "is_instance",
    "items_of",
    "make",
]

CHANGE: Final = "__kj_change__"  # among an instance's attributes: what was changed and not read


def is_instance(value: object) -> bool:
    """Whether a value is an instance of a struct."""
    return is_struct(type(value))


def make(cls: type[Any], values: Sequence[Any], change: Change | None = None) -> Any:
    """An instance with a value per field, each of which is of the field's kind already."""
    instance = object.__new__(cls)
    held = vars(instance)
    for one, value in zip(struct_layout(cls).fields, values, strict=True):
        held[one.name] = value
    if change is not None:
        held[CHANGE] = change
    return instance


def field_values(instance: Any) -> list[Any]:
    """The value of each field; reads them all."""
    held = vars(instance)
    change = held.get(CHANGE)
    if change is not None:
        change.read = True
    return [held[one.name] for one in struct_layout(type(instance)).fields]


def host_value(kind: ElementType, value: Any, where: str) -> Any:
    """A value outside kernels as a value of a kind."""
    if isinstance(kind, DType):
        return _host_number(kind, value, where)
    if isinstance(kind, FixedArray) or (
        is_struct(kind) and struct_layout(kind).tail and not is_instance(value)
    ):
        axes = tail(kind)
        array = np.array(value, host_dtype(kind))
        if array.shape != axes:
            raise _refused(where, kind, f"an array of shape {array.shape}", f"its shape is {axes}")
        if isinstance(kind, FixedArray):
            return array
        return _of_numbers(kind, iter(array.reshape(-1)))
    if isinstance(kind, VectorType):
        items = tuple(value) if hasattr(value, "__len__") else ()
        if len(items) != kind.count:
            raise _refused(where, kind, repr(value), f"pass {kind.count} numbers")
        return HostVector(kind.dtype, [_host_number(kind.dtype, one, where) for one in items])
    if type(value) is kind:
        return value
    if isinstance(value, tuple | np.void):
        return kind(*(value.item() if isinstance(value, np.void) else value))
    raise _refused(where, kind, repr(value), f"pass a {name_of(kind)}")


def _of_numbers(kind: ElementType, numbers: Iterator[Any]) -> Any:
    """A value of a kind from the numbers in it."""
    if isinstance(kind, DType):
        return host_scalar(kind, next(numbers))
    if isinstance(kind, VectorType):
        return HostVector(kind.dtype, [next(numbers) for _ in range(kind.count)])
    if isinstance(kind, FixedArray):
        return tuple(_of_numbers(kind.item, numbers) for _ in range(kind.extent))
    return make(kind, [_of_numbers(one.kind, numbers) for one in struct_layout(kind).fields])


def items_of(kind: ElementType, array: np.ndarray[Any, Any]) -> Iterator[Any]:
    """The items of a fixed array, each a value of its kind."""
    assert isinstance(kind, FixedArray)
    for item in array:
        if isinstance(kind.item, FixedArray):
            yield tuple(items_of(kind.item, item))
        else:
            yield host_value(kind.item, item, "an item")


def _host_number(dtype: DType, value: Any, where: str) -> Any:
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if not is_literal(number):
        raise _refused(where, dtype, repr(value), "pass a number")
    if not dtype.is_float and isinstance(number, float):
        raise _refused(where, dtype, repr(value), "pass an int: int(x)")
    low, high = dtype.limits
    if not dtype.is_float and not low <= number <= high:
        raise _refused(where, dtype, repr(value), f"it holds {low} to {high}", ArgumentValueError)
    return host_scalar(dtype, number)


def _refused(
    where: str,
    kind: ElementType,
    got: str,
    mend: str,
    error: Callable[..., ArgumentTypeError | ArgumentValueError] = ArgumentTypeError,
) -> ArgumentTypeError | ArgumentValueError:
    return error(f"{where} is a {name_of(kind)} and got {got}", mend=mend)


def host_scalars(kind: ElementType, value: Any) -> Iterator[Any]:
    """The numbers of a value outside kernels, in the order in which they lie in memory."""
    if kind is bf16 and isinstance(value, np.uint16):  # its bits, as NumPy's arrays have them
        yield to_number(bf16, int(value))
    elif isinstance(kind, DType):
        yield value.item() if isinstance(value, np.generic) else value
    elif isinstance(kind, VectorType):
        for item in value:
            yield from host_scalars(kind.dtype, item)
    elif isinstance(kind, FixedArray):
        for item in value:
            yield from host_scalars(kind.item, host_value(kind.item, item, "an item"))
    else:
        for one, inside in zip(struct_layout(kind).fields, field_values(value), strict=True):
            yield from host_scalars(one.kind, inside)
