"""The entry point: takes work items from the counter, and runs the kernel on each.

    void entry(ptr params, ptr next, i64 total, i64 chunk, ptr arena)

A thread that takes all items in one chunk is the only one, and leaves the counter alone. The
floating-point environment is rounding to nearest, subnormals kept, no traps: where the caller has
another one, which is rare, it is set, and the caller's comes back at the end. Flags of what came
to pass are nobody's: calling conventions let any function change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.control import Walk
from khaljit.codegen.llvm.forms import TYPES
from khaljit.codegen.llvm.values import Mask
from khaljit.tracer.ir import values
from khaljit.tracer.records import dataclass

__all__ = ["Item", "for_each_item", "run_lanes", "versions"]

NAME: Final = "entry"
PARAMETERS: Final = (
    "ptr noalias readonly %params, ptr noalias %next, i64 %total, i64 %chunk, ptr noalias %arena"
)

# Kernels with more values than this get no second version for full subgroups.
MOST_VALUES: Final = 2000

_DEFAULT_MXCSR: Final = 0x1F80
_MXCSR_CONTROL: Final = 0xFFC0  # what is below are flags


@final
@dataclass(frozen=True, slots=True)
class Item:
    """A work item: its position on each axis as an i64, and what follows it."""

    position: tuple[str, str, str]
    done: str


def for_each_item(code: Code, counts: tuple[str, str, str], body: Callable[[Item], None]) -> None:
    """Take items until there are none; ``counts`` are items per axis, as i64."""
    w = code.w
    slots = [w.slot("i64") for _ in range(5)]  # x, y, z and the number of the item, and the end
    alone, take, begin, item, done, out = (w.label() for _ in range(6))
    w.branch(w.let("icmp ule i64 %total, %chunk"), alone, take)
    w.open(alone)
    for slot, start in zip(slots, ("0", "0", "0", "0", "%total"), strict=True):
        w.do(f"store i64 {start}, ptr {slot}")
    w.branch(w.let("icmp eq i64 %total, 0"), out, item)
    w.open(take)
    first = w.let("atomicrmw add ptr %next, i64 %chunk monotonic, align 8")
    w.branch(w.let(f"icmp ult i64 {first}, %total"), begin, out)
    w.open(begin)
    beyond = w.let(f"add i64 {first}, %chunk")
    row = w.let(f"udiv i64 {first}, {counts[0]}")
    starts = (
        w.let(f"urem i64 {first}, {counts[0]}"),
        w.let(f"urem i64 {row}, {counts[1]}"),
        w.let(f"udiv i64 {row}, {counts[1]}"),
        first,
        w.let(f"call i64 @llvm.umin.i64(i64 {beyond}, i64 %total)"),
    )
    for slot, start in zip(slots, starts, strict=True):
        w.do(f"store i64 {start}, ptr {slot}")
    w.open(item)
    x, y, z = (w.let(f"load i64, ptr {slot}") for slot in slots[:3])
    body(Item((x, y, z), done))
    w.open(done)
    _advance(code, slots, counts)
    number = w.let(f"load i64, ptr {slots[3]}")
    following = w.let(f"add i64 {number}, 1")
    w.do(f"store i64 {following}, ptr {slots[3]}")
    end, more = w.let(f"load i64, ptr {slots[4]}"), w.label()
    w.branch(w.let(f"icmp eq i64 {following}, {end}"), more, item)
    w.open(more)
    w.branch(w.let(f"icmp ult i64 {end}, %total"), take, out)
    w.open(out)


def _advance(code: Code, slots: list[str], counts: tuple[str, str, str]) -> None:
    """To the next item: x, and where it is at its end, y, and so on."""
    w = code.w
    carry = "true"
    for axis in range(3):
        at = w.let(f"load i64, ptr {slots[axis]}")
        step = w.let(f"zext i1 {carry} to i64")
        following = w.let(f"add i64 {at}, {step}")
        carry = w.let(f"icmp eq i64 {following}, {counts[axis]}")
        kept = w.let(f"select i1 {carry}, i64 0, i64 {following}")
        w.do(f"store i64 {kept}, ptr {slots[axis]}")


def narrowed_index(code: Code, name: str) -> str:
    """An i64 as an id."""
    if code.index.bits == 64:
        return name
    return code.w.let(f"trunc i64 {name} to {TYPES[code.index]}")


def group_counts(code: Code) -> tuple[str, str, str]:
    """The counts of workgroups, as i64."""
    x, y, z = (
        code.w.let(f"load i64, ptr {code.at('%params', offset)}, align 8")
        for offset in code.block.groups
    )
    return x, y, z


def set_environment(code: Code) -> Callable[[], None]:
    """Set the floating-point environment; gives what brings the caller's back. That is looked at
    as late as possible: what tells it is slow to arrive, and setting it again slower yet."""
    w = code.w
    if code.level.architecture == "aarch64":
        before = w.let("call i64 @llvm.aarch64.get.fpcr()")
        w.do("call void @llvm.aarch64.set.fpcr(i64 0)")
        back = f"call void @llvm.aarch64.set.fpcr(i64 {before})"
    else:
        before, wanted = w.slot("i32"), w.slot("i32")
        w.do(f"call void @llvm.x86.sse.stmxcsr(ptr {before})")
        w.do(f"store i32 {_DEFAULT_MXCSR}, ptr {wanted}")
        w.do(f"call void @llvm.x86.sse.ldmxcsr(ptr {wanted})")
        back = f"call void @llvm.x86.sse.ldmxcsr(ptr {before})"

    def is_usual() -> str:
        if code.level.architecture == "aarch64":
            return w.let(f"icmp eq i64 {before}, 0")
        control = w.let(f"and i32 {w.let(f'load i32, ptr {before}')}, {_MXCSR_CONTROL}")
        return w.let(f"icmp eq i32 {control}, {_DEFAULT_MXCSR}")

    def restore() -> None:
        another, same = w.label(), w.label()
        w.branch(is_usual(), same, another)
        w.open(another)
        w.do(back)
        w.open(same)

    return restore


# Versions of the code.


def versions(
    code: Code,
    done: str,
    run: Callable[[Walk], None],
    full: str = "",
    mask: Callable[[], Mask] = lambda: None,
) -> None:
    """Code for when all lanes are active and pass their guards, and general code to go back to.

    ``full`` says whether all lanes exist, an i1, empty where they surely do; ``mask`` makes the
    mask of those that exist. ``run`` generates either version and ends at ``done``.
    """
    w = code.w
    fast, general = w.label(), w.label()
    if len(values(code.trace.body)) <= MOST_VALUES:
        if full:
            w.branch(full, fast, general)
        w.open(fast)
        code.mask, code.bail, code.bailed = None, general, False
        code.values.enter()
        run(Walk(code, done))
        code.values.leave()
        code.bail = None
        if not full and not code.bailed:
            return
    w.open(general)
    code.values.enter()
    code.mask = mask()
    run(Walk(code, done))
    code.values.leave()
    code.mask = None


def run_lanes(code: Code) -> None:
    """All items of a kernel that cannot tell workgroups: lanes run along global x."""
    w, lanes = code.w, code.lanes
    workgroup = code.trace.workgroup or (1, 1, 1)
    groups = group_counts(code)
    for axis, size in enumerate(workgroup):
        code.ids["num_workgroups", axis] = narrowed_index(code, groups[axis])
        code.ids["workgroup_size", axis] = str(size)
    code.ids["lanes", 0] = str(lanes.across)
    extents = [
        w.let(f"mul i64 {count}, {size}") for count, size in zip(groups, workgroup, strict=True)
    ]
    shares = (lanes.across, lanes.rows, 1)
    counts = tuple(
        w.let(f"udiv i64 {w.let(f'add i64 {extent}, {share - 1}')}, {share}")
        for extent, share in zip(extents, shares, strict=True)
    )

    def body(item: Item) -> None:
        first = tuple(
            w.let(f"mul i64 {at}, {share}") for at, share in zip(item.position, shares, strict=True)
        )
        for axis, name in enumerate(first):
            code.ids["global", axis] = narrowed_index(code, name)
        code.ids["first", 0] = code.ids["global", 0]
        if lanes.rows > 1:
            code.row_ids["global", 1] = rows_from(code, code.ids["global", 1])
        left = [w.let(f"sub i64 {extents[axis]}, {first[axis]}") for axis in range(2)]
        enough = [w.let(f"icmp uge i64 {left[axis]}, {shares[axis]}") for axis in range(2)]
        full = w.let(f"and i1 {enough[0]}, {enough[1]}")

        def run(walk: Walk) -> None:
            if walk.region(code.trace.body) is not None:
                w.jump(item.done)

        versions(code, item.done, run, full, lambda: _existing(code, left))

    for_each_item(code, (counts[0], counts[1], counts[2]), body)


def rows_from(code: Code, first: str) -> tuple[str, ...]:
    """An id that grows by one from row to row, for each part."""
    lanes, t = code.lanes, TYPES[code.index]
    made = [first]
    made += [code.w.let(f"add {t} {first}, {row}") for row in range(1, lanes.rows)]
    return tuple(made[lanes.row(part)] for part in range(lanes.parts))


def _existing(code: Code, left: list[str]) -> Mask:
    """The mask of the lanes that are so many to the end of the grid, along x and y."""
    w, lanes = code.w, code.lanes
    most = w.let(f"call i64 @llvm.umin.i64(i64 {left[0]}, i64 {lanes.across})")
    limit = lanes.splat("i32", w.let(f"trunc i64 {most} to i32"))
    t, i1 = lanes.width.of("i32"), lanes.width.of("i1")
    below = []
    for part in range(lanes.parts):
        steps = lanes.steps("i32", lanes.along(part))
        inside = w.let(f"icmp ult {t} {steps}, {limit}")
        if lanes.row(part):  # the first row is always there
            there = lanes.splat("i1", w.let(f"icmp ugt i64 {left[1]}, {lanes.row(part)}"))
            inside = w.let(f"and {i1} {inside}, {there}")
        below.append(inside)
    return lanes.narrowed(None, tuple(below))
