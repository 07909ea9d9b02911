"""One invocation of a kernel that runs as plain Python: what its operations do.

The kernel's function works on the same proxies as in a recording, but each of their values is a
known number. So the rules of types are the same ones, and `if`, `and` and `range` see numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from khaljit.backends.python.assign import Items, assign
from khaljit.backends.python.evaluate import Evaluator, known, number_of
from khaljit.backends.reporting import failure
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, f32, f64, index
from khaljit.tracer.errors import KernelError, Site
from khaljit.tracer.ir import (
    Access,
    AtomicAccess,
    Memory,
    Note,
    Region,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.numerics import from_memory, to_memory
from khaljit.tracer.ops import Op
from khaljit.tracer.recorder import Recorder, user_site
from khaljit.tracer.records import dataclass
from khaljit.tracer.rendering import render
from khaljit.tracer.storage import Cell, Window, apply_atomic, block_window, table_window

if TYPE_CHECKING:
    from khaljit.backends.python.workgroup import Workgroup

__all__ = ["Invocation", "Job", "Stepping"]

_FUSED: Final = (f32, f64)


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What all invocations of a launch share.

    Attributes:
        trace: the recording, contracted.
        scalars: the value of each scalar parameter.
        arrays: the memory of each array parameter.
        sums: what the recording contracts in the sums and differences at a place: the left or the
            right operand (0, 1), or none of them (None).
    """

    trace: Trace
    scalars: Sequence[int | float | bool]
    arrays: Sequence[Window]
    sums: Mapping[Site, set[int | None]]


@final
class Stepping(Recorder):
    """Stands where a recording would: operations are done, not recorded."""

    steps = True

    def __init__(
        self,
        hooks: ModuleType,
        builder: Builder,
        *,
        workgroup: tuple[int, int, int] | None,
        index_bits: int,
    ) -> None:
        super().__init__(hooks, builder, workgroup=workgroup)
        self.index_bits: Final = index_bits

    def items(self, items: Iterable[Any]) -> tuple[Any, ...]:
        """A tuple whose items can be assigned to."""
        return Items(items)

    def assign(self, value: object) -> None:
        """Assign to what the kernel's line says."""
        assign(value)

    def mark(self) -> None:
        """Places are looked up when something is wrong."""

    def known(self, value: Value) -> Any:
        """The number of a value."""
        return number_of(value, self.index_bits)

    def when(self, condition: Value, build: Callable[[], None]) -> None:
        """Do it, or not."""
        if condition.attr:
            build()


@final
class Invocation(Evaluator):
    """The operations of one invocation.

    Args:
        job: the launch.
        group: its workgroup.
        lane: its position there.
    """

    def __init__(self, job: Job, group: Workgroup, lane: int) -> None:
        options = job.trace.options
        super().__init__(job.trace.index_bits, fastmath=options.fastmath)
        self._job: Final = job
        self._group: Final = group
        self._lane: Final = lane
        self._contract: Final = options.contract
        self._private: Final[dict[Memory, Window]] = {}
        self._cells: Final[dict[tuple[Memory, int, DType], Cell]] = {}

    # Values.

    def pure(
        self, op: Op, args: tuple[Value, ...] = (), attr: Any = None, dtype: DType | None = None
    ) -> Value:
        """The number that an operation gives here."""
        if op is Op.MEMORY:
            return Value(op, None, (), attr)
        if op is Op.SCALAR:
            assert dtype is not None
            return self.const(dtype, self._job.scalars[attr])
        if op is Op.ID:
            return known(index, self._group.id(attr[0], attr[1], self._lane))
        if op is Op.SHAPE:
            return known(index, self._window(args[0]).shape[attr])
        if op is Op.STRIDE:
            window = self._window(args[0])
            return known(index, window.strides[attr] // window.align)
        if self._contract and op in (Op.ADD, Op.SUB):
            fused = self._fused(op, args)
            if fused is not None:
                return fused
        value = super().pure(op, args, attr, dtype)
        if op is Op.MUL and value.dtype in _FUSED:  # whose factors a sum may want
            x, y = (Value(Op.CONST, arg.dtype, (), arg.attr) for arg in args)
            return Value(Op.CONST, value.dtype, (x, y), value.attr)
        return value

    def _fused(self, op: Op, args: tuple[Value, ...]) -> Value | None:
        """A sum with a product in it, by the rule of ``passes/contract.py``; None for others.

        The rule is about what the recording sees: a product that came by a loop or branch is none
        there. So the recording is asked, where it knows the place.
        """
        side = self._product(args)
        if side is None:
            return None
        (a, b), other = args[side].args, args[1 - side]
        if op is Op.SUB and side == 1:
            a = self.pure(Op.NEG, (a,))
        elif op is Op.SUB:
            other = self.pure(Op.NEG, (other,))
        return super().pure(Op.FMA, (a, b, other))

    def _product(self, args: tuple[Value, ...]) -> int | None:
        """Which operand of a sum is contracted."""
        found = [side for side in (1, 0) if args[side].args]
        if not found or args[0].dtype not in _FUSED:
            return None
        recorded = self._job.sums.get(user_site() or Site("", 0), {1, 0})
        if recorded == {None}:
            return None
        wanted = [side for side in found if side in recorded]
        return wanted[0] if wanted else found[0]  # a constant has changed sides

    # Effects.

    def effect(
        self,
        op: Op,
        args: tuple[Value, ...] = (),
        attr: object = None,
        dtype: DType | None = None,
        regions: tuple[Region, ...] = (),
    ) -> Value:
        """Do something."""
        assert not regions, "control flow is Python's"
        if isinstance(attr, Access):
            return self._access(op, args, attr, dtype)
        if op is Op.BARRIER:
            self._group.meet(self._lane, "" if attr == "subgroup" else None, ())
        elif op is Op.SUBGROUP:
            assert dtype is not None
            found = self._group.meet(self._lane, str(attr), args)
            return known(dtype, found)
        elif isinstance(attr, Note):
            operands = [number_of(arg, self.index_bits) for arg in args]
            self._say(op, attr, operands)
        return Value(op, None)

    def _say(self, op: Op, note: Note, operands: list[Any]) -> None:
        if op is Op.PRINT:
            print(render(note.text, operands), end="")
        elif not operands[0]:
            raise self.failed(render(note.text, operands[1:]), user_site())

    def failed(self, message: str, at: Site | None) -> KernelError:
        """The error for what this invocation finds wrong."""
        return failure(self._job.trace.name, message, at, self._group.position(self._lane))

    # Memory.

    def _window(self, memory: Value) -> Window:
        attr = memory.attr
        assert isinstance(attr, Memory)
        if attr.space is Space.ARRAY:
            return self._job.arrays[attr.number]
        if attr.space is Space.SHARED:
            return self._group.window(attr)
        found = self._private.get(attr)
        if found is None:
            if attr.space is Space.TABLE:
                found = table_window(attr)
            else:
                found = block_window(attr, np.array(0), 1, poison=True)
            self._private[attr] = found
        return found

    def _access(
        self, op: Op, args: tuple[Value, ...], access: Access, dtype: DType | None
    ) -> Value:
        memory = args[0].attr
        assert isinstance(memory, Memory)
        window = self._window(args[0])
        count = memory.ndim + len(access.inner)
        indices = [int(number_of(arg, self.index_bits)) for arg in args[1 : 1 + count]]
        operands = args[1 + count :]
        shape = (*window.shape, *(extent for extent, _ in access.inner))
        scalar = dtype if dtype is not None else operands[0].type
        if not all(0 <= at < extent for at, extent in zip(indices, shape, strict=True)):
            if self._job.trace.options.debug:
                raise self._out_of_bounds(memory, indices, shape)
            return self.const(scalar, 0)
        key = (memory, access.leaf, scalar)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = window.cell(access.leaf, scalar)
        steps = (*cell.steps, *(step // cell.unit for _, step in access.inner))
        at = int(cell.start) + sum(i * step for i, step in zip(indices, steps, strict=True))
        if op is Op.LOAD:
            return known(scalar, from_memory(scalar, cell.typed[at : at + 1])[0])
        numbers = [number_of(one, self.index_bits).reshape(1) for one in operands]
        if op is Op.STORE:
            cell.typed[at : at + 1] = to_memory(scalar, numbers[0])
            return Value(op, None)
        assert isinstance(access, AtomicAccess)
        places = np.array([at])
        old = apply_atomic(access.kind, scalar, cell.typed, places, numbers, True, self.index_bits)
        return known(scalar, old[0])

    def _out_of_bounds(
        self, memory: Memory, indices: list[int], shape: tuple[int, ...]
    ) -> KernelError:
        name = f"{memory.space.value} memory"
        if memory.space is Space.ARRAY:
            name = self._job.trace.arrays[memory.number].name
        place = indices[0] if len(indices) == 1 else tuple(indices)
        message = f"index {place} is out of bounds of {name} of shape {tuple(shape)}"
        return self.failed(message, user_site())
