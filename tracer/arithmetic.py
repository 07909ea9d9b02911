"""Operators and functions of scalars and vectors: typing, then one operation in the trace.

Python's operators are attached to the proxies by the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Final

import numpy as np

from khaljit.tracer import dtypes
from khaljit.tracer.coerce import cast, fits, like, to_scalar, unify
from khaljit.tracer.dtypes import DType, bool_, f32, f64, i32
from khaljit.tracer.hostvectors import is_vector
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import MATH, OPS, Op, accepts
from khaljit.tracer.proxy import Number, Proxy, Scalar, Vector, describe, fail, is_literal, live
from khaljit.tracer.recorder import Recorder

__all__ = [
    "binary",
    "compare",
    "float_function",
    "float_operands",
    "number_function",
    "power",
    "select",
    "truth",
]

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
_NO_FLOATS: Final = frozenset(
    op for op, info in OPS.items() if info.arity == 2 and info.result and not accepts(op, f32, f32)
)


def _spread(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Apply a function of two scalars component by component."""
    count = len(a) if is_vector(a) else len(b)
    if is_vector(a) and is_vector(b) and len(a) != len(b):
        fail(f"{describe(a)} meets {describe(b)}", "both need the same number of components")
    left = a.items if is_vector(a) else (a,) * count
    right = b.items if is_vector(b) else (b,) * count
    return Vector(live(a, b), tuple(function(x, y) for x, y in zip(left, right, strict=True)))


def binary(op: Op, a: object, b: object) -> Any:
    """An arithmetic or bitwise operator on scalars and vectors."""
    if is_vector(a) or is_vector(b):
        return _spread(lambda x, y: binary(op, x, y), a, b)
    for one in (a, b):
        if isinstance(one, Proxy) and not isinstance(one, Scalar):
            fail(f"{one.described} is used as a number", "use its elements: a[i]")
    recorder = live(a, b)
    recorder.mark()
    what = _SYMBOLS.get(op, op.value)
    left, right = unify(recorder, a, b, what)
    dtype = left.type
    if op is Op.DIV and not dtype.is_float:
        dtype = f64 if dtype.bits == 64 else f32
        left, right = recorder.builder.cast(left, dtype), recorder.builder.cast(right, dtype)
    if dtype is bool_ and op not in _BITWISE:
        fail(f"{what} of two bools", "cast to a number: kj.i32(flag)")
    if dtype.is_float and op in _NO_FLOATS:
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
    if is_vector(a) or is_vector(b):
        return _spread(lambda x, y: compare(op, x, y), a, b)
    recorder = live(a, b)
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
    if is_vector(a):
        return a.mapped(invert)
    recorder = live(a)
    recorder.mark()
    if a.dtype.is_float:
        fail(f"~ of {a.dtype.name}: floats have no bitwise operations", "cast: kj.i32(...)")
    return _wrap(recorder, recorder.builder.pure(Op.NOT, (a.value,)), a)


def number_function(op: Op, a: Any) -> Any:
    """NEG or ABS of a number."""
    if is_vector(a):
        return a.mapped(lambda item: number_function(op, item))
    recorder = live(a)
    recorder.mark()
    scalar = to_scalar(recorder, a)
    if scalar.dtype is bool_:
        fail(f"{op.value} of a bool", "cast to a number: kj.i32(flag)")
    return _wrap(recorder, recorder.builder.pure(op, (scalar.value,)), a)


def float_function(op: Op, *args: Any) -> Any:
    """A function of floats; integers become f32 (f64 where they have 64 bits)."""
    for arg in args:
        if is_vector(arg):
            return arg.mapped(lambda item: float_function(op, item))
    recorder = live(*args)
    recorder.mark()
    _, values = float_operands(recorder, args)
    assert op in MATH or op in (Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.SQRT, Op.FMA)
    return Scalar(recorder, recorder.builder.pure(op, values))


def float_operands(recorder: Recorder, args: Sequence[Any]) -> tuple[DType, tuple[Value, ...]]:
    """Scalars as values of one float type, and the type; literals alone are f32."""
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
    return dtype, tuple(
        recorder.builder.const(dtype, arg)
        if is_literal(arg)
        else recorder.builder.cast(scalar.value, dtype)
        for arg, scalar in zip(args, scalars, strict=True)
    )


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``; small literal exponents are products."""
    if is_vector(base) or is_vector(exponent):
        return _spread(power, base, exponent)
    if type(exponent) is int and isinstance(base, Scalar):
        small = 1 <= exponent <= 3 if base.dtype.is_float else exponent >= 0
        if small and base.dtype is not bool_:
            return _literal_power(base, exponent)
    recorder = live(base, exponent)
    left, right = unify(recorder, base, exponent, "**")
    if left.type.is_float:
        return float_function(Op.POW, Scalar(recorder, left), Scalar(recorder, right))
    if left.type is bool_:
        fail("** of two bools", "cast to a number: kj.i32(flag)")
    return _run_time_power(Scalar(recorder, left), Scalar(recorder, right))


def _literal_power(base: Any, exponent: int) -> Any:
    """By repeated squaring; wraps as multiplication does."""
    result, square = like(base, 1), base
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return result


def _run_time_power(base: Any, exponent: Any) -> Any:
    """Repeated squaring over all bits of the exponent; negative exponents give 0, 1 or -1."""
    dtype, one, zero = base.dtype, like(base, 1), like(base, 0)
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
        if is_vector(choice):
            count = len(choice)
            parts = [
                part.items if is_vector(part) else (part,) * count for part in (condition, yes, no)
            ]
            return Vector(live(choice), tuple(map(select, *parts)))
    recorder = live(condition, yes, no)
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


def pick(vector: Vector, key: Scalar) -> Any:
    """A component by a run-time index; out of range it is the last."""
    picked: Any = vector.items[-1]
    for place in range(len(vector.items) - 2, -1, -1):
        picked = select(compare(Op.EQ, key, place), vector.items[place], picked)
    return picked


def _item(vector: Vector, key: object) -> Any:
    return pick(vector, key) if isinstance(key, Scalar) else vector.items[vector.place(key)]


# Python's operators: the method's name with the operation it records.
_OPERATIONS: Final = {
    "add": Op.ADD,
    "sub": Op.SUB,
    "mul": Op.MUL,
    "truediv": Op.DIV,
    "floordiv": Op.FLOORDIV,
    "mod": Op.MOD,
    "and": Op.AND,
    "or": Op.OR,
    "xor": Op.XOR,
    "lshift": Op.SHL,
    "rshift": Op.SHR,
}
_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **{name: partial(binary, op) for name, op in _OPERATIONS.items()},
    "pow": power,
    "divmod": lambda a, b: (binary(Op.FLOORDIV, a, b), binary(Op.MOD, a, b)),
}
_COMPARISONS: Final = {name: Op(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_MIRRORED: Final = {"lt": "__gt__", "gt": "__lt__", "le": "__ge__", "ge": "__le__"}
_UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "neg": lambda a: number_function(Op.NEG, a),
    "abs": lambda a: number_function(Op.ABS, a),
    "pos": lambda a: a,
    "invert": invert,
}


_NOT_USERS: Final = ("khaljit", "enum")


def _method(function: Callable[[Any, Any], Any], mirrored: str) -> Callable[[Any, Any], Any]:
    """An operator that gives way to the mirrored one of a struct, or of a class of the user's."""

    def method(a: Any, b: Any) -> Any:
        kind = type(b)
        return NotImplemented if kind is not Scalar and _takes(kind, mirrored) else function(a, b)

    return method


def _takes(kind: type, mirrored: str) -> bool:
    method = getattr(kind, mirrored, None)
    # Flags of `enum` are numbers with operators in Python.
    own = isinstance(method, FunctionType) and method.__module__.split(".")[0] not in _NOT_USERS
    return own or hasattr(kind, "__kj_layout__")


def _mirrored(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(b, a)


def _attach() -> None:
    for name, function in _BINARY.items():
        setattr(Number, f"__{name}__", _method(function, f"__r{name}__"))
        setattr(Number, f"__r{name}__", _mirrored(function))
    for name, op in _COMPARISONS.items():
        setattr(Number, f"__{name}__", _method(partial(compare, op), _MIRRORED.get(name, "")))
    for name, unary in _UNARY.items():
        setattr(Number, f"__{name}__", unary)
    setattr(Number, "__hash__", Proxy.__hash__)  # noqa: B010  # __eq__ took it away
    setattr(Vector, "__getitem__", _item)  # noqa: B010  # the plain one cannot compare
    for kind in (Scalar, Vector):
        setattr(kind, "__kj_cast__", cast)  # noqa: B010  # the proxies know no casts


_attach()
