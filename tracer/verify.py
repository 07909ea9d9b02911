"""Checks that a trace keeps the laws of the representation; a broken law is our own defect.

The laws, all of which hold in every form of a trace:

Parameters
    * ``arrays[k].memory`` is the array memory number k, with no fixed extents; ``same_shape`` and
      ``same_view`` name the first parameter of a group, of the same ndim (and for views the same
      element and shape group).
    * Workgroup sizes are positive; ``index_bits`` is 32 or 64.

Values
    * Operands are as many as the operation takes and have a type, except the memory of a memory
      operation and the ``if`` or ``loop`` of a ``RESULT``. Types are what the row in ``OPS`` says.
    * A constant's bits fit its type. A scalar's number and type are a parameter's. A memory is a
      parameter's or one with a fixed shape; a table has data for all elements.
    * Ids exist; ids, shapes and strides are of type ``index``, ``i32`` or ``i64``, axes in range.
    * Casts have two types; bitcasts keep the width.
    * ``PARAM`` values are owned by one region, in order; ``RESULT`` values are of an ``if`` or
      ``loop`` that has such a result.
    * What a value depends on exists where the value is used: the effect that gives it comes before
      in the same region or in one around it.

Effects
    * An effect stands in one place, and ends stand only at ends. Each region stands once.
    * Accesses: as many integer indices as the memory has axes and the element fixed arrays, whose
      items are leaves of one type in steps of whole units, or one flat offset of ``i32`` or
      ``i64`` as wide as ``index`` with a bool guard if it says so; a leaf of the element, and
      values of its type, which is not ``index`` any more behind a flat offset; nothing is written
      to tables.
    * Atomics have the operands of their kind, collectives those of theirs; barriers have a known
      scope; prints and asserts have a note; conditions are bool.

Regions
    * An ``if`` has two arms without parameters, a ``loop`` one body whose parameters have the types
      of its initial values.
    * A ``yield`` ends an arm (with the ``if``'s result types) or the kernel (with nothing). A
      ``break`` or ``continue`` is inside a loop, with the types of its results or parameters. The
      body of a loop does not yield. A ``return`` has no operands.
    * Nothing follows an ``if`` neither of whose arms yields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.tracer.dtypes import DType, bool_, i32, i64, index
from khaljit.tracer.errors import InternalError, Site
from khaljit.tracer.ir import (
    ATOMICS,
    IDS,
    Access,
    AtomicAccess,
    Memory,
    Note,
    Space,
    Trace,
    Value,
    values,
)
from khaljit.tracer.nesting import Place, places
from khaljit.tracer.ops import ENDS, NORMAL, OPS, Op, TypingError
from khaljit.tracer.text import describe

__all__ = ["COLLECTIVES", "verify"]

# Subgroup operations with their number of operands.
COLLECTIVES: Final = {
    **dict.fromkeys(("add", "mul", "min", "max", "and", "or", "xor"), 1),
    **dict.fromkeys(("inclusive_add", "inclusive_mul", "inclusive_min", "inclusive_max"), 1),
    **dict.fromkeys(("exclusive_add", "exclusive_mul", "exclusive_min", "exclusive_max"), 1),
    **dict.fromkeys(("broadcast", "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down"), 2),
    **dict.fromkeys(("broadcast_first", "ballot", "any", "all"), 1),
    "elect": 0,
}

_INDEX_TYPES: Final = frozenset({index, i32, i64})
_BARRIERS: Final = frozenset({"workgroup", "storage", "subgroup"})


def verify(trace: Trace) -> None:
    """InternalError listing every law that a trace breaks."""
    verifier = _Verifier(trace)
    verifier.run()
    if verifier.broken:
        lines = "\n".join(f"  {line}" for line in verifier.broken)
        raise InternalError(f"the trace of {trace.name} is broken:\n{lines}", at=verifier.at)


@final
class _Verifier:
    """Collects what is wrong with one trace."""

    def __init__(self, trace: Trace) -> None:
        self.broken: Final[list[str]] = []
        self.at: Site | None = None
        self._trace: Final = trace
        self._tree: Final = places(trace.body)
        # Where an effect, end or parameter stands: its place, and the position from which it may
        # be used there.
        self._stands: Final[dict[Value, tuple[Place, int]]] = {}
        # From where on a value may be used; None where its operands exist nowhere together.
        self._ready: Final[dict[Value, tuple[Place, int] | None]] = {}
        self._rules: Final[dict[Op, Callable[[Value], None]]] = {
            Op.CONST: self._constant,
            Op.SCALAR: self._scalar,
            Op.MEMORY: self._memory,
            Op.ID: self._id,
            Op.SHAPE: self._extent,
            Op.STRIDE: self._extent,
            Op.PARAM: self._param,
            Op.RESULT: self._result,
            Op.CAST: self._cast,
            Op.BITCAST: self._cast,
            Op.LOAD: self._load,
            Op.STORE: self._store,
            Op.ATOMIC: self._atomic,
            Op.BARRIER: self._barrier,
            Op.SUBGROUP: self._collective,
            Op.PRINT: self._note,
            Op.ASSERT: self._note,
            Op.IF: self._if,
            Op.LOOP: self._loop,
        }

    def run(self) -> None:
        self._parameters()
        for place in self._tree:
            self._stand(place)
        for value in values(self._trace.body):
            self._operands(value)
            self._ready[value] = self._find_ready(value)
            if value in self._stands:
                self._use(value)
            rule = self._rules.get(value.op)
            if rule is not None:
                rule(value)
            elif value.op not in ENDS:
                self._typed(value)
        for place in self._tree:
            self._region(place)

    def _law(self, holds: bool, value: Value, message: str) -> bool:
        """Note a law that does not hold; gives whether it does."""
        if not holds:
            self.broken.append(f"{describe(value)}: {message}")
            self.at = self.at or value.at
        return holds

    # The kernel's parameters.

    def _parameters(self) -> None:
        trace = self._trace
        facts = [(trace.index_bits in (32, 64), "index_bits is 32 or 64")]
        if trace.workgroup is not None:
            sizes = len(trace.workgroup) == 3 and min(trace.workgroup) > 0
            facts.append((sizes, "a workgroup has three positive sizes"))
        for number, param in enumerate(trace.arrays):
            memory = param.memory
            own = memory.space is Space.ARRAY and memory.number == number
            facts.append((own, f"array {param.name} is memory number {number}"))
            free = all(extent is None for extent in memory.shape) and memory.data is None
            facts.append((free, f"array {param.name} has no fixed extent and no data"))
            facts.append((self._grouped(number), f"array {param.name} names its groups"))
        self.broken.extend(f"kernel: broken: {law}" for holds, law in facts if not holds)

    def _grouped(self, number: int) -> bool:
        """Whether a parameter names the first of those with its shape and with its view."""
        arrays = self._trace.arrays
        param = arrays[number]
        if not (0 <= param.same_shape <= number and 0 <= param.same_view <= number):
            return False
        shape, view = arrays[param.same_shape], arrays[param.same_view]
        return (
            shape.same_shape == param.same_shape
            and shape.memory.ndim == param.memory.ndim
            and view.same_view == param.same_view
            and view.same_shape == param.same_shape
            and view.memory.element == param.memory.element
        )

    # Where things stand and what they may use.

    def _stand(self, place: Place) -> None:
        region = place.region
        for position, param in enumerate(region.params):
            self._law(param.op is Op.PARAM, param, "stands among the parameters of a region")
            self._law(param.attr == position, param, f"is parameter number {position}")
            self._stand_once(param, place, 0)
        for position, effect in enumerate(region.body):
            self._law(
                effect.is_effect and effect.op not in ENDS,
                effect,
                "only effects that are no ends stand in the body of a region",
            )
            self._stand_once(effect, place, position + 1)
        self._law(region.end.op in ENDS, region.end, "stands at the end of a region")
        self._stand_once(region.end, place, len(region.body) + 1)

    def _stand_once(self, value: Value, place: Place, position: int) -> None:
        if self._law(value not in self._stands, value, "stands in two places"):
            self._stands[value] = (place, position)

    def _operands(self, value: Value) -> None:
        info = OPS[value.op]
        if info.arity is not None:
            fits = len(value.args) == info.arity
            self._law(fits, value, f"takes {info.arity} operands, not {len(value.args)}")
        first_is_memory = value.op in _MEMORY_FIRST
        if first_is_memory and value.args:
            is_memory = isinstance(value.args[0].attr, Memory)
            self._law(is_memory, value, "its first operand is a memory")
        if value.op is Op.RESULT:
            return
        for operand in value.args[first_is_memory:]:
            self._law(operand.dtype is not None, value, f"{describe(operand)} is no operand")

    def _find_ready(self, value: Value) -> tuple[Place, int] | None:
        """From where on a value may be used: where the last thing that it depends on stands."""
        if value in self._stands:
            return self._stands[value]
        if value.is_effect or value.op is Op.PARAM:
            self._law(False, value, "is used and stands nowhere")
            return None
        ready: tuple[Place, int] | None = (self._tree[0], 0)
        for operand in value.args:
            other = self._ready[operand]
            if ready is None or other is None:
                return None
            if other[0].depth > ready[0].depth:
                ready, other = other, ready
            if other[0] is ready[0]:
                ready = max(ready, other, key=lambda spot: spot[1])
            elif not _reaches(other, ready[0], ready[1]):
                self._law(False, value, "its operands exist nowhere together")
                return None
        return ready

    def _use(self, user: Value) -> None:
        """What an effect or end uses exists where it stands."""
        place, position = self._stands[user]
        for operand in user.args:
            ready = self._ready[operand]
            if ready is not None:
                exists = _reaches(ready, place, position - 1)
                self._law(exists, user, f"{describe(operand)} does not exist here")

    # Values.

    def _typed(self, value: Value) -> None:
        """Pure operations whose row has a typing rule."""
        info = OPS[value.op]
        assert info.result is not None, "an operation without a rule has a law of its own"
        types = [operand.dtype for operand in value.args]
        if len(types) != info.arity or None in types:
            return  # and was reported
        try:
            expected = info.result(*types)
        except TypingError as error:
            self._law(False, value, f"its operands do not fit: {error}")
            return
        self._law(value.dtype is expected, value, f"is of type {expected.name}")
        promises = value.op in (Op.DIV, Op.SQRT) and value.attr == NORMAL
        self._law(value.attr is None or promises, value, "has no attribute")

    def _constant(self, value: Value) -> None:
        if not self._law(value.dtype is not None, value, "has a type"):
            return
        bits = 1 if value.dtype is bool_ else value.type.bits or 64
        fits = isinstance(value.attr, int) and 0 <= value.attr < 1 << bits
        self._law(fits and type(value.attr) is int, value, "its bits fit its type")

    def _scalar(self, value: Value) -> None:
        scalars = self._trace.scalars
        known = isinstance(value.attr, int) and 0 <= value.attr < len(scalars)
        if self._law(known, value, "is a scalar parameter") and isinstance(value.attr, int):
            dtype = scalars[value.attr].dtype
            self._law(value.dtype is dtype, value, f"is of type {dtype.name}")

    def _memory(self, value: Value) -> None:
        memory = value.attr
        if not isinstance(memory, Memory):
            self._law(False, value, "its attribute is a memory")
        elif memory.space is Space.ARRAY:
            known = any(param.memory == memory for param in self._trace.arrays)
            self._law(known, value, "is the memory of an array parameter")
        else:
            fixed = all(extent is not None and extent >= 0 for extent in memory.shape)
            self._law(fixed, value, "has a fixed shape")
            if fixed and memory.space is Space.TABLE:
                size = memory.count * memory.element.size
                self._law(len(memory.data or b"") == size, value, f"has {size} bytes of data")
            elif memory.space is not Space.TABLE:
                self._law(memory.data is None, value, "only tables have data")

    def _id(self, value: Value) -> None:
        name, axis = value.attr if isinstance(value.attr, tuple) else ("", 0)
        self._law(name in IDS and 0 <= axis < IDS[name], value, "there is no such id")
        self._law(value.dtype in _INDEX_TYPES, value, "is of type index, i32 or i64")

    def _extent(self, value: Value) -> None:
        self._law(value.dtype in _INDEX_TYPES, value, "is of type index, i32 or i64")
        memory = value.args[0].attr if value.args else None
        axis = value.attr
        if isinstance(memory, Memory) and isinstance(axis, int):
            self._law(0 <= axis < memory.ndim, value, f"there is no axis {axis}")
        else:
            self._law(False, value, "has an axis")

    def _param(self, value: Value) -> None:
        self._law(value.dtype is not None, value, "has a type")

    def _result(self, value: Value) -> None:
        node = value.args[0] if value.args else value
        if not self._law(node.op in (Op.IF, Op.LOOP), value, "is of an if or loop"):
            return
        types = node.attr if isinstance(node.attr, tuple) else ()
        known = dict(enumerate(types)).get(value.attr)  # type: ignore[call-overload]  # any key
        self._law(known is value.dtype, value, "there is such a result of this type")

    def _cast(self, value: Value) -> None:
        if not value.args or value.args[0].dtype is None or value.dtype is None:
            self._law(False, value, "has two types")
        elif value.op is Op.BITCAST:
            same = value.dtype.bits == value.args[0].dtype.bits
            self._law(same, value, f"{value.args[0].dtype.name} has another width")

    # Effects.

    def _note(self, value: Value) -> None:
        self._law(isinstance(value.attr, Note), value, "has a note")
        self._law(value.dtype is None, value, "has no value")
        if value.op is Op.ASSERT:
            condition = bool(value.args) and value.args[0].dtype is bool_
            self._law(condition, value, "its first operand is a bool")

    def _barrier(self, value: Value) -> None:
        self._law(value.attr in _BARRIERS, value, "there is no such barrier")
        self._law(value.dtype is None, value, "has no value")

    def _collective(self, value: Value) -> None:
        count = COLLECTIVES.get(value.attr) if isinstance(value.attr, str) else None
        self._law(value.dtype is not None, value, "has a value")
        if self._law(count is not None, value, "there is no such collective"):
            self._law(len(value.args) == count, value, f"takes {count} operands")

    def _load(self, value: Value) -> None:
        dtype = self._accessed(value, 0)
        if dtype is not None:
            self._law(value.dtype is dtype, value, f"the leaf is of type {dtype.name}")

    def _store(self, value: Value) -> None:
        dtype = self._accessed(value, 1)
        self._law(value.dtype is None, value, "has no value")
        if dtype is not None:
            self._written(value, dtype)

    def _atomic(self, value: Value) -> None:
        access = value.attr
        if not isinstance(access, AtomicAccess) or access.kind not in ATOMICS:
            self._law(False, value, "there is no such atomic")
            return
        dtype = self._accessed(value, ATOMICS[access.kind])
        if dtype is not None:
            self._law(value.dtype is dtype, value, f"the leaf is of type {dtype.name}")
            self._written(value, dtype)

    def _written(self, value: Value, dtype: DType) -> None:
        """What a store or atomic writes."""
        table = value.memory.space is Space.TABLE
        self._law(not table, value, "nothing is written to a table")
        for operand in value.operands:
            self._law(operand.dtype is dtype, value, f"the leaf is of type {dtype.name}")

    def _accessed(self, value: Value, count: int) -> DType | None:
        """Check how an access addresses its memory; the type of its leaf if that is well."""
        access = value.attr
        memory = value.args[0].attr if value.args else None
        if not isinstance(access, Access) or not isinstance(memory, Memory):
            self._law(False, value, "is an access to a memory")
            return None
        axes = memory.ndim + len(access.inner)
        expected = (2 + access.guarded if access.flat else 1 + axes) + count
        if not self._law(len(value.args) == expected, value, f"takes {expected} operands"):
            return None
        if access.flat:
            wide = i32 if self._trace.index_bits == 32 else i64
            self._law(value.args[1].dtype is wide, value, f"its offset is of type {wide.name}")
        else:
            self._law(not access.guarded, value, "only flat accesses are guarded")
            indices = value.indices
            whole = all(i.dtype is not None and i.dtype.is_integer for i in indices)
            self._law(whole, value, "its indices are integers")
        if access.flat and value.guard is not None:
            self._law(value.guard.dtype is bool_, value, "its guard is a bool")
        self._law(not (access.flat and access.inner), value, "a flat access has one offset")
        leaves = dict(memory.element.leaves)
        dtype = leaves.get(access.leaf)
        self._law(dtype is not None, value, f"there is no leaf at byte {access.leaf}")
        sized = not access.flat or dtype is not index
        self._law(sized, value, "a flat access has elements of a width")
        for item in _items(access):
            same = leaves.get(item) is dtype
            self._law(same, value, f"its item at byte {item} is a leaf of its type")
        aligned = all(step % memory.element.align == 0 for _, step in access.inner)
        self._law(aligned, value, "its steps are whole units of offsets")
        return dtype

    # Regions.

    def _if(self, value: Value) -> None:
        condition = bool(value.args) and value.args[0].dtype is bool_
        self._law(condition, value, "its condition is a bool")
        arms = len(value.regions) == 2 and not any(arm.params for arm in value.regions)
        self._law(arms, value, "has two arms without parameters")
        self._law(_types(value) is not None, value, "its attribute is the types of its results")
        if value in self._stands and not any(a.end.op is Op.YIELD for a in value.regions):
            place, position = self._stands[value]
            last = position == len(place.region.body)
            self._law(last, value, "neither arm yields, so nothing follows")

    def _loop(self, value: Value) -> None:
        self._law(_types(value) is not None, value, "its attribute is the types of its results")
        if self._law(len(value.regions) == 1, value, "has one body"):
            params = [param.dtype for param in value.regions[0].params]
            fit = params == [operand.dtype for operand in value.args]
            self._law(fit, value, "its parameters have the types of its initial values")

    def _region(self, place: Place) -> None:
        """The end of a region."""
        end = place.region.end
        flowing = [operand.dtype for operand in end.args]
        if end.op is Op.RETURN:
            self._law(not flowing, end, "has no operands")
        elif end.op is Op.YIELD:
            self._yield(place, flowing)
        elif end.op in ENDS:
            loop = _around(place)
            if loop is None or loop.owner is None:
                self._law(False, end, "stands in no loop")
            elif end.op is Op.BREAK:
                fit = flowing == list(_types(loop.owner) or ())
                self._law(fit, end, "has the types of the loop's results")
            else:
                fit = flowing == [param.dtype for param in loop.region.params]
                self._law(fit, end, "has the types of the loop's parameters")
        if place.owner is None:
            self._law(not place.region.params, end, "a kernel has no carried values")

    def _yield(self, place: Place, flowing: list[DType | None]) -> None:
        end = place.region.end
        if place.owner is None:
            self._law(not flowing, end, "the kernel yields nothing")
        elif self._law(not place.is_loop, end, "the body of a loop does not yield"):
            fit = flowing == list(_types(place.owner) or ())
            self._law(fit, end, "has the types of the if's results")


def _items(access: Access) -> list[int]:
    """The bytes at which the items stand that an access may be about."""
    found = [access.leaf]
    for extent, step in access.inner:
        found = [at + k * step for at in found for k in range(extent)]
    return found


_MEMORY_FIRST: Final = frozenset({Op.LOAD, Op.STORE, Op.ATOMIC, Op.SHAPE, Op.STRIDE})


def _types(node: Value) -> tuple[DType, ...] | None:
    """The result types of an ``if`` or ``loop``; None where its attribute is something else."""
    if isinstance(node.attr, tuple) and all(isinstance(dtype, DType) for dtype in node.attr):
        return node.attr
    return None


def _around(place: Place) -> Place | None:
    """The body of the innermost loop around a region, or that region itself."""
    around: Place | None = place
    while around is not None and not around.is_loop:
        around = around.parent
    return around


def _reaches(ready: tuple[Place, int], place: Place, position: int) -> bool:
    """Whether what is ready somewhere exists at a position of a place."""
    while place.depth > ready[0].depth:
        assert place.parent is not None
        position = place.position
        place = place.parent
    return place is ready[0] and position >= ready[1]
