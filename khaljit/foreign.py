"""Kernels of hand-written code: ``device.load(code, entry, params, workgroup=...)``.

``params`` is a signature (``khaljit/signatures.py``) of arrays and numbers, in the order of the
arguments. An item may have a name before it, and an array ``const``, which says that the code only
reads it::

    double = device.load(wgsl, "double", "x: const f32[:], y: f32[:], n: u32", workgroup=64)
    double[x.size](x, y, x.size)

How arguments reach the code:

* WebGPU: the k-th array is the storage buffer at ``@group(0) @binding(k)``, ``read`` if it is
  ``const``, else ``read_write``. The numbers together are one struct with the layout of WGSL:
  ``var<immediate>`` (in SPIR-V push constants), or a uniform buffer at the binding that
  ``uniform=`` gives. A ``bool`` is a u32.
* CUDA: each argument is a parameter of the kernel: a pointer to the first element, or the number.

Arrays are contiguous, since code has only their beginning; extents that it needs are passed as
numbers. The grid counts invocations, as for other kernels, and nothing cuts off those of the last
workgroup.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.annotations import ArrayOf
from khaljit.arguments import Parameters
from khaljit.arrays import Array
from khaljit.dispatch import Dispatch
from khaljit.grids import Grid, Indirect, Workgroup, groups_of, parse_grid, parse_workgroup
from khaljit.launching import Bound, Launch, bind
from khaljit.operands import Operand, check_operands
from khaljit.signatures import parse_annotation, split_signature
from khaljit.tracer.dtypes import DType
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.intrinsics.vectors import VectorType
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.base import Device, Loaded

__all__ = ["CodeInterface", "ForeignKernel"]

_ITEM: Final = re.compile(r"(?:(\w+)\s*:\s*)?(const\s+)?(.*)\Z", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class CodeInterface:
    """What hand-written code takes.

    Attributes:
        name: of the kernel, for messages.
        parameters: in the order of the arguments.
        written: per array, whether the code may write it.
        numbers: the types of all numbers; a vector counts as one.
        uniform: binding of the uniform buffer with the numbers, or None.
    """

    name: str
    entry: str
    parameters: Parameters
    written: tuple[bool, ...]
    numbers: tuple[DType | VectorType, ...]
    workgroup: Workgroup
    uniform: int | None

    @classmethod
    def parse(
        cls,
        text: str,
        entry: str,
        workgroup: int | tuple[int, ...],
        uniform: int | None,
        name: str,
    ) -> CodeInterface:
        """The interface that a text describes; ArgumentValueError when it is malformed."""
        parameters, annotations, written = [], [], []
        numbers: list[DType | VectorType] = []
        for position, item in enumerate(split_signature(text)):
            match = _ITEM.match(item)
            assert match is not None  # it takes anything
            annotation = parse_annotation(match[3].strip())
            if isinstance(annotation, ArrayOf):
                written.append(match[2] is None)
            elif match[2]:
                raise ArgumentValueError(
                    f"the number {item!r} is const", mend="const stands before arrays only"
                )
            else:
                numbers.append(annotation)
            label = match[1] or f"argument{position}"
            parameters.append(inspect.Parameter(label, inspect.Parameter.POSITIONAL_OR_KEYWORD))
            annotations.append(annotation)
        if len({one.name for one in parameters}) != len(parameters):
            raise ArgumentValueError(
                f"two parameters in {text!r} have one name", mend="name each differently"
            )
        size = parse_workgroup(workgroup)
        assert size is not None
        return cls(
            name,
            entry,
            Parameters.listed(name, parameters, annotations),
            tuple(written),
            tuple(numbers),
            size,
            uniform,
        )


@final
class ForeignKernel:
    """A kernel of hand-written code on one device. Launch it with ``kernel[grid](*args)``."""

    def __init__(self, device: Device, interface: CodeInterface, loaded: Loaded) -> None:
        self.name: Final = interface.name
        self.device: Final = device
        self._interface: Final = interface
        self._loaded: Final = loaded

    def __repr__(self) -> str:
        return f"<khaljit kernel {self.name} of hand-written code on {self.device}>"

    def __getitem__(self, grid: Any) -> Launch:
        """The kernel with a grid: invocations per axis, x first."""
        if isinstance(grid, Indirect):
            return Launch(self, grid)
        extents, counts_groups = parse_grid(grid)
        return Launch(self, groups_of(extents, counts_groups, self._interface.workgroup))

    def launch(
        self, groups: Grid | Indirect, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Run on the kernel's device."""
        self.prepare(groups, args, kwargs).launch()

    def prepare(
        self, groups: Grid | Indirect, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Dispatch:
        """Everything about a launch but running it."""
        interface = self._interface
        parameters = interface.parameters
        call = parameters.read(parameters.bind(args, kwargs))
        self._check(call.operands)
        check_operands(self.name, call.operands, interface.written)
        return Dispatch(
            self.name,
            self.device,
            self._loaded,
            call.operands,
            call.numbers,
            groups,
            interface.written,
            (False,) * len(call.operands),
        )

    def bind_launch(
        self, launch: Launch, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Bound:
        """A launch of this kernel with arguments that stay."""
        return bind(launch, self._interface.parameters, args, kwargs)

    def _check(self, operands: Sequence[Operand]) -> None:
        """Arrays live on the kernel's device, and their elements lie side by side."""
        arrays = sum(isinstance(operand.owner, Array) for operand in operands)
        for operand in operands:
            owner = operand.owner
            if not isinstance(owner, Array):
                if arrays:
                    raise ArgumentValueError(
                        f"kernel {self.name}: parameter {operand.name} got a NumPy array beside "
                        f"arrays on {self.device}",
                        mend=f"copy it to the device: device.array({operand.name})",
                    )
                continue
            if owner.device is not self.device:
                raise ArgumentValueError(
                    f"kernel {self.name} was loaded on {self.device}, and parameter "
                    f"{operand.name} lives on {owner.device}",
                    mend="load the code on that device, or copy the array: device.array(a.numpy())",
                )
            if not owner.is_contiguous:
                raise ArgumentValueError(
                    f"kernel {self.name}: parameter {operand.name} is strided, and hand-written "
                    "code knows only where an array begins",
                    mend="copy it to a new array: device.empty(a.shape, a.dtype), device.copy",
                )
