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
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from khaljit.tracer.dtypes import ALL, INTEGERS, DType, bf16, bool_, i32
from tests.expressions import Expressions, Flow, name_of
from tests.programs import DEFECTS, Parameter, Program, numbers

__all__ = ["generate"]


def generate(seed: int) -> Program:
    """The random program of a number."""
    rng = random.Random(seed)
    return _Maker(rng, seed, rng.choice((1, 2, 2, 3, 4, 4, 6, 10, 16))).make()


_ATOMICS: Final = (
    *(("sum", ("add", "sub")), ("least", ("min",)), ("most", ("max",))),
    *(("all", ("and",)), ("some", ("or",)), ("odd", ("xor",))),
)


@dataclass
class _Maker(Expressions):
    """One program in the making."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0
    nesting: int = 0
    unrolled: int = 0
    # Of a function: two literals that meet before they meet its type settle at i32 or f32.
    may_return_literal: bool = True
    shared: list[tuple[str, DType]] = field(default_factory=list)
    counters: list[tuple[str, DType, tuple[str, ...]]] = field(default_factory=list)

    def make(self) -> Program:
        rng = self.rng
        others = [dtype for dtype in ALL if dtype is not i32]
        self.types = (i32, *rng.sample(others, rng.randint(1, 4)))
        self.workgroup = rng.choice([None, None, (8,), (32,), (5,), (4, 3), (1,), (7, 2, 2)])
        self.unchecked = rng.random() < 0.15
        self.contract = rng.random() < 0.35
        self.barriers = self.workgroup is not None and rng.random() < 0.5
        defect = rng.choice(list(DEFECTS)) if rng.random() < 0.04 else None
        if defect == "barrier apart":
            self.workgroup = self.workgroup or (8,)
        self._shape_of_launch()
        self._parameters()
        self._helpers()
        self._kernel(defect)
        # Plain Python has no barriers, and contracts nothing.
        plain = not self.barriers and not self.contract and defect is None
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

    def _shape_of_launch(self) -> None:
        rng = self.rng
        if self.workgroup is None:
            # Some are long enough for subgroups whose lanes are all there.
            self.grid: tuple[int, ...] = (rng.randint(*rng.choice(((1, 40),) * 4 + ((64, 140),))),)
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
            shape = rng.choice([(13,), (37,), (5, 7), (3, 4), (90,)])
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

    # Statements.

    def block(self, flow: Flow, most: int) -> bool:
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

    def statement(self, flow: Flow) -> bool:
        rng = self.rng
        ways: list[tuple[int, Callable[[Flow], bool]]] = [(6, self.assign), (1, self.swap)]
        if self.in_kernel:
            ways += [(3, self.store), (1, self.write_memory)]
            ways += [(1, self.count)] * bool(self.counters)
        if self.nesting < 4 and self.size > 0:
            ways += [(4, self.branch), (2, self.loop_over_range), (2, self.loop_while)]
            ways += [(1, self.loop_over_items), (1, self.weak)]
            # Not in a loop that is unrolled: each round makes another function of the name.
            ways += [(1, self.nested_function)] * (self.in_kernel and not self.unrolled)
        if self.in_kernel and self.barriers and flow.together:
            ways.append((3, self.exchange))
        if self.jumps(flow):
            ways.append((1, self.jump))
        chosen = rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]
        return chosen(flow)

    def assign(self, flow: Flow) -> bool:
        rng = self.rng
        known = flow.free()
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

    def swap(self, flow: Flow) -> bool:
        """Two variables at once, each from the other."""
        known = flow.free()
        pairs = [(a, b) for a in known for b in known if a < b and flow.known[a] is flow.known[b]]
        if not pairs:
            return self.assign(flow)
        a, b = self.rng.choice(pairs)
        right = b if self.chance(0.5) else self.expression(flow, flow.known[a], 2)
        self.write(f"{a}, {b} = {right}, {a}")
        return True

    def store(self, flow: Flow) -> bool:
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

    def write_memory(self, flow: Flow) -> bool:
        own = [one for one in self.memories if one[0].startswith("own")]
        if not own:
            return self.store(flow)
        memory, dtype, extent = self.rng.choice(own)
        self.write(f"{memory}[{self.place(flow, extent)}] = {self.expression(flow, dtype, 2)}")
        return True

    def count(self, flow: Flow) -> bool:
        memory, dtype, kinds = self.rng.choice(self.counters)
        value = self.expression(flow, dtype, 2) if dtype in self.types else f"{name_of(dtype)}(i)"
        self.write(f"kj.atomic_{self.rng.choice(kinds)}({memory}, {self.place(flow, 5)}, {value})")
        return True

    def exchange(self, flow: Flow) -> bool:
        """Through shared memory, or by a collective."""
        rng = self.rng
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

    def jumps(self, flow: Flow) -> list[str]:
        """Jumps that may be taken here."""
        found: list[str] = []
        if flow.loop == "free" or (flow.loop == "whole" and flow.together):
            found += ["break", "continue"]
        if self.nesting == 0:
            return []
        if flow.returns is not None or (self.in_kernel and not self.barriers):
            found.append("return")
        return found

    def jump(self, flow: Flow) -> bool:
        kind = self.rng.choice(self.jumps(flow))
        if kind == "return" and flow.returns is not None:
            value = self.expression(flow, flow.returns, 2)
            if self.may_return_literal and self.chance(0.1):
                value = self.literal(flow.returns)
                self.may_return_literal = False
            self.write(f"return {value}")
        else:
            self.write(kind)
        return False

    def branch(self, flow: Flow) -> bool:
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

    def loop_body(self, flow: Flow, before: Sequence[str], known: dict[str, DType]) -> None:
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

    def loop_over_range(self, flow: Flow) -> bool:
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

    def bounds(self, flow: Flow) -> str:
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

    def loop_while(self, flow: Flow) -> bool:
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

    def loop_over_items(self, flow: Flow) -> bool:
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

    def weak(self, flow: Flow) -> bool:
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

    def nested_function(self, flow: Flow) -> bool:
        """A function that reads the kernel's variables, and a call of it."""
        name, result, parameter = self.fresh("inner"), self.fresh("v"), self.fresh("v")
        dtype, returns = self.type(), self.type()
        inner = Flow({**flow.known, parameter: dtype}, returns=returns, fixed=frozenset(flow.known))
        self.write(f"def {name}({parameter}):")
        nesting, self.nesting = self.nesting, 0
        self.may_return_literal = True
        if self.block(inner, 3):
            self.write(f"    return {self.expression(inner, returns)}")
        self.nesting = nesting
        given = self.expression(flow, dtype, 2)
        self.write(f"{result} = {name_of(returns)}({name}({given}))")
        flow.known[result] = returns
        return True

    def _helpers(self) -> None:
        for _ in range(self.rng.randint(0, 3)):
            name = self.fresh("helper")
            types = tuple(self.type() for _ in range(self.rng.randint(1, 2)))
            returns = self.type()
            names = [f"v{k}_{name}" for k in range(len(types))]
            size, self.size = self.size, 5
            self.may_return_literal = True
            if self.chance(0.15):
                flow = Flow(dict(zip(names, types, strict=True)), returns=returns)
                text = self.expression(flow, returns)
                self.write(f"{name} = lambda {', '.join(names)}: {text}")
            else:
                self.write(f"def {name}({', '.join(names)}):")
                flow = Flow(dict(zip(names, types, strict=True)), returns=returns)
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
        flow = Flow({}, together=self.workgroup is not None)
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

    def _memories(self, flow: Flow) -> None:
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


def _stores(source: DType, target: DType) -> bool:
    """Whether a store converts on its own."""
    if source is target:
        return True
    if target is bool_:
        return False
    return target.is_float or not source.is_float
