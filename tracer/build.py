"""Builds traces: interns pure values, keeps the stack of open regions, states types.

The recorder drives a `Builder` while the user's function runs; passes use one to build what they
rewrite to. It checks operand types against the operation table, so a trace is well typed by
construction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from khaljit.tracer.dtypes import DType, bf16, bool_, f16, f32, f64, index
from khaljit.tracer.errors import Site
from khaljit.tracer.ir import Access, Memory, Pool, Region, Trace, Value, values
from khaljit.tracer.ops import ENDS, OPS, Op, OpInfo, TypingError

__all__ = ["Builder", "constant", "pool_of", "to_bits", "to_number"]

_TYPE: Final = attrgetter("dtype")
# What typing rules have said: types do not change.
_RESULTS: Final[dict[tuple[Op, tuple[DType | None, ...]], DType]] = {}

_FLOAT_FORMATS: Final = {f16: ("<e", "<H"), f32: ("<f", "<I"), f64: ("<d", "<Q")}


def to_bits(dtype: DType, number: int | float | bool) -> int:
    """The bits of a number in a type; integers wrap, floats round to nearest even.

    >>> hex(to_bits(f32, 1.0))
    '0x3f800000'
    """
    if dtype is bool_:
        return int(bool(number))
    if not dtype.is_float:
        return int(number) & ((1 << (dtype.bits or 64)) - 1)
    value = float(number)
    if dtype is bf16:
        if value != value:
            return 0x7FC0
        # Round to odd in f32 first, so that rounding again to bf16 is as good as rounding once.
        wide = to_bits(f32, value)
        back = to_number(f32, wide)
        if back != value and not wide & 1:
            wide += 1 if abs(float(back)) < abs(value) else -1
        return (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
    packed, raw = _FLOAT_FORMATS[dtype]
    try:
        return int(struct.unpack(raw, struct.pack(packed, value))[0])
    except OverflowError:  # past the largest finite number: infinity, as rounding to nearest has it
        infinity = float("inf") if value > 0 else float("-inf")
        return int(struct.unpack(raw, struct.pack(packed, infinity))[0])


def to_number(dtype: DType, bits: int) -> int | float | bool:
    """The number that some bits of a type stand for.

    >>> to_number(f32, 0x3f800000)
    1.0
    """
    if dtype is bool_:
        return bool(bits)
    if dtype is bf16:
        return to_number(f32, bits << 16)
    if dtype.is_float:
        packed, raw = _FLOAT_FORMATS[dtype]
        return float(struct.unpack(packed, struct.pack(raw, bits))[0])
    width = dtype.bits or 64
    if dtype.is_signed and bits >> (width - 1):
        return bits - (1 << width)
    return bits


def constant(value: Value) -> int | float | bool | None:
    """The number of a ``CONST`` value; None for any other value."""
    if value.op is not Op.CONST:
        return None
    assert isinstance(value.attr, int)
    return to_number(value.type, value.attr)


def _check(op: Op, info: OpInfo, args: tuple[Value, ...]) -> None:
    assert not info.effect, f"{op.value} is an effect"
    if info.arity != len(args):
        raise TypingError(f"{op.value} takes {info.arity} operands, not {len(args)}")


def pool_of(trace: Trace) -> Pool | None:
    """All pure values of a trace; None where it has equal ones that are not one, or operands that
    the builder would exchange."""
    if trace.pool is not None:
        return trace.pool
    pool = Pool()
    add = pool.values.setdefault
    for value in values(trace.body):
        info = OPS[value.op]
        if info.effect or value.op is Op.PARAM:
            continue
        stated = value.dtype if info.result is None else None
        if add((value.op, stated, value.args, value.attr), value) is not value:
            return None
        if info.commutative and value.args[0].op is Op.CONST and value.args[1].op is not Op.CONST:
            return None
    return pool


class _OpenRegion:
    __slots__ = ("body", "end", "params")

    def __init__(self, params: tuple[Value, ...]) -> None:
        self.params: Final = params
        self.body: Final[list[Value]] = []
        self.end: Value | None = None


class Builder:
    """Builds one trace's values and regions.

    Args:
        pool: of the trace that is rebuilt.

    Attributes:
        at: the source site given to what is built next.
        old: the effect or end that is rebuilt, of which nothing was built yet. Where what is built
            is no other, it is that one itself.
        pool: all pure values so far.
    """

    def __init__(self, pool: Pool | None = None) -> None:
        self.at: Site | None = None
        self.old: Value | None = None
        self.pool: Final = pool or Pool()
        self._interned: Final = self.pool.values
        self._open: Final[list[_OpenRegion]] = []

    # Pure values.

    @property
    def built(self) -> Iterable[Value]:
        """The pure values built so far, of use or not."""
        return self._interned.values()

    def pure(
        self, op: Op, args: tuple[Value, ...] = (), attr: object = None, dtype: DType | None = None
    ) -> Value:
        """The one value of this operation on these operands. ``dtype`` where no rule gives it."""
        info = OPS[op]
        if info.commutative and args[0].op is Op.CONST and args[1].op is not Op.CONST:
            args = (args[1], args[0])
        key = (op, dtype, args, attr)
        found = self._interned.get(key)
        if found is not None:
            return found
        if info.result is None:
            _check(op, info, args)
        else:
            types = tuple(map(_TYPE, args))
            dtype = _RESULTS.get((op, types))
            if dtype is None:
                _check(op, info, args)
                dtype = _RESULTS[op, types] = info.result(*[arg.type for arg in args])
        found = self._interned[key] = Value(op, dtype, args, attr, (), self.at)
        return found

    def const(self, dtype: DType, number: int | float | bool) -> Value:
        """A constant; see `to_bits` for how the number becomes the type's."""
        return self.pure(Op.CONST, attr=to_bits(dtype, number), dtype=dtype)

    def const_bits(self, dtype: DType, bits: int) -> Value:
        return self.pure(Op.CONST, attr=bits, dtype=dtype)

    def scalar(self, number: int, dtype: DType) -> Value:
        return self.pure(Op.SCALAR, attr=number, dtype=dtype)

    def memory(self, memory: Memory) -> Value:
        return self.pure(Op.MEMORY, attr=memory)

    def id(self, name: str, axis: int = 0) -> Value:
        return self.pure(Op.ID, attr=(name, axis), dtype=index)

    def shape(self, memory: Value, axis: int) -> Value:
        """The extent of an axis; a constant where the memory's shape is fixed."""
        assert isinstance(memory.attr, Memory)
        extent = memory.attr.shape[axis]
        if extent is not None:
            return self.const(index, extent)
        return self.pure(Op.SHAPE, (memory,), axis, index)

    def extents(self, memory: Value, access: Access) -> list[Value]:
        """The extent of each axis that an access that is not flat has an index for."""
        assert isinstance(memory.attr, Memory)
        extents = [self.shape(memory, axis) for axis in range(memory.attr.ndim)]
        return extents + [self.const(index, extent) for extent, _ in access.inner]

    def stride(self, memory: Value, axis: int) -> Value:
        return self.pure(Op.STRIDE, (memory,), axis, index)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else self.pure(Op.CAST, (value,), dtype=dtype)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        if value.type.bits != dtype.bits:
            raise TypingError(f"bitcast from {value.type.name} to {dtype.name}")
        return value if value.dtype is dtype else self.pure(Op.BITCAST, (value,), dtype=dtype)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.pure(Op.SELECT, (condition, yes, no))

    def logical_not(self, condition: Value) -> Value:
        """``not`` of a bool, cancelling a double one."""
        if condition.op is Op.NOT:
            return condition.args[0]
        return self.pure(Op.NOT, (condition,))

    # Effects.

    def effect(
        self,
        op: Op,
        args: tuple[Value, ...] = (),
        attr: object = None,
        dtype: DType | None = None,
        regions: tuple[Region, ...] = (),
    ) -> Value:
        """Append an effect to the innermost open region."""
        region = self._open[-1]
        assert region.end is None, "nothing follows the end of a region"
        value = self.old
        if (
            value is not None
            and value.args == args
            and value.op is op
            and value.dtype is dtype
            and (value.attr == attr if regions else value.attr is attr)
            and value.regions == regions
        ):
            self.old = None
        else:
            value = Value(op, dtype, args, attr, regions, self.at)
        region.body.append(value)
        return value

    def load(
        self, memory: Value, indices: tuple[Value, ...], dtype: DType, access: Access
    ) -> Value:
        return self.effect(Op.LOAD, (memory, *indices), access, dtype)

    def store(
        self, memory: Value, indices: tuple[Value, ...], value: Value, access: Access
    ) -> Value:
        return self.effect(Op.STORE, (memory, *indices, value), access)

    # Regions.

    def open(self, param_types: Sequence[DType] = ()) -> tuple[Value, ...]:
        """Open a region inside the innermost open one; gives its parameters."""
        params = tuple(
            [Value(Op.PARAM, dtype, (), k, (), self.at) for k, dtype in enumerate(param_types)]
        )
        self._open.append(_OpenRegion(params))
        return params

    def reopen(self, params: tuple[Value, ...]) -> tuple[Value, ...]:
        """Open a region with the parameters of an old one."""
        self._open.append(_OpenRegion(params))
        return params

    def end(self, op: Op, args: tuple[Value, ...] = ()) -> Value:
        """End the innermost open region (it stays open until `close`)."""
        region, end = self._open[-1], self.old
        assert region.end is None, "a region ends once"
        if end is not None and end.op is op and end.args == args:
            self.old = None
        else:
            end = Value(op, None, args, None, (), self.at)
        region.end = end
        return end

    @staticmethod
    def complete(end: Value, args: tuple[Value, ...]) -> None:
        """Give a region's end its operands late: what leaves a loop is known at its close."""
        assert end.op in ENDS, end.op
        assert not end.args
        end.args = args  # type: ignore[misc]  # final from here on

    @property
    def ended(self) -> bool:
        """Whether the innermost open region has its end, so that nothing can follow."""
        return self._open[-1].end is not None

    @property
    def effects(self) -> int:
        """Number of effects in the innermost open region so far."""
        return len(self._open[-1].body)

    def close(self, old: Region | None = None) -> Region:
        """Close the innermost open region, which must have been ended; gives the old region where
        it is no other."""
        region = self._open.pop()
        assert region.end is not None, "a region is ended before it is closed"
        params, body, end = region.params, tuple(region.body), region.end
        if old is not None and old.body == body and old.params == params:
            end = old.end if old.end.op is end.op is Op.RETURN else end  # one is as the other
            if end is old.end:
                return old
        return Region(params, body, end)

    def snapshot(self) -> tuple[int, int]:
        """Where building stands, for `rollback`."""
        return len(self._open), len(self._open[-1].body)

    def rollback(self, snapshot: tuple[int, int]) -> None:
        """Forget the effects built and the regions opened since a snapshot."""
        depth, length = snapshot
        del self._open[depth:]
        del self._open[-1].body[length:]
        self._open[-1].end = None

    def if_(self, condition: Value, then: Region, orelse: Region) -> tuple[Value, ...]:
        """Append an ``if``; gives its results, whose types are those that its arms yield."""
        assert condition.dtype is bool_
        types: tuple[DType, ...] = ()
        for arm in (then, orelse):
            if arm.end.op is Op.YIELD:
                types = tuple(value.type for value in arm.end.args)
        node = self.effect(Op.IF, (condition,), types, None, (then, orelse))
        return self._results(node, types)

    def loop(
        self, initial: tuple[Value, ...], body: Region, types: tuple[DType, ...]
    ) -> tuple[Value, ...]:
        """Append a ``loop``; gives its results, whose types (``types``) its breaks carry."""
        node = self.effect(Op.LOOP, initial, types, None, (body,))
        return self._results(node, types)

    def _results(self, node: Value, types: tuple[DType, ...]) -> tuple[Value, ...]:
        return tuple(self.pure(Op.RESULT, (node,), k, dtype) for k, dtype in enumerate(types))
