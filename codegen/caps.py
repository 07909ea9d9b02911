"""What each target can do: one row a target, read by the legaliser, errors, tests and tables.

Nothing else asks which target it is. A row lists what a code generator takes as it is; whatever
else a trace holds, the legaliser rewrites into that or refuses with a CapabilityError.

To add a target: its row in `ROWS`. To add an operation that a target takes: its entry in the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, final

from khaljit.tracer.dtypes import (
    ALL,
    INTEGERS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
)
from khaljit.tracer.ir import ATOMICS
from khaljit.tracer.ops import Op
from khaljit.tracer.records import dataclass

__all__ = ["ROWS", "Caps", "row", "webgpu", "webgpu_named"]


@final
@dataclass(frozen=True, slots=True)
class Caps:
    """What a target takes.

    Attributes:
        name: of the target, as it stands in keys and messages.
        dtypes: types that values may have. The 16-bit floats outside this set are carried as
            u16, in memory too; any other type outside it is refused.
        ops: operations with the types that they work in: the type of the operand, the selected
            type for ``SELECT``. Casts stand in ``casts``; constants, ids and the like are always
            taken.
        casts: pairs of source and destination.
        atomics: (kind, type) of the atomic operations that are taken as they are.
        max_workgroup: most invocations of a workgroup.
        max_workgroup_size: most invocations of a workgroup along x, y and z.
        shared_bytes: most bytes of shared memory of a workgroup.
        subgroups: sizes that subgroups may have.
        machine: where the generator carries some of ``dtypes`` in others, those it does not.
        collectives: subgroup operations that are taken as they are; others are composed.
        immediates: bytes of parameters that travel with a dispatch itself.
        rounded: f32 is divided, and its roots are taken, with correct rounding.
        subnormals: results of f32 too small for its exponents are kept, not taken for 0.
        vectors: whether invocations are the lanes of vectors, which take both arms of a branch.
        total_shifts: whether shifts are taken with any amount, past the width too.
        fast: operations that kernels with ``fastmath`` may use besides.
    """

    name: str
    dtypes: frozenset[DType]
    ops: frozenset[tuple[Op, DType]]
    casts: frozenset[tuple[DType, DType]]
    atomics: frozenset[tuple[str, DType]]
    max_workgroup: int
    max_workgroup_size: tuple[int, int, int]
    shared_bytes: int
    subgroups: tuple[int, ...]
    machine: frozenset[DType] = frozenset()
    collectives: frozenset[str] = frozenset()
    immediates: int = 0
    rounded: bool = True
    subnormals: bool = True
    vectors: bool = False
    total_shifts: bool = False
    fast: frozenset[tuple[Op, DType]] = frozenset()

    def takes(self, op: Op, dtype: DType, fastmath: bool = False) -> bool:
        """Whether an operation is taken as it is in a type."""
        return (op, dtype) in self.ops or (fastmath and (op, dtype) in self.fast)


# Operations of the LLVM targets by the kind of type. Shifts are taken with amounts below the width
# only, which the legaliser sees to; division by TRUNCDIV and TRUNCMOD.
_SHIFTS: Final = frozenset({Op.SHL, Op.SHR})
_COMPARISONS: Final = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE})
_BITWISE: Final = frozenset({Op.AND, Op.OR, Op.XOR, Op.NOT})
_ARITHMETIC: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.MIN, Op.MAX})
_INTEGER_OPS: Final = (
    _ARITHMETIC
    | _SHIFTS
    | _COMPARISONS
    | _BITWISE
    | {Op.MULHI, Op.TRUNCDIV, Op.TRUNCMOD, Op.MINIMUM, Op.MAXIMUM, Op.SELECT, Op.BITCAST}
    | {Op.POPCOUNT, Op.CLZ, Op.CTZ, Op.REVERSE_BITS}
)
_ROUNDING: Final = frozenset({Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND})
_FLOAT_OPS: Final = (
    _ARITHMETIC
    | _COMPARISONS
    | _ROUNDING
    | {Op.DIV, Op.MINIMUM, Op.MAXIMUM, Op.FMA, Op.SQRT, Op.SELECT, Op.BITCAST}
)
_BOOL_OPS: Final = _BITWISE | {Op.EQ, Op.NE, Op.SELECT}
_FLOAT_ATOMICS: Final = frozenset(ATOMICS) - {"and", "or", "xor"}
_WORDS: Final = tuple(t for t in ALL if t not in (f16, bf16))


def _llvm(name: str, *, half: bool, fma: bool, rounding: bool) -> Caps:
    """The row of an LLVM target from the instructions that it has without calling a library."""
    ops = {(op, dtype) for dtype in INTEGERS for op in _INTEGER_OPS}
    ops |= {(op, dtype) for dtype in (f32, f64) for op in _FLOAT_OPS}
    ops |= {(op, bool_) for op in _BOOL_OPS}
    if not fma:
        ops -= {(Op.FMA, f32), (Op.FMA, f64)}
    if not rounding:
        ops -= {(op, dtype) for op in _ROUNDING for dtype in (f32, f64)}
    casts = {(a, b) for a in _WORDS for b in _WORDS if a is not b}
    if half:
        casts |= {(f16, f32), (f32, f16)}
        ops.add((Op.BITCAST, f16))
    atomics = {(kind, dtype) for kind in ATOMICS for dtype in INTEGERS}
    atomics |= {(kind, dtype) for kind in _FLOAT_ATOMICS for dtype in (f32, f64)}
    return Caps(
        name=f"llvm:{name}",
        dtypes=frozenset(_WORDS) | ({f16} if half else set()),
        ops=frozenset(ops),
        casts=frozenset(casts),
        atomics=frozenset(atomics),
        max_workgroup=1024,
        max_workgroup_size=(1024, 1024, 1024),
        shared_bytes=1 << 18,
        subgroups=(1, 2, 4, 8, 16, 32, 64),
        vectors=True,
    )


_V1: Final = _llvm("x86-64", half=False, fma=False, rounding=False)
_V2: Final = _llvm("x86-64-v2", half=False, fma=False, rounding=True)
_V3: Final = _llvm("x86-64-v3", half=True, fma=True, rounding=True)

# WebGPU: by the optional features of a device, as wgpu names those.
_WEBGPU_FEATURES: Final = {
    "shader-int64": "int64",
    "shader-f16": "f16",
    "shader-f64": "f64",
    "shader-float32-atomic": "float-atomic",
    "shader-int64-atomic-all-ops": "int64-atomic",
    "subgroup": "subgroup",
    "subgroup-barrier": "subgroup-barrier",
}
# What a driver may lack that it has to be asked for, by what the row's name says of it.
_WEBGPU_LACKS: Final = {
    "fused": "unfused",
    "rounded": "unrounded",
    "subnormals": "flushing",
}
_WEBGPU_COLLECTIVES: Final = frozenset(
    {"add", "mul", "min", "max", "and", "or", "xor", "any", "all", "ballot"}
    | {"inclusive_add", "exclusive_add", "inclusive_mul", "exclusive_mul"}
    | {"broadcast_first", "shuffle", "barrier"}
)


def webgpu(
    features: frozenset[str] = frozenset(),
    *,
    max_workgroup: int = 256,
    max_workgroup_size: tuple[int, int, int] = (256, 256, 64),
    shared_bytes: int = 16384,
    subgroups: tuple[int, ...] = (4, 8, 16, 32, 64, 128),
    immediates: int = 0,
    fused: bool = True,
    rounded: bool = True,
    subnormals: bool = True,
) -> Caps:
    """The row of a WebGPU device with some of its optional features and its limits.

    ``fused`` says whether the driver's ``fma`` rounds once, ``rounded`` whether it divides and
    takes roots correctly, ``subnormals`` whether it keeps them: a device must be asked by running
    it (``codegen/webgpu/probe.py``).

    What the machine lacks of the integers is carried in 32-bit ones (``codegen/webgpu``). f64
    asks for 64-bit integers, too, since its bits must be had.

    >>> webgpu(frozenset({"shader-int64", "timestamp-query"})).name
    'webgpu:int64'
    """
    known = frozenset(_WEBGPU_FEATURES[one] for one in features if one in _WEBGPU_FEATURES)
    floats = {f32} | ({f16} if "f16" in known else set())
    if {"f64", "int64"} <= known:
        floats.add(f64)
    dtypes = frozenset({bool_, *INTEGERS, *floats})
    narrow = {t for t in INTEGERS if t.bits < 32}
    wide = {t for t in INTEGERS if t.bits == 64}
    ops = {(op, dtype) for dtype in INTEGERS for op in _INTEGER_OPS}
    ops |= {(op, dtype) for dtype in floats for op in _FLOAT_OPS}
    ops |= {(op, bool_) for op in _BOOL_OPS}
    atomics = {(kind, t) for t in INTEGERS if t not in wide for kind in ATOMICS}
    if "float-atomic" in known:
        atomics.add(("add", f32))
    if {"int64-atomic", "int64"} <= known:
        atomics |= {(kind, t) for t in wide for kind in ATOMICS}
    collectives = _WEBGPU_COLLECTIVES if "subgroup" in known else frozenset()
    if "subgroup-barrier" not in known:
        collectives -= {"barrier"}
    if not fused:
        ops -= {(Op.FMA, f32), (Op.FMA, f64)}
    facts = {"fused": fused, "rounded": rounded, "subnormals": subnormals}
    known |= {lack for fact, lack in _WEBGPU_LACKS.items() if not facts[fact]}
    return Caps(
        name=":".join(("webgpu", "+".join(sorted(known)))) if known else "webgpu",
        dtypes=dtypes,
        ops=frozenset(ops),
        casts=frozenset((a, b) for a in dtypes for b in dtypes if a is not b),
        atomics=frozenset(atomics),
        max_workgroup=max_workgroup,
        max_workgroup_size=max_workgroup_size,
        shared_bytes=shared_bytes,
        subgroups=subgroups,
        machine=dtypes - narrow - (frozenset() if "int64" in known else wide),
        collectives=collectives,
        immediates=immediates,
        rounded=rounded,
        subnormals=subnormals,
    )


def webgpu_named(names: Iterable[str], **limits: Any) -> Caps:
    """The row of the features in a row's name, such as ``f16`` and ``unfused``; ValueError for
    others."""
    words = frozenset(names)
    features = frozenset(one for one, name in _WEBGPU_FEATURES.items() if name in words)
    unknown = words - {*_WEBGPU_FEATURES.values(), *_WEBGPU_LACKS.values()}
    if unknown:
        raise ValueError(f"no feature is called {', '.join(sorted(unknown))}")
    limits |= {fact: lack not in words for fact, lack in _WEBGPU_LACKS.items()}
    return webgpu(features, **limits)


# CUDA, by the oldest architecture that a program runs on.
_PTX_HALF_OPS: Final = (
    _COMPARISONS | _ROUNDING | {Op.ADD, Op.SUB, Op.MUL, Op.FMA, Op.NEG, Op.ABS, Op.SELECT}
)
_PTX_EXTREMES: Final = frozenset({Op.MIN, Op.MAX, Op.MINIMUM, Op.MAXIMUM})
_PTX_FAST: Final = frozenset(
    {Op.EXP, Op.EXP2, Op.EXP10, Op.LOG, Op.LOG2, Op.LOG10, Op.POW, Op.RSQRT}
    | {Op.SIN, Op.COS, Op.TAN}
)
_MOVES: Final = frozenset({"load", "store", "exchange", "compare_exchange"})


def _ptx(architecture: int, shared_kibibytes: int) -> Caps:
    """The row of a CUDA architecture, such as 80 for ``sm_80``."""
    ops = {(op, dtype) for dtype in INTEGERS for op in _INTEGER_OPS}
    ops |= {(op, dtype) for dtype in (f32, f64) for op in _FLOAT_OPS}
    ops |= {(op, bool_) for op in _BOOL_OPS}
    ops |= {(op, f16) for op in _PTX_HALF_OPS | {Op.BITCAST}}
    casts = {(a, b) for a in (*_WORDS, f16) for b in (*_WORDS, f16) if a is not b}
    atomics = {(kind, t) for t in INTEGERS for kind in (ATOMICS if t.bits >= 32 else _MOVES)}
    atomics |= {(kind, t) for t in (f32, f64) for kind in (*_MOVES, "add", "sub")}
    atomics |= {(kind, f16) for kind in ("load", "store", "add", "sub")}
    dtypes = {*_WORDS, f16}
    if architecture >= 80:
        dtypes.add(bf16)
        ops |= {(op, t) for t in (f16, bf16) for op in _PTX_EXTREMES}
        ops |= {(op, bf16) for op in (Op.FMA, Op.NEG, Op.ABS, Op.SELECT, Op.BITCAST)}
        casts |= {(f32, bf16), (bf16, f32)}
    if architecture >= 90:
        ops |= {(op, bf16) for op in _PTX_HALF_OPS}
        atomics |= {(kind, bf16) for kind in ("load", "store", "add", "sub")}
    return Caps(
        name=f"ptx:sm_{architecture}",
        dtypes=frozenset(dtypes),
        ops=frozenset(ops),
        casts=frozenset(casts),
        atomics=frozenset(atomics),
        max_workgroup=1024,
        max_workgroup_size=(1024, 1024, 64),
        shared_bytes=shared_kibibytes << 10,
        subgroups=(32,),
        total_shifts=True,
        fast=frozenset((op, f32) for op in _PTX_FAST),
    )


ROWS: Final = {
    caps.name: caps
    for caps in (
        _ptx(75, 64),
        _ptx(80, 163),
        _ptx(90, 227),
        _ptx(100, 227),
        _ptx(120, 99),
        webgpu(),
        webgpu(frozenset(_WEBGPU_FEATURES)),
        _V1,
        _V2,
        _V3,
        replace(_V3, name="llvm:x86-64-v4"),
        replace(_V3, name="llvm:aarch64"),
    )
}


def row(name: str) -> Caps:
    """The row of a target; KeyError when there is none.

    >>> row("llvm:x86-64-v3").takes(Op.FMA, f32)
    True
    >>> row("llvm:x86-64").takes(Op.FMA, f32)
    False
    """
    return ROWS[name]
