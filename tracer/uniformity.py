"""What is equal over which invocations: of values, and of the control flow that reaches effects.

**Values.** A value's `Scope` is the widest group of invocations that all compute the same value,
among those that compute it together: in a loop, at the same iteration; under a condition, those
for which it holds. Its stride is the difference from one lane of a subgroup to the next, where
that is one known number.

**Lanes** run along x: ids grow by one from lane to lane. With ``rows`` all lanes of a subgroup
share y and z, as on targets whose subgroup divides the workgroup's x size.

**Memory.** A load from an array that the trace never writes is as uniform as its address, since
nobody else writes arguments while a kernel runs. (Arguments that are the same view are one.) From
memory that is written, invocations that load at different times may see different values, so
that such a load is uniform over a subgroup at best, unless it says that barriers keep it so
(``Access.uniform``). Local memory is each invocation's own.

**Strides** hold modulo the width of the type: ``x + 1`` may wrap between two lanes. So a cast to
a wider type keeps a stride only where its operand cannot wrap (ids), and a code generator that
adds ``lane * stride`` in wider arithmetic relies on a flat offset in bounds being further from the
limits of its type than one subgroup's span. Strides past `MAX_STRIDE` are not told.

**Control flow** is told absolutely: the invocations of a scope reach an effect together or not at
all. That is lost under a condition, in a loop that they leave at different iterations, and after
a ``return``, ``break`` or ``continue`` that some take; after a loop those that broke out are
together again. Whether an ``if`` splits the invocations that reach it is the scope of its
condition; whether a loop does is ``exits``.

A loop's result is what its invocations carried when they left, so it is no more uniform than the
loop's exits. The analysis starts from the best and goes round until nothing gets worse.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, final

from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import AtomicAccess, Region, Space, Trace, Value, values
from khaljit.tracer.nesting import Place, is_unreachable, places
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = [
    "MAX_STRIDE",
    "STRAIGHT",
    "Scope",
    "Uniformity",
    "analyse",
    "combined_stride",
    "wrapped_stride",
]

MAX_STRIDE: Final = 1 << 16


class Scope(enum.IntEnum):
    """A group of invocations, wider before narrower; the join of two is the greater."""

    CONSTANT = 0  # every invocation of every launch
    GRID = 1
    WORKGROUP = 2
    SUBGROUP = 3
    VARYING = 4


@final
@dataclass(frozen=True, slots=True, eq=False)
class Uniformity:
    """What `analyse` found.

    Attributes:
        scope: of each value that has a type (and memories), where it is the same.
        stride: of each such value, how it grows from lane to lane; 0 where it is the same over
            the subgroup, None where it is no integer or not known to be affine in the lane.
        control: of each region, the scope whose invocations enter it together.
        reach: of each effect and end, the scope whose invocations reach it together.
        exits: of each loop, the scope over which those that enter it together leave it together.
    """

    scope: dict[Value, Scope]
    stride: dict[Value, int | None]
    control: dict[Region, Scope]
    reach: dict[Value, Scope]
    exits: dict[Value, Scope]


def analyse(trace: Trace, *, rows: bool = True) -> Uniformity:
    """Find what is uniform. ``rows``: all lanes of a subgroup share y and z."""
    analysis = _Analysis(trace, rows)
    analysis.run()
    return Uniformity(
        analysis.scope, analysis.stride, analysis.control, analysis.reach, analysis.exits
    )


# Ids that are the same in every invocation of a grid, workgroup or subgroup.
_UNIFORM_IDS: Final = {
    "workgroup": Scope.WORKGROUP,
    "num_workgroups": Scope.GRID,
    "workgroup_size": Scope.GRID,
    "subgroup": Scope.SUBGROUP,
    "num_subgroups": Scope.GRID,
    "subgroup_size": Scope.GRID,
    "first": Scope.SUBGROUP,  # these two only the CPU's code generator has
    "lanes": Scope.GRID,
}

# Collectives that give all lanes the same value.
_UNIFORM_COLLECTIVES: Final = frozenset(
    {"add", "mul", "min", "max", "and", "or", "xor", "any", "all", "ballot", "broadcast_first"}
)

# What is the same in and after every iteration of any loop.
_INVARIANT: Final = frozenset({Op.CONST, Op.ID, Op.SCALAR, Op.SHAPE, Op.STRIDE})
_MERGED: Final = frozenset({Op.PARAM, Op.RESULT})

# Operations on integers that keep to straight lines.
STRAIGHT: Final = frozenset({Op.ADD, Op.SUB, Op.NEG, Op.MUL, Op.SHL})


@final
class _Analysis:
    """The state of one analysis; scopes only grow, strides only get lost."""

    def __init__(self, trace: Trace, rows: bool) -> None:
        self.scope: Final[dict[Value, Scope]] = {}
        self.stride: Final[dict[Value, int | None]] = {}
        self.control: Final[dict[Region, Scope]] = {}
        self.reach: Final[dict[Value, Scope]] = {}
        self.exits: Final[dict[Value, Scope]] = {}
        self._trace: Final = trace
        flat = trace.workgroup is not None and trace.workgroup[1:] == (1, 1)
        self._rows: Final = rows or flat
        tree = places(trace.body)
        self._places: Final = {place.region: place for place in tree}
        self._order: Final = [
            v for v in values(trace.body) if v.dtype is not None or v.op is Op.MEMORY
        ]
        self._steps: Final = _steps(self._places[trace.body], self._places)
        self._written: Final = self._find_written()
        # Per loop: the node that owns a parameter, its ends, and over which scope the invocations
        # that start an iteration together end it by the same ``continue``.
        self._owners: Final[dict[Value, Value]] = {}
        self._ends: Final[dict[tuple[Value, Op], list[Value]]] = {}
        self._mixes: Final[dict[Value, Scope]] = {}
        for place in tree:
            if place.owner is not None and place.is_loop:
                self.exits[place.owner] = self._mixes[place.owner] = Scope.CONSTANT
                self._owners.update(dict.fromkeys(place.region.params, place.owner))
        for place, effect in self._steps:
            if effect.op is Op.BREAK or effect.op is Op.CONTINUE:
                self._ends.setdefault((_loop(place), effect.op), []).append(effect)
        # Values of all other operations are as uniform as their operands.
        self._rules: Final[dict[Op, Callable[[Value], Scope]]] = {
            **dict.fromkeys((Op.SCALAR, Op.SHAPE, Op.STRIDE), lambda _: Scope.GRID),
            Op.ID: self._id_scope,
            Op.LOAD: self._load_scope,
            Op.ATOMIC: lambda _: Scope.VARYING,
            Op.SUBGROUP: self._collective_scope,
            Op.PARAM: self._param_scope,
            Op.RESULT: self._result_scope,
        }

    def run(self) -> None:
        order = self._order
        changed = True
        while changed:
            changed = self._evaluate(order)
            changed |= self._flow()
            if not self.exits:  # without loops nothing flows backwards
                return
            if order is self._order:
                order = self._moving()

    def _moving(self) -> list[Value]:
        """The values that may get worse in another round: what depends on merged values."""
        moving: set[Value] = set()
        for value in self._order:
            if value.op in _MERGED or not moving.isdisjoint(value.args):
                moving.add(value)
        return [value for value in self._order if value in moving]

    def _view(self, value: Value) -> tuple[Space, int]:
        """The memory that an access is about; one for all arguments that are the same view."""
        memory = value.memory
        if memory.space is Space.ARRAY:
            return memory.space, self._trace.arrays[memory.number].same_view
        return memory.space, memory.number

    def _find_written(self) -> frozenset[tuple[Space, int]]:
        return frozenset(
            self._view(effect)
            for _, effect in self._steps
            if effect.op is Op.STORE
            or (
                effect.op is Op.ATOMIC
                and not (isinstance(effect.attr, AtomicAccess) and effect.attr.kind == "load")
            )
        )

    # Values.

    def _evaluate(self, order: list[Value]) -> bool:
        """Recompute the scopes and strides of values; whether any got worse."""
        scope, stride, rules = self.scope, self.stride, self._rules
        changed = False
        for value in order:
            rule = rules.get(value.op)
            found = self._join(value.args) if rule is None else rule(value)
            step = 0 if found <= Scope.SUBGROUP else self._stride(value)
            if scope.get(value) is not found or stride[value] != step:
                scope[value] = found
                stride[value] = step
                changed = True
        return changed

    def _join(self, operands: tuple[Value, ...]) -> Scope:
        """The scope over which all operands are the same; what is not known yet is the best."""
        scope = Scope.CONSTANT
        for operand in operands:
            other = self.scope.get(operand, Scope.CONSTANT)
            if other > scope:
                scope = other
        return scope

    def _id_scope(self, value: Value) -> Scope:
        name, axis = _id(value)
        if name in _UNIFORM_IDS:
            return _UNIFORM_IDS[name]
        if name not in ("global", "local") or axis == 0:
            return Scope.VARYING
        workgroup = self._trace.workgroup
        if workgroup is not None and workgroup[axis] == 1:
            return Scope.WORKGROUP
        return Scope.SUBGROUP if self._rows else Scope.VARYING

    def _load_scope(self, value: Value) -> Scope:
        space = value.memory.space
        address = self._join(value.args)
        if space is Space.TABLE:
            return address
        if space is Space.LOCAL:
            return Scope.VARYING
        if space is Space.SHARED or self._view(value) in self._written:
            return max(address, Scope.WORKGROUP if value.access.uniform else Scope.SUBGROUP)
        return max(address, Scope.GRID)

    def _collective_scope(self, value: Value) -> Scope:
        if value.attr in _UNIFORM_COLLECTIVES:
            return Scope.SUBGROUP
        if value.attr == "broadcast" and value.args[1].attr == 0:
            return Scope.SUBGROUP  # any other lane may be missing, and then each gets its own
        return Scope.VARYING

    def _param_scope(self, value: Value) -> Scope:
        loop = self._owners[value]
        carried = self._flowing(loop, Op.CONTINUE, value)
        scope = max(self._join(_of(loop, value)), self._join(carried))
        if len(set(carried)) > 1:
            scope = max(scope, self._mixes[loop])
        return scope

    def _result_scope(self, value: Value) -> Scope:
        node = value.args[0]
        flowing = self._flowing(node, Op.BREAK, value)
        if not flowing:  # nothing ever flows out: what uses it is never reached
            return Scope.CONSTANT
        scope = self._join(flowing)
        if len(set(flowing)) > 1 or (node.op is Op.LOOP and flowing[0].op not in _INVARIANT):
            scope = max(scope, self._split(node))
        return scope

    def _flowing(self, node: Value, op: Op, value: Value) -> tuple[Value, ...]:
        """What may become a parameter (by ``continue``) or result of an ``if`` or ``loop``."""
        if node.op is Op.LOOP:
            ends = self._ends.get((node, op), [])
        else:
            ends = [arm.end for arm in node.regions if arm.end.op is Op.YIELD]
        return tuple(_of(end, value)[0] for end in ends)

    def _split(self, node: Value) -> Scope:
        """The scope over which those that come to an ``if`` or ``loop`` leave it the same way."""
        if node.op is Op.LOOP:
            return self.exits[node]
        return self.scope[node.args[0]]

    # Strides of values that vary over the subgroup.

    def _stride(self, value: Value) -> int | None:
        if value.dtype is None or not value.dtype.is_integer:
            return None
        stride = self._affine(value)
        return None if stride is None else wrapped_stride(stride, self._width(value.dtype))

    def _affine(self, value: Value) -> int | None:
        op, args = value.op, value.args
        if op is Op.ID:
            return self._id_stride(value)
        if op is Op.CAST:
            return self._cast_stride(args[0], value.type)
        if op is Op.BITCAST:
            return self._known(args[0]) if args[0].type.is_integer else None
        if op is Op.PARAM:
            loop = self._owners[value]
            carried = self._flowing(loop, Op.CONTINUE, value)
            if len(set(carried)) > 1 and self._mixes[loop] > Scope.SUBGROUP:
                return None
            return self._common((*_of(loop, value), *carried))
        if op is Op.RESULT:
            flowing = self._flowing(args[0], Op.BREAK, value)
            if len(set(flowing)) > 1 or args[0].op is Op.LOOP:
                return self._common(flowing) if self._split(args[0]) <= Scope.SUBGROUP else None
            return self._known(flowing[0])
        if op is Op.SELECT:
            return self._common(args[1:]) if self.scope[args[0]] <= Scope.SUBGROUP else None
        if op in STRAIGHT:
            strides = [self.stride[operand] for operand in args]
            return combined_stride(value, strides, self._width(value.type))
        return None

    def _id_stride(self, value: Value) -> int | None:
        name, axis = _id(value)
        if name in ("local_index", "lane") or (axis == 0 and self._rows):
            return 1
        return None

    def _cast_stride(self, operand: Value, dtype: DType) -> int | None:
        """Wrapping to a narrower type keeps a stride; widening does where nothing has wrapped."""
        if not operand.type.is_integer:
            return None
        if self._width(dtype) <= self._width(operand.type):
            return self._known(operand)
        origin = operand
        while origin.op is Op.CAST and self._width(origin.type) >= self._trace.index_bits:
            origin = origin.args[0]
        return self._known(operand) if origin.op is Op.ID else None

    def _common(self, operands: tuple[Value, ...]) -> int | None:
        """The stride that all operands have whose stride is known by now."""
        strides = {self.stride[operand] for operand in operands if operand in self.stride}
        return strides.pop() if len(strides) == 1 else None

    def _known(self, operand: Value) -> int | None:
        return self.stride[operand]

    def _width(self, dtype: DType) -> int:
        return dtype.bits or self._trace.index_bits

    # Control flow.

    def _flow(self) -> bool:
        """Follow control flow with the scopes found so far; whether any loop got worse."""
        before = (list(self.exits.values()), list(self._mixes.values()))
        top = self._places[self._trace.body]
        # Where the walk is: the scope whose invocations are together, in all and among those
        # that started this iteration of the innermost loop.
        absolute = {top: Scope.CONSTANT}
        relative = {top: Scope.CONSTANT}
        self.control[top.region] = Scope.CONSTANT
        for place, effect in self._steps:
            self.reach[effect] = absolute[place]
            if effect.regions:
                is_loop = effect.op is Op.LOOP
                inside = max(absolute[place], self._split(effect))
                for region in effect.regions:
                    inner = self._places[region]
                    absolute[inner] = self.control[region] = inside
                    relative[inner] = (
                        Scope.CONSTANT if is_loop else max(relative[place], self._split(effect))
                    )
            elif is_unreachable(place.region):
                continue
            elif effect.op is Op.RETURN:
                self._leave_kernel(place, absolute, relative)
            elif effect.op is Op.BREAK or effect.op is Op.CONTINUE:
                self._leave_iteration(place, effect.op, absolute, relative)
        return before != (list(self.exits.values()), list(self._mixes.values()))

    def _leave_iteration(
        self,
        place: Place,
        op: Op,
        absolute: dict[Place, Scope],
        relative: dict[Place, Scope],
    ) -> None:
        """A ``break`` or ``continue``: what follows it in the loop's body is less together."""
        together, among = absolute[place], relative[place]
        while not place.is_loop:
            assert place.parent is not None
            place = place.parent
            absolute[place] = max(absolute[place], together)
            if op is Op.CONTINUE:  # those that broke out do not come back in this loop
                relative[place] = max(relative[place], among)
        loop = place.owner
        assert loop is not None
        table = self.exits if op is Op.BREAK else self._mixes
        table[loop] = max(table[loop], among)

    def _leave_kernel(
        self, place: Place, absolute: dict[Place, Scope], relative: dict[Place, Scope]
    ) -> None:
        """A ``return``: everything that follows it is less together."""
        together, among = absolute[place], relative[place]
        while place.parent is not None:
            loop = place.owner
            parent = place.parent
            if loop is not None and place.is_loop:
                self.exits[loop] = max(self.exits[loop], among)
                among = max(relative[parent], self.exits[loop])
            place = parent
            absolute[place] = max(absolute[place], together)


def combined_stride(value: Value, strides: Sequence[int | None], bits: int) -> int | None:
    """How one of `STRAIGHT` grows, of so many bits, whose operands grow by known strides."""
    first, second = strides[0], strides[-1]
    if first is None or second is None:
        return None
    if value.op is Op.ADD:
        return first + second
    if value.op is Op.SUB:
        return first - second
    if value.op is Op.NEG:
        return -first
    factor = value.args[1]
    if factor.op is not Op.CONST or not isinstance(factor.attr, int):
        return None
    if value.op is Op.MUL:
        return first * factor.attr
    return first << factor.attr if factor.attr < bits else 0


def wrapped_stride(stride: int, bits: int) -> int | None:
    """A stride modulo the width of its type, as the signed number next to 0."""
    half = 1 << (bits - 1)
    stride = (stride + half) % (2 * half) - half
    return stride if abs(stride) <= MAX_STRIDE else None


def _id(value: Value) -> tuple[str, int]:
    assert isinstance(value.attr, tuple)
    name, axis = value.attr
    return name, axis


def _of(flow: Value, value: Value) -> tuple[Value]:
    """The operand of a flow of values that becomes a parameter or result."""
    assert isinstance(value.attr, int)
    return (flow.args[value.attr],)


def _loop(place: Place) -> Value:
    """The innermost loop around a place."""
    while not place.is_loop:
        assert place.parent is not None, "in a loop"
        place = place.parent
    assert place.owner is not None
    return place.owner


def _steps(top: Place, tree: dict[Region, Place]) -> list[tuple[Place, Value]]:
    """All effects and ends with their places, in the order in which control comes to them."""
    steps: list[tuple[Place, Value]] = []
    stack: list[tuple[Place, Value]] = []

    def enter(place: Place) -> None:
        stack.append((place, place.region.end))
        stack.extend((place, effect) for effect in reversed(place.region.body))

    enter(top)
    while stack:
        place, effect = stack.pop()
        steps.append((place, effect))
        for region in reversed(effect.regions):
            enter(tree[region])
    return steps
