"""Pure operations as LLVM instructions, for one width: the regular by form, the others by hand.

Everything here is total, in lanes that are masked off too: no instruction traps, and none gives
poison, whatever the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from khaljit.codegen.llvm.forms import APPROXIMATE, FORMS, TYPES, Width
from khaljit.codegen.llvm.writer import Writer
from khaljit.tracer.dtypes import DType, Kind, bool_, f16, f32, f64, i64
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["cast", "compute", "regular"]


def compute(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    """The instructions of a pure operation on operands of one width; gives the result's name."""
    special = _SPECIAL.get(value.op)
    if special is not None:
        return special(w, width, value, operands)
    if w.signals and value.op in _ORDERINGS and value.args[0].type.is_float:
        operands = _quieted(w, width, value, operands)
    return regular(w, width, value.op, value.args[0].type, operands)


def regular(w: Writer, width: Width, op: Op, dtype: DType, operands: tuple[str, ...]) -> str:
    """An operation that has a form."""
    type_ = TYPES[dtype]
    if op in _LESSER and dtype in (f32, f64) and not width.lanes:
        return _lesser(w, op, dtype, *operands)
    return w.let(
        FORMS[op, dtype].format(
            *operands,
            t=width.of(type_),
            f=APPROXIMATE if w.fastmath and dtype is f32 else "",
            m=width.mangle(type_),
            zero="zeroinitializer" if width.lanes else "0",
            ones=width.const(type_, "true" if dtype is bool_ else "-1"),
        )
    )


_LESSER: Final = {Op.MIN: ("olt", "or"), Op.MAX: ("ogt", "and")}


def _lesser(w: Writer, op: Op, dtype: DType, a: str, b: str) -> str:
    """The lesser or greater of two scalars, or what is no NaN; -0 is less than 0.

    By hand: with AVX-512, LLVM 20 compiles a scalar minimumnum of a NaN and of what it knows to be
    none, such as an integer's value, to the NaN.
    """
    t, bits = TYPES[dtype], f"i{dtype.bits}"
    order, join = _LESSER[op]
    found = w.let(f"select i1 {w.let(f'fcmp {order} {t} {a}, {b}')}, {t} {a}, {t} {b}")
    found = w.let(f"select i1 {w.let(f'fcmp uno {t} {b}, {b}')}, {t} {a}, {t} {found}")
    left, right = (w.let(f"bitcast {t} {one} to {bits}") for one in (a, b))
    zero = w.let(f"bitcast {bits} {w.let(f'{join} {bits} {left}, {right}')} to {t}")
    return w.let(f"select i1 {w.let(f'fcmp oeq {t} {a}, {b}')}, {t} {zero}, {t} {found}")


_ORDERINGS: Final = frozenset({Op.LT, Op.LE, Op.GT, Op.GE})
_ROUNDED: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FMA, Op.SQRT})


def _quieted(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> tuple[str, ...]:
    """The operands with quiet NaN only."""
    t = width.type(value.args[0].type)
    called = f"llvm.canonicalize.{width.mangle(TYPES[value.args[0].type])}"
    return tuple(
        name if _is_quiet(one) else w.let(f"call {t} @{called}({t} {name})")
        for one, name in zip(value.args, operands, strict=True)
    )


def _is_quiet(value: Value) -> bool:
    """Whether a float is surely no signalling NaN. ``x * 1`` may be, as LLVM makes it x."""
    if value.op in _ROUNDED:
        return all(one.op is not Op.CONST for one in value.args)
    return value.op is Op.CONST


def _select(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    condition, yes, no = operands
    t = width.type(value.type)
    return w.let(f"select {width.of('i1')} {condition}, {t} {yes}, {t} {no}")


def _bit_count(name: str, more: str) -> Callable[..., str]:
    """Counts bits by an intrinsic; the count is an i32 whatever it counts in."""

    def count(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
        bits = value.args[0].type.bits
        t = width.of(f"i{bits}")
        found = w.let(f"call {t} @llvm.{name}.{width.mangle(f'i{bits}')}({t} {operands[0]}{more})")
        return _resize(w, width, found, bits, value.type.bits, signed=False)

    return count


def _resize(w: Writer, width: Width, name: str, bits: int, to: int, *, signed: bool) -> str:
    """An integer in another width, by its value where it gets wider."""
    if bits == to:
        return name
    if width.lanes and bits == 64 and to <= 16:
        return _part(w, width, name, bits, to, 0)
    op = "trunc" if to < bits else "sext" if signed else "zext"
    return w.let(f"{op} {width.of(f'i{bits}')} {name} to {width.of(f'i{to}')}")


# Division.


def _truncdiv(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    dtype = value.type
    if not _by_floats(width, value):
        op = "sdiv" if dtype.is_signed else "udiv"
        return w.let(f"{op} {width.type(dtype)} {operands[0]}, {operands[1]}")
    return _float_quotient(w, width, dtype, operands[0], operands[1])


def _truncmod(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    dtype = value.type
    t = width.type(dtype)
    if not _by_floats(width, value):
        return w.let(f"{'srem' if dtype.is_signed else 'urem'} {t} {operands[0]}, {operands[1]}")
    quotient = _float_quotient(w, width, dtype, operands[0], operands[1])
    product = w.let(f"mul {t} {quotient}, {operands[1]}")
    return w.let(f"sub {t} {operands[0]}, {product}")


def _by_floats(width: Width, value: Value) -> bool:
    """Whether a division is better done in floats: no vector has integer division.

    LLVM itself multiplies instead of dividing by a constant. 64 bits fit no float.
    """
    return bool(width.lanes) and value.args[1].op is not Op.CONST and value.type.bits <= 32


def _float_quotient(w: Writer, width: Width, dtype: DType, a: str, b: str) -> str:
    """The truncated quotient through floats of more than twice the bits, where it is exact.

    The quotient of n-bit integers is off an integer by at least 1 / b, which is more than a float
    with more than 2 n bits rounds by.
    """
    t = width.type(dtype)
    real = width.of("double" if dtype.bits == 32 else "float")
    to, back = ("sitofp", "fptosi") if dtype.is_signed else ("uitofp", "fptoui")
    x = w.let(f"{to} {t} {a} to {real}")
    y = w.let(f"{to} {t} {b} to {real}")
    quotient = w.let(f"fdiv {real} {x}, {y}")
    scalar = "double" if dtype.bits == 32 else "float"
    name = f"llvm.{back}.sat.{width.mangle(TYPES[dtype])}.{width.mangle(scalar)}"
    return w.let(f"call {t} @{name}({real} {quotient})")


# The upper half of a product.


def _mulhi(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    dtype = value.type
    if dtype.bits == 64 and width.lanes:
        high = _unsigned_mulhi64(w, width, *operands)
        return _signed_correction(w, width, high, *operands) if dtype is i64 else high
    extend = "sext" if dtype.is_signed else "zext"
    t, wide = width.of(f"i{dtype.bits}"), f"i{2 * dtype.bits}"
    a, b = (w.let(f"{extend} {t} {name} to {width.of(wide)}") for name in operands)
    product = w.let(f"mul {width.of(wide)} {a}, {b}")
    if width.lanes and dtype.bits == 32:
        return _part(w, width, product, 64, 32, 1)
    shifted = w.let(f"lshr {width.of(wide)} {product}, {width.const(wide, str(dtype.bits))}")
    return w.let(f"trunc {width.of(wide)} {shifted} to {t}")


def _part(w: Writer, width: Width, name: str, bits: int, part: int, place: int) -> str:
    """Some bits of vectors' elements, counted in parts from the lowest.

    LLVM makes ``trunc (lshr (mul a b) 32)`` of numbers of 16 bits an instruction that gives the
    upper 16 of 32 bits, shifted by 16 more, which is nothing defined. It does not look into this.
    """
    parts = bits // part
    many = f"<{width.lanes * parts} x i{part}>"
    held = w.let(f"bitcast {width.of(f'i{bits}')} {name} to {many}")
    places = ", ".join(f"i32 {lane * parts + place}" for lane in range(width.lanes))
    return w.let(f"shufflevector {many} {held}, {many} poison, {width.of('i32')} <{places}>")


def _unsigned_mulhi64(w: Writer, width: Width, a: str, b: str) -> str:
    """From four products of halves, since vectors multiply 32 by 32 bits."""
    t = width.of("i64")
    mask, half = width.const("i64", str(0xFFFFFFFF)), width.const("i64", "32")

    def do(op: str, x: str, y: str) -> str:
        return w.let(f"{op} {t} {x}, {y}")

    a_low, b_low = do("and", a, mask), do("and", b, mask)
    a_high, b_high = do("lshr", a, half), do("lshr", b, half)
    carry = do("lshr", do("mul", a_low, b_low), half)
    middle = do("add", do("mul", a_high, b_low), carry)
    other = do("add", do("mul", a_low, b_high), do("and", middle, mask))
    upper = do("add", do("mul", a_high, b_high), do("lshr", middle, half))
    return do("add", upper, do("lshr", other, half))


def _signed_correction(w: Writer, width: Width, high: str, a: str, b: str) -> str:
    """Signed from unsigned: take off b where a is negative, and a where b is."""
    t, top = width.of("i64"), width.const("i64", "63")
    for x, y in ((a, b), (b, a)):
        sign = w.let(f"ashr {t} {x}, {top}")
        extra = w.let(f"and {t} {sign}, {y}")
        high = w.let(f"sub {t} {high}, {extra}")
    return high


# Casts.


def _cast(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    return cast(w, width, operands[0], value.args[0].type, value.type)


def cast(w: Writer, width: Width, name: str, source: DType, to: DType) -> str:
    """A value by value in another type."""
    if to is bool_:
        return _to_bool(w, width, name, source)
    if source is bool_:
        op = "uitofp" if to.is_float else "zext"
        return w.let(f"{op} {width.of('i1')} {name} to {width.type(to)}")
    if source.is_float and to.is_float:
        return _float_to_float(w, width, name, source, to)
    if source.is_float:
        return _float_to_integer(w, width, name, source, to)
    if to.is_float:
        op = "sitofp" if source.is_signed else "uitofp"
        return w.let(f"{op} {width.type(source)} {name} to {width.type(to)}")
    return _resize(w, width, name, source.bits, to.bits, signed=source.is_signed)


def _to_bool(w: Writer, width: Width, name: str, source: DType) -> str:
    zero = "zeroinitializer" if width.lanes else "0.0" if source.is_float else "0"
    op = "fcmp une" if source.is_float else "icmp ne"
    return w.let(f"{op} {width.type(source)} {name}, {zero}")


def _float_to_float(w: Writer, width: Width, name: str, source: DType, to: DType) -> str:
    half = width.of("half")
    if source is f16:
        held = w.let(f"bitcast {width.of('i16')} {name} to {half}")
        return w.let(f"fpext {half} {held} to {width.type(to)}")
    if to is f16:
        held = w.let(f"fptrunc {width.type(source)} {name} to {half}")
        return w.let(f"bitcast {half} {held} to {width.of('i16')}")
    op = "fpext" if to.bits > source.bits else "fptrunc"
    return w.let(f"{op} {width.type(source)} {name} to {width.type(to)}")


def _float_to_integer(w: Writer, width: Width, name: str, source: DType, to: DType) -> str:
    """By an intrinsic that saturates and gives 0 for NaN, as the language does."""
    op = "fptosi" if to.kind is Kind.SIGNED else "fptoui"
    called = f"llvm.{op}.sat.{width.mangle(TYPES[to])}.{width.mangle(TYPES[source])}"
    return w.let(f"call {width.type(to)} @{called}({width.type(source)} {name})")


def _bitcast(w: Writer, width: Width, value: Value, operands: tuple[str, ...]) -> str:
    name, source, to = operands[0], value.args[0].type, value.type
    if TYPES[source] == TYPES[to]:
        return name
    if bool_ in (source, to):  # a byte and a bool: the bool is one bit of it
        return cast(w, width, name, source, to)
    return w.let(f"bitcast {width.type(source)} {name} to {width.type(to)}")


_Special = Callable[[Writer, Width, Value, tuple[str, ...]], str]

_SPECIAL: Final[dict[Op, _Special]] = {
    Op.SELECT: _select,
    Op.POPCOUNT: _bit_count("ctpop", ""),
    Op.CLZ: _bit_count("ctlz", ", i1 false"),
    Op.CTZ: _bit_count("cttz", ", i1 false"),
    Op.TRUNCDIV: _truncdiv,
    Op.TRUNCMOD: _truncmod,
    Op.MULHI: _mulhi,
    Op.CAST: _cast,
    Op.BITCAST: _bitcast,
}
