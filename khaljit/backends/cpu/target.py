"""Machine code for a processor: the way from a canonical trace to an object file."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, final

from khaljit.backends.base import Target
from khaljit.cache.artifact import Artifact
from khaljit.codegen.caps import row
from khaljit.codegen.cost import cost
from khaljit.codegen.legalise import legalise
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.codegen.program import Program
from khaljit.tracer.errors import ArgumentValueError
from khaljit.tracer.ir import Trace
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.text import print_trace

__all__ = ["Cpu"]

STAGES: Final = ("trace", "lowered", "legal", "llvm", "asm")


@final
class Cpu(Target):
    """A processor."""

    def __init__(self, target: CpuTarget) -> None:
        self.cpu: Final = target
        self.name = f"cpu:{target.level}"

    def key_parts(self) -> Mapping[str, bytes]:
        """The level, features and operating system."""
        cpu = self.cpu
        text = f"{cpu.level} {','.join(cpu.all_features)} {cpu.system}"
        return {"target": text.encode()}

    def legal(self, trace: Trace) -> Trace:
        """The trace as the code generator takes it."""
        return legalise(optimise(trace), row(f"llvm:{self.cpu.level}"))

    def emit(self, legal: Trace) -> Program:
        """LLVM IR for a legal trace."""
        from khaljit.codegen.llvm.emit import LlvmEmitter

        return LlvmEmitter(self.cpu).emit(legal)

    def compile(self, trace: Trace) -> Artifact:
        """Object code, with what its launch needs."""
        from khaljit.codegen.llvm.assemble import assemble

        legal = self.legal(trace)
        program = self.emit(legal)
        plan = {
            "entry": program.entry,
            "item": list(program.item),
            "workgroup": list(program.workgroup),
            "arena": program.arena,
            "reports": program.reports,
            "cost": cost(legal),
        }
        payload = assemble(program.text, self.cpu)
        return Artifact(payload, plan, ("llvmlite", _llvmlite_version() or ""), text=program.text)

    def stages(self) -> tuple[str, ...]:
        """What `show` can print."""
        return STAGES

    def show(self, trace: Trace, stage: str) -> str:
        """A stage of the compilation as text."""
        if stage == "trace":
            return print_trace(trace)
        if stage == "lowered":
            return print_trace(optimise(trace))
        if stage == "legal":
            return print_trace(self.legal(trace))
        text = self.emit(self.legal(trace)).text
        if stage == "llvm":
            return text
        if stage == "asm":
            from khaljit.codegen.llvm.assemble import disassembly

            return disassembly(text, self.cpu)
        raise ArgumentValueError(
            f"{self.name} has no stage {stage!r}", mend=f"its stages are {', '.join(STAGES)}"
        )

    def tool_version(self, name: str) -> str | None:
        """The installed llvmlite, found without importing it."""
        return _llvmlite_version() if name == "llvmlite" else None


@lru_cache(maxsize=1)
def _llvmlite_version() -> str | None:
    """The version of the installed llvmlite; None where none is. Imports nothing of it."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    path = os.path.join(os.path.dirname(spec.origin), "_version.py")
    try:
        with open(path, encoding="utf-8") as source:
            found = re.search(r"^version_version = '([^']+)'", source.read(), re.MULTILINE)
    except OSError:
        return "unknown"
    return found.group(1) if found else "unknown"
