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
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.tracer.ir import Trace

__all__ = ["Cpu"]


@final
class Cpu(Target):
    """A processor. What compiles is imported where it is needed: a warm process needs none."""

    def __init__(self, target: CpuTarget) -> None:
        self.cpu: Final = target
        self.name = f"cpu:{target.level}"

    def key_parts(self) -> Mapping[str, bytes]:
        """The level, features and operating system."""
        cpu = self.cpu
        text = f"{cpu.level} {','.join(cpu.all_features)} {cpu.system}"
        return {"target": text.encode()}

    def compile(self, trace: Trace) -> Artifact:
        """Object code, with what its launch needs."""
        from khaljit.backends import stages
        from khaljit.codegen.caps import row
        from khaljit.codegen.cost import cost
        from khaljit.codegen.llvm.assemble import assemble
        from khaljit.codegen.llvm.emit import LlvmEmitter

        legal = stages.legal(trace, row(f"llvm:{self.cpu.level}"))
        program = LlvmEmitter(self.cpu).emit(legal)
        plan = {
            "entry": program.entry,
            "item": list(program.item),
            "workgroup": list(program.workgroup),
            "arena": program.arena,
            "cost": cost(legal),
        }
        payload = assemble(program.text, self.cpu)
        return Artifact(payload, plan, ("llvmlite", _llvmlite_version() or ""), text=program.text)

    def show(self, trace: Trace, stage: str) -> str:
        """A stage of the compilation as text: the common ones, ``llvm`` and ``asm``."""
        from khaljit.backends import stages
        from khaljit.codegen.caps import row
        from khaljit.codegen.llvm.assemble import disassembly
        from khaljit.codegen.llvm.emit import LlvmEmitter

        def llvm(legal: Trace) -> str:
            return LlvmEmitter(self.cpu).emit(legal).text

        codes = {"llvm": llvm, "asm": lambda legal: disassembly(llvm(legal), self.cpu)}
        return stages.show(trace, stage, self.name, row(f"llvm:{self.cpu.level}"), codes)

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
