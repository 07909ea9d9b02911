"""Proves inequalities between integers of a trace, from the conditions on the way to it.

An integer value is seen as a linear form over *atoms* (values that are not looked into) in exact
arithmetic. Whatever may wrap in its type is an atom itself, so a form always equals its value. A
*fact* is a form that is known not to be negative where the prover is asked; an *axiom* is a fact
that follows from what an atom is, such as ``x % n < n``.

To prove that a form is not negative, `Prover` looks at the least that its atoms allow; else it
subtracts a fact, times a positive number, that removes an atom, and tries again, to a small depth.
A form that is at least something not negative is not negative. The search is bounded; giving up is
always right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from khaljit.tracer.build import Builder, constant
from khaljit.tracer.dtypes import DType, index_reach
from khaljit.tracer.ir import Space, Trace, Value
from khaljit.tracer.ops import COMPARISONS, Op
from khaljit.tracer.passes.paths import literals

__all__ = ["Linear", "Prover"]

# How deep proofs, forms and axioms are looked into, how many proofs may need another, and how many
# steps all that may take.
_PROOF_DEPTH: Final = 5
_PROOF_NESTING: Final = 6
_FORM_DEPTH: Final = 12
_AXIOM_DEPTH: Final = 3
_MOST_STEPS: Final = 400
_MOST_ATOMS: Final = 8


@final
class Linear:
    """constant + sum of coefficient * atom."""

    __slots__ = ("constant", "terms")

    def __init__(self, number: int, terms: dict[Value, int] | None = None) -> None:
        self.constant: Final = number
        self.terms: Final = terms or {}

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other."""
        if not other.terms:
            return Linear(self.constant + factor * other.constant, self.terms)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + factor * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Linear(self.constant + factor * other.constant, terms)

    def minus(self, other: Linear) -> Linear:
        return self.plus(other, -1)

    def shifted(self, number: int) -> Linear:
        return Linear(self.constant + number, self.terms)

    def times(self, factor: int) -> Linear:
        terms = {atom: factor * coefficient for atom, coefficient in self.terms.items()}
        return Linear(factor * self.constant, terms if factor else None)

    def key(self) -> tuple[object, ...]:
        return self.constant, frozenset(self.terms.items())


_Range = tuple[int, int]


@final
class Prover:
    """Knows facts and proves forms not negative.

    Args:
        trace: for the index width, the workgroup and the arrays of one shape.
        builder: of the values that it is asked about.

    Attributes:
        axioms: facts about loop parameters, which the caller answers for.
    """

    def __init__(self, trace: Trace, builder: Builder) -> None:
        self.axioms: Final[dict[Value, list[Linear]]] = {}
        self._trace: Final = trace
        self._builder: Final = builder
        self._facts: Final[list[Linear]] = []
        self._facts_about: Final[dict[Value, list[Linear]]] = {}
        self._ranges: Final[dict[Value, _Range]] = {}
        # What was derived from the facts of this moment.
        self._forms: Final[dict[Value, Linear]] = {}
        self._derived: Final[dict[Value, list[Linear]]] = {}
        self._within: Final[dict[tuple[Value, Value], bool]] = {}
        self._deriving: Final[set[Value]] = set()
        self._nesting = 0
        self._steps = 0

    # Facts.

    def mark(self) -> int:
        return len(self._facts)

    def forget(self, mark: int) -> None:
        if len(self._facts) > mark:
            while len(self._facts) > mark:
                for atom in self._facts.pop().terms:
                    self._facts_about[atom].pop()
            self._moved()

    def _moved(self) -> None:
        self._forms.clear()
        self._derived.clear()
        self._within.clear()

    def assume(self, condition: Value, truth: bool) -> None:
        """Learn from a condition that holds or does not."""
        for value, holds in literals(condition, truth):
            if value.op in COMPARISONS and value.args[0].type.is_integer:
                self._learn(value.op, self.form(value.args[0]), self.form(value.args[1]), holds)

    def _learn(self, op: Op, x: Linear, y: Linear, holds: bool) -> None:
        below = y.minus(x)  # x < y: y - x - 1 is not negative
        if op is Op.EQ or op is Op.NE:
            if holds is (op is Op.EQ):
                self._add(below, below.times(-1))
            elif self.proves(below):
                self._add(below.shifted(-1))
            elif self.proves(below.times(-1)):
                self._add(below.times(-1).shifted(-1))
            return
        less = (op in (Op.LT, Op.LE)) is holds
        strict = (op in (Op.LT, Op.GT)) is holds
        form = below if less else below.times(-1)
        self._add(form.shifted(-1) if strict else form)

    def _add(self, *facts: Linear) -> None:
        for fact in facts:
            self._facts.append(fact)
            for atom in fact.terms:
                self._facts_about.setdefault(atom, []).append(fact)
        self._moved()

    def decides(self, condition: Value) -> bool | None:
        """Whether a condition surely holds or surely does not; None where neither is proven."""
        if condition.op is Op.CONST:
            return bool(condition.attr)
        if condition.op is Op.NOT:
            inner = self.decides(condition.args[0])
            return None if inner is None else not inner
        if condition.op in (Op.AND, Op.OR):
            parts = [self.decides(arg) for arg in condition.args]
            decisive = condition.op is Op.OR  # one part that is so decides all
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        if condition.op not in COMPARISONS or not condition.args[0].type.is_integer:
            return None
        return self._decides_comparison(condition)

    def _decides_comparison(self, condition: Value) -> bool | None:
        x, y = (self.form(arg) for arg in condition.args)
        below = y.minus(x)
        at_most, at_least = self.proves(below), self.proves(below.times(-1))
        less = at_most and self.proves(below.shifted(-1))
        greater = at_least and self.proves(below.times(-1).shifted(-1))
        known = {
            Op.LT: (less, at_least),
            Op.LE: (at_most, greater),
            Op.GT: (greater, at_most),
            Op.GE: (at_least, less),
            Op.EQ: (at_most and at_least, less or greater),
            Op.NE: (less or greater, at_most and at_least),
        }
        proven, refuted = known[condition.op]
        return True if proven else False if refuted else None

    def is_within(self, position: Value, extent: Value) -> bool:
        """Whether surely 0 <= position < extent."""
        known = self._within.get((position, extent))
        if known is None:
            forms, most = self.forms(position), self.form(extent).shifted(-1)
            known = any(map(self.proves, forms)) and any(
                self.proves(most.minus(form)) for form in forms
            )
            self._within[position, extent] = known
        return known

    # Forms.

    def forms(self, value: Value) -> list[Linear]:
        """What a value equals: its form, and itself."""
        form, own = self.form(value), self.atom(value)
        return [form] if value.op is Op.CONST or form.terms == own.terms else [form, own]

    def atom(self, value: Value) -> Linear:
        """A value not looked into."""
        if value.op is Op.SHAPE and value.memory.space is Space.ARRAY:
            first = self._trace.arrays[self._trace.arrays[value.memory.number].same_shape]
            memory = self._builder.memory(first.memory)
            value = self._builder.pure(Op.SHAPE, (memory,), value.attr, value.dtype)
        return Linear(0, {value: 1})

    def form(self, value: Value, depth: int = _FORM_DEPTH) -> Linear:
        """The form that a value equals."""
        known = self._forms.get(value)
        if known is None:
            number = self._constant(value)
            if number is not None:
                known = Linear(number)
            else:
                known = self._expanded(value, depth) if depth else None
                known = known or self.atom(value)
            self._forms[value] = known
        return known

    def _constant(self, value: Value) -> int | None:
        """The number of a constant integer, as wide as ``index`` is here."""
        number = constant(value)
        if number is None:
            return None
        least, most = self._limits(value.type)
        return (int(number) - least) % (most - least + 1) + least

    def _expanded(self, value: Value, depth: int) -> Linear | None:
        """The form of an operation, unless it may wrap."""
        args = value.args
        if value.op in (Op.CAST, Op.BITCAST):
            if not args[0].type.is_integer or not value.type.is_integer:
                return None
            form = self.form(args[0], depth - 1)
        elif value.op is Op.ADD and value.type.is_integer:
            form = self.form(args[0], depth - 1).plus(self.form(args[1], depth - 1))
        elif value.op is Op.SUB and value.type.is_integer:
            form = self.form(args[0], depth - 1).minus(self.form(args[1], depth - 1))
        elif value.op is Op.NEG and value.type.is_integer:
            form = self.form(args[0], depth - 1).times(-1)
        elif value.op in (Op.MUL, Op.SHL) and value.type.is_integer:
            number = self._constant(args[1])
            if number is None or (value.op is Op.SHL and not 0 <= number < 63):
                return None
            factor = number if value.op is Op.MUL else 1 << number
            form = self.form(args[0], depth - 1).times(factor)
        else:
            return None
        return form if len(form.terms) <= _MOST_ATOMS and self._fits(form, value.type) else None

    def _fits(self, form: Linear, dtype: DType) -> bool:
        least, most = self._limits(dtype)
        return self.proves(form.shifted(-least)) and self.proves(form.times(-1).shifted(most))

    def _limits(self, dtype: DType) -> _Range:
        if dtype.bits:
            return dtype.limits
        top = 1 << self._trace.index_bits - 1
        return -top, top - 1

    # Ranges: what an atom can be, facts apart.

    def _range(self, atom: Value) -> _Range:
        found = self._ranges.get(atom)
        if found is None:
            least, most = self._limits(atom.type)
            low, high = self._narrower(atom)
            found = max(least, low), min(most, high)
            self._ranges[atom] = found
        return found

    def _narrower(self, atom: Value) -> _Range:
        limits = self._limits(atom.type)
        if atom.op is Op.ID:
            return self._id_range(atom)
        if atom.op is Op.SHAPE:
            return 0, index_reach(self._trace.index_bits)
        if atom.op in (Op.POPCOUNT, Op.CLZ, Op.CTZ):
            return 0, 64
        if atom.op is Op.CAST and atom.args[0].dtype is not None:
            source = atom.args[0].dtype
            if source.is_float:
                return limits
            inner = self._limits(source)
            return inner if limits[0] <= inner[0] and inner[1] <= limits[1] else limits
        number = self._constant(atom.args[1]) if len(atom.args) == 2 else None
        if number is None or not atom.type.is_integer:
            return limits
        if atom.op is Op.AND and number >= 0:
            return 0, number
        if atom.op is Op.MOD and number != 0:
            return (0, number - 1) if number > 0 else (number + 1, 0)
        return limits

    def _id_range(self, atom: Value) -> _Range:
        """Ids: padded grids are within `index_reach`, workgroups of no size are of one."""
        name, axis = atom.attr if isinstance(atom.attr, tuple) else ("", 0)
        most = index_reach(self._trace.index_bits)
        size = self._trace.workgroup or (1, 1, 1)
        count = size[0] * size[1] * size[2]
        return {
            "global": (0, most - 1),
            "local": (0, size[axis] - 1),
            "workgroup": (0, most // size[axis] - 1),
            "workgroup_size": (size[axis], size[axis]),
            "num_workgroups": (1, most // size[axis]),
            "local_index": (0, count - 1),
            "lane": (0, count - 1),
            "subgroup": (0, count - 1),
            "num_subgroups": (1, count),
            "subgroup_size": (1, most),
        }[name]

    # Proofs.

    def proves(self, goal: Linear) -> bool:
        """Whether a form is surely not negative."""
        if self._nesting >= _PROOF_NESTING:
            return False
        if self._least(goal) >= 0:
            return True
        self._nesting += 1
        try:
            return self._prove(goal, _PROOF_DEPTH, set())
        finally:
            self._nesting -= 1
            if not self._nesting:
                self._steps = 0

    def _least(self, form: Linear) -> int:
        """The least that a form can be, as far as the ranges of its atoms tell."""
        least, ranges = form.constant, self._ranges
        for atom, coefficient in form.terms.items():
            low, high = ranges[atom] if atom in ranges else self._range(atom)
            least += coefficient * (low if coefficient > 0 else high)
        return least

    def _prove(self, goal: Linear, depth: int, seen: set[tuple[object, ...]]) -> bool:
        self._steps += 1
        if self._least(goal) >= 0:
            return True
        if not depth or self._steps > _MOST_STEPS:
            return False
        key = goal.key()
        if key in seen:
            return False
        seen.add(key)
        for atom, coefficient in goal.terms.items():
            for fact in self._about(atom):
                part = fact.terms[atom]
                if part * coefficient > 0 and coefficient % part == 0:
                    rest = goal.plus(fact, -(coefficient // part))
                    if self._prove(rest, depth - 1, seen):
                        return True
        return any(self._prove_cases(goal, atom, depth, seen) for atom in goal.terms)

    def _prove_cases(
        self, goal: Linear, atom: Value, depth: int, seen: set[tuple[object, ...]]
    ) -> bool:
        """Prove a goal about a choice for each value that may have been chosen."""
        if atom.op in (Op.MIN, Op.MAX):
            choices = atom.args
        elif atom.op is Op.SELECT:
            choices = atom.args[1:]
        else:
            return False
        rest = goal.plus(Linear(0, {atom: goal.terms[atom]}), -1)
        for truth, choice in zip((True, False), choices, strict=True):
            mark = self.mark()
            if atom.op is Op.SELECT:
                self.assume(atom.args[0], truth)
            case = rest.plus(self.form(choice), goal.terms[atom])
            proven = self._prove(case, depth - 1, seen if self.mark() == mark else set())
            self.forget(mark)
            if not proven:
                return False
        return True

    def _about(self, atom: Value) -> Iterator[Linear]:
        """Facts in which an atom occurs."""
        yield from self._facts_about.get(atom, ())[::-1]
        for axiom in (*self.axioms.get(atom, ()), *self._derive(atom)):
            if atom in axiom.terms:
                yield axiom

    def _derive(self, atom: Value) -> list[Linear]:
        """What follows from the operation that an atom is."""
        found = self._derived.get(atom)
        if found is None:
            if atom in self._deriving or len(self._deriving) >= _AXIOM_DEPTH:
                return []
            self._deriving.add(atom)
            found = list(self._consequences(atom))
            self._deriving.discard(atom)
            self._derived[atom] = found
        return found

    def _consequences(self, atom: Value) -> Iterator[Linear]:
        own = Linear(0, {atom: 1})
        if atom.op is Op.ID and isinstance(atom.attr, tuple) and atom.attr[0] == "workgroup":
            count = self._builder.pure(Op.ID, (), ("num_workgroups", atom.attr[1]), atom.dtype)
            yield self.form(count).minus(own).shifted(-1)
        if not atom.args or not atom.type.is_integer or atom.op not in _WITH_CONSEQUENCES:
            return
        x = self.form(atom.args[0])
        if atom.op is Op.ABS:
            if self.proves(x.shifted(-self._limits(atom.type)[0] - 1)):
                yield from (own, own.minus(x), own.plus(x))
            return
        y = self.form(atom.args[1])
        if atom.op is Op.MIN:
            yield from (x.minus(own), y.minus(own))
        elif atom.op is Op.MAX:
            yield from (own.minus(x), own.minus(y))
        elif atom.op is Op.AND:
            yield from (part.minus(own) for part in (x, y) if self.proves(part))
            if self.proves(x) or self.proves(y):
                yield own
        elif atom.op is Op.MOD:
            if self.proves(y.shifted(-1)):
                yield y.minus(own).shifted(-1)
            if self.proves(y):
                yield own
                if self.proves(x):
                    yield x.minus(own)
        else:
            yield from self._quotient(atom, own, x, y)

    def _quotient(self, atom: Value, own: Linear, x: Linear, y: Linear) -> Iterator[Linear]:
        """x // y or x >> y: for constants y, within one y of x; never further from 0 than x."""
        number = self._constant(atom.args[1])
        if atom.op is Op.SHR and number is not None:
            width = atom.type.bits or self._trace.index_bits
            number = 1 << number if 0 <= number < width else None
        if number is not None and number > 0:
            scaled = own.times(number)
            yield x.minus(scaled)
            yield scaled.shifted(number - 1).minus(x)
        if self.proves(x) and (atom.op is Op.SHR or self.proves(y)):
            yield from (own, x.minus(own))


_WITH_CONSEQUENCES: Final = frozenset({Op.ABS, Op.MIN, Op.MAX, Op.AND, Op.MOD, Op.FLOORDIV, Op.SHR})
