"""Plans addresses: what is computed once, outside of loops, or carried through a loop.

An address is a base, plus a *core* offset times its unit, plus a number of bytes that the
instruction itself adds. Accesses with one core share a pointer. It is computed where the core is,
but not in an arm of a branch that may not be taken, and not in a loop that does not change it.

**Carried pointers.** Where a loop changes the core by the same amount in each iteration, the
pointer is advanced instead of computed anew; the assembler then unrolls into accesses with
immediate offsets. Offsets wrap at their width and pointers do not. So this is done only where

* both wrap alike (64-bit offsets, shared memory), or
* the access happens in each iteration, in bounds: then two offsets that follow one another are
  both in the array, hence less than 2^31 apart, and their difference is what the pointer advances
  by, whatever wrapped on the way to them; or
* the access is guarded by comparisons of a counter that starts at 0 or more and rises to a limit
  without wrapping: then it is in bounds in the first iterations, up to some, and never after.

The constant part of an offset is split off as if sums did not wrap: an offset in bounds is
further from the limits of its type than `MAX_SHIFT`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, final

from khaljit.codegen.ptx.loops import conditions
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import Kind, bool_
from khaljit.tracer.ir import Memory, Region, Space, Trace, Value, effects
from khaljit.tracer.nesting import Place, places
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["ACCESSES", "Carried", "Plan", "Pointer", "Where", "plan_pointers", "writes"]

MAX_SHIFT: Final = 1 << 16
MAX_BYTES: Final = 1 << 22
MAX_CARRIED: Final = 12  # pointers of one loop; each takes two registers
_MAX_DEPTH: Final = 40

ACCESSES: Final = frozenset({Op.LOAD, Op.STORE, Op.ATOMIC})

# A linear combination: how often each value is in it; None stands for 1.
Terms = dict[Value | None, int]


@final
class Pointer:
    """A pointer of some accesses.

    Attributes:
        memory: what it points into.
        core: its offset in units of the element's alignment; None where it is the base.
        register: what holds it, once that is so.
    """

    __slots__ = ("core", "memory", "register")

    def __init__(self, memory: Memory, core: Value | None) -> None:
        self.memory: Final = memory
        self.core: Final = core
        self.register = ""


@final
class Where:
    """The address of an access: a pointer and the bytes after it."""

    __slots__ = ("displacement", "pointer")

    def __init__(self, pointer: Pointer, displacement: int) -> None:
        self.pointer: Final = pointer
        self.displacement: Final = displacement


@final
class Carried:
    """A pointer that a loop advances, and by how many units per iteration."""

    __slots__ = ("pointer", "step")

    def __init__(self, pointer: Pointer, step: Terms) -> None:
        self.pointer: Final = pointer
        self.step: Final = step


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """All addresses of a trace.

    Attributes:
        where: of each access.
        before: what to compute before an ``if`` or ``loop`` that has the accesses in it.
        carried: of each loop.
        homes: the place where each value is computed.
        tree: all places.
    """

    where: dict[Value, Where] = field(default_factory=dict)
    before: dict[Value, list[Pointer]] = field(default_factory=dict)
    carried: dict[Value, list[Carried]] = field(default_factory=dict)
    homes: dict[Value, Place] = field(default_factory=dict)
    tree: tuple[Place, ...] = ()


@final
@dataclass(slots=True, eq=False)
class _Loop:
    """What is known of a loop: how each parameter changes, and where it goes on from."""

    place: Place
    steps: dict[Value, Terms]
    continues_from: int  # position in the body before which no ``continue`` stands
    known: dict[Value, Terms | None] = field(default_factory=dict)


def plan_pointers(trace: Trace, items: dict[Region, tuple[Value, ...]]) -> Plan:
    """Plan the addresses of all accesses, given where values are computed."""
    return _Planner(trace, items).run()


def split(memory: Memory, offset: Value) -> tuple[Value | None, int]:
    """An offset as a core and a number of bytes."""
    align, count, core = memory.element.align, 0, offset
    while True:
        number = constant(core)
        if number is not None:
            total = (count + int(number)) * align
            return (None, total) if abs(total) < MAX_BYTES else (offset, 0)
        more = constant(core.args[1]) if core.op in (Op.ADD, Op.SUB) else None
        if more is None:
            return core, count * align
        moved = count + (int(more) if core.op is Op.ADD else -int(more))
        if abs(moved) > MAX_SHIFT:
            return core, count * align
        count, core = moved, core.args[0]


@final
class _Planner:
    def __init__(self, trace: Trace, items: dict[Region, tuple[Value, ...]]) -> None:
        self._trace: Final = trace
        self._plan: Final = Plan(tree=places(trace.body))
        self._places: Final = {place.region: place for place in self._plan.tree}
        self._pointers: Final[dict[tuple[object, ...], Pointer]] = {}
        self._loops: Final[dict[Place, _Loop]] = {}
        homes = self._plan.homes
        for place in self._plan.tree:
            for value in (*place.region.params, *items[place.region]):
                homes[value] = place

    def run(self) -> Plan:
        for place in self._plan.tree:
            for position, effect in enumerate(place.region.body):
                if effect.op in ACCESSES:
                    self._plan.where[effect] = self._find(place, position, effect)
        return self._plan

    def _home(self, value: Value) -> Place:
        """The place where a value is computed; that of a result is its ``if``'s or ``loop``'s."""
        if value.op is Op.RESULT:
            value = value.args[0]
        return self._plan.homes.get(value, self._plan.tree[0])

    def _find(self, place: Place, position: int, effect: Value) -> Where:
        memory = effect.memory
        core, displacement = split(memory, effect.indices[0])
        displacement += effect.access.leaf
        if core is None:
            return Where(self._shared_by(memory, None, None), displacement)
        pointer = self._carried(place, position, effect, core)
        if pointer is None:
            home, item = self._climb(place, core)
            pointer = self._shared_by(memory, core, home)
            if item is not None:
                self._plan.before.setdefault(item, []).append(pointer)
        return Where(pointer, displacement)

    def _shared_by(self, memory: Memory, core: Value | None, home: Place | None) -> Pointer:
        key = (memory.space, memory.number, core, home)
        if key not in self._pointers:
            self._pointers[key] = Pointer(memory, core)
        return self._pointers[key]

    def _climb(self, place: Place, core: Value) -> tuple[Place, Value | None]:
        """Where a pointer is computed: out of loops, and before which item there."""
        home, best, item, before = self._home(core), place, None, None
        while place is not home and place.parent is not None:
            before = place.owner
            if place.is_loop:
                best, item = place.parent, before
            place = place.parent
        return best, item

    # Carried pointers.

    def _carried(self, place: Place, position: int, effect: Value, core: Value) -> Pointer | None:
        memory = effect.memory
        alike = memory.space is Space.SHARED or core.type.bits == 64
        around = place
        while alike and not around.is_loop and around.parent is not None:
            around = around.parent
        if not around.is_loop or not self._is_inside(self._home(core), around):
            return None
        loop = self._loop(around)
        key = (memory.space, memory.number, core, loop)
        if key in self._pointers and (alike or self._steady(loop, position, effect)):
            return self._pointers[key]
        step = self._step(core, loop, 0)
        if not step or not (alike or self._steady(loop, position, effect)):
            return None
        assert around.owner is not None
        carried = self._plan.carried.setdefault(around.owner, [])
        if len(carried) == MAX_CARRIED:
            return None
        pointer = self._pointers[key] = Pointer(memory, core)
        carried.append(Carried(pointer, step))
        return pointer

    def _is_inside(self, place: Place, around: Place) -> bool:
        while place.depth > around.depth:
            assert place.parent is not None
            place = place.parent
        return place is around

    def _loop(self, place: Place) -> _Loop:
        if place not in self._loops:
            assert place.owner is not None
            goes_on, first = [], len(place.region.body)
            for position, effect in enumerate(place.region.body):
                found = [end for end in _own_ends(effect) if end.op is Op.CONTINUE]
                if found:
                    goes_on += found
                    first = min(first, position)
            if place.region.end.op is Op.CONTINUE:
                goes_on.append(place.region.end)
            steps: dict[Value, Terms] = {}
            for number, param in enumerate(place.region.params):
                following = {end.args[number] for end in goes_on}
                if len(following) == 1:
                    step = self._counted(param, following.pop(), place)
                    if step is not None:
                        steps[param] = step
            self._loops[place] = _Loop(place, steps, first)
        return self._loops[place]

    def _counted(self, param: Value, following: Value, place: Place) -> Terms | None:
        """By what a parameter grows, if it is by an invariant."""
        if following.op is not Op.ADD or param not in following.args:
            return None
        first, second = following.args
        by = second if first is param else first
        number = constant(by)
        if number is not None:
            return {None: int(number)}
        return None if self._is_inside(self._home(by), place) else {by: 1}

    def _step(self, value: Value, loop: _Loop, depth: int) -> Terms | None:
        """By what a value grows per iteration, modulo its width; None where that is not told."""
        if value.op is Op.CONST or not self._is_inside(self._home(value), loop.place):
            return {}
        if value not in loop.known:
            loop.known[value] = None if depth > _MAX_DEPTH else self._new_step(value, loop, depth)
        return loop.known[value]

    def _new_step(self, value: Value, loop: _Loop, depth: int) -> Terms | None:
        if value.op is Op.PARAM:
            return loop.steps.get(value)
        if value.op not in (Op.ADD, Op.SUB, Op.MUL, Op.SHL, Op.BITCAST) or value.type is bool_:
            return None
        parts = [self._step(arg, loop, depth + 1) for arg in value.args]
        first, second = parts[0], parts[-1]
        if first is None or second is None or value.args[0].type.is_float:
            return None
        if value.op is Op.BITCAST:
            return first
        if value.op is Op.ADD or value.op is Op.SUB:
            return _sum(first, second, 1 if value.op is Op.ADD else -1)
        if second:
            return None if first or value.op is Op.SHL else _scaled(second, value.args[0])
        if value.op is Op.MUL:
            return _scaled(first, value.args[1])
        amount = constant(value.args[1])
        if amount is None or not 0 <= amount < value.type.bits:
            return None
        return {term: count << int(amount) for term, count in first.items()}

    def _steady(self, loop: _Loop, position: int, effect: Value) -> bool:
        """Whether an access of the body itself is in bounds in each iteration, up to some."""
        if effect not in loop.place.region.body or position > loop.continues_from:
            return False
        return effect.guard is None or all(
            self._holds_first(part, loop) for part in conditions(effect.guard)
        )

    def _holds_first(self, condition: Value, loop: _Loop) -> bool:
        """Whether a condition holds in the first iterations, up to some, and never after."""
        if condition.op is Op.CONST or not self._is_inside(self._home(condition), loop.place):
            return True
        if condition.op is not Op.LT or condition.args[0].type.kind is not Kind.UNSIGNED:
            return False
        counter, limit = condition.args
        if limit.op is not Op.CONST and self._is_inside(self._home(limit), loop.place):
            return False
        if counter.op is Op.BITCAST:
            counter = counter.args[0]
        ahead = constant(counter.args[1]) if counter.op is Op.ADD else 0
        if ahead is None or not 0 <= ahead <= MAX_SHIFT:
            return False
        return self._rises(counter.args[0] if counter.op is Op.ADD else counter, loop)

    def _rises(self, counter: Value, loop: _Loop) -> bool:
        """Whether a parameter counts up from 0 or more, to a limit that it does not jump over."""
        params = loop.place.region.params
        step = loop.steps.get(counter)
        if step is None or set(step) != {None} or not 0 < step[None] <= MAX_SHIFT:
            return False
        assert loop.place.owner is not None
        start = constant(loop.place.owner.args[params.index(counter)])
        if start is None or start < 0:
            return False
        limit = _limit(loop.place.region, counter)
        if limit is None or self._is_inside(self._home(limit), loop.place):
            return False
        # An extent is further from the limits of its type than a step.
        return step[None] == 1 or limit.op is Op.SHAPE


def _own_ends(effect: Value) -> list[Value]:
    """The ends in the regions of an effect that are about the loop around it."""
    if effect.op is Op.LOOP:
        return []
    found, stack = [], list(effect.regions)
    while stack:
        region = stack.pop()
        found.append(region.end)
        stack.extend(inner for one in region.body if one.op is Op.IF for inner in one.regions)
    return found


def _limit(body: Region, counter: Value) -> Value | None:
    """What a counter is below of after the guard at the top of a loop; signed."""
    if not body.body or body.body[0].op is not Op.IF:
        return None
    guard = body.body[0]
    leaves = [arm.end.op is Op.BREAK for arm in guard.regions]
    if leaves[0] is leaves[1]:
        return None
    condition, stays = guard.args[0], leaves[1]  # whether the loop goes on where it holds
    if condition.op is Op.NOT:
        condition, stays = condition.args[0], not stays
    return condition.args[1] if _is(condition, Op.LT if stays else Op.GE, counter) else None


def _is(condition: Value, op: Op, counter: Value) -> bool:
    return condition.op is op and condition.args[0] is counter and counter.type.is_signed


def _sum(a: Terms, b: Terms, sign: int) -> Terms:
    total = dict(a)
    for term, count in b.items():
        total[term] = total.get(term, 0) + sign * count
    return {term: count for term, count in total.items() if count}


def _scaled(terms: Terms, factor: Value) -> Terms | None:
    """Terms times an invariant; None where two values would be multiplied."""
    number = constant(factor)
    if number is not None:
        return {term: count * int(number) for term, count in terms.items() if number}
    if set(terms) - {None}:
        return None
    return {factor: terms[None]} if terms else {}


def writes(trace: Trace) -> frozenset[int]:
    """The numbers of array parameters that are written, the first of those that are one view."""
    return frozenset(
        trace.arrays[effect.memory.number].same_view
        for effect in effects(trace.body)
        if effect.op in (Op.STORE, Op.ATOMIC) and effect.memory.space is Space.ARRAY
    )
