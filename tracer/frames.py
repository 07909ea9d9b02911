"""Recorded loops while they are open: what they carry, how they are left, what comes after.

A jump ends the region it stands in. A jump to a loop further out leaves the innermost recorded
loop with a code, and goes on behind that loop (`Passing`). The operands of the ends are known
when the loop closes, and filled in then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from khaljit.tracer.dtypes import DType, bool_, i32
from khaljit.tracer.ir import Value
from khaljit.tracer.merges import Merge, State
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, is_literal
from khaljit.tracer.recorder import Recorder
from khaljit.tracer.records import dataclass
from khaljit.tracer.state import (
    UNSET,
    ChangedError,
    Shape,
    convert,
    different,
    disagreement,
    flatten,
    merge,
    unflatten,
)

__all__ = ["Exit", "Frame", "closed", "leave_unless"]


@final
@dataclass(slots=True, eq=False)
class Exit:
    """An end of a region through which some variables flow out; its operands come later."""

    end: Value
    state: State


@final
@dataclass(slots=True, eq=False)
class Passing:
    """An exit that goes on to a loop further out."""

    exit: Exit
    target: Frame
    kind: Op


@final
class Frame:
    """One recorded loop while it is open: its carried variables and its exits."""

    def __init__(self, recorder: Recorder, names: tuple[str, ...], before: State) -> None:
        self.recorder = recorder
        self.names = names
        self.before = before
        self.settled: dict[tuple[int, int], DType] = {}  # types found for (name, leaf)
        self.strong: set[tuple[int, int]] = set()  # those that are given a value of their type
        self.breaks: list[Exit] = []
        self.continues: list[Exit] = []
        self.passing: list[Passing] = []
        self.snapshot = recorder.builder.snapshot()
        self.counts = dict(recorder.counts)
        self.was_unsettled = recorder.unsettled
        self.site = recorder.builder.at

    def open(self) -> State:
        """Open the region; gives the variables as they are at the start of an iteration."""
        builder = self.recorder.builder
        self.recorder.unsettled = False
        types: list[DType] = []
        loose: list[bool] = []
        shapes: list[Shape | None] = []
        for place, value in enumerate(self.before):
            if value is UNSET:
                shapes.append(None)
                continue
            leaves, shape = flatten(value)
            shapes.append(shape)
            for k, leaf in enumerate(leaves):
                dtype, tentative = merge([leaf])
                is_loose = not isinstance(leaf, Scalar) or tentative
                found = self.settled.get((place, k))
                types.append(found or dtype)
                loose.append(is_loose and found is None and dtype is not bool_)
        self.types, self.loose, self.shapes = types, loose, shapes
        self.params = builder.open(types)
        self.recorder.frames.append(self)
        scalars = [
            Scalar(self.recorder, param, tentative)
            for param, tentative in zip(self.params, loose, strict=True)
        ]
        return self._assemble(scalars)

    def _assemble(self, scalars: Sequence[object]) -> State:
        values: list[object] = []
        start = 0
        for shape in self.shapes:
            if shape is None:
                values.append(UNSET)
                continue
            values.append(unflatten(shape, scalars[start : start + shape.count], self.recorder))
            start += shape.count
        return tuple(values)

    def exit(self, kind: Op, state: State) -> None:
        """Jump to the next iteration or out of this loop, from the innermost open region."""
        inner = self.recorder.frames[-1]
        if inner is self:
            end = self.recorder.builder.end(kind)
            (self.breaks if kind is Op.BREAK else self.continues).append(Exit(end, state))
        else:
            end = self.recorder.builder.end(Op.BREAK)
            inner.passing.append(Passing(Exit(end, state), self, kind))

    def close(self) -> State | None:
        """Close the loop; gives the variables behind it, or None to record the body again."""
        recorder = self.recorder
        again = self._settle_continues()
        if again or (recorder.unsettled and any(self.loose)):
            self._fall_back()
            return None
        recorder.unsettled |= self.was_unsettled
        recorder.frames.pop()
        self._complete_continues()
        return self._finish()

    def _carried(self) -> list[tuple[int, int, int]]:
        """(name, leaf, parameter) of every carried leaf."""
        places = []
        param = 0
        for place, shape in enumerate(self.shapes):
            for k in range(shape.count if shape else 0):
                places.append((place, k, param))
                param += 1
        return places

    def _settle_continues(self) -> bool:
        """Check what flows back; True when an unsettled type turns out to be another."""
        again = False
        for exit in self.continues:
            param = 0
            for place, shape in enumerate(self.shapes):
                if shape is None:
                    continue
                leaves = self._leaves(exit.state[place], shape, place)
                for k, leaf in enumerate(leaves):
                    again |= self._settle(place, k, param, leaf)
                    param += 1
        return again

    def _leaves(self, value: object, shape: Shape, place: int) -> list[object]:
        leaves, found = flatten(value)
        if not found.fits(shape):
            before = self.before[place]
            raise disagreement(self.names[place], different(before, value), "in the loop")
        return leaves

    def _settle(self, place: int, k: int, param: int, leaf: object) -> bool:
        dtype = self.types[param]
        marker = Scalar(self.recorder, self.params[param], self.loose[param])
        try:
            agreed, _ = merge([marker, leaf])
        except ChangedError as error:
            if self.loose[param] and isinstance(leaf, Scalar) and not leaf.tentative:
                agreed = leaf.dtype
                self._check_start(place, k, agreed)
            else:
                raise disagreement(self.names[place], error, "in the loop") from None
        if agreed is dtype:
            if not is_literal(leaf) and not (isinstance(leaf, Scalar) and leaf.tentative):
                self.strong.add((place, k))
            return False
        found = self.settled.get((place, k), agreed)  # by an earlier recording or another end
        if found is not agreed:
            change = ChangedError(f"{found.name} on one path and {agreed.name} on another")
            raise disagreement(self.names[place], change, "in the loop")
        self.settled[place, k] = agreed
        return True

    def _check_start(self, place: int, k: int, dtype: DType) -> None:
        """A literal at the start must fit the type that the loop gives the variable."""
        leaf = flatten(self.before[place])[0][k]
        try:
            merge([leaf, Scalar(self.recorder, self.recorder.builder.const(dtype, 0))])
        except ChangedError as error:
            raise disagreement(self.names[place], error, "in the loop") from None

    def _fall_back(self) -> None:
        """Forget the recording of the body; unsettled types become what they are known to be."""
        for place, k, param in self._carried():
            if self.loose[param]:
                self.settled.setdefault((place, k), self.types[param])
        recorder = self.recorder
        recorder.frames.pop()
        recorder.builder.rollback(self.snapshot)
        recorder.counts = dict(self.counts)
        self.breaks, self.continues, self.passing = [], [], []
        self.strong = set()

    def _complete_continues(self) -> None:
        builder = self.recorder.builder
        for exit in self.continues:
            values = []
            for place, k, param in self._carried():
                leaf = flatten(exit.state[place])[0][k]
                values.append(convert(self.recorder, leaf, self.types[param]))
            builder.complete(exit.end, tuple(values))

    def _finish(self) -> State:
        """Build the loop with its results, and send on what only passes through."""
        recorder, builder = self.recorder, self.recorder.builder
        groups: list[tuple[Frame | None, Op, list[Exit]]] = []
        if self.breaks:
            groups.append((None, Op.BREAK, self.breaks))
        for passing in self.passing:
            for target, kind, exits in groups:
                if target is passing.target and kind is passing.kind:
                    exits.append(passing.exit)
                    break
            else:
                groups.append((passing.target, passing.kind, [passing.exit]))
        merged = [
            Merge(
                recorder, (target or self).names, [exit.state for exit in exits], "after the loop"
            )
            for target, _, exits in groups
        ]
        types: list[DType] = [i32] if len(groups) > 1 else []
        for (target, _, _), one in zip(groups, merged, strict=True):
            types += one.types
            if target is None:
                one.settle(self.strong)
        for code, (_, _, exits) in enumerate(groups):
            for nth, exit in enumerate(exits):
                values = [builder.const(i32, code)] if len(groups) > 1 else []
                for other, one in enumerate(merged):
                    if other == code:
                        values += one.values(nth)
                    else:
                        values += [builder.const(dtype, 0) for dtype in one.types]
                builder.complete(exit.end, tuple(values))
        initial = []
        for place, k, param in self._carried():
            leaf = flatten(self.before[place])[0][k]
            initial.append(convert(recorder, leaf, self.types[param]))
        self._note_unset()
        results = builder.loop(tuple(initial), builder.close(), tuple(types))
        return self._behind(groups, merged, results)

    def _note_unset(self) -> None:
        """A variable that only the loop's body sets has no value behind a loop that may not run."""
        for place, name in enumerate(self.names):
            ends = [exit.state[place] is UNSET for exit in (*self.breaks, *self.continues)]
            if any(ends) and not all(ends):
                self.recorder.unset[name] = self.site

    def _behind(
        self,
        groups: list[tuple[Frame | None, Op, list[Exit]]],
        merged: list[Merge],
        results: tuple[Value, ...],
    ) -> State:
        builder = self.recorder.builder
        if not groups:  # only `return` leaves this loop: nothing follows it
            builder.end(Op.RETURN)
            return (UNSET,) * len(self.names)
        start = 1 if len(groups) > 1 else 0
        states = []
        for one in merged:
            states.append(one.assemble(results[start : start + len(one.types)]))
            start += len(one.types)
        for code in range(len(groups) - 1, -1, -1):
            target, kind, _ = groups[code]
            if target is None:
                return states[code]
            if code == 0:
                target.exit(kind, states[code])
                break
            chosen = builder.pure(Op.EQ, (results[0], builder.const(i32, code)))
            builder.open()
            target.exit(kind, states[code])
            then = builder.close()
            builder.open()
            builder.end(Op.YIELD)
            builder.if_(chosen, then, builder.close())
        return (UNSET,) * len(self.names)


def closed(frame: Frame) -> State:
    """Close a loop that runs once; having no unsettled variables, it is never recorded again."""
    after = frame.close()
    assert after is not None
    return after


def leave_unless(frame: Frame, condition: Value, state: State) -> None:
    """``if not condition: break``"""
    builder = frame.recorder.builder
    builder.open()
    frame.exit(Op.BREAK, state)
    leave = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(builder.logical_not(condition), leave, builder.close())
