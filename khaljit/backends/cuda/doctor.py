"""What CUDA needs and what of it is here, for ``khaljit doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final, final

from khaljit.backends.cuda import assemble, driver
from khaljit.backends.cuda.target import architecture_for
from khaljit.codegen.ptx.arch import ARCHITECTURES
from khaljit.tracer.errors import KhaljitError
from khaljit.tracer.records import dataclass

__all__ = ["Part", "examine"]

DISASSEMBLERS: Final = ("cuobjdump", "nvdisasm")


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One thing that was looked for.

    Attributes:
        found: what is here; None where it is missing.
        note: what it is for, or how to get it.
    """

    name: str
    found: str | None
    note: str


def examine() -> list[Part]:
    """Look for the driver, GPUs, and the tools that make machine code."""
    return [_bindings(), *_gpus(), *_tools(), _architectures()]


def _bindings() -> Part:
    try:
        found = version("cuda-bindings")
    except PackageNotFoundError:
        return Part("cuda-bindings", None, "pip install 'khaljit[cuda]'")
    return Part("cuda-bindings", found, "calls the driver")


def _gpus() -> Iterator[Part]:
    try:
        number = int(driver.call("cuDriverGetVersion"))
        count = driver.count()
    except KhaljitError as error:
        yield Part("NVIDIA driver", None, f"{error.message}: {error.mend or 'install it'}")
        return
    supports = f"{number // 1000}.{number % 1000 // 10}"
    yield Part("NVIDIA driver", f"CUDA {supports}", f"{count} GPUs")
    for place in range(count):
        yield _gpu(place)


def _gpu(number: int) -> Part:
    try:
        context = driver.Context(number)
        major, minor = (
            context.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR")
        )
        code = architecture_for(major, minor)
        memory = context.total_memory() >> 30
        return Part(f"GPU {number}", context.name(), f"{major}.{minor}, code {code}, {memory} GiB")
    except KhaljitError as error:
        return Part(f"GPU {number}", None, str(error))


def _tools() -> Iterator[Part]:
    for name, label, package in (
        ("nvjitlink", "nvJitLink", "nvidia-nvjitlink"),
        ("ptxas", "ptxas", "nvidia-cuda-nvcc"),
    ):
        found = assemble.tool_version(name)
        get = f"pip install {package}; without both, the driver compiles at each load"
        yield Part(label, found, "makes machine code that the cache keeps" if found else get)
    path = next(filter(None, map(assemble.tool_path, DISASSEMBLERS)), None)
    note = (
        "shows machine code" if path else "pip install nvidia-cuda-nvdisasm; for show --stage sass"
    )
    yield Part("cuobjdump or nvdisasm", path, note)


def _architectures() -> Part:
    return Part("architectures", ", ".join(ARCHITECTURES), "khaljit show --device cuda:sm_90")
