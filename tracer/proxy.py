"""What a kernel's names stand for while it is recorded: scalars and vectors.

Arrays are in ``memory.py``; the operators are attached by ``arithmetic.py``. A Python int, float or
bool is a literal and takes the type of what it meets; a NumPy scalar keeps its type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, final

from khaljit.tracer import dtypes
from khaljit.tracer.dtypes import DType, bool_, f32, f64
from khaljit.tracer.errors import InternalError, TraceError
from khaljit.tracer.ir import Value
from khaljit.tracer.recorder import Change, Recorder, recording, user_site

__all__ = [
    "Literal",
    "Number",
    "Proxy",
    "Scalar",
    "Vector",
    "describe",
    "fail",
    "is_literal",
    "is_proxy",
    "live",
    "swizzle",
    "vector_name",
]

Literal = bool | int | float


def fail(message: str, mend: str | None = None) -> NoReturn:
    """Raise a TraceError that points at the user's line."""
    raise TraceError(message, at=user_site(), mend=mend)


def _needed_now(message: str, mend: str) -> NoReturn:
    """Python asks for what is known only when the kernel runs."""
    site = user_site()
    if site is not None and not site.excerpt():
        mend = (
            f"khaljit cannot read the source of {site.file}, which it needs for `if`, `for`, "
            "`while` and the like: put the function in a file or a notebook's cell, or choose "
            "with kj.select(condition, a, b)"
        )
    raise TraceError(message, at=site, mend=mend)


def is_proxy(value: object) -> bool:
    """Whether a value is known only when the kernel runs."""
    return isinstance(value, Proxy)


def is_literal(value: object) -> bool:
    """Whether a value is a Python number, exactly: subclasses such as np.float64 are not."""
    return type(value) in (bool, int, float)


def describe(value: object) -> str:
    """What a value is, for messages."""
    if isinstance(value, Proxy):
        return value.described
    if is_literal(value):
        return f"the literal {value!r}"
    if value is None:
        return "None"
    return f"a {type(value).__name__}"


class Proxy:
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

    def _known(self) -> Any:
        """The number that it is, where kernels run as they are; else None."""
        return None

    @property
    def described(self) -> str:
        """What it is, for messages."""
        raise InternalError(f"{type(self).__name__} does not say what it is")

    def __bool__(self) -> bool:
        number = self._known()
        if number is not None:
            return bool(number)
        _needed_now(
            "the truth of a run-time value is not known while the kernel is recorded",
            "decide with `if`, `while`, `and`, `or`, `not` or a conditional expression in the "
            "kernel's own code, or choose with kj.select(condition, a, b)",
        )

    def __index__(self) -> int:
        number = self._known()
        if number is not None:
            return operator.index(number)
        _needed_now(
            "a run-time value is used where Python needs an int now",
            "use a Python int or kj.Const[int]; to index run-time data make it an array argument "
            "or kj.constant(...)",
        )

    def __int__(self) -> int:
        _needed_now("a run-time value is used where Python needs an int now", "write kj.i32(x)")

    def __float__(self) -> float:
        _needed_now(
            "a run-time value is used where Python needs a float now",
            "write kj.f32(x), or use khaljit's function of the same name (kj.sin, kj.sqrt, ...)",
        )

    def __iter__(self) -> Any:
        fail(f"{self.described} cannot be iterated", "loop with `for i in range(...)`")

    def __hash__(self) -> int:
        return id(self)


class Number(Proxy):
    """Scalars and vectors: what has Python's operators."""

    __slots__ = ()

    def _formatted(self, spec: str) -> str | None:
        """Its text, where kernels run as they are; else None."""
        raise InternalError(f"{type(self).__name__} has no text")

    def __format__(self, spec: str) -> str:
        """A mark that stands for the value in a text; see ``messages.py``."""
        recorder = self._live()
        known = self._formatted(spec)
        if known is not None:
            return known
        recorder.formatted.append((self, spec))
        return f"\ue000{len(recorder.formatted) - 1}\ue001"


@final
class Scalar(Number):
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

    @property
    def described(self) -> str:
        return self.dtype.name

    def _known(self) -> Any:
        return self._recorder.known(self.value)

    def _formatted(self, spec: str) -> str | None:
        number = self._known()
        if number is None:
            return None
        return format(number.item(), spec) if spec else str(number)

    def __repr__(self) -> str:
        number, name = self._known(), self.dtype.name
        return f"<{name} of a kernel>" if number is None else f"{name}({number!s})"

    def __str__(self) -> str:
        number = self._known()
        return repr(self) if number is None else str(number)

    def __getattr__(self, name: str) -> Any:
        cast = "to change its type, write kj.f32(x)"
        fail(f"{self.dtype.name} has no attribute {name!r}", f"a number has none; {cast}")

    def __getitem__(self, key: object) -> Any:
        fail(f"{self.dtype.name} cannot be indexed", "only arrays, vectors and tuples can")

    def __iter__(self) -> Any:
        fail(f"{self.dtype.name} has no parts", "only vectors and tuples can be taken apart")


_SWIZZLES: Final = ("xyzw", "rgba", "stpq")


def swizzle(name: str, count: int) -> tuple[int, ...] | None:
    """The components of a vector that a name such as ``xy`` stands for; None if it is none."""
    if 1 <= len(name) <= 4:
        for letters in _SWIZZLES:
            if all(letter in letters[:count] for letter in name):
                return tuple(letters.index(letter) for letter in name)
    return None


@final
class Vector(Number):
    """Two, three or four scalars of one type; a value, never a place in memory."""

    __slots__ = ("_change", "_items")

    def __init__(
        self, recorder: Recorder, items: tuple[Scalar, ...], change: Change | None = None
    ) -> None:
        self._recorder = recorder
        self._items = items
        self._change = change

    @property
    def items(self) -> tuple[Scalar, ...]:
        """Its components; reads them."""
        if self._change is not None:
            self._change.read = True
        return self._items

    def with_items(self, items: Mapping[int, Scalar]) -> Vector:
        """A vector with some other components; reads nothing."""
        recorder = self._live()
        new = tuple(items.get(place, item) for place, item in enumerate(self._items))
        return Vector(recorder, new, recorder.changed(self._change, self.type_name))

    @property
    def dtype(self) -> DType:
        return self._items[0].dtype

    @property
    def type_name(self) -> str:
        return vector_name(self.dtype, len(self._items))

    @property
    def described(self) -> str:
        return self.type_name

    def _formatted(self, spec: str) -> str | None:
        shown = [item._formatted(spec) for item in self._items]
        return None if None in shown else f"({', '.join(map(str, shown))})"

    def __repr__(self) -> str:
        text = self._formatted("")
        return f"<{self.type_name} of a kernel>" if text is None else self.type_name + text

    def __str__(self) -> str:
        return self._formatted("") or repr(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_recorder", "_items", "_change"):
            object.__setattr__(self, name, value)
        else:
            self._live().assign(value)

    def __setitem__(self, key: object, value: Any) -> None:
        self._live().assign(value)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Any:
        return iter(self.items)

    def __getattr__(self, name: str) -> Any:
        places = self.places(name)
        if len(places) == 1:
            return self.items[places[0]]
        return Vector(self._live(), tuple(self.items[k] for k in places))

    def places(self, name: str) -> tuple[int, ...]:
        """The components that a swizzle such as ``xy`` names."""
        places = swizzle(name, len(self._items))
        if places is not None:
            return places
        fail(
            f"{self.type_name} has no attribute {name!r}",
            f"its components are {', '.join('xyzw'[: len(self._items)])}",
        )

    def __getitem__(self, key: object) -> Any:
        return self.items[self.place(key)]

    def place(self, key: object) -> int:
        if not isinstance(key, int) or not 0 <= key < len(self._items):
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


def live(*values: object) -> Recorder:
    """The recording that some operands belong to."""
    for value in values:
        if isinstance(value, Proxy):
            return value._live()
    recorder = recording()
    if recorder is None:
        fail("this operation has a meaning only inside a kernel")
    return recorder
