"""Ids as the machine counts them, the edge of the grid, and workgroups counted along a line.

* A kernel whose workgroup was left to the backend gets one, along x. The grid is cut to its
  invocations: the whole kernel becomes an ``if`` on the global id being inside.
* wgpu has subgroups in workgroups along x only. A workgroup of several rows whose subgroups are
  looked at becomes one line, and the local ids are taken from the position in it.
* A device takes a limited number of workgroups on an axis. A *folded* program does not look at
  the shape of the dispatch: it takes the position of its workgroup in the dispatch, x fastest, as
  the position in the true grid, whose counts are parameters, and does nothing past its end. That
  costs a few divisions for each invocation, so it is a variant made when a grid needs it.

Before, in a kernel for which the backend chooses::

    %x = id global 0

After, with a workgroup of (64, 1, 1)::

    if (lt (id global 0) (scalar extent)) { %x = id global 0 ... }

Ids are ``i32`` from here on, cast to the width of the trace's indices. The condition around a
kernel is the same over each workgroup if the kernel has barriers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from khaljit.codegen.webgpu.folding import folding
from khaljit.codegen.webgpu.interface import Source
from khaljit.codegen.webgpu.parameters import Parameters
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, i32, i64, u32
from khaljit.tracer.ir import Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter, drive

__all__ = ["launch", "sees_subgroups"]

_SUBGROUPS: Final = frozenset({"subgroup", "lane", "num_subgroups", "subgroup_size"})
_ONE: Final = frozenset({"workgroup_size", "num_subgroups", "subgroup_size"})


def launch(trace: Trace, parameters: Parameters, group: tuple[int, int, int], fold: bool) -> Trace:
    """Give the trace a workgroup and ids that it can have from the machine."""
    return _Launch(trace, parameters, group, fold).run()


def sees_subgroups(trace: Trace) -> bool:
    """Whether a kernel does anything with subgroups."""
    return any(
        value.op is Op.SUBGROUP
        or (value.op is Op.ID and isinstance(value.attr, tuple) and value.attr[0] in _SUBGROUPS)
        for value in values(trace.body)
    )


class _Launch(Rewriter):
    def __init__(
        self, trace: Trace, parameters: Parameters, group: tuple[int, int, int], fold: bool
    ) -> None:
        super().__init__(trace)
        self._parameters: Final = parameters
        self._cut: Final = trace.workgroup is None
        self._size: Final = trace.workgroup or group
        self._line: Final = sees_subgroups(trace) and self._size[1] * self._size[2] > 1
        self._fold: Final = fold
        self._width: Final = i32 if trace.index_bits == 32 else i64
        self._write: Final = Writer(self.builder, folding(self.builder))

    def run(self) -> Trace:
        self.builder.open()
        guard = self._guard()
        if guard is None:
            drive(self.contents(self.trace.body))
        else:
            inside = drive(self.region(self.trace.body))
            self.builder.open()
            self.builder.end(Op.YIELD)
            self.builder.if_(guard, inside, self.builder.close())
            self.builder.end(Op.YIELD)
        x, y, z = self._size
        size = (x * y * z, 1, 1) if self._line else self._size
        return replace(self.trace, body=self.builder.close(), workgroup=size)

    # Where an invocation is.

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is not Op.ID:
            return self.copy(value, args)
        assert isinstance(value.attr, tuple)
        name, axis = value.attr
        return self._cut_id(name, axis) if self._cut else self._id(name, axis)

    def _cut_id(self, name: str, axis: int) -> Value:
        """An id in a kernel that is as if its workgroups were single invocations."""
        if name in ("global", "workgroup"):
            return self._id("global", axis)
        if name == "num_workgroups":
            return self._grid("extent", axis, self._width)
        return self.builder.const(self._width, int(name in _ONE))

    def _id(self, name: str, axis: int) -> Value:
        w = self._write
        if name == "workgroup_size":
            return self.builder.const(self._width, self._size[axis])
        if self._line and name == "local":
            return w.cast(self._place_in_line(axis), self._width)
        if self._fold and name == "num_workgroups":
            return w.cast(w.bitcast(self._grid("groups", axis, u32), i32), self._width)
        if self._fold and name == "workgroup":
            return w.cast(self._folded()[axis], self._width)
        if (self._fold or self._line) and name == "global":
            first = w.mul(self._id("workgroup", axis), self._size[axis])
            return w.add(first, self._id("local", axis))
        return w.cast(self._machine(name, axis), self._width)

    def _place_in_line(self, axis: int) -> Value:
        """A local id from the position in a workgroup that is one line, x fastest."""
        line = self._write.bits(self._machine("local_index", 0))
        rows, x = self._divided(line, self._count(self._size[0]))
        z, y = self._divided(rows, self._count(self._size[1]))
        return self._write.bitcast((x, y, z)[axis], i32)

    def _count(self, number: int) -> Value:
        return self.builder.const(u32, number)

    def _machine(self, name: str, axis: int) -> Value:
        return self.builder.pure(Op.ID, attr=(name, axis), dtype=i32)

    def _grid(self, kind: str, axis: int, dtype: DType) -> Value:
        return self._parameters.value(self.builder, Source(kind, 0, axis), dtype, dtype)

    def _folded(self) -> tuple[Value, Value, Value]:
        """The position of the workgroup in the true grid; z is past the end in those too many."""
        w = self._write
        x, y, z = (w.bits(self._machine("workgroup", axis)) for axis in range(3))
        wide, high = (w.bits(self._machine("num_workgroups", axis)) for axis in range(2))
        line = w.add(w.mul(w.add(w.mul(z, high), y), wide), x)
        rows, first = self._divided(line, self._grid("groups", 0, u32))
        planes, second = self._divided(rows, self._grid("groups", 1, u32))
        return first, second, planes

    def _divided(self, x: Value, by: Value) -> tuple[Value, Value]:
        quotient = self._write.op(Op.TRUNCDIV, x, by)
        return quotient, self._write.sub(x, self._write.mul(quotient, by))

    def _guard(self) -> Value | None:
        """Whether the invocation is one of the grid's; None where all are."""
        w = self._write
        inside = []
        if self._fold:
            inside.append(w.lt(self._folded()[2], self._grid("groups", 2, u32)))
        if self._cut:
            inside += [
                w.lt(self._id("global", axis), self._grid("extent", axis, self._width))
                for axis in range(3)
                if self._size[axis] > 1
            ]
        guard = None
        for one in inside:
            guard = one if guard is None else w.and_(guard, one)
        return guard
