"""From PTX to a cubin: nvJitLink in this process, ptxas beside it, or the driver at load time.

Which is there is looked up once. Neither a GPU nor a driver is needed for the first two.
``KHALJIT_CUDA_KEEP_PTX=1`` keeps the text, which the driver then compiles at every load.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from khaljit.tracer.errors import InternalError

__all__ = ["TOOLS", "assemble", "load", "tool_path", "tool_version"]

TOOLS: Final = ("nvjitlink", "ptxas")

_WHEELS: Final = ("nvidia.cu13", "nvidia.cuda_nvcc")


def assemble(ptx: str, architecture: str) -> tuple[bytes, tuple[str, str] | None]:
    """Machine code for an architecture such as ``sm_90`` with the tool that made it; where there
    is no tool, the PTX itself and None."""
    if os.environ.get("KHALJIT_CUDA_KEEP_PTX") == "1":
        return ptx.encode(), None
    version = tool_version("nvjitlink")
    if version is not None and _nvjitlink() is not None:
        return _by_nvjitlink(ptx, architecture), ("nvjitlink", version)
    version = tool_version("ptxas")
    if version is not None:
        return _by_ptxas(ptx, architecture), ("ptxas", version)
    return ptx.encode(), None


def load() -> None:
    """Load the library that `assemble` would."""
    if os.environ.get("KHALJIT_CUDA_KEEP_PTX") != "1" and tool_version("nvjitlink") is not None:
        _nvjitlink()


def tool_version(name: str) -> str | None:
    """The version of ``nvjitlink`` or ``ptxas`` here; None where it is not."""
    if name == "nvjitlink":
        return _nvjitlink_version()
    return _ptxas_version() if name == "ptxas" else None


@lru_cache(maxsize=1)
def _nvjitlink() -> Any:
    """The binding, where it and the library it binds are both there."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except Exception:  # whatever a missing or unfit library raises
        return None
    return nvjitlink


@lru_cache(maxsize=1)
def _nvjitlink_version() -> str | None:
    """Told by the wheel where there is one: loading the library for it takes 40 ms."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return None
    version = _wheel_version("nvidia_nvjitlink")
    if version is not None:
        return ".".join(version.split(".")[:2])
    library = _nvjitlink()
    return None if library is None else ".".join(map(str, library.version()))


def _wheel_version(distribution: str) -> str | None:
    """The version of a wheel of NVIDIA's beside the others, by the name of its folder."""
    for folder in _wheels():
        for found in os.listdir(os.path.dirname(folder)):
            if found.startswith(f"{distribution}-") and found.endswith(".dist-info"):
                return found.removesuffix(".dist-info").partition("-")[2]
    return None


def _wheels() -> list[str]:
    """The folders that NVIDIA's wheels share, each beside what describes them."""
    spec = find_spec("nvidia")
    return [] if spec is None else [*(spec.submodule_search_locations or ())]


def _by_nvjitlink(ptx: str, architecture: str) -> bytes:
    library = _nvjitlink()
    options = [f"-arch={architecture}", "-O3"]
    handle = library.create(len(options), options)
    try:
        data = ptx.encode()
        try:
            library.add_data(handle, library.InputType.PTX, data, len(data), "khaljit")
            library.complete(handle)
        except library.nvJitLinkError as error:
            log = bytearray(library.get_error_log_size(handle))
            library.get_error_log(handle, log)
            raise InternalError(f"nvJitLink refused PTX: {error}\n{log.decode()}") from None
        cubin = bytearray(library.get_linked_cubin_size(handle))
        library.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    finally:
        library.destroy(handle)


@cache
def tool_path(name: str) -> str | None:
    """The path of a tool of CUDA's: of a wheel, of a toolkit, or on the PATH."""
    file = f"{name}.exe" if os.name == "nt" else name
    for package in _WHEELS:
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(folder) / "bin" / file
            if path.is_file():
                return str(path)
    for root in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"))):
        found = shutil.which(name, path=str(Path(root) / "bin"))
        if found:
            return found
    return shutil.which(name)


@lru_cache(maxsize=1)
def _ptxas_version() -> str | None:
    path = tool_path("ptxas")
    if path is None:
        return None
    if any(path.startswith(os.path.join(folder, "")) for folder in _wheels()):
        version = _wheel_version("nvidia_cuda_nvcc")
        if version is not None:  # to ask it takes 10 ms
            return version
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if found else None


def _by_ptxas(ptx: str, architecture: str) -> bytes:
    path = tool_path("ptxas")
    assert path is not None
    with tempfile.TemporaryDirectory(prefix="khaljit-") as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        done = subprocess.run(
            [path, f"-arch={architecture}", "-O3", str(source), "-o", str(result)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise InternalError(f"ptxas refused PTX:\n{done.stderr}")
        return result.read_bytes()
