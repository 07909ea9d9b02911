"""Every pure operation in every type on every level of processor, as the interpreter has it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from khaljit.codegen.caps import row
from khaljit.codegen.llvm.assemble import assemble
from khaljit.codegen.llvm.emit import LlvmEmitter
from khaljit.codegen.llvm.target import LEVELS, CpuTarget
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import ALL, INTEGERS, DType, bool_, f16, f32, f64, i32
from khaljit.tracer.floats import Array
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import Access, Trace, Value
from khaljit.tracer.numerics import memory_type
from khaljit.tracer.ops import COMPARISONS, OPS, Op
from tests.building import array_param, bits_equal, edge_values, kernel
from tests.running import compile_trace, legal, levels_here

COUNT = 1000 - 3  # no multiple of any number of lanes

Make = Callable[[Builder, list[Value]], Value]


def operation(op: Op) -> Make:
    arity = OPS[op].arity
    return lambda builder, operands: builder.pure(op, tuple(operands[:arity]))


def makes(dtype: DType, level: str) -> list[tuple[str, Make]]:
    """What to compute from values of a type on a level, with names."""
    caps = row(f"llvm:{level}")
    found: list[tuple[str, Make]] = [
        (op.value, operation(op))
        for op in Op
        if (op, dtype) in caps.ops and op not in (Op.TRUNCDIV, Op.TRUNCMOD, Op.SELECT, Op.BITCAST)
    ]
    if dtype in INTEGERS:  # these come to the code generator as truncating division
        found += [(op.value, operation(op)) for op in (Op.FLOORDIV, Op.MOD)]
    if dtype is not f16:
        found.append(("select", lambda b, v: b.select(b.pure(Op.EQ, (v[0], v[1])), v[1], v[2])))
    for to in ALL:
        if (dtype, to) in caps.casts:
            found.append((f"cast {to.name}", lambda b, v, to=to: b.cast(v[0], to)))  # type: ignore[misc]  # binds now
        same = to.bits == dtype.bits and to is not dtype and bool_ not in (to, dtype)
        if same and to in caps.dtypes:
            found.append((f"bits {to.name}", lambda b, v, to=to: b.bitcast(v[0], to)))  # type: ignore[misc]  # binds now
    return found


def all_at_once(dtype: DType, chosen: list[tuple[str, Make]]) -> tuple[Trace, list[DType]]:
    """A kernel that computes everything from three arrays of a type, each into its own array."""
    results: list[DType] = []
    probe = Builder()
    probe.open()
    for _, make in chosen:
        operands = [probe.scalar(k, dtype) for k in range(3)]
        results.append(make(probe, operands).type)
    params = [array_param(k, each, 1, 0) for k, each in enumerate((*[dtype] * 3, *results))]

    def build(builder: Builder) -> None:
        i = builder.id("global")
        memories = [builder.memory(param.memory) for param in params]
        operands = [builder.load(memory, (i,), dtype, Access()) for memory in memories[:3]]
        for memory, (_, make) in zip(memories[3:], chosen, strict=True):
            builder.store(memory, (i,), make(builder, operands), Access())

    return kernel(build, params), results


@pytest.mark.parametrize("level", levels_here())
@pytest.mark.parametrize("dtype", [t for t in ALL if t.name != "bf16"], ids=lambda t: t.name)
def test_operations_give_what_the_interpreter_gives(dtype: DType, level: str) -> None:
    if dtype not in row(f"llvm:{level}").dtypes:
        pytest.skip(f"{level} has no {dtype.name}")
    rng = np.random.default_rng()
    chosen = makes(dtype, level)
    trace, results = all_at_once(dtype, chosen)
    operands = [edge_values(dtype, COUNT, rng) for _ in range(3)]
    outs = [np.zeros(COUNT, memory_type(result)) for result in results]
    wanted = [out.copy() for out in outs]
    interpret(trace, [*operands, *wanted], [], (COUNT, 1, 1))
    compile_trace(trace, level).run([*operands, *outs], [], (COUNT, 1, 1))
    for (name, _), result, out, want in zip(chosen, results, outs, wanted, strict=True):
        good = bits_equal(result, out, want)
        assert good.all(), describe(name, operands, out, want, good)


@pytest.mark.parametrize("level", [one for one in LEVELS if one not in levels_here()])
@pytest.mark.parametrize("dtype", ALL, ids=lambda t: t.name)
def test_operations_are_whole_objects_for_processors_that_are_not_here(
    dtype: DType, level: str
) -> None:
    """Assembling scans the object: it calls nothing."""
    if dtype not in row(f"llvm:{level}").dtypes:
        pytest.skip(f"{level} has no {dtype.name}")
    target = CpuTarget(level)
    trace, _ = all_at_once(dtype, makes(dtype, level))
    assert assemble(LlvmEmitter(target).emit(legal(trace, level)).text, target)


def describe(name: str, operands: list[Array], out: Array, want: Array, good: Array) -> str:
    k = int(np.argmin(good))
    given = ", ".join(repr(operand[k]) for operand in operands)
    return f"{name} of {given} is {out[k]!r}, not {want[k]!r}"


@pytest.mark.parametrize("level", levels_here())
@pytest.mark.parametrize("dtype", [f32, f64, i32, *INTEGERS], ids=lambda t: t.name)
def test_uniform_operands_give_the_same_as_varying_ones(dtype: DType, level: str) -> None:
    rng = np.random.default_rng()
    chosen = [(name, make) for name, make in makes(dtype, level) if not name.startswith("bits")]
    operands = [edge_values(dtype, 3, rng) for _ in range(3)]
    results: list[DType] = []
    probe = Builder()
    probe.open()
    for _, make in chosen:
        results.append(make(probe, [probe.scalar(k, dtype) for k in range(3)]).type)
    params = [array_param(k, result, 1, 0) for k, result in enumerate(results)]

    def build(builder: Builder) -> None:
        i = builder.id("global")
        values = [builder.scalar(k, dtype) for k in range(3)]
        for param, (_, make) in zip(params, chosen, strict=True):
            builder.store(builder.memory(param.memory), (i,), make(builder, values), Access())

    trace = kernel(build, params, [dtype] * 3)
    compiled = compile_trace(trace, level)
    for k in range(3):
        scalars = [operand[k] for operand in operands]
        outs = [np.zeros(5, memory_type(result)) for result in results]
        wanted = [out.copy() for out in outs]
        interpret(trace, wanted, scalars, (5, 1, 1))
        compiled.run(outs, scalars, (5, 1, 1))
        for (name, _), result, out, want in zip(chosen, results, outs, wanted, strict=True):
            assert bits_equal(result, out, want).all(), f"{name} of {scalars}: {out}, not {want}"


def test_comparisons_are_among_what_is_tested() -> None:
    assert {op for op, dtype in row("llvm:x86-64-v3").ops if dtype is f32} >= COMPARISONS
