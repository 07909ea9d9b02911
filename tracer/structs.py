"""Structs: classes of the user's whose instances are values, in kernels and outside.

``kj.struct`` takes a class with annotated fields. The class is what a NumPy structured dtype is:
it says what memory holds (`elements`), and ``np.dtype(cls)`` is that dtype. Its instances hold a
value per field: in a kernel run-time values, a tuple for a fixed array; outside NumPy scalars,
vectors and arrays. Methods are the user's own functions and work on both.

A kernel never changes an instance: an assignment to a field of a name gives the name a new one
(`with_field`), so that names never alias. Outside, fields are assigned as of any object.
"""

from __future__ import annotations

import inspect
import keyword
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.build import to_bits, to_number
from khaljit.tracer.coerce import store_cast
from khaljit.tracer.dtypes import DType, FixedArray, bf16, by_numpy, fixed_array
from khaljit.tracer.elements import (
    ElementType,
    Field,
    Layout,
    element_of,
    host_dtype,
    is_kind,
    is_struct,
    name_of,
    same_memory,
    struct_layout,
    tail,
)
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError
from khaljit.tracer.hostvectors import HostVector, host_scalar, is_vector
from khaljit.tracer.proxy import Proxy, Scalar, Vector, describe, fail, is_literal
from khaljit.tracer.recorder import Change, Recorder, recording
from khaljit.tracer.vectors import VectorType, vec

__all__ = [
    "as_elements",
    "assemble",
    "converted",
    "field_values",
    "host_scalars",
    "host_value",
    "is_field_name",
    "is_instance",
    "make",
    "numpy_struct",
    "scalars_of",
    "struct",
    "unnamed_struct",
    "with_field",
]

_CHANGE: Final = "__kj_change__"  # among an instance's attributes: what was changed and not read
_RESERVED: Final = frozenset({"dtype", "shape", "size", "ndim", "strides"})


# The decorator.


@typing.dataclass_transform(eq_default=True)
def struct(cls: type[Any]) -> type[Any]:
    """Make a struct of a class with annotated fields.

    A field is a dtype, a vector or matrix type, another struct, or a fixed array of these
    (``kj.i8[32]``; ``Annotated[kj.Array1[kj.i8], 32]`` for type checkers). Defaults and methods
    are as in dataclasses. The class is a type of array elements and of arguments, and lies in
    memory as C has it: ``np.dtype(cls)`` is the NumPy dtype of the same memory.

    Raises ArgumentTypeError for a field that no memory holds.

    >>> from khaljit.tracer.dtypes import f32
    >>> @struct
    ... class Body:
    ...     mass: f32 = 1.0
    >>> Body(2)
    Body(mass=2.0)
    """
    return make_struct(cls)


def make_struct(
    cls: type[Any],
    kinds: Mapping[str, ElementType] | None = None,
    axes: tuple[int, ...] = (),
) -> type[Any]:
    """As `struct`, of these fields; on the host an element may have ``axes`` of scalars instead."""
    if kinds is None:
        kinds = {name: _kind_of(cls, name, hint) for name, hint in _hints(cls).items()}
    if not kinds:
        raise ArgumentTypeError(
            f"{cls.__name__} has no fields", mend="annotate them: `mass: kj.f32`"
        )
    if "__init__" in vars(cls):
        raise ArgumentTypeError(
            f"{cls.__name__} has an __init__ of its own, and a struct is made of its fields",
            mend="write a static method that computes the fields and returns the struct",
        )
    found = Layout.of(kinds, axes)
    parameters = []
    for name in kinds:
        if name in _RESERVED:
            raise ArgumentTypeError(
                f"{cls.__name__} has a field {name!r}, which arrays have an attribute of",
                mend="give the field another name",
            )
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = _default(cls, name)
        if default is not inspect.Parameter.empty:
            default = host_value(kinds[name], default, f"{cls.__name__}.{name}")
        parameters.append(inspect.Parameter(name, kind, default=default))
    try:
        signature = inspect.Signature(parameters)
    except ValueError as error:
        raise ArgumentTypeError(
            f"{cls.__name__}: {error}", mend="give defaults to the last fields only"
        ) from None
    for one in found.fields:
        setattr(cls, one.name, _FieldAccess(one))
    members = {
        "__kj_layout__": found,
        "__signature__": signature,
        "__match_args__": tuple(kinds),
        "__init__": _init,
        "__array__": _array,
        "__kj_bytes__": _bytes_of,
        "__class_getitem__": classmethod(fixed_array),
        "dtype": np.dtype((found.host, axes)) if axes else found.host,
    }
    for name, value in members.items():
        setattr(cls, name, value)
    for name, value in {"__repr__": _repr, "__eq__": _equal}.items():
        if name not in vars(cls):
            setattr(cls, name, value)
    cls.__hash__ = None  # type: ignore[assignment]  # its fields can be assigned
    return cls


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    """The annotations of a class and its bases, strings evaluated where they were written."""
    scope = getattr(sys.modules.get(cls.__module__), "__dict__", {})
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            if isinstance(hint, str):
                try:
                    hint = eval(hint, dict(scope), {**frame.f_globals, **frame.f_locals})
                except Exception as error:
                    raise ArgumentTypeError(
                        f"the annotation {hint!r} of {cls.__name__}.{name} cannot be evaluated: "
                        f"{error}",
                        mend="annotate with names that are known where the class stands",
                    ) from error
            if typing.ClassVar not in (hint, typing.get_origin(hint)):
                found[name] = hint
    return found


def _default(cls: type[Any], name: str) -> Any:
    """What a field is where nothing is given for it."""
    for base in cls.__mro__:
        found = vars(base).get(name, inspect.Parameter.empty)
        if isinstance(found, _FieldAccess):  # of a struct that this one extends
            return base.__signature__.parameters[name].default  # type: ignore[attr-defined]
        if found is not inspect.Parameter.empty:
            return found
    return inspect.Parameter.empty


def _kind_of(cls: type[Any], name: str, hint: Any) -> ElementType:
    """What the annotation of a field says."""
    if typing.get_origin(hint) is typing.Annotated:
        inside, *rest = typing.get_args(hint)
        element = getattr(inside, "element", None)  # of kj.Array1[...]
        if is_kind(element) and len(rest) == 1:
            return fixed_array(element, rest[0])
    if is_kind(hint):
        assert isinstance(hint, DType | VectorType | FixedArray | type)
        return hint
    raise ArgumentTypeError(
        f"{cls.__name__}.{name} is annotated with {hint!r}, which no memory holds",
        mend="a field is a dtype such as kj.f32, a vector or matrix type, a struct, or a fixed "
        "array of one: kj.i8[32], or Annotated[kj.Array1[kj.i8], 32]",
    )


@final
class _FieldAccess:
    """A field as an attribute of instances; of the class it is the field itself."""

    __slots__ = ("field",)

    def __init__(self, field: Field) -> None:
        self.field: Final = field

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self.field
        values = vars(instance)
        change = values.get(_CHANGE)
        if change is not None:
            change.read = True
        value = values[self.field.name]
        if isinstance(value, np.ndarray) and recording() is not None:  # what was captured
            return tuple(_of_items(self.field.kind, value))
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        if recording() is not None:
            fail(
                f"field {self.field.name} of a {type(instance).__name__} is assigned where "
                "khaljit cannot read the source",
                f"make a new one: {type(instance).__name__}(...)",
            )
        vars(instance)[self.field.name] = host_value(self.field.kind, value, self.field.name)


def as_elements(array: np.ndarray[Any, Any], kind: Any) -> np.ndarray[Any, Any]:
    """An array whose elements have a kind's scalars where it has them, as `host_dtype` and `tail`
    have it: a structured array of x, y and z with vectors as its last axis; any other as it is."""
    if array.dtype.names is None or not is_kind(kind) or not same_memory(array.dtype, kind):
        return array
    return array.view(np.dtype((host_dtype(kind), tail(kind))))


def is_field_name(name: str) -> bool:
    """Whether a struct may have a field of this name."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in _RESERVED


@cache
def numpy_struct(dtype: np.dtype[Any]) -> type[Any] | None:
    """A struct for the elements of a structured array; None where C has no such struct."""
    kinds = {}
    for name in dtype.names or ():
        assert dtype.fields is not None
        kind = _numpy_kind(dtype.fields[name][0])
        if kind is None or not is_field_name(name):
            return None
        kinds[name] = kind
    if not kinds or Layout.of(kinds).host != dtype:
        return None
    return unnamed_struct(tuple(kinds.items()))


def unnamed_struct(kinds: tuple[tuple[str, Any], ...]) -> type[Any]:
    """A struct of these fields, called what signatures write for it; one for equal fields."""
    return _unnamed(kinds)


@cache
def _unnamed(kinds: tuple[tuple[str, Any], ...]) -> type[Any]:
    name = ", ".join(f"{field}: {name_of(kind)}" for field, kind in kinds)
    return make_struct(type(f"{{{name}}}", (), {"__module__": __name__}), dict(kinds))


def _numpy_kind(dtype: np.dtype[Any]) -> ElementType | None:
    """The kind of a field: three f32 in a row are a vector."""
    if dtype.names is not None:
        return numpy_struct(dtype)
    base, shape = dtype.subdtype or (dtype, ())
    item: ElementType | None = numpy_struct(base) if base.names is not None else by_numpy(base)
    if item is None or not shape:
        return item
    if isinstance(item, DType) and shape[-1] in (2, 3, 4):
        item, shape = vec(shape[-1], item), shape[:-1]
    return fixed_array(item, shape) if shape else item


# What every struct has.


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    recorder = recording()
    try:
        bound = cls.__signature__.bind(*args, **kwargs)
    except TypeError as error:
        if recorder is not None:
            fail(f"{cls.__name__}: {error}", f"it is made as {cls.__name__}{cls.__signature__}")
        raise ArgumentTypeError(
            f"{cls.__name__}: {error}", mend=f"it is made as {cls.__name__}{cls.__signature__}"
        ) from None
    bound.apply_defaults()
    for one in struct_layout(cls).fields:
        value, where = bound.arguments[one.name], f"{cls.__name__}.{one.name}"
        vars(self)[one.name] = (
            host_value(one.kind, value, where)
            if recorder is None
            else converted(recorder, one.kind, value, where)
        )


def _repr(self: Any) -> str:
    fields = struct_layout(type(self)).fields
    shown = (f"{one.name}={_shown(vars(self)[one.name])}" for one in fields)
    return f"{type(self).__name__}({', '.join(shown)})"


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, np.generic) else repr(value)


def _equal(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    if recording() is not None:
        fail(
            f"two {type(self).__name__} are compared as a whole",
            "compare their fields: a.x == b.x, kj.all(a.pos == b.pos)",
        )
    return bool(np.array_equal(np.asarray(self), np.asarray(other)))


def _array(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    cls = type(self)
    memory = bytearray(struct_layout(cls).size)
    for (at, kind), number in zip(element_of(cls).leaves, host_scalars(cls, self), strict=True):
        memory[at : at + kind.size] = to_bits(kind, number).to_bytes(kind.size, "little")
    array = np.frombuffer(memory, host_dtype(cls)).reshape(tail(cls))
    return array.astype(dtype or array.dtype, copy=bool(copy))


def _bytes_of(self: Any) -> bytes:
    """What a kernel that captured it depends on."""
    return np.asarray(self).tobytes()


# Instances.


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
        held[_CHANGE] = change
    return instance


def field_values(instance: Any) -> list[Any]:
    """The value of each field; reads them all."""
    held = vars(instance)
    change = held.get(_CHANGE)
    if change is not None:
        change.read = True
    return [held[one.name] for one in struct_layout(type(instance)).fields]


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
    return make(cls, values, recorder.changed(held.get(_CHANGE), cls.__name__))


def fail_no_field(kind: ElementType, name: str) -> typing.NoReturn:
    """The error for a field that a struct does not have."""
    fields = ", ".join(one.name for one in struct_layout(kind).fields)
    fail(f"{name_of(kind)} has no field {name!r}", f"its fields are {fields}")


# Values and their scalars, in the order in which they lie in memory.


def assemble(recorder: Recorder, kind: ElementType, scalars: Iterator[Scalar]) -> Any:
    """A value of a kind from its scalars."""
    if isinstance(kind, DType):
        return next(scalars)
    if isinstance(kind, VectorType):
        return Vector(recorder, tuple(next(scalars) for _ in range(kind.count)))
    if isinstance(kind, FixedArray):
        return tuple(assemble(recorder, kind.item, scalars) for _ in range(kind.extent))
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


# The host.


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


def _of_items(kind: ElementType, array: np.ndarray[Any, Any]) -> Iterator[Any]:
    """The items of a fixed array, each a value of its kind."""
    assert isinstance(kind, FixedArray)
    for item in array:
        if isinstance(kind.item, FixedArray):
            yield tuple(_of_items(kind.item, item))
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
