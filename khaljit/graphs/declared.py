"""The parameters of a graph: what its capture declared, and the values of a launch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.annotations import Annotation, ArrayOf, parse
from khaljit.arguments import Parameters
from khaljit.arrays import Array
from khaljit.tracer.build import to_bits
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError
from khaljit.tracer.intrinsics.vectors import VectorType
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.base import Device

__all__ = ["Declarations", "Declared", "Value"]

# Of an array parameter an array; else Python numbers, or slots of a graph that is captured around.
Value = Array | tuple[Any, ...]  # type: ignore[type-arg]  # not in a kernel


@final
@dataclass(slots=True)
class Declared:
    """A parameter.

    Attributes:
        kind: a dtype, a vector type, or an array's annotation.
        default: None where every launch gives a value.
        nodes: of an array, the positions of the nodes that use it.
        slots: of numbers, their places: a node, among that node's numbers, which component.
    """

    name: str
    kind: Annotation
    default: Value | None = None
    nodes: list[int] = field(default_factory=list)
    slots: list[tuple[int, int, int]] = field(default_factory=list)

    def read(self, value: Any) -> Value:
        """A value that a launch gives; raises ArgumentError."""
        call = _reader(self.name, self.kind).read((value,))
        if not isinstance(self.kind, ArrayOf):
            return tuple(call.numbers)
        owner = call.operands[0].owner
        if not isinstance(owner, Array):
            raise ArgumentTypeError(
                f"graph: parameter {self.name} got a NumPy array",
                mend=f"copy it to the device first: device.array({self.name})",
            )
        if self.default is not None:
            assert isinstance(self.default, Array)
            _expect_alike(self.name, owner, self.default)
        return owner

    def bits(self, numbers: tuple[Any, ...]) -> list[int]:
        """Numbers as their slots hold them."""
        dtype: Any = getattr(self.kind, "dtype", self.kind)
        return [to_bits(dtype, number) for number in numbers]

    def is_same(self, value: Value, other: Value | None) -> bool:
        """Whether two values are one to the nodes."""
        if isinstance(value, Array) or other is None or isinstance(other, Array):
            return value is other
        return self.bits(value) == self.bits(other)

    def __str__(self) -> str:
        default = self.default
        if isinstance(default, tuple):
            return f"{self.kind!r} = {default[0] if len(default) == 1 else default!r}"
        return f"{self.kind!r}" if default is None else repr(default)


@final
class Declarations:
    """The parameters of a graph by name."""

    def __init__(self, device: Device) -> None:
        self._device: Final = device
        self._all: Final[dict[str, Declared]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Declared]:
        return iter(self._all.values())

    def __getitem__(self, name: str) -> Declared:
        return self._all[name]

    def declare(self, name: str, dtype: Any, default: Any) -> Declared:
        """A new parameter; raises ArgumentError."""
        if not name.isidentifier() or name in ("self", "repeat") or name in self._all:
            raise ArgumentValueError(
                f"a graph's parameter cannot be called {name!r}"
                + (": there is one already" if name in self._all else ""),
                mend="names of parameters are Python's, each differs, and repeat is taken",
            )
        kind = None if dtype is None else parse(dtype, f"graph parameter {name}")
        if isinstance(default, Array):
            made = self._array(name, kind, default)
        elif not isinstance(kind, DType | VectorType):
            raise ArgumentTypeError(
                f"the graph parameter {name} is no array, and {kind!r} is no type of a number",
                mend="graph.param(name, kj.f32, default=0.5), or default= an array of the device; "
                "the fields of a struct are parameters of their own",
            )
        else:
            made = Declared(name, kind)
            made.default = None if default is None else made.read(default)
        self._all[name] = made
        return made

    def _array(self, name: str, kind: Annotation | None, default: Array[Any]) -> Declared:
        if kind is not None:
            element: Any = kind
            asked = kind if isinstance(kind, ArrayOf) else ArrayOf(element, default.ndim)
            _reader(name, asked).read((default,))
        if default.device is not self._device:
            raise ArgumentValueError(
                f"the graph parameter {name} is on {default.device}, and the graph on "
                f"{self._device}",
                mend="give an array of the graph's device",
            )
        return Declared(name, ArrayOf(default.dtype, default.ndim), default)

    def read(self, given: Mapping[str, Any]) -> dict[str, Value]:
        """The values of all parameters at a launch; raises ArgumentError."""
        unknown = given.keys() - self._all.keys()
        if unknown:
            raise ArgumentTypeError(
                f"the graph has no parameter {', '.join(sorted(unknown))}",
                mend=f"its parameters are {', '.join(self._all)}"
                if self._all
                else "make it in the capture: graph.param(name, dtype)",
            )
        found: dict[str, Value] = {}
        for name, declared in self._all.items():
            if name in given:
                found[name] = declared.read(given[name])
            elif declared.default is not None:
                found[name] = declared.default
            else:
                raise ArgumentTypeError(
                    f"the graph's parameter {name} has no default and is not given",
                    mend=f"graph.launch({name}=...)",
                )
        return found


def _reader(name: str, kind: Annotation) -> Parameters:
    """What checks a value as kernels have their arguments checked."""
    one = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
    return Parameters.listed("", [one], [kind], subject="graph")


def _expect_alike(name: str, value: Array[Any], default: Array[Any]) -> None:
    """An array can stand in for another one: the code was chosen for it."""
    if value.device is not default.device:
        what = f"is on {value.device}, and the graph on {default.device}"
    elif (value.shape, value.strides) != (default.shape, default.strides):
        what = (
            f"has shape {value.shape} and strides {value.strides}, and the graph was captured "
            f"with {default.shape} and {default.strides}"
        )
    elif value.address % 16 and not default.address % 16:
        what = "does not begin at a multiple of 16 bytes, as the captured one does"
    else:
        return
    raise ArgumentValueError(
        f"the array for the graph's parameter {name} {what}",
        mend="give an array like the default, or capture a graph for this one",
    )
