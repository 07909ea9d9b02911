"""Machine code for an NVIDIA GPU: the way from a canonical trace to a cubin."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, final

from khaljit.backends.base import Target, idle
from khaljit.backends.cuda import assemble as assembling
from khaljit.cache.artifact import Artifact
from khaljit.codegen.caps import row
from khaljit.codegen.program import Program
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.tracer.errors import ArgumentValueError, DeviceError
from khaljit.tracer.ir import Trace

__all__ = ["Cuda", "architecture_for", "parse"]

FORMS: Final = ("direct", "folded", "resident")
OLDEST: Final = next(iter(ARCHITECTURES))
PTX: Final = "ptx"


def architecture_for(major: int, minor: int) -> str:
    """The newest architecture that khaljit knows and a GPU of a compute capability runs.

    Machine code runs on later minor versions of its major version. Where khaljit knows none of
    that, it is ``ptx``, which the driver compiles. ``KHALJIT_CUDA_ARCH`` overrides.
    """
    chosen = os.environ.get("KHALJIT_CUDA_ARCH")
    if chosen:
        if chosen not in (*ARCHITECTURES, PTX):
            raise ArgumentValueError(
                f"KHALJIT_CUDA_ARCH is {chosen!r}",
                mend=f"one of {', '.join(ARCHITECTURES)}, or {PTX}",
            )
        return chosen
    number = 10 * major + minor
    known = [row for row in ARCHITECTURES.values() if row.number <= number]
    if not known:
        raise DeviceError(
            f"a GPU of compute capability {major}.{minor} is too old",
            mend=f"khaljit needs {OLDEST} or newer",
        )
    newest = max(known, key=lambda row: row.number)
    return newest.name if newest.number // 10 == major else PTX


@final
class Cuda(Target):
    """An architecture.

    Args:
        architecture: such as ``sm_90``; ``ptx`` for text that the driver of any GPU compiles.
        form: ``folded`` for launches with all workgroups along one axis, ``resident`` for those
            whose counts of workgroups the GPU reads.
    """

    def __init__(self, architecture: str, *, form: str = "direct") -> None:
        self.portable: Final = architecture == PTX
        self.name = f"cuda:{architecture}"
        if self.portable:
            architecture = OLDEST
        if architecture not in ARCHITECTURES:
            raise ArgumentValueError(
                f"{architecture!r} is no architecture of khaljit",
                mend=f"one of {', '.join(ARCHITECTURES)}, or {PTX}",
            )
        self.architecture: Final = architecture
        self.form: Final = form

    @property
    def text(self) -> str:
        """Such as ``cuda:sm_90``, with the form behind it: ``cuda:sm_90/folded``."""
        return self.name if self.form == "direct" else f"{self.name}/{self.form}"

    def substitutes(self) -> Sequence[Target]:
        """PTX for any GPU, where no tool is here that would make machine code of this one's."""
        if self.portable or any(map(assembling.tool_version, assembling.TOOLS)):
            return ()
        return (Cuda(PTX, form=self.form),)

    def key_parts(self) -> Mapping[str, object]:
        """The architecture, the form, and whether the text is kept."""
        keep = os.environ.get("KHALJIT_CUDA_KEEP_PTX") == "1"
        return {"kind": self.name, "form": self.form, "keep_ptx": keep}

    def compile(self, trace: Trace, emitted: Callable[[], None] = idle) -> Artifact:
        """A cubin where a tool is here, else PTX; with what the launch needs."""
        program = self._program(trace)
        emitted()
        if self.portable:
            payload, tool = program.text.encode(), None
        else:
            payload, tool = assembling.assemble(program.text, self.architecture)
        plan = {
            "entry": program.entry,
            "workgroup": list(program.workgroup),
            "item": list(program.item),
            "shared": program.shared,
        }
        return Artifact(payload, plan, tool, text=program.text)

    def _program(self, trace: Trace) -> Program:
        from khaljit.backends import stages

        return self._emitted(stages.legal(trace, row(f"ptx:{self.architecture}")))

    def _emitted(self, legal: Trace) -> Program:
        from khaljit.codegen.ptx.emit import PtxEmitter  # a warm process compiles nothing

        emitter = PtxEmitter(
            self.architecture, folded=self.form == "folded", resident=self.form == "resident"
        )
        return emitter.emit(legal)

    def show(self, trace: Trace, stage: str) -> str:
        """A stage of the compilation as text: the common ones, ``ptx`` and ``sass``."""
        from khaljit.backends import stages

        def ptx(legal: Trace) -> str:
            return self._emitted(legal).text

        codes = {"ptx": ptx, "sass": lambda legal: disassembly(ptx(legal), self.architecture)}
        return stages.show(trace, stage, self.name, row(f"ptx:{self.architecture}"), codes)

    def load_tools(self) -> None:
        """nvJitLink; the others are no libraries."""
        assembling.load()

    def tool_version(self, name: str) -> str | None:
        """The version of nvJitLink or ptxas here."""
        return assembling.tool_version(name)


def parse(text: str) -> Cuda:
    """The target that an architecture or ``ptx`` stands for, with a form: ``sm_90/folded``."""
    architecture, _, form = text.partition("/")
    if form and form not in FORMS:
        raise ArgumentValueError(
            f"{form!r} in {text!r} is no form of a program", mend=f"one of {', '.join(FORMS)}"
        )
    return Cuda(architecture, form=form or "direct")


def disassembly(ptx: str, architecture: str) -> str:
    """Machine instructions of PTX, by cuobjdump or nvdisasm."""
    cubin, tool = assembling.assemble(ptx, architecture)
    path = assembling.tool_path("cuobjdump") or assembling.tool_path("nvdisasm")
    if tool is None or path is None:
        missing = "nvdisasm" if tool else "nvJitLink or ptxas"
        raise DeviceError(
            f"{missing} is not here, so there is no machine code to show",
            mend="pip install nvidia-nvjitlink nvidia-cuda-nvdisasm",
        )
    with tempfile.TemporaryDirectory(prefix="khaljit-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        options = ["-sass"] if path.endswith(("cuobjdump", "cuobjdump.exe")) else ["-c"]
        done = subprocess.run(
            [path, *options, str(file)], capture_output=True, text=True, check=True
        )
    return done.stdout
