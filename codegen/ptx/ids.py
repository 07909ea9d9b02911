"""Ids: who an invocation is, from the registers that say which thread of which block it is.

Where the backend chooses the workgroup, a block is made of invocations that the kernel does not
see: its first instructions end those past the grid. A folded program is launched with all
workgroups along x, for grids with more of them along y or z than a launch takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.ptx.code import WARP, Code
from khaljit.tracer.ir import Value

__all__ = ["begin", "global_id", "id_value", "lane", "local_index", "members"]

_AXES: Final = "xyz"


def begin(code: Code) -> None:
    """End the threads past the grid, where the kernel's blocks are not its workgroups.

    Threads that run several invocations see for themselves which of those there are.
    """
    if code.trace.workgroup is not None or code.elements > 1:
        return
    for axis, extent in enumerate(code.shape):
        if extent > 1:
            position = _chosen_global(code, axis)
            count = _num_workgroups(code, axis)
            past = code.w.let("pred", f"setp.ge.u{code.index.bits} {{d}}, {position}, {count};")
            code.w.do(f"@{past} {code.leave}")


def id_value(code: Code, value: Value) -> str:
    """An id as an operand of the index type."""
    assert isinstance(value.attr, tuple)
    name, axis = value.attr
    if code.trace.workgroup is None:
        return _unseen(code, name, axis)
    return _IDS[name](code, axis)


def _unseen(code: Code, name: str, axis: int) -> str:
    """As if the workgroup were one invocation."""
    if name == "global" or name == "workgroup":
        return _chosen_global(code, axis)
    if name == "num_workgroups":
        return _num_workgroups(code, axis)
    return "1" if name in ("workgroup_size", "num_subgroups", "subgroup_size") else "0"


def _chosen_global(code: Code, axis: int) -> str:
    return _composed(code, _block(code, axis), code.shape[axis], axis)


def global_id(code: Code, axis: int) -> str:
    """The global id along an axis; in the index type."""
    return _composed(code, _block(code, axis), code.shape[axis], axis)


def _composed(code: Code, block: str, extent: int, axis: int) -> str:
    """block * extent + thread."""
    w, bits = code.w, code.index.bits
    if extent == 1:
        return block if bits == 32 else w.let("b64", f"cvt.u64.u32 {{d}}, {block};")
    thread = _special(code, f"tid.{_AXES[axis]}")
    if bits == 32:
        return w.let("b32", f"mad.lo.u32 {{d}}, {block}, {extent}, {thread};")
    thread = w.let("b64", f"cvt.u64.u32 {{d}}, {thread};")
    return w.let("b64", f"mad.wide.u32 {{d}}, {block}, {extent}, {thread};")


def _special(code: Code, name: str) -> str:
    return code.w.let("b32", f"mov.u32 {{d}}, %{name};")


def _block(code: Code, axis: int) -> str:
    """Number of the block along an axis; 32 bits."""
    if code.turns is not None:
        return code.turns.places[axis]
    if not code.folded:
        return _special(code, f"ctaid.{_AXES[axis]}")
    w, number = code.w, _special(code, "ctaid.x")
    for before in range(axis):
        number = w.let("b32", f"div.u32 {{d}}, {number}, {_blocks(code, before)};")
    if axis == 2:
        return number
    return w.let("b32", f"rem.u32 {{d}}, {number}, {_blocks(code, axis)};")


def _blocks(code: Code, axis: int) -> str:
    """Number of blocks along an axis; 32 bits."""
    w, count = code.w, code.parameter(code.block.groups[axis], "b64")
    extent = code.shape[axis] * (code.elements if axis == 0 else 1)
    if code.trace.workgroup is None and extent > 1:
        count = w.let("b64", f"add.u64 {{d}}, {count}, {extent - 1};")
        count = w.let("b64", f"shr.u64 {{d}}, {count}, {extent.bit_length() - 1};")
    return w.let("b32", f"cvt.u32.u64 {{d}}, {count};")


def _widened(code: Code, name: str) -> str:
    """An id of 32 bits in the index type."""
    if code.index.bits == 32:
        return name
    return code.w.let("b64", f"cvt.u64.u32 {{d}}, {name};")


def _num_workgroups(code: Code, axis: int) -> str:
    if code.turns is not None:
        return _widened(code, code.turns.counts[axis])
    return code.parameter(code.block.groups[axis], f"b{code.index.bits}")


def local_index(code: Code) -> str:
    """The position in the workgroup, x fastest; 32 bits."""
    w, (x, y, z) = code.w, code.shape
    index = _special(code, "tid.x") if x > 1 else "0"
    if y > 1:
        index = w.let("b32", f"mad.lo.u32 {{d}}, {_special(code, 'tid.y')}, {x}, {index};")
    if z > 1:
        index = w.let("b32", f"mad.lo.u32 {{d}}, {_special(code, 'tid.z')}, {x * y}, {index};")
    return index


def lane(code: Code) -> str:
    """The position in the warp; 32 bits."""
    return _special(code, "laneid")


def _subgroup(code: Code) -> str:
    index = code.w.held("b32", local_index(code))
    return code.w.let("b32", f"shr.u32 {{d}}, {index}, {WARP.bit_length() - 1};")


def members(code: Code) -> str:
    """How many lanes this warp has; 32 bits, of a block whose last warp lacks some."""
    first = code.w.let("b32", f"shl.b32 {{d}}, {_subgroup(code)}, {WARP.bit_length() - 1};")
    rest = code.w.let("b32", f"sub.u32 {{d}}, {code.threads}, {first};")
    return code.w.let("b32", f"min.u32 {{d}}, {rest}, {WARP};")


_IDS: Final[dict[str, Callable[[Code, int], str]]] = {
    "global": global_id,
    "local": lambda code, axis: (
        _widened(code, _special(code, f"tid.{_AXES[axis]}")) if code.shape[axis] > 1 else "0"
    ),
    "workgroup": lambda code, axis: _widened(code, _block(code, axis)),
    "num_workgroups": _num_workgroups,
    "workgroup_size": lambda code, axis: str(code.shape[axis]),
    "local_index": lambda code, axis: (
        _widened(code, local_index(code)) if code.threads > 1 else "0"
    ),
    "subgroup": lambda code, axis: _widened(code, _subgroup(code)),
    "lane": lambda code, axis: _widened(code, lane(code)),
    "num_subgroups": lambda code, axis: str(-(-code.threads // WARP)),
    "subgroup_size": lambda code, axis: str(WARP),
}
