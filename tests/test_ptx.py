"""The CUDA code generator, without a GPU: its PTX is run by a model of the machine in
``ptx_machine.py``, assembled by ptxas for every architecture, and read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.codegen.ptx.emit import PtxEmitter
from khaljit.tracer.build import Builder
from khaljit.tracer.dtypes import (
    bf16,
    f16,
    f32,
    f64,
    i32,
    i64,
    index,
)
from khaljit.tracer.interpret import interpret
from khaljit.tracer.ir import (
    Access,
    ArrayParam,
    Options,
    Trace,
)
from khaljit.tracer.ops import Op
from khaljit.tracer.record import ScalarArgument
from tests.building import array_param, kernel
from tests.ptx_tools import (
    SMS,
    Argument,
    argument,
    assemble,
    copy_kernel,
    emit,
    is_lean,
    matmul_trace,
    recorded,
    run,
    tool,
)
from tests.random_kernels import COUNTERS, INPUTS, random_kernel

# Control flow.


@pytest.mark.parametrize("workgroup", [None, (8, 1, 1), (32, 1, 1), (5, 3, 2), (40, 2, 1)], ids=str)
@pytest.mark.parametrize("barriers", [False, True])
def test_wild_control_flow_gives_what_the_interpreter_gives(
    workgroup: tuple[int, int, int] | None, barriers: bool, rng: np.random.Generator
) -> None:
    if barriers and workgroup is None:
        return
    for _ in range(3):
        seed = int(rng.integers(1 << 32))
        trace = random_kernel(seed, workgroup, barriers=barriers)
        most = (70, 12, 3) if workgroup is None else (4, 3, 3)
        x, y, z = (int(rng.integers(1, extent)) for extent in most)
        count = x * y * z * int(np.prod(workgroup or (1, 1, 1)))
        values = rng.integers(-4, 9, INPUTS, dtype=np.int32)
        scalars = [int(rng.integers(-3, 40)), float(np.float32(rng.normal()))]
        outcomes = []
        folded = bool(rng.integers(2))
        for machine in (False, True):
            arrays = [np.zeros(count, np.uint32), values.copy(), np.zeros(COUNTERS, np.int32)]
            if machine:
                sm = str(rng.choice(SMS))
                run(trace, arrays, scalars, (x, y, z), sm, folded=folded)
            else:
                interpret(trace, arrays, scalars, (x, y, z))
            outcomes.append(arrays)
        for wanted, got in zip(*outcomes, strict=True):
            assert (wanted == got).all(), f"seed {seed}"


def test_carried_values_that_change_places_are_moved_at_once(rng: np.random.Generator) -> None:
    def rotate(out: Any, n: Any) -> None:
        a, b, c, p, q = 1, 2, 3, True, False
        for _ in range(n):
            a, b, c, p, q = b, c, a, q, p
        out[0] = a
        out[1] = b
        out[2] = c
        out[3] = kj.select(p, 1, 0)
        out[4] = kj.select(q, 1, 0)

    trace = recorded(rotate, [("out", argument(i32)), ("n", ScalarArgument(i32))])
    for n in range(7):
        out, want = np.zeros(5, np.int32), np.zeros(5, np.int32)
        run(trace, [out], [n], (1, 1, 1))
        interpret(trace, [want], [n], (1, 1, 1))
        assert (out == want).all()


# Ids.


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("workgroup", [None, (32, 2, 1), (64, 1, 1), (1, 3, 2)], ids=str)
def test_ids_say_where_an_invocation_is(
    workgroup: tuple[int, int, int] | None, bits: int, folded: bool
) -> None:
    names = ["global", "num_workgroups"]
    if workgroup is not None:
        names += ["local", "workgroup", "workgroup_size", "local_index"]
    shown = [(name, axis) for name in names for axis in range(1 if name == "local_index" else 3)]
    out = array_param(0, i64, 2)

    def build(b: Builder) -> None:
        size = workgroup or (1, 1, 1)
        x, y, z = (b.id("global", axis) for axis in range(3))
        width, height = (
            b.pure(Op.MUL, (b.id("num_workgroups", axis), b.const(index, size[axis])))
            for axis in range(2)
        )
        row_ = b.pure(Op.ADD, (b.pure(Op.MUL, (z, height)), y))
        at = b.pure(Op.ADD, (b.pure(Op.MUL, (row_, width)), x))
        for column, (name, axis) in enumerate(shown):
            value = b.cast(b.id(name, axis), i64)
            b.store(b.memory(out.memory), (at, b.const(index, column)), value, Access())

    trace = kernel(build, [out], workgroup=workgroup, index_bits=bits)
    groups = (3, 2, 2) if workgroup else (37, 9, 2)
    count = int(np.prod(groups)) * int(np.prod(workgroup or (1, 1, 1)))
    got, want = (np.full((count, len(shown)), -1, np.int64) for _ in range(2))
    run(trace, [got], [], groups, folded=folded)
    interpret(trace, [want], [], groups)
    assert (got == want).all()


def test_exactly_the_invocations_of_the_grid_run() -> None:
    def touch(out: Any) -> None:
        kj.atomic_add(out, 0, 1)

    trace = recorded(touch, [("out", argument(i32))])
    for count in (1, 255, 256, 257):
        out = np.zeros(1, np.int32)
        run(trace, [out], [], (count, 1, 1))
        assert out[0] == count


# Reports.


# The text.


def representative() -> dict[str, Trace]:
    """Kernels of the kinds that matter."""

    def mandel(out: Any, limit: Any) -> None:
        x, y = kj.global_id(0), kj.global_id(1)
        h, w = out.shape
        if x >= w or y >= h:
            return
        cr, ci = x / w * 3.0 - 2.0, y / h * 2.0 - 1.0
        zr, zi, count = 0.0, 0.0, 0
        while count < limit:
            if zr * zr + zi * zi > 4.0:
                break
            zi, zr, count = 2.0 * zr * zi + ci, zr * zr - zi * zi + cr, count + 1
        out[y, x] = count

    def bodies(pos: Any, out: Any, n: Any) -> None:
        tile = kj.shared(kj.vec4, 128)
        me, i = kj.local_id(0), kj.global_id(0)
        p = pos[i]
        ax, ay = 0.0, 0.0
        for base in range(0, n, 128):
            tile[me] = pos[base + me]
            kj.barrier()
            for k in range(128):
                q = tile[k]
                dx, dy = q.x - p.x, q.y - p.y
                s = q.w * kj.rsqrt(dx * dx + dy * dy + 1e-6)
                ax += dx * s
                ay += dy * s
            kj.barrier()
        out[i] = kj.vec4(ax, ay, 0.0, 0.0)

    def total(x: Any, out: Any) -> None:
        s = 0.0
        for i in kj.grid_stride(x.size):
            s += x[i]
        s = kj.workgroup_add(s)
        if kj.local_index() == 0:
            kj.atomic_add(out, 0, s)

    def functions(x: Any, y: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            y[i] = kj.exp(x[i]) + kj.sin(x[i]) * kj.log(x[i]) + kj.pow(x[i], 1.7)

    four = argument(f32, 1, 4, aligned=True)
    image: list[tuple[str, Argument]] = [("out", argument(i32, 2)), ("limit", ScalarArgument(i32))]
    group = (128, 1, 1)
    pairs: list[tuple[str, Argument]] = [("x", argument(f32)), ("y", argument(f32, same_shape=0))]
    doubles: list[tuple[str, Argument]] = [("x", argument(f64)), ("y", argument(f64, same_shape=0))]
    return {
        "matmul": matmul_trace(),
        "matmul in 64 bits": matmul_trace(64),
        "copy": copy_kernel(4),
        "halves": copy_kernel(1, f16),
        "brains": copy_kernel(1, bf16),
        "mandel": recorded(mandel, image, workgroup=(8, 8, 1)),
        "bodies": recorded(
            bodies,
            [("pos", four), ("out", four), ("n", ScalarArgument(i32))],
            workgroup=group,
        ),
        "total": recorded(total, [("x", argument(f32)), ("out", argument(f32))], workgroup=group),
        "functions": recorded(functions, pairs),
        "fast functions": recorded(functions, pairs, options=Options(fastmath=True)),
        "functions of doubles": recorded(functions, doubles),
    }


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("name", representative())
def test_kernels_are_assembled_without_a_warning_a_spill_or_local_memory(
    name: str, sm: str, tmp_path: Path
) -> None:
    assert is_lean(assemble(emit(representative()[name], sm), sm, tmp_path))


@pytest.mark.parametrize(
    ("sm", "version"), list(zip(SMS, ("6.3", "7.0", "7.8", "8.6", "8.7"), strict=True))
)
def test_the_version_is_the_lowest_that_knows_the_target(sm: str, version: str) -> None:
    text = emit(copy_kernel(1), sm).text
    assert text.startswith(f".version {version}\n.target {sm}\n")


def test_many_parameters_need_a_later_version(tmp_path: Path) -> None:
    params = [array_param(k, i32, 3) for k in range(80)]

    def build(b: Builder) -> None:
        zero = b.const(index, 0)
        for param in params:
            b.store(b.memory(param.memory), (zero,) * 3, b.const(i32, 1), Access())

    program = emit(kernel(build, params), "sm_80")
    assert program.text.startswith(".version 8.1\n")
    assemble(program, "sm_80", tmp_path)


def test_the_same_trace_gives_the_same_text() -> None:
    for first, second in zip(representative().values(), representative().values(), strict=True):
        assert emit(first).text == emit(second).text


def test_without_contraction_nothing_is_fused(tmp_path: Path) -> None:
    program = emit(matmul_trace(contract=False))
    assert "fma" not in program.text
    assert "fma.rn.f32" in emit(matmul_trace()).text
    assemble(program, "sm_90", tmp_path)
    done = subprocess.run(
        [tool("nvdisasm"), "-c", str(tmp_path / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "FFMA" not in done.stdout
    assert "FMUL" in done.stdout


def test_every_product_and_sum_of_floats_says_how_it_is_rounded() -> None:
    for trace in representative().values():
        for line in emit(trace).text.splitlines():
            if re.match(
                r"(@!?%p\d+ )?(add|sub|mul|fma|div|sqrt|rcp)\.[\w.]*\b(f16|bf16|f32|f64)\b", line
            ):
                assert ".rn." in line or ".approx." in line, line


def test_fast_functions_are_the_hardwares_and_others_are_not() -> None:
    texts = {name: emit(trace).text for name, trace in representative().items()}
    fast = texts.pop("fast functions")
    assert all(name in fast for name in ("ex2.approx", "lg2.approx", "sin.approx"))
    # Others start from approximations at most, which they correct.
    found = {name for text in texts.values() for name in re.findall(r"(\w+)\.approx", text)}
    assert found <= {"rcp", "rsqrt"}


def test_debugging_names_the_source_lines(tmp_path: Path) -> None:
    def one(x: Any) -> None:
        x[0] = x[1] + 1

    arguments: list[tuple[str, Argument]] = [("x", argument(i32))]
    program = emit(recorded(one, arguments, options=Options(debug=True)))
    line = one.__code__.co_firstlineno + 1
    assert '.file 1 "' in program.text
    assert f".loc 1 {line} " in program.text
    assemble(program, "sm_90", tmp_path)
    assert ".loc" not in emit(recorded(one, arguments)).text


def test_deep_nesting_does_not_recurse() -> None:
    trace = nested(array_param(0, i32), 3000)
    assert PtxEmitter("sm_90").emit(trace).text.count("st.global") == 3000


def nested(out: ArrayParam, depth: int) -> Trace:
    """A store in each of some nested arms."""

    def build(b: Builder) -> None:
        memory, flat = b.memory(out.memory), Access(checked=False, flat=True)
        for k in range(depth):
            b.store(memory, (b.const(i32, k),), b.const(i32, k), flat)
            b.open()
        for k in range(depth):
            b.end(Op.YIELD)
            then = b.close()
            b.open()
            b.end(Op.YIELD)
            b.if_(b.pure(Op.GT, (b.scalar(0, i32), b.const(i32, k))), then, b.close())

    return kernel(build, [out], [i32])
