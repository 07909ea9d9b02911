"""The CPU code generator: a legal trace becomes the text of an LLVM module, SPMD on SIMD.

The invocations of a subgroup are the lanes of vectors. What is the same in all lanes is scalar,
branches that all lanes take together are branches, and others are masks. ``entry.py`` has the
function around it all, ``group.py`` what barriers ask for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from khaljit.codegen.layout import ParameterBlock
from khaljit.codegen.llvm.blocks import in_blocks
from khaljit.codegen.llvm.choose import choose_lanes, observes_workgroups
from khaljit.codegen.llvm.clamped import find_clamps
from khaljit.codegen.llvm.code import Code, find_memories, find_parameters, find_uses
from khaljit.codegen.llvm.entry import NAME, PARAMETERS, run_lanes, set_environment
from khaljit.codegen.llvm.group import local_copies, run_groups
from khaljit.codegen.llvm.memory import ZEROS_DEFINITION
from khaljit.codegen.llvm.plan import has_barrier
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.codegen.llvm.values import Lanes, Values
from khaljit.codegen.llvm.writer import Writer
from khaljit.codegen.program import Program
from khaljit.tracer.ir import Trace
from khaljit.tracer.schedule import schedule
from khaljit.tracer.uniformity import analyse

__all__ = ["LlvmEmitter"]


@final
class LlvmEmitter:
    """Generates code for one processor.

    Args:
        target: the processor.
        lanes: lanes of a vector, vectors of a row and rows of a subgroup, instead of what suits
            the kernel.
    """

    name: Final = "llvm"

    def __init__(self, target: CpuTarget, lanes: tuple[int, int, int] | None = None) -> None:
        self.target: Final = target
        self._lanes: Final = lanes

    def emit(self, trace: Trace) -> Program:
        """The module of a legal trace."""
        trace = in_blocks(trace)
        uniformity, items = analyse(trace), schedule(trace).items
        whole = analyse(replace(trace, workgroup=None), rows=False)  # rows of lanes together
        level = self.target.facts
        per_part, parts, rows = self._lanes or choose_lanes(trace, level, uniformity, whole, items)
        w = Writer(fastmath=trace.options.fastmath, signals=level.signals)
        mask_type = "i1" if level.masks else f"i{min(level.vector_bits // per_part, 64)}"
        lanes = Lanes(w, per_part, parts, rows, mask_type)
        block = ParameterBlock.of(trace)
        code = Code(trace, level, block, w, lanes, Values(lanes), uniformity, whole, items)
        if rows == 1:
            code.whole = uniformity
        code.has_barriers = has_barrier(trace.body)
        code.clamps = find_clamps(trace, uniformity)
        find_uses(code)
        w.open(w.label())
        restore = set_environment(code)
        together = observes_workgroups(trace)
        if together:
            code.local_copies = local_copies(code)
        find_memories(code)
        find_parameters(code)
        (run_groups if together else run_lanes)(code)
        restore()
        w.stop("ret void")
        return Program(
            target=self.name,
            entry=NAME,
            text=self._module(code),
            workgroup=trace.workgroup or (1, 1, 1),
            item=(trace.workgroup or (1, 1, 1)) if together else (lanes.across, lanes.rows, 1),
            lanes=lanes.count,
            arena=code.arena.size,
        )

    def _module(self, code: Code) -> str:
        attributes = ["nounwind", '"no-builtins"', '"no-stack-arg-probe"']
        if self.target.facts.architecture == "x86_64":
            bits = self.target.facts.vector_bits
            attributes += [f'"prefer-vector-width"="{bits}"', f'"min-legal-vector-width"="{bits}"']
        if code.w.fastmath:
            steps = self.target.facts.refinements
            estimates = ",".join(
                f"{of}:{steps}" for of in ("divf", "vec-divf", "sqrtf", "vec-sqrtf")
            )
            attributes.append(f'"reciprocal-estimates"="{estimates}"')
        if self.target.convention:
            attributes.append("noredzone")
        convention = f"{self.target.convention} " if self.target.convention else ""
        return "\n".join(
            (
                f'target triple = "{self.target.triple}"',
                ZEROS_DEFINITION,
                *code.globals,
                f"define {convention}void @{NAME}({PARAMETERS}) {' '.join(attributes)} {{",
                code.w.text(),
                "}",
                "",
            )
        )
