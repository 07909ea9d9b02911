"""Finds accesses that one instruction does: 2 or 4 scalars side by side, 16 bytes at most.

Before::

    %a = load points[%i] leaf 0          # elements of 16 bytes
    %b = load points[%i] leaf 4
    store out[4 * %k], ... out[4 * %k + 1], +2, +3

After: the members of a group, in the order of their bytes. Loads happen where the first of them
stood, stores where the last did. So nothing that may touch the same bytes stands in between: no
access by another pointer into the same memory of which one is a store, no atomic, barrier, branch
or loop.

Members have the same pointer and guard, and their address is known to be aligned: the base is (the
launch signature says so of arrays), and the core offset is a multiple.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.ptx.forms import TYPES
from khaljit.codegen.ptx.pointers import Plan, Pointer, Where
from khaljit.tracer.build import constant
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Memory, Region, Space, Trace, Value, regions
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["Group", "find_groups"]

_WIDEST: Final = 16  # bytes
_COUNTS: Final = (4, 2)
_MAX_DEPTH: Final = 40


@final
@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Accesses of one instruction.

    Attributes:
        members: by rising address.
        leader: the one at whose place it happens.
    """

    members: tuple[Value, ...]
    leader: Value


@final
class _Open:
    """Accesses that may still be joined by more.

    They are alike in ``op``, ``view``, ``pointer``, guard and type. ``passed`` are the bytes that
    were stored since, beside the loads of the group: no load of them may be moved to its place.
    """

    __slots__ = ("members", "op", "passed", "pointer", "view")

    def __init__(self, op: Op, view: tuple[Space, int], pointer: Pointer) -> None:
        self.op: Final = op
        self.view: Final = view
        self.pointer: Final = pointer
        self.members: Final[dict[int, Value]] = {}  # by displacement
        self.passed: Final[list[tuple[int, int]]] = []  # displacements and sizes


def find_groups(trace: Trace, plan: Plan) -> dict[Value, Group]:
    """The group of each access that is in one."""
    finder = _Finder(trace, plan)
    for region in regions(trace.body):
        finder.region(region)
    return finder.groups


@final
class _Finder:
    def __init__(self, trace: Trace, plan: Plan) -> None:
        self.groups: Final[dict[Value, Group]] = {}
        self._trace: Final = trace
        self._plan: Final = plan
        self._open: Final[dict[tuple[object, ...], _Open]] = {}

    def region(self, region: Region) -> None:
        for effect in region.body:
            if effect.op is Op.LOAD or effect.op is Op.STORE:
                self._access(effect)
            else:
                self._close(list(self._open))
        self._close(list(self._open))

    def _view(self, memory: Memory) -> tuple[Space, int]:
        if memory.space is Space.ARRAY:
            return memory.space, self._trace.arrays[memory.number].same_view
        return memory.space, memory.number

    def _access(self, effect: Value) -> None:
        where = self._plan.where[effect]
        view, dtype = self._view(effect.memory), _scalar(effect)
        near = [(key, one) for key, one in self._open.items() if one.view == view]
        self._close([key for key, one in near if self._conflicts(one, effect, where)])
        if effect.op is Op.STORE:
            for _, one in near:
                if one.op is Op.LOAD:
                    one.passed.append((where.displacement, dtype.size))
        key = (effect.op, view, where.pointer, effect.guard, TYPES[dtype].memory)
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = _Open(effect.op, view, where.pointer)
        group.members[where.displacement] = effect

    def _conflicts(self, one: _Open, effect: Value, where: Where) -> bool:
        """Whether an access must not be exchanged with those of an open group, or joined to it."""
        if one.pointer is not where.pointer:
            return one.op is Op.STORE or effect.op is Op.STORE
        at, size = where.displacement, _scalar(effect).size
        if one.op is Op.LOAD and effect.op is Op.LOAD:
            return at in one.members or _overlap(at, size, one.passed)
        members = [(place, _scalar(member).size) for place, member in one.members.items()]
        return _overlap(at, size, members)

    def _close(self, keys: list[tuple[object, ...]]) -> None:
        for key in keys:
            one = self._open.pop(key)
            if len(one.members) > 1:
                self._form(one)

    def _form(self, one: _Open) -> None:
        """Cut the members into groups, the largest first."""
        order = {member: k for k, member in enumerate(one.members.values())}
        at = sorted(one.members)
        size = _scalar(one.members[at[0]]).size
        align = self._alignment(one.pointer)
        k = 0
        while k < len(at):
            count = next((n for n in _COUNTS if _fits(at[k : k + n], n, size, align)), 1)
            if count > 1:
                members = tuple(one.members[place] for place in at[k : k + count])
                pick = min if one.op is Op.LOAD else max
                group = Group(members, pick(members, key=order.__getitem__))
                self.groups.update(dict.fromkeys(members, group))
            k += count

    def _alignment(self, pointer: Pointer) -> int:
        """A power of two that a pointer is surely a multiple of; at most 16."""
        memory = pointer.memory
        align = memory.element.align
        base = _WIDEST
        if memory.space is Space.ARRAY and not self._trace.arrays[memory.number].aligned:
            base = align
        if pointer.core is None:
            return base
        return min(base, (align & -align) * _factor(pointer.core, self._plan, 0))


def _overlap(at: int, size: int, others: list[tuple[int, int]]) -> bool:
    """Whether some bytes are among others, which are given as they are: where, and how many."""
    return any(at < place + extent and place < at + size for place, extent in others)


def _scalar(effect: Value) -> DType:
    """The type of the scalar in memory."""
    return dict(effect.memory.element.leaves)[effect.access.leaf]


def _fits(at: list[int], count: int, size: int, align: int) -> bool:
    """Whether some displacements are side by side, and aligned as one."""
    total = count * size
    return (
        len(at) == count
        and total <= _WIDEST
        and align % total == 0
        and at[0] % total == 0
        and all(place == at[0] + k * size for k, place in enumerate(at))
    )


def _factor(value: Value, plan: Plan, depth: int) -> int:
    """A power of two that an integer is surely a multiple of, wrapped or not; at most 16."""
    number = constant(value)
    if number is not None:
        return min(_WIDEST, int(number) & -int(number)) if number else _WIDEST
    if depth > _MAX_DEPTH:
        return 1
    op = value.op
    if op is Op.PARAM:
        return _of_counter(value, plan, depth)
    if op not in (Op.ADD, Op.SUB, Op.MUL, Op.SHL, Op.AND, Op.BITCAST, Op.CAST):
        return 1
    if any(not arg.type.is_integer for arg in value.args):
        return 1
    factors = [_factor(arg, plan, depth + 1) for arg in value.args]
    if op is Op.MUL:
        return min(_WIDEST, factors[0] * factors[1])
    if op is Op.AND:
        return max(factors)
    if op is Op.SHL:
        amount = constant(value.args[1])
        return min(_WIDEST, factors[0] << int(amount)) if amount and 0 < amount < 8 else 1
    return min(factors)


def _of_counter(param: Value, plan: Plan, depth: int) -> int:
    """Of a loop's parameter that starts at one multiple and grows by another."""
    place = plan.homes[param]
    assert isinstance(param.attr, int)
    if place.owner is None or place.region.end.op is not Op.CONTINUE:
        return 1
    following = place.region.end.args[param.attr]
    if following.op is not Op.ADD or following.args[0] is not param or _goes_on_early(place.region):
        return 1
    step = constant(following.args[1])
    if not step:
        return 1
    start = _factor(place.owner.args[param.attr], plan, depth + 1)
    return min(start, int(step) & -int(step))


def _goes_on_early(body: Region) -> bool:
    """Whether a loop has more than the one ``continue`` at its end."""
    return any(
        region.end.op is Op.CONTINUE
        for effect in body.body
        for arm in effect.regions
        for region in regions(arm)
    )
