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
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType, FixedArray, by_numpy, fixed_array, meant
from khaljit.tracer.elements import (
    ElementType,
    Field,
    Layout,
    element_of,
    host_dtype,
    is_kind,
    name_of,
    same_memory,
    struct_layout,
    tail,
)
from khaljit.tracer.errors import ArgumentTypeError
from khaljit.tracer.instances import CHANGE, host_scalars, host_value, items_of
from khaljit.tracer.proxy import Number, fail
from khaljit.tracer.recorder import recording, user_frame
from khaljit.tracer.values import converted
from khaljit.tracer.vectors import VectorType, vec

__all__ = [
    "as_elements",
    "is_field_name",
    "make_struct",
    "numpy_struct",
    "struct",
    "unnamed_struct",
]

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

    >>> import khaljit as kj
    >>> @kj.struct
    ... class Body:
    ...     mass: kj.f32 = 1.0
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
    frame = user_frame()
    names = {} if frame is None else {**frame.f_globals, **frame.f_locals}
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            if isinstance(hint, str):
                try:
                    hint = eval(hint, dict(scope), names)
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
    found = meant(hint)
    raise ArgumentTypeError(
        f"{cls.__name__}.{name} is annotated with {hint!r}, which no memory holds",
        mend=f"write {found}"
        if found
        else "a field is a dtype such as kj.f32, a vector or matrix type, a struct, or a fixed "
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
        change = values.get(CHANGE)
        if change is not None:
            change.read = True
        value = values[self.field.name]
        if isinstance(value, np.ndarray) and recording() is not None:  # what was captured
            return tuple(items_of(self.field.kind, value))
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        recorder = recording()
        if recorder is not None:
            recorder.assign(value)
            return
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
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    # A run-time value formats as a mark, so that a struct can be printed from a kernel.
    return format(value) if isinstance(value, np.generic | Number) else repr(value)


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
