"""Regions as labels and branches; what each effect becomes.

Carried values and results have registers of their own, which the ends of regions move values to.
Conditional branches do not claim to be uniform: the assembler sees that by itself where it pays,
and does not unroll a loop whose exit says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.ptx.arithmetic import compute
from khaljit.codegen.ptx.atomics import atomic
from khaljit.codegen.ptx.code import FULL_WARP, Code
from khaljit.codegen.ptx.collectives import collective
from khaljit.codegen.ptx.forms import TYPES
from khaljit.codegen.ptx.ids import id_value
from khaljit.codegen.ptx.memory import advance, compute_pointer, load, start_carried, store
from khaljit.codegen.ptx.pointers import Carried
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import Region, Value
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewriting import Walk, drive

__all__ = ["run"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    """A loop that is being written.

    Attributes:
        node: the loop.
        head: label of its beginning.
        exit: label behind it.
        carried: the pointers that it advances, by ``steps``.
    """

    node: Value
    head: str
    exit: str
    carried: list[Carried]
    steps: list[str]


def run(code: Code) -> None:
    """Write the whole kernel."""
    drive(_Writer(code).region(code.trace.body))
    code.w.do(code.leave)


@final
class _Writer:
    def __init__(self, code: Code) -> None:
        self.code: Final = code
        self._loops: Final[list[_Loop]] = []
        self._line: tuple[str, int] | None = None

    def region(self, region: Region) -> Walk[bool]:
        """What a region computes and how it ends; gives whether what follows it is reached."""
        code = self.code
        before, debug = code.plan.before, code.trace.options.debug
        for item in code.items[region]:
            if item in before:
                for pointer in before[item]:
                    compute_pointer(code, pointer)
            if debug:
                self._locate(item)
            op = item.op
            if op is Op.IF:
                if not (yield self._if(item)):
                    return False
            elif op is Op.LOOP:
                if not (yield self._loop(item)):
                    return False
            elif op in _EFFECTS:
                _EFFECTS[op](code, item)
            elif op in _LEAVES:
                code.operands[item] = _LEAVES[op](code, item)
            else:
                code.operands[item] = compute(code, item)
        return self._end(region.end)

    def _locate(self, item: Value) -> None:
        """Line information, where it changes."""
        code, site = self.code, item.at
        if site is None:
            return
        here = site.file, site.line
        if here != self._line:
            self._line = here
            number = code.files.setdefault(site.file, len(code.files) + 1)
            code.w.do(f".loc {number} {site.line} {(site.start or 0) + 1}")

    # Ends.

    def _end(self, end: Value) -> bool:
        """The end of an arm or body; the values that an arm yields are moved by `_if`."""
        code = self.code
        if end.op is Op.YIELD:
            return True
        if end.op is Op.RETURN:
            code.w.do(code.leave)
            return False
        loop = self._loops[-1]
        code.w.moves(self._moves(end))
        if end.op is Op.CONTINUE:
            advance(code, loop.carried, loop.steps)
        code.w.jump(loop.exit if end.op is Op.BREAK else loop.head)
        return False

    def _moves(self, end: Value) -> list[tuple[str, str, str]]:
        """What a ``break`` or ``continue`` moves where."""
        loop = self._loops[-1]
        if end.op is Op.CONTINUE:
            return self._into(loop.node.regions[0].params, end.args)
        return self._into(
            self._read(loop.node), [end.args[_number(r)] for r in self._read(loop.node)]
        )

    def _into(
        self, targets: tuple[Value, ...] | list[Value], sources: tuple[Value, ...] | list[Value]
    ) -> list[tuple[str, str, str]]:
        code = self.code
        moves = []
        for target, source in zip(targets, sources, strict=True):
            to, operand = code.operands[target], code.operand(source)
            if to != operand:
                moves.append((TYPES[target.type].register, to, operand))
        return moves

    def _read(self, node: Value) -> list[Value]:
        """The results of an ``if`` or ``loop`` that something reads."""
        return self.code.results.get(node, [])

    def _allot(self, values: tuple[Value, ...] | list[Value]) -> None:
        for value in values:
            if value not in self.code.operands:
                kind = TYPES[value.type].register
                self.code.operands[value] = self.code.w.register(kind)

    # Branches.

    def _if(self, node: Value) -> Walk[bool]:
        self._allot(self._read(node))
        condition, then, orelse = node.args[0], *node.regions
        holds = True
        while condition.op is Op.NOT:
            condition, holds = condition.args[0], not holds
        test = self.code.operand(condition)
        sides = ((then, orelse, holds), (orelse, then, not holds))
        for arm, other, yes in sides:
            if self._leaves_at_once(arm):
                self._leave(arm.end, test, yes)
                return self._arm(node, other)
        for arm, other, yes in reversed(sides):
            if self._is_bare(arm):
                return self._one_arm(node, arm, other, test, yes)
        return self._both_arms(node, test, holds)

    def _one_arm(
        self, node: Value, bare: Region, full: Region, test: str, skips: bool
    ) -> Walk[bool]:
        """A branch around one arm, where all that the other does is to yield."""
        w = self.code.w
        w.moves(self._yielded(node, bare))
        after = w.label()
        w.branch(test, after, yes=skips)
        yield from self._arm(node, full)
        w.open(after)
        return True

    def _both_arms(self, node: Value, test: str, holds: bool) -> Walk[bool]:
        w, (then, orelse) = self.code.w, node.regions
        other, after = w.label(), w.label()
        w.branch(test, other, yes=not holds)
        first = yield from self._arm(node, then)
        if first:
            w.jump(after)
        w.open(other)
        second = yield from self._arm(node, orelse)
        w.open(after)
        return first or second

    def _arm(self, node: Value, arm: Region) -> Walk[bool]:
        reached = yield from self.region(arm)
        if reached:
            self.code.w.moves(self._yielded(node, arm))
        return reached

    def _yielded(self, node: Value, arm: Region) -> list[tuple[str, str, str]]:
        results = self._read(node)
        return self._into(results, [arm.end.args[_number(result)] for result in results])

    def _is_bare(self, arm: Region) -> bool:
        """Whether an arm only yields values that exist."""
        return arm.end.op is Op.YIELD and not self.code.items[arm]

    def _leaves_at_once(self, arm: Region) -> bool:
        """Whether an arm is no more than a jump."""
        if self.code.items[arm] or arm.end.op is Op.YIELD:
            return False
        return arm.end.op is Op.RETURN or (
            not (arm.end.op is Op.CONTINUE and self._loops[-1].carried) and not self._moves(arm.end)
        )

    def _leave(self, end: Value, test: str, yes: bool) -> None:
        if end.op is Op.RETURN:
            self.code.w.do(f"@{'' if yes else '!'}{test} {self.code.leave}")
        else:
            loop = self._loops[-1]
            self.code.w.branch(test, loop.exit if end.op is Op.BREAK else loop.head, yes=yes)

    # Loops.

    def _loop(self, node: Value) -> Walk[bool]:
        code, w, body = self.code, self.code.w, node.regions[0]
        self._allot(body.params)
        w.moves(self._into(body.params, node.args))
        carried = code.plan.carried.get(node, [])
        steps = start_carried(code, node, carried)
        ends = _breaks(body)
        self._share_results(node, ends)
        self._allot(self._read(node))
        loop = _Loop(node, w.label(), w.label(), carried, steps)
        self._loops.append(loop)
        w.open(loop.head)
        yield from self.region(body)
        self._loops.pop()
        if ends:
            w.open(loop.exit)
        return bool(ends)

    def _share_results(self, node: Value, ends: list[Value]) -> None:
        """A result that is some carried value wherever the loop is left stays in its register."""
        params = set(node.regions[0].params)
        for result in self._read(node):
            given = {end.args[_number(result)] for end in ends}
            if len(given) == 1 and given <= params:
                self.code.operands[result] = self.code.operands[given.pop()]


def _number(result: Value) -> int:
    assert isinstance(result.attr, int)
    return result.attr


def _breaks(body: Region) -> list[Value]:
    """The ends that leave a loop, given its body."""
    found, stack = [], [body]
    while stack:
        region = stack.pop()
        if region.end.op is Op.BREAK:
            found.append(region.end)
        stack.extend(inner for one in region.body if one.op is Op.IF for inner in one.regions)
    return found


def _parameter(code: Code, value: Value) -> str:
    """A parameter from its slot."""
    dtype = value.type
    assert isinstance(value.attr, int)
    if value.op is Op.SCALAR:
        offset = code.block.scalars[value.attr]
    else:
        table = code.block.shapes if value.op is Op.SHAPE else code.block.strides
        offset = table[value.memory.number][value.attr]
    return _scalar_at(code, offset, dtype)


def _scalar_at(code: Code, offset: int, dtype: DType) -> str:
    spelling = TYPES[dtype]
    if dtype is bool_:
        byte = code.parameter(offset, "b32", "u8")
        return code.w.let("pred", f"setp.ne.u32 {{d}}, {byte}, 0;")
    return code.parameter(offset, spelling.register, spelling.memory)


def _barrier(code: Code, value: Value) -> None:
    """A warp waits for those of its lanes that are there, whatever the mask names besides."""
    code.w.do(f"bar.warp.sync {FULL_WARP};" if value.attr == "subgroup" else "bar.sync 0;")


_EFFECTS: Final[dict[Op, Callable[[Code, Value], None]]] = {
    Op.LOAD: load,
    Op.STORE: store,
    Op.ATOMIC: atomic,
    Op.BARRIER: _barrier,
    Op.SUBGROUP: collective,
}
_LEAVES: Final[dict[Op, Callable[[Code, Value], str]]] = {
    Op.ID: id_value,
    **dict.fromkeys((Op.SCALAR, Op.SHAPE, Op.STRIDE), _parameter),
}
