"""Arrays that live on a device.

An `Array` is a view into a device's buffer: an offset, a shape, strides and an element type.
Slicing gives views of the same memory. ``kj.Array[kj.f32]`` is also the annotation of an array
parameter with any number of axes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, final

import numpy as np

from khaljit.annotations import array_of
from khaljit.stored import stored
from khaljit.tracer.elements import ElementType, element_of, host_dtype, inner_strides, tail
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError

if TYPE_CHECKING:
    from khaljit.backends.base import Device
    from khaljit.graphs.params import ArrayParam

__all__ = [
    "Array",
    "contiguous",
    "extent",
    "host_dtype",
    "host_shape",
    "host_strides",
    "overlap",
    "span",
    "steps",
]


_E = TypeVar("_E")

if TYPE_CHECKING:

    class _OfElements(Generic[_E]):
        """Type checkers know arrays by their elements."""

else:

    class _OfElements:
        """``Array[kj.f32]`` is the annotation of an array with any number of axes."""

        __slots__ = ()

        def __class_getitem__(cls, element: Any) -> Any:
            return cls if isinstance(element, TypeVar) else array_of(element, None)


@final
class Array(_OfElements[_E]):
    """An array on a device; made by ``device.array``, ``empty``, ``zeros`` and ``full``.

    Attributes:
        device: where it lives.
        dtype: element type: a scalar dtype, a vector type such as ``kj.vec3``, or a struct.
        shape: extents, vectors and structs counting as one element.
        strides: bytes from one index to the next, per axis.
        offset: bytes from the start of the buffer to the first element.
        buffer: the device's own handle of the memory.
        param: the graph's parameter that it is a view of, or None.
    """

    __slots__ = ("__weakref__", "buffer", "device", "dtype", "offset", "param", "shape", "strides")
    _kj_array = True

    def __init__(
        self,
        device: Device,
        buffer: Any,
        dtype: ElementType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        param: ArrayParam | None = None,
    ) -> None:
        self.device = device
        self.buffer = buffer
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.param = param

    def __repr__(self) -> str:
        return f"<khaljit array {self.dtype!r}{list(self.shape)} on {self.device}>"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return element_of(self.dtype).size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def address(self) -> int:
        """What tells the alignment of the first element: its address, or its place in a buffer."""
        return self.device.address_of(self.buffer) + self.offset

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one behind the other in the order of the indices."""
        expected = self.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return self.size == 0
            expected *= extent
        return True

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("an array without axes has no length", mend="use array.size")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array[Any]]:
        """Views along the first axis."""
        return (self[k] for k in range(len(self)))

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"{self!r} belongs to its device, and is neither pickled nor copied like this",
            mend="copy it with device.array(a); send a.numpy() to another process",
        )

    def __setitem__(self, key: Any, values: Any) -> None:
        """Write to part of the array; a single value fills it."""
        part = self[key]
        if np.ndim(values) == 0 and not isinstance(values, Array):
            part.fill(values)
            return
        if (
            isinstance(values, Array)
            and self.device.reaches(values.device)
            and (values.shape, values.dtype) == (part.shape, part.dtype)
        ):
            self.device.copy(values, part)
            return
        host = np.asarray(stored(values, self.dtype), host_dtype(self.dtype))
        try:
            host = np.broadcast_to(host, host_shape(part))
        except ValueError:
            raise ArgumentValueError(
                f"values of shape {host.shape} are assigned to a part of shape {host_shape(part)}",
                mend="give them that shape; they are repeated along axes that they lack",
            ) from None
        part.write(host)

    def __getitem__(self, key: Any) -> Any:
        """A view of part of the array: ints, slices, ``...`` and None, as NumPy has them.

        With an int for every axis it is a view without axes, of one element.
        """
        parts = key if isinstance(key, tuple) else (key,)
        if not all(map(_is_part, parts)):
            raise ArgumentTypeError(
                f"{self!r} is indexed with {key!r}",
                mend="views are made with ints and slices; use array.numpy()[...] for the rest",
            )
        template = _template(self)
        try:
            view = template[parts if Ellipsis in parts else (*parts, ...)]
        except IndexError as error:
            raise ArgumentValueError(
                f"{self!r} is indexed with {key!r}: {error}", mend=f"its shape is {self.shape}"
            ) from None
        moved = view.ctypes.data - template.ctypes.data
        return self.seen_as(self.dtype, view.shape, view.strides, moved)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the elements as a NumPy array, once all work on them is done.

        Vectors become a last axis and structs structured elements; bf16 comes as its bits, in
        uint16. Shows what kernels printed and raises what they reported, as
        ``device.synchronize()`` does.
        """
        found = self.device.read(self)
        self.device.observe()
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ArgumentValueError(
                "an array of a device cannot be a NumPy array without a copy",
                mend="use np.asarray(a) or a.numpy()",
            )
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    async def numpy_async(self) -> np.ndarray[Any, Any]:
        """A copy of the elements, awaiting the device instead of blocking the event loop."""
        import asyncio  # 20 ms, for the few who await

        pending = self.device.begin_read((self,))
        while not pending.ready():
            self.device.poll()
            await asyncio.sleep(0)
        found = pending.take()[0]
        self.device.observe()
        return found

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        from khaljit.exchange import interface_of  # for those who exchange arrays

        return interface_of(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        from khaljit.exchange import dlpack_device

        return dlpack_device(self)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        from khaljit.exchange import dlpack_capsule

        return dlpack_capsule(self, stream, max_version, dl_device, copy)

    @property
    def native(self) -> Any:
        """The device's own handle of the memory: a NumPy array of bytes on the CPU, the wgpu buffer
        on WebGPU, the address on CUDA. What was enqueued before is submitted."""
        return self.device.native_of(self)

    @property
    def alignment(self) -> int:
        """Bytes that the address of every element is a multiple of."""
        return element_of(self.dtype).alignment

    @property
    def units(self) -> tuple[int, ...]:
        """Strides in the units that kernels count."""
        unit = element_of(self.dtype).align
        return tuple(stride // unit for stride in self.strides)

    def view(self, dtype: Any) -> Array[Any]:
        """The same bytes as elements of another type; the last axis grows or shrinks to fit."""
        size = self.itemsize
        other = self.seen_as(dtype, self.shape, self.strides)
        if other.itemsize == size:
            return other
        if not self.is_contiguous or not self.shape or self.shape[-1] * size % other.itemsize:
            raise ArgumentValueError(
                f"{self!r} cannot be viewed as {dtype!r}",
                mend="the array must be contiguous, and its last axis a whole number of elements",
            )
        shape = (*self.shape[:-1], self.shape[-1] * size // other.itemsize)
        return self.seen_as(dtype, shape, steps(dtype, shape))

    def reshape(self, *shape: int | tuple[int, ...]) -> Array[Any]:
        """The same elements in another shape, without a copy; one extent may be -1.

        Raises:
            ArgumentValueError: the shape has another number of elements, or they do not lie one
                behind the other.
        """
        extents: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        try:
            found = np.broadcast_to(np.uint8(0), self.shape).reshape(extents).shape
        except (TypeError, ValueError):
            raise ArgumentValueError(
                f"{self!r} has no shape {extents}", mend=f"it has {self.size} elements"
            ) from None
        if not self.is_contiguous:
            raise ArgumentValueError(
                f"the elements of {self!r} do not lie one behind the other",
                mend="copy them first: device.array(a).reshape(...)",
            )
        return self.seen_as(self.dtype, found, steps(self.dtype, found))

    def seen_as(
        self, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], moved: int = 0
    ) -> Array[Any]:
        """Another view of the same memory, beginning so many bytes further."""
        return Array(
            self.device, self.buffer, dtype, shape, strides, self.offset + moved, self.param
        )

    def write(self, values: Any) -> None:
        """Replace the elements by those of an array-like of the same shape."""
        self.device.write(self, values)

    def fill(self, value: Any) -> None:
        """Set every element to one value."""
        self.device.fill(self, value)


def _is_part(part: object) -> bool:
    """Whether an index makes a view."""
    is_int = isinstance(part, int | np.integer) and not isinstance(part, bool)
    return is_int or part is None or part is ... or isinstance(part, slice)


def contiguous(
    device: Device, buffer: Any, dtype: Any, shape: tuple[int, ...], offset: int = 0
) -> Array[Any]:
    """An array whose elements lie one behind the other."""
    return Array(device, buffer, dtype, shape, steps(dtype, shape), offset)


def steps(dtype: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides in bytes of elements that lie one behind the other."""
    found = list(itertools.accumulate((element_of(dtype).size, *reversed(shape)), operator.mul))
    return tuple(reversed(found[:-1]))


def extent(array: Array[Any]) -> tuple[int, int]:
    """The bytes of its buffer between which an array lies."""
    if 0 in array.shape:
        return array.offset, array.offset
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    start = array.offset + sum(span for span in spans if span < 0)
    return start, array.offset + sum(span for span in spans if span > 0) + array.itemsize


def span(array: Array[Any]) -> tuple[int, int]:
    """The addresses between which an array lies."""
    base = array.device.address_of(array.buffer)
    start, stop = extent(array)
    return base + start, base + stop


def overlap(a: Array[Any], b: Array[Any]) -> bool:
    """Whether two arrays may touch the same bytes."""
    if a.device is not b.device:
        return False
    (start, stop), (other_start, other_stop) = span(a), span(b)
    return start < other_stop and other_start < stop


def host_shape(array: Array[Any]) -> tuple[int, ...]:
    """The shape on the host, where a vector is a last axis."""
    return (*array.shape, *tail(array.dtype))


def host_strides(array: Array[Any]) -> tuple[int, ...]:
    """The strides on the host, in bytes."""
    return (*array.strides, *inner_strides(array.dtype))


def _template(array: Array[Any]) -> np.ndarray[Any, Any]:
    """A NumPy array of the same shape and strides, whose elements nobody reads."""
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if n]
    below = -sum(span for span in spans if span < 0)
    reach = sum(map(abs, spans)) + array.itemsize
    return np.ndarray(
        array.shape,
        np.dtype((np.void, array.itemsize)),
        buffer=np.empty(reach, np.uint8),  # never touched, so the system gives it no pages
        offset=below,
        strides=array.strides,
    )
