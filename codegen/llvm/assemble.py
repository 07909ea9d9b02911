"""From the text of an LLVM module to object code, for this machine or any other.

The code is vectors already, so LLVM's own vectorisers stay off, and nothing may fuse a product
and a sum: there are no fast flags in the text, and none here. This is the one module that imports
llvmlite.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from khaljit.codegen.llvm.scan import scan
from khaljit.codegen.llvm.target import CpuTarget
from khaljit.tracer.errors import InternalError

__all__ = ["assemble", "disassembly", "optimised", "version"]

# LLVM's simplification of functions, without the passes between functions and the vectorisers:
# measured, the code is as fast and made in half the time.
OPTIMISATION: Final = 1
_LOCK: Final = threading.Lock()  # LLVM's global context is one for all threads


def assemble(text: str, target: CpuTarget) -> bytes:
    """The object code of a module; InternalError where LLVM refuses it or calls a library."""
    with _LOCK:
        machine, module = _optimised(text, target)
        code = machine.emit_object(module)
    assert isinstance(code, bytes)
    scan(code)
    return code


def disassembly(text: str, target: CpuTarget) -> str:
    """The assembly of a module."""
    with _LOCK:
        machine, module = _optimised(text, target)
        assembly = machine.emit_assembly(module)
    assert isinstance(assembly, str)
    return assembly


def optimised(text: str, target: CpuTarget) -> str:
    """A module as LLVM's passes leave it."""
    with _LOCK:
        return str(_optimised(text, target)[1])


def version() -> str:
    """The version of LLVM, for cache keys."""
    import llvmlite.binding as llvm

    return ".".join(map(str, llvm.llvm_version_info))


def _optimised(text: str, target: CpuTarget) -> tuple[Any, Any]:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM refuses the generated code: {error}") from error
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.facts.cpu,
        features=",".join(target.all_features),
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    options = llvm.create_pipeline_tuning_options(speed_level=OPTIMISATION)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return machine, module
