"""Accesses become flat offsets with guards, and ``index`` gets its width.

Before, with ``index`` 32 bits wide and ``a`` an array of two axes, contiguous inside::

    %v = load a[%i, %j]

After::

    %inside = and (lt (bitcast %i) (bitcast (shape a 0))) (lt (bitcast %j) (bitcast (shape a 1)))
    %offset = add (mul %i (stride a 0)) %j
    %v = load a[%offset] if %inside

Laws:

* The offset is the sum of index times stride in the trace's index width, counted in units of the
  element's alignment. It is right wherever the access is in bounds: the launch signature chose the
  width so. Elsewhere it may wrap, and the guard is false.
* The guard compares each index with its extent without sign, so one comparison covers both ends.
  It does so in the wider of the index's and the trace's width, whatever the index's type, and so
  is exact. An access that is not ``checked`` gets no guard, and one known to be in bounds neither.
* Memory of the kernel's own that holds ``index`` values has elements of its width.
* Memories of fixed shape have constant strides, in order of rows; so has the innermost axis of a
  contiguous array. Arrays of one shape share its extents; the same view passed twice is one memory.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.build import constant, to_bits, to_number
from khaljit.tracer.dtypes import DType, bool_, i32, i64, index, u8, u16, u32, u64
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    AtomicAccess,
    Element,
    Memory,
    ScalarParam,
    Space,
    Trace,
    Value,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.records import replace
from khaljit.tracer.rewriting import Rewriter

__all__ = ["lower_access"]

_UNSIGNED: Final = {8: u8, 16: u16, 32: u32, 64: u64}
_SIGNED: Final = {32: i32, 64: i64}


def lower_access(trace: Trace) -> Trace:
    """Give every access one offset, a guard where it needs one, and every index a width."""
    return _Lower(trace).run()


def row_major(memory: Memory, axis: int) -> int:
    """The stride of an axis of a memory with a fixed shape, in units of the alignment."""
    stride = memory.element.size // memory.element.align
    for extent in memory.shape[axis + 1 :]:
        assert extent is not None
        stride *= extent
    return stride


class _Lower(Rewriter):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.width: Final = _SIGNED[trace.index_bits]

    def run(self) -> Trace:
        scalars = tuple(ScalarParam(s.name, self.dtype(s.dtype)) for s in self.trace.scalars)
        return replace(super().run(), scalars=scalars)

    def dtype(self, dtype: DType) -> DType:
        return self.width if dtype is index else dtype

    # Values.

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op is Op.CONST and value.dtype is index:
            assert isinstance(value.attr, int)
            return self.builder.const(self.width, to_number(index, value.attr))
        if value.op is Op.MEMORY:
            return self.builder.memory(self._viewed(value.attr))
        if value.op is Op.SHAPE:
            return self._extent(value.memory, value.attr)
        if value.op is Op.STRIDE:
            return self._stride(value.memory, value.attr)
        if value.op is Op.CAST:
            return self.builder.cast(args[0], self.dtype(value.type))
        if value.op is Op.BITCAST:
            return self.builder.bitcast(args[0], self.dtype(value.type))
        if value.dtype is index and value.op in (Op.POPCOUNT, Op.CLZ, Op.CTZ):
            return self.builder.cast(self.builder.pure(value.op, args), self.width)
        return self.copy(value, args)

    def _param(self, memory: Memory) -> ArrayParam:
        return self.trace.arrays[memory.number]

    def _viewed(self, memory: object) -> Memory:
        """The memory itself, or the first array parameter that is the same view."""
        assert isinstance(memory, Memory)
        if memory.space is not Space.ARRAY:
            return self._sized(memory)
        first = self.trace.arrays[self._param(memory).same_view].memory
        return first if first.element == memory.element else memory

    def _sized(self, memory: Memory) -> Memory:
        """A memory of the kernel's own, where each ``index`` has its width."""
        leaves = memory.element.leaves
        if leaves[0][1] is not index:  # a number or a vector: all of one type
            return memory
        return replace(memory, element=Element.vector(self.width, len(leaves)))

    def _leaf(self, memory: Memory, access: Access) -> int:
        """The byte of an element at which an access is, once each ``index`` has its width."""
        if dict(memory.element.leaves)[access.leaf] is not index:
            return access.leaf
        return access.leaf // index.size * self.width.size

    def _extent(self, memory: Memory, axis: object) -> Value:
        assert isinstance(axis, int)
        extent = memory.shape[axis]
        if extent is not None:
            return self.builder.const(self.width, extent)
        first = self.trace.arrays[self._param(memory).same_shape].memory
        return self.builder.pure(Op.SHAPE, (self.builder.memory(first),), axis, self.width)

    def _stride(self, memory: Memory, axis: object) -> Value:
        assert isinstance(axis, int)
        if memory.space is not Space.ARRAY:
            return self.builder.const(self.width, row_major(memory, axis))
        viewed = self._viewed(memory)
        if axis == memory.ndim - 1 and self._param(viewed).contiguous:
            step = memory.element.size // memory.element.align
            return self.builder.const(self.width, step)
        return self.builder.pure(Op.STRIDE, (self.builder.memory(viewed),), axis, self.width)

    # Accesses.

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op not in (Op.LOAD, Op.STORE, Op.ATOMIC) or value.access.flat:
            return super().effect(value, args)
        count = len(value.indices)
        indices, operands = args[1 : 1 + count], args[1 + count :]
        memory = value.memory
        guard = self._guard(memory, indices, value.access)
        access = self._flat(memory, value.access, guard is not None)
        where = [self._offset(memory, indices, value.access)]
        if guard is not None:
            where.append(guard)
        dtype = None if value.dtype is None else self.dtype(value.dtype)
        return self.builder.effect(value.op, (args[0], *where, *operands), access, dtype)

    def _flat(self, memory: Memory, access: Access, guarded: bool) -> Access:
        """How the lowered access addresses its memory."""
        leaf = self._leaf(memory, access)
        if isinstance(access, AtomicAccess):
            kind, order = access.kind, access.order
            return AtomicAccess(leaf, False, True, guarded, kind=kind, order=order)
        return Access(leaf, False, True, guarded, uniform=access.uniform)

    def _offset(self, memory: Memory, indices: tuple[Value, ...], access: Access) -> Value:
        offset: Value | None = None
        strides = [self._stride(memory, axis) for axis in range(memory.ndim)]
        for _, step in access.inner:
            strides.append(self.builder.const(self.width, step // memory.element.align))
        for position, stride in zip(indices, strides, strict=True):
            term = self._scaled(self.builder.cast(position, self.width), stride)
            if constant(term) == 0:
                continue
            offset = term if offset is None else self.builder.pure(Op.ADD, (offset, term))
        return self.builder.const(self.width, 0) if offset is None else offset

    def _scaled(self, position: Value, stride: Value) -> Value:
        """position * stride, leaving out a multiplication by one."""
        count, step = constant(position), constant(stride)
        if count is not None and step is not None:
            return self.builder.const(self.width, int(count) * int(step))
        if count == 0 or step == 1:
            return position
        return self.builder.pure(Op.MUL, (position, stride))

    def _guard(self, memory: Memory, indices: tuple[Value, ...], access: Access) -> Value | None:
        """Whether all indices are in bounds; None where they surely are."""
        if not access.checked:
            return None
        guard: Value | None = None
        for axis, position in enumerate(indices):
            if axis in access.inside:
                continue
            if axis < memory.ndim:
                extent = self._extent(memory, axis)
            else:
                extent = self.builder.const(self.width, access.inner[axis - memory.ndim][0])
            inside = self._inside(position, extent)
            if constant(inside) is True:
                continue
            guard = inside if guard is None else self.builder.pure(Op.AND, (guard, inside))
        return guard

    def _inside(self, position: Value, extent: Value) -> Value:
        """0 <= position < extent, exactly, for a position of any integer type."""
        bits = max(position.type.bits, self.width.bits)
        unsigned = _UNSIGNED[bits]
        at, limit = constant(position), constant(extent)
        if at is not None and limit is not None:
            return self.builder.const(bool_, 0 <= at < limit)
        return self.builder.pure(
            Op.LT, (self._unsigned(position, unsigned), self._unsigned(extent, unsigned))
        )

    def _unsigned(self, value: Value, unsigned: DType) -> Value:
        """The value reinterpreted without sign, widened by its own sign before."""
        number = constant(value)
        if number is not None:
            return self.builder.const_bits(unsigned, to_bits(unsigned, number))
        if value.type.is_signed:
            value = self.builder.cast(value, _SIGNED[unsigned.bits])
            return self.builder.bitcast(value, unsigned)
        return self.builder.cast(value, unsigned)
