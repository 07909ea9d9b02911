"""Arguments of a launch: read once, checked, and told apart into what specialises and what varies.

`Parameters` knows a kernel's parameters. Reading a call gives a `Call`: what a plan is made for,
which is the signature (`entries`), and the arrays (`operands`) and `numbers` of this launch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from types import FunctionType
from typing import Any, Final, final

import numpy as np

from khaljit.annotations import Annotation, ArrayOf, ConstOf, GroupOf, of_function, parse
from khaljit.arrays import Array
from khaljit.entries import (
    ArrayEntry,
    ConstEntry,
    Group,
    Signature,
    array_entry,
    const_entry,
    fields_of,
    scalar_entry,
)
from khaljit.graphs.params import ScalarParam
from khaljit.numbers import NUMBERS, Number, describe, read_number
from khaljit.operands import Operand, first_equal, views
from khaljit.stored import is_bfloat16
from khaljit.tracer.dtypes import DType, bf16, by_numpy, index_reach
from khaljit.tracer.elements import (
    ElementType,
    element_of,
    host_dtype,
    inner_strides,
    is_struct,
    name_of,
    same_memory,
    tail,
)
from khaljit.tracer.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
)
from khaljit.tracer.hostvectors import HostVector
from khaljit.tracer.instances import host_scalars, host_value, is_instance
from khaljit.tracer.record import ArrayArgument, GroupArgument, ValueArgument
from khaljit.tracer.records import dataclass
from khaljit.tracer.structs import as_elements, numpy_struct
from khaljit.tracer.vectors import VectorType, vec

__all__ = ["INDEX_LIMIT", "Call", "Parameters"]

INDEX_LIMIT: Final = index_reach(32)


@final
@dataclass(slots=True)
class Call:
    """What a call passes, by position in the recorded trace."""

    arguments: list[object] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    extent: int = 0  # the largest offset of any array, in units of its alignment

    def signature(self, grid: int) -> Signature:
        """What a plan is made for; ``grid`` is the largest id of the launch."""
        wide = self.extent > INDEX_LIMIT or grid > INDEX_LIMIT
        operands = self.operands
        shapes = same = (0,) * len(operands)
        if len(operands) > 1:
            shapes = first_equal([one.shape for one in operands])
            same = views(operands)
        return Signature(tuple(self.arguments), 64 if wide else 32, shapes, same)


# What to pass for NumPy's types that are no numbers of khaljit's, by their kind.
_OTHER_VIEWS: Final = {
    "c": "pass the parts next to each other: array.view(array.real.dtype)",
    "M": "pass its integers: array.view(np.int64)",
    "m": "pass its integers: array.view(np.int64)",
    "S": "kernels have numbers only: pass the codes, array.view(np.uint8)",
    "U": "kernels have numbers only: pass the codes, array.view(np.uint32)",
}


_LISTING: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _plain_names(function: FunctionType) -> tuple[str, ...] | None:
    """The names of a function's parameters, where each takes one argument, by position or name."""
    code = function.__code__
    if (
        code.co_flags & _LISTING
        or code.co_posonlyargcount
        or code.co_kwonlyargcount
        or function.__dict__  # it may stand for another function
    ):
        return None
    return code.co_varnames[: code.co_argcount]


def _parameters(function: FunctionType) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@final
class Parameters:
    """The parameters of a kernel and what their annotations ask for."""

    def __init__(
        self,
        kernel: str,
        names: tuple[str, ...],
        annotations: Sequence[Annotation | None],
        make_signature: Callable[[], inspect.Signature],
        *,
        positional: int,
        are_plain: bool,
        subject: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.subject = subject or f"kernel {kernel}"  # whose parameters they are, for messages
        self.names = names
        self.annotations = tuple(annotations)
        self._make_signature = make_signature
        self._positional = positional
        self.are_plain = are_plain

    @classmethod
    def listed(
        cls,
        kernel: str,
        parameters: Sequence[inspect.Parameter],
        annotations: Sequence[Annotation | None],
        subject: str | None = None,
    ) -> Parameters:
        """Those in a list."""
        return cls(
            kernel,
            tuple(one.name for one in parameters),
            annotations,
            lambda: inspect.Signature(parameters),
            positional=sum(one.kind is not one.KEYWORD_ONLY for one in parameters),
            are_plain=all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters),
            subject=subject,
        )

    @classmethod
    def of(cls, function: FunctionType, name: str, skip: int = 0) -> Parameters:
        """Those of a function, without the first ``skip``."""
        plain = _plain_names(function)
        if plain is not None:  # most are, and `inspect` takes its time
            names = plain[skip:]
            kinds = of_function(function, names)
            return cls(
                name,
                names,
                kinds,
                lambda: inspect.Signature(_parameters(function)[skip:]),
                positional=len(names),
                are_plain=True,
            )
        found = _parameters(function)[skip:]
        for parameter in found:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ArgumentTypeError(
                    f"kernel {name} takes {parameter}",
                    mend="name every parameter; pass many arrays as a tuple",
                )
        return cls.listed(name, found, of_function(function, [one.name for one in found]))

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """As calls are bound to it."""
        return self._make_signature()

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of the parameters, defaults filled in."""
        if not kwargs and len(args) == len(self.names) == self._positional:
            return args
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(
                f"kernel {self.kernel}: {error}",
                mend=f"it is called as {self.kernel}[grid]({', '.join(self.names)})",
            ) from None
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self.names)

    def read(self, values: tuple[Any, ...]) -> Call:
        """Check the arguments of a call and take them apart."""
        call = Call()
        for name, annotation, value in zip(self.names, self.annotations, values, strict=True):
            call.arguments.append(self._read(call, name, annotation, value))
        return call

    def recorded(self, signature: Signature) -> list[tuple[str, Any]]:
        """The parameters as the recorder takes them, for one signature."""
        places = iter(zip(signature.shapes, signature.views, strict=True))

        def complete(argument: Any) -> Any:
            if isinstance(argument, ArrayEntry):
                array = argument.argument
                return ArrayArgument(
                    array.kind, array.ndim, array.contiguous, array.aligned, *next(places)
                )
            if isinstance(argument, Group):
                return GroupArgument(
                    argument.make, argument.names, tuple(map(complete, argument.parts))
                )
            return argument.argument if isinstance(argument, ConstEntry) else argument

        pairs = zip(self.names, signature.arguments, strict=True)
        return [(name, complete(argument)) for name, argument in pairs]

    def _read(self, call: Call, name: str, annotation: Annotation | None, value: Any) -> object:
        if value is None:
            return const_entry(None)
        if isinstance(value, ScalarParam):
            return self._param(call, name, annotation, value)
        if isinstance(annotation, ConstOf):
            return self._const(name, annotation, value)
        if isinstance(value, Array):
            return self._array(call, name, annotation, value)
        if isinstance(annotation, VectorType | type):
            return self._value(call, name, annotation, value)
        if isinstance(value, np.ndarray):
            return self._numpy(call, name, annotation, value)
        if isinstance(value, HostVector) and annotation is None:
            return self._value(call, name, vec(len(value), value.dtype), value)
        if is_instance(value) and annotation is None:
            return self._value(call, name, type(value), value)
        if type(value) in NUMBERS or isinstance(value, np.generic):
            return self._number(call, name, annotation, value)
        from khaljit.exchange import adopt, as_vectors  # for arrays of other libraries

        foreign = adopt(value)
        if isinstance(foreign, np.ndarray):
            return self._numpy(call, name, annotation, foreign)
        if foreign is not None:
            element = annotation.element if isinstance(annotation, ArrayOf) else None
            return self._array(call, name, annotation, as_vectors(foreign, element))
        if isinstance(value, tuple):
            return self._tuple(call, name, annotation, value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(call, name, annotation, value)
        if isinstance(value, DType | VectorType | str | Enum | FunctionType) and annotation is None:
            return self._const(name, ConstOf(None), value)
        if callable(value) and annotation is None:
            return self._const(name, ConstOf(None), value)
        raise self._error(
            name,
            annotation,
            describe(value),
            "pass a NumPy array (np.asarray(x)), a khaljit array, or a number",
        )

    def _error(
        self,
        name: str,
        annotation: object,
        got: str,
        mend: str,
        kind: type[ArgumentError] = ArgumentTypeError,
    ) -> ArgumentError:
        shown = annotation.__name__ if isinstance(annotation, type) else repr(annotation)
        wanted = "" if annotation is None else f" expects {shown} and"
        return kind(f"{self.subject}: parameter {name}{wanted} got {got}", mend=mend)

    # Arrays.

    def _numpy(
        self, call: Call, name: str, annotation: Annotation | None, array: np.ndarray[Any, Any]
    ) -> object:
        if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
            raise self._error(
                name,
                annotation,
                "a masked array",
                "pass array.filled(value), or data and mask apart",
            )
        element = annotation.element if isinstance(annotation, ArrayOf) else None
        if array.dtype.names is not None and element is not None:
            array = as_elements(array, element)
        kind: ElementType | None = by_numpy(array.dtype)
        shape, strides = array.shape, array.strides
        if element is not None and host_dtype(element) == array.dtype:
            kind, axes = element, tail(element)
            outer = array.ndim - len(axes)
            if outer < 0 or shape[outer:] != axes or strides[outer:] != inner_strides(element):
                raise self._error(
                    name,
                    annotation,
                    f"{describe(array)} of shape {shape}",
                    f"the last axes are those of a {name_of(element)}: {axes}, its numbers next "
                    "to each other",
                )
            shape, strides = shape[:outer], strides[:outer]
        elif array.dtype.names is not None:
            kind = numpy_struct(array.dtype)
        if kind is None:
            raise self._no_dtype(name, annotation, array)
        self._check(name, annotation, kind, len(shape), array)
        address = array.__array_interface__["data"][0]  # cheaper than array.ctypes.data
        return self._operand(call, name, kind, array, shape, strides, address)

    def _no_dtype(
        self, name: str, annotation: object, array: np.ndarray[Any, Any]
    ) -> ArgumentError:
        if not array.dtype.isnative:
            mend = "its bytes are swapped: pass array.astype(array.dtype.newbyteorder('='))"
        elif array.dtype.names is not None:
            mend = "lay its fields out as C does: np.dtype([...], align=True), or np.dtype(Struct)"
        elif array.dtype == np.object_:
            mend = "it holds Python objects: pass np.asarray(array, dtype=np.float32)"
        elif is_bfloat16(array.dtype):
            mend = f"pass its bits, array.view(np.uint16), and annotate {name}: kj.Array[kj.bf16]"
        else:
            mend = _OTHER_VIEWS.get(array.dtype.kind, "convert it: array.astype(np.float32)")
        return self._error(name, annotation, f"a NumPy array of {array.dtype}", mend)

    def _array(
        self, call: Call, name: str, annotation: Annotation | None, array: Array[Any]
    ) -> object:
        kind = array.dtype
        element = annotation.element if isinstance(annotation, ArrayOf) else None
        if element is not None and is_struct(kind) and same_memory(host_dtype(kind), element):
            kind = element
        self._check(name, annotation, kind, array.ndim, array)
        return self._operand(call, name, kind, array, array.shape, array.strides, array.address)

    def _check(
        self, name: str, annotation: object, kind: ElementType, ndim: int, value: Any
    ) -> None:
        if annotation is None:
            return
        if not isinstance(annotation, ArrayOf):
            mend = "pass one number, such as array[0]"
            raise self._error(name, annotation, describe(value), mend)
        if annotation.element is not None and annotation.element is not kind:
            scalar = host_dtype(annotation.element)
            target = f"{name_of(annotation.element)}.dtype" if scalar.names else f"np.{scalar}"
            mend = f"convert it: array.astype({target})"
            if isinstance(value, Array) or annotation.element is bf16:  # which NumPy lacks
                mend = f"convert it: device.array({name}, kj.{name_of(annotation.element)})"
            raise self._error(name, annotation, f"an array of {name_of(kind)}", mend)
        if annotation.ndim is not None and annotation.ndim != ndim:
            mend = f"give it {_axes(annotation.ndim)}: array.reshape(...)"
            raise self._error(name, annotation, f"an array with {_axes(ndim)}", mend)

    def _operand(
        self,
        call: Call,
        name: str,
        kind: ElementType,
        owner: np.ndarray[Any, Any] | Array[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        address: int,
    ) -> ArrayEntry:
        """Enter an array whose strides are in bytes."""
        element = element_of(kind)
        size, align, alignment = element.size, element.align, element.alignment
        if alignment > 1:
            if address % alignment and 0 not in shape:
                raise self._error(
                    name,
                    None,
                    f"an array whose memory is not aligned to {alignment} bytes",
                    "copy it: np.ascontiguousarray(array)",
                    ArgumentValueError,
                )
            for extent, stride in zip(shape, strides, strict=True):
                if stride % alignment and extent > 1:
                    raise self._error(
                        name,
                        None,
                        f"an array whose strides {strides} are no multiples of {alignment} bytes",
                        "copy it: np.ascontiguousarray(array)",
                        ArgumentValueError,
                    )
        units = tuple(stride // align for stride in strides)
        inner = not shape or shape[-1] <= 1 or strides[-1] == size
        if shape and shape[-1] <= 1:
            units = (*units[:-1], size // align)
        reach = size // align
        for extent, unit in zip(shape, units, strict=True):
            reach += (extent - 1) * abs(unit) if extent else 0
        call.extent = max(call.extent, reach, *shape)
        call.operands.append(Operand(name, owner, kind, shape, units, address))
        return array_entry(kind, len(shape), inner, address % 16 == 0)

    # Numbers.

    def _number(self, call: Call, name: str, annotation: Annotation | None, value: Any) -> object:
        dtype, number = read_number(name, annotation, value, self._error)
        call.numbers.append(number)
        return scalar_entry(dtype)

    def _value(
        self, call: Call, name: str, kind: VectorType | type[Any], value: Any
    ) -> ValueArgument:
        """A vector or struct, passed as its scalars."""
        held = host_value(kind, value, f"kernel {self.kernel}: parameter {name}")
        call.numbers += host_scalars(kind, held)
        return ValueArgument(kind)

    def _param(
        self, call: Call, name: str, annotation: Annotation | None, value: ScalarParam
    ) -> object:
        """A number that every launch of a graph sets: its type is known, its value is not."""
        if annotation is not None and annotation is not value.dtype:
            mend = f"make it graph.param({value.name!r}, {annotation!r})"
            if isinstance(annotation, ConstOf):
                mend = "a constant is part of the code: capture a graph for each value"
            raise self._error(name, annotation, repr(value), mend)
        call.numbers += value.slots  # type: ignore[arg-type]  # numbers once the graph has them
        return scalar_entry(value.dtype)

    # The rest.

    def _const(self, name: str, annotation: ConstOf, value: Any) -> object:
        kind = annotation.kind
        if isinstance(kind, DType):
            return ConstEntry(kind(value))
        if isinstance(kind, type) and not isinstance(value, kind):
            raise self._error(
                name, ConstOf(kind), describe(value), f"pass a value of type {kind.__name__}"
            )
        try:
            hash(value)
        except TypeError:
            raise self._error(
                name,
                None,
                f"a {type(value).__name__} as a constant",
                "constants are hashable: make it a tuple",
            ) from None
        return ConstEntry(value)

    def _tuple(
        self, call: Call, name: str, annotation: Annotation | None, value: tuple[Any, ...]
    ) -> object:
        names = fields_of(type(value), len(value))
        inner: Sequence[Annotation | None] = (None,) * len(value)
        if isinstance(annotation, GroupOf):
            if len(annotation.parts) != len(value):
                raise self._error(
                    name, annotation, f"a tuple of {len(value)}", "pass one value per part"
                )
            inner = annotation.parts
        elif annotation is not None:
            raise self._error(name, annotation, "a tuple", "pass one value")
        return self._group(call, name, type(value), names, inner, value)

    def _dataclass(
        self, call: Call, name: str, annotation: Annotation | None, value: Any
    ) -> object:
        names = fields_of(type(value), 0)
        found = annotation or parse(type(value), f"parameter {name}")
        if not isinstance(found, GroupOf):
            raise self._error(name, annotation, describe(value), "pass one value")
        values = tuple(getattr(value, one) for one in names)
        return self._group(call, name, type(value), names, found.parts, values)

    def _group(
        self,
        call: Call,
        name: str,
        make: Any,
        names: tuple[str, ...],
        kinds: Sequence[Annotation | None],
        values: Sequence[Any],
    ) -> Group:
        parts = tuple(
            self._read(call, f"{name}.{label}", kind, value)
            for label, kind, value in zip(names, kinds, values, strict=True)
        )
        return Group(make, names, parts)


def _axes(ndim: int) -> str:
    return "1 axis" if ndim == 1 else f"{ndim} axes"
