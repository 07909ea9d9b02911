"""How WGSL spells types and operations: one row for each operation and kind of type.

In a form ``{t}`` is the type of the result, ``{0}`` to ``{2}`` are operands. The kind is that of
the last operand: ``s`` signed, ``u`` unsigned, ``f`` float, ``b`` bool.
"""

from __future__ import annotations

from typing import Final

from khaljit.tracer.build import to_number
from khaljit.tracer.dtypes import DType, bool_, f16, f32, f64, i32, i64, u32, u64
from khaljit.tracer.ops import Op

__all__ = ["ATOMICS", "COLLECTIVES", "FORMS", "IDS", "TYPES", "literal"]

TYPES: Final = {
    bool_: "bool",
    i32: "i32",
    u32: "u32",
    f32: "f32",
    f16: "f16",
    f64: "f64",
    i64: "i64",
    u64: "u64",
}
_SUFFIXES: Final = {i32: "i", u32: "u", f32: "f", f16: "h", f64: "lf", i64: "li", u64: "lu"}


def _rows(op: Op, kinds: str, form: str) -> dict[tuple[Op, str], str]:
    return {(op, kind): form for kind in kinds}


FORMS: Final = {
    **_rows(Op.ADD, "suf", "{0} + {1}"),
    **_rows(Op.SUB, "suf", "{0} - {1}"),
    **_rows(Op.MUL, "suf", "{0} * {1}"),
    **_rows(Op.DIV, "f", "{0} / {1}"),
    **_rows(Op.TRUNCDIV, "su", "{0} / {1}"),
    **_rows(Op.TRUNCMOD, "su", "{0} % {1}"),
    **_rows(Op.NEG, "f", "-{0}"),
    **_rows(Op.NEG, "su", "{t}(0) - {0}"),
    **_rows(Op.ABS, "f", "abs({0})"),
    **_rows(Op.ABS, "s", "max({0}, {t}(0) - {0})"),
    **_rows(Op.ABS, "u", "{0}"),
    **_rows(Op.MIN, "su", "min({0}, {1})"),
    **_rows(Op.MAX, "su", "max({0}, {1})"),
    **_rows(Op.MINIMUM, "su", "min({0}, {1})"),
    **_rows(Op.MAXIMUM, "su", "max({0}, {1})"),
    **_rows(Op.FMA, "f", "fma({0}, {1}, {2})"),
    **_rows(Op.AND, "sub", "{0} & {1}"),
    **_rows(Op.OR, "sub", "{0} | {1}"),
    **_rows(Op.XOR, "su", "{0} ^ {1}"),
    **_rows(Op.XOR, "b", "{0} != {1}"),
    **_rows(Op.NOT, "su", "~{0}"),
    **_rows(Op.NOT, "b", "!{0}"),
    **_rows(Op.SHL, "su", "{0} << {1}"),
    **_rows(Op.SHR, "su", "{0} >> {1}"),
    **_rows(Op.POPCOUNT, "su", "i32(countOneBits({0}))"),
    **_rows(Op.CLZ, "su", "i32(countLeadingZeros({0}))"),
    **_rows(Op.CTZ, "su", "i32(countTrailingZeros({0}))"),
    **_rows(Op.REVERSE_BITS, "su", "reverseBits({0})"),
    **_rows(Op.EQ, "sufb", "{0} == {1}"),
    **_rows(Op.NE, "sub", "{0} != {1}"),
    **_rows(Op.NE, "f", "!({0} == {1})"),
    **_rows(Op.LT, "suf", "{0} < {1}"),
    **_rows(Op.LE, "suf", "{0} <= {1}"),
    **_rows(Op.GT, "suf", "{0} > {1}"),
    **_rows(Op.GE, "suf", "{0} >= {1}"),
    **_rows(Op.SELECT, "sufb", "select({2}, {1}, {0})"),
    **_rows(Op.CAST, "suf", "{t}({0})"),
    **_rows(Op.BITCAST, "suf", "bitcast<{t}>({0})"),
    **_rows(Op.FLOOR, "f", "floor({0})"),
    **_rows(Op.CEIL, "f", "ceil({0})"),
    **_rows(Op.TRUNC, "f", "trunc({0})"),
    **_rows(Op.ROUND, "f", "round({0})"),
    **_rows(Op.SQRT, "f", "sqrt({0})"),
}

# Of the trace's ids: the parameter of the entry point, its built-in value, and its axes.
IDS: Final = {
    "global": ("global_id", "global_invocation_id", 3),
    "local": ("local_id", "local_invocation_id", 3),
    "workgroup": ("workgroup_id", "workgroup_id", 3),
    "num_workgroups": ("num_workgroups", "num_workgroups", 3),
    "local_index": ("local_index", "local_invocation_index", 1),
    "subgroup": ("subgroup_id", "subgroup_id", 1),
    "lane": ("lane_id", "subgroup_invocation_id", 1),
    "num_subgroups": ("num_subgroups", "num_subgroups", 1),
    "subgroup_size": ("subgroup_size", "subgroup_size", 1),
}

ATOMICS: Final = {
    "load": "atomicLoad({0})",
    "store": "atomicStore({0}, {1})",
    "add": "atomicAdd({0}, {1})",
    "sub": "atomicSub({0}, {1})",
    "min": "atomicMin({0}, {1})",
    "max": "atomicMax({0}, {1})",
    "and": "atomicAnd({0}, {1})",
    "or": "atomicOr({0}, {1})",
    "xor": "atomicXor({0}, {1})",
    "exchange": "atomicExchange({0}, {1})",
}

COLLECTIVES: Final = {
    "add": "subgroupAdd({0})",
    "mul": "subgroupMul({0})",
    "min": "subgroupMin({0})",
    "max": "subgroupMax({0})",
    "and": "subgroupAnd({0})",
    "or": "subgroupOr({0})",
    "xor": "subgroupXor({0})",
    "inclusive_add": "subgroupInclusiveAdd({0})",
    "exclusive_add": "subgroupExclusiveAdd({0})",
    "inclusive_mul": "subgroupInclusiveMul({0})",
    "exclusive_mul": "subgroupExclusiveMul({0})",
    "any": "subgroupAny({0})",
    "all": "subgroupAll({0})",
    "ballot": "subgroupBallot({0}).x",
    "broadcast_first": "subgroupBroadcastFirst({0})",
    "shuffle": "subgroupShuffle({0}, {1})",
}


def literal(dtype: DType, bits: int) -> str | None:
    """A constant by its bits; None for what WGSL has no literal for: NaN and infinity.

    >>> literal(i32, 0x80000000)
    'i32(-2147483648)'
    >>> literal(f32, 0x3DCCCCCD)
    '0x1.99999a0000000p-4f'
    """
    number = to_number(dtype, bits)
    if dtype is bool_:
        return str(bool(number)).lower()
    if dtype.is_float:
        if number - number != 0:
            return None
        text = float(number).hex() if dtype is f32 else repr(float(number))
        text += _SUFFIXES[dtype]
        return f"({text})" if text.startswith("-") else text
    if number == dtype.limits[0] and dtype.is_signed:
        return "i32(-2147483648)" if dtype is i32 else "(-9223372036854775807li - 1li)"
    text = f"{number}{_SUFFIXES[dtype]}"
    return f"({text})" if number < 0 else text
