"""Memory of a kernel: shared, local and constant; atomics and barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.coerce import store_cast
from khaljit.tracer.dtypes import DType, bool_
from khaljit.tracer.elements import is_kind, is_struct, name_of
from khaljit.tracer.ir import AtomicAccess, Space
from khaljit.tracer.memory import Array, declare
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import Scalar, describe, fail
from khaljit.tracer.recorder import Recorder, current
from khaljit.tracer.structs import numpy_struct

__all__ = [
    "atomic_add",
    "atomic_and",
    "atomic_compare_exchange",
    "atomic_exchange",
    "atomic_load",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_store",
    "atomic_sub",
    "atomic_xor",
    "barrier",
    "constant",
    "guard_contents",
    "local",
    "shared",
    "storage_barrier",
    "subgroup_barrier",
]


def _fixed_shape(shape: Any) -> tuple[int, ...]:
    extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    for extent in extents:
        if type(extent) is int and extent < 0:
            fail(f"the shape {shape!r} has a negative extent", "an extent is 0 or more")
        if type(extent) is not int:
            fail(
                f"the shape {shape!r} is not fixed while the kernel is recorded",
                "use Python ints, kj.Const[int] arguments, or kj.workgroup_size(axis)",
            )
    return extents


def shared(dtype: Any, shape: Any) -> Array:
    """Memory that the invocations of a workgroup share; undefined until written."""
    return _declare(Space.SHARED, "shared", dtype, shape)


def local(dtype: Any, shape: Any) -> Array:
    """Memory of this invocation alone; undefined until written."""
    return _declare(Space.LOCAL, "local", dtype, shape)


def _declare(space: Space, name: str, dtype: Any, shape: Any) -> Array:
    recorder = current(f"kj.{name}")
    recorder.mark()
    if not is_kind(dtype):
        found = dtypes.meant(dtype)
        fail(
            f"{dtype!r} is no type that memory can hold",
            f"write {found}" if found else "use kj.f32, kj.vec3, a struct, ...",
        )
    return declare(recorder, space, name, dtype, _fixed_shape(shape))


def constant(data: Any) -> Array:
    """A table of numbers that becomes part of the code; indexed with run-time values.

    Its contents are read when the kernel is recorded, and are part of the cache key.
    """
    recorder = current("kj.constant")
    recorder.mark()
    array = np.asarray(data)
    if array.dtype == np.float64 and not isinstance(data, np.ndarray | np.generic):
        array = array.astype(np.float32)
    if array.dtype == np.int64 and not isinstance(data, np.ndarray | np.generic):
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        if low < -(1 << 31) or high >= 1 << 31:
            fail("a table holds an integer that does not fit i32", "give it a dtype: np.array(...)")
        array = array.astype(np.int32)
    kind = dtypes.by_numpy(array.dtype) or numpy_struct(array.dtype)
    if kind is None:
        fail(f"a table of {array.dtype} cannot be a constant", "use numbers of a kj dtype")
    if isinstance(data, np.ndarray):
        guard_contents(recorder, data)
    return declare(recorder, Space.TABLE, "constant", kind, array.shape, array)


def guard_contents(recorder: Recorder, data: np.ndarray[Any, Any]) -> None:
    """Remember what an array from outside holds: its elements become part of the trace."""
    recorder.guard(("contents", id(data)), "elements of a captured array", data.tobytes)


def _atomic(kind: str, array: Any, key: Any, operands: Sequence[Any], order: str) -> Scalar:
    what = f"kj.atomic_{kind}"
    recorder = current(what)
    recorder.mark()
    if not isinstance(array, Array):
        fail(f"{what} works on array elements, not on {describe(array)}", f"{what}(a, i, value)")
    dtype = array._kind
    if not isinstance(dtype, DType):
        parts = "a field: (a.count, i)" if is_struct(dtype) else "a component: (a.x, i)"
        fail(f"{what} works on scalars, and {array._name} holds {name_of(dtype)}", f"name {parts}")
    array._refuse_table()
    if order not in ("relaxed", "acquire", "release", "acq_rel"):
        fail(f"memory order {order!r}", "orders are relaxed, acquire, release and acq_rel")
    if kind in ("and", "or", "xor") and dtype.is_float:
        fail(f"{what} on {dtype.name}: floats have no bitwise operations", "use an array of kj.u32")
    if dtype is bool_ and kind in ("add", "sub", "min", "max"):
        fail(f"{what} on bool", "use an array of kj.i32")
    memory, indices, where = array._scalar(key)
    name = f"{array._name}[...]"
    values = tuple(store_cast(recorder, one, dtype, name).value for one in operands)
    access = AtomicAccess(where.leaf, inner=where.inner, kind=kind, order=order)
    old = recorder.builder.effect(Op.ATOMIC, (memory, *indices, *values), access, dtype)
    return Scalar(recorder, old)


def atomic_load(a: Any, i: Any, *, order: str = "relaxed") -> Any:
    """Read an element so that no concurrent write is seen in part."""
    return _atomic("load", a, i, (), order)


def atomic_store(a: Any, i: Any, value: Any, *, order: str = "relaxed") -> None:
    """Write an element as a whole."""
    _atomic("store", a, i, (value,), order)


def _binary_atomic(kind: str, text: str) -> Callable[..., Any]:
    def atomic(a: Any, i: Any, value: Any, *, order: str = "relaxed") -> Any:
        return _atomic(kind, a, i, (value,), order)

    atomic.__name__ = atomic.__qualname__ = f"atomic_{kind}"
    atomic.__doc__ = f"{text} at once; gives the element's old value."
    return atomic


atomic_add = _binary_atomic("add", "Add to an element")
atomic_sub = _binary_atomic("sub", "Subtract from an element")
atomic_min = _binary_atomic("min", "Lower an element to a value")
atomic_max = _binary_atomic("max", "Raise an element to a value")
atomic_and = _binary_atomic("and", "Keep the common bits of an element and a value")
atomic_or = _binary_atomic("or", "Set bits of an element")
atomic_xor = _binary_atomic("xor", "Flip bits of an element")
atomic_exchange = _binary_atomic("exchange", "Replace an element")


def atomic_compare_exchange(
    a: Any, i: Any, expected: Any, desired: Any, *, order: str = "relaxed"
) -> Any:
    """Replace an element by ``desired`` if it is ``expected``; gives its old value."""
    return _atomic("compare_exchange", a, i, (expected, desired), order)


def _barrier(scope: str) -> None:
    recorder = current("a barrier")
    recorder.mark()
    recorder.builder.effect(Op.BARRIER, (), scope)


def barrier() -> None:
    """Wait for the whole workgroup; what was written to shared memory and arrays is seen after."""
    _barrier("workgroup")


def storage_barrier() -> None:
    """Wait for the whole workgroup; what was written to arrays is seen after."""
    _barrier("storage")


def subgroup_barrier() -> None:
    """Wait for the subgroup."""
    _barrier("subgroup")
