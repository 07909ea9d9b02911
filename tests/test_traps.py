"""Failures that users of comparable systems reported, one behaviour a test.

Those of a language feature stand beside its other tests; here is what belongs to none.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.codegen.caps import row
from khaljit.codegen.legalise import legalise
from khaljit.tracer.ir import effects
from khaljit.tracer.ops import Op
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.verify import verify

Rng = np.random.Generator


def _script(path: Path, text: str, *arguments: str, piped: bool = False) -> dict[str, Any]:
    """What a program prints as JSON, run as a file or from standard input."""
    text = textwrap.dedent(text)
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-" if piped else str(path), *arguments],
        env={**os.environ, "KHALJIT_CACHE_DIR": str(path.parent / "cache")},
        input=text if piped else None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Front end: tracing, closures, source.


def test_a_host_loop_that_never_ends_is_refused_with_its_line() -> None:
    """mitsuba-renderer/drjit#320, jax-ml/jax#2777."""

    @kj.jit
    def kernel(a: Any) -> None:
        for _ in kj.unroll(range(10_000_000)):
            a[0] = 1

    with pytest.raises(kj.TraceError, match="more than 1000000 items") as caught:
        kernel[1](np.zeros(1, np.float32))
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_a_loop_over_a_range_records_its_body_once() -> None:
    """mitsuba-renderer/drjit#320, mitsuba-renderer/mitsuba3#369."""

    def count(n: int) -> int:
        @kj.jit
        def kernel(a: Any) -> None:
            total = 0.0
            for k in range(n):
                total += a[k] * a[k]
            a[0] = total

        trace = kernel.trace(np.zeros(8, np.float32))
        return len(list(effects(trace.body)))

    assert count(10) == count(1_000_000)


def test_a_loop_leaves_the_objects_of_the_caller_alone() -> None:
    """mitsuba-renderer/drjit#58."""
    start = [1.0, 2.0]

    @kj.jit
    def kernel(a: Any) -> None:
        x, y = start
        for _ in range(3):
            x, y = y, x + y
        a[0] = x

    a = np.zeros(1, np.float32)
    kernel[1](a)
    assert a[0] == 5
    assert start == [1.0, 2.0]


def test_changing_an_attribute_in_a_branch_is_refused() -> None:
    """mitsuba-renderer/drjit, documentation of control flow."""

    class State:
        value = 0.0

    state = State()

    @kj.jit
    def kernel(a: Any) -> None:
        if a[0] > 0:
            state.value = a[0]
        a[1] = state.value

    with pytest.raises(kj.TraceError, match="attribute of a State is assigned"):
        kernel[1](np.ones(2, np.float32))
    assert state.value == 0.0


def test_a_guarded_access_is_not_made_where_the_guard_fails(device: Device) -> None:
    """NVIDIA/warp#1329."""

    @kj.jit
    def kernel(a: Any, hits: Any, out: Any) -> None:
        i = kj.global_id(0)
        if i < a.size and kj.atomic_add(hits, 0, 1) >= 0 and a[i] > 0:
            out[i] = 1

    hits, out = np.zeros(1, np.int32), np.zeros(10, np.int32)
    kernel[10](np.array([1, -1, 1], np.float32), hits, out)
    assert hits[0] == 3
    assert out.tolist() == [1, 0, 1, *[0] * 7]


def test_a_variable_that_is_reassigned_in_nested_branches_is_right(
    device: Device, rng: Rng
) -> None:
    """NVIDIA/warp#1574."""

    def chosen(x: Any, y: Any) -> Any:
        place = 0
        if x > 0:
            if y > 0:
                place = 1
                if x > y:
                    place = place + 4
            else:
                place = 2
            place = place * 2
        elif y > 3:
            place = 9
        return place

    @kj.jit
    def kernel(a: Any, b: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = chosen(a[i], b[i])

    a, b = rng.integers(-5, 6, (2, 300), np.int32)
    out = np.zeros(300, np.int32)
    kernel[300](a, b, out)
    assert out.tolist() == [chosen(int(x), int(y)) for x, y in zip(a, b, strict=True)]


def test_an_unknown_attribute_of_a_module_is_no_builtin() -> None:
    """NVIDIA/warp#1198."""

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = np.nothing.sin(a[0])  # type: ignore[attr-defined]  # the mistake

    with pytest.raises(kj.TraceError, match="no attribute 'nothing'"):
        kernel[1](np.zeros(1, np.float32))


def test_a_captured_list_of_arrays_says_how_to_pass_it() -> None:
    """numba/numba#3589."""
    tables = [np.arange(3), np.arange(4)]

    @kj.jit
    def kernel(a: Any) -> None:
        a[0] = tables[0][1]

    with pytest.raises(kj.TraceError, match="a NumPy array is captured") as caught:
        kernel[1](np.zeros(1, np.float32))
    assert "pass it as an argument" in (caught.value.mend or "")


def renamed(function: Any) -> Any:
    """A decorator that does nothing, below the kernel's own."""
    return function


def test_decorators_may_be_stacked_and_hold_brackets() -> None:
    """triton-lang/triton#1589, triton-lang/triton#5224."""

    @kj.jit(workgroup=(8, (1, 2)[0]), name="(x)".strip())
    @renamed
    @renamed
    # a comment, and parameters on lines of their own
    def kernel(
        a: Any,
        b: Any = (1, 2),
    ) -> None:
        if a[0] > 0:
            a[0] = b[1]

    a = np.ones(1, np.int32)
    kernel[1](a)
    assert a[0] == 2
    assert kernel.name == "(x)"


FORMS = """
    import json
    import numpy as np
    import khaljit as kj

    LIMIT = 2

    @kj.jit(workgroup=4)
    def fixed(a):
        i = kj.global_id(0)
        {body}

    @kj.jit
    def free(a):
        i = kj.global_id(0)
        {body}

    a, b = np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32)
    fixed[6](a)
    free[6](b)
    print(json.dumps({{"fixed": a.tolist(), "free": b.tolist()}}))
"""


def test_all_forms_of_the_decorator_work_in_a_main_script(tmp_path: Path) -> None:
    """NVIDIA/warp#1544."""
    body = "if a[i] > LIMIT: a[i] = 9"
    found = _script(tmp_path / "script.py", FORMS.format(body=body))
    assert found == {"fixed": [0, 1, 2, 9, 9, 9], "free": [0, 1, 2, 9, 9, 9]}


def test_kernels_from_standard_input_work_without_source(tmp_path: Path) -> None:
    """triton-lang/triton#5386, cupy/cupy#6329, NVIDIA/cuda-quantum#2593."""
    body = "a[i] = kj.select(a[i] > LIMIT, 9, a[i])"
    found = _script(tmp_path / "unused.py", FORMS.format(body=body), piped=True)
    assert found == {"fixed": [0, 1, 2, 9, 9, 9], "free": [0, 1, 2, 9, 9, 9]}


def test_kernels_of_compiled_files_without_source_work(tmp_path: Path) -> None:
    """Nuitka/Nuitka#2552."""
    found = _script(
        tmp_path / "script.py",
        """
        import json, py_compile, os, sys
        import numpy as np
        folder = os.path.dirname(os.path.abspath(__file__))
        source = os.path.join(folder, "hidden.py")
        with open(source, "w") as file:
            file.write("import khaljit as kj\\n\\n@kj.jit\\ndef double(a):\\n"
                       "    i = kj.global_id(0)\\n    a[i] = a[i] * 2\\n")
        py_compile.compile(source, cfile=os.path.join(folder, "hidden.pyc"))
        os.remove(source)
        sys.path.insert(0, folder)
        import hidden
        a = np.arange(4, dtype=np.int32)
        hidden.double[4](a)
        print(json.dumps({"a": a.tolist()}))
        """,
    )
    assert found == {"a": [0, 2, 4, 6]}


class Field:
    """Kernels of every descriptor."""

    scale = 3

    @kj.jit
    def method(self, a: Any) -> None:
        a[kj.global_id(0)] = self.scaled * self.twice(2)

    @staticmethod
    @kj.jit
    def static(a: Any) -> None:
        a[kj.global_id(0)] = Field.scale

    @property
    def scaled(self) -> int:
        return self.scale + 1

    @classmethod
    def twice(cls, x: int) -> int:
        return x * cls.scale


def test_methods_properties_static_and_class_methods_work(device: Device) -> None:
    """taichi-dev/taichi#3019, taichi-dev/taichi#5591."""
    a = np.zeros(2, np.int32)
    field = Field()
    field.method[2](a)
    assert a.tolist() == [24, 24]
    field.scale = 7
    field.method[2](a)
    assert a.tolist() == [48, 48]
    owners: tuple[Any, ...] = (Field, field)
    for owner in owners:
        owner.static[2](a)
        assert a.tolist() == [3, 3]


def test_raising_where_all_invocations_come_raises_while_recording() -> None:
    """NVIDIA/numba-cuda#388."""

    @kj.jit
    def kernel(a: Any, wide: kj.Const[bool]) -> None:
        if wide and a.dtype is kj.f32:
            raise ValueError("f32 is too narrow")
        a[0] = 1

    with pytest.raises(ValueError, match="f32 is too narrow"):
        kernel[1](np.zeros(1, np.float32), True)
    a = np.zeros(1, np.float32)
    kernel[1](a, False)
    assert a[0] == 1


@kj.jit(workgroup=8)
def picklable(a: Any) -> None:
    a[kj.global_id(0)] = 5


def test_a_kernel_that_has_run_is_pickled_without_its_handles() -> None:
    """pytorch/pytorch#146945."""
    picklable[3](np.zeros(3, np.int32))
    data = pickle.dumps({"kernel": picklable})
    assert len(data) < 200
    assert pickle.loads(data)["kernel"] is picklable


# Numbers and types.


def _huge(count: int, dtype: type = np.uint8) -> np.ndarray[Any, Any]:
    """An array whose size takes more than 32 bits, over one element of memory."""
    one: np.ndarray[Any, Any] = np.array([7], dtype)
    return np.lib.stride_tricks.as_strided(one, (count,), (0,))


@pytest.mark.parametrize("name", ["interpreter", "cpu"])
def test_indices_beyond_two_to_the_31_are_exact(name: str) -> None:
    """triton-lang/triton#832, triton-lang/triton#1058, triton-lang/triton#6748."""

    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        far = i * 1_500_000_000
        out[i, 0] = a[far]
        out[i, 1] = far // 1_000_000

    out = np.zeros((6, 2), np.int32)
    with kj.use(name):
        kernel[6](_huge(6_000_000_000), out)
    assert out[:, 0].tolist() == [7, 7, 7, 7, 0, 0]
    assert out[:, 1].tolist() == [1500 * i for i in range(6)]


def test_a_wide_number_that_indexes_a_small_array_does_not_wrap_into_it(device: Device) -> None:
    """triton-lang/triton#832."""

    @kj.jit
    def kernel(a: Any, places: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i] = a[places[i]]

    a = np.arange(1, 11, dtype=np.int32)
    for places in (
        np.array([0, 9, 2**32, -(2**32), 2**32 + 1, -1, 10], np.int64),
        np.array([0, 9, 2**32, 2**63, 2**64 - 1, 2**32 + 1, 10], np.uint64),
    ):
        out = np.full(7, -1, np.int32)
        kernel[7](a, places, out)
        assert out.tolist() == [1, 10, 0, 0, 0, 0, 0]


def test_every_extent_of_a_grid_is_validated() -> None:
    """NVIDIA/warp, limitations."""
    for grid in ((1, -1), (1, 1, 2**64), (2**40, 2**40)):
        with pytest.raises(ValueError, match=r"negative|too large|more than 2\*\*63"):
            picklable[grid]


def test_a_grid_beyond_two_to_the_31_has_exact_ids() -> None:
    """NVIDIA/warp, limitations."""

    @kj.jit(workgroup=1024)
    def kernel(a: Any, n: kj.i64) -> None:
        i = kj.global_id(0)
        if i == n:
            a[0] = i // 1_000_000

    trace = kernel[2**32]
    assert "4194304" in repr(trace)
    a = np.zeros(1, np.int64)
    with kj.use("cpu"):
        kernel[2**31 + 1024](a, 2**31 + 5)
    assert a[0] == (2**31 + 5) // 1_000_000


def test_division_floors_and_the_remainder_has_the_sign_of_the_divisor(device: Device) -> None:
    """taichi-dev/taichi#331."""

    @kj.jit
    def kernel(a: Any, b: Any, quotient: Any, rest: Any) -> None:
        i = kj.global_id(0)
        quotient[i] = a[i] // b[i]
        rest[i] = a[i] % b[i]

    for dtype in (np.int32, np.float32):
        a: np.ndarray[Any, Any] = np.array([7, -7, 7, -7, 6, -6], dtype)
        b: np.ndarray[Any, Any] = np.array([2, 2, -2, -2, 3, -3], dtype)
        quotient, rest = np.zeros_like(a), np.zeros_like(a)
        kernel[6](a, b, quotient, rest)
        assert quotient.tolist() == (a // b).tolist()
        assert rest.tolist() == (a % b).tolist()


@pytest.mark.parametrize("name", ["interpreter", "cpu"])
def test_products_and_sums_become_one_operation_by_rule_or_never(name: str) -> None:
    """triton-lang/triton#11270, triton-lang/triton#10671, pytorch/pytorch#115435."""

    def function(a: Any) -> None:
        a[0] = a[1] * a[2] + a[3]

    x = 1 + 2.0**-23
    values = np.array([0, x, x, -(1 + 2.0**-22)], np.float32)
    with kj.use(name):
        fused, apart = values.copy(), values.copy()
        kj.jit(function)[1](fused)
        kj.jit(contract=False)(function)[1](apart)
    assert fused[0] == 2.0**-46
    assert apart[0] == 0


def test_min_and_max_skip_nan_and_minimum_and_maximum_give_it(device: Device) -> None:
    """The change log of Dr.Jit 1.5.0."""

    @kj.jit
    def kernel(a: Any, b: Any, out: Any) -> None:
        i = kj.global_id(0)
        out[i, 0] = min(a[i], b[i])
        out[i, 1] = max(a[i], b[i])
        out[i, 2] = kj.minimum(a[i], b[i])
        out[i, 3] = kj.maximum(a[i], b[i])

    nan = np.nan
    for dtype in (np.float32, np.float64):
        a, b = np.array([nan, 1, nan, -0.0], dtype), np.array([1, nan, nan, 0.0], dtype)
        out = np.zeros((4, 4), dtype)
        try:
            kernel[4](a, b, out)
        except kj.CapabilityError:
            continue
        assert out[:2, :2].tolist() == [[1, 1], [1, 1]]
        assert np.isnan(out[:2, 2:]).all()
        assert np.isnan(out[2]).all()
        if device.name in ("interpreter", "cpu"):
            assert np.signbit(out[3]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("name", ["interpreter", "cpu"])
def test_subnormal_numbers_are_kept(name: str) -> None:
    """cupy/cupy, -ftz=true."""

    @kj.jit
    def kernel(a: Any) -> None:
        i = kj.global_id(0)
        a[i] = a[i] * 0.5 + a[i] * 0.25

    tiny = np.float32(2.0**-140)
    a = np.full(33, tiny, np.float32)
    with kj.use(name):
        kernel[33](a)
    assert (a == tiny * np.float32(0.75)).all()
    assert a[0] > 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_an_atomic_on_floats_works_or_is_refused(device: Device, dtype: type, kind: str) -> None:
    """triton-lang/triton#1470, taichi-dev/taichi#3428, NVIDIA/numba-cuda#384."""
    atomic = getattr(kj, f"atomic_{kind}")

    @kj.jit
    def kernel(a: Any, x: Any) -> None:
        i = kj.global_id(0)
        if i < x.size:
            atomic(a, 0, x[i])

    a: np.ndarray[Any, Any] = np.array([3], dtype)
    x: np.ndarray[Any, Any] = np.arange(-4, 9).astype(dtype)
    try:
        kernel[x.size](a, x)
    except kj.CapabilityError:
        assert device.name not in ("interpreter", "cpu")
        return
    assert a[0] == {"add": 3 + x.sum(), "max": 8, "min": -4}[kind]


def test_half_floats_of_both_kinds_compute(device: Device, rng: Rng) -> None:
    """NVIDIA/numba-cuda#198, numba/numba#4402."""

    @kj.jit
    def kernel(a: Any, b: kj.Array1[kj.bf16], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        out[i] = a[i] * a[i] + 1.0
        b[i] = b[i] * 2.0 + 0.5

    a = rng.random(20).astype(np.float16)
    wide = rng.integers(0, 64, 20).astype(np.float32)
    b = (wide.view(np.uint32) >> 16).astype(np.uint16)
    out = np.zeros(20, np.float32)
    try:
        kernel[20](a, b, out)
    except kj.CapabilityError:
        assert device.name not in ("interpreter", "cpu")
        return
    assert np.allclose(out, a.astype(np.float64) ** 2 + 1, rtol=2e-3)
    assert np.allclose((b.astype(np.uint32) << 16).view(np.float32), 2 * wide + 0.5, rtol=2**-8)


# Shapes and aliasing.


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0, 2)])
def test_arrays_without_elements_are_read_as_zero_and_never_written(
    device: Device, shape: tuple[int, ...]
) -> None:
    """numba/numba#4140, NVIDIA/cuda-python#1396, numba/numba#8477."""

    @kj.jit
    def kernel(a: Any, out: Any) -> None:
        i = kj.global_id(0)
        place = kj.unroll(range(a.ndim))
        a[tuple(0 for _ in place)] = 5
        out[i] = a[tuple(0 for _ in place)] + a.size

    out = np.full(2, -1, np.float32)
    kernel[2](np.zeros(shape, np.float32), out)
    assert out.tolist() == [0, 0]


def test_strided_views_of_any_kind_are_read_and_written_where_they_lie(
    device: Device, rng: Rng
) -> None:
    """NVIDIA/warp#1384, NVIDIA/warp#1533."""

    @kj.jit
    def kernel(a: Any, b: Any) -> None:
        y, x = kj.index(2)
        a[y, x] = b[y, x] * 2

    base = rng.random((20, 24), np.float32)
    for _ in range(8):
        steps = rng.choice([-3, -2, -1, 1, 2, 3], 2).tolist()
        parts = [slice(None, None, step) for step in steps]
        b = base[tuple(parts)][:5, :7]
        whole = rng.random((40, 50), np.float32)
        a = whole[parts[1], parts[0]][:5, :7]
        outside = whole.copy()
        outside[parts[1], parts[0]][:5, :7] = b * 2
        kernel[kj.over(a)](a, b)
        assert (whole == outside).all()


def test_one_array_as_input_and_output_is_read_after_it_is_written(device: Device) -> None:
    """tinygrad/tinygrad#14278."""

    @kj.jit
    def kernel(a: Any, b: Any) -> None:
        i = kj.global_id(0)
        a[i] = 1
        a[i] = b[i] + 5

    a = np.zeros(6, np.int32)
    kernel[6](a, a)
    assert a.tolist() == [6] * 6
    kernel[6](a, np.zeros(6, np.int32))
    assert a.tolist() == [5] * 6


@pytest.mark.parametrize("name", ["interpreter", "cpu"])
def test_partly_overlapping_arguments_are_refused_on_every_device(name: str) -> None:
    """gfx-rs/wgpu#8470, gpuweb/gpuweb#1842, gpuweb/gpuweb#2441."""

    @kj.jit
    def kernel(a: Any, b: Any) -> None:
        i = kj.global_id(0)
        a[i] = b[i]

    data = np.zeros(12, np.float32)
    with kj.use(name):
        with pytest.raises(ValueError, match="overlap in part"):
            kernel[5](data[:6], data[5:])
        kernel[5](data[:6], data[6:])
        kernel[5](data[::2], data[1::2])
        with pytest.raises(ValueError, match="overlap in part"):
            kernel[5](data[::2], data[1::3])


# Barriers and shared memory.


def test_a_barrier_stays_one_barrier() -> None:
    """JuliaGPU/CUDA.jl#797, facebookexperimental/triton#1040."""

    @kj.jit(workgroup=8)
    def kernel(a: Any, wide: Any, rounds: Any) -> None:
        i = kj.local_id(0)
        memory = kj.shared(kj.f32, 8)
        for _ in range(rounds):
            memory[i] = a[i]
            if wide > 0:
                memory[i] += 1.0
            kj.barrier()
            a[i] = memory[7 - i]
            kj.barrier()

    trace = kernel.trace(np.zeros(8, np.float32), 1, 3)
    for one in (trace, legalise(optimise(trace), row("llvm:x86-64-v3"))):
        verify(one)
        assert sum(effect.op is Op.BARRIER for effect in effects(one.body)) == 2


def test_too_much_shared_memory_is_explained_array_by_array() -> None:
    """triton-lang/triton#8182, triton-lang/triton#384."""

    @kj.jit(workgroup=8)
    def kernel(a: Any) -> None:
        first = kj.shared(kj.f32, (300, 1000))
        second = kj.shared(kj.u8, 77)
        first[0, kj.local_id(0)] = 1
        second[0] = 1
        kj.barrier()
        a[0] = first[0, 0] + second[0]

    with kj.use("cpu"), pytest.raises(kj.CapabilityError) as caught:
        kernel[8](np.zeros(1, np.float32))
    text = str(caught.value)
    for part in (
        "1200077 bytes",
        "300 x 1000 elements of 4 bytes",
        "77 elements",
        "at most 262144",
    ):
        assert part in text


@pytest.mark.parametrize("size", [1, 3, 64, 100])
def test_workgroups_have_their_size_on_every_device(device: Device, size: int) -> None:
    """NVIDIA/warp#1580."""

    @kj.jit(workgroup=size)
    def kernel(out: Any) -> None:
        seen = kj.shared(kj.i32, 1)
        if kj.local_id(0) == 0:
            seen[0] = 0
        kj.barrier()
        kj.atomic_add(seen, 0, 1)
        kj.barrier()
        out[kj.global_id(0)] = seen[0] * 1000 + kj.workgroup_size(0)

    out = np.zeros(3 * size, np.int32)
    kernel[3 * size](out)
    assert (out == size * 1001).all()


# The processor, threads and processes.


def test_threads_record_and_compile_different_kernels_at_once(device: Device) -> None:
    """NVIDIA/warp#1474, NVIDIA/warp#1705: nothing that they share is in the way."""

    def adder(k: int) -> Any:
        @kj.jit
        def add(x: kj.Array1[kj.i32]) -> None:
            i = kj.global_id(0)
            total = 0
            for n in range(k + 1):
                total += n
            if i < x.size:
                x[i] += total

        return add

    arrays = [device.zeros(20, kj.i32) for _ in range(12)]
    begin = threading.Barrier(len(arrays))

    def work(k: int) -> None:
        begin.wait()
        adder(k)[20](arrays[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, array in enumerate(arrays):
        assert (array.numpy() == k * (k + 1) // 2).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_gives_the_same(threads: int, rng: Rng) -> None:
    @kj.jit
    def kernel(a: Any, out: Any, total: Any) -> None:
        i = kj.global_id(0)
        n, steps = a[i], 0
        while n != 1 and steps < 300:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        out[i] = steps
        kj.atomic_add(total, 0, steps)

    a = rng.integers(1, 10_000, 5003, np.int64)
    results = []
    for count in (1, threads):
        out, total = np.zeros(a.size, np.int32), np.zeros(1, np.int64)
        with kj.use(kj.device("cpu", threads=count)):
            kernel[a.size](a, out, total)
        assert total[0] == out.sum()
        results.append(out)
    assert (results[0] == results[1]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_launches_kernels_after_its_parent_did(tmp_path: Path) -> None:
    """pytorch/pytorch#184643, pytorch/pytorch#108586."""
    found = _script(
        tmp_path / "script.py",
        """
        import json, os, warnings
        import numpy as np
        import khaljit as kj

        @kj.jit
        def fill(a, x: kj.i32):
            a[kj.global_id(0)] = x

        @kj.jit
        def other(a):
            a[kj.global_id(0)] = 4

        a = np.zeros(200_000, np.int32)
        kj.use(kj.device("cpu", threads=2))
        fill[a.size](a, 3)
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            fill[a.size](a, 5)
            good = bool((a == 5).all())
            other[a.size](a)
            os._exit(0 if good and (a == 4).all() else 1)
        status = os.waitpid(child, 0)[1]
        fill[a.size](a, 7)
        print(json.dumps({"status": status, "parent": bool((a == 7).all())}))
        """,
    )
    assert found == {"status": 0, "parent": True}


def test_two_processes_that_start_cold_on_one_cache_are_both_right(tmp_path: Path) -> None:
    """triton-lang/triton#2688, deepseek-ai/DeepGEMM#301, NVIDIA/warp#1284."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(FORMS.format(body="if a[i] > LIMIT: a[i] = 9")))
    environment = {**os.environ, "KHALJIT_CACHE_DIR": str(tmp_path / "cache")}
    both = [
        subprocess.Popen([sys.executable, str(path)], env=environment, stdout=-1, stderr=-1)
        for _ in range(2)
    ]
    for one in both:
        output, errors = one.communicate()
        assert errors == b""
        assert json.loads(output)["free"] == [0, 1, 2, 9, 9, 9]


@pytest.mark.parametrize("grid", [(70_001, 2, 1), (2, 70_001, 1), (1, 2, 70_001)])
def test_grids_longer_than_a_device_has_workgroups_are_folded(
    device: Device, grid: tuple[int, int, int]
) -> None:
    @kj.jit(workgroup=1)
    def kernel(ends: Any, count: Any) -> None:
        x, y, z = kj.global_id()
        kj.atomic_add(count, 0, 1)
        kj.atomic_max(ends, 0, x)
        kj.atomic_max(ends, 1, y)
        kj.atomic_max(ends, 2, z)

    if device.name == "interpreter":
        pytest.skip("the interpreter has no limit")
    ends, count = np.zeros(3, np.int32), np.zeros(1, np.int32)
    kernel[grid](ends, count)
    assert count[0] == np.prod(grid)
    assert ends.tolist() == [extent - 1 for extent in grid]
