"""The operations of the trace: one row each, saying what an operation means.

Nothing about any target stands here. A row serves the builder (arity and typing), the verifier,
constant folding and the interpreter (through ``khaljit.tracer.numerics``, which holds NumPy's
meaning of every pure operation under its name).

To add one: see "Adding things" in docs/architecture.md.

Two kinds of operation, told apart by ``effect``:

* pure values are total (they never trap, whatever their operands) and float: they stand in no
  region and are interned by (op, dtype, operands, attr);
* effects stand in the body of a region, in the order in which they were recorded.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from khaljit.tracer.dtypes import DType, Kind, bool_, i32, index
from khaljit.tracer.records import dataclass

__all__ = [
    "COMBINE",
    "COMPARISONS",
    "ENDS",
    "MATH",
    "NORMAL",
    "OPS",
    "Op",
    "OpInfo",
    "TypingError",
    "accepts",
]


class Op(enum.Enum):
    """Every operation; the value is its name in the text form."""

    # Leaves. The attribute says which.
    CONST = "const"  # attr: the bits, as a non-negative int (interned by dtype and bits)
    SCALAR = "scalar"  # attr: number of the scalar parameter
    MEMORY = "memory"  # attr: ir.Memory; no dtype
    ID = "id"  # attr: (name, axis), see ir.IDS
    SHAPE = "shape"  # (memory), attr: axis
    STRIDE = "stride"  # (memory), attr: axis; in units of the element's alignment
    PARAM = "param"  # attr: position; a loop-carried value, owned by its region
    RESULT = "result"  # (if or loop), attr: position

    # Arithmetic. Integers wrap. Division is total: x // 0 = x % 0 = 0.
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats; attr: None or `NORMAL`
    FLOORDIV = "floordiv"  # rounds to minus infinity, floats too
    MOD = "mod"  # sign of the divisor
    NEG = "neg"
    ABS = "abs"  # of the most negative integer: itself
    MIN = "min"  # IEEE 754-2019 minimumNumber: skips NaN, -0 < +0
    MAX = "max"
    MINIMUM = "minimum"  # IEEE 754-2019 minimum: NaN wins
    MAXIMUM = "maximum"
    FMA = "fma"  # a * b + c, rounded once; floats
    MULHI = "mulhi"  # the upper half of the double-width product
    TRUNCDIV = "truncdiv"  # lowered form of division: the divisor is neither 0 nor overflows
    TRUNCMOD = "truncmod"

    # Bits. bool takes AND, OR, XOR, NOT as logic. Shifts at or past the width give 0 or the sign.
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    SHL = "shl"
    SHR = "shr"  # arithmetic for signed types; amounts count as unsigned
    POPCOUNT = "popcount"
    CLZ = "clz"  # of 0: the width
    CTZ = "ctz"  # of 0: the width
    REVERSE_BITS = "reverse_bits"

    # Comparisons give bool; with NaN only NE is true.
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"

    SELECT = "select"  # (condition, if true, if false)
    CAST = "cast"  # by value: integers wrap, float to integer saturates, NaN gives 0
    BITCAST = "bitcast"  # same width

    # Rounding, exact on every target.
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"  # ties to even
    SQRT = "sqrt"  # correctly rounded; attr: None or `NORMAL`

    # Elementary functions: the legaliser expands them into the operations above.
    EXP = "exp"
    EXP2 = "exp2"
    EXP10 = "exp10"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    POW = "pow"
    RSQRT = "rsqrt"
    CBRT = "cbrt"
    HYPOT = "hypot"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ATAN2 = "atan2"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERF = "erf"
    ERFC = "erfc"
    TGAMMA = "tgamma"
    LGAMMA = "lgamma"

    # Effects. Memory operations: (memory, *indices, *operands), attr: ir.Access.
    LOAD = "load"
    STORE = "store"
    ATOMIC = "atomic"  # attr: ir.AtomicAccess; gives the old value
    BARRIER = "barrier"  # attr: "workgroup", "storage" or "subgroup"
    SUBGROUP = "subgroup"  # attr: the collective's name
    PRINT = "print"  # attr: ir.Note with the format; operands are printed
    ASSERT = "assert"  # (condition, *operands), attr: ir.Note with the message
    IF = "if"  # (condition), two regions, attr: dtypes of the results
    LOOP = "loop"  # (*initial values), one region, attr: dtypes of the results

    # Ends of regions; their operands are the values that flow out.
    YIELD = "yield"
    BREAK = "break"
    CONTINUE = "continue"
    RETURN = "return"

    # By identity: operations are keys in every table, and Enum hashes names in Python.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.value


class TypingError(TypeError):
    """Operands do not fit an operation. A defect in whoever built it, not in the user's kernel."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What an operation means.

    Attributes:
        arity: number of operands; None where it varies.
        result: gives the result type from the operand types; None where the builder of the value
            states it (casts, loads, leaves).
        commutative: the builder may swap the operands (it puts constants on the right).
        effect: stands in a region and is kept even when nobody reads its value.
    """

    arity: int | None
    result: Callable[..., DType] | None = None
    commutative: bool = False
    effect: bool = False


def _same(*types: DType) -> DType:
    """All operands have one type, and so has the result."""
    first = types[0]
    for other in types:
        if other is not first:
            raise TypingError(f"operands differ: {', '.join(t.name for t in types)}")
    return first


def _number(*types: DType) -> DType:
    if types[0].kind is Kind.BOOL:
        raise TypingError("bool is not a number here")
    return _same(*types)


def _integer(*types: DType) -> DType:
    if not types[0].is_integer:
        raise TypingError(f"{types[0].name} is not an integer")
    return _same(*types)


def _float(*types: DType) -> DType:
    if not types[0].is_float:
        raise TypingError(f"{types[0].name} is not a float")
    return _same(*types)


def _bits(*types: DType) -> DType:
    if types[0].is_float:
        raise TypingError(f"{types[0].name} has no bitwise operations")
    return _same(*types)


def _count(*types: DType) -> DType:
    """Bit counts are i32 whatever they count in, but stay ``index`` for ``index``."""
    return index if _integer(*types) is index else i32


def _comparison(*types: DType) -> DType:
    _same(*types)
    return bool_


def _order(*types: DType) -> DType:
    _number(*types)
    return bool_


def _select(condition: DType, yes: DType, no: DType) -> DType:
    if condition is not bool_:
        raise TypingError(f"select by {condition.name}")
    return _same(yes, no)


_BINARY: Final = OpInfo(2, _number)
_COMMUTATIVE: Final = OpInfo(2, _number, commutative=True)
_UNARY_FLOAT: Final = OpInfo(1, _float)
_BINARY_FLOAT: Final = OpInfo(2, _float)
_LEAF: Final = OpInfo(0)
_END: Final = OpInfo(None, effect=True)

OPS: Final[dict[Op, OpInfo]] = {
    Op.CONST: _LEAF,
    Op.SCALAR: _LEAF,
    Op.MEMORY: _LEAF,
    Op.ID: _LEAF,
    Op.SHAPE: OpInfo(1),
    Op.STRIDE: OpInfo(1),
    Op.PARAM: _LEAF,
    Op.RESULT: OpInfo(1),
    Op.ADD: _COMMUTATIVE,
    Op.SUB: _BINARY,
    Op.MUL: _COMMUTATIVE,
    Op.DIV: _BINARY_FLOAT,
    Op.FLOORDIV: _BINARY,
    Op.MOD: _BINARY,
    Op.NEG: OpInfo(1, _number),
    Op.ABS: OpInfo(1, _number),
    Op.MIN: _COMMUTATIVE,
    Op.MAX: _COMMUTATIVE,
    Op.MINIMUM: _COMMUTATIVE,
    Op.MAXIMUM: _COMMUTATIVE,
    Op.FMA: OpInfo(3, _float),
    Op.MULHI: OpInfo(2, _integer, commutative=True),
    Op.TRUNCDIV: OpInfo(2, _integer),
    Op.TRUNCMOD: OpInfo(2, _integer),
    Op.AND: OpInfo(2, _bits, commutative=True),
    Op.OR: OpInfo(2, _bits, commutative=True),
    Op.XOR: OpInfo(2, _bits, commutative=True),
    Op.NOT: OpInfo(1, _bits),
    Op.SHL: OpInfo(2, _integer),
    Op.SHR: OpInfo(2, _integer),
    Op.POPCOUNT: OpInfo(1, _count),
    Op.CLZ: OpInfo(1, _count),
    Op.CTZ: OpInfo(1, _count),
    Op.REVERSE_BITS: OpInfo(1, _integer),
    Op.EQ: OpInfo(2, _comparison, commutative=True),
    Op.NE: OpInfo(2, _comparison, commutative=True),
    Op.LT: OpInfo(2, _order),
    Op.LE: OpInfo(2, _order),
    Op.GT: OpInfo(2, _order),
    Op.GE: OpInfo(2, _order),
    Op.SELECT: OpInfo(3, _select),
    Op.CAST: OpInfo(1),
    Op.BITCAST: OpInfo(1),
    Op.FLOOR: _UNARY_FLOAT,
    Op.CEIL: _UNARY_FLOAT,
    Op.TRUNC: _UNARY_FLOAT,
    Op.ROUND: _UNARY_FLOAT,
    Op.SQRT: _UNARY_FLOAT,
    Op.EXP: _UNARY_FLOAT,
    Op.EXP2: _UNARY_FLOAT,
    Op.EXP10: _UNARY_FLOAT,
    Op.EXPM1: _UNARY_FLOAT,
    Op.LOG: _UNARY_FLOAT,
    Op.LOG2: _UNARY_FLOAT,
    Op.LOG10: _UNARY_FLOAT,
    Op.LOG1P: _UNARY_FLOAT,
    Op.POW: _BINARY_FLOAT,
    Op.RSQRT: _UNARY_FLOAT,
    Op.CBRT: _UNARY_FLOAT,
    Op.HYPOT: _BINARY_FLOAT,
    Op.SIN: _UNARY_FLOAT,
    Op.COS: _UNARY_FLOAT,
    Op.TAN: _UNARY_FLOAT,
    Op.ASIN: _UNARY_FLOAT,
    Op.ACOS: _UNARY_FLOAT,
    Op.ATAN: _UNARY_FLOAT,
    Op.ATAN2: _BINARY_FLOAT,
    Op.SINH: _UNARY_FLOAT,
    Op.COSH: _UNARY_FLOAT,
    Op.TANH: _UNARY_FLOAT,
    Op.ASINH: _UNARY_FLOAT,
    Op.ACOSH: _UNARY_FLOAT,
    Op.ATANH: _UNARY_FLOAT,
    Op.ERF: _UNARY_FLOAT,
    Op.ERFC: _UNARY_FLOAT,
    Op.TGAMMA: _UNARY_FLOAT,
    Op.LGAMMA: _UNARY_FLOAT,
    Op.LOAD: OpInfo(None, effect=True),
    Op.STORE: OpInfo(None, effect=True),
    Op.ATOMIC: OpInfo(None, effect=True),
    Op.BARRIER: OpInfo(0, effect=True),
    Op.SUBGROUP: OpInfo(None, effect=True),
    Op.PRINT: OpInfo(None, effect=True),
    Op.ASSERT: OpInfo(None, effect=True),
    Op.IF: OpInfo(1, effect=True),
    Op.LOOP: OpInfo(None, effect=True),
    Op.YIELD: _END,
    Op.BREAK: _END,
    Op.CONTINUE: _END,
    Op.RETURN: _END,
}


def accepts(op: Op, *types: DType) -> bool:
    """Whether an operation with a typing rule takes operands of some types.

    >>> accepts(Op.SHL, i32, i32), accepts(Op.SHL, i32, index), accepts(Op.NOT, bool_)
    (True, False, True)
    """
    arity, rule = OPS[op].arity, OPS[op].result
    assert rule is not None
    try:
        rule(*types)
    except TypingError:
        return False
    return len(types) == arity


COMPARISONS: Final = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE})
ENDS: Final = frozenset({Op.YIELD, Op.BREAK, Op.CONTINUE, Op.RETURN})
# Atomics and collectives that combine values, by name, and the operation that each is.
COMBINE: Final = {
    "add": Op.ADD,
    "sub": Op.SUB,
    "mul": Op.MUL,
    "min": Op.MIN,
    "max": Op.MAX,
    "and": Op.AND,
    "or": Op.OR,
    "xor": Op.XOR,
}
# The attribute of a quotient or root of which the target need not care how it comes out where an
# operand or the result is further from 1 than 2 to 3/4 of the largest exponent. A numerator may be
# 0, and so may what a root is taken of. In legal traces only.
NORMAL: Final = "normal"
# Elementary functions, the part of the table that the legaliser expands.
_ORDER: Final = list(Op)
MATH: Final = frozenset(_ORDER[_ORDER.index(Op.EXP) : _ORDER.index(Op.LGAMMA) + 1])
