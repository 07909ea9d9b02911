"""Adapters: the binding, which GPU to take, and what to ask of it.

Features and limits are negotiated, never set by hand: a device is asked for everything of
`FEATURES` that its adapter has, and for the adapter's own limits.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from khaljit.tracer.errors import DeviceError

__all__ = [
    "DRIVERS",
    "FEATURES",
    "adapters",
    "binding",
    "choose",
    "expect_own_process",
    "facts",
    "open_device",
]

# Features that khaljit uses where an adapter has them, and what is lost without. Never all that
# an adapter lists: some that are listed cannot be had.
FEATURES: Final = {
    "immediates": "parameters go through a uniform buffer",
    "timestamp-query": "no profiles",
    "shader-f16": "f16 is stored as u16 and computed in f32",
    "shader-int64": "64-bit integers are pairs of words",
    "shader-f64": "no f64",
    "shader-float32-atomic": "float atomics by compare-exchange",
    "shader-int64-atomic-all-ops": "no 64-bit atomics",
    "subgroup": "subgroup operations go through workgroup memory",
    "subgroup-barrier": "no subgroup barriers of their own",
}
IMMEDIATES: Final = 128  # bytes of parameters that travel with a dispatch

# What to install, per system, when no adapter is found.
DRIVERS: Final = {
    "Debian, Ubuntu": "apt install mesa-vulkan-drivers  (runs on any CPU; GPUs of AMD and Intel)",
    "Fedora": "dnf install mesa-vulkan-drivers",
    "Arch": "pacman -S vulkan-swrast  (CPU), vulkan-radeon, vulkan-intel or nvidia-utils",
    "Alpine": "apk add mesa-vulkan-swrast",
    "NVIDIA": "the driver's own Vulkan part: nvidia-driver with libnvidia-gl; in containers "
    "NVIDIA_DRIVER_CAPABILITIES=graphics,compute",
    "macOS, Windows": "nothing: Metal and Direct3D 12 come with the system",
}
MEND: Final = (
    "install a Vulkan driver: mesa-vulkan-drivers on Debian and Ubuntu has one that needs no GPU; "
    "khaljit doctor says more"
)


def binding() -> Any:
    """The package wgpu; DeviceError where it is missing."""
    if find_spec("wgpu") is None:
        raise DeviceError("the package wgpu is not installed", mend="pip install wgpu")
    # Without this variable, which is about windows, drivers complain on stderr.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    import wgpu

    return wgpu


def expect_own_process() -> None:
    """DeviceError in a child of the process that used wgpu first: the threads of the driver are
    not in it, and who waits for them would wait for ever."""
    if os.getpid() != _process():
        raise DeviceError(
            "WebGPU was used before the process forked, and works in no child",
            mend="open devices after forking, or start processes with spawn",
        )


@cache
def _process() -> int:
    return os.getpid()


def adapters() -> list[Any]:
    """All adapters, in the order that numbers them."""
    expect_own_process()
    try:
        return list(binding().gpu.enumerate_adapters_sync())
    except RuntimeError as error:
        raise DeviceError(f"there is no WebGPU adapter: {error}", mend=MEND) from None


def choose(number: int | None, *, hardware: bool = False) -> Any:
    """An adapter by its number; without one the fastest, which may have to be hardware."""
    if number is not None:
        found = adapters()
        if number >= len(found):
            raise DeviceError(
                f"there is no adapter {number}: {len(found)} are here",
                mend="they are numbered from 0; `khaljit devices` lists them" if found else MEND,
            )
        return found[number]
    expect_own_process()
    try:
        chosen = binding().gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        raise DeviceError(f"there is no WebGPU adapter: {error}", mend=MEND) from None
    if hardware and chosen.info["adapter_type"] == "CPU":
        raise DeviceError(
            f"the only WebGPU adapter, {chosen.info['device']}, computes on the CPU",
            mend='ask for it by name: kj.device("webgpu")',
        )
    return chosen


def open_device(adapter: Any) -> Any:
    """A device with all that khaljit uses of what the adapter has."""
    features = [name for name in FEATURES if name in adapter.features]
    limits = {name: value for name, value in adapter.limits.items() if isinstance(value, int)}
    if "immediates" in features:
        limits["max-immediate-size"] = min(IMMEDIATES, limits["max-immediate-size"])
    try:
        return adapter.request_device_sync(required_features=features, required_limits=limits)
    except RuntimeError as error:
        raise DeviceError(f"{adapter.info['device']} cannot be opened: {error}") from None


def facts(info: Mapping[str, Any], features: Any, limits: Mapping[str, Any]) -> dict[str, str]:
    """What an adapter or device is, has and lacks, for people."""
    missing = [f"{name} ({loss})" for name, loss in FEATURES.items() if name not in features]
    size = [limits[f"max-compute-workgroup-size-{axis}"] for axis in "xyz"]
    return {
        "adapter": f"{info['device']} ({info['adapter_type']})",
        "through": str(info["backend_type"]),
        "driver": str(info.get("description", "")),
        "features": ", ".join(name for name in FEATURES if name in features) or "none",
        "missing": ", ".join(missing) or "nothing",
        "largest array": f"{limits['max-storage-buffer-binding-size']} bytes",
        "workgroup": f"{limits['max-compute-invocations-per-workgroup']} invocations, "
        f"{' x '.join(map(str, size))}",
        "workgroup memory": f"{limits['max-compute-workgroup-storage-size']} bytes",
        "arrays per kernel": str(limits["max-storage-buffers-per-shader-stage"]),
    }
