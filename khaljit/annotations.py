"""What stands after the colon in a kernel's parameters.

An annotation is optional and, where it stands, checked: `Array`, `Array1` ... `Array3` of a dtype
or vector type, a dtype, a vector type, `Const`, and tuples and dataclasses of these. Type
checkers see other definitions (``khaljit/__init__.pyi``), to which NumPy arrays and Python numbers
conform.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable
from typing import Any, Final, final

import numpy as np

from khaljit.tracer.dtypes import DType, meant
from khaljit.tracer.elements import ElementType, is_kind, is_struct, name_of
from khaljit.tracer.errors import ArgumentTypeError
from khaljit.tracer.records import dataclass
from khaljit.tracer.vectors import VectorType

__all__ = [
    "Annotation",
    "Array1",
    "Array2",
    "Array3",
    "ArrayOf",
    "Const",
    "ConstOf",
    "GroupOf",
    "of_function",
]


@final
@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array annotation; None stands for any dtype or any number of axes."""

    element: ElementType | None
    ndim: int | None

    def __repr__(self) -> str:
        axes = "" if self.ndim is None else str(self.ndim)
        element = "" if self.element is None else f"[{name_of(self.element)}]"
        return f"kj.Array{axes}{element}"


@final
@dataclass(frozen=True, slots=True)
class ConstOf:
    """A value that specialises; ``kind`` is the type it must have, or None."""

    kind: Any

    def __repr__(self) -> str:
        return "kj.Const" if self.kind is None else f"kj.Const[{self.kind.__name__}]"


@final
@dataclass(frozen=True, slots=True)
class GroupOf:
    """A tuple, named tuple or dataclass of annotated parts."""

    make: Any
    names: tuple[str, ...]
    parts: tuple[Annotation | None, ...]


Annotation = ArrayOf | ConstOf | GroupOf | DType | VectorType | type[Any]


class _ArrayAnnotation:
    """``kj.Array2[kj.f32]``"""

    _ndim: int | None = None

    def __class_getitem__(cls, element: Any) -> ArrayOf:
        return array_of(element, cls._ndim)


def array_of(element: Any, ndim: int | None) -> ArrayOf:
    """The annotation of an array with these elements, or with ``Any``, and axes."""
    if element is Any:
        return ArrayOf(None, ndim)
    if not is_kind(element):
        raise ArgumentTypeError(
            f"{inspect.formatannotation(element)} is no element type of an array",
            mend=_instead(element)
            or "use a dtype, a vector or matrix type, or a class made by kj.struct: "
            "kj.Array1[kj.f32], kj.Array1[kj.vec3]",
        )
    return ArrayOf(element, ndim)


class Array1(_ArrayAnnotation):
    """An array with one axis."""

    _ndim = 1


class Array2(_ArrayAnnotation):
    """An array with two axes."""

    _ndim = 2


class Array3(_ArrayAnnotation):
    """An array with three axes."""

    _ndim = 3


class Const:
    """``kj.Const[int]``: a parameter whose value specialises the kernel."""

    def __class_getitem__(cls, kind: Any) -> ConstOf:
        return ConstOf(None if kind is Any else kind)


_BARE: Final[dict[Any, Annotation]] = {
    Array1: ArrayOf(None, 1),
    Array2: ArrayOf(None, 2),
    Array3: ArrayOf(None, 3),
    Const: ConstOf(None),
    str: ConstOf(str),
    type(None): ConstOf(type(None)),
}


_PARSED: Final = (ArrayOf, ConstOf, DType, VectorType)


def parse(annotation: Any, where: str) -> Annotation | None:
    """What an annotation object says; None where it says nothing.

    Raises ArgumentTypeError for what khaljit does not know.
    """
    if isinstance(annotation, _PARSED) or is_struct(annotation):
        return annotation  # type: ignore[no-any-return]  # one of these
    if annotation is inspect.Parameter.empty or annotation in (Any, int, float, bool, object):
        return None
    try:
        bare = _BARE.get(annotation)
    except TypeError:
        bare = None
    if bare is not None:
        return bare
    if getattr(annotation, "_kj_array", False):
        return ArrayOf(None, None)
    if typing.get_origin(annotation) is builtins.tuple:
        parts = tuple(parse(part, where) for part in typing.get_args(annotation))
        return GroupOf(tuple, tuple(str(k) for k in range(len(parts))), parts)
    names = _field_names(annotation)
    if names is not None:
        hints = typing.get_type_hints(annotation)
        return GroupOf(annotation, names, tuple(parse(hints[name], where) for name in names))
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        rest = [one for one in typing.get_args(annotation) if one is not type(None)]
        if len(rest) == 1:  # X | None: None specialises, as it does everywhere
            return parse(rest[0], where)
    expanded = _expanded(annotation)
    if expanded is not annotation:
        return parse(expanded, where)
    raise ArgumentTypeError(
        f"{where} is annotated with {inspect.formatannotation(annotation)}, which khaljit does not "
        "know",
        mend=_instead(annotation)
        or "use kj.Array1[kj.f32], a dtype such as kj.i32, kj.Const[int], a tuple or dataclass "
        "of these, or no annotation",
    )


def _expanded(annotation: Any) -> Any:
    """What an alias made by a ``type`` statement stands for (PEP 695); NumPy's are such."""
    kind = getattr(typing, "TypeAliasType", None)  # of Python 3.12
    if kind is None:
        return annotation
    if isinstance(annotation, kind):
        return annotation.__value__
    origin = typing.get_origin(annotation)
    return origin.__value__[typing.get_args(annotation)] if isinstance(origin, kind) else annotation


def _instead(annotation: Any) -> str | None:
    """What to write for a type of NumPy's."""
    if annotation is np.ndarray:
        return "write kj.Array, or kj.Array2[kj.f32] with axes and type: NumPy arrays are taken"
    if typing.get_origin(annotation) is np.ndarray:  # npt.NDArray[np.float32]
        element = typing.get_args(typing.get_args(annotation)[-1])
        found = meant(element[0]) if element else None
        return f"write kj.Array[{found}]: NumPy arrays are taken" if found else None
    found = meant(annotation)
    return f"write {found}" if found else None


def _field_names(annotation: Any) -> tuple[str, ...] | None:
    """Of a dataclass or a named tuple with types; None for everything else."""
    if not isinstance(annotation, type):
        return None
    if dataclasses.is_dataclass(annotation):
        return tuple(field.name for field in dataclasses.fields(annotation))
    if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        names: tuple[str, ...] = annotation._fields
        return names if names == tuple(annotation.__annotations__) else None
    return None


def of_function(function: types.FunctionType, names: Iterable[str]) -> list[Annotation | None]:
    """The annotations of a function's parameters, strings evaluated where they were written."""
    scope = _closure(function)
    annotations = function.__annotations__
    known: dict[str, Annotation | None] = {}  # what strings say, since many are alike
    found: list[Annotation | None] = []
    for name in names:
        annotation = annotations.get(name, inspect.Parameter.empty)
        where = f"parameter {name} of {function.__qualname__}"
        if not isinstance(annotation, str):
            found.append(parse(annotation, where))
            continue
        if annotation not in known:
            try:
                value = eval(annotation, function.__globals__, dict(scope))
            except Exception as error:
                raise ArgumentTypeError(
                    f"the annotation {annotation!r} of {where} cannot be evaluated: {error}",
                    mend="annotate with names that the kernel's module knows",
                ) from error
            known[annotation] = parse(value, where)
        found.append(known[annotation])
    return found


def _closure(function: types.FunctionType) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue
    return values
