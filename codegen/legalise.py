"""Turns a lowered trace into a legal one: nothing but what the target's row lists.

In order: the 16-bit floats that the target does not compute with become integers and f32
(``narrow.py``); atomics that it lacks go through their bits (``atomics.py``); the elementary
functions become arithmetic (``math``); each operation that is left and that the row lacks is
expanded into others, which are legalised in turn. What cannot be done is refused with a
CapabilityError that names the line, the target and the mend.

An expansion may need a loop, which is an effect and stands in a region. It is built where its
value is first needed. When that region closes, what was built in it is forgotten, so that a use
elsewhere builds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from khaljit.codegen import fused, integers, remainder, rounding, widen
from khaljit.codegen.atomics import atomics_on_bits
from khaljit.codegen.caps import ROWS, Caps
from khaljit.codegen.expanding import Expanding
from khaljit.codegen.narrow import carry_narrow
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, f64
from khaljit.tracer.errors import CapabilityError
from khaljit.tracer.ir import AtomicAccess, Memory, Space, Trace, Value, values
from khaljit.tracer.ops import MATH, OPS, Op

__all__ = ["legalise"]

_Expansion = Callable[..., Value]

_INTEGER: Final[dict[Op, _Expansion]] = {
    Op.FLOORDIV: integers.floordiv,
    Op.MOD: integers.mod,
}
_FLOAT: Final[dict[Op, _Expansion]] = {
    Op.FLOORDIV: remainder.floordiv,
    Op.MOD: remainder.mod,
    Op.FMA: fused.fma,
    Op.FLOOR: rounding.floor,
    Op.CEIL: rounding.ceil,
    Op.TRUNC: rounding.trunc,
    Op.ROUND: rounding.round_to_even,
}
_SHIFTS: Final[dict[Op, _Expansion]] = {Op.SHL: integers.shl, Op.SHR: integers.shr}
# Expansions with loops in them.
_LOOPS: Final = frozenset({remainder.floordiv, remainder.mod})


def legalise(trace: Trace, caps: Caps) -> Trace:
    """Rewrite a lowered trace into what a target takes; CapabilityError where that is impossible.

    >>> from khaljit.codegen.caps import row
    >>> from khaljit.tracer.build import Builder
    >>> from khaljit.tracer.ir import Options
    >>> builder = Builder()
    >>> _ = builder.open(), builder.end(Op.RETURN)
    >>> nothing = Trace("nothing", (), (), None, 32, Options(), builder.close())
    >>> legalise(nothing, row("llvm:x86-64-v3")).body.end
    <return>
    """
    _check_workgroup(trace, caps)
    _check_shared(trace, caps)
    trace = carry_narrow(trace, caps)
    trace = atomics_on_bits(trace, caps)
    fastmath = trace.options.fastmath
    order = values(trace.body)
    if any(one.op in MATH and not caps.takes(one.op, one.type, fastmath) for one in order):
        from khaljit.codegen.functions import expand_functions  # a library, for who needs it

        trace = expand_functions(trace, caps)
        order = values(trace.body)
    if _are_legal(order, caps, fastmath):
        return trace
    return _Operations(trace, caps).run()


def _are_legal(order: Sequence[Value], caps: Caps, fastmath: bool) -> bool:
    """Whether all values may stay as they are."""
    found: set[tuple[Op, DType | None, DType | None]] = set()  # what is legal whatever else it is
    for value in order:
        op, args = value.op, value.args
        kind = (op, value.dtype, args[-1].dtype if args else None)
        if kind not in found:
            if not _is_legal(value, caps, fastmath):
                return False
            if op not in _SHIFTS and op is not Op.ATOMIC:
                found.add(kind)
    return True


def _is_legal(value: Value, caps: Caps, fastmath: bool) -> bool:
    """Whether a value may stay as it is."""
    op, dtype, args = value.op, value.dtype, value.args
    if dtype is not None and dtype not in caps.dtypes:
        return False
    if op is Op.CAST:
        return args[0].dtype is dtype or (args[0].dtype, dtype) in caps.casts
    if isinstance(value.attr, AtomicAccess):
        return (value.attr.kind, dtype) in caps.atomics
    return OPS[op].result is None or _is_taken(op, args, caps, fastmath)


def _is_taken(op: Op, args: tuple[Value, ...], caps: Caps, fastmath: bool) -> bool:
    """Whether a target takes an operation that has a typing rule."""
    if op in _SHIFTS and not caps.total_shifts and not integers.in_width(args[1]):
        return False
    return caps.takes(op, args[1 if op is Op.SELECT else 0].type, fastmath)


def _check_workgroup(trace: Trace, caps: Caps) -> None:
    size = trace.workgroup or (1, 1, 1)
    count = size[0] * size[1] * size[2]
    if count > caps.max_workgroup or any(
        own > most for own, most in zip(size, caps.max_workgroup_size, strict=True)
    ):
        most = " x ".join(str(extent) for extent in caps.max_workgroup_size)
        raise CapabilityError(
            f"a workgroup of {' x '.join(map(str, size))} invocations is too large for {caps.name}",
            mend=f"at most {caps.max_workgroup} invocations, {most} by axis",
        )


def _check_shared(trace: Trace, caps: Caps) -> None:
    """Shared memory must fit; the message lists what takes how much."""
    found: dict[Memory, Value] = {}
    for value in values(trace.body):
        if value.op is Op.MEMORY:
            memory = value.attr
            assert isinstance(memory, Memory)
            if memory.space is Space.SHARED:
                found[memory] = value
    total = sum(memory.element.size * memory.count for memory in found)
    if total > caps.shared_bytes:
        parts = ", ".join(
            f"{' x '.join(map(str, memory.shape))} elements of {memory.element.size} bytes"
            for memory in found
        )
        raise CapabilityError(
            f"{total} bytes of shared memory are too many for {caps.name}: {parts}",
            at=next(iter(found.values())).at,
            mend=f"at most {caps.shared_bytes} bytes a workgroup",
        )


class _Operations(Expanding):
    """Expands what else the row lacks, and refuses what has no expansion."""

    def __init__(self, trace: Trace, caps: Caps) -> None:
        super().__init__(trace, caps)
        self.write: Final = Writer(self.builder, self.built)

    def dtype(self, dtype: DType) -> DType:
        self._check(dtype)
        return dtype

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.dtype is not None:
            self._check(value.dtype)
        if value.op is Op.CAST:
            return self.built(Op.CAST, args, value.dtype)
        if OPS[value.op].result is None:
            return self.copy(value, args)
        return self.built(value.op, args, None)

    def built(self, op: Op, args: tuple[Value, ...], dtype: DType | None) -> Value:
        """An operation on new values, expanded if the row lacks it."""
        if op is Op.CAST:
            assert dtype is not None
            if args[0].dtype is not dtype and (args[0].type, dtype) not in self.caps.casts:
                if not {args[0].dtype, dtype} & widen.NARROW:
                    self._refuse(f"cast from {args[0].type.name}", dtype)
                return widen.cast(self.write, args[0], dtype)
            return self.builder.cast(args[0], dtype)
        if _is_taken(op, args, self.caps, self.trace.options.fastmath):
            return self.builder.pure(op, args)
        works_in = args[1 if op is Op.SELECT else 0].type
        expansion: _Expansion | None
        if op in _SHIFTS and not self.caps.total_shifts and not integers.in_width(args[1]):
            expansion = _SHIFTS[op]
        elif works_in in widen.NARROW:
            return widen.computed(self.write, op, args)
        else:
            expansion = (_FLOAT if works_in.is_float else _INTEGER).get(op)
        if expansion is None:
            self._refuse(op.value, works_in)
        if expansion is fused.fma and f64 not in self.caps.dtypes:
            expansion = fused.fma_in_integers
        self.branches += expansion in _LOOPS
        return expansion(self.write, *args)

    # Effects.

    def effect(self, value: Value, args: tuple[Value, ...]) -> Value | None:
        if isinstance(value.attr, AtomicAccess):
            kind, dtype = value.attr.kind, value.type
            if (kind, dtype) not in self.caps.atomics:
                self.builder.at = value.at
                self._refuse(f"atomic {kind}", dtype)
        return super().effect(value, args)

    # Refusals.

    def _check(self, dtype: DType) -> None:
        if dtype not in self.caps.dtypes:
            self._refuse("", dtype)

    def _refuse(self, what: str, dtype: DType) -> NoReturn:
        able = [name for name, caps in ROWS.items() if dtype in caps.dtypes]
        mend = f"run on one of: {', '.join(able)}" if able else "use another type"
        raise CapabilityError(
            f"{self.caps.name} has no {f'{what} in ' if what else ''}{dtype.name}",
            at=self.builder.at,
            mend=f"cast to f32, or {mend}" if dtype.is_float else mend,
        )
