"""Loops: what one carries from iteration to iteration and out, in stack slots."""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.llvm.flow import Escape, Flow, Names, position
from khaljit.tracer.ir import Region, Value, effects
from khaljit.tracer.ops import Op
from khaljit.tracer.uniformity import Scope

__all__ = ["Loop", "own_ends"]


@final
class Loop:
    """A loop being generated.

    Attributes:
        node: the ``loop``.
        apart: lanes leave it at different iterations.
        several: it has several ``continue``, which may each bring some of the lanes.
        header: where an iteration begins.
        latch: where an iteration ends.
        exit: where the loop ends.
        outside: where control goes when no lane is left after the loop.
        params: stack slots of the carried values.
        results: stack slots of the results that somebody reads.
        active: stack slots of the mask of the lanes that run, where lanes leave apart.
        continued: stack slots of the mask of the lanes that are through with this iteration.
        left: stack slots of the mask of the lanes that broke out, where others returned.
        waiting: some lanes may be through with this iteration.
    """

    def __init__(self, flow: Flow, node: Value, outside: Escape) -> None:
        code, body = flow.code, node.regions[0]
        self._flow: Final = flow
        self._code: Final = code
        self.node: Final = node
        self.outside: Final = outside
        self.apart: Final = not code.scalar and code.whole.exits[node] > Scope.SUBGROUP
        self.several: Final = sum(end.op is Op.CONTINUE for end in own_ends(body)) > 1
        self.header: Final = flow.w.label()
        self.latch: Final = Escape(flow.w.label())
        self.exit: Final = flow.w.label()
        self.waiting = False
        self.params: Final = [
            (param, self._slots(param, flow.names(param, code.values.get(initial))))
            for param, initial in zip(body.params, node.args, strict=True)
            if param in code.used
        ]
        self.results: Final = [
            (result, self._slots(result, flow.nothing(result))) for result in flow.results(node)
        ]
        self.active: Names = ()
        self.continued: Names = ()
        self.left: Names = ()
        if self.apart:
            mask, none = code.lanes.mask, ("zeroinitializer",) * code.lanes.parts
            self.active = flow.slots(mask, self._full())
            self.continued = flow.slots(mask, none)
            if any(effect.op is Op.RETURN for effect in effects(body)):
                self.left = flow.slots(mask, none)

    def _slots(self, value: Value, names: Names) -> Names:
        return self._flow.slots(self._flow.type(value), names)

    def _full(self) -> Names:
        """The active lanes, written out."""
        mask = self._code.mask
        return self._code.lanes.full() if mask is None else mask

    # Iterations.

    def enter(self) -> None:
        """An iteration begins, with what is carried and the lanes that run."""
        code, flow = self._code, self._flow
        for param, slots in self.params:
            code.values.hold(param, flow.held(param, flow.from_slots(slots, flow.type(param))))
        if self.apart:
            code.mask = flow.from_slots(self.active, code.lanes.mask)
            none = ("zeroinitializer",) * code.lanes.parts
            flow.to_slots(self.continued, code.lanes.mask, none)

    def close(self) -> None:
        """The latch, where lanes wait that are through with an iteration, or nobody is."""
        code, flow, w = self._code, self._flow, self._flow.w
        if not self.latch.blocks:
            return
        w.open(self.latch.label)
        if not self.waiting:
            w.jump(self.exit)
        elif self.apart:
            mask = flow.from_slots(self.continued, code.lanes.mask)
            flow.to_slots(self.active, code.lanes.mask, mask)
            w.branch(code.lanes.any(mask), self.header, self.exit)
        else:
            w.jump(self.header)

    def hold_results(self) -> None:
        """Behind the loop."""
        for result, slots in self.results:
            names = self._flow.from_slots(slots, self._flow.type(result))
            self._code.values.hold(result, self._flow.held(result, names))

    # What flows with the lanes that leave an iteration.

    def carry_out(self, end: Value) -> None:
        """What a ``break`` brings."""
        for result, slots in self.results:
            held = self._code.values.get(end.args[position(result)])
            self._carry(result, slots, self._flow.names(result, held), blend=self.apart)
        if self.left:
            self._add_lanes(self.left)

    def carry_on(self, end: Value) -> None:
        """What a ``continue`` brings; all is read before any is written."""
        carried = [
            self._flow.names(param, self._code.values.get(end.args[position(param)]))
            for param, _ in self.params
        ]
        for (param, slots), names in zip(self.params, carried, strict=True):
            self._carry(param, slots, names, blend=self.several)

    def all_go_on(self) -> None:
        """The active lanes are those of the next iteration."""
        if self.apart:
            self._flow.to_slots(self.active, self._code.lanes.mask, self._full())

    def wait(self) -> None:
        """The active lanes are through with this iteration."""
        if self.apart:
            self._add_lanes(self.continued)
        self.waiting = True

    def _carry(self, target: Value, slots: Names, names: Names, *, blend: bool) -> None:
        """A value to its slots, in the active lanes only where others may be there already."""
        flow, mask = self._flow, self._code.mask
        type_ = flow.type(target)
        if blend and mask is not None and not flow.told_by_one(target):
            before = flow.from_slots(slots, type_)
            names = self._code.lanes.blend(mask, target.type, names, before)
        flow.to_slots(slots, type_, names)

    def _add_lanes(self, slots: Names) -> None:
        """The active lanes join those in a mask's slots."""
        lanes, mask = self._code.lanes, self._code.mask
        added: Names = lanes.full()
        if mask is not None:
            either = lanes.either(self._flow.from_slots(slots, lanes.mask), mask)
            assert either is not None
            added = either
        self._flow.to_slots(slots, lanes.mask, added)


def own_ends(body: Region) -> list[Value]:
    """The ``break`` and ``continue`` of a loop, not those of loops inside it."""
    found = [body.end] if body.end.op in (Op.BREAK, Op.CONTINUE) else []
    for effect in body.body:
        if effect.op is Op.IF:
            for arm in effect.regions:
                found += own_ends(arm)
    return found
