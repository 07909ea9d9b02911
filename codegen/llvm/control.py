"""Control flow under masks: branches where conditions are uniform, masks where they are not.

While code runs at least one of its lanes is active. Where lanes leave (``break``, ``continue``,
``return``) in a place where others may be left, what remains is checked, and when nothing does,
control goes to the nearest place where lanes may be waiting: the end of the arm of a masked
``if``, the end of a loop's iteration, the end of the kernel. Such a place is an `Escape`.

A loop that its lanes leave at different iterations keeps the mask of those that still run, and
blends its results. All others are plain loops.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, final

from khaljit.codegen.llvm.atomics import atomic
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.collectives import collective
from khaljit.codegen.llvm.conditions import all_lanes, go_on_if
from khaljit.codegen.llvm.flow import Edge, Escape, Flow, Names, position
from khaljit.codegen.llvm.loops import Loop, own_ends
from khaljit.codegen.llvm.memory import load, store
from khaljit.codegen.llvm.pure import pure, settled
from khaljit.codegen.llvm.strided import find_group, store_group
from khaljit.codegen.llvm.values import Held, Mask
from khaljit.tracer.ir import Region, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["Walk"]

# An arm with no effects and at most this many computations runs without being branched around.
CHEAP: Final = 16


# Lanes leave a loop in few of its iterations: registers are for the others.
RARELY: Final = ', !prof !{!"branch_weights", i32 1, i32 30}'


@final
@dataclass(frozen=True, slots=True)
class Arm:
    """What came out of an arm: the lanes, the values, and whether all that went in came out."""

    mask: Names
    values: tuple[Names, ...]
    whole: bool


@final
class Walk:
    """Generates regions in order."""

    def __init__(self, code: Code, end: str) -> None:
        self.code: Final = code
        self.w: Final = code.w
        self.flow: Final = Flow(code)
        self._escape = Escape(end)
        self._loops: Final[list[Loop]] = []
        self._emitters: Final[dict[Op, Callable[[Value], None]]] = {
            Op.LOAD: self._load,
            Op.ATOMIC: self._atomic,
            Op.SUBGROUP: self._collective,
            Op.BARRIER: lambda value: None,  # lanes run in step, and nobody else shares this code
        }

    # Regions and simple items.

    def region(self, region: Region) -> tuple[Held, ...] | None:
        """Everything in a region; gives what it yields, or None where no lane is left after it."""
        if not self.run(self.code.items[region]):
            return None
        return self.end(region.end)

    def run(self, items: tuple[Value, ...]) -> bool:
        """Items in order; whether any lane is left after them."""
        group: list[Value] = []  # stores that are done together, with the last of them
        waiting = 0
        for k, item in enumerate(items):
            if not item.is_effect:
                self.code.values.hold(item, pure(self.code, item))
            elif item.op is Op.STORE:
                if not waiting:
                    group = find_group(self.code, item, islice(items, k, None)) or [item]
                    waiting = len(group)
                waiting -= 1
                if not waiting:
                    self._store(group)
            elif item.op is Op.IF:
                if not self._if(item):
                    return False
            elif item.op is Op.LOOP:
                if not self._loop(item):
                    return False
            else:
                self._emitters[item.op](item)
        return True

    def _store(self, group: list[Value]) -> None:
        if len(group) > 1:
            store_group(self.code, group)
        else:
            store(self.code, group[0])

    def end(self, end: Value) -> tuple[Held, ...] | None:
        """The end of a region."""
        if end.op is Op.YIELD:
            return tuple(self.code.values.get(value) for value in end.args)
        if end.op is Op.BREAK:
            self._break(end)
        elif end.op is Op.CONTINUE:
            self._continue(end)
        else:
            inner = self._escape
            self._return()
            self._escape = inner
        return None

    def _load(self, value: Value) -> None:
        self.code.values.hold(value, settled(self.code, value, load(self.code, value)))

    def _atomic(self, value: Value) -> None:
        held = atomic(self.code, value)
        if held is not None:
            self.code.values.hold(value, held)

    def _collective(self, value: Value) -> None:
        self.code.values.hold(value, settled(self.code, value, collective(self.code, value)))

    # Leaving.

    def _leave(self) -> None:
        """No lane is left here."""
        self._escape.blocks.append(self.w.here)
        self.w.jump(self._escape.label)

    def _return(self) -> None:
        """All lanes here are done; in loops that nobody waits in, with the loops too."""
        for loop in reversed(self._loops):
            if self._escape is not loop.latch or loop.apart or loop.waiting:
                break
            self._escape = loop.outside
        self._leave()

    def _leave_if_none(self) -> None:
        """Go on only if any lane is left."""
        mask = self.code.mask
        assert mask is not None
        some = self.code.lanes.any(mask)
        self._escape.blocks.append(self.w.here)
        self.w.fork(some, yes=False, to=self._escape.label)

    # Conditionals.

    def _if(self, node: Value) -> bool:
        """A conditional; whether any lane is left after it."""
        condition = self.code.values.get(node.args[0])
        if condition.uniform:
            return self._uniform_if(node, condition.base)
        if all(self._is_cheap(arm) for arm in node.regions):
            self._blended_if(node, self.code.values.vector(condition))
            return True
        foreseen = self._foreseen(node.args[0])
        if foreseen is not None:
            return self._uniform_if(node, foreseen)
        vectors = self.code.values.vector(condition)
        for k, (arm, other) in enumerate((node.regions, node.regions[::-1])):
            if arm.end.op is not Op.YIELD and self._is_empty(other):
                return self._leaving_if(node, arm, other, vectors, holds=k == 0)
        return self._masked_if(node, vectors)

    def _is_cheap(self, arm: Region) -> bool:
        """Whether an arm has no effects and little to compute."""
        items = self.code.items[arm]
        return not arm.body and arm.end.op is Op.YIELD and len(items) <= CHEAP

    def _is_empty(self, arm: Region) -> bool:
        return not self.code.items[arm] and arm.end.op is Op.YIELD

    def _foreseen(self, condition: Value) -> str | None:
        """Go on only where all lanes agree on a condition; gives what they agree on, an i1."""
        code = self.code
        if not code.may_bail():
            return None
        yes = all_lanes(code, condition, holds=True)
        no = all_lanes(code, condition, holds=False)
        if yes is None or no is None:
            return None
        go_on_if(code, self.w.let(f"or i1 {yes}, {no}"))
        return yes

    def _uniform_if(self, node: Value, condition: str) -> bool:
        """A branch that all lanes take together."""
        labels, join = (self.w.label(), self.w.label()), self.w.label()
        mask, bail = self.code.mask, self.code.bail
        self.w.branch(condition, *labels)
        edges: list[Edge] = []
        bails = []
        for k, (label, arm) in enumerate(zip(labels, node.regions, strict=True)):
            self.w.open(label)
            self.code.mask, self.code.bail = mask, bail
            self.code.values.enter()
            self.code.values.learn(node.args[0], holds=k == 0)
            yielded = self.region(arm)
            if yielded is not None:
                names = self.flow.yielded(node, yielded)
                edges.append(Edge(self.w.here, self.code.mask, names))
                bails.append(self.code.bail)
                self.w.jump(join)
            self.code.values.leave()
        if not edges:
            return False
        self.code.bail = bail if all(bails) else None
        self.flow.hold_results(node, self.flow.join(node, join, edges))
        return True

    def _blended_if(self, node: Value, condition: Names) -> None:
        """Both arms for all lanes, then a selection."""
        arms = []
        for arm in node.regions:
            self.code.values.enter()
            yielded = self.region(arm)
            assert yielded is not None, "a cheap arm yields"
            arms.append(self.flow.yielded(node, yielded))
            self.code.values.leave()
        self._blend_results(node, condition, arms[0], arms[1])

    def _blend_results(
        self, node: Value, condition: Names, yes: tuple[Names, ...], no: tuple[Names, ...]
    ) -> None:
        for result, a, b in zip(self.flow.results(node), yes, no, strict=True):
            if self.flow.told_by_one(result):  # both arms yield the very same value
                same = node.regions[0].end.args[position(result)]
                self.code.values.hold(result, self.code.values.get(same))
            else:
                blended = self.code.lanes.chosen(condition, result.type, a, b)
                self.code.values.hold(result, Held(result.type, parts=blended))

    def _leaving_if(
        self, node: Value, arm: Region, other: Region, condition: Names, *, holds: bool
    ) -> bool:
        """An arm that lanes do not come back from, where the others just go on."""
        code, lanes = self.code, self.code.lanes
        mask = code.mask
        inside, gone, after = self.w.label(), Escape(self.w.label()), self.w.label()
        going = lanes.narrowed(mask, condition) if holds else lanes.without(mask, condition)
        before = self.w.here
        rarely = RARELY if self._loops else ""
        self.w.branch(lanes.any(going), inside, after, rarely)
        self.w.open(inside)
        self._inside(arm, going, gone, node.args[0], holds=holds)
        self.w.open(gone.label)
        staying = lanes.without(mask, condition) if holds else lanes.narrowed(mask, condition)
        self._escape.blocks.append(gone.label)
        self.w.branch(lanes.any(staying), after, self._escape.label)
        self.w.open(after)
        edges = [Edge(before, mask, ()), Edge(gone.label, staying, ())]
        code.mask = self.flow.join_masks(edges)
        code.values.learn(node.args[0], holds=not holds)
        for result in self.flow.results(node):
            value = other.end.args[position(result)]
            code.values.hold(result, code.values.get(value))
        return True

    def _inside(
        self, arm: Region, mask: Mask, escape: Escape, condition: Value, *, holds: bool
    ) -> tuple[Held, ...] | None:
        """An arm under its mask, in a scope that the caller closes by what the arm yields."""
        outer, self._escape = self._escape, escape
        self.code.mask = mask
        self.code.values.enter()
        self.code.values.learn(condition, holds=holds)
        yielded = self.region(arm)
        if yielded is None:
            self.code.values.leave()
        self._escape = outer
        return yielded

    def _masked_if(self, node: Value, condition: Names) -> bool:
        """Both arms one after the other, each for its lanes and only if it has any."""
        lanes, mask = self.code.lanes, self.code.mask
        came: list[Arm] = []
        for holds, region in zip((True, False), node.regions, strict=True):
            active = lanes.narrowed(mask, condition) if holds else lanes.without(mask, condition)
            arm = self._masked_arm(node, region, active, holds=holds)
            if arm is not None:
                came.append(arm)
        if not came:
            self._leave()
            return False
        if len(came) == 2 and all(arm.whole for arm in came):
            self.code.mask = mask
        else:
            live: Mask = came[0].mask
            if len(came) == 2:
                live = lanes.either(live, came[1].mask)
            self.code.mask = live
            self._leave_if_none()
        if len(came) == 2:
            self._blend_results(node, condition, came[0].values, came[1].values)
        else:
            self.flow.hold_results(node, came[0].values)
        return True

    def _masked_arm(self, node: Value, arm: Region, mask: Names, *, holds: bool) -> Arm | None:
        """One arm for its lanes; None where none of them comes out of it."""
        if self._is_cheap(arm):
            self.code.values.enter()
            yielded = self.region(arm)
            assert yielded is not None, "a cheap arm yields"
            names = self.flow.yielded(node, yielded)
            self.code.values.leave()
            return Arm(mask, names, whole=True)
        inside, join = self.w.label(), Escape(self.w.label())
        some = self.code.lanes.any(mask)
        skipped = self.w.here
        self.w.branch(some, inside, join.label)
        self.w.open(inside)
        yielded = self._inside(arm, mask, join, node.args[0], holds=holds)
        if yielded is None:
            self.w.open(join.label)
            return None
        values = self.flow.yielded(node, yielded)
        self.code.values.leave()
        whole = self.code.mask is mask and not join.blocks
        edges = [Edge(self.w.here, self.code.mask, values)]
        nobody = mask if whole else ("zeroinitializer",) * self.code.lanes.parts
        edges += [
            Edge(block, nobody, self.flow.no_values(node)) for block in (skipped, *join.blocks)
        ]
        joined = self.flow.join(node, join.label, edges)
        assert self.code.mask is not None
        return Arm(self.code.mask, joined, whole=whole)

    # Loops.

    def _loop(self, node: Value) -> bool:
        """A loop; whether any lane is left after it."""
        code, body = self.code, node.regions[0]
        mask, bail = code.mask, code.bail
        loop = Loop(self.flow, node, self._escape)
        outer, self._escape = self._escape, loop.latch
        self._loops.append(loop)
        self.w.open(loop.header)
        code.values.enter()
        loop.enter()
        if code.writes(body):  # by the second iteration there is no way back
            code.wrote()
        self.region(body)
        code.values.leave()
        self._loops.pop()
        self._escape = outer
        loop.close()
        code.bail = None if code.writes(body) else bail
        return self._after(loop, mask)

    def _after(self, loop: Loop, mask: Mask) -> bool:
        code = self.code
        ends = own_ends(loop.node.regions[0])
        self.w.open(loop.exit)
        code.mask = mask
        if not any(end.op is Op.BREAK for end in ends):
            self._leave()  # those that came in have returned
            return False
        if loop.left:
            code.mask = self.flow.from_slots(loop.left, code.lanes.mask)
            self._leave_if_none()
        loop.hold_results()
        return True

    def _break(self, end: Value) -> None:
        loop = self._loops[-1]
        loop.carry_out(end)
        if self._escape is loop.latch and not loop.waiting:
            self.w.jump(loop.exit)
        else:
            self._leave()

    def _continue(self, end: Value) -> None:
        loop = self._loops[-1]
        loop.carry_on(end)
        if self._escape is loop.latch and not loop.waiting:
            loop.all_go_on()
            self.w.jump(loop.header)
        else:
            loop.wait()
            self._leave()
