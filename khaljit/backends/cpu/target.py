"""Machine code for a processor: the way from a canonical trace to an object file."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, final

from khaljit.backends.base import Target, idle
from khaljit.cache.artifact import Artifact
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.tracer.errors import ArgumentValueError, DeviceError
from khaljit.tracer.ir import Trace

__all__ = ["Cpu", "parse"]

SYSTEMS: Final = ("linux", "darwin", "win32")


@final
class Cpu(Target):
    """A processor. What compiles is imported where it is needed: a warm process needs none."""

    def __init__(self, target: CpuTarget) -> None:
        self.cpu: Final = target
        self.name = f"cpu:{target.level}"

    @property
    def text(self) -> str:
        """Such as ``cpu:x86-64-v3-linux``, with features beyond the level behind it."""
        return f"{self.name}-{self.cpu.system}{''.join(self.cpu.features)}"

    @property
    def remark(self) -> str:
        """Whether the level lacks what most kernels use."""
        from khaljit.codegen.caps import row
        from khaljit.tracer.dtypes import f32
        from khaljit.tracer.ops import Op

        if row(f"llvm:{self.cpu.level}").takes(Op.FMA, f32):
            return ""
        return "it has no fused multiply-add, which is emulated, and slow"

    def substitutes(self) -> Sequence[Target]:
        """Lower levels, where no llvmlite is here to make code for this one."""
        if _llvmlite_version() is not None:
            return ()
        family = [
            name for name, one in LEVELS.items() if one.architecture == self.cpu.facts.architecture
        ]
        lower = family[: family.index(self.cpu.level)]
        return [Cpu(CpuTarget(level, system=self.cpu.system)) for level in reversed(lower)]

    def key_parts(self) -> Mapping[str, object]:
        """The level and what it stands for, features and operating system."""
        return {"kind": "cpu", "cpu": self.cpu, "level": self.cpu.facts}

    def compile(self, trace: Trace, emitted: Callable[[], None] = idle) -> Artifact:
        """Object code, with what its launch needs."""
        tool = _llvmlite_version()
        if tool is None:
            raise DeviceError(
                f"kernel {trace.name} is not in the cache, and no llvmlite is here to compile it",
                mend="pip install llvmlite, or warm and export it elsewhere: "
                f"khaljit warm --target {self.text}",
            )
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
        emitted()
        payload = assemble(program.text, self.cpu)
        return Artifact(payload, plan, ("llvmlite", tool), text=program.text)

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


def parse(text: str) -> Cpu:
    """The target that ``native`` or a level stands for: ``x86-64-v3``, ``aarch64-darwin``,
    ``x86-64-v4-linux+avx512vbmi``. The system is this one if it is left out."""
    if text == "native":
        from khaljit.backends.cpu.features import probe

        return Cpu(CpuTarget(probe().level))
    place, *features = text.split("+")
    level, _, system = place.rpartition("-")
    if system not in SYSTEMS:
        level, system = place, sys.platform
    if level not in LEVELS or not all(features):
        raise ArgumentValueError(
            f"there is no processor {text!r} to make code for",
            mend=f"native, or one of {', '.join(LEVELS)}, with -linux, -darwin or -win32 behind it",
        )
    return Cpu(CpuTarget(level, tuple(f"+{one}" for one in features), system))


@lru_cache(maxsize=1)
def _llvmlite_version() -> str | None:
    """The version of the installed llvmlite; None where none is. Imports nothing of it."""
    if "llvmlite" not in sys.modules:
        for folder in sys.path:  # where it lies nearly always, and found in a fifth of the time
            with suppress(OSError):
                return _version_in(os.path.join(folder, "llvmlite"))
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    try:
        return _version_in(os.path.dirname(spec.origin))
    except OSError:
        return "unknown"


def _version_in(package: str) -> str:
    with open(os.path.join(package, "_version.py"), "rb", buffering=0) as source:
        _, _, rest = source.read().partition(b"version_version = '")
    return rest.partition(b"'")[0].decode() or "unknown"
