"""A legal trace in the machine's types: what it says of memory in cells, narrow integers in words.

Before, with ``a`` an array of ``u8``::

    store a[%k] (add %x 1) if %guard

After::

    %byte = add (scalar offset) %k
    if %guard {
        atomic and cells[shr %byte 2] ...       # clears in the byte what is to be 0
        atomic or cells[shr %byte 2] ...        # sets in the byte what is to be 1
    }

Laws:

* Integers narrower than 32 bits are ``i32`` or ``u32`` extended by their sign or zeros. What may
  leave their range is wrapped at once.
* Offsets are ``u32`` and count from the start of a binding. Accesses have no guards any more: a
  guarded load reads cell 0 where it must not read, and gives 0; a guarded store or atomic stands
  in an ``if``.
* A store to part of a word changes no other bits of it, whoever writes those at the same time: it
  is two atomics. (In local memory it is plain.) Of several different values stored to one byte at
  once the bits may be mixed, which is the one way in which this is weaker than a store of a byte.
* Extents, strides and offsets are parameters like scalars.
* Casts between machine types are left; those from floats to integers have operands in range.
* Sums whose rounding errors matter are hidden from the driver (``sums.py``); division and square
  root of f32 are corrected where the driver's are not rounded correctly (``division.py``).
* f16 is stored and moved; it is added, subtracted and multiplied, the rest is done in f32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from khaljit.codegen.caps import Caps
from khaljit.codegen.rounding import (
    f16_to_f32,
    f32_to_f16,
    f64_to_f32_odd,
    rounded_to_f16,
    sum_to_odd,
)
from khaljit.codegen.webgpu.cells import Cell, find_cells, part_of
from khaljit.codegen.webgpu.division import divided, root
from khaljit.codegen.webgpu.expansions import (
    COUNTS,
    EXTREMES,
    count_narrow,
    is_nan,
    multiply_high,
    saturated,
    wrapped,
)
from khaljit.codegen.webgpu.folding import folding
from khaljit.codegen.webgpu.interface import Source
from khaljit.codegen.webgpu.parameters import Parameters
from khaljit.codegen.webgpu.places import Place, Places
from khaljit.codegen.webgpu.sums import Sums, chooses_extreme
from khaljit.codegen.writing import UNSIGNED, Writer
from khaljit.tracer.build import constant, to_number
from khaljit.tracer.dtypes import DType, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32
from khaljit.tracer.ir import ArrayParam, AtomicAccess, Element, Memory, Space, Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter

__all__ = ["in_words"]

HELD: Final = {i8: i32, i16: i32, u8: u32, u16: u32}
_WRAPPING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.NOT, Op.SHL})
_ORDER: Final = frozenset({Op.LT, Op.LE, Op.GT, Op.GE})
# Where a driver takes floats for real numbers.
_HIDDEN: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FMA})
# What f16 does by itself; for the rest it goes through f32, which holds enough bits to round once,
# and where drivers are kept from what they would make of sums.
_HALF: Final = frozenset({Op.NEG, Op.ABS, Op.SELECT, Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE})
_HALF_FAST: Final = _HALF | {Op.ADD, Op.SUB, Op.MUL}


def in_words(
    trace: Trace, caps: Caps, parameters: Parameters, bindings: tuple[int, ...], arrays: int
) -> Trace:
    """Rewrite a legal trace.

    ``bindings`` maps array parameters to bindings; the first ``arrays`` of them are the kernel's
    own, which begin at an offset.
    """
    return _Words(trace, caps, parameters, bindings, arrays).run()


class _Words(Rewriter):
    def __init__(
        self,
        trace: Trace,
        caps: Caps,
        parameters: Parameters,
        bindings: tuple[int, ...],
        arrays: int,
    ) -> None:
        super().__init__(trace)
        self._arrays: Final = arrays
        self._fast: Final = trace.options.fastmath
        self._half: Final = _HALF_FAST if self._fast else _HALF
        self._corrects: Final = not (caps.rounded or self._fast)
        self._parameters: Final = parameters
        self._bindings: Final = bindings
        self._cells: Final = find_cells(trace, caps, bindings)
        self._build: Final = folding(self.builder)
        self._write: Final = Writer(self.builder, self._plain)
        self._sums: Final = Sums(self._write, self._zero, self._fast)
        self._places: Final = Places(self._write, caps)
        order = values(trace.body)
        self._used: Final = {arg for value in order for arg in value.args}
        # NVIDIA's compiler loses negations in the least or greatest of three (``ptx/signs.py``).
        self._keeps_signs: Final = any(
            value.op in EXTREMES and value.type.is_integer for value in order
        )

    def _plain(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        if op is Op.CAST and dtype in HELD:
            return self._integer(args[0], dtype)
        if op in _ORDER and args[0].dtype is i64:
            args = self._ordered(*args)
        if op in _HIDDEN and args[0].dtype in (f32, f64):
            args = self._sums.operands(op, args)
        if chooses_extreme(op, args) and args[1].dtype in (f32, f64):
            args = self._sums.chosen(*args)
        return self._build(op, args, dtype)

    def _ordered(self, x: Value, y: Value) -> tuple[Value, Value]:
        """The operands of an order of integers of 64 bits.

        Mesa 22.3 compares a widened integer with what it knows to be a constant, but forgets the
        sign. So integers that both fit are compared as they were before, and others are hidden.
        """
        narrow = self._narrow(x), self._narrow(y)
        if narrow[0] is not None and narrow[1] is not None:
            return narrow[0], narrow[1]
        return self._opaque(x), self._opaque(y)

    def _narrow(self, x: Value) -> Value | None:
        """An integer of 64 bits as one of 32, if it surely is one."""
        if x.op is Op.CAST and x.args[0].dtype is i32:
            return x.args[0]
        number = constant(x)
        fits = number is not None and -(1 << 31) <= number < 1 << 31
        return self.builder.const(i32, int(number)) if number is not None and fits else None

    def _opaque(self, x: Value) -> Value:
        """A widened integer of which a driver does not know that."""
        if x.op is not Op.CAST or x.args[0].dtype is not i32:
            return x
        return self._write.or_(x, self._write.bitcast(self._zero(x), i64))

    def run(self) -> Trace:
        trace = super().run()
        memories = {
            cell.memory.number: cell.memory
            for (space, _), cell in self._cells.items()
            if space is Space.ARRAY
        }
        unused = Element.scalar(u32)
        bound = []
        for k in range(1 + max(self._bindings, default=-1)):
            memory = memories.get(k, Memory(Space.ARRAY, k, unused, (None,)))
            name = self.trace.arrays[self._bindings.index(k)].name
            bound.append(ArrayParam(name, memory, True, False, k, k))
        return replace(trace, arrays=tuple(bound), index_bits=32)

    def dtype(self, dtype: DType) -> DType:
        return HELD.get(dtype, dtype)

    # Leaves.

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        op = value.op
        if op is Op.MEMORY:
            return self.builder.memory(self._cell(value).memory)
        if op is Op.SHAPE or op is Op.STRIDE:
            assert isinstance(value.attr, int)
            source = Source(op.value, value.memory.number, value.attr)
            return self._parameters.value(self.builder, source, value.type, value.type)
        if op is Op.SCALAR:
            return self._scalar(value)
        if op is Op.CONST and value.dtype in HELD:
            assert isinstance(value.attr, int)
            number = to_number(value.type, value.attr)
            return self.builder.const(HELD[value.type], number)
        if op is Op.CAST:
            return self._cast(args[0], value.args[0].type, value.type)
        if op is Op.BITCAST:
            return self._bitcast(args[0], value.args[0].type, value.type)
        if not args or value.dtype is None:
            return self.copy(value, args)
        return self._computed(op, args, value.args[-1].type, value.type)

    def _scalar(self, value: Value) -> Value:
        """A parameter; what is no machine type of 32 or 64 bits comes in a word."""
        assert isinstance(value.attr, int)
        if value.dtype is bool_:
            return self._write.ne(self.builder.scalar(value.attr, u32), 0)
        if value.dtype is f16:
            return self._bitcast(self.builder.scalar(value.attr, u32), u16, f16)
        return self.builder.scalar(value.attr, self.dtype(value.type))

    def _cell(self, memory: Value) -> Cell:
        assert isinstance(memory.attr, Memory)
        return self._cells[memory.attr.space, memory.attr.number]

    def _zero(self, like: Value) -> Value:
        """An integer as wide as a float, of which the code cannot know that it is 0."""
        dtype = UNSIGNED[like.type.bits]
        word = self._parameters.value(self.builder, Source("zero"), u32, u32)
        return self._write.cast(word, dtype)

    # Operations. Types are those before, operands those after.

    def _negated(self, x: Value) -> Value:
        """-x by an operation that a driver cannot fold into an extreme of three."""
        zero = self._write.bitcast(self._zero(x), x.type)
        return self._write.sub(zero, x)

    def _computed(self, op: Op, args: tuple[Value, ...], dtype: DType, result: DType) -> Value:
        w = self._write
        if dtype is f16 and (op not in self._half or chooses_extreme(op, args)):
            return self._in_f32(op, args)
        if dtype in (f32, f64) and op in (Op.EQ, Op.NE) and args[0] is args[1]:
            nan = is_nan(w, args[0])
            return nan if op is Op.NE else w.not_(nan)
        if dtype is f32 and op in (Op.DIV, Op.SQRT) and self._corrects:
            return (divided if op is Op.DIV else root)(w, *args)
        if self._keeps_signs and op in (Op.NEG, Op.ABS) and dtype.is_integer and dtype.bits <= 32:
            (x,) = args
            negated = self._negated(x)
            built = negated if op is Op.NEG else w.select(w.lt(x, 0), negated, x)
            return wrapped(w, built, result) if result in HELD else built
        if dtype.is_float and op in EXTREMES:
            return EXTREMES[op](w, *args)
        if op in COUNTS:
            return self._counted(op, args[0], dtype)
        if op is Op.MULHI:
            return self._multiplied_high(args, dtype)
        built = self._plain(op, args, None)
        return wrapped(w, built, result) if result in HELD and op in _WRAPPING else built

    def _in_f32(self, op: Op, args: tuple[Value, ...]) -> Value:
        w = self._write
        wide = tuple(map(self._widened, args))
        if op is Op.FMA:  # the product is exact; the sum rounds to odd, so that f16 rounds once
            return w.cast(sum_to_odd(w, w.mul(wide[0], wide[1]), wide[2]), f16)
        return w.cast(self._computed(op, wide, f32, f32), f16)

    def _widened(self, x: Value) -> Value:
        """An f16 as f32; constants stay such, since sums look at them.

        NVIDIA's compiler leaves out a conversion to f16 and back, so there is none where an f16
        was computed in f32.
        """
        number = constant(x)
        if x.dtype is bool_:
            return x
        if number is not None:
            return self.builder.const(f32, number)
        if x.op is Op.CAST and x.args[0].dtype is f32 and not self._fast:
            return rounded_to_f16(self._write, x.args[0])
        return self._write.cast(x, f32)

    def _counted(self, op: Op, x: Value, dtype: DType) -> Value:
        if dtype in HELD:
            return count_narrow(self._write, op, x, dtype.bits)
        return COUNTS[op](self._write, x) if dtype.bits == 64 else self._write.op(op, x)

    def _multiplied_high(self, args: tuple[Value, ...], dtype: DType) -> Value:
        w = self._write
        if dtype not in HELD:
            return multiply_high(w, *args)
        return w.shr(w.mul(*args), dtype.bits)

    # Casts.

    def _cast(self, x: Value, source: DType, target: DType) -> Value:
        w = self._write
        if source is bool_:
            held = self.dtype(target)
            return w.select(x, w.const(held, 1), w.const(held, 0))
        if target is bool_:
            return w.ne(x, 0)
        if source.is_float:
            return self._from_float(x, target)
        if target.is_float:
            if target is f16:  # past 2^24, where f32 rounds, f16 is infinite
                return w.cast(w.cast(x, f32), f16)
            return w.cast(x, target)
        return self._integer(x, target)

    def _integer(self, x: Value, target: DType) -> Value:
        """An integer of a machine type as any other."""
        w, held = self._write, self.dtype(target)
        if x.type.bits == held.bits:
            x = w.bitcast(x, held)
        elif held.bits == 64:  # extended by the sign that it has
            x = w.bitcast(w.cast(x, i64 if x.type.is_signed else UNSIGNED[64]), held)
        else:
            x = w.bitcast(w.cast(w.bitcast(x, UNSIGNED[64]), u32), held)
        return wrapped(w, x, target) if target in HELD else x

    def _from_float(self, x: Value, target: DType) -> Value:
        w = self._write
        if target is f16 and x.dtype is f64:
            x = f64_to_f32_odd(w, x)
        if x.dtype is f16 and target is not f16:
            x = self._widened(x)
        if target.is_float:
            return w.cast(x, target) if target is not x.dtype else x
        whole = saturated(w, x, self.dtype(target))
        if target not in HELD:
            return whole
        low, high = target.limits
        whole = w.min(whole, high)
        return w.max(whole, low) if low else whole

    def _bitcast(self, x: Value, source: DType, target: DType) -> Value:
        w = self._write
        if source is f16:
            return wrapped(w, f32_to_f16(w, w.cast(x, f32)), target)
        if target is f16:
            return w.cast(f16_to_f32(w, w.and_(w.bits(x), 0xFFFF)), f16)
        if target in HELD:
            return wrapped(w, x, target)
        return w.bitcast(x, target)

    # Effects.

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if value.op is Op.SUBGROUP:
            return self._collective(value, args)
        if value.op not in (Op.LOAD, Op.STORE, Op.ATOMIC):
            return super().effect(value, args)
        place = self._place(value, args)
        start = len(args) - len(value.operands)
        if value.op is Op.LOAD:
            loaded = self._places.load(place)
            # The bits of a bf16, of which a driver may know that 0 was stored (``sums.py``).
            local = value.memory.space is Space.LOCAL and value.dtype is u16
            return self._write.or_(loaded, self._zero(loaded)) if local else loaded
        if value.op is Op.STORE:
            self._places.store(place, args[start])
            return None
        assert isinstance(value.attr, AtomicAccess)
        return self._places.atomic(place, value.attr, args[start:], value in self._used)

    def _place(self, value: Value, args: tuple[Value, ...]) -> Place:
        w, memory, access = self._write, value.memory, value.access
        dtype = value.operands[0].type if value.op is Op.STORE else value.type
        cell = self._cell(value.args[0])
        offset = w.bits(args[1]) if args[1].type.bits == 32 else self._integer(args[1], u32)
        if memory.space is Space.ARRAY and memory.number < self._arrays:
            source = Source("offset", memory.number)
            start = self._parameters.value(self.builder, source, u32, u32)
            offset = w.add(start, offset)
        part = part_of(w, cell, memory, offset, access.leaf, dtype)
        guard = args[2] if access.guarded else None
        return Place(cell, args[0], part, guard, dtype, self.dtype(dtype), value.at)

    def _collective(self, value: Value, args: tuple[Value, ...]) -> Value:
        dtype = value.type
        built = self.builder.effect(value.op, args, value.attr, self.dtype(dtype))
        narrow = dtype in HELD and value.attr not in ("shuffle", "broadcast_first")
        return wrapped(self._write, built, dtype) if narrow else built
