"""Values in kernels and their scalars, in the order in which they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from khaljit.tracer.coerce import store_cast
from khaljit.tracer.dtypes import DType, FixedArray
from khaljit.tracer.elements import ElementType, name_of, struct_layout
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.instances import CHANGE, field_values, host_value, make
from khaljit.tracer.proxy import Proxy, Scalar, Vector, describe, fail
from khaljit.tracer.recorder import Recorder
from khaljit.tracer.vectors import VectorType

__all__ = ["assemble", "converted", "scalars_of", "with_field"]


def assemble(recorder: Recorder, kind: ElementType, scalars: Iterator[Scalar]) -> Any:
    """A value of a kind from its scalars."""
    if isinstance(kind, DType):
        return next(scalars)
    if isinstance(kind, VectorType):
        return Vector(recorder, tuple(next(scalars) for _ in range(kind.count)))
    if isinstance(kind, FixedArray):
        return recorder.items(assemble(recorder, kind.item, scalars) for _ in range(kind.extent))
    fields = struct_layout(kind).fields
    return make(kind, [assemble(recorder, one.kind, scalars) for one in fields])


def scalars_of(recorder: Recorder, kind: ElementType, value: Any, where: str) -> list[Scalar]:
    """The scalars of a value as a kind has them, converted as stores do."""
    if isinstance(kind, DType):
        if is_vector(value):
            fail(
                f"{describe(value)} is stored to {kind}",
                "store one component, such as v.x, or use an array of the vector type",
            )
        return [store_cast(recorder, value, kind, where)]
    if isinstance(kind, VectorType):
        listed = is_vector(value) or isinstance(value, tuple | list | np.ndarray)
        if not listed or len(value) != kind.count:
            fail(
                f"{describe(value)} is stored to {where}, whose type is {kind}",
                f"write {kind}(...), which takes {kind.count} numbers, or one for all",
            )
        return [store_cast(recorder, item, kind.dtype, where) for item in value]
    if isinstance(kind, FixedArray):
        if isinstance(value, Proxy) or not hasattr(value, "__len__") or len(value) != kind.extent:
            fail(
                f"{describe(value)} is stored to {where}, whose type is {kind}",
                f"give it a tuple of {kind.extent}",
            )
        return [one for item in value for one in scalars_of(recorder, kind.item, item, where)]
    if isinstance(value, np.void):
        value = host_value(kind, value, where)
    if type(value) is not kind:
        fail(
            f"{describe(value)} is stored to {where}, whose type is {name_of(kind)}",
            f"make one: {name_of(kind)}(...)",
        )
    return [
        scalar
        for one, inside in zip(struct_layout(kind).fields, field_values(value), strict=True)
        for scalar in scalars_of(recorder, one.kind, inside, f"{where}.{one.name}")
    ]


def converted(recorder: Recorder, kind: ElementType, value: Any, where: str) -> Any:
    """A value in a kernel as a value of a kind."""
    return assemble(recorder, kind, iter(scalars_of(recorder, kind, value, where)))


def with_field(recorder: Recorder, instance: Any, name: str, value: Any) -> Any:
    """An instance with another value of one field."""
    cls = type(instance)
    found = struct_layout(cls)
    wanted = found.field(name)
    if wanted is None:
        fail_no_field(cls, name)
    held = vars(instance)
    new = converted(recorder, wanted.kind, value, f"{cls.__name__}.{name}")
    values = [new if one is wanted else held[one.name] for one in found.fields]
    return make(cls, values, recorder.changed(held.get(CHANGE), cls.__name__))


def fail_no_field(kind: ElementType, name: str) -> NoReturn:
    """The error for a field that a struct does not have."""
    fields = ", ".join(one.name for one in struct_layout(kind).fields)
    fail(f"{name_of(kind)} has no field {name!r}", f"its fields are {fields}")
