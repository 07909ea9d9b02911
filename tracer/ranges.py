"""``range`` inside a kernel, and how a recorded loop counts over it."""

from __future__ import annotations

import operator
from typing import Any, final

from khaljit.tracer.arithmetic import binary, compare, truth
from khaljit.tracer.coerce import to_scalar
from khaljit.tracer.dtypes import DType, MixError, index, promote
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, fail
from khaljit.tracer.recorder import Recorder, recording, user_frame

__all__ = ["Counting", "Range"]


@final
class Range:
    """``range`` inside a kernel; iterated on the host when its ends are Python numbers, and where
    kernels run as they are.

    ``forward`` says that a run-time step is known to be positive.
    """

    def __init__(self, start: Any, stop: Any, step: Any, forward: bool = False) -> None:
        self.start, self.stop, self.step, self.forward = start, stop, step, forward

    @property
    def on_host(self) -> bool:
        return all(type(end) is int for end in (self.start, self.stop, self.step))

    def host(self) -> range:
        if not self.on_host:
            fail(
                "a range over run-time values is used as a list of numbers",
                "loop over it alone, as `for i in range(n)`, and compute other counters from i",
            )
        return range(self.start, self.stop, self.step)

    def __iter__(self) -> Any:
        recorder = recording()
        if recorder is None or not recorder.steps or (self.on_host and _in_comprehension()):
            return iter(self.host())
        dtype = _range_type(self)
        start, stop, step = map(operator.index, (self.start, self.stop, self.step))
        numbers = range(start, stop, step) if step else ()  # as recorded loops have it
        return (Scalar(recorder, recorder.builder.const(dtype, number)) for number in numbers)

    def __len__(self) -> int:
        return len(self.host())

    def __getitem__(self, key: int) -> int:
        return self.host()[key]


@final
class Counting:
    """How a recorded loop counts: the ends of a `Range` in one type."""

    def __init__(self, recorder: Recorder, bounds: Range) -> None:
        dtype = _range_type(bounds)
        self._forward = bounds.forward
        self.start = _as_type(recorder, bounds.start, dtype)
        self.stop = _as_type(recorder, bounds.stop, dtype)
        self.step = (
            bounds.step if type(bounds.step) is int else _as_type(recorder, bounds.step, dtype)
        )

    def before_end(self, counter: Scalar) -> Value:
        """Whether the counter is still before the end."""
        upward = compare(Op.LT, counter, self.stop)
        if type(self.step) is int:
            return truth(upward if self.step > 0 else compare(Op.GT, counter, self.stop))
        if self._forward:
            return truth(upward)
        downward = compare(Op.GT, counter, self.stop)
        up, down = compare(Op.GT, self.step, 0), compare(Op.LT, self.step, 0)
        return truth((upward & up) | (downward & down))

    def after(self, counter: Scalar) -> Any:
        return binary(Op.ADD, counter, self.step)

    def before(self, counter: Scalar) -> Any:
        return binary(Op.SUB, counter, self.step)

    @property
    def may_wrap(self) -> bool:
        """Whether a step may lead past the largest number of the type: a loop that never ends."""
        return type(self.step) is not int or self.step not in (1, -1)

    def advanced(self, counter: Scalar, after: Scalar) -> Value:
        """Whether the counter moved in the direction of the step."""
        upward = compare(Op.GT, after, counter)
        downward = compare(Op.LT, after, counter)
        if type(self.step) is int:
            return truth(upward if self.step > 0 else downward)
        if self._forward:
            return truth(upward)
        up = compare(Op.GT, self.step, 0)
        return truth((upward & up) | (downward & ~up))


def _in_comprehension() -> bool:
    """Whether a comprehension iterates, which is repeated on the host."""
    frame = user_frame()
    return frame is not None and frame.f_code.co_name.startswith("<")


def _range_type(bounds: Range) -> DType:
    """The type of the counter: that of the ends that have one, else ``index``."""
    dtype: DType | None = None
    for end in (bounds.start, bounds.stop, bounds.step):
        if not isinstance(end, Scalar):
            continue
        if not end.dtype.is_integer:
            fail(f"range of {end.dtype.name}", "its ends are integers: cast with kj.i32(...)")
        try:
            dtype = end.dtype if dtype is None else promote(dtype, end.dtype)
        except MixError as error:
            fail(f"range over mixed types: {error}", f"cast an end: {' or '.join(error.mends)}")
    return dtype or index


def _as_type(recorder: Recorder, value: object, dtype: DType) -> Scalar:
    scalar = to_scalar(recorder, value, dtype)
    return Scalar(recorder, recorder.builder.cast(scalar.value, dtype))
