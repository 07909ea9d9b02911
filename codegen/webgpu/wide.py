"""64-bit integers as pairs of words, for machines without them.

Before::

    %s = add i64 %x %y

After::

    %low = add %x.low %y.low
    %high = add (add %x.high %y.high) (select (lt %low %x.low) 1 0)

Both words are ``u32``. Loops carry two values for one, an ``if`` yields two, a parameter of the
kernel takes two slots. Division is a loop that finds a bit of the quotient at a time, unless both
numbers fit a word; it is built where it is first needed, and again where that is out of reach.

In memory a 64-bit integer is two words already (``words.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from khaljit.codegen.webgpu import pairs
from khaljit.codegen.webgpu.folding import folding
from khaljit.codegen.webgpu.pairs import Pair
from khaljit.codegen.webgpu.parameters import Parameters
from khaljit.codegen.writing import Writer
from khaljit.tracer.dtypes import DType, i32, i64, u32, u64
from khaljit.tracer.ir import Region, Trace, Value, values
from khaljit.tracer.ops import Op
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["in_pairs"]

_WIDE: Final = frozenset({i64, u64})
_Binary: TypeAlias = Callable[[Writer, Pair, Pair, bool], Pair]

_BINARY: Final[dict[Op, _Binary]] = {
    Op.ADD: lambda w, x, y, signed: pairs.add(w, x, y),
    Op.SUB: lambda w, x, y, signed: pairs.subtract(w, x, y),
    Op.MUL: lambda w, x, y, signed: pairs.multiply(w, x, y),
    Op.AND: lambda w, x, y, signed: (w.and_(x[0], y[0]), w.and_(x[1], y[1])),
    Op.OR: lambda w, x, y, signed: (w.or_(x[0], y[0]), w.or_(x[1], y[1])),
    Op.XOR: lambda w, x, y, signed: (w.xor(x[0], y[0]), w.xor(x[1], y[1])),
    Op.SHL: lambda w, x, y, signed: pairs.shift_left(w, x, y[0]),
    Op.SHR: lambda w, x, y, signed: pairs.shift_right(w, x, y[0], signed),
    **dict.fromkeys(
        (Op.MIN, Op.MINIMUM),
        lambda w, x, y, signed: pairs.select(w, pairs.less(w, x, y, signed), x, y),
    ),
    **dict.fromkeys(
        (Op.MAX, Op.MAXIMUM),
        lambda w, x, y, signed: pairs.select(w, pairs.less(w, x, y, signed), y, x),
    ),
    Op.TRUNCDIV: lambda w, x, y, signed: pairs.divide(w, x, y, signed)[0],
    Op.TRUNCMOD: lambda w, x, y, signed: pairs.divide(w, x, y, signed)[1],
}
_LOOPS: Final = frozenset({Op.TRUNCDIV, Op.TRUNCMOD})
_UNARY: Final[dict[Op, Callable[[Writer, Pair], Pair]]] = {
    Op.NEG: pairs.negate,
    Op.NOT: lambda w, x: (w.not_(x[0]), w.not_(x[1])),
    Op.ABS: lambda w, x: pairs.select(w, pairs.is_negative(w, x), pairs.negate(w, x), x),
}
_COMPARISONS: Final[dict[Op, Callable[[Writer, Pair, Pair, bool], Value]]] = {
    Op.EQ: lambda w, x, y, signed: w.and_(w.eq(x[0], y[0]), w.eq(x[1], y[1])),
    Op.NE: lambda w, x, y, signed: w.or_(w.ne(x[0], y[0]), w.ne(x[1], y[1])),
    Op.LT: pairs.less,
    Op.GT: lambda w, x, y, signed: pairs.less(w, y, x, signed),
    Op.LE: lambda w, x, y, signed: w.not_(pairs.less(w, y, x, signed)),
    Op.GE: lambda w, x, y, signed: w.not_(pairs.less(w, x, y, signed)),
}


def in_pairs(trace: Trace, parameters: Parameters) -> Trace:
    """Rewrite a trace whose memory is in cells."""
    if not any(value.dtype in _WIDE for value in values(trace.body)):
        return trace
    return _Pairs(trace, parameters).run()


class _Pairs(Rewriter):
    """The new value of a 64-bit one is its lower word; the upper ones stand in ``_high``."""

    def __init__(self, trace: Trace, parameters: Parameters) -> None:
        super().__init__(trace)
        self._parameters: Final = parameters
        self._high: Final[dict[Value, Value]] = {}
        self._high_results: Final[dict[Value, dict[int, Value]]] = {}
        self._write: Final = Writer(self.builder, folding(self.builder))
        self._loops = 0

    # Pairs.

    def _pair(self, value: Value) -> Pair:
        low = self.value(value)
        if value.op is Op.RESULT:
            assert isinstance(value.attr, int)
            return low, self._high_results[value.args[0]][value.attr]
        return low, self._high[value]

    def _both(self, old: tuple[Value, ...]) -> tuple[Value, ...]:
        """The new values for some old ones, two for a wide one."""
        new: list[Value] = []
        for value in old:
            new += self._pair(value) if value.dtype in _WIDE else (self.value(value),)
        return tuple(new)

    def _types(self, old: tuple[DType, ...]) -> tuple[DType, ...]:
        new: list[DType] = []
        for dtype in old:
            new += (u32, u32) if dtype in _WIDE else (dtype,)
        return tuple(new)

    # Regions.

    def region(self, region: Region) -> Walk[Region]:
        loops, known = self._loops, len(self.values)
        types = self._types(tuple(param.type for param in region.params))
        params = list(self.builder.open(types))
        for param in region.params:
            self.values[param] = params.pop(0)
            if param.dtype in _WIDE:
                self._high[param] = params.pop(0)
        yield self.contents(region)
        if self._loops > loops:  # what such a loop gives is not seen outside
            while len(self.values) > known:
                gone, _ = self.values.popitem()
                self._high.pop(gone, None)
        return self.builder.close()

    def if_(self, value: Value) -> Walk[tuple[Value, ...]]:
        condition = self.value(value.args[0])
        then = yield self.region(value.regions[0])
        orelse = yield self.region(value.regions[1])
        self.builder.at = value.at
        return self._taken(value, self.builder.if_(condition, then, orelse))

    def loop(self, value: Value) -> Walk[tuple[Value, ...]]:
        initial = self._both(value.args)
        body = yield self.region(value.regions[0])
        self.builder.at = value.at
        assert isinstance(value.attr, tuple)
        return self._taken(value, self.builder.loop(initial, body, self._types(value.attr)))

    def _taken(self, node: Value, results: tuple[Value, ...]) -> tuple[Value, ...]:
        """The results by their old positions; upper words are put aside."""
        assert isinstance(node.attr, tuple)
        if not results:  # no arm yields, so that nothing reads them
            return ()
        left, low, high = list(results), [], {}
        for k, dtype in enumerate(node.attr):
            low.append(left.pop(0))
            if dtype in _WIDE:
                high[k] = left.pop(0)
        self._high_results[node] = high
        return tuple(low)

    def end(self, value: Value) -> None:
        args = self._both(value.args)
        self.builder.at = value.at
        self.builder.end(value.op, args)

    # Values.

    def pure(self, value: Value, args: tuple[Value, ...]) -> Value:
        wide = value.dtype in _WIDE
        if not wide and not any(arg.dtype in _WIDE for arg in value.args):
            return self.copy(value, args)
        if not wide:
            return self._narrow(value)
        low, high = self._wide(value, args)
        self._high[value] = high
        return low

    def _narrow(self, value: Value) -> Value:
        """A value of another type with wide operands."""
        x, w = value.args[0], self._write
        signed = x.type.is_signed
        if value.op is Op.CAST:
            if value.type.is_float:
                return pairs.to_float(w, self._pair(x), signed)
            return w.bitcast(self._pair(x)[0], value.type)
        return _COMPARISONS[value.op](w, self._pair(x), self._pair(value.args[1]), signed)

    def _wide(self, value: Value, args: tuple[Value, ...]) -> Pair:
        w, op = self._write, value.op
        if op is Op.CONST:
            assert isinstance(value.attr, int)
            return w.const(u32, value.attr), w.const(u32, value.attr >> 32)
        if op is Op.SCALAR:
            return self._parameter(value, 0), self._parameter(value, 1)
        if op is Op.CAST:
            return self._cast(value, args[0])
        if op is Op.BITCAST:
            return self._pair(value.args[0])
        if op is Op.SELECT:
            yes, no = (self._pair(arg) for arg in value.args[1:])
            return pairs.select(w, args[0], yes, no)
        if op in _UNARY:
            x = self._pair(value.args[0])
            plain = op is Op.ABS and not value.type.is_signed
            return x if plain else _UNARY[op](w, x)
        self._loops += op in _LOOPS
        x, y = (self._pair(arg) for arg in value.args)
        return _BINARY[op](w, x, y, value.type.is_signed)

    def _parameter(self, value: Value, half: int) -> Value:
        source, whole = self._parameters.source(value)
        part = replace(source, half=half)
        return self._parameters.value(self.builder, part, whole, u32)

    def _cast(self, value: Value, x: Value) -> Pair:
        w, source = self._write, value.args[0].type
        if source in _WIDE:
            return self._pair(value.args[0])
        if source.is_float:
            return pairs.from_float(w, x, value.type.is_signed)
        sign = w.bits(w.shr(x, 31)) if source is i32 else w.const(u32, 0)
        return w.bits(x), sign
