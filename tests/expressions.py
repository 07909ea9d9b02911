"""Random expressions of a dtype, as text: the part of the generator that knows operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from khaljit.tracer.dtypes import (
    DType,
    Kind,
    MixError,
    bool_,
    f32,
    f64,
    i32,
    promote,
)
from tests.programs import Parameter

__all__ = ["COMPARISONS", "Expressions", "Flow", "name_of"]


def name_of(dtype: DType) -> str:
    return f"kj.{dtype.name}"


# Operations by kind of type, as text: {0}, {1} and {2} are operands of the type.
_INTEGER_TWO: Final = (
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // {1}", "{0} % {1}"),
    *("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} << {1}", "{0} >> {1}"),
    *("kj.min({0}, {1})", "kj.max({0}, {1})", "kj.minimum({0}, {1})", "kj.maximum({0}, {1})"),
    *("kj.mulhi({0}, {1})", "min({0}, {1})", "max({0}, {1})"),
)
_INTEGER_ONE: Final = ("-{0}", "~{0}", "abs({0})", "kj.reverse_bits({0})", "kj.sign({0})")
_COUNTS: Final = ("kj.popcount({0})", "kj.clz({0})", "kj.ctz({0})")
_FLOAT_TWO: Final = (
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} + {1} * {2}", "{0} * {1} - {2}"),
    *("kj.min({0}, {1})", "kj.max({0}, {1})", "kj.minimum({0}, {1})", "kj.maximum({0}, {1})"),
    *("kj.clamp({0}, {1}, {2})", "kj.fma({0}, {1}, {2})"),
)
_FLOAT_RARE: Final = ("{0} // {1}", "{0} % {1}")
_FLOAT_ONE: Final = (
    *("-{0}", "abs({0})", "kj.floor({0})", "kj.ceil({0})", "kj.trunc({0})", "kj.round({0})"),
    *("kj.sqrt({0})", "kj.sign({0})", "{0} * {0}", "{0} ** 3"),
)
_BOOL_TWO: Final = (
    *("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "({0} and {1})", "({0} or {1})"),
    *("{0} == {1}", "{0} != {1}"),
)
# Ways to keep a number within an axis, {1} being the last place: all of them, and at one end only.
_CLAMPED: Final = (
    *("kj.clamp({0}, 0, {1})", "min(max({0}, 0), {1})", "kj.max(kj.min({0}, {1}), 0)"),
    "kj.clamp({1} - kj.clamp({0}, 0, {1}), 0, {1})",
)
_CLAMPED_ABOVE: Final = ("min({0}, {1})", "({0} if {0} < {1} else {1})")
_NEAR: Final = (
    *("i", "i + 1", "i - 2", "i + n", "kj.i64(i) - 1", "kj.u32(i) - 3", "3 - i", "2 * i - 3"),
    *("kj.i8(i) + kj.i8(100)", "kj.u8(i) * 5", "i + kj.i32(2147483640)", "kj.u64(i) + 4"),
)
COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")


@dataclass
class Flow:
    """Where a statement stands.

    Attributes:
        known: variables that are set on every way here, with their types.
        together: the whole workgroup comes here.
        loop: the innermost loop: "none", "free" to be left by some, or "whole".
        returns: what a ``return`` gives; None in the kernel, which gives nothing.
        fixed: variables that may not be assigned: those of the function around this one.
    """

    known: dict[str, DType]
    together: bool = False
    loop: str = "none"
    returns: DType | None = None
    fixed: frozenset[str] = frozenset()

    def free(self) -> list[str]:
        """Variables that may be assigned again."""
        return [name for name in self.known if name.startswith("v") and name not in self.fixed]

    def inner(self, **changes: Any) -> Flow:
        return replace(self, known=dict(self.known), **changes)


@dataclass
class Expressions:
    """What a program has so far, and expressions of it.

    Attributes:
        size: statements that are still to come, about.
        indexing: depth of indices around an expression; those load nothing.
        helpers: functions with the types of their parameters and of what they return.
        memories: local arrays and tables, with their lengths.
    """

    rng: random.Random
    seed: int
    size: int
    types: tuple[DType, ...] = ()
    unchecked: bool = False
    in_kernel: bool = False
    names: int = 0
    indexing: int = 0
    helpers: list[tuple[str, tuple[DType, ...], DType]] = field(default_factory=list)
    arrays: list[Parameter] = field(default_factory=list)
    memories: list[tuple[str, DType, int]] = field(default_factory=list)

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def type(self) -> DType:
        return self.rng.choice(self.types)

    def integer_type(self) -> DType:
        return self.rng.choice([dtype for dtype in self.types if dtype.is_integer])

    # Leaves.

    def literal(self, dtype: DType) -> str:
        """A Python number that fits a type."""
        rng = self.rng
        if dtype is bool_:
            return rng.choice(("True", "False"))
        if dtype.is_float:
            return rng.choice(("0.0", "-0.0", "1.0", "0.5", "-1.5", "2", "3.25", "0.1", "-7"))
        low, high = dtype.limits
        return str(rng.choice([0, 1, 2, 3, 7, dtype.bits or 32, max(low, -1), max(low, -5), high]))

    def strong(self, dtype: DType) -> str:
        """A constant of a type."""
        if dtype.is_float and self.chance(0.15):
            return f"{name_of(dtype)}({self.rng.choice(('math.inf', '-math.inf', 'math.nan'))})"
        return f"{name_of(dtype)}({self.literal(dtype)})"

    def leaf(self, flow: Flow, dtype: DType) -> str:
        rng = self.rng
        known = [name for name, own in flow.known.items() if own is dtype]
        choice = rng.random()
        if known and choice < 0.6:
            return rng.choice(known)
        if choice < 0.8 and self.in_kernel and not self.indexing:
            loads = [one for one in self.arrays if one.dtype is dtype and one.name[:2] == "in"]
            if loads:
                return self.load(flow, rng.choice(loads))
        if choice < 0.88 and self.in_kernel and not self.indexing:
            memories = [one for one in self.memories if one[1] is dtype]
            if memories:
                memory, _, extent = rng.choice(memories)
                return f"{memory}[{self.place(flow, extent)}]"
        if choice < 0.92 and self.in_kernel:
            return f"{name_of(dtype)}({rng.choice(('i', 'n', 'i', 's'))})"
        if known:
            return rng.choice(known)
        return self.strong(dtype)

    def load(self, flow: Flow, array: Parameter) -> str:
        return f"{array.name}[{', '.join(self.place(flow, n) for n in array.shape)}]"

    def place(self, flow: Flow, extent: int) -> str:
        """An index along an axis; of a checked kernel it may be out of bounds."""
        rng = self.rng
        if self.chance(0.25):
            return str(rng.randrange(extent))
        if self.chance(0.2):
            forms = _CLAMPED if self.unchecked or self.chance(0.7) else _CLAMPED_ABOVE
            return rng.choice(forms).format(f"({rng.choice(_NEAR)})", extent - 1)
        dtype = self.integer_type()
        small = extent <= dtype.limits[1]
        self.indexing += 1
        number = self.operand(flow, dtype, 1)
        self.indexing -= 1
        if self.unchecked or self.chance(0.4):
            return f"{number} % {extent}" if small else f"i % {extent}"
        wild = [
            *("i", "i", "i + 1", "2 * i - 3", "i - 2", "i % 5", "kj.i64(i) * 1000000007"),
            *("i + kj.i32(2147483640)", "kj.i64(i) + 4294967296", "kj.u32(i) - 3", "kj.u8(i)"),
        ]
        return rng.choice((number, *wild))

    # Expressions.

    def operand(self, flow: Flow, dtype: DType, depth: int) -> str:
        """An expression in brackets where it needs them."""
        text = self.expression(flow, dtype, depth)
        return (
            text
            if text.isidentifier()
            or (text.endswith(")") and text.startswith("kj.") and (text.count("(") == 1))
            else f"({text})"
        )

    def expression(self, flow: Flow, dtype: DType, depth: int | None = None) -> str:
        if depth is None:
            depth = self.rng.choice((1, 1, 2, 2, 3))
        if depth <= 0 or self.chance(0.15):
            return self.leaf(flow, dtype)
        if dtype is bool_:
            return self.condition(flow, depth)
        ways: list[Callable[[Flow, DType, int], str]] = [self.same_type] * 5
        ways += [self.with_literal] * 2 + [self.mixed, self.cast, self.cast, self.choice]
        ways += [self.call, self.other]
        return self.rng.choice(ways)(flow, dtype, depth - 1)

    def filled(self, flow: Flow, form: str, dtype: DType, depth: int) -> str:
        return form.format(*(self.operand(flow, dtype, depth) for _ in range(3)))

    def same_type(self, flow: Flow, dtype: DType, depth: int) -> str:
        forms: Sequence[str]
        if dtype.is_integer:
            forms = _INTEGER_TWO if self.chance(0.8) else _INTEGER_ONE
        else:
            forms = _FLOAT_TWO if self.chance(0.7) else _FLOAT_ONE
            if self.chance(0.04):
                forms = _FLOAT_RARE
        return self.filled(flow, self.rng.choice(forms), dtype, depth)

    def with_literal(self, flow: Flow, dtype: DType, depth: int) -> str:
        forms: tuple[str, ...] = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{1} - {0}", "{0} * {1}")
        if dtype.is_integer:
            forms += ("{0} // {1}", "{0} % {1}", "{0} << {1}", "{0} >> {1}", "{0} & {1}")
        else:
            forms += ("{0} / {1}", "{1} / {0}", "kj.max({0}, {1})")
        literal = self.literal(dtype)
        if literal.startswith("-"):
            literal = f"({literal})"
        return self.rng.choice(forms).format(self.operand(flow, dtype, depth), literal)

    def mixed(self, flow: Flow, dtype: DType, depth: int) -> str:
        """Two types that make the wanted one."""
        partners = [one for one in self.types if _makes(dtype, one)]
        a = self.operand(flow, dtype, depth)
        b = self.operand(flow, self.rng.choice(partners), depth) if partners else a
        if self.in_kernel and self.chance(0.15):
            b = self.rng.choice(("i", "in_i32.size", "in_i32.shape[0]"))
        if self.chance(0.5):
            a, b = b, a
        whole = [one for one in self.types if one.is_integer and (one.bits == 64) == (dtype is f64)]
        if dtype in (f32, f64) and whole and self.chance(0.3):
            own = self.rng.choice(whole)
            return f"{self.operand(flow, own, depth)} / {self.operand(flow, own, depth)}"
        return f"{a} {self.rng.choice('+-*')} {b}"

    def cast(self, flow: Flow, dtype: DType, depth: int) -> str:
        source = self.type()
        if dtype in (i32, f32) and self.chance(0.2):
            kind = "int" if dtype is i32 else "float"
            return f"{kind}({self.expression(flow, source, depth)})"
        return f"{name_of(dtype)}({self.expression(flow, source, depth)})"

    def choice(self, flow: Flow, dtype: DType, depth: int) -> str:
        condition = self.condition(flow, depth)
        yes, no = (self.operand(flow, dtype, depth) for _ in range(2))
        if self.chance(0.5):
            return f"kj.select({condition}, {yes}, {no})"
        if self.chance(0.2):  # the cast since in plain Python a literal stays one
            return f"{name_of(dtype)}({yes} if {condition} else {self.literal(dtype)})"
        return f"({yes} if {condition} else {no})"

    def call(self, flow: Flow, dtype: DType, depth: int) -> str:
        found = [one for one in self.helpers if one[2] is dtype]
        if not found or self.indexing:
            return self.same_type(flow, dtype, depth)
        name, types, _ = self.rng.choice(found)
        given = ", ".join(self.expression(flow, one, depth) for one in types)
        return f"{name_of(dtype)}({name}({given}))"  # it may return a literal

    def other(self, flow: Flow, dtype: DType, depth: int) -> str:
        """Bits and the rarer functions."""
        rng = self.rng
        if dtype.is_float:
            known = [name for name, own in flow.known.items() if own is dtype]
            if known and self.chance(0.4):
                # The sign of a NaN is nobody's business.
                y = rng.choice(known)
                sign = f"kj.select(kj.isnan({y}), {name_of(dtype)}(1), {y})"
                return f"kj.copysign({self.operand(flow, dtype, depth)}, {sign})"
            raw = [one for one in self.types if one.is_integer and one.bits == dtype.bits]
            if raw:
                return (
                    f"kj.bitcast({self.expression(flow, rng.choice(raw), depth)}, {name_of(dtype)})"
                )
            return self.same_type(flow, dtype, depth)
        if dtype.kind is Kind.UNSIGNED and self.chance(0.4):
            amount = self.expression(flow, self.integer_type(), depth)
            return f"kj.rotate({self.operand(flow, dtype, depth)}, {amount})"
        known = [n for n, own in flow.known.items() if own.is_float and own.bits == dtype.bits]
        if known and self.chance(0.5):
            x = rng.choice(known)
            one = f"{name_of(flow.known[x])}(1)"
            return f"kj.bitcast(kj.select(kj.isnan({x}), {one}, {x}), {name_of(dtype)})"
        if self.chance(0.2):
            return f"{self.operand(flow, dtype, depth)} ** {rng.randint(0, 5)}"
        count = rng.choice(_COUNTS).format(self.operand(flow, self.integer_type(), depth))
        return f"{name_of(dtype)}({count})"

    def condition(self, flow: Flow, depth: int = 2) -> str:
        rng = self.rng
        if depth > 0 and self.chance(0.3):
            if self.chance(0.25):
                return f"(not {self.operand(flow, bool_, depth - 1)})"
            return self.filled(flow, rng.choice(_BOOL_TWO), bool_, depth - 1)
        dtype = self.type()
        left = self.operand(flow, dtype, depth - 1)
        if dtype is bool_:
            return left
        if dtype.is_float and self.chance(0.15):
            return f"kj.{rng.choice(('isnan', 'isfinite'))}({left})"
        sign, other = rng.choice(COMPARISONS), rng.choice(COMPARISONS)
        if self.chance(0.35):
            literal = str(rng.choice((-1, 0, 1, 3, 300))) if dtype.is_integer else "0.5"
            return f"({left} {sign} {literal})"
        right = self.operand(flow, dtype, depth - 1)
        if self.chance(0.1):
            return f"({left} {sign} {right} {other} {self.operand(flow, dtype, depth - 1)})"
        return f"({left} {sign} {right})"

    def same_for_all(self) -> str:
        """A condition that the whole workgroup agrees on."""
        number = self.rng.choice(("n", "kj.workgroup_id(0)", "in_i32[0]", "in_i32.shape[0] + n"))
        if number == "in_i32[0]" and len(self.arrays[0].shape) > 1:
            number = "in_i32[1, 2]"
        return f"{number} % {self.rng.randint(2, 4)} {self.rng.choice(COMPARISONS)} 1"


def _makes(dtype: DType, other: DType) -> bool:
    """Whether an operand of another type leaves the result at a type."""
    try:
        return promote(dtype, other) is dtype
    except MixError:
        return False
