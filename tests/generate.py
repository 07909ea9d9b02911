"""Random kernels as the text of Python modules, and what to call them with.

A program's result does not depend on the order in which its invocations run: each writes its own
rows, reads arrays that nobody writes, and shares only counters, each of which one commutative
integer atomic changes, and shared memory around barriers that the whole workgroup meets. All its
loops end. Every expression is written for a dtype, so a program with a defect in it, one of
`DEFECTS`, is known to be refused, and why.

What the operations of a program give is the same bits everywhere but for NaN, whose bits never
reach an integer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from khaljit.tracer.dtypes import (
    ALL,
    FLOATS,
    INTEGERS,
    DType,
    Kind,
    MixError,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i32,
    index,
    promote,
)

__all__ = ["DEFECTS", "Parameter", "Program", "arguments", "edges", "generate"]

# Statements that are refused, with what the message says.
DEFECTS: Final = {
    "mixed signs": "no type holds both",
    "float to integer": "is stored to",
    "literal too large": "does not fit",
    "changed type": "bad",
    "one path": "bad",
    "number of axes": "is indexed with",
    "barrier apart": "not uniform|barrier",
}


@dataclass(frozen=True)
class Parameter:
    """An array parameter: how its argument is made."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    view: str = "plain"  # or "reversed", "stepped", "turned", "shifted"
    fill: int | None = None  # the one value; random if None


@dataclass(frozen=True)
class Program:
    """A kernel's source with what it is called with."""

    seed: int
    source: str
    workgroup: tuple[int, ...] | None
    grid: tuple[int, ...]
    arrays: tuple[Parameter, ...]
    scalars: tuple[tuple[str, DType, Any], ...]
    defect: str | None
    plain: bool  # plain Python, one invocation after another, gives the same


def edges(dtype: DType) -> list[Any]:
    """Values that go wrong first; for bf16 its bits."""
    if dtype is bool_:
        return [False, True]
    if dtype is bf16:
        return [0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 1, 0x8001, 0x7F7F, 0x80]
    if dtype.is_float:
        info = np.finfo(dtype.numpy)
        tiny, least, most = info.tiny, info.smallest_subnormal, info.max
        special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5]
        whole = min(2.0**dtype.bits, float(most))
        return [*special, tiny, -tiny, least, -least, most, -most, whole, info.eps]
    low, high = dtype.limits
    return sorted({0, 1, 2, high, high - 1, low, low + 1, max(low, -1), dtype.bits, high >> 1})


def numbers(rng: np.random.Generator, dtype: DType, count: int) -> NDArray[Any]:
    """Small, large and special numbers of a type."""
    kind = dtype.numpy
    if dtype is bool_:
        return rng.integers(0, 2, count).astype(np.bool_)
    with np.errstate(over="ignore"):
        special = rng.choice(np.array(edges(dtype), kind), count)
        if dtype is bf16:
            small = (rng.integers(-20, 20, count) / 4).astype(np.float32).view(np.uint32) >> 16
            wild = rng.integers(0, 1 << 16, count)
        elif dtype.is_float:
            small = rng.integers(-20, 20, count) / 4
            wild = rng.normal(size=count) * 10.0 ** rng.integers(-6, 7, count)
        else:
            low, high = dtype.limits
            small = rng.integers(max(low, -9), 10, count)
            wild = rng.integers(low, high, count, kind, endpoint=True)
        which = rng.integers(0, 5, count)
        return np.select(
            [which == 0, which < 3], [special, wild.astype(kind)], small.astype(kind)
        ).astype(kind)


def arguments(program: Program) -> dict[str, Any]:
    """Fresh arguments, the same at each call."""
    rng = np.random.default_rng(program.seed)
    made: dict[str, Any] = {}
    for one in program.arrays:
        made[one.name] = _array(rng, one)
    for name, dtype, value in program.scalars:
        made[name] = value if dtype is bf16 else dtype.numpy.type(value)
    return made


def _array(rng: np.random.Generator, one: Parameter) -> NDArray[Any]:
    count = int(np.prod(one.shape))
    if one.fill is not None:
        return np.full(one.shape, one.fill, one.dtype.numpy)
    values = numbers(rng, one.dtype, count).reshape(one.shape)
    if one.view == "reversed":
        return values[::-1]
    if one.view == "stepped":
        wide = np.zeros((*one.shape[:-1], 3 * one.shape[-1]), values.dtype)
        wide[..., ::3] = values
        return wide[..., ::3]
    if one.view == "turned":
        return np.asfortranarray(values)
    if one.view == "shifted":  # not aligned to more than an element
        backing = np.zeros(count + 1, values.dtype)
        backing[1:] = values.ravel()
        return backing[1:].reshape(one.shape)
    return values


def generate(seed: int) -> Program:
    """The random program of a number."""
    rng = random.Random(seed)
    return _Maker(rng, seed, rng.choice((1, 2, 2, 3, 4, 4, 6, 10, 16))).make()


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
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_ATOMICS: Final = (
    *(("sum", ("add", "sub")), ("least", ("min",)), ("most", ("max",))),
    *(("all", ("and",)), ("some", ("or",)), ("odd", ("xor",))),
)


@dataclass
class _Flow:
    """Where a statement stands.

    Attributes:
        known: variables that are set on every way here, with their types.
        together: the whole workgroup comes here.
        loop: the innermost loop: "none", "free" to be left by some, or "whole".
        returns: what a ``return`` gives; None in the kernel, which gives nothing.
    """

    known: dict[str, DType]
    together: bool = False
    loop: str = "none"
    returns: DType | None = None

    def inner(self, **changes: Any) -> _Flow:
        return replace(self, known=dict(self.known), **changes)


@dataclass
class _Maker:
    """One program in the making."""

    rng: random.Random
    seed: int
    size: int  # statements that are still to come, about
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    names: int = 0
    nesting: int = 0
    unrolled: int = 0
    indexing: int = 0
    helpers: list[tuple[str, tuple[DType, ...], DType]] = field(default_factory=list)
    arrays: list[Parameter] = field(default_factory=list)
    memories: list[tuple[str, DType, int]] = field(default_factory=list)  # local and tables
    shared: list[tuple[str, DType]] = field(default_factory=list)
    counters: list[tuple[str, DType, tuple[str, ...]]] = field(default_factory=list)
    in_kernel: bool = False

    def make(self) -> Program:
        rng = self.rng
        others = [dtype for dtype in ALL if dtype is not i32]
        self.types = (i32, *rng.sample(others, rng.randint(1, 4)))
        self.workgroup = rng.choice([None, None, (8,), (32,), (5,), (4, 3), (1,), (7, 2, 2)])
        self.unchecked = rng.random() < 0.15
        self.contract = rng.random() < 0.35
        self.barriers = self.workgroup is not None and rng.random() < 0.5
        self.exchanged = False
        defect = rng.choice(list(DEFECTS)) if rng.random() < 0.04 else None
        if defect == "barrier apart":
            self.workgroup = self.workgroup or (8,)
        self._shape_of_launch()
        self._parameters()
        self._helpers()
        self._kernel(defect)
        floats = any(dtype in (f32, f64) for dtype in self._used_types())
        plain = (
            not self.barriers
            and not self.exchanged
            and not (self.contract and floats)
            and defect is None
        )
        head = "import math\n\nimport khaljit as kj\n\n\n"
        return Program(
            self.seed,
            head + "\n".join(self.lines) + "\n",
            self.workgroup,
            self.grid,
            tuple(self.arrays),
            tuple(self.scalars),
            defect,
            plain,
        )

    def _used_types(self) -> set[DType]:
        """Types that may come up: those of the arrays, and what integers become when divided."""
        return {*self.types, f32, f64}

    def _shape_of_launch(self) -> None:
        rng = self.rng
        if self.workgroup is None:
            self.grid: tuple[int, ...] = (rng.randint(1, 40),)
            self.total = self.grid[0]
            return
        self.grid = tuple(rng.randint(1, 3 * extent) for extent in self.workgroup)
        self.total = 1
        for count, extent in zip(self.grid, self.workgroup, strict=True):
            self.total *= -(-count // extent) * extent

    def _parameters(self) -> None:
        rng = self.rng
        rows = self.total if self.unchecked else max(1, self.total - rng.choice((0, 0, 1, 3)))
        views = ("plain", "plain", "reversed", "stepped", "turned", "shifted")
        for dtype in self.types:
            shape = rng.choice([(13,), (37,), (5, 7), (3, 4)])
            self.arrays.append(Parameter(f"in_{dtype.name}", dtype, shape, rng.choice(views)))
            self.arrays.append(Parameter(f"out_{dtype.name}", dtype, (rows, 3), fill=1))
        self.rows = rows
        for group, kinds in rng.sample(_ATOMICS, rng.randint(0, 3)):
            dtype = rng.choice(INTEGERS)
            self.arrays.append(Parameter(f"{group}_{dtype.name}", dtype, (5,), fill=3))
            self.counters.append((f"{group}_{dtype.name}", dtype, kinds))
        extra = rng.choice([one for one in self.types if one is not bf16])
        value = numbers(np.random.default_rng(self.seed + 1), extra, 1)[0]
        self.scalars: list[tuple[str, DType, Any]] = [("n", i32, rng.randint(0, 6))]
        self.scalars.append(("s", extra, value))

    # Text.

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

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

    def leaf(self, flow: _Flow, dtype: DType) -> str:
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

    def load(self, flow: _Flow, array: Parameter) -> str:
        return f"{array.name}[{', '.join(self.place(flow, n) for n in array.shape)}]"

    def place(self, flow: _Flow, extent: int) -> str:
        """An index along an axis; of a checked kernel it may be out of bounds."""
        rng = self.rng
        if self.chance(0.25):
            return str(rng.randrange(extent))
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

    def operand(self, flow: _Flow, dtype: DType, depth: int) -> str:
        """An expression in brackets where it needs them."""
        text = self.expression(flow, dtype, depth)
        return (
            text
            if text.isidentifier()
            or (text.endswith(")") and text.startswith("kj.") and (text.count("(") == 1))
            else f"({text})"
        )

    def expression(self, flow: _Flow, dtype: DType, depth: int | None = None) -> str:
        if depth is None:
            depth = self.rng.choice((1, 1, 2, 2, 3))
        if depth <= 0 or self.chance(0.15):
            return self.leaf(flow, dtype)
        if dtype is bool_:
            return self.condition(flow, depth)
        ways: list[Callable[[_Flow, DType, int], str]] = [self.same_type] * 5
        ways += [self.with_literal] * 2 + [self.mixed, self.cast, self.cast, self.choice]
        ways += [self.call, self.other]
        return self.rng.choice(ways)(flow, dtype, depth - 1)

    def filled(self, flow: _Flow, form: str, dtype: DType, depth: int) -> str:
        return form.format(*(self.operand(flow, dtype, depth) for _ in range(3)))

    def same_type(self, flow: _Flow, dtype: DType, depth: int) -> str:
        if dtype.is_integer:
            forms = _INTEGER_TWO if self.chance(0.8) else _INTEGER_ONE
        else:
            forms = _FLOAT_TWO if self.chance(0.7) else _FLOAT_ONE
            if self.chance(0.04):
                forms = _FLOAT_RARE
        return self.filled(flow, self.rng.choice(forms), dtype, depth)

    def with_literal(self, flow: _Flow, dtype: DType, depth: int) -> str:
        forms = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{1} - {0}", "{0} * {1}")
        if dtype.is_integer:
            forms += ("{0} // {1}", "{0} % {1}", "{0} << {1}", "{0} >> {1}", "{0} & {1}")
        else:
            forms += ("{0} / {1}", "{1} / {0}", "kj.max({0}, {1})")
        literal = self.literal(dtype)
        if literal.startswith("-"):
            literal = f"({literal})"
        return self.rng.choice(forms).format(self.operand(flow, dtype, depth), literal)

    def mixed(self, flow: _Flow, dtype: DType, depth: int) -> str:
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

    def cast(self, flow: _Flow, dtype: DType, depth: int) -> str:
        source = self.type()
        if dtype in (i32, f32) and self.chance(0.2):
            kind = "int" if dtype is i32 else "float"
            return f"{kind}({self.expression(flow, source, depth)})"
        return f"{name_of(dtype)}({self.expression(flow, source, depth)})"

    def choice(self, flow: _Flow, dtype: DType, depth: int) -> str:
        condition = self.condition(flow, depth)
        yes, no = (self.operand(flow, dtype, depth) for _ in range(2))
        if self.chance(0.5):
            return f"kj.select({condition}, {yes}, {no})"
        if self.chance(0.2):  # the cast since in plain Python a literal stays one
            return f"{name_of(dtype)}({yes} if {condition} else {self.literal(dtype)})"
        return f"({yes} if {condition} else {no})"

    def call(self, flow: _Flow, dtype: DType, depth: int) -> str:
        found = [one for one in self.helpers if one[2] is dtype]
        if not found or self.indexing:
            return self.same_type(flow, dtype, depth)
        name, types, _ = self.rng.choice(found)
        given = ", ".join(self.expression(flow, one, depth) for one in types)
        return f"{name_of(dtype)}({name}({given}))"  # it may return a literal

    def other(self, flow: _Flow, dtype: DType, depth: int) -> str:
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

    def condition(self, flow: _Flow, depth: int = 2) -> str:
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
        sign, other = rng.choice(_COMPARISONS), rng.choice(_COMPARISONS)
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
        return f"{number} % {self.rng.randint(2, 4)} {self.rng.choice(_COMPARISONS)} 1"

    # Statements.

    def block(self, flow: _Flow, most: int) -> bool:
        """Some statements, indented; whether what follows them is reached."""
        self.depth += 1
        reached = True
        for _ in range(self.rng.randint(1, most)):
            self.size -= 1
            if not self.statement(flow):
                reached = False
                break
        self.depth -= 1
        return reached

    def statement(self, flow: _Flow) -> bool:
        rng = self.rng
        ways: list[tuple[int, Callable[[_Flow], bool]]] = [(6, self.assign), (1, self.swap)]
        if self.in_kernel:
            ways += [(3, self.store), (1, self.write_memory)]
            ways += [(1, self.count)] * bool(self.counters)
        if self.nesting < 4 and self.size > 0:
            ways += [(4, self.branch), (2, self.loop_over_range), (2, self.loop_while)]
            ways += [(1, self.loop_over_items), (1, self.weak)]
        if self.in_kernel and self.barriers and flow.together:
            ways.append((3, self.exchange))
        if self.jumps(flow):
            ways.append((1, self.jump))
        chosen = rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]
        return chosen(flow)

    def assign(self, flow: _Flow) -> bool:
        rng = self.rng
        known = [name for name in flow.known if name.startswith("v")]
        if known and self.chance(0.6):
            name = rng.choice(known)
            dtype = flow.known[name]
            if dtype is not bool_ and self.chance(0.35):
                sign = rng.choice("+-*")
                self.write(f"{name} {sign}= {self.expression(flow, dtype, 2)}")
                return True
        else:
            dtype = self.type()
            name = self.fresh("v")
        text = self.expression(flow, dtype)
        if self.chance(0.05):
            text = f"({self.fresh('w')} := {text})"
        self.write(f"{name} = {text}")
        flow.known[name] = dtype
        return True

    def swap(self, flow: _Flow) -> bool:
        """Two variables at once, each from the other."""
        known = [name for name in flow.known if name.startswith("v")]
        pairs = [(a, b) for a in known for b in known if a < b and flow.known[a] is flow.known[b]]
        if not pairs:
            return self.assign(flow)
        a, b = self.rng.choice(pairs)
        right = b if self.chance(0.5) else self.expression(flow, flow.known[a], 2)
        self.write(f"{a}, {b} = {right}, {a}")
        return True

    def store(self, flow: _Flow) -> bool:
        """To this invocation's own row."""
        rng = self.rng
        dtype = self.type()
        column = str(rng.randrange(3)) if self.chance(0.7) else self.place(flow, 3)
        target = f"out_{dtype.name}[i, {column}]"
        if dtype is not bool_ and self.chance(0.3):
            self.write(f"{target} {rng.choice('+-*')}= {self.expression(flow, dtype, 2)}")
            return True
        sources = [one for one in self.types if _stores(one, dtype)]
        self.write(f"{target} = {self.expression(flow, rng.choice(sources))}")
        return True

    def write_memory(self, flow: _Flow) -> bool:
        own = [one for one in self.memories if one[0].startswith("own")]
        if not own:
            return self.store(flow)
        memory, dtype, extent = self.rng.choice(own)
        self.write(f"{memory}[{self.place(flow, extent)}] = {self.expression(flow, dtype, 2)}")
        return True

    def count(self, flow: _Flow) -> bool:
        memory, dtype, kinds = self.rng.choice(self.counters)
        value = self.expression(flow, dtype, 2) if dtype in self.types else f"{name_of(dtype)}(i)"
        self.write(f"kj.atomic_{self.rng.choice(kinds)}({memory}, {self.place(flow, 5)}, {value})")
        return True

    def exchange(self, flow: _Flow) -> bool:
        """Through shared memory, or by a collective."""
        rng = self.rng
        self.exchanged = True
        size = int(np.prod(self.workgroup or ()))
        name = self.fresh("v")
        if self.chance(0.4):
            dtype = self.integer_type()
            kinds = ("add", "min", "max", "inclusive_add", "exclusive_add", "broadcast")
            self.write(f"{name} = kj.workgroup_{rng.choice(kinds)}({self.expression(flow, dtype)})")
        else:
            memory, dtype = rng.choice(self.shared)
            self.write(f"{memory}[kj.local_index()] = {self.expression(flow, dtype)}")
            self.write("kj.barrier()")
            place = f"(kj.local_index() + {rng.randrange(9)}) % {size}"
            if not self.unchecked and self.chance(0.3):
                place = f"kj.local_index() + {rng.randrange(9)}"
            self.write(f"{name} = {memory}[{place}]")
            self.write("kj.barrier()")
        flow.known[name] = dtype
        return True

    def jumps(self, flow: _Flow) -> list[str]:
        """Jumps that may be taken here."""
        found: list[str] = []
        if flow.loop == "free" or (flow.loop == "whole" and flow.together):
            found += ["break", "continue"]
        if self.nesting == 0:
            return []
        if flow.returns is not None or (self.in_kernel and not self.barriers):
            found.append("return")
        return found

    def jump(self, flow: _Flow) -> bool:
        kind = self.rng.choice(self.jumps(flow))
        if kind == "return" and flow.returns is not None:
            value = self.expression(flow, flow.returns, 2)
            self.write(f"return {self.literal(flow.returns) if self.chance(0.1) else value}")
        else:
            self.write(kind)
        return False

    def branch(self, flow: _Flow) -> bool:
        together = flow.together and self.in_kernel and self.chance(0.5)
        self.nesting += 1
        ways: list[dict[str, DType]] = []
        arms = self.rng.choice((1, 1, 2, 2, 3))
        has_else = self.chance(0.5)
        for arm in range(arms):
            condition = self.same_for_all() if together else self.condition(flow)
            self.write(f"{'elif' if arm else 'if'} {condition}:")
            inner = flow.inner(together=together)
            if self.block(inner, 4):
                ways.append(inner.known)
        if has_else:
            self.write("else:")
            inner = flow.inner(together=together)
            if self.block(inner, 4):
                ways.append(inner.known)
        else:
            ways.append(dict(flow.known))
        self.nesting -= 1
        if not ways:
            return False
        first, *rest = ways
        both = {n: own for n, own in first.items() if all(way.get(n) is own for way in rest)}
        flow.known.clear()
        flow.known.update(both)
        return True

    def loop_body(self, flow: _Flow, before: Sequence[str], known: dict[str, DType]) -> None:
        """The body of a loop, and sometimes its ``else``."""
        whole = flow.together and self.in_kernel and self.barriers
        self.nesting += 1
        inner = flow.inner(loop="whole" if whole else "free", together=whole)
        inner.known.update(known)
        self.depth += 1
        for line in before:
            self.write(line)
        self.depth -= 1
        self.block(inner, 5)
        if self.chance(0.15):
            self.write("else:")
            self.block(flow.inner(), 2)
        self.nesting -= 1

    def loop_over_range(self, flow: _Flow) -> bool:
        rng = self.rng
        counter = self.fresh("k")
        if flow.together and self.in_kernel and self.barriers:
            bounds = rng.choice(("n", "3", "n % 4", "1, n", "in_i32.shape[0] % 5"))
        else:
            bounds = self.bounds(flow)
        self.write(f"for {counter} in range({bounds}):")
        own = self.fresh("v")
        dtype = self.type()
        self.loop_body(flow, [f"{own} = {name_of(dtype)}({counter})"], {own: dtype})
        return True

    def bounds(self, flow: _Flow) -> str:
        rng = self.rng
        choice = rng.randrange(8)
        if choice == 0:
            return str(rng.randint(0, 5))
        if choice == 1 and self.in_kernel:
            return rng.choice(("n", "2, n", "n, 0, -1", "0, n, 2", "i % 4", "i, i + 3", "-n, n, 2"))
        if choice == 2:
            dtype = self.integer_type()
            high = dtype.limits[1]
            return f"{name_of(dtype)}({high - 20}), {name_of(dtype)}({high}), 9"
        dtype = self.integer_type()
        ends = [f"{self.operand(flow, dtype, 1)} % {rng.randint(1, 7)}" for _ in range(2)]
        if choice < 6:
            return ends[0]
        if dtype.is_signed:
            step = rng.choice(("-2", "3", "1", f"{self.operand(flow, dtype, 1)} % 4 - 1"))
        else:
            step = rng.choice(("1", "2"))
        return f"{ends[0]}, {ends[1]}, {step}"

    def loop_while(self, flow: _Flow) -> bool:
        rng = self.rng
        counter = self.fresh("c")
        limit = rng.randint(1, 6)
        self.write(f"{counter} = 0")
        whole = flow.together and self.in_kernel and self.barriers
        condition = self.same_for_all() if whole else self.condition(flow, 1)
        known: dict[str, DType] = {}
        before = [f"{counter} += 1"]
        if self.chance(0.4):
            self.write(f"while {condition}:")
            before += [f"if {counter} > {limit}:", "    break"]
        elif self.chance(0.5):
            self.write(f"while {counter} < {limit} and {condition}:")
        else:
            self.write("while True:")
            before += [f"if {counter} > {limit} or {condition}:", "    break"]
        self.loop_body(flow, before, known)
        name = self.fresh("v")
        self.write(f"{name} = kj.i32({counter})")
        flow.known[name] = i32
        return True

    def loop_over_items(self, flow: _Flow) -> bool:
        """A loop that is unrolled while recording."""
        if self.unrolled:
            return self.assign(flow)
        rng = self.rng
        counter = self.fresh("k")
        items = rng.choice(("(2, 5, 3)", "kj.unroll(range(3))", "(7,)", "()", "(1, 1)"))
        self.write(f"for {counter} in {items}:")
        own = self.fresh("v")
        dtype = self.type()
        self.unrolled += 1
        self.loop_body(flow, [f"{own} = {name_of(dtype)}({counter})"], {own: dtype})
        self.unrolled -= 1
        return True

    def weak(self, flow: _Flow) -> bool:
        """A variable that starts as a literal and takes the type of what it meets."""
        rng = self.rng
        dtype = rng.choice([one for one in self.types if one is not bool_])
        name, result = self.fresh("w"), self.fresh("v")
        literal = self.literal(dtype)
        if self.chance(0.3):
            self.write(f"if {self.condition(flow)}:")
            self.write(f"    {name} = {literal}")
            self.write("else:")
            self.write(f"    {name} = {self.expression(flow, dtype, 2)}")
        else:
            self.write(f"{name} = {literal}")
            self.write(f"for {self.fresh('k')} in range({self.bounds(flow)}):")
            inner = flow.inner()
            form = rng.choice(("{0} = {0} + {1}", "{0} -= {1}", "{0} = {1} - {0}", "{0} *= {1}"))
            self.write(f"    {form.format(name, self.operand(inner, dtype, 2))}")
            if self.chance(0.4):
                self.write(f"    if {self.condition(inner)}:")
                self.write(f"        {rng.choice(('break', 'continue'))}")
            if self.chance(0.3):
                self.write(f"    {form.format(name, self.operand(inner, dtype, 1))}")
        self.write(f"{result} = {name_of(dtype)}({name})")
        flow.known[result] = dtype
        return True

    # Functions.

    def _helpers(self) -> None:
        for _ in range(self.rng.randint(0, 3)):
            name = self.fresh("helper")
            types = tuple(self.type() for _ in range(self.rng.randint(1, 2)))
            returns = self.type()
            names = [f"v{k}_{name}" for k in range(len(types))]
            size, self.size = self.size, 5
            if self.chance(0.15):
                flow = _Flow(dict(zip(names, types, strict=True)), returns=returns)
                text = self.expression(flow, returns)
                self.write(f"{name} = lambda {', '.join(names)}: {text}")
            else:
                self.write(f"def {name}({', '.join(names)}):")
                flow = _Flow(dict(zip(names, types, strict=True)), returns=returns)
                if self.block(flow, 5):
                    self.depth += 1
                    self.write(f"return {self.expression(flow, returns)}")
                    self.depth -= 1
            self.write("")
            self.write("")
            self.size = size
            self.helpers.append((name, types, returns))

    def _kernel(self, defect: str | None) -> None:
        rng = self.rng
        options = [f"contract={self.contract}"]
        if self.workgroup is not None:
            options.append(f"workgroup={self.workgroup}")
        if self.unchecked:
            options.append("unchecked=True")
        self.write(f"@kj.jit({', '.join(options)})")
        parameters = [
            f"{one.name}: kj.Array{len(one.shape)}[{name_of(one.dtype)}]" for one in self.arrays
        ]
        parameters += [f"{name}: {name_of(dtype)}" for name, dtype, _ in self.scalars]
        self.write(f"def kernel({', '.join(parameters)}) -> None:")
        self.in_kernel = True
        self.depth = 1
        self._place()
        flow = _Flow({}, together=self.workgroup is not None)
        self._memories(flow)
        self.depth = 0
        if defect is not None:
            self.depth = 1
            self._defect(defect)
            self.depth = 0
        reached = True
        for _ in range(5):
            reached = reached and self.block(flow, max(1, self.size // 3))
        if reached or self.chance(0.3):
            self.depth = 1
            for name, dtype in list(flow.known.items())[-8:]:
                self.write(f"out_{dtype.name}[i, {rng.randrange(3)}] = {name}")

    def _place(self) -> None:
        """The number of this invocation among all."""
        axes = len(self.grid)
        if axes == 1:
            self.write("i = kj.global_id(0)")
            return
        text = f"kj.global_id({axes - 1})"
        for axis in range(axes - 2, -1, -1):
            width = f"kj.num_workgroups({axis}) * kj.workgroup_size({axis})"
            text = f"({text}) * ({width}) + kj.global_id({axis})"
        self.write(f"i = {text}")

    def _memories(self, flow: _Flow) -> None:
        rng = self.rng
        if self.chance(0.4):
            dtype, extent = self.type(), rng.randint(1, 7)
            self.write(f"own = kj.local({name_of(dtype)}, {extent})")
            counter = self.fresh("k")
            self.write(f"for {counter} in range({extent}):")
            self.write(f"    own[{counter}] = {name_of(dtype)}({counter})")
            self.memories.append(("own", dtype, extent))
        if self.chance(0.3):
            values = [rng.randint(-9, 99) for _ in range(rng.randint(2, 7))]
            self.write(f"table = kj.constant({values})")
            self.memories.append(("table", i32, len(values)))
        if self.barriers:
            dtype = self.type()
            size = int(np.prod(self.workgroup or ()))
            self.write(f"tile = kj.shared({name_of(dtype)}, {size})")
            self.write(f"tile[kj.local_index()] = {self.strong(dtype)}")
            self.write("kj.barrier()")
            self.shared.append(("tile", dtype))

    def _defect(self, defect: str) -> None:
        lines = {
            "mixed signs": ("bad = kj.i32(i) + kj.u32(i)",),
            "float to integer": ("out_i32[i, 0] = kj.f32(i)",),
            "literal too large": ("bad = kj.u8(i) + 300",),
            "changed type": ("bad = kj.i32(i)", "for kk in range(n):", "    bad = kj.f32(bad)"),
            "one path": ("if i > 3:", "    bad = kj.i32(i)", "out_i32[i, 0] = bad"),
            "number of axes": ("out_i32[i] = 3",),
            "barrier apart": ("if i > 3:", "    kj.barrier()"),
        }[defect]
        for line in lines:
            self.write(line)


def _makes(dtype: DType, other: DType) -> bool:
    """Whether an operand of another type leaves the result at a type."""
    try:
        return promote(dtype, other) is dtype
    except MixError:
        return False


def _stores(source: DType, target: DType) -> bool:
    """Whether a store converts on its own."""
    if source is target:
        return True
    if target is bool_:
        return False
    return target.is_float or not source.is_float


assert index not in ALL and f16 in FLOATS
