"""How the code holds values: one scalar for all lanes, scalars with a stride, or vectors.

The lanes of a subgroup are split over ``parts`` vectors of ``per_part`` lanes each. They lie along
x, or in several ``rows`` of equal length below one another. A value that is the same in all lanes
is one scalar; one that grows by a fixed stride along x and is the same in all rows is the scalar
of lane 0; one that does so in each part by itself is a scalar per part; any other is a tuple of
vectors, which may have scalars that tell most of its parts (``clamped.py``). The vector form of the
first two is made when it is first asked for, and forgotten at the end of the scope that asked,
since code after it need not come that way. Masks are tuples of vectors; None where all lanes are
active.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.llvm.forms import TYPES, Width, literal
from khaljit.codegen.llvm.writer import Writer
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["SCALAR", "Held", "Lanes", "Mask", "Values"]

Mask = tuple[str, ...] | None
SCALAR: Final = Width(0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A value as the code holds it.

    Attributes:
        dtype: its type.
        base: name of the scalar that lane 0 has; empty where there is none.
        stride: what is added from lane to lane, where there are scalars.
        bases: names of the scalars that the first lane of each part has, if they need telling.
        parts: names of the vectors, where there are no scalars.
        straight: an i1 for each part, where the scalars only tell the parts for which it is true.
        literal: ``base`` is a constant's text.
    """

    dtype: DType
    base: str = ""
    stride: int = 0
    bases: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    straight: tuple[str, ...] = ()
    literal: bool = False

    @property
    def uniform(self) -> bool:
        return bool(self.base) and self.stride == 0

    @property
    def affine(self) -> bool:
        """Uniform, or growing by a stride along x and the same in all rows."""
        return bool(self.base)

    @property
    def linear(self) -> bool:
        """Growing by a stride from lane to lane, in each part at least."""
        return bool(self.base or self.bases) and not self.straight


@final
class Lanes:
    """The lanes of a subgroup as vectors, and what is done to all of them.

    Attributes:
        count: number of lanes.
        per_part: lanes of a vector.
        parts: number of vectors.
        rows: number of rows that they lie in.
        across: lanes of a row.
        width: of the vectors.
        mask: the type of a vector of a mask.

    ``mask_type`` is the scalar of a mask: i1 where the machine has registers for masks. Elsewhere
    it is an integer as wide as a lane, all ones or zero, since LLVM would pack and unpack i1 from
    block to block.
    """

    def __init__(
        self, writer: Writer, per_part: int, across: int, rows: int, mask_type: str
    ) -> None:
        parts = across * rows
        self.w: Final = writer
        self.rows: Final = rows
        self.across: Final = per_part * across
        self._mask_type: Final = mask_type
        self.per_part: Final = per_part
        self.parts: Final = parts
        self.count: Final = per_part * parts
        self.width: Final = Width(per_part)
        self.mask: Final = self.width.of(mask_type)

    def splat(self, type_: str, name: str) -> str:
        """A vector with one scalar in all lanes."""
        vector = self.width.of(type_)
        one = self.w.let(f"insertelement {vector} poison, {type_} {name}, i64 0")
        zeros = f"<{self.per_part} x i32> zeroinitializer"
        return self.w.let(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def iota(self, type_: str, part: int) -> str:
        """The constant vector of the lanes' numbers."""
        return self.steps(type_, part * self.per_part)

    def steps(self, type_: str, first: int, stride: int = 1) -> str:
        """The constant vector ``first``, ``first + 1`` ... times a stride, wrapped to the type."""
        bits = int(type_[1:])
        half = 1 << bits - 1
        numbers = (
            ((lane * stride + half) % (2 * half)) - half
            for lane in range(first, first + self.per_part)
        )
        return "<" + ", ".join(f"{type_} {number}" for number in numbers) + ">"

    def along(self, part: int) -> int:
        """How far along x a part begins."""
        return part * self.per_part % self.across

    def row(self, part: int) -> int:
        """Which row a part is in."""
        return part * self.per_part // self.across

    # Masks.

    def full(self) -> tuple[str, ...]:
        """The mask of all lanes, written out."""
        return (self.width.const(self._mask_type, "-1"),) * self.parts

    def active(self, mask: Mask) -> tuple[str, ...]:
        """A mask as vectors of i1."""
        if mask is None:
            return (self.width.const("i1", "true"),) * self.parts
        if self._mask_type == "i1":
            return mask
        return tuple(self.w.let(f"icmp slt {self.mask} {part}, zeroinitializer") for part in mask)

    def _each(self, op: str, a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.w.let(f"{op} {self.mask} {x}, {y}") for x, y in zip(a, b, strict=True))

    def narrowed(self, mask: Mask, condition: tuple[str, ...]) -> tuple[str, ...]:
        """Lanes of a mask that meet a condition, which is vectors of i1."""
        if self._mask_type != "i1":
            i1 = self.width.of("i1")
            condition = tuple(self.w.let(f"sext {i1} {part} to {self.mask}") for part in condition)
        return condition if mask is None else self._each("and", mask, condition)

    def without(self, mask: Mask, condition: tuple[str, ...]) -> tuple[str, ...]:
        """Lanes of a mask that do not meet a condition, which is vectors of i1."""
        i1, true = self.width.of("i1"), self.width.const("i1", "true")
        opposite = tuple(self.w.let(f"xor {i1} {part}, {true}") for part in condition)
        return self.narrowed(mask, opposite)

    def either(self, a: Mask, b: Mask) -> Mask:
        """Lanes of one mask or the other."""
        if a is None or b is None:
            return None
        return self._each("or", a, b)

    def any(self, mask: tuple[str, ...]) -> str:
        """Whether a mask has any lane; an i1."""
        total = mask[0]
        for part in mask[1:]:
            total = self.w.let(f"or {self.mask} {total}, {part}")
        if self._mask_type != "i1":
            total = self.w.let(f"icmp slt {self.mask} {total}, zeroinitializer")
        bits = self.w.let(f"bitcast {self.width.of('i1')} {total} to i{self.per_part}")
        return self.w.let(f"icmp ne i{self.per_part} {bits}, 0")

    @property
    def word(self) -> str:
        """The type of an integer with a bit per lane, of 64 bits at least."""
        return f"i{max(self.count, 64)}"

    def bits(self, mask: tuple[str, ...]) -> str:
        """A mask as a `word`."""
        total = ""
        for part, name in enumerate(self.active(mask)):
            raw = self.w.let(f"bitcast {self.width.of('i1')} {name} to i{self.per_part}")
            own = raw
            if f"i{self.per_part}" != self.word:
                own = self.w.let(f"zext i{self.per_part} {raw} to {self.word}")
            if part:
                own = self.w.let(f"shl {self.word} {own}, {part * self.per_part}")
                own = self.w.let(f"or {self.word} {total}, {own}")
            total = own
        return total

    def lowest(self, bits: str) -> str:
        """The number of the lowest bit that is set in a `word`, an i64."""
        t = self.word
        zeros = self.w.let(f"call {t} @llvm.cttz.{t}({t} {bits}, i1 false)")
        return zeros if t == "i64" else self.w.let(f"trunc {t} {zeros} to i64")

    def first(self, mask: Mask) -> str:
        """The number of the first active lane of a mask that has one; an i64."""
        if mask is None:
            return "0"
        lowest = self.lowest(self.bits(mask))
        return self.w.let(f"and i64 {lowest}, {self.count - 1}")  # some lane where none is active

    def last(self, mask: Mask) -> str:
        """The number of the last active lane of a mask that has one; an i64."""
        if mask is None:
            return str(self.count - 1)
        t = self.word
        zeros = self.w.let(f"call {t} @llvm.ctlz.{t}({t} {self.bits(mask)}, i1 false)")
        if t != "i64":
            zeros = self.w.let(f"trunc {t} {zeros} to i64")
        lane = self.w.let(f"sub i64 {int(t[1:]) - 1}, {zeros}")
        return self.w.let(f"and i64 {lane}, {self.count - 1}")

    # Vectors.

    def blend(
        self, mask: Mask, dtype: DType, yes: tuple[str, ...], no: tuple[str, ...]
    ) -> tuple[str, ...]:
        """``yes`` in the lanes of the mask, ``no`` in the others."""
        return yes if mask is None else self.chosen(self.active(mask), dtype, yes, no)

    def chosen(
        self, condition: tuple[str, ...], dtype: DType, yes: tuple[str, ...], no: tuple[str, ...]
    ) -> tuple[str, ...]:
        """``yes`` in the lanes that meet a condition, which is vectors of i1; else ``no``."""
        t, i1 = self.width.type(dtype), self.width.of("i1")
        return tuple(
            a if a == b else self.w.let(f"select {i1} {m}, {t} {a}, {t} {b}")
            for m, a, b in zip(condition, yes, no, strict=True)
        )

    def joined(self, type_: str, parts: tuple[str, ...]) -> str:
        """All parts as one vector of all lanes."""
        vectors, lanes = list(parts), self.per_part
        while len(vectors) > 1:
            t = f"<{lanes} x {type_}>"
            order = ", ".join(f"i32 {k}" for k in range(2 * lanes))
            vectors = [
                self.w.let(f"shufflevector {t} {a}, {t} {b}, <{2 * lanes} x i32> <{order}>")
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            lanes *= 2
        return vectors[0]

    def split(self, type_: str, vector: str) -> tuple[str, ...]:
        """One vector of all lanes as parts."""
        if self.parts == 1:
            return (vector,)
        t = f"<{self.count} x {type_}>"
        parts = []
        for part in range(self.parts):
            first = part * self.per_part
            order = ", ".join(f"i32 {first + k}" for k in range(self.per_part))
            parts.append(
                self.w.let(
                    f"shufflevector {t} {vector}, {t} poison, <{self.per_part} x i32> <{order}>"
                )
            )
        return tuple(parts)

    def extract(self, type_: str, parts: tuple[str, ...], lane: str) -> str:
        """The scalar of one lane, whose number is an i64."""
        vector = self.joined(type_, parts)
        return self.w.let(f"extractelement <{self.count} x {type_}> {vector}, i64 {lane}")


@final
class Values:
    """What is held so far, in scopes: what a scope holds is forgotten at its end.

    Attributes:
        known: conditions that are true in all active lanes.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes: Final = lanes
        self._held: list[dict[Value, Held]] = [{}]
        self._vectors: list[dict[Held, tuple[str, ...]]] = [{}]
        self._known: list[set[Value]] = [set()]

    def enter(self) -> None:
        self._held.append({})
        self._vectors.append({})
        self._known.append(set())

    def leave(self) -> None:
        self._held.pop()
        self._vectors.pop()
        self._known.pop()

    def hold(self, value: Value, held: Held) -> None:
        self._held[-1][value] = held

    def has(self, value: Value) -> bool:
        return value.op is Op.CONST or any(value in scope for scope in self._held)

    def get(self, value: Value) -> Held:
        if value.op is Op.CONST:
            assert isinstance(value.attr, int)
            return Held(value.type, literal(value.type, value.attr), literal=True)
        for scope in reversed(self._held):
            held = scope.get(value)
            if held is not None:
                return held
        raise KeyError(value)

    def learn(self, condition: Value, *, holds: bool) -> None:
        """From here to the end of the scope a condition holds, or its opposite, everywhere."""
        if condition.op is Op.NOT:
            self.learn(condition.args[0], holds=not holds)
        elif condition.op is (Op.AND if holds else Op.OR) and condition.dtype is bool_:
            for part in condition.args:
                self.learn(part, holds=holds)
        if holds:
            self._known[-1].add(condition)

    def knows(self, condition: Value) -> bool:
        """Whether a condition is sure to hold in all active lanes."""
        if condition.op is Op.CONST:
            return bool(condition.attr)
        if any(condition in scope for scope in self._known):
            return True
        if condition.op is Op.AND:
            return all(self.knows(part) for part in condition.args)
        return condition.op is Op.OR and any(self.knows(part) for part in condition.args)

    def vector(self, held: Held) -> tuple[str, ...]:
        """The vectors of a value, however it is held."""
        if held.parts:
            return held.parts
        if held.literal:
            type_ = TYPES[held.dtype]
            return (self.lanes.width.const(type_, held.base),) * self.lanes.parts
        for scope in reversed(self._vectors):
            found = scope.get(held)
            if found is not None:
                return found
        parts = self._spread(held)
        self._vectors[-1][held] = parts
        return parts

    def _spread(self, held: Held) -> tuple[str, ...]:
        lanes, type_ = self.lanes, TYPES[held.dtype]
        t = lanes.width.of(type_)
        splats: dict[str, str] = {}
        made: dict[tuple[str, int], str] = {}
        parts = []
        for part in range(lanes.parts):
            base = held.bases[part] if held.bases else held.base
            along = self._along(held, part)
            if base not in splats:
                splats[base] = lanes.splat(type_, base)
            if (base, along) not in made:
                made[base, along] = splats[base]
                if held.stride:
                    steps = lanes.steps(type_, along, held.stride)
                    made[base, along] = lanes.w.let(f"add {t} {splats[base]}, {steps}")
            parts.append(made[base, along])
        return tuple(parts)

    def _along(self, held: Held, part: int) -> int:
        return 0 if held.bases or not held.stride else self.lanes.along(part)

    def bases(self, held: Held) -> tuple[str, ...]:
        """The scalars that the first lane of each part has, of a value that has scalars."""
        if held.bases:
            return held.bases
        lanes, type_ = self.lanes, TYPES[held.dtype]
        made: dict[int, str] = {0: held.base}
        for part in range(lanes.parts):
            along = self._along(held, part)
            if along not in made:
                step = along * held.stride
                made[along] = lanes.w.let(f"add {type_} {held.base}, {step}")
        return tuple(made[self._along(held, part)] for part in range(lanes.parts))
