"""Programs that stay: blocks that take one workgroup after the other, as many as the GPU reads.

A resident program runs with any number of blocks along x. The slot of the first count of
workgroups holds a pointer to all three, u32 each, so a grid that another kernel computes costs
the host nothing. Every thread of a block makes the same number of turns, so barriers stay legal;
where shared memory or a barrier is used the block waits for all of itself between turns, and
where subgroups work together each warp does.

Block ``b`` of ``n`` runs the workgroups ``b``, ``b + n`` and so on, x fastest. The place of a
workgroup is kept per axis and moved on by ``n`` taken apart per axis, so that no turn divides.

Counts are held to what ids may be (`index_reach`), as those of a direct launch are.
"""

from __future__ import annotations

from typing import Final, final

from khaljit.codegen.ptx.code import FULL_WARP, Code, Turns
from khaljit.codegen.ptx.writer import Writer
from khaljit.tracer.dtypes import index_reach
from khaljit.tracer.ir import Space
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["start_turns", "stop_turns"]

_AXES: Final = range(3)
_COUNT_BYTES: Final = 4


@final
@dataclass(frozen=True, slots=True)
class _Steps:
    """How far the next turn is, per axis, in blocks; and how many blocks there are."""

    far: tuple[str, str, str]
    blocks: tuple[str, str, str]


def start_turns(code: Code) -> _Steps:
    """Where the first workgroup is; then the top of the loop."""
    w = code.w
    pointer = code.parameter(code.block.groups[0], "b64")
    counts = [_count(code, pointer, axis) for axis in _AXES]
    empty = w.let("b32", f"min.u32 {{d}}, {counts[0]}, {counts[1]};")
    empty = w.let("b32", f"min.u32 {{d}}, {empty}, {counts[2]};")
    none = w.let("pred", f"setp.eq.u32 {{d}}, {empty}, 0;")
    w.do(f"@{none} ret;")
    x, y, z = (_blocks(code, counts[axis], axis) for axis in _AXES)
    first, step = (w.let("b32", f"mov.u32 {{d}}, %{name};") for name in ("ctaid.x", "nctaid.x"))
    places = _apart(w, first, x, y)
    past = w.let("pred", f"setp.ge.u32 {{d}}, {places[2]}, {z};")
    w.do(f"@{past} ret;")
    code.turns = Turns(places, (counts[0], counts[1], counts[2]), w.label(), w.label())
    w.open(code.turns.top)
    return _Steps(_apart(w, step, x, y), (x, y, z))


def stop_turns(code: Code, steps: _Steps) -> None:
    """Where a thread arrives that is done with a workgroup: on to the next one, if there is."""
    w, turns = code.w, code.turns
    assert turns is not None
    w.open(turns.following)
    _meet(code)
    carry = "0"
    for axis in _AXES:
        place, far, blocks = turns.places[axis], steps.far[axis], steps.blocks[axis]
        if carry != "0":
            far = w.let("b32", f"add.u32 {{d}}, {far}, {carry};")
        room = w.let("b32", f"sub.u32 {{d}}, {blocks}, {place};")
        over = w.let("pred", f"setp.ge.u32 {{d}}, {far}, {room};")
        if axis == _AXES[-1]:
            w.do(f"@{over} ret;")
            w.do(f"add.u32 {place}, {place}, {far};")
            break
        moved = w.let("b32", f"add.u32 {{d}}, {place}, {far};")
        around = w.let("b32", f"sub.u32 {{d}}, {far}, {room};")
        w.do(f"selp.b32 {place}, {around}, {moved}, {over};")
        carry = w.let("b32", f"selp.b32 {{d}}, 1, 0, {over};")
    w.jump(turns.top)


def _count(code: Code, pointer: str, axis: int) -> str:
    """Workgroups along an axis; 32 bits."""
    extent = 1 if code.trace.workgroup is None else code.shape[axis]
    found = code.w.let("b32", f"ld.global.b32 {{d}}, [{pointer}+{axis * _COUNT_BYTES}];")
    most = index_reach(code.trace.index_bits) // extent
    if most >> 32:
        return found
    return code.w.let("b32", f"min.u32 {{d}}, {found}, {most};")


def _blocks(code: Code, count: str, axis: int) -> str:
    """Blocks along an axis, of which a workgroup that the kernel cannot see is a part."""
    extent = code.shape[axis] * (code.elements if axis == 0 else 1)
    if code.trace.workgroup is not None or extent == 1:
        return count
    less = code.w.let("b32", f"sub.u32 {{d}}, {count}, 1;")
    less = code.w.let("b32", f"shr.u32 {{d}}, {less}, {extent.bit_length() - 1};")
    return code.w.let("b32", f"add.u32 {{d}}, {less}, 1;")


def _apart(w: Writer, number: str, x: str, y: str) -> tuple[str, str, str]:
    """A number of blocks as so many along x, y and z."""
    rows = w.let("b32", f"div.u32 {{d}}, {number}, {x};")
    first = w.let("b32", f"rem.u32 {{d}}, {number}, {x};")
    third = w.let("b32", f"div.u32 {{d}}, {rows}, {y};")
    second = w.let("b32", f"rem.u32 {{d}}, {rows}, {y};")
    return first, second, third


def _meet(code: Code) -> None:
    """Wait for those that the next workgroup must not overtake."""
    order = code.order
    kinds = {value.attr for value in order if value.op is Op.BARRIER}
    shared = any(
        value.op in (Op.LOAD, Op.STORE, Op.ATOMIC) and value.memory.space is Space.SHARED
        for value in order
    )
    if shared or kinds - {"subgroup"}:
        code.w.do("bar.sync 0;")
    elif kinds or any(value.op is Op.SUBGROUP for value in order):
        code.w.do(f"bar.warp.sync {FULL_WARP};")
