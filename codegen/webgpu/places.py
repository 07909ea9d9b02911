"""Loads, stores and atomics on scalars that take part of a cell, a cell, or two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, final

from khaljit.codegen.caps import Caps
from khaljit.codegen.rounding import f16_to_f32, f32_to_f16
from khaljit.codegen.webgpu.cells import Cell, Form, Part
from khaljit.codegen.webgpu.expansions import EXTREMES, halves, joined, wrapped
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, bool_, f16, f32, i32, u32, u64
from khaljit.tracer.errors import CapabilityError, Site
from khaljit.tracer.ir import Access, AtomicAccess, Space, Value
from khaljit.tracer.ops import COMBINE, Op
from khaljit.tracer.records import dataclass

__all__ = ["Place", "Places"]

_PLAIN: Final = Access(checked=False, flat=True)
# What an atomic of u32 does as well to the bits of any type of 32.
_ON_BITS: Final = frozenset(
    {"load", "store", "exchange", "compare_exchange", "add", "sub", "and", "or", "xor"}
)


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A scalar in memory.

    Attributes:
        cell: what the memory is made of.
        memory: the array of cells.
        part: where in it the scalar stands.
        guard: whether to touch it; None where always.
        dtype: the scalar's type as it was.
        held: the machine type that holds it.
        at: where in the source the access is.
    """

    cell: Cell
    memory: Value
    part: Part
    guard: Value | None
    dtype: DType
    held: DType
    at: Site | None


@final
class Places:
    """Writes accesses."""

    def __init__(self, writer: Writer, caps: Caps) -> None:
        self._write: Final = writer
        self._caps: Final = caps

    # Loads.

    def load(self, place: Place) -> Value:
        w = self._write
        if place.guard is None:
            return self._decoded(place, self._words(place, place.part.index))
        index = w.select(place.guard, place.part.index, w.const(u32, 0))
        found = self._decoded(place, self._words(place, index))
        return w.select(place.guard, found, w.builder.const_bits(place.held, 0))

    def _words(self, place: Place, index: Value) -> tuple[Value, ...]:
        """The cells that hold a scalar."""
        wide = place.cell.form is not Form.NATURAL and place.held.bits == 64
        count = 2 if wide else 1
        return tuple(
            self._write.builder.load(
                place.memory,
                (self._offset(index if k == 0 else self._write.add(index, k)),),
                place.cell.dtype,
                _PLAIN,
            )
            for k in range(count)
        )

    def _decoded(self, place: Place, words: tuple[Value, ...]) -> Value:
        w = self._write
        if place.cell.form is Form.NATURAL:
            return words[0]
        if len(words) == 2:
            return w.bitcast(joined(w, *words), place.held)
        return self._extracted(place, words[0])

    def _extracted(self, place: Place, word: Value) -> Value:
        """A scalar of up to 32 bits from its word."""
        w, dtype = self._write, place.dtype
        if place.part.shift is not None:
            word = w.shr(word, w.and_(place.part.shift, 31))
        if dtype is bool_:
            return w.ne(w.and_(word, 0xFF), 0)
        if dtype is f16:
            return self._half(word)
        if dtype.size < 4:
            return wrapped(w, word, dtype)
        return w.bitcast(word, place.held)

    def _half(self, word: Value) -> Value:
        return self._write.cast(f16_to_f32(self._write, self._write.and_(word, 0xFFFF)), f16)

    # Stores.

    def store(self, place: Place, value: Value) -> None:
        self._guarded(place, lambda: self._stored(place, value), None)

    def _stored(self, place: Place, value: Value) -> None:
        w, index = self._write, place.part.index
        if place.cell.form is Form.NATURAL:
            self._put(place, index, value)
        elif place.held.bits == 64:
            for k, word in enumerate(halves(w, w.bitcast(value, u64))):
                self._put(place, index if k == 0 else w.add(index, k), word)
        elif place.part.shift is None:
            self._put(place, index, self._encoded(place, value))
        elif place.cell.memory.space is Space.LOCAL:
            (word,) = self._words(place, index)
            self._put(place, index, self._inserted(place, word, value))
        else:
            self._merge(place, value)

    def _merge(self, place: Place, value: Value) -> None:
        """Store to part of a word: clear what is to be 0, then set what is to be 1.

        So neighbours stay as they are, and bits that change to nothing new never show another
        value, even where several store the same at once.
        """
        w = self._write
        bits, hole = self._shifted(place, value)
        self._atomic_word(place, "and", (w.or_(bits, hole),))
        self._atomic_word(place, "or", (bits,))

    def _put(self, place: Place, index: Value, value: Value) -> None:
        self._write.builder.store(place.memory, (self._offset(index),), value, _PLAIN)

    def _offset(self, index: Value) -> Value:
        """A cell's number as accesses have it."""
        return self._write.bitcast(index, i32)

    def _encoded(self, place: Place, value: Value) -> Value:
        """The bits of a scalar of up to 32, in the low ones of a word."""
        w = self._write
        if place.dtype is bool_:
            return w.select(value, w.const(u32, 1), 0)
        if place.dtype is f16:
            value = f32_to_f16(w, w.cast(value, f32))
        return w.bits(value)

    def _inserted(self, place: Place, word: Value, value: Value) -> Value:
        """A word with a scalar put in."""
        if place.part.shift is None:
            return self._encoded(place, value)
        bits, hole = self._shifted(place, value)
        return self._write.or_(self._write.and_(word, hole), bits)

    def _shifted(self, place: Place, value: Value) -> tuple[Value, Value]:
        """The bits of a scalar where they stand in the word, and a mask of all the others."""
        w, bits = self._write, self._encoded(place, value)
        assert place.part.shift is not None
        mask = (1 << 8 * place.dtype.size) - 1
        shift = w.and_(place.part.shift, 31)
        return w.shl(w.and_(bits, mask), shift), w.not_(w.shl(w.const(u32, mask), shift))

    # Control flow.

    def _guarded(
        self, place: Place, build: Callable[[], Value | None], dtype: DType | None
    ) -> Value | None:
        """Do something if the guard holds; what it gives is else 0."""
        if place.guard is None:
            return build()
        builder = self._write.builder
        builder.open()
        built = build()
        builder.end(Op.YIELD, () if built is None else (built,))
        then = builder.close()
        builder.open()
        assert (built is None) == (dtype is None)
        builder.end(Op.YIELD, () if dtype is None else (builder.const_bits(dtype, 0),))
        results = builder.if_(place.guard, then, builder.close())
        return results[0] if results else None

    def _exchanged(self, place: Place, change: Callable[[Value], Value]) -> Value:
        """Change a word at once; gives the old one."""
        return self._until(place, lambda word: (change(word), None))

    def _until(self, place: Place, change: Callable[[Value], tuple[Value, Value | None]]) -> Value:
        """Change a word at once, unless a condition says to leave it; gives the old one."""
        builder, w = self._write.builder, self._write
        seen = self._atomic_word(place, "load", ())
        (expected,) = builder.open((u32,))
        desired, leave = change(expected)
        if leave is not None:
            self._break_if(leave, expected)
        found = self._atomic_word(place, "compare_exchange", (expected, desired))
        self._break_if(w.eq(found, expected), found)
        builder.end(Op.CONTINUE, (found,))
        (old,) = builder.loop((seen,), builder.close(), (u32,))
        return old

    def _break_if(self, condition: Value, result: Value) -> None:
        builder = self._write.builder
        builder.open()
        builder.end(Op.BREAK, (result,))
        leave = builder.close()
        builder.open()
        builder.end(Op.YIELD)
        builder.if_(condition, leave, builder.close())

    # Atomics.

    def atomic(
        self, place: Place, access: AtomicAccess, operands: tuple[Value, ...], used: bool
    ) -> Value | None:
        """An atomic; gives the old value if that is used."""
        if access.order != "relaxed":
            raise CapabilityError(
                f"{self._caps.name} has relaxed atomics only, not {access.order}",
                at=place.at,
                mend='use order="relaxed", and barriers where one workgroup must see another\'s '
                "writes in order",
            )
        if used:
            kind = "exchange" if access.kind == "store" else access.kind
            return self._guarded(place, lambda: self._atomic(place, kind, operands), place.held)

        def build() -> None:
            self._atomic(place, access.kind, operands)

        self._guarded(place, build, None)
        return None

    def _atomic(self, place: Place, kind: str, operands: tuple[Value, ...]) -> Value:
        if place.cell.form is Form.NATURAL:
            return self._effect(place, kind, operands)
        if place.held.bits == 64:
            self._refuse(place, kind)
        if kind == "load":
            return self._extracted(place, self._atomic_word(place, kind, ()))
        whole = place.part.shift is None and place.dtype.size == 4
        if whole and (kind in _ON_BITS or place.dtype is u32) and self._modular(place, kind):
            bits = tuple(self._write.bits(operand) for operand in operands)
            return self._write.bitcast(self._atomic_word(place, kind, bits), place.held)
        if kind == "compare_exchange":
            return self._extracted(place, self._compare_exchanged(place, *operands))
        (operand,) = operands
        combine = COMBINE.get(kind)
        if combine is None:
            word = self._exchanged(place, lambda word: self._inserted(place, word, operand))
        else:
            word = self._exchanged(
                place,
                lambda word: self._inserted(
                    place, word, self._combined(place, combine, word, operand)
                ),
            )
        return self._extracted(place, word)

    def _modular(self, place: Place, kind: str) -> bool:
        """Whether a kind means the same on the bits of the type: all do on integers."""
        return not (place.held.is_float and kind in COMBINE)

    def _combined(self, place: Place, op: Op, word: Value, operand: Value) -> Value:
        w, old = self._write, self._extracted(place, word)
        if place.held.is_float and op in EXTREMES:
            return EXTREMES[op](w, old, operand)
        new = w.op(op, old, operand)
        return wrapped(w, new, place.dtype) if place.dtype.size < 4 else new

    def _compare_exchanged(self, place: Place, expected: Value, desired: Value) -> Value:
        """A compare-exchange of part of a word; gives the old word."""
        w = self._write
        wanted = self._encoded(place, expected)
        mask = (1 << 8 * place.dtype.size) - 1

        def change(word: Value) -> tuple[Value, Value | None]:
            bits = self._encoded(place, self._extracted(place, word))
            differs = w.ne(w.and_(w.xor(bits, wanted), mask), 0)
            return self._inserted(place, word, desired), differs

        return self._until(place, change)

    def _atomic_word(self, place: Place, kind: str, operands: tuple[Value, ...]) -> Value:
        access = AtomicAccess(checked=False, flat=True, kind=kind)
        args = (place.memory, self._offset(place.part.index), *operands)
        return self._write.builder.effect(Op.ATOMIC, args, access, u32)

    def _effect(self, place: Place, kind: str, operands: tuple[Value, ...]) -> Value:
        access = AtomicAccess(checked=False, flat=True, kind=kind)
        args = (place.memory, self._offset(place.part.index), *operands)
        return self._write.builder.effect(Op.ATOMIC, args, access, place.cell.dtype)

    def _refuse(self, place: Place, kind: str) -> NoReturn:
        raise CapabilityError(
            f"{self._caps.name} has atomics of 64 bits on plain arrays of that type only",
            at=place.at,
            mend=f"keep what atomic_{kind} works on in an array of its own",
        )
