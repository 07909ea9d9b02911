"""What a kernel can call: ids, memory, atomics, barriers, collectives, and functions of numbers.

These are the functions that users reach as ``kj.<name>``. Each records an operation; outside a
kernel most of them raise a TraceError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.dtypes import DType, bool_, f16, f32, f64, i32, u32
from khaljit.tracer.flow import Range
from khaljit.tracer.ir import AtomicAccess, Element, Note, Space
from khaljit.tracer.ops import Op
from khaljit.tracer.proxy import (
    Array,
    Scalar,
    Vector,
    binary,
    cast,
    compare,
    describe,
    fail,
    float_function,
    is_literal,
    select,
    store_cast,
    to_scalar,
    truth,
)
from khaljit.tracer.recorder import Recorder, current

# Ids and sizes.


def _id(name: str, axis: int | None, axes: int = 3) -> Any:
    recorder = current(f"kj.{name}")
    recorder.mark()
    if axis is None and axes == 3:
        return Vector(recorder, tuple(_one_id(recorder, name, k) for k in range(3)))
    if axis is not None and (type(axis) is not int or not 0 <= axis < 3):
        fail(f"axis {axis!r} does not exist", "axes are 0 (x, the fastest), 1 (y) and 2 (z)")
    return _one_id(recorder, name, axis or 0)


def _one_id(recorder: Recorder, name: str, axis: int) -> Scalar:
    return Scalar(recorder, recorder.builder.id(name, axis))


def global_id(axis: int | None = None) -> Any:
    """This invocation's position in the grid along an axis (0 is x); all three without one."""
    return _id("global", axis)


def local_id(axis: int | None = None) -> Any:
    """This invocation's position in its workgroup."""
    return _id("local", axis)


def workgroup_id(axis: int | None = None) -> Any:
    """The position of this invocation's workgroup among the workgroups."""
    return _id("workgroup", axis)


def num_workgroups(axis: int | None = None) -> Any:
    """How many workgroups run along an axis."""
    return _id("num_workgroups", axis)


def workgroup_size(axis: int | None = None) -> Any:
    """Invocations in a workgroup along an axis: a Python int, known while recording."""
    recorder = current("kj.workgroup_size")
    if recorder.workgroup is None:
        fail(
            "the workgroup size is used, and the backend is to choose it",
            "fix it: @kj.jit(workgroup=64)",
        )
    return recorder.workgroup if axis is None else recorder.workgroup[axis]


def local_index() -> Any:
    """This invocation's position in its workgroup, counted x fastest."""
    return _id("local_index", None, 1)


def subgroup_id() -> Any:
    """The position of this invocation's subgroup in its workgroup."""
    return _id("subgroup", None, 1)


def lane_id() -> Any:
    """This invocation's position in its subgroup."""
    return _id("lane", None, 1)


def num_subgroups() -> Any:
    """Subgroups in a workgroup."""
    return _id("num_subgroups", None, 1)


def subgroup_size() -> Any:
    """Invocations in a subgroup; the device's choice."""
    return _id("subgroup_size", None, 1)


def index(ndim: int = 1) -> Any:
    """This invocation's index into an array of ``ndim`` axes, in the array's axis order.

    ``y, x = kj.index(2)`` goes with the grid ``kernel[kj.over(image)]``.
    """
    if ndim == 1:
        return global_id(0)
    if type(ndim) is not int or not 1 <= ndim <= 3:
        fail(f"kj.index({ndim!r}): a grid has 1 to 3 axes")
    return tuple(global_id(axis) for axis in range(ndim - 1, -1, -1))


def grid_stride(n: Any) -> Range:
    """Iterate over ``range(n)`` shared out over the whole grid: one loop for any grid size."""
    recorder = current("kj.grid_stride")
    total = num_workgroups(0) * (recorder.workgroup[0] if recorder.workgroup else 1)
    return Range(global_id(0), n, total, forward=True)


def unroll(iterable: Any) -> list[Any]:
    """Repeat a loop's body while recording, once per item: ``for k in kj.unroll(range(4))``."""
    return list(iterable)


# Memory.


def _element(dtype: Any) -> tuple[Element, int]:
    if isinstance(dtype, VectorType):
        return Element.vector(dtype.dtype, dtype.count), dtype.count
    if isinstance(dtype, DType):
        return Element.scalar(dtype), 1
    fail(f"{dtype!r} is no type that memory can hold", "use kj.f32, kj.vec3, ...")


def _fixed_shape(shape: Any) -> tuple[int, ...]:
    extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    for extent in extents:
        if isinstance(extent, Scalar) or type(extent) is not int or extent < 0:
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
    element, count = _element(dtype)
    value = recorder.declare(space, element, _fixed_shape(shape))
    return Array(recorder, value, name, count)


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
    dtype = dtypes.by_numpy(array.dtype)
    if dtype is None:
        fail(f"a table of {array.dtype} cannot be a constant", "use numbers of a kj dtype")
    contents = np.ascontiguousarray(array).tobytes()
    if isinstance(data, np.ndarray):
        _guard_contents(recorder, data, contents)
    value = recorder.declare(Space.TABLE, Element.scalar(dtype), array.shape, contents)
    return Array(recorder, value, "constant")


def _guard_contents(recorder: Recorder, data: np.ndarray[Any, Any], contents: bytes) -> None:
    def unchanged() -> object:
        return np.ascontiguousarray(data).tobytes() == contents

    recorder.guard(("contents", id(data)), "a table of kj.constant", unchanged)


# Atomics.


def _atomic(kind: str, array: Any, key: Any, operands: Sequence[Any], order: str) -> Scalar:
    what = f"kj.atomic_{kind}"
    recorder = current(what)
    recorder.mark()
    if not isinstance(array, Array):
        fail(f"{what} works on array elements, not on {describe(array)}", f"{what}(a, i, value)")
    if array.count != 1:
        fail(f"{what} works on scalars, and {array.name} holds {array.element_name}")
    if array.memory.space is Space.TABLE:
        fail(f"{array.name} is a constant and cannot be written")
    if order not in ("relaxed", "acquire", "release", "acq_rel"):
        fail(f"memory order {order!r}", "orders are relaxed, acquire, release and acq_rel")
    dtype = array.dtype
    if kind in ("and", "or", "xor") and dtype.is_float:
        fail(f"{what} on {dtype.name}: floats have no bitwise operations")
    if dtype is bool_ and kind in ("add", "sub", "min", "max"):
        fail(f"{what} on bool", "use an array of kj.i32")
    indices = array.indices(key)
    values = tuple(store_cast(recorder, one, dtype, f"{array.name}[...]").value for one in operands)
    access = AtomicAccess(kind=kind, order=order)
    old = recorder.builder.effect(Op.ATOMIC, (array.value, *indices, *values), access, dtype)
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


# Barriers.


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


# Functions of numbers.


def _unary(op: Op, text: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if not isinstance(x, Scalar | Vector):
            current(f"kj.{op.value}")
        return float_function(op, x)

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


sqrt = _unary(Op.SQRT, "Square root, correctly rounded; NaN below zero.")
rsqrt = _unary(Op.RSQRT, "One over the square root.")
cbrt = _unary(Op.CBRT, "Cube root.")
exp = _unary(Op.EXP, "e to the power x.")
exp2 = _unary(Op.EXP2, "2 to the power x.")
exp10 = _unary(Op.EXP10, "10 to the power x.")
expm1 = _unary(Op.EXPM1, "exp(x) - 1, exact near 0.")
log = _unary(Op.LOG, "Natural logarithm.")
log2 = _unary(Op.LOG2, "Logarithm to base 2.")
log10 = _unary(Op.LOG10, "Logarithm to base 10.")
log1p = _unary(Op.LOG1P, "log(1 + x), exact near 0.")
sin = _unary(Op.SIN, "Sine of an angle in radians.")
cos = _unary(Op.COS, "Cosine of an angle in radians.")
tan = _unary(Op.TAN, "Tangent of an angle in radians.")
asin = _unary(Op.ASIN, "Arc sine in radians.")
acos = _unary(Op.ACOS, "Arc cosine in radians.")
atan = _unary(Op.ATAN, "Arc tangent in radians.")
sinh = _unary(Op.SINH, "Hyperbolic sine.")
cosh = _unary(Op.COSH, "Hyperbolic cosine.")
tanh = _unary(Op.TANH, "Hyperbolic tangent.")
asinh = _unary(Op.ASINH, "Inverse hyperbolic sine.")
acosh = _unary(Op.ACOSH, "Inverse hyperbolic cosine.")
atanh = _unary(Op.ATANH, "Inverse hyperbolic tangent.")
erf = _unary(Op.ERF, "Error function.")
erfc = _unary(Op.ERFC, "1 - erf(x), exact where erf nears 1.")
gamma = _unary(Op.TGAMMA, "Gamma function.")
lgamma = _unary(Op.LGAMMA, "Logarithm of the absolute value of the gamma function.")


def _rounding(op: Op, text: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if isinstance(x, Scalar | Vector) and x.dtype.is_integer:
            return x
        if not isinstance(x, Scalar | Vector):
            current(f"kj.{op.value}")
        return float_function(op, x)

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


floor = _rounding(Op.FLOOR, "The largest whole number not above x; a float of x's type.")
ceil = _rounding(Op.CEIL, "The smallest whole number not below x; a float of x's type.")
trunc = _rounding(Op.TRUNC, "x without its fraction; a float of x's type.")
round = _rounding(Op.ROUND, "The nearest whole number, ties to even; a float of x's type.")


def fract(x: Any) -> Any:
    """x - floor(x)."""
    return x - floor(x)


def pow(x: Any, y: Any) -> Any:
    """x to the power y; for integers see ``**``."""
    if isinstance(x, Vector) or isinstance(y, Vector):
        return x**y
    recorder = current("kj.pow")
    if is_literal(x) and is_literal(y):
        return math.pow(x, y)
    return to_scalar(recorder, x) ** y if is_literal(y) else to_scalar(recorder, x, y.dtype) ** y


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x*x + y*y) without overflow on the way."""
    return _pairwise(Op.HYPOT, x, y)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), in radians from -pi to pi."""
    return _pairwise(Op.ATAN2, y, x)


def _pairwise(op: Op, a: Any, b: Any) -> Any:
    if isinstance(a, Vector) or isinstance(b, Vector):
        count = len(a) if isinstance(a, Vector) else len(b)
        left = a.items if isinstance(a, Vector) else (a,) * count
        right = b.items if isinstance(b, Vector) else (b,) * count
        items = tuple(float_function(op, x, y) for x, y in zip(left, right, strict=True))
        return Vector(items[0]._live(), items)
    current(f"kj.{op.value}")
    return float_function(op, a, b)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    for one in (a, b, c):
        if isinstance(one, Vector):
            count = len(one)
            parts = [
                part.items if isinstance(part, Vector) else (part,) * count for part in (a, b, c)
            ]
            return Vector(one._live(), tuple(map(fma, *parts)))
    current("kj.fma")
    return float_function(Op.FMA, a, b, c)


def _extreme(op: Op, text: str) -> Callable[..., Any]:
    def function(a: Any, b: Any, *more: Any) -> Any:
        current(f"kj.{op.value}")
        result = binary(op, a, b)
        for other in more:
            result = binary(op, result, other)
        return result

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


min = _extreme(Op.MIN, "The least; NaN is skipped (IEEE 754 minimumNumber), -0 is below +0.")
max = _extreme(Op.MAX, "The greatest; NaN is skipped (IEEE 754 maximumNumber), -0 is below +0.")
minimum = _extreme(Op.MINIMUM, "The least, or NaN if any is (IEEE 754 minimum).")
maximum = _extreme(Op.MAXIMUM, "The greatest, or NaN if any is (IEEE 754 maximum).")


def abs(x: Any) -> Any:
    """Absolute value; the most negative integer is its own."""
    current("kj.abs")
    return x.__abs__()


def sign(x: Any) -> Any:
    """-1, 0 or 1 by the sign; NaN for NaN."""
    one = select(compare(Op.GT, x, 0), _like(x, 1), select(compare(Op.LT, x, 0), _like(x, -1), x))
    return one


def _like(x: Any, number: int) -> Any:
    return cast(number, x.dtype)


def copysign(x: Any, y: Any) -> Any:
    """The magnitude of x with the sign of y."""
    recorder = current("kj.copysign")
    a, b = to_scalar(recorder, x, f32), to_scalar(recorder, y, f32)
    dtype = dtypes.promote(a.dtype, b.dtype)
    if not dtype.is_float:
        dtype = f64 if dtype.bits == 64 else f32
    bits = _bits_type(dtype)
    magnitude = bitcast(cast(a, dtype), bits) & ((1 << dtype.bits - 1) - 1)
    negative = bitcast(cast(b, dtype), bits) & (1 << dtype.bits - 1)
    return bitcast(magnitude | negative, dtype)


def _bits_type(dtype: DType) -> DType:
    return dtypes.by_name(f"u{dtype.bits}")


def isnan(x: Any) -> Any:
    """Whether x is no number."""
    return compare(Op.NE, x, x)


def isinf(x: Any) -> Any:
    """Whether x is infinite."""
    return compare(Op.EQ, abs(x), math.inf)


def isfinite(x: Any) -> Any:
    """Whether x is a number and not infinite."""
    return compare(Op.LT, abs(x), math.inf)


def any(v: Any) -> Any:
    """Whether any component of a bool vector is true."""
    return _folded(v, Op.OR)


def all(v: Any) -> Any:
    """Whether all components of a bool vector are true."""
    return _folded(v, Op.AND)


def _folded(v: Any, op: Op) -> Any:
    if isinstance(v, Scalar):
        return v
    result = v[0]
    for item in v.items[1:]:
        result = binary(op, result, item)
    return result


# Bits.


def bitcast(x: Any, dtype: DType) -> Any:
    """The same bits as another type of the same width."""
    if isinstance(x, Vector):
        return x.mapped(lambda item: bitcast(item, dtype))
    recorder = current("kj.bitcast")
    recorder.mark()
    scalar = to_scalar(recorder, x)
    if (
        scalar.dtype is dtypes.index
        or scalar.dtype.bits != dtype.bits
        or bool_ in (scalar.dtype, dtype)
    ):
        fail(
            f"the bits of {scalar.dtype.name} do not make {dtype.name}",
            "both types need the same width; cast first",
        )
    return Scalar(recorder, recorder.builder.bitcast(scalar.value, dtype))


def _bit_function(op: Op, text: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if isinstance(x, Vector):
            return x.mapped(function)
        recorder = current(f"kj.{op.value}")
        recorder.mark()
        scalar = to_scalar(recorder, x)
        if not scalar.dtype.is_integer:
            fail(f"kj.{op.value} of {scalar.dtype.name}", "it takes integers: cast or kj.bitcast")
        return Scalar(recorder, recorder.builder.pure(op, (scalar.value,)))

    function.__name__ = function.__qualname__ = op.value
    function.__doc__ = text
    return function


popcount = _bit_function(Op.POPCOUNT, "How many bits are set; an i32.")
clz = _bit_function(Op.CLZ, "Zero bits above the highest set one; the width for 0; an i32.")
ctz = _bit_function(Op.CTZ, "Zero bits below the lowest set one; the width for 0; an i32.")
reverse_bits = _bit_function(Op.REVERSE_BITS, "The bits in the opposite order.")


def mulhi(a: Any, b: Any) -> Any:
    """The upper half of the double-width product of two integers."""
    current("kj.mulhi")
    return binary(Op.MULHI, a, b)


def rotate(x: Any, amount: Any) -> Any:
    """The bits moved up cyclically by an amount (taken modulo the width); unsigned types."""
    recorder = current("kj.rotate")
    scalar = to_scalar(recorder, x, u32)
    if scalar.dtype.kind is not dtypes.Kind.UNSIGNED:
        fail(f"kj.rotate of {scalar.dtype.name}", "cast to an unsigned type first")
    bits = scalar.dtype.bits
    up = cast(amount, scalar.dtype) & (bits - 1)
    return (scalar << up) | (scalar >> ((bits - up) & (bits - 1)))


def extract_bits(x: Any, offset: Any, count: Any) -> Any:
    """``count`` bits from bit ``offset`` up; sign-extended for signed types."""
    recorder = current("kj.extract_bits")
    scalar = to_scalar(recorder, x)
    bits = scalar.dtype.bits
    count = cast(count, scalar.dtype)
    left = bits - count - cast(offset, scalar.dtype)
    return select(compare(Op.EQ, count, 0), _like(scalar, 0), (scalar << left) >> (bits - count))


def insert_bits(x: Any, new: Any, offset: Any, count: Any) -> Any:
    """``x`` with ``count`` bits from bit ``offset`` up replaced by the low bits of ``new``."""
    recorder = current("kj.insert_bits")
    scalar = to_scalar(recorder, x)
    offset = cast(offset, scalar.dtype)
    ones = ~(_like(scalar, -1) << cast(count, scalar.dtype))
    mask = ones << offset
    return (scalar & ~mask) | ((cast(new, scalar.dtype) << offset) & mask)


# Vectors.


class VectorType:
    """A vector type such as ``kj.vec3``: makes vectors in kernels, describes arrays outside."""

    __slots__ = ("count", "dtype", "name")

    def __init__(self, name: str, dtype: DType, count: int) -> None:
        self.name: Final = name
        self.dtype: Final = dtype
        self.count: Final = count

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *parts: Any) -> Any:
        """From as many numbers as it has components, from vectors and numbers, or from one."""
        recorder = current(f"kj.{self.name}")
        items: list[Any] = []
        for part in parts:
            items += part.items if isinstance(part, Vector) else [part]
        if len(items) == 1 and self.count > 1:
            items *= self.count
        if len(items) != self.count:
            fail(f"{self.name} is made of {self.count} numbers, not {len(items)}")
        return Vector(recorder, tuple(cast(item, self.dtype) for item in items))


vec2, vec3, vec4 = (VectorType(f"vec{n}", f32, n) for n in (2, 3, 4))
ivec2, ivec3, ivec4 = (VectorType(f"ivec{n}", i32, n) for n in (2, 3, 4))
uvec2, uvec3, uvec4 = (VectorType(f"uvec{n}", u32, n) for n in (2, 3, 4))
dvec2, dvec3, dvec4 = (VectorType(f"dvec{n}", f64, n) for n in (2, 3, 4))
hvec2, hvec3, hvec4 = (VectorType(f"hvec{n}", f16, n) for n in (2, 3, 4))
bvec2, bvec3, bvec4 = (VectorType(f"bvec{n}", bool_, n) for n in (2, 3, 4))
_VECTORS: Final = {
    (one.count, one.dtype): one
    for one in (
        *(vec2, vec3, vec4, ivec2, ivec3, ivec4, uvec2, uvec3, uvec4),
        *(dvec2, dvec3, dvec4, hvec2, hvec3, hvec4, bvec2, bvec3, bvec4),
    )
}


def vec(count: int, dtype: DType) -> VectorType:
    """The vector type of 2 to 4 components of a dtype.

    >>> vec(3, dtypes.f32)
    vec3
    """
    if count not in (2, 3, 4):
        raise ValueError(f"vectors have 2, 3 or 4 components, not {count}")
    found = _VECTORS.get((count, dtype))
    return found or VectorType(f"vec({count}, {dtype.name})", dtype, count)


def dot(a: Any, b: Any) -> Any:
    """The scalar product: a.x*b.x + a.y*b.y + ..., summed in that order."""
    products = a * b
    result = products[0]
    for item in products.items[1:]:
        result = result + item
    return result


def cross(a: Any, b: Any) -> Any:
    """The vector product of two vectors of three components."""
    if len(a) != 3 or len(b) != 3:
        fail("kj.cross takes vectors of three components")
    return Vector(
        a._live(),
        (
            a[1] * b[2] - a[2] * b[1],
            a[2] * b[0] - a[0] * b[2],
            a[0] * b[1] - a[1] * b[0],
        ),
    )


def length(v: Any) -> Any:
    """The Euclidean length."""
    return sqrt(dot(v, v))


def distance(a: Any, b: Any) -> Any:
    """The Euclidean distance of two points."""
    return length(a - b)


def normalize(v: Any) -> Any:
    """The vector divided by its length."""
    return v / length(v)


def mix(a: Any, b: Any, t: Any) -> Any:
    """a + (b - a) * t."""
    return a + (b - a) * t


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x, but at least ``low`` and at most ``high``."""
    return min(max(x, low), high)


def step(edge: Any, x: Any) -> Any:
    """0 below the edge, else 1, in the type of x."""
    if isinstance(x, Vector):
        return x.mapped(lambda item: step(edge, item))
    return select(compare(Op.LT, x, edge), _like(x, 0), _like(x, 1))


def smoothstep(low: Any, high: Any, x: Any) -> Any:
    """0 below ``low``, 1 above ``high``, a smooth cubic between."""
    t = clamp((x - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def reflect(v: Any, normal: Any) -> Any:
    """``v`` mirrored at the plane with a unit normal."""
    return v - normal * (2.0 * dot(normal, v))


def refract(v: Any, normal: Any, ratio: Any) -> Any:
    """The refraction of a unit vector; zero on total internal reflection."""
    cosine = dot(normal, v)
    inside = 1.0 - ratio * ratio * (1.0 - cosine * cosine)
    bent = v * ratio - normal * (ratio * cosine + sqrt(max(inside, 0.0)))
    return select(compare(Op.LT, inside, 0.0), bent * 0.0, bent)


# Collectives of a workgroup, written as kernels are: a tree over shared memory.


def _tree(x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    recorder = current("a workgroup collective")
    if recorder.workgroup is None:
        fail("a workgroup collective needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    count = math.prod(recorder.workgroup)
    scalar = to_scalar(recorder, x)
    memory = shared(scalar.dtype, count)
    here = local_index()
    barrier()
    memory[here] = scalar
    barrier()
    width = 1 << (count - 1).bit_length()
    while width > 1:
        width //= 2
        _when(recorder, (here < width) & (here + width < count), memory, here, width, combine)
        barrier()
    return memory[0]


def _when(
    recorder: Recorder,
    condition: Any,
    memory: Array,
    here: Any,
    width: int,
    combine: Callable[[Any, Any], Any],
) -> None:
    builder = recorder.builder
    builder.open()
    memory[here] = combine(memory[here], memory[here + width])
    builder.end(Op.YIELD)
    then = builder.close()
    builder.open()
    builder.end(Op.YIELD)
    builder.if_(truth(condition), then, builder.close())


def workgroup_add(x: Any) -> Any:
    """The sum over the workgroup, by a fixed tree; the same for every invocation."""
    return _tree(x, lambda a, b: a + b)


def workgroup_min(x: Any) -> Any:
    """The least over the workgroup."""
    return _tree(x, min)


def workgroup_max(x: Any) -> Any:
    """The greatest over the workgroup."""
    return _tree(x, max)


def workgroup_any(x: Any) -> Any:
    """Whether a condition holds for any invocation of the workgroup."""
    return _tree(x, lambda a, b: a | b)


def workgroup_all(x: Any) -> Any:
    """Whether a condition holds for all invocations of the workgroup."""
    return _tree(x, lambda a, b: a & b)


def workgroup_inclusive_add(x: Any) -> Any:
    """The sum over this and all earlier invocations of the workgroup, by local index."""
    return _scan(x)[0]


def workgroup_exclusive_add(x: Any) -> Any:
    """The sum over all earlier invocations of the workgroup, by local index."""
    return _scan(x)[1]


def _scan(x: Any) -> tuple[Any, Any]:
    """Hillis and Steele's scan: doubling distances, a copy in shared memory between steps."""
    recorder = current("a workgroup scan")
    if recorder.workgroup is None:
        fail("a workgroup scan needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    count = math.prod(recorder.workgroup)
    total = to_scalar(recorder, x)
    memory = shared(total.dtype, count)
    here = local_index()
    distance_ = 1
    while True:
        barrier()
        memory[here] = total
        barrier()
        if distance_ >= count:
            break
        before = select(here >= distance_, memory[here - distance_], _like(total, 0))
        total = total + before
        distance_ *= 2
    exclusive = select(here >= 1, memory[here - 1], _like(total, 0))
    return total, exclusive


def workgroup_broadcast(x: Any, source: Any = 0) -> Any:
    """The value of one invocation of the workgroup, by its local index, for all of them."""
    recorder = current("kj.workgroup_broadcast")
    if recorder.workgroup is None:
        fail("a workgroup collective needs a workgroup size", "fix it: @kj.jit(workgroup=64)")
    scalar = to_scalar(recorder, x)
    memory = shared(scalar.dtype, math.prod(recorder.workgroup))
    barrier()
    memory[local_index()] = scalar
    barrier()
    return memory[source]


# Collectives of a subgroup.


def _subgroup(kind: str, x: Any, *more: Any) -> Any:
    if isinstance(x, Vector):
        return x.mapped(lambda item: _subgroup(kind, item, *more))
    recorder = current(f"kj.subgroup_{kind}")
    recorder.mark()
    scalar = to_scalar(recorder, x)
    others = tuple(to_scalar(recorder, one, dtypes.index).value for one in more)
    dtype = {"ballot": u32}.get(kind, scalar.dtype)
    if kind in ("ballot", "any", "all") and scalar.dtype is not bool_:
        fail(f"kj.subgroup_{kind} takes a condition, not {scalar.dtype.name}")
    value = recorder.builder.effect(Op.SUBGROUP, (scalar.value, *others), kind, dtype)
    return Scalar(recorder, value)


def _subgroup_function(kind: str, text: str) -> Callable[..., Any]:
    def function(x: Any, *more: Any) -> Any:
        return _subgroup(kind, x, *more)

    function.__name__ = function.__qualname__ = f"subgroup_{kind}"
    function.__doc__ = text
    return function


subgroup_add = _subgroup_function("add", "The sum over the subgroup.")
subgroup_mul = _subgroup_function("mul", "The product over the subgroup.")
subgroup_min = _subgroup_function("min", "The least over the subgroup.")
subgroup_max = _subgroup_function("max", "The greatest over the subgroup.")
subgroup_and = _subgroup_function("and", "The common bits of the subgroup.")
subgroup_or = _subgroup_function("or", "The bits that any invocation of the subgroup has.")
subgroup_xor = _subgroup_function("xor", "The parity of each bit over the subgroup.")
subgroup_inclusive_add = _subgroup_function("inclusive_add", "The sum up to this lane.")
subgroup_exclusive_add = _subgroup_function("exclusive_add", "The sum before this lane.")
subgroup_inclusive_mul = _subgroup_function("inclusive_mul", "The product up to this lane.")
subgroup_exclusive_mul = _subgroup_function("exclusive_mul", "The product before this lane.")
subgroup_inclusive_min = _subgroup_function("inclusive_min", "The least up to this lane.")
subgroup_inclusive_max = _subgroup_function("inclusive_max", "The greatest up to this lane.")
subgroup_broadcast = _subgroup_function("broadcast", "The value of one lane, for all.")
subgroup_broadcast_first = _subgroup_function("broadcast_first", "The lowest active lane's value.")
subgroup_shuffle = _subgroup_function("shuffle", "The value of the lane that this lane names.")
subgroup_shuffle_xor = _subgroup_function("shuffle_xor", "The value of lane ``lane ^ mask``.")
subgroup_shuffle_up = _subgroup_function("shuffle_up", "The value of a lower lane.")
subgroup_shuffle_down = _subgroup_function("shuffle_down", "The value of a higher lane.")
subgroup_ballot = _subgroup_function("ballot", "A bit per lane for which the condition holds.")
subgroup_any = _subgroup_function("any", "Whether the condition holds for any lane.")
subgroup_all = _subgroup_function("all", "Whether the condition holds for all lanes.")


def subgroup_elect() -> Any:
    """Whether this is the lowest active lane."""
    recorder = current("kj.subgroup_elect")
    recorder.mark()
    return Scalar(recorder, recorder.builder.effect(Op.SUBGROUP, (), "elect", bool_))


# Printing.


def print(*parts: Any, sep: str = " ") -> None:
    """Print from a kernel: the parts, separated; run-time values are filled in on the device."""
    recorder = current("kj.print")
    recorder.mark()
    texts, operands = [], []
    for part in parts:
        if isinstance(part, Scalar):
            texts.append("{}")
            operands.append(part.value)
        elif isinstance(part, Vector):
            texts.append("(" + ", ".join(["{}"] * len(part)) + ")")
            operands += [item.value for item in part.items]
        else:
            texts.append(str(part).replace("{", "{{").replace("}", "}}"))
    note = Note(sep.join(texts), recorder.note_site())
    recorder.builder.effect(Op.PRINT, tuple(operands), note)
