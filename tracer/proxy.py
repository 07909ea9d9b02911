"""What a kernel's names stand for while it is recorded: scalars, vectors and memories.

Every operator on a proxy forwards to `unary`, `binary` or `compare`, which apply the typing rules
and ask the builder for the value. A Python int, float or bool is a literal and takes the type of
what it meets; a NumPy scalar keeps its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NoReturn, final

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.build import to_bits, to_number
from khaljit.tracer.dtypes import DType, MixError, bool_, f32, f64, i32, index
from khaljit.tracer.errors import TraceError
from khaljit.tracer.ir import Access, Memory, Space, Value
from khaljit.tracer.ops import MATH, Op
from khaljit.tracer.recorder import Recorder, recording, user_site

__all__ = [
    "Array",
    "Literal",
    "Scalar",
    "Vector",
    "binary",
    "cast",
    "compare",
    "fail",
    "float_function",
    "is_literal",
    "is_proxy",
    "literal_type",
    "to_scalar",
    "truth",
    "unify",
    "unsettled_type",
]

Literal = bool | int | float


def fail(message: str, mend: str | None = None) -> NoReturn:
    """Raise a TraceError that points at the user's line."""
    raise TraceError(message, at=user_site(), mend=mend)


def is_proxy(value: object) -> bool:
    return isinstance(value, Scalar | Vector | Array)


def is_literal(value: object) -> bool:
    """Whether a value is a Python number, exactly: subclasses such as np.float64 are not."""
    return type(value) in (bool, int, float)


def describe(value: object) -> str:
    """What a value is, for messages."""
    if isinstance(value, Scalar):
        return value.dtype.name
    if isinstance(value, Vector):
        return value.type_name
    if isinstance(value, Array):
        return f"an array of {value.element_name}"
    if is_literal(value):
        return f"the literal {value!r}"
    return f"a {type(value).__name__}"


class _Proxy:
    """What all proxies share: the recording they belong to, and Python's traps."""

    __slots__ = ("_recorder",)
    __array_ufunc__ = None  # NumPy's operators defer to ours
    _recorder: Recorder

    def _live(self) -> Recorder:
        recorder = self._recorder
        if recorder.finished:
            fail(
                "a value of a kernel is used after the kernel was recorded",
                "values exist only while the kernel runs; store them to an array to keep them",
            )
        if recording() is not recorder:
            fail(
                "a value of one kernel is used in another recording",
                "pass what the kernel needs as arguments",
            )
        return recorder

    def __bool__(self) -> bool:
        fail(
            "the truth of a run-time value is not known while the kernel is recorded",
            "branch with `if`, `while`, `and`, `or`, `not` or a conditional expression in a kernel "
            "whose source khaljit can read; where it cannot, use kj.select(condition, a, b)",
        )

    def __index__(self) -> int:
        fail(
            "a run-time value is used where Python needs an int now",
            "use a Python int or kj.Const[int]; to index run-time data make it an array argument "
            "or kj.constant(...)",
        )

    def __int__(self) -> int:
        fail("int() of a run-time value needs the kernel's source", "write kj.i32(x)")

    def __float__(self) -> float:
        fail(
            "a run-time value is used where Python needs a float now",
            "write kj.f32(x), or use khaljit's function of the same name (kj.sin, kj.sqrt, ...)",
        )

    def __iter__(self) -> Any:
        fail(f"{describe(self)} cannot be iterated", "loop with `for i in range(...)`")

    def __hash__(self) -> int:
        return id(self)


class _Number(_Proxy):
    """Python's operators, for scalars and vectors alike."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return binary(Op.ADD, self, other)

    def __radd__(self, other: Any) -> Any:
        return binary(Op.ADD, other, self)

    def __sub__(self, other: Any) -> Any:
        return binary(Op.SUB, self, other)

    def __rsub__(self, other: Any) -> Any:
        return binary(Op.SUB, other, self)

    def __mul__(self, other: Any) -> Any:
        return binary(Op.MUL, self, other)

    def __rmul__(self, other: Any) -> Any:
        return binary(Op.MUL, other, self)

    def __truediv__(self, other: Any) -> Any:
        return binary(Op.DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return binary(Op.DIV, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return binary(Op.FLOORDIV, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return binary(Op.FLOORDIV, other, self)

    def __mod__(self, other: Any) -> Any:
        return binary(Op.MOD, self, other)

    def __rmod__(self, other: Any) -> Any:
        return binary(Op.MOD, other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        return power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return power(other, self)

    def __and__(self, other: Any) -> Any:
        return binary(Op.AND, self, other)

    def __rand__(self, other: Any) -> Any:
        return binary(Op.AND, other, self)

    def __or__(self, other: Any) -> Any:
        return binary(Op.OR, self, other)

    def __ror__(self, other: Any) -> Any:
        return binary(Op.OR, other, self)

    def __xor__(self, other: Any) -> Any:
        return binary(Op.XOR, self, other)

    def __rxor__(self, other: Any) -> Any:
        return binary(Op.XOR, other, self)

    def __lshift__(self, other: Any) -> Any:
        return binary(Op.SHL, self, other)

    def __rlshift__(self, other: Any) -> Any:
        return binary(Op.SHL, other, self)

    def __rshift__(self, other: Any) -> Any:
        return binary(Op.SHR, self, other)

    def __rrshift__(self, other: Any) -> Any:
        return binary(Op.SHR, other, self)

    def __neg__(self) -> Any:
        return number_function(Op.NEG, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return number_function(Op.ABS, self)

    def __invert__(self) -> Any:
        return invert(self)

    def __eq__(self, other: object) -> Any:
        return compare(Op.EQ, self, other)

    def __ne__(self, other: object) -> Any:
        return compare(Op.NE, self, other)

    def __lt__(self, other: Any) -> Any:
        return compare(Op.LT, self, other)

    def __le__(self, other: Any) -> Any:
        return compare(Op.LE, self, other)

    def __gt__(self, other: Any) -> Any:
        return compare(Op.GT, self, other)

    def __ge__(self, other: Any) -> Any:
        return compare(Op.GE, self, other)

    __hash__ = _Proxy.__hash__


@final
class Scalar(_Number):
    """One number of the kernel.

    ``tentative`` marks a loop variable that began as a literal and whose type is not settled yet:
    it still takes the type of what it meets.
    """

    __slots__ = ("tentative", "value")

    def __init__(self, recorder: Recorder, value: Value, tentative: bool = False) -> None:
        self._recorder = recorder
        self.value = value
        self.tentative = tentative

    @property
    def dtype(self) -> DType:
        return self.value.type

    def __repr__(self) -> str:
        return f"<{self.dtype.name} of a kernel>"

    def __kj_cast__(self, dtype: DType) -> Scalar:
        return cast(self, dtype)

    def __getattr__(self, name: str) -> Any:
        fail(f"{self.dtype.name} has no attribute {name!r}")

    def __getitem__(self, key: object) -> Any:
        fail(f"{self.dtype.name} cannot be indexed", "only arrays, vectors and tuples can")


_SWIZZLES: Final = ("xyzw", "rgba", "stpq")


@final
class Vector(_Number):
    """Two, three or four scalars of one type; a value, never a place in memory."""

    __slots__ = ("items",)

    def __init__(self, recorder: Recorder, items: tuple[Scalar, ...]) -> None:
        self._recorder = recorder
        self.items = items

    @property
    def dtype(self) -> DType:
        return self.items[0].dtype

    @property
    def type_name(self) -> str:
        return vector_name(self.dtype, len(self.items))

    def __repr__(self) -> str:
        return f"<{self.type_name} of a kernel>"

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Any:
        return iter(self.items)

    def __getattr__(self, name: str) -> Any:
        places = self.places(name)
        if len(places) == 1:
            return self.items[places[0]]
        return Vector(self._live(), tuple(self.items[k] for k in places))

    def places(self, name: str) -> tuple[int, ...]:
        """The components that a swizzle such as ``xy`` names."""
        if 1 <= len(name) <= 4:
            for letters in _SWIZZLES:
                if all(letter in letters for letter in name):
                    places = tuple(letters.index(letter) for letter in name)
                    if max(places) < len(self.items):
                        return places
        fail(
            f"{self.type_name} has no attribute {name!r}",
            f"its components are {', '.join('xyzw'[: len(self.items)])}",
        )

    def replaced(self, places: tuple[int, ...], value: object) -> Vector:
        """This vector with some components changed, converted as stores are."""
        if len(set(places)) != len(places):
            fail("a swizzle that is assigned to names a component twice")
        new = value.items if isinstance(value, Vector) else (value,)
        if len(new) != len(places):
            fail(f"{describe(value)} does not fit {len(places)} components")
        items = list(self.items)
        for place, item in zip(places, new, strict=True):
            items[place] = store_cast(self._live(), item, self.dtype, "the component")
        return Vector(self._live(), tuple(items))

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, Scalar):
            picked: Scalar = self.items[-1]
            for k in range(len(self.items) - 2, -1, -1):
                picked = select(compare(Op.EQ, key, k), self.items[k], picked)
            return picked
        return self.items[self.place(key)]

    def place(self, key: object) -> int:
        if not isinstance(key, int) or not 0 <= key < len(self.items):
            fail(f"index {key!r} is out of range for {self.type_name}")
        return key

    def mapped(self, function: Callable[[Scalar], Any]) -> Vector:
        return Vector(self._live(), tuple(function(item) for item in self.items))


_VECTOR_LETTERS: Final = {
    f32: "",
    dtypes.i32: "i",
    dtypes.u32: "u",
    f64: "d",
    dtypes.f16: "h",
    bool_: "b",
}


def vector_name(dtype: DType, count: int) -> str:
    """``vec3`` for f32, ``ivec3`` for i32, ``vec(3, u8)`` for types without a letter."""
    letter = _VECTOR_LETTERS.get(dtype)
    return f"vec({count}, {dtype.name})" if letter is None else f"{letter}vec{count}"


@final
class Array(_Proxy):
    """An array argument, or shared, local or constant memory.

    Attributes of the user: ``shape size ndim dtype strides``, ``len(a)`` and indexing.
    """

    __slots__ = ("count", "name", "value")

    def __init__(self, recorder: Recorder, value: Value, name: str, count: int = 1) -> None:
        self._recorder = recorder
        self.value = value
        self.name = name
        self.count = count  # scalars in an element that is a vector; 1 for a scalar

    @property
    def memory(self) -> Memory:
        memory = self.value.attr
        assert isinstance(memory, Memory)
        return memory

    @property
    def dtype(self) -> DType:
        return self.memory.element.leaves[0][1]

    @property
    def element_name(self) -> str:
        return self.dtype.name if self.count == 1 else vector_name(self.dtype, self.count)

    @property
    def ndim(self) -> int:
        return self.memory.ndim

    @property
    def shape(self) -> tuple[Any, ...]:
        recorder = self._live()
        recorder.mark()
        fixed = self.memory.shape
        return tuple(
            extent
            if extent is not None
            else Scalar(recorder, recorder.builder.shape(self.value, axis))
            for axis, extent in enumerate(fixed)
        )

    @property
    def size(self) -> Any:
        first, *rest = self.shape or (1,)
        return math.prod(rest, start=first)

    @property
    def strides(self) -> tuple[Any, ...]:
        """Elements from one index to the next, per axis."""
        if self.memory.space is not Space.ARRAY:
            extents = [extent or 0 for extent in self.memory.shape]
            return tuple(math.prod(extents[axis + 1 :]) for axis in range(self.ndim))
        recorder = self._live()
        recorder.mark()
        unit = self.memory.element.size // self.memory.element.align
        strides = (
            Scalar(recorder, recorder.builder.stride(self.value, k)) for k in range(self.ndim)
        )
        return tuple(stride if unit == 1 else stride // unit for stride in strides)

    def __repr__(self) -> str:
        return f"<array {self.name} of {self.element_name} of a kernel>"

    def __len__(self) -> int:
        fail(f"len({self.name}) is a run-time value", f"write {self.name}.shape[0]")

    def __getattr__(self, name: str) -> Any:
        fail(
            f"{self.name} is {describe(self)} and has no attribute {name!r}",
            "arrays have shape, size, ndim, dtype and strides",
        )

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Array):
            return self is other
        fail("an array is compared as a whole", f"compare its elements: {self.name}[i] == ...")

    __hash__ = _Proxy.__hash__

    def indices(self, key: object) -> tuple[Value, ...]:
        """The index values of a subscript: one integer per axis."""
        recorder = self._live()
        keys = key if isinstance(key, tuple) else tuple(key) if isinstance(key, Vector) else (key,)
        if len(keys) != self.ndim:
            fail(
                f"{self.name} has {self.ndim} axes and is indexed with {len(keys)}",
                f"write {self.name}[{', '.join('ijk'[: self.ndim]) or '()'}]",
            )
        return tuple(self._index(recorder, item) for item in keys)

    def _index(self, recorder: Recorder, item: object) -> Value:
        if isinstance(item, slice) or item is None or item is Ellipsis:
            fail("slices make no arrays inside a kernel", "index one element at a time")
        number = to_scalar(recorder, item, index)
        if not number.dtype.is_integer:
            fail(
                f"{self.name} is indexed with {describe(item)}",
                "an index is an integer: cast with kj.i32(...)",
            )
        if type(item) in (int, bool) and int(item) < 0:  # type: ignore[call-overload]
            fail(
                f"{self.name} is indexed with {item}: negative indices do not count from the end",
                f"write {self.name}[{self.name}.size - {-int(item)}]",  # type: ignore[call-overload]
            )
        return number.value

    def __getitem__(self, key: object) -> Any:
        recorder = self._live()
        recorder.mark()
        indices = self.indices(key)
        items = tuple(
            Scalar(recorder, recorder.builder.load(self.value, indices, dtype, Access(leaf)))
            for leaf, dtype in self.memory.element.leaves
        )
        return items[0] if self.count == 1 else Vector(recorder, items)

    def __setitem__(self, key: object, value: object) -> None:
        self.store(key, tuple(range(self.count)), value)

    def store(self, key: object, places: tuple[int, ...], value: object) -> None:
        """Store to some components of an element (all of them, or a swizzle's)."""
        recorder = self._live()
        recorder.mark()
        if self.memory.space is Space.TABLE:
            fail(f"{self.name} is a constant and cannot be written")
        if isinstance(value, Vector):
            if len(value.items) != len(places):
                fail(f"{value.type_name} is stored to {self.element_name}")
            new: Sequence[object] = value.items
        elif len(places) > 1:
            fail(
                f"{describe(value)} is stored to {self.element_name}",
                f"write {self.element_name}(value), which repeats it in every component",
            )
        else:
            new = (value,)
        indices = self.indices(key)
        leaves = self.memory.element.leaves
        for place, item in zip(places, new, strict=True):
            leaf, dtype = leaves[place]
            scalar = store_cast(recorder, item, dtype, f"{self.name}[...]")
            recorder.builder.store(self.value, indices, scalar.value, Access(leaf))


# Typing rules.


def literal_type(value: Literal) -> DType:
    """The type of a literal that meets no other type."""
    if isinstance(value, bool):
        return bool_
    return f32 if isinstance(value, float) else i32


def fits(value: Literal, dtype: DType) -> bool:
    """Whether a literal can be of a type without changing what it is (rounding apart)."""
    if dtype.is_float:
        if isinstance(value, float) and not math.isfinite(value):
            return True
        try:
            number = float(value)
        except OverflowError:
            return False
        return math.isfinite(float(to_number(dtype, to_bits(dtype, number))))
    if dtype is bool_:
        return isinstance(value, bool)
    if isinstance(value, float):
        return False
    low, high = dtype.limits
    return low <= value <= high


def to_scalar(recorder: Recorder, value: object, literal: DType | None = None) -> Scalar:
    """A scalar proxy of a number; a literal takes the type ``literal`` (or its own if None)."""
    if isinstance(value, Scalar):
        value._live()
        return value
    if isinstance(value, Enum) and isinstance(value.value, int | float):
        value = value.value
    if is_literal(value):
        assert isinstance(value, bool | int | float)
        dtype = literal or literal_type(value)
        if not dtype.is_float and isinstance(value, float):
            dtype = f64 if dtype.bits == 64 else f32
        if dtype is bool_ and not isinstance(value, bool):
            dtype = literal_type(value)
        if not fits(value, dtype):
            fail(f"the literal {value!r} does not fit {dtype.name}", _literal_mend(value, dtype))
        return Scalar(recorder, recorder.builder.const(dtype, value))
    if isinstance(value, np.generic):
        strong = dtypes.by_numpy(value.dtype)
        if strong is not None:
            number = value.item()
            assert isinstance(number, bool | int | float)
            return Scalar(recorder, recorder.builder.const(strong, number))
    if isinstance(value, np.ndarray):
        fail(
            "a NumPy array is captured by the kernel",
            "pass it as an argument, or make small fixed data kj.constant(array)",
        )
    fail(
        f"{describe(value)} is used as a number",
        "kernels compute with numbers, vectors and array elements; tuples are taken apart by index",
    )


def _literal_mend(value: Literal, dtype: DType) -> str:
    if isinstance(value, float) or dtype.is_float:
        return f"use a wider type: kj.f64({value!r})"
    for wider in (dtypes.i32, dtypes.u32, dtypes.i64, dtypes.u64):
        if fits(value, wider):
            return f"say which type is meant: kj.{wider.name}({value:#x})"
    return "no type of khaljit holds it"


def unify(recorder: Recorder, a: object, b: object, what: str) -> tuple[Value, Value]:
    """Two operands as values of one type."""
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        if a.value.dtype is b.value.dtype:
            return a.value, b.value
        return _unify_strong(recorder, a, b, what)
    if isinstance(b, Scalar):
        left = _meet(recorder, a, b)
        return _unify_strong(recorder, left, b, what)
    if isinstance(a, Scalar):
        right = _meet(recorder, b, a)
        return _unify_strong(recorder, a, right, what)
    return _unify_strong(recorder, to_scalar(recorder, a), to_scalar(recorder, b), what)


def _meet(recorder: Recorder, literal: object, other: Scalar) -> Scalar:
    return to_scalar(recorder, literal, other.dtype)


def _unify_strong(recorder: Recorder, a: Scalar, b: Scalar, what: str) -> tuple[Value, Value]:
    dtype = common_type(a, b, what)
    builder = recorder.builder
    return builder.cast(a.value, dtype), builder.cast(b.value, dtype)


def common_type(a: Scalar, b: Scalar, what: str) -> DType:
    if a.dtype is b.dtype:
        return a.dtype
    if a.tentative != b.tentative:
        return unsettled_type(a, b.dtype) if a.tentative else unsettled_type(b, a.dtype)
    try:
        return dtypes.promote(a.dtype, b.dtype)
    except MixError:
        fail(
            f"{what} of {a.dtype.name} and {b.dtype.name}: no type holds both",
            f"cast one: kj.{a.dtype.name}(...) or kj.{b.dtype.name}(...)",
        )


def unsettled_type(loose: Scalar, strong: DType) -> DType:
    """The type of an unsettled loop variable with a settled operand: the operand's, if it can be.

    Where settling the variable as its default type would have given another type, its loop must
    be recorded again once the variable's type is known.
    """
    dtype = strong
    if loose.dtype.is_float and not dtype.is_float:
        dtype = f64 if dtype.bits == 64 else f32
    elif loose.dtype is not bool_ and dtype is bool_:
        dtype = loose.dtype
    try:
        settled = dtypes.promote(loose.dtype, strong)
    except MixError:
        settled = None
    if settled is not dtype:
        loose._recorder.unsettled = True
    return dtype


def cast(value: object, dtype: DType) -> Any:
    """An explicit cast: any number to any type."""
    if isinstance(value, Vector):
        return value.mapped(lambda item: cast(item, dtype))
    recorder = _recorder_of(value)
    recorder.mark()
    if is_literal(value):
        assert isinstance(value, bool | int | float)
        if not dtype.is_float and isinstance(value, float):
            return Scalar(
                recorder, recorder.builder.const(dtype, int(dtypes.host_cast(dtype, value)))
            )
        return Scalar(recorder, recorder.builder.const(dtype, value))
    scalar = to_scalar(recorder, value)
    return Scalar(recorder, recorder.builder.cast(scalar.value, dtype))


def store_cast(recorder: Recorder, value: object, dtype: DType, where: str) -> Scalar:
    """What a store does to a value: integers wrap, floats round, float to integer is refused."""
    if isinstance(value, Vector | Array | tuple | list):
        fail(f"{describe(value)} is stored to {where}, whose type is {dtype.name}")
    if is_literal(value):
        assert isinstance(value, bool | int | float)
        if isinstance(value, float) and not dtype.is_float:
            fail(
                f"the literal {value!r} is stored to {where}, whose type is {dtype.name}",
                f"cast it: kj.{dtype.name}({value!r})",
            )
        if dtype is not bool_:
            return to_scalar(recorder, value, dtype)
    scalar = to_scalar(recorder, value)
    if scalar.dtype.is_float and not dtype.is_float:
        fail(
            f"{scalar.dtype.name} is stored to {where}, whose type is {dtype.name}",
            f"cast it: kj.{dtype.name}(...) truncates and saturates, round(...) rounds",
        )
    if dtype is bool_ and scalar.dtype is not bool_:
        fail(
            f"{scalar.dtype.name} is stored to {where}, whose type is bool",
            "compare it: x != 0",
        )
    return Scalar(recorder, recorder.builder.cast(scalar.value, dtype))


def _recorder_of(*values: object) -> Recorder:
    for value in values:
        if isinstance(value, _Proxy):
            return value._live()
    recorder = recording()
    if recorder is None:
        fail("this operation has a meaning only inside a kernel")
    return recorder


_SYMBOLS: Final = {
    Op.ADD: "+",
    Op.SUB: "-",
    Op.MUL: "*",
    Op.DIV: "/",
    Op.FLOORDIV: "//",
    Op.MOD: "%",
    Op.AND: "&",
    Op.OR: "|",
    Op.XOR: "^",
    Op.SHL: "<<",
    Op.SHR: ">>",
    Op.EQ: "==",
    Op.NE: "!=",
    Op.LT: "<",
    Op.LE: "<=",
    Op.GT: ">",
    Op.GE: ">=",
}
_BITWISE: Final = (Op.AND, Op.OR, Op.XOR)
_INTEGER: Final = (Op.SHL, Op.SHR, Op.MULHI)


def _spread(function: Callable[[Any, Any], Any], a: object, b: object) -> Any:
    """Apply a function of two scalars component by component."""
    count = len(a) if isinstance(a, Vector) else len(b) if isinstance(b, Vector) else 0
    if isinstance(a, Vector) and isinstance(b, Vector) and len(a) != len(b):
        fail(f"{a.type_name} meets {b.type_name}", "both need the same number of components")
    left = a.items if isinstance(a, Vector) else (a,) * count
    right = b.items if isinstance(b, Vector) else (b,) * count
    return Vector(
        _recorder_of(a, b), tuple(function(x, y) for x, y in zip(left, right, strict=True))
    )


def binary(op: Op, a: object, b: object) -> Any:
    """An arithmetic or bitwise operator on scalars and vectors."""
    if isinstance(a, Vector) or isinstance(b, Vector):
        return _spread(lambda x, y: binary(op, x, y), a, b)
    if isinstance(a, Array) or isinstance(b, Array):
        fail("an array is used as a number", "use its elements: a[i]")
    recorder = _recorder_of(a, b)
    recorder.mark()
    what = _SYMBOLS.get(op, op.value)
    left, right = unify(recorder, a, b, what)
    dtype = left.type
    if op is Op.DIV and not dtype.is_float:
        dtype = f64 if dtype.bits == 64 else f32
        left, right = recorder.builder.cast(left, dtype), recorder.builder.cast(right, dtype)
    if dtype is bool_ and op not in _BITWISE:
        fail(f"{what} of two bools", "cast to a number: kj.i32(flag)")
    if dtype.is_float and (op in _BITWISE or op in _INTEGER):
        fail(f"{what} of {dtype.name}: floats have no bitwise operations", "cast: kj.i32(...)")
    return _wrap(recorder, recorder.builder.pure(op, (left, right)), a, b)


def _wrap(recorder: Recorder, value: Value, *operands: object) -> Scalar:
    """A result, tentative while all that went into it is."""
    tentative = False
    for operand in operands:
        if isinstance(operand, Scalar):
            if not operand.tentative:
                return Scalar(recorder, value)
            tentative = True
    return Scalar(recorder, value, tentative)


def compare(op: Op, a: object, b: object) -> Any:
    """A comparison; literals out of the other type's range compare as the numbers they are."""
    if isinstance(a, Vector) or isinstance(b, Vector):
        return _spread(lambda x, y: compare(op, x, y), a, b)
    recorder = _recorder_of(a, b)
    recorder.mark()
    for number, literal, mirrored in ((a, b, False), (b, a, True)):
        if (
            isinstance(number, Scalar)
            and type(literal) is int
            and number.dtype.is_integer
            and not fits(literal, number.dtype)
        ):
            return Scalar(recorder, recorder.builder.const(bool_, _foregone(op, literal, mirrored)))
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        fail(f"{describe(a)} is compared with {describe(b)}", "compare numbers with numbers")
    left, right = unify(recorder, a, b, _SYMBOLS[op])
    if left.dtype is bool_ and op not in (Op.EQ, Op.NE):
        left, right = recorder.builder.cast(left, i32), recorder.builder.cast(right, i32)
    return Scalar(recorder, recorder.builder.pure(op, (left, right)))


def _foregone(op: Op, literal: int, mirrored: bool) -> bool:
    """``x op literal`` for a literal above or below every x (or ``literal op x``)."""
    if op in (Op.EQ, Op.NE):
        return op is Op.NE
    less = literal > 0  # whether x is below the literal
    return less == ((op in (Op.LT, Op.LE)) != mirrored)


def invert(a: Any) -> Any:
    """``~a``: bitwise not, logical for bool."""
    if isinstance(a, Vector):
        return a.mapped(invert)
    recorder = _recorder_of(a)
    recorder.mark()
    if a.dtype.is_float:
        fail(f"~ of {a.dtype.name}: floats have no bitwise operations", "cast: kj.i32(...)")
    return _wrap(recorder, recorder.builder.pure(Op.NOT, (a.value,)), a)


def number_function(op: Op, a: Any) -> Any:
    """NEG or ABS of a number."""
    if isinstance(a, Vector):
        return a.mapped(lambda item: number_function(op, item))
    recorder = _recorder_of(a)
    recorder.mark()
    scalar = to_scalar(recorder, a)
    if scalar.dtype is bool_:
        fail(f"{op.value} of a bool", "cast to a number: kj.i32(flag)")
    return _wrap(recorder, recorder.builder.pure(op, (scalar.value,)), a)


def float_function(op: Op, *args: Any) -> Any:
    """A function of floats; integers become f32 (f64 where they have 64 bits)."""
    for arg in args:
        if isinstance(arg, Vector):
            return arg.mapped(lambda item: float_function(op, item))
    recorder = _recorder_of(*args)
    recorder.mark()
    scalars = [to_scalar(recorder, arg, f32 if is_literal(arg) else None) for arg in args]
    dtype: DType | None = None
    for arg, scalar in zip(args, scalars, strict=True):
        if is_literal(arg):
            continue
        own = scalar.dtype
        if not own.is_float:
            own = f64 if own.bits == 64 else f32
        dtype = own if dtype is None else dtypes.promote(dtype, own)
    dtype = dtype or f32
    values = tuple(
        recorder.builder.const(dtype, arg)
        if is_literal(arg)
        else recorder.builder.cast(scalar.value, dtype)
        for arg, scalar in zip(args, scalars, strict=True)
    )
    assert op in MATH or op in (Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.SQRT, Op.FMA)
    return Scalar(recorder, recorder.builder.pure(op, values))


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``; small literal exponents are products."""
    if isinstance(base, Vector) or isinstance(exponent, Vector):
        return _spread(power, base, exponent)
    if type(exponent) is int and isinstance(base, Scalar):
        if exponent == 2:
            return base * base
        if exponent == 1:
            return base
        if not base.dtype.is_float and exponent >= 0:
            return _integer_power(base, exponent)
        if exponent == 3 and base.dtype.is_float:
            return base * base * base
    recorder = _recorder_of(base, exponent)
    left, right = unify(recorder, base, exponent, "**")
    if left.type.is_float:
        return float_function(Op.POW, Scalar(recorder, left), Scalar(recorder, right))
    if left.type is bool_:
        fail("** of two bools", "cast to a number: kj.i32(flag)")
    return _run_time_power(Scalar(recorder, left), Scalar(recorder, right))


def _integer_power(base: Scalar, exponent: int) -> Scalar:
    """By repeated squaring; wraps as multiplication does."""
    recorder = base._live()
    result = Scalar(recorder, recorder.builder.const(base.dtype, 1))
    square = base
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return result


def _run_time_power(base: Scalar, exponent: Scalar) -> Scalar:
    """Repeated squaring over all bits of the exponent; negative exponents give 0, 1 or -1."""
    recorder = base._live()
    dtype = base.dtype
    one = Scalar(recorder, recorder.builder.const(dtype, 1))
    zero = Scalar(recorder, recorder.builder.const(dtype, 0))
    result, square = one, base
    bits = dtype.bits or 64
    for bit in range(bits - dtype.is_signed):
        taken = compare(Op.NE, (exponent >> bit) & 1, 0)
        result = select(taken, result * square, result)
        square = square * square
    if dtype.is_signed:
        odd = compare(Op.NE, exponent & 1, 0)
        unit = select(
            compare(Op.EQ, base, 1),
            one,
            select(compare(Op.EQ, base, -1), select(odd, -one, one), zero),
        )
        result = select(compare(Op.LT, exponent, 0), unit, result)
    return result


def select(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``; both are computed."""
    for choice in (condition, yes, no):
        if isinstance(choice, Vector):
            count = len(choice)
            parts = [
                part.items if isinstance(part, Vector) else (part,) * count
                for part in (condition, yes, no)
            ]
            return Vector(_recorder_of(choice), tuple(map(select, *parts)))
    recorder = _recorder_of(condition, yes, no)
    recorder.mark()
    if isinstance(condition, bool | np.bool_):
        return yes if condition else no
    test = truth(condition)
    left, right = unify(recorder, yes, no, "the choice")
    return _wrap(recorder, recorder.builder.select(test, left, right), yes, no)


def truth(condition: Any) -> Value:
    """A condition as a bool value; numbers must be compared explicitly."""
    if not isinstance(condition, Scalar):
        fail(f"{describe(condition)} is used as a condition", "write a comparison")
    if condition.dtype is not bool_:
        recorder = condition._live()
        recorder.mark()
        zero = recorder.builder.const(condition.dtype, 0)
        return recorder.builder.pure(Op.NE, (condition.value, zero))
    condition._live()
    return condition.value
