"""Pure values: by scalar instructions where their lanes are told by scalars, else by vectors."""

from __future__ import annotations

from dataclasses import replace

from khaljit.codegen.llvm.arithmetic import compute
from khaljit.codegen.llvm.clamped import clamped, grown, straightened
from khaljit.codegen.llvm.code import Code
from khaljit.codegen.llvm.conditions import where_straight
from khaljit.codegen.llvm.values import SCALAR, Held
from khaljit.tracer.ir import Value
from khaljit.tracer.ops import Op

__all__ = ["pure", "settled"]


def pure(code: Code, value: Value) -> Held:
    """A pure value, by scalar instructions where its lanes are told by one."""
    if value.op is Op.ID:
        return _id(code, value)
    if value.op in (Op.SCALAR, Op.SHAPE, Op.STRIDE):
        return code.values.get(value)
    operands = [code.values.get(operand) for operand in value.args]
    if all(operand.uniform for operand in operands):
        return Held(value.type, _scalar(code, value, operands))
    stride = code.stride(value)
    if stride is None:
        stride = grown(value, operands)
    if stride is not None and all(operand.affine for operand in operands):
        return Held(value.type, _scalar(code, value, operands), stride)
    if stride is not None and all(operand.linear for operand in operands):
        return _by_parts(code, value, operands, stride)
    if value in code.clamps and (line := clamped(code, value, operands)) is not None:
        return line
    vectors = [code.values.vector(operand) for operand in operands]
    if value.op is Op.SELECT and operands[0].uniform:
        return _select_vectors(code, value, operands[0].base, vectors)
    width = code.lanes.width
    parts = [compute(code.w, width, value, part) for part in zip(*vectors, strict=True)]
    held = Held(value.type, parts=tuple(parts))
    if value in code.clamps:
        held = straightened(code, value, operands, held)
    elif stride is not None and any(operand.straight for operand in operands):
        lines = _by_parts(code, value, operands, stride)
        held = replace(lines, parts=held.parts, straight=where_straight(code, operands))
    return settled(code, value, held)


def _scalar(code: Code, value: Value, operands: list[Held]) -> str:
    return compute(code.w, SCALAR, value, tuple(operand.base for operand in operands))


def _by_parts(code: Code, value: Value, operands: list[Held], stride: int) -> Held:
    """By a scalar instruction for each part; parts with the same operands share it."""
    made: dict[tuple[str, ...], str] = {}
    keys = list(zip(*(code.values.bases(operand) for operand in operands), strict=True))
    for key in keys:
        if key not in made:
            made[key] = compute(code.w, SCALAR, value, key)
    return Held(value.type, stride=stride, bases=tuple(made[key] for key in keys))


def _select_vectors(
    code: Code, value: Value, condition: str, vectors: list[tuple[str, ...]]
) -> Held:
    """By a scalar condition, all lanes at once."""
    t = code.lanes.width.type(value.type)
    parts = (
        code.w.let(f"select i1 {condition}, {t} {yes}, {t} {no}")
        for yes, no in zip(vectors[1], vectors[2], strict=True)
    )
    return Held(value.type, parts=tuple(parts))


def settled(code: Code, value: Value, held: Held) -> Held:
    """A value that is known to be uniform becomes a scalar."""
    if not held.parts or not code.uniform(value):
        return held
    lane = code.lanes.first(code.mask)
    return Held(value.type, code.one_of(held, lane))


def _id(code: Code, value: Value) -> Held:
    assert isinstance(value.attr, tuple)
    stride = code.stride(value)
    assert stride is not None
    bases = code.row_ids.get(value.attr)
    if bases is not None:
        return Held(value.type, stride=stride, bases=bases)
    base = code.ids[value.attr]
    return Held(value.type, base, stride, literal=stride == 0 and not base.startswith("%"))
