"""Where paths of recorded control flow come together: which variables flow on, and as what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Value
from khaljit.tracer.proxy import Scalar, is_literal
from khaljit.tracer.recorder import Recorder, user_site
from khaljit.tracer.state import (
    UNSET,
    ChangedError,
    Shape,
    convert,
    different,
    disagreement,
    flatten,
    merge,
    same,
    unflatten,
)

__all__ = ["Merge", "State", "read"]

State = tuple[object, ...]


def read(scope: Mapping[str, object], names: Sequence[str]) -> State:
    """The values of some variables; UNSET for those that have none."""
    return tuple(scope.get(name, UNSET) for name in names)


@final
class Merge:
    """The variables of several paths that come together: which flow through results, and how."""

    def __init__(
        self,
        recorder: Recorder,
        names: tuple[str, ...],
        states: Sequence[State],
        where: str,
        always: bool = True,
    ) -> None:
        self.recorder = recorder
        self.types: list[DType] = []
        self._parts: list[tuple[Shape | None, list[tuple[int | None, object]]]] = []
        self._leaves: list[list[object]] = []  # per result, its leaf on each path
        self._tentative: list[bool] = []
        for place, name in enumerate(names):
            self._add(name, [state[place] for state in states], where, always)

    def _add(self, name: str, values: list[object], where: str, always: bool) -> None:
        if any(value is UNSET for value in values):
            if not all(value is UNSET for value in values):
                self.recorder.unset[name] = user_site()
            self._parts.append((None, []))
            return
        if all(value is values[0] for value in values[1:]) and not always:
            self._parts.append((Shape("static", count=0, make=values[0]), []))
            return
        flat = [flatten(value) for value in values]
        shape = flat[0][1]
        for other, (_, found) in zip(values[1:], flat[1:], strict=True):
            if not found.fits(shape):
                raise disagreement(name, different(values[0], other), where)
        leaves: list[tuple[int | None, object]] = []
        for k in range(shape.count):
            paths = [one[k] for one, _ in flat]
            # A literal is known on both sides, and has no type yet.
            known = not always or is_literal(paths[0])
            if known and all(same(paths[0], path) for path in paths[1:]):
                leaves.append((None, paths[0]))
                continue
            try:
                dtype, tentative = merge(paths)
            except ChangedError as error:
                raise disagreement(name, error, where) from None
            leaves.append((len(self.types), None))
            self.types.append(dtype)
            self._leaves.append(paths)
            self._tentative.append(tentative)
        self._parts.append((shape, leaves))

    def settle(self, strong: set[tuple[int, int]]) -> None:
        """Variables that have a type for good, by place and leaf, take no other's any more."""
        for place, k in strong:
            _, leaves = self._parts[place]
            result = leaves[k][0] if k < len(leaves) else None
            if result is not None:
                self._tentative[result] = False

    def values(self, path: int) -> list[Value]:
        """What one path gives to the results."""
        return [
            convert(self.recorder, leaves[path], dtype)
            for leaves, dtype in zip(self._leaves, self.types, strict=True)
        ]

    def assemble(self, results: Sequence[Value]) -> State:
        """The variables behind the paths."""
        state: list[object] = []
        for shape, leaves in self._parts:
            if shape is None:
                state.append(UNSET)
                continue
            items = [
                leaf
                if place is None
                else Scalar(self.recorder, results[place], self._tentative[place])
                for place, leaf in leaves
            ]
            state.append(unflatten(shape, items, self.recorder))
        return tuple(state)
