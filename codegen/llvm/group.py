"""Kernels that can tell workgroups: a work item is a workgroup, run subgroup after subgroup.

Where nothing waits at a barrier, the whole kernel is one loop over subgroups. Else barriers cut it
into pieces (``plan.py``), and code is generated on two levels:

* the level of the workgroup: conditions and loops around barriers, and what is the same for all
  invocations, once and in scalars;
* segments: what lies between barriers, each a loop over subgroups.

What lives across segments is kept per subgroup in the arena, its context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.llvm.code import Code, Place
from khaljit.codegen.llvm.control import Walk
from khaljit.codegen.llvm.entry import (
    Item,
    for_each_item,
    group_counts,
    narrowed_index,
    rows_from,
    versions,
)
from khaljit.codegen.llvm.flow import position
from khaljit.codegen.llvm.forms import TYPES
from khaljit.codegen.llvm.loops import own_ends
from khaljit.codegen.llvm.plan import Plan, Segment, has_barrier
from khaljit.codegen.llvm.pure import pure
from khaljit.codegen.llvm.values import Held
from khaljit.tracer.ir import Region, Space, Value
from khaljit.tracer.ops import Op

__all__ = ["local_copies", "run_groups"]


def subgroup_count(code: Code) -> int:
    """Subgroups of a workgroup."""
    assert code.trace.workgroup is not None
    x, y, z = code.trace.workgroup
    return x * y * z // code.lanes.count


def local_copies(code: Code) -> int:
    """How many subgroups have local arrays at once."""
    return subgroup_count(code) if has_barrier(code.trace.body) else 1


def run_groups(code: Code) -> None:
    """All workgroups of a kernel."""
    groups = group_counts(code)
    size = code.trace.workgroup
    assert size is not None
    for axis in range(3):
        code.ids["num_workgroups", axis] = narrowed_index(code, groups[axis])
        code.ids["workgroup_size", axis] = str(size[axis])
    code.ids["num_subgroups", 0] = str(subgroup_count(code))
    code.ids["subgroup_size", 0] = str(code.lanes.count)
    code.ids["lane", 0] = "0"

    def body(item: Item) -> None:
        for axis in range(3):
            code.ids["workgroup", axis] = narrowed_index(code, item.position[axis])
        _locate(code, "0")
        if subgroup_count(code) > 1 and has_barrier(code.trace.body):
            _Group(code, item).run()
        else:
            each_subgroup(code, lambda after: _whole(code, after))
            code.w.jump(item.done)

    for_each_item(code, groups, body)


def _whole(code: Code, after: str) -> None:
    """The whole kernel for one subgroup."""

    def run(walk: Walk) -> None:
        if walk.region(code.trace.body) is not None:
            code.w.jump(after)

    versions(code, after, run)


def each_subgroup(code: Code, body: Callable[[str], None]) -> None:
    """A loop over the subgroups; ``body`` generates one and ends at the label that it is given."""
    w, count = code.w, subgroup_count(code)
    after = w.label()
    if count == 1:
        body(after)
        w.open(after)
        return
    slot, loop, out = w.slot("i32"), w.label(), w.label()
    outside = dict(code.ids)
    w.do(f"store i32 0, ptr {slot}")
    w.open(loop)
    number = w.let(f"load i32, ptr {slot}")
    _locate(code, number)
    body(after)
    w.open(after)
    following = w.let(f"add i32 {number}, 1")
    w.do(f"store i32 {following}, ptr {slot}")
    w.branch(w.let(f"icmp eq i32 {following}, {count}"), out, loop)
    w.open(out)
    code.ids.update(outside)


def _locate(code: Code, number: str) -> None:
    """The ids of a subgroup, by its number, an i32."""
    w, lanes, rows = code.w, code.lanes.across, code.lanes.rows
    size = code.trace.workgroup
    assert size is not None

    def do(op: str, operand: int, by: str) -> str:
        if by == "0" or (op != "urem" and operand == 1):
            return by
        return "0" if op == "urem" and operand == 1 else w.let(f"{op} i32 {by}, {operand}")

    row = do("mul", rows, do("udiv", size[0] // lanes, number))
    local = (
        do("mul", lanes, do("urem", size[0] // lanes, number)),
        do("urem", size[1], row),
        do("udiv", size[1], row) if size[2] > 1 else "0",
    )
    code.ids["subgroup", 0] = _as_id(code, number)
    code.ids["local_index", 0] = _as_id(code, do("mul", code.lanes.count, number))
    for axis, name in enumerate(local):
        inside = _as_id(code, name)
        code.ids["local", axis] = inside
        t = TYPES[code.index]
        first = w.let(f"mul {t} {code.ids['workgroup', axis]}, {size[axis]}")
        code.ids["global", axis] = first if inside == "0" else w.let(f"add {t} {first}, {inside}")
    if rows > 1:
        _locate_rows(code, _as_id(code, row), local)


def _locate_rows(code: Code, row: str, local: tuple[str, str, str]) -> None:
    """The ids that differ between the rows of a subgroup."""
    w, lanes, t = code.w, code.lanes, TYPES[code.index]
    assert code.trace.workgroup is not None
    for name in ("local", "global"):
        code.row_ids[name, 1] = rows_from(code, code.ids[name, 1])
    first = w.let(f"mul {t} {row}, {code.trace.workgroup[0]}")
    first = w.let(f"add {t} {first}, {_as_id(code, local[0])}")
    code.row_ids["local_index", 0] = tuple(
        w.let(f"add {t} {first}, {lanes.row(part) * code.trace.workgroup[0] + lanes.along(part)}")
        for part in range(lanes.parts)
    )


def _as_id(code: Code, name: str) -> str:
    if code.index.bits == 32 or not name.startswith("%"):
        return name
    return code.w.let(f"zext i32 {name} to i64")


@final
class _Group:
    """One workgroup of a kernel with barriers."""

    def __init__(self, code: Code, item: Item) -> None:
        self.code: Final = code
        self.w: Final = code.w
        self._item: Final = item
        self._plan: Final = Plan(code)
        self._slots: Final[dict[Value, str]] = {}  # of what is the same in the workgroup
        self._contexts: Final[dict[Value, int]] = {}  # offsets in the arena
        self._loops: Final[list[tuple[Value, str, str]]] = []  # with header and exit
        self._locals: Final = {
            key: place for key, place in code.places.items() if key[0] is Space.LOCAL
        }

    def run(self) -> None:
        if self._region(self.code.trace.body):
            self.w.jump(self._item.done)

    # The level of the workgroup.

    def _region(self, region: Region) -> bool:
        """A region; whether control comes out of its end by a ``yield``."""
        for piece in self._plan.pieces[region]:
            if isinstance(piece, Segment):
                self._segment(piece)
            elif piece.op is Op.IF:
                if not self._if(piece):
                    return False
            elif piece.op is Op.LOOP:
                if not self._loop(piece):
                    return False
            else:
                self.code.values.hold(piece, pure(self.code, piece))
        return self._end(region.end)

    def _end(self, end: Value) -> bool:
        if end.op is Op.YIELD:
            return True
        if end.op is Op.RETURN:
            self.w.jump(self._item.done)
            return False
        node, header, exit_ = self._loops[-1]
        if end.op is Op.BREAK:
            self._carry(self.code.results.get(node, []), end)
            self.w.jump(exit_)
        else:
            self._carry(self._params(node), end)
            self.w.jump(header)
        return False

    def _params(self, node: Value) -> list[Value]:
        """The carried values that something reads."""
        return [param for param in node.regions[0].params if param in self.code.used]

    def _carry(self, targets: list[Value], flow: Value) -> None:
        """What is the same in the workgroup to the slots of parameters or results."""
        told = [target for target in targets if self._plan.is_shared(target)]
        bases = [self.code.values.get(flow.args[position(target)]).base for target in told]
        for target, base in zip(told, bases, strict=True):
            self.w.do(f"store {TYPES[target.type]} {base}, ptr {self._slot(target)}")

    def _slot(self, value: Value) -> str:
        if value not in self._slots:
            self._slots[value] = self.w.slot(TYPES[value.type])
        return self._slots[value]

    def _fetch(self, values: list[Value]) -> None:
        """Hold what is the same in the workgroup, from its slots."""
        for value in values:
            if self._plan.is_shared(value):
                name = self.w.let(f"load {TYPES[value.type]}, ptr {self._slot(value)}")
                self.code.values.hold(value, Held(value.type, name))

    def _if(self, node: Value) -> bool:
        labels, join = (self.w.label(), self.w.label()), self.w.label()
        self.w.branch(self.code.values.get(node.args[0]).base, *labels)
        came = False
        for label, arm in zip(labels, node.regions, strict=True):
            self.w.open(label)
            self.code.values.enter()
            if self._region(arm):
                self._carry(self.code.results.get(node, []), arm.end)
                self.w.jump(join)
                came = True
            self.code.values.leave()
        if came:
            self.w.open(join)
            self._fetch(self.code.results.get(node, []))
        return came

    def _loop(self, node: Value) -> bool:
        body = node.regions[0]
        header, exit_ = self.w.label(), self.w.label()
        self._carry(self._params(node), node)
        self.w.open(header)
        self._loops.append((node, header, exit_))
        self.code.values.enter()
        self._fetch(self._params(node))
        self._region(body)
        self.code.values.leave()
        self._loops.pop()
        if not any(end.op is Op.BREAK for end in own_ends(body)):
            return False
        self.w.open(exit_)
        self._fetch(self.code.results.get(node, []))
        return True

    # Segments.

    def _segment(self, segment: Segment) -> None:
        shared = [value for value in self._plan.kept[segment] if self._plan.is_shared(value)]
        each_subgroup(self.code, lambda after: self._one_subgroup(segment, after))
        self._fetch(shared)

    def _one_subgroup(self, segment: Segment, after: str) -> None:
        code = self.code
        code.values.enter()
        for key, place in self._locals.items():
            code.places[key] = Place(self._in_context(place.pointer, key), place.metadata)
        for value in self._plan.needs[segment]:
            if value in self._plan.spilled:
                code.values.hold(value, self._load_context(value))
            else:
                code.values.hold(value, pure(self.code, value))

        def run(walk: Walk) -> None:
            if walk.run(tuple(segment.items)):
                self._keep(segment)
                self.w.jump(after)

        versions(code, after, run)
        code.values.leave()

    def _in_context(self, pointer: str, key: tuple[Space, int]) -> str:
        """The local array of the current subgroup."""
        size = self.code.local_sizes[key]
        number = self.code.ids["subgroup", 0]
        return self.w.let(
            f"getelementptr [{size} x i8], ptr {pointer}, {TYPES[self.code.index]} {number}"
        )

    def _keep(self, segment: Segment) -> None:
        """Put away what later segments read, then what flows to parameters and results."""
        code = self.code
        for value in self._plan.kept[segment]:
            held = code.values.get(value)
            if self._plan.is_shared(value):
                base = code.one_of(held, "0")
                self.w.do(f"store {TYPES[value.type]} {base}, ptr {self._slot(value)}")
            else:
                self._store_context(value, held)
        sources = [code.values.get(source) for _, source in segment.moves]
        for (target, _), held in zip(segment.moves, sources, strict=True):
            self._store_context(target, held)

    def _context(self, value: Value) -> str:
        """The pointer to a value's context in the current subgroup."""
        code = self.code
        size = 8 if code.told(value) is not None else value.type.size * code.lanes.count
        if value not in self._contexts:
            self._contexts[value] = code.arena.take(size * subgroup_count(code))
        base = code.at("%arena", self._contexts[value])
        number = code.ids["subgroup", 0]
        return self.w.let(f"getelementptr [{size} x i8], ptr {base}, {TYPES[code.index]} {number}")

    def _store_context(self, value: Value, held: Held) -> None:
        if self.code.told(value) is not None:
            self.code.store_scalar(self._context(value), value.type, held.base)
        else:
            self.code.store_parts(self._context(value), held)

    def _load_context(self, value: Value) -> Held:
        stride = self.code.told(value)
        if stride is None:
            return self.code.load_parts(self._context(value), value.type)
        return Held(value.type, self.code.load_slot(self._context(value), value.type), stride)
