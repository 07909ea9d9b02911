"""The CUDA driver: its calls with errors raised, contexts made current, handles owned.

This is the one module that imports ``cuda.bindings.driver``.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

from khaljit.tracer.errors import DeviceError

__all__ = ["Context", "DriverError", "address", "call", "count", "fail", "library", "status"]

ABI: Final = 12000  # the version of CUDA whose functions native code calls

_MENDS: Final = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free arrays, or use smaller ones",
    "CUDA_ERROR_NO_DEVICE": "there is no NVIDIA GPU here, or it is hidden by CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_INVALID_DEVICE": "khaljit devices lists the GPUs that are here",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the code is for another architecture: unset KHALJIT_CUDA_ARCH",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "update the NVIDIA driver",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart after updating the NVIDIA driver",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use a smaller workgroup or less shared memory",
    "CUDA_ERROR_NOT_FOUND": "give the name of an entry point of the code",
}
# After these the context is lost, and every later call fails.
_STICKY: Final = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        *("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "ASSERT", "HARDWARE_STACK_ERROR"),
        *("ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC"),
        *("LAUNCH_TIMEOUT", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED"),
    )
)


class DriverError(DeviceError):
    """What the driver said.

    Attributes:
        code: the driver's name for it.
    """

    def __init__(self, message: str, code: str, *, mend: str | None = None) -> None:
        super().__init__(message, mend=mend)
        self.code: Final = code

    @property
    def sticky(self) -> bool:
        """Whether the context is lost."""
        return self.code in _STICKY


@lru_cache(maxsize=1)
def library() -> Any:
    """The binding, initialised; DeviceError where it, the driver or a GPU is missing."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        raise DeviceError(
            "the package cuda-python is not installed",
            mend="pip install 'khaljit[cuda]'",
        )
    from cuda.bindings import driver

    try:
        (status,) = driver.cuInit(0)
    except Exception as error:
        raise DeviceError(
            f"the NVIDIA driver cannot be loaded: {error}", mend="install the NVIDIA driver"
        ) from None
    if status:
        raise _error(driver, status, "starting CUDA")
    return driver


def _error(driver: Any, status: Any, what: str) -> DriverError:
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    label = name.decode() if isinstance(name, bytes) else str(status)
    words = text.decode() if isinstance(text, bytes) else ""
    return DriverError(f"{what}: {label} ({words})", label, mend=_MENDS.get(label))


def fail(status: Any, what: str) -> DriverError:
    """The error for a status that is not success."""
    return _error(library(), status, what)


def status(number: int) -> Any:
    """The binding's name for a status that native code got."""
    return library().CUresult(number)


def call(name: str, *args: Any, what: str | None = None) -> Any:
    """Call a function of the driver by name; gives its results without the status.

    Raises DriverError with the driver's own name for what went wrong.
    """
    driver = library()
    status, *results = getattr(driver, name)(*args)
    if status:
        raise _error(driver, status, what or name)
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def address(name: str) -> int | None:
    """Where a function is, for native code; None where the driver does not say."""
    status, found, *_ = library().cuGetProcAddress(name.encode(), ABI, 0)
    return None if status or not found else int(found)


def count() -> int:
    """How many GPUs there are."""
    return int(call("cuDeviceGetCount"))


class Context:
    """The primary context of a GPU, the one that PyTorch and CuPy use too."""

    def __init__(self, number: int) -> None:
        self.device: Final = call("cuDeviceGet", number, what=f"opening GPU {number}")
        self.handle: Final = call("cuDevicePrimaryCtxRetain", self.device)
        self._set: Final = library().cuCtxSetCurrent

    def enter(self) -> None:
        """Make it this thread's current context; another library may have set another."""
        (status,) = self._set(self.handle)
        if status:
            raise fail(status, "entering the GPU's context")

    def attribute(self, name: str) -> int:
        """A number that describes the GPU."""
        kind = getattr(library().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", kind, self.device))

    def name(self) -> str:
        """What its maker calls it."""
        return bytes(call("cuDeviceGetName", 128, self.device)).split(b"\0")[0].decode()

    def total_memory(self) -> int:
        """Bytes of memory."""
        return int(call("cuDeviceTotalMem", self.device))
