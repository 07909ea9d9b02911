"""Kernels that go over arrays element by element get several a thread, for accesses of 16 bytes.

Before, with a workgroup that the kernel cannot see::

    if (lt %i (shape x 0)) { store y[%i] (f (load x[%i])) }

After, with four elements, in a grid of a quarter of the threads, each of which is ``%t``::

    %i = 4 * %t
    if (and (lt (%i + 3) (shape x 0)) (lt (%i + 3) (number of invocations))) {
        %a, %b, %c, %d = load x[%i], x[%i + 1], x[%i + 2], x[%i + 3]     # one access
        ...
        store y[%i] (f %a), y[%i + 1] (f %b), ...                        # one access
    } else {
        loop (%k = %i) { as before for %k, while it is below %i + 4 and the number of invocations }
    }

Invocations run in any order, so those of one thread may run side by side. It is done where it pays:
all that is read and written at the id is contiguous, aligned, and of scalars of one width, and
little is computed in between. Other branches may choose values there, and do nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import DType, bool_, i32, i64
from khaljit.tracer.ir import Access, Space, Trace, Value, effects, values
from khaljit.tracer.ops import OPS, Op
from khaljit.tracer.records import dataclass, replace

__all__ = ["coarsen"]

_MOST_ELEMENTS: Final = 4  # that a thread does
# That are done for an element, where the largest that is read or written has 4 bytes, or 8: then
# there are two elements to a thread, and twice the registers. Measured on an H200: of f32,
# Black-Scholes (180 operations) is 1.3 times as fast with four, `pow` 1.4; of f64, `pow` is 0.8.
_MOST_OPERATIONS: Final = 256
_MOST_WIDE_OPERATIONS: Final = 96
_MOST_DEPTH: Final = 4
_WIDE: Final = 16  # bytes of an access
_WORD: Final = 4  # bytes of a register
# Leaves that are the same in all invocations.
_GRID: Final = frozenset({Op.CONST, Op.SCALAR, Op.SHAPE, Op.STRIDE, Op.MEMORY})


_Tree = tuple["Value | _Under", ...]


@final
@dataclass(frozen=True, slots=True)
class _Under:
    """What happens where a condition holds, or where it does not."""

    condition: Value
    holds: bool
    inside: tuple[Value | _Under, ...]


def coarsen(trace: Trace) -> tuple[Trace, int]:
    """The trace with several invocations to a thread, and how many; one where it is left alone."""
    if trace.workgroup is not None or any(one.op is Op.LOOP for one in effects(trace.body)):
        return trace, 1
    plan = _Plan(trace)
    found = plan.find()
    if found is None:
        return trace, 1
    return plan.build(found), plan.elements


@final
class _Plan:
    """What a kernel does, as far as that has the form above."""

    def __init__(self, trace: Trace) -> None:
        self._trace: Final = trace
        self.elements = 1
        self._order: Final = values(trace.body)
        self._fixed: Final[dict[Value, bool]] = {}
        for value in self._order:
            self._fixed[value] = value.op in _GRID or (
                not value.is_effect
                and value.op is not Op.ID
                and bool(value.args)
                and all(self._fixed[arg] for arg in value.args)
            )

    # Whether it is done.

    def find(self) -> _Tree | None:
        """What happens, if that is all simple and worth the while."""
        body = self._trace.body
        found = self._tree(body.body, 0)
        if found is None or body.end.op not in (Op.YIELD, Op.RETURN):
            return None
        work = [value for value in self._computed() if value.args and not value.is_effect]
        ids = {value.attr for value in self._order if value.op is Op.ID}
        own = [value for value in self._order if _is_own_effect(value)]
        wide = [value for value in own if value.op in (Op.LOAD, Op.STORE)]
        if len(wide) < len(own) or ids != {("global", 0)}:
            return None
        wide = [value for value in wide if not self._fixed[value.indices[0]]]
        if not wide or not all(map(self._is_wide, wide)):
            return None
        largest = max(_scalar(value).size for value in wide)
        if len(work) > (_MOST_OPERATIONS if largest <= _WORD else _MOST_WIDE_OPERATIONS):
            return None
        self.elements = min(_MOST_ELEMENTS, _WIDE // largest)
        return found

    def _computed(self) -> set[Value]:
        """What has to be computed, of choices what the shorter arm needs."""
        roots: list[Value] = []
        for value in self._order:
            if value.op is Op.IF and _is_choice(value):
                first, second = (_behind(region.end.args) for region in value.regions)
                roots += first if len(first) < len(second) else second
                roots.append(value.args[0])
            elif value.is_effect:
                roots += value.args
        return _behind(roots)

    def _is_wide(self, access: Value) -> bool:
        """Whether an access is at the id itself, in an aligned array of scalars."""
        memory = access.memory
        return (
            memory.space is Space.ARRAY
            and self._trace.arrays[memory.number].aligned
            and len(memory.element.leaves) == 1
            and memory.element.size == memory.element.align
            and access.indices[0].op is Op.ID
        )

    def _tree(self, effects: tuple[Value, ...], depth: int) -> _Tree | None:
        """Effects, with the branches on how far the id goes; None where there are others."""
        found: list[Value | _Under] = []
        for position, effect in enumerate(effects):
            if effect.op is not Op.IF:
                found.append(effect)
                continue
            then, orelse = effect.regions
            condition, ends = effect.args[0], (then.end.op, orelse.end.op)
            if _is_choice(effect):
                found.append(effect)
                continue
            if depth == _MOST_DEPTH or effect.attr:
                return None
            if ends == (Op.RETURN, Op.YIELD) and not then.body and not orelse.body:
                rest = self._tree(effects[position + 1 :], depth + 1)
                if rest is None or self._atoms(condition, holds=False) is None:
                    return None
                return (*found, _Under(condition, False, rest))
            if ends != (Op.YIELD, Op.YIELD) or orelse.body:
                return None
            inside = self._tree(then.body, depth + 1)
            if inside is None or self._atoms(condition, holds=True) is None:
                return None
            found.append(_Under(condition, True, inside))
        return tuple(found)

    def _atoms(self, condition: Value, *, holds: bool) -> list[Value] | None:
        """Comparisons of the id with limits, which all are as one says; None for other conditions.

        What holds for an id holds for all below it.
        """
        if condition.op is Op.NOT:
            return self._atoms(condition.args[0], holds=not holds)
        if condition.op is (Op.AND if holds else Op.OR) and condition.dtype is bool_:
            first, second = (self._atoms(arg, holds=holds) for arg in condition.args)
            return None if first is None or second is None else first + second
        if condition.op is not (Op.LT if holds else Op.GE):
            return None
        at, limit = condition.args
        if at.op is Op.BITCAST:
            at = at.args[0]
        return [condition] if at.op is Op.ID and self._fixed[limit] else None

    # How.

    def build(self, found: _Tree) -> Trace:
        """The new trace."""
        trace = self._trace
        builder = Builder(trace.pool)
        dtype = i32 if trace.index_bits == 32 else i64
        builder.open()
        thread = builder.pure(Op.ID, (), ("global", 0), dtype)
        shift = self.elements.bit_length() - 1
        first = builder.pure(Op.SHL, (thread, builder.const(dtype, shift)))
        count = builder.pure(Op.ID, (), ("num_workgroups", 0), dtype)
        places = [
            builder.pure(Op.ADD, (first, builder.const(dtype, k))) if k else first
            for k in range(self.elements)
        ]
        instances = [_Instance(builder, place) for place in places]
        last = instances[-1]
        all_inside = builder.pure(Op.LT, (places[-1], count))
        for condition, holds in self._conditions(found):
            test = last.value(condition)
            test = test if holds else builder.logical_not(test)
            all_inside = builder.pure(Op.AND, (all_inside, test))
        builder.open()
        self._side_by_side(instances, found)
        builder.end(Op.YIELD)
        fast = builder.close()
        builder.open()
        self._one_by_one(builder, found, first, count)
        builder.end(Op.YIELD)
        builder.if_(all_inside, fast, builder.close())
        builder.end(Op.YIELD)
        return replace(trace, body=builder.close())

    def _conditions(self, found: _Tree) -> list[tuple[Value, bool]]:
        """What has to hold for the last element, and so for all."""
        result: list[tuple[Value, bool]] = []
        for one in found:
            if isinstance(one, _Under):
                result.append((one.condition, one.holds))
                result += self._conditions(one.inside)
            elif one.op is not Op.IF and one.guard is not None:
                result += [(atom, True) for atom in self._assumed(one.guard)]
        return list(dict.fromkeys(result))

    def _assumed(self, guard: Value) -> list[Value]:
        """The parts of a guard that are comparisons of the id with limits."""
        return [part for part in _parts(guard) if self._atoms(part, holds=True) is not None]

    def _side_by_side(self, instances: list[_Instance], found: _Tree) -> None:
        for one in found:
            if isinstance(one, _Under):
                self._side_by_side(instances, one.inside)
                continue
            if one.op is Op.IF:
                for instance in instances:
                    instance.choice(one)
                continue
            rest = None
            if one.guard is not None:
                known = self._assumed(one.guard)
                rest = [part for part in _parts(one.guard) if part not in known]
            for instance in instances:
                instance.access(one, rest)

    def _one_by_one(self, builder: Builder, found: _Tree, first: Value, count: Value) -> None:
        """A loop over the elements of a thread that are there."""
        dtype = first.type
        end = builder.pure(Op.ADD, (first, builder.const(dtype, self.elements)))
        end = builder.pure(Op.MIN, (end, count))
        (place,) = builder.open((dtype,))
        builder.open()
        builder.end(Op.BREAK)
        done = builder.close()
        builder.open()
        builder.end(Op.YIELD)
        builder.if_(builder.pure(Op.GE, (place, end)), done, builder.close())
        self._as_before(_Instance(builder, place), found)
        following = builder.pure(Op.ADD, (place, builder.const(dtype, 1)))
        builder.end(Op.CONTINUE, (following,))
        builder.loop((first,), builder.close(), ())

    def _as_before(self, instance: _Instance, found: _Tree) -> None:
        builder = instance.builder
        for one in found:
            if not isinstance(one, _Under):
                if one.op is Op.IF:
                    instance.choice(one)
                else:
                    instance.access(one, None if one.guard is None else [one.guard])
                continue
            test = instance.value(one.condition)
            builder.open()
            self._as_before(instance, one.inside)
            builder.end(Op.YIELD)
            inside = builder.close()
            builder.open()
            builder.end(Op.YIELD)
            test = test if one.holds else builder.logical_not(test)
            builder.if_(test, inside, builder.close())


def _is_choice(branch: Value) -> bool:
    """Whether a branch does nothing but choose values."""
    return all(not region.body and region.end.op is Op.YIELD for region in branch.regions)


def _behind(roots: Iterable[Value]) -> set[Value]:
    """Values and all that they are computed from."""
    found: set[Value] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(value.args)
    return found


def _is_own_effect(value: Value) -> bool:
    return value.is_effect and value.op not in (Op.IF, Op.YIELD, Op.RETURN)


def _scalar(access: Value) -> DType:
    return dict(access.memory.element.leaves)[access.access.leaf]


def _parts(condition: Value) -> list[Value]:
    if condition.op is not Op.AND:
        return [condition]
    return [part for arg in condition.args for part in _parts(arg)]


@final
class _Instance:
    """One invocation: its values in the new trace, where the id is a given value."""

    def __init__(self, builder: Builder, place: Value) -> None:
        self.builder: Final = builder
        self._place: Final = place
        self._known: Final[dict[Value, Value]] = {}

    def value(self, old: Value) -> Value:
        """The new value for an old one."""
        known, stack = self._known, [old]
        while stack:
            top = stack[-1]
            missing = [arg for arg in top.args if arg not in known]
            if top in known or not missing:
                stack.pop()
                if top not in known:
                    known[top] = self._built(top, tuple(known[arg] for arg in top.args))
            else:
                stack.extend(missing)
        return known[old]

    def _built(self, old: Value, args: tuple[Value, ...]) -> Value:
        if old.op is Op.ID:
            return self._place
        self.builder.at = old.at
        stated = old.dtype if OPS[old.op].result is None else None
        return self.builder.pure(old.op, args, old.attr, stated)

    def choice(self, old: Value) -> None:
        """A branch that chooses values."""
        builder = self.builder
        condition = self.value(old.args[0])
        arms = []
        for region in old.regions:
            results = tuple(self.value(result) for result in region.end.args)
            builder.open()
            builder.end(Op.YIELD, results)
            arms.append(builder.close())
        results = builder.if_(condition, *arms)
        if results:
            self._known[old] = results[0].args[0]

    def access(self, old: Value, guards: list[Value] | None) -> None:
        """A load or store, under some of its guards."""
        builder, access = self.builder, old.access
        args = [self.value(old.args[0]), self.value(old.indices[0])]
        if guards:
            guard = self.value(guards[0])
            for more in guards[1:]:
                guard = builder.pure(Op.AND, (guard, self.value(more)))
            args.append(guard)
        args += [self.value(operand) for operand in old.operands]
        builder.at = old.at
        attr = Access(access.leaf, access.checked, access.flat, guarded=bool(guards))
        built = builder.effect(old.op, tuple(args), attr, old.dtype)
        self._known[old] = built
