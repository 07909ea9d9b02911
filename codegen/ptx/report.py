"""Failed asserts: the first invocation to fail writes the report.

The report is as ``docs/architecture.md`` has it. A value takes 8 bytes: an integer widened by its
sign, a float's bits in the low bytes.
"""

from __future__ import annotations

from typing import Final

from khaljit.codegen.layout import REPORT_SLOTS, SLOT
from khaljit.codegen.ptx.code import Code
from khaljit.codegen.ptx.ids import global_id
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.ir import Note, Value

__all__ = ["report_failure"]

_FIRST_VALUE: Final = 5


def report_failure(code: Code, value: Value) -> None:
    """An assert: nothing where it holds."""
    assert isinstance(value.attr, Note)
    assert code.block.report is not None
    w, after = code.w, code.w.label()
    w.branch(code.operand(value.args[0]), after)
    report = code.parameter(code.block.report, "b64")
    found = w.let("b64", f"atom.relaxed.gpu.global.cas.b64 {{d}}, [{report}], 0, 1;")
    late = w.let("pred", f"setp.ne.u64 {{d}}, {found}, 0;")
    w.branch(late, after)
    slots = [str(value.attr.site)]
    slots += [_widened(code, code.index, global_id(code, axis)) for axis in range(3)]
    for operand in value.args[1 : 1 + REPORT_SLOTS - _FIRST_VALUE]:
        slots.append(_widened(code, operand.type, code.register(operand)))
    for number, slot in enumerate(slots, 1):
        w.do(f"st.global.b64 [{report}+{number * SLOT}], {slot};")
    w.open(after)


def _widened(code: Code, dtype: DType, name: str) -> str:
    """A scalar as 64 bits."""
    w = code.w
    if dtype is bool_:
        return w.let("b64", f"selp.b64 {{d}}, 1, 0, {name};")
    if dtype.bits == 64:
        return name
    if dtype.is_float and dtype.bits == 16:
        return w.let("b64", f"cvt.u64.u16 {{d}}, {name};")
    sign = "s" if dtype.is_signed else "u"
    return w.let("b64", f"cvt.{sign}64.{sign}32 {{d}}, {name};")
