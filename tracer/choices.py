"""What decides while a kernel runs: ``not``, ``and``, ``or``, and ``yes if test else no``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from khaljit.tracer.arithmetic import select, truth
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.flow import If
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, Vector, is_literal, live
from khaljit.tracer.state import CHOICE

__all__ = ["and_", "choose", "not_", "or_"]


def not_(value: Any) -> Any:
    if not isinstance(value, Scalar):
        return not value
    recorder = live(value)
    recorder.mark()
    return Scalar(recorder, recorder.builder.logical_not(truth(value)))


def and_(first: Any, *rest: Callable[[], Any]) -> Any:
    return _logical(first, rest, True)


def or_(first: Any, *rest: Callable[[], Any]) -> Any:
    return _logical(first, rest, False)


def _logical(first: Any, rest: tuple[Callable[[], Any], ...], conjunction: bool) -> Any:
    """``and`` and ``or``: what stands right is evaluated only where the left does not decide."""
    if not rest:
        return first
    if not isinstance(first, Scalar):
        if bool(first) is not conjunction:
            return first
        return _logical(rest[0](), rest[1:], conjunction)
    recorder = live(first)

    def right() -> Any:
        found = _logical(rest[0](), rest[1:], conjunction)
        if isinstance(found, bool | np.bool_):
            return bool(found)
        return Scalar(recorder, truth(found))

    left = Scalar(recorder, truth(first))
    if conjunction:
        return _choose(left, right, lambda: False, logical=Op.AND)
    return _choose(left, lambda: True, right, logical=Op.OR)


def choose(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """``yes if test else no``"""
    if not isinstance(test, Scalar):
        return yes() if test else no()
    return _choose(test, yes, no)


def _choose(
    test: Scalar, yes: Callable[[], Any], no: Callable[[], Any], logical: Op | None = None
) -> Any:
    """Evaluate both sides; a branch stays recorded only where one of them has effects."""
    recorder = live(test)
    builder = recorder.builder
    start = builder.snapshot()
    construct = If(recorder, test, (CHOICE,))
    construct.start({})
    results, pure = [], True
    while construct.next():
        results.append(yes() if construct.arm else no())
        pure = pure and not builder.effects
        construct.leave({CHOICE: results[-1]})
    if not pure or not all(isinstance(one, Scalar | Vector) or is_literal(one) for one in results):
        return construct.values[0]
    builder.rollback(start)
    if logical is None:
        return select(test, *results)
    right = to_scalar(recorder, results[0] if logical is Op.AND else results[1]).value
    return Scalar(recorder, builder.pure(logical, (truth(test), right)))
