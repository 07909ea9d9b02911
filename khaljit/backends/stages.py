"""The stages from a canonical trace to a legal one, which all targets share.

Imported by those who compile, inside the function that does: a process that finds everything in
the cache never loads the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from khaljit.codegen.caps import Caps
from khaljit.codegen.legalise import legalise
from khaljit.codegen.numbering import with_reports
from khaljit.codegen.writing_reports import write_reports
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.text import print_trace

__all__ = ["COMMON", "legal", "show"]

COMMON = ("trace", "lowered", "legal")


def legal(trace: Trace, caps: Caps) -> Trace:
    """What a target's code generator takes."""
    return legalise(write_reports(optimise(with_reports(trace))), caps)


def show(
    trace: Trace,
    stage: str,
    target: str,
    caps: Caps,
    codes: Mapping[str, Callable[[Trace], str]],
) -> str:
    """A stage as text; ``codes`` are those of the target itself, made from the legal trace."""
    if stage == "trace":
        return print_trace(trace)
    if stage == "lowered":
        return print_trace(optimise(trace))
    if stage == "legal":
        return print_trace(legal(trace, caps))
    if stage in codes:
        return codes[stage](legal(trace, caps))
    mend = f"its stages are {', '.join((*COMMON, *codes))}"
    if stage in _ELSEWHERE:
        mend += f"; {stage} is one of {_ELSEWHERE[stage]}"
    raise ArgumentValueError(f"{target} has no stage {stage!r}", mend=mend)


_ELSEWHERE: Final = {
    **dict.fromkeys(("llvm", "asm"), "cpu"),
    **dict.fromkeys(("ptx", "sass"), "cuda:sm_90"),
    **dict.fromkeys(("spirv", "wgsl"), "webgpu"),
}
