"""Failed asserts: the first invocation to fail writes the report.

The report is as ``docs/architecture.md`` has it. A value takes 8 bytes: an integer widened by its
sign, a float's bits in the low bytes.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.layout import REPORT_SLOTS, SLOT
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.forms import TYPES
from khaljit.codegen.llvm.values import Held, Mask
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import Note, Value

__all__ = ["report_failure"]

_FIRST_VALUE: Final = 5


def report_failure(code: Code, value: Value) -> None:
    """An assert: nothing where it holds; where some lane fails, its first such lane reports."""
    condition = code.values.get(value.args[0])
    if condition.uniform:
        failed: Mask = code.mask
        fails = code.w.let(f"xor i1 {condition.base}, true")
    else:
        failed = code.lanes.without(code.mask, code.values.vector(condition))
        fails = code.lanes.any(failed)
    with code.only_if(fails):
        _write(code, value, code.lanes.first(failed))
    code.wrote()


def _write(code: Code, value: Value, lane: str) -> None:
    """Write the report, unless somebody else does."""
    assert isinstance(value.attr, Note)
    assert code.block.report is not None
    w = code.w
    report = w.let(f"load ptr, ptr {code.at('%params', code.block.report)}, align 8")
    taken = w.let(f"cmpxchg ptr {report}, i64 0, i64 1 monotonic monotonic, align 8")
    won = w.let(f"extractvalue {{ i64, i1 }} {taken}, 1")
    with code.only_if(won):
        _fill(code, report, value, value.attr.site, lane)


def _fill(code: Code, report: str, value: Value, site: int, lane: str) -> None:
    _slot(code, report, 1, str(site))
    for axis in range(3):
        place = "global", axis
        bases = code.row_ids.get(place, ())
        at = Held(code.index, code.ids[place], int(axis == 0 and not code.scalar), bases)
        _slot(code, report, 2 + axis, _widened(code, code.index, code.one_of(at, lane)))
    for k, operand in enumerate(value.args[1 : 1 + REPORT_SLOTS - _FIRST_VALUE]):
        held = code.values.get(operand)
        _slot(code, report, _FIRST_VALUE + k, _widened(code, held.dtype, code.one_of(held, lane)))


def _slot(code: Code, report: str, number: int, text: str) -> None:
    code.w.do(f"store i64 {text}, ptr {code.at(report, number * SLOT)}, align 8")


def _widened(code: Code, dtype: DType, name: str) -> str:
    """A scalar as 64 bits."""
    w, type_ = code.w, TYPES[dtype]
    if dtype.is_float and type_ in ("float", "double"):
        name = w.let(f"bitcast {type_} {name} to i{dtype.bits}")
    bits = 1 if dtype is bool_ else dtype.bits
    if bits == 64:
        return name
    return w.let(f"{'sext' if dtype.is_signed else 'zext'} i{bits} {name} to i64")
