"""The debugger's device: kernels as plain Python."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device

Rng = np.random.Generator


@pytest.fixture
def python() -> Device:
    return kj.device("python")


def run(script: str, folder: Path, *options: str, typed: str = "", **environment: str) -> str:
    """What a script prints in a process of its own, with something typed on its input."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, *options, str(path)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.getcwd(), *sys.path)), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Debuggers.

SCRIPT = """\
    import numpy as np
    import khaljit as kj

    @kj.jit
    def kernel(a, out):
        i = kj.global_id(0)
        x = a[i] * 2.0
        if x > 3.0:
            x = x - 1.0
        out[i] = x

    with kj.use("python"):
        out = np.zeros(3, np.float32)
        kernel[3](np.array([0.5, 2.0, 3.0], np.float32), out)
        print("result", out.tolist())
"""


def test_pdb_stops_in_a_kernel_at_a_breakpoint(tmp_path: Path) -> None:
    typed = "break script.py:9\ncontinue\np i\np x\np type(a).__name__\nnext\np x\np x > 2.5\n"
    typed += "where\ncontinue\np i, x\nclear 1\ncontinue\nquit\n"
    out = run(SCRIPT, tmp_path, "-m", "pdb", typed=typed)
    lines = [line.removeprefix("(Pdb) ") for line in out.splitlines()]
    assert any(line.startswith("Breakpoint 1 at") for line in lines)
    stop = next(k for k, line in enumerate(lines) if "script.py(9)kernel()" in line)
    assert "x = x - 1.0" in lines[stop + 1]
    assert lines[stop + 2 : stop + 5] == ["index(1)", "f32(4.0)", "'Array'"]
    assert "f32(3.0)" in lines
    assert "bool(True)" in lines
    assert "(index(2), f32(6.0))" in lines
    assert "result [1.0, 3.0, 5.0]" in lines


BARRIERS = """\
    import numpy as np
    import khaljit as kj

    @kj.jit(workgroup=64)
    def reverse(a, out):
        tile = kj.shared(kj.i32, 64)
        i = kj.local_id(0)
        tile[i] = a[i]
        if i == 0:
            breakpoint()
        kj.barrier()
        total = kj.workgroup_add(tile[i])
        out[i] = tile[63 - i] + total

    with kj.use("python"):
        out = np.zeros(64, np.int32)
        reverse[64](np.arange(64, dtype=np.int32), out)
        assert (out == np.arange(64)[::-1] + 2016).all()
        print("result is right")
"""


def test_a_kernel_with_barriers_is_stepped_to_its_end(tmp_path: Path) -> None:
    typed = "next\nnext\nnext\np total\np i\ncontinue\n"
    out = run(BARRIERS, tmp_path, typed=typed)
    assert "kj.barrier()" in out
    assert "total = kj.workgroup_add(tile[i])" in out
    assert "i32(2016)" in out
    assert "index(0)" in out
    assert "result is right" in out


def test_a_breakpoint_holds_in_every_invocation_of_a_workgroup(tmp_path: Path) -> None:
    script = BARRIERS.replace("        if i == 0:\n            breakpoint()\n", "")
    typed = "break script.py:9\n" + "continue\np i\n" * 64 + "continue\nquit\n"
    out = run(script, tmp_path, "-m", "pdb", typed=typed)
    assert [f"index({k})" in out for k in range(64)] == [True] * 64
    assert "result is right" in out


def test_an_environment_variable_makes_it_the_current_device(tmp_path: Path) -> None:
    script = """\
        import khaljit as kj
        print(kj.current_device(), kj.device(), kj.device("cpu"))
    """
    for yes in ("1", "yes"):
        assert run(script, tmp_path, KHALJIT_INTERPRET=yes).split() == ["python", "python", "cpu"]


# Errors.


def test_an_assertion_keeps_the_users_traceback(python: Device) -> None:
    def inner(x: Any) -> None:
        assert x < 2, "too large"

    @kj.jit
    def kernel(a: kj.Array1[kj.i32]) -> None:
        inner(a[kj.global_id(0)])

    with kj.use(python), pytest.raises(kj.KernelError, match="too large") as caught:
        kernel[3](np.arange(3, dtype=np.int32))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["kernel", "inner"]
    assert caught.value.at is not None
    assert "assert x < 2" in str(caught.value)
    assert "in invocation (2, 0, 0)" in caught.value.message


def test_an_exception_in_a_workgroup_ends_all_its_invocations(python: Device) -> None:
    @kj.jit(workgroup=16)
    def kernel(a: kj.Array1[kj.i32]) -> None:
        kj.barrier()
        assert a[kj.local_id(0)] != 5
        kj.barrier()

    import threading

    before = threading.active_count()
    with kj.use(python), pytest.raises(kj.KernelError, match=r"invocation \(5, 0, 0\)"):
        kernel[16](np.arange(16, dtype=np.int32))
    assert threading.active_count() == before


def test_what_no_device_takes_is_refused_as_everywhere(python: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.i32], b: kj.Array1[kj.u32]) -> None:
        a[0] = a[1] + b[1]

    with kj.use(python), pytest.raises(kj.TraceError, match="no type holds both"):
        kernel[1](np.zeros(2, np.int32), np.zeros(2, np.uint32))


# Meaning.


def test_results_are_the_bits_of_the_cpu(python: Device, rng: Rng) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f32], h: kj.Array1[kj.f16], out: kj.Array2[kj.f32]) -> None:
        i = kj.global_id(0)
        x = a[i]
        product = x * 1.7
        for _ in range(3):
            product = product * x
        out[i, 0] = product + 1.0  # merged by the loop: not contracted
        out[i, 1] = x * x + product - x * 0.3
        out[i, 2] = math.sin(x) + kj.exp(x) * kj.erf(x)
        out[i, 3] = kj.f32(np.cos(h[i])) + kj.lgamma(x) + x**2.5 + np.arctan2(x, product)
        either = x * 3.3 if x > 0.0 else x
        out[i, 4] = either + 0.1

    a = rng.normal(size=9).astype(np.float32) * 5
    found = []
    for device in (python, kj.device("cpu")):
        out = np.zeros((9, 5), np.float32)
        with kj.use(device):
            kernel[9](a, a.astype(np.float16), out)
        found.append(out)
    np.testing.assert_array_equal(found[0], found[1])


def test_without_contraction_nothing_is_fused(python: Device, rng: Rng) -> None:
    @kj.jit(contract=False)
    def kernel(a: kj.Array1[kj.f32], out: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        out[i] = a[i] * a[i] + a[i]

    a, out = rng.normal(size=200).astype(np.float32), np.zeros(200, np.float32)
    with kj.use(python):
        kernel[200](a, out)
    np.testing.assert_array_equal(out, a * a + a)


def test_the_order_is_that_of_the_index_or_of_the_seed() -> None:
    @kj.jit
    def kernel(places: kj.Array1[kj.i32], count: kj.Array1[kj.i32]) -> None:
        places[kj.global_id(0)] = kj.atomic_add(count, 0, 1)

    @kj.jit(workgroup=8)
    def together(places: kj.Array1[kj.i32], count: kj.Array1[kj.i32]) -> None:
        kj.barrier()
        places[kj.global_id(0)] = kj.atomic_add(count, 0, 1)

    def order(one: Any, **options: Any) -> list[int]:
        places, count = np.zeros(32, np.int32), np.zeros(1, np.int32)
        with kj.use(kj.device("python", **options)):
            one[32](places, count)
        return places.tolist()

    for one in (kernel, together):
        assert order(one) == list(range(32))
        assert order(one, seed=1) == order(one, seed=1) != order(one, seed=2)
        assert sorted(order(one, seed=2)) == list(range(32))


def test_components_of_values_are_assigned_to_one_name_only(python: Device) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.vec3], out: kj.Array2[kj.f32]) -> None:
        v = a[0]
        w = v
        w.x = 10.0
        v.yz = kj.vec2(4.0, 5.0)
        w[1] = 11.0
        w.z += 0.5
        a[1].y = 7.0
        a[1].z += 1.0
        out[0, 0], out[0, 1], out[0, 2] = v
        out[1, 0], out[1, 1], out[1, 2] = w

    a = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    out = np.zeros((2, 3), np.float32)
    with kj.use(python):
        kernel[1](a, out)
    assert out.tolist() == [[1, 4, 5], [10, 11, 3.5]]
    assert a.tolist() == [[1, 2, 3], [4, 7, 7]]


def larger(x: Any, y: Any) -> Any:
    return max(x, y, 1) + round(float(y))


def test_host_functions_mean_in_helpers_what_they_mean_in_kernels(python: Device) -> None:
    limits = (2, 5)
    functions = {"half": lambda x: float(x) * 0.5, "sine": math.sin}

    def clipped(x: Any) -> Any:
        return min(max(x, limits[0]), limits[1])

    @kj.jit
    def kernel(a: kj.Array1[kj.f32], out: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        out[i] = int(larger(a[i], 2.5)) + int(clipped(a[i])) + len(a) + sum((1, i))
        if isinstance(i, int) and isinstance(a[i], float) and not isinstance(i, float):
            out[i] += 100
        out[i] += int(functions["half"](i) * 4.0) + int(functions["sine"](0.5 * i) * 100.0)
        for k in range(3):
            out[i] += limits[k % 2]

    a = np.array([np.nan, 0.0, 3.7, 9.0], np.float32)
    results = []
    for device in (python, kj.device("interpreter")):
        out = np.zeros(4, np.int32)
        with kj.use(device):
            kernel[4](a, out)
        results.append(out.tolist())
    assert results[0] == results[1]


def test_numbers_are_shown_as_what_they_are(python: Device, capsys: Any) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f32]) -> None:
        x = a[0]
        print(repr(x), str(x), f"{x:.3f}", repr(kj.vec2(x, 1.0)), kj.vec2(x, 1.0), sep=" | ")
        print("once an invocation")

    with kj.use(python):
        kernel[1](np.array([0.1], np.float32))
    said = capsys.readouterr().out
    assert said == "f32(0.1) | 0.1 | 0.100 | vec2(0.1, 1.0) | (0.1, 1.0)\nonce an invocation\n"
