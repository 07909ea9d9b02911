"""How SPIR-V spells the operations of the trace: one row for each operation and kind of type.

The kind is that of the operand: ``s`` signed, ``u`` unsigned, ``f`` float, ``b`` bool.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.dtypes import DType, Kind
from khaljit.tracer.ops import Op

__all__ = ["ATOMICS", "BUILTINS", "CASTS", "COLLECTIVES", "EXTENDED", "PLAIN", "kind_of"]

_KINDS: Final = {Kind.BOOL: "b", Kind.SIGNED: "s", Kind.UNSIGNED: "u", Kind.FLOAT: "f"}


def kind_of(dtype: DType) -> str:
    """The letter of a type's kind."""
    return _KINDS[dtype.kind]


def _rows(op: Op, kinds: str, *names: str) -> dict[tuple[Op, str], str]:
    """A row for each kind; one name serves all."""
    spelled = names * len(kinds) if len(names) == 1 else names
    return {(op, kind): name for kind, name in zip(kinds, spelled, strict=True)}


# Operations on operands of one type, whose result has the type that the trace says.
PLAIN: Final = {
    **_rows(Op.ADD, "suf", "OpIAdd", "OpIAdd", "OpFAdd"),
    **_rows(Op.SUB, "suf", "OpISub", "OpISub", "OpFSub"),
    **_rows(Op.MUL, "suf", "OpIMul", "OpIMul", "OpFMul"),
    **_rows(Op.DIV, "f", "OpFDiv"),
    **_rows(Op.TRUNCDIV, "su", "OpSDiv", "OpUDiv"),
    **_rows(Op.TRUNCMOD, "su", "OpSRem", "OpUMod"),
    **_rows(Op.NEG, "f", "OpFNegate"),
    **_rows(Op.AND, "sub", "OpBitwiseAnd", "OpBitwiseAnd", "OpLogicalAnd"),
    **_rows(Op.OR, "sub", "OpBitwiseOr", "OpBitwiseOr", "OpLogicalOr"),
    **_rows(Op.XOR, "sub", "OpBitwiseXor", "OpBitwiseXor", "OpLogicalNotEqual"),
    **_rows(Op.NOT, "sub", "OpNot", "OpNot", "OpLogicalNot"),
    **_rows(Op.EQ, "sufb", "OpIEqual", "OpIEqual", "OpFOrdEqual", "OpLogicalEqual"),
    **_rows(Op.NE, "sub", "OpINotEqual", "OpINotEqual", "OpLogicalNotEqual"),
    **_rows(Op.LT, "suf", "OpSLessThan", "OpULessThan", "OpFOrdLessThan"),
    **_rows(Op.LE, "suf", "OpSLessThanEqual", "OpULessThanEqual", "OpFOrdLessThanEqual"),
    **_rows(Op.GT, "suf", "OpSGreaterThan", "OpUGreaterThan", "OpFOrdGreaterThan"),
    **_rows(Op.GE, "suf", "OpSGreaterThanEqual", "OpUGreaterThanEqual", "OpFOrdGreaterThanEqual"),
    **_rows(Op.SELECT, "sufb", "OpSelect"),
    **_rows(Op.BITCAST, "suf", "OpBitcast"),
    **_rows(Op.REVERSE_BITS, "su", "OpBitReverse"),
}

# The same from GLSL.std.450.
EXTENDED: Final = {
    **_rows(Op.ABS, "f", "FAbs"),
    **_rows(Op.MIN, "su", "SMin", "UMin"),
    **_rows(Op.MAX, "su", "SMax", "UMax"),
    **_rows(Op.MINIMUM, "su", "SMin", "UMin"),
    **_rows(Op.MAXIMUM, "su", "SMax", "UMax"),
    **_rows(Op.FMA, "f", "Fma"),
    **_rows(Op.SQRT, "f", "Sqrt"),
    **_rows(Op.FLOOR, "f", "Floor"),
    **_rows(Op.CEIL, "f", "Ceil"),
    **_rows(Op.TRUNC, "f", "Trunc"),
    **_rows(Op.ROUND, "f", "RoundEven"),
}

# By the kinds of source and destination; bits are kept where only the sign changes.
CASTS: Final = {
    ("s", "f"): "OpConvertSToF",
    ("u", "f"): "OpConvertUToF",
    ("f", "s"): "OpConvertFToS",
    ("f", "u"): "OpConvertFToU",
    ("f", "f"): "OpFConvert",
    ("s", "s"): "OpSConvert",
    ("u", "u"): "OpUConvert",
}

ATOMICS: Final = {
    **dict.fromkeys((("exchange", kind) for kind in "suf"), "OpAtomicExchange"),
    **dict.fromkeys((("add", kind) for kind in "su"), "OpAtomicIAdd"),
    **dict.fromkeys((("sub", kind) for kind in "su"), "OpAtomicISub"),
    **dict.fromkeys((("and", kind) for kind in "su"), "OpAtomicAnd"),
    **dict.fromkeys((("or", kind) for kind in "su"), "OpAtomicOr"),
    **dict.fromkeys((("xor", kind) for kind in "su"), "OpAtomicXor"),
    ("min", "s"): "OpAtomicSMin",
    ("min", "u"): "OpAtomicUMin",
    ("max", "s"): "OpAtomicSMax",
    ("max", "u"): "OpAtomicUMax",
    ("add", "f"): "OpAtomicFAddEXT",
}

# Of the trace's ids: the built-in variable, and whether it has three axes.
BUILTINS: Final = {
    "global": ("GlobalInvocationId", True),
    "local": ("LocalInvocationId", True),
    "workgroup": ("WorkgroupId", True),
    "num_workgroups": ("NumWorkgroups", True),
    "local_index": ("LocalInvocationIndex", False),
    "subgroup": ("SubgroupId", False),
    "lane": ("SubgroupLocalInvocationId", False),
    "num_subgroups": ("NumSubgroups", False),
    "subgroup_size": ("SubgroupSize", False),
}

# Reductions and scans by the last part of their name; the capability is the same for all.
COLLECTIVES: Final = {
    **{("add", kind): f"OpGroupNonUniform{'F' if kind == 'f' else 'I'}Add" for kind in "suf"},
    **{("mul", kind): f"OpGroupNonUniform{'F' if kind == 'f' else 'I'}Mul" for kind in "suf"},
    **{("min", kind): f"OpGroupNonUniform{kind.upper()}Min" for kind in "su"},
    **{("max", kind): f"OpGroupNonUniform{kind.upper()}Max" for kind in "su"},
    **{("and", kind): "OpGroupNonUniformBitwiseAnd" for kind in "su"},
    **{("or", kind): "OpGroupNonUniformBitwiseOr" for kind in "su"},
    **{("xor", kind): "OpGroupNonUniformBitwiseXor" for kind in "su"},
}
