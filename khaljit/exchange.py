"""Arrays of other libraries, taken and given without a copy: DLPack and the CUDA array interface.

`adopt` makes an argument of what PyTorch, CuPy, JAX, Numba and others have: a NumPy array where
the memory is the host's, an `Array` where it is a GPU's. PyTorch and CuPy work on a current
stream, and so does a kernel that takes their arrays; others are asked to order their work before
the device's stream, or tell theirs. `export` gives DLPack capsules; the stream that the taker
names is where khaljit works on that array from then on.
"""

from __future__ import annotations

import ctypes
import math
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np

from khaljit.tracer.dtypes import (
    ALL,
    DType,
    bf16,
    bool_,
    by_numpy,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError
from khaljit.tracer.vectors import VectorType

if TYPE_CHECKING:
    from khaljit.arrays import Array
    from khaljit.backends.cuda.device import CudaDevice
    from khaljit.backends.cuda.streams import Stream

__all__ = ["adopt", "as_vectors", "dlpack_capsule", "dlpack_device", "interface_of"]

# DLPack's numbers.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY: Final = 1
VERSION: Final = (1, 0)

_CODES: Final = {
    **{(0, dtype.bits): dtype for dtype in (i8, i16, i32, i64)},
    **{(1, dtype.bits): dtype for dtype in (u8, u16, u32, u64)},
    **{(2, dtype.bits): dtype for dtype in (f16, f32, f64)},
    (4, 16): bf16,
    (6, 8): bool_,
}
_CODE_OF: Final = {dtype: code for code, dtype in _CODES.items()}
assert set(_CODE_OF) == set(ALL)


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class _Versioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# Names of capsules; they live as long as the capsules that point to them.
_OLD: Final = b"dltensor"
_NEW: Final = b"dltensor_versioned"
_USED: Final = {_OLD: b"used_dltensor", _NEW: b"used_dltensor_versioned"}
_KINDS: Final[dict[bytes, type[_Managed | _Versioned]]] = {_OLD: _Managed, _NEW: _Versioned}


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid: Final = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_get_pointer: Final = _function(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)
_set_name: Final = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# A destructor sees an object that is going: by its address, so that nobody counts references.
_is_valid_at: Final = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_get_pointer_at: Final = _function(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule: Final = _function(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor
)


# Taking.


def adopt(value: Any) -> Array[Any] | np.ndarray[Any, Any] | None:
    """The array that an object of another library is; None for what is no array."""
    if hasattr(type(value), "__dlpack_device__"):
        return _from_dlpack(value)
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else _from_interface(value, interface)


def as_vectors(array: Array[Any], element: Any) -> Array[Any]:
    """An array of numbers as one of vectors, where vectors are asked for: its last axis."""
    if (
        not isinstance(element, VectorType)
        or array.dtype is not element.dtype
        or array.ndim == 0
        or array.shape[-1] != element.count
        or array.strides[-1] != array.itemsize
    ):
        return array
    return array.seen_as(element, array.shape[:-1], array.strides[:-1])


def _from_dlpack(value: Any) -> Array[Any] | np.ndarray[Any, Any]:
    kind, number = (int(one) for one in value.__dlpack_device__())
    if kind in (CPU, CUDA_HOST):
        return _on_host(_Borrowed(value, None))
    if kind not in (CUDA, CUDA_MANAGED):
        raise ArgumentTypeError(
            f"a {type(value).__name__} lives on a device of DLPack's kind {kind}",
            mend="pass arrays of the CPU or of an NVIDIA GPU",
        )
    device = _gpu(number)
    stream = _current_stream(type(value), number)
    borrowed = _Borrowed(value, device.own.handle if stream is None else -1)
    device.enter()
    return device.adopt_memory(
        borrowed.address,
        borrowed.nbytes,
        borrowed.dtype,
        borrowed.shape,
        borrowed.strides,
        stream,
        borrowed,
        read_only=borrowed.read_only,
    )


def _from_interface(value: Any, interface: dict[str, Any]) -> Array[Any]:
    from khaljit.backends.cuda.streams import stream_of

    address, read_only = interface["data"]
    dtype = by_numpy(np.dtype(interface["typestr"]))
    if dtype is None:
        raise ArgumentTypeError(
            f"a {type(value).__name__} of {interface['typestr']} has no khaljit dtype",
            mend="convert it to one, such as f32",
        )
    device = _gpu(_number_of(address or 0))
    stream, handle = _current_stream(type(value), device.number), interface.get("stream")
    if stream is None and handle is not None:
        stream = stream_of(_plain(handle))
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    return device.adopt_memory(
        address or 0,
        math.prod(shape) * dtype.size,
        dtype,
        shape,
        None if strides is None else tuple(strides),
        stream,
        value,
        read_only=bool(read_only),
    )


def _plain(handle: int) -> int:
    """The driver's handle of a stream of the interfaces, where 1 is the default one."""
    return 0 if handle == 1 else handle


def _number_of(address: int) -> int:
    """The GPU that memory is on."""
    from khaljit.backends.cuda import driver

    if not address:
        return 0
    kind = driver.library().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(driver.call("cuPointerGetAttribute", kind, address, what="looking at an array"))


def _gpu(number: int) -> CudaDevice:
    from khaljit.devices import device

    found: Any = device(f"cuda:{number}")
    return found  # type: ignore[no-any-return]  # what the name says


@cache
def _library(kind: type) -> str:
    """The library of a type that works on a current stream."""
    roots = {one.__module__.partition(".")[0] for one in kind.__mro__}
    return next((name for name in ("torch", "cupy") if name in roots), "")


def _current_stream(kind: type, number: int) -> Stream | None:
    """The stream on which a library works now, if it has such."""
    from khaljit.backends.cuda.streams import stream_of

    name = _library(kind)
    if name == "torch":
        found: Any = sys.modules["torch"].cuda.current_stream(number)
        return stream_of(found.cuda_stream, found)
    if name == "cupy":
        found = sys.modules["cupy"].cuda.get_current_stream(number)
        return stream_of(_plain(found.ptr), found)
    return None


_WITHOUT_VERSIONS: Final[set[type]] = set()  # whose capsules are of the first kind only


@final
class _Borrowed:
    """What a capsule holds; given back when nobody uses it any more."""

    def __init__(self, value: Any, stream: int | None) -> None:
        self._managed: Any = None
        capsule = _capsule_of(value, stream)
        name = next((name for name in _KINDS if _is_valid(capsule, name)), None)
        if name is None:
            raise ArgumentTypeError(
                f"a {type(value).__name__} gives no DLPack capsule", mend="pass another array"
            )
        managed = _KINDS[name].from_address(_get_pointer(capsule, name))
        tensor = managed.tensor
        dtype = _CODES.get((tensor.code, tensor.bits))
        if dtype is None or tensor.lanes != 1:
            raise ArgumentTypeError(
                f"a {type(value).__name__} of DLPack's type {tensor.code} with {tensor.bits} bits "
                f"and {tensor.lanes} lanes has no khaljit dtype",
                mend="convert it to one, such as f32",
            )
        _set_name(capsule, _USED[name])
        self._managed = managed
        self.dtype: Final[DType] = dtype
        self.shape: Final[tuple[int, ...]] = tuple(
            tensor.shape[axis] for axis in range(tensor.ndim)
        )
        self.strides: Final = (
            tuple(tensor.strides[axis] * dtype.size for axis in range(tensor.ndim))
            if tensor.strides
            else None
        )
        self.address: Final[int] = (tensor.data or 0) + tensor.byte_offset
        self.read_only: Final = isinstance(managed, _Versioned) and bool(managed.flags & READ_ONLY)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size

    def __del__(self) -> None:
        if self._managed is not None and self._managed.deleter and not sys.is_finalizing():
            self._managed.deleter(ctypes.addressof(self._managed))


def _capsule_of(value: Any, stream: int | None) -> Any:
    """A capsule, of the second kind where the library has it."""
    kind = type(value)
    options: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        if kind not in _WITHOUT_VERSIONS:
            try:
                return value.__dlpack__(**options, max_version=VERSION)
            except TypeError:
                _WITHOUT_VERSIONS.add(kind)
        return value.__dlpack__(**options)
    except (BufferError, RuntimeError, ValueError) as error:
        raise ArgumentTypeError(
            f"a {kind.__name__} cannot be passed as it is: {error}",
            mend="of PyTorch's, pass tensor.detach()",
        ) from None


class _Place:
    """Borrowed memory as NumPy's array interface describes it."""

    def __init__(
        self, borrowed: _Borrowed, typestr: str, shape: tuple[int, ...], strides: Any
    ) -> None:
        self._keep: Final = borrowed
        self.__array_interface__ = {
            "version": 3,
            "data": (borrowed.address, borrowed.read_only),
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
        }


def _on_host(borrowed: _Borrowed) -> Array[Any] | np.ndarray[Any, Any]:
    """A NumPy array; of bf16, which NumPy has not, an array of the CPU device."""
    from khaljit.arrays import Array, contiguous
    from khaljit.devices import device

    dtype, shape, strides = borrowed.dtype, borrowed.shape, borrowed.strides
    if dtype is not bf16:
        if 0 in shape:
            return np.empty(shape, dtype.numpy)  # an address may be missing
        return np.asarray(_Place(borrowed, dtype.numpy.str, shape, strides))
    steps = strides or contiguous(device("cpu"), None, dtype, shape).strides
    span = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + dtype.size
    memory = np.asarray(_Place(borrowed, "|u1", (span,), None)) if 0 not in shape else np.empty(0)
    return Array(device("cpu"), memory, dtype, shape, steps)


# Giving.


def dlpack_device(array: Array[Any]) -> tuple[int, int]:
    """Where an array lives, as DLPack says it; BufferError where DLPack has no word for it."""
    if array.device.kind == "cuda":
        device: Any = array.device
        return CUDA, device.number
    if not array.device.has_own_memory:
        return CPU, 0
    raise BufferError(f"DLPack knows no arrays of {array.device}")


def interface_of(array: Array[Any]) -> dict[str, Any]:
    """The CUDA array interface; AttributeError for arrays that are on no GPU of CUDA's."""
    from khaljit.arrays import host_dtype, host_shape, host_strides

    if array.device.kind != "cuda":
        raise AttributeError(f"{array!r} has no CUDA array interface")
    dtype, shape = host_dtype(array.dtype), host_shape(array)
    strides = None if array.is_contiguous else host_strides(array)
    return {
        "version": 3,
        "shape": shape,
        "typestr": dtype.str,
        "data": (array.address if array.size else 0, False),
        "strides": strides,
        "stream": array.buffer.stream.handle or 1,
    }


# What is given away, by the address of its description, until the taker is done with it.
_GIVEN: Final[dict[int, tuple[object, ...]]] = {}


def _take_back(address: int) -> None:
    _GIVEN.pop(address, None)


def _drop_capsule(capsule: int) -> None:
    """Take back what nobody took."""
    for name in _KINDS:
        if _is_valid_at(capsule, name):
            _take_back(_get_pointer_at(capsule, name))


# As C calls them; they live as long as what was given.
_DELETER: Final = _Deleter(_take_back)
_DESTRUCTOR: Final = _Destructor(_drop_capsule)


def dlpack_capsule(
    array: Array[Any],
    stream: int | None,
    max_version: tuple[int, int] | None,
    target: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """A capsule with an array's memory, for ``from_dlpack`` of any library."""
    from khaljit.arrays import host_shape, host_strides

    place = dlpack_device(array)
    if target is not None and tuple(target) != place:
        raise BufferError(f"{array!r} is asked for on another device: copy it there first")
    if copy:
        source, array = array, array.device.empty(array.shape, array.dtype)
        array.device.copy(source, array)
    if place[0] == CUDA:
        _follow(array, stream)
    elif stream is not None:
        raise ArgumentValueError("an array on the CPU has no stream", mend="leave stream out")
    scalar = array.dtype.dtype if isinstance(array.dtype, VectorType) else array.dtype
    if not isinstance(scalar, DType):
        raise BufferError(f"DLPack knows no structs: take one field, or {array!r}.numpy()")
    shape, strides = host_shape(array), host_strides(array)
    code, bits = _CODE_OF[scalar]
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*(step // scalar.size for step in strides))
    tensor = _Tensor(
        array.address if array.size else 0, *place, len(shape), code, bits, 1, extents, steps, 0
    )
    managed: Any
    if max_version is not None and max_version[0] >= VERSION[0]:
        name, managed = _NEW, _Versioned(*VERSION, None, _DELETER, 0, tensor)
    else:
        name, managed = _OLD, _Managed(tensor, None, _DELETER)
    address = ctypes.addressof(managed)
    _GIVEN[address] = (managed, array.buffer, extents, steps)
    return _new_capsule(address, name, _DESTRUCTOR)


def _follow(array: Array[Any], stream: int | None) -> None:
    """Let the taker's stream wait, and work there from now on."""
    from khaljit.backends.cuda.streams import stream_of

    if stream == -1:
        return
    device: Any = array.device
    device.enter()
    taker = stream_of(_plain(1 if stream is None else int(stream)))
    device.order(array.buffer, taker)
    array.buffer.home = taker
