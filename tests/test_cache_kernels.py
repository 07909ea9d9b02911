"""The cache as kernels see it: what is compiled, loaded, remembered and said."""

from __future__ import annotations

import gc
import json
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit import compiler, loading, specialising
from khaljit.backends.base import Device
from khaljit.backends.cpu import target as cpu_target
from khaljit.backends.cpu.target import Cpu
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.catalog import Catalog
from khaljit.cache.store import Store
from khaljit.loading import Modules
from khaljit.logs import wants
from khaljit.tracer.ir import Trace


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of this test's own; `again` makes a new process of it, as it were."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(folder))
    again(monkeypatch)
    yield folder
    compiler.store.cache_clear()


def again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what is in memory."""
    compiler.store.cache_clear()
    monkeypatch.setattr(kj.device("cpu"), "modules", None)
    monkeypatch.setattr(compiler, "_FAILED", type(compiler._FAILED)())


def made(number: int) -> Any:
    @kj.jit(name=f"made{number}")
    def kernel(a: kj.Array1[kj.i32]) -> None:
        a[kj.global_id(0)] = number

    return kernel


def run(kernel: Any) -> int:
    a = np.zeros(3, np.int32)
    with kj.use("cpu"):
        kernel[3](a)
    assert (a == a[0]).all()
    return int(a[0])


def test_hits_misses_and_their_reasons_are_counted(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(made(1)) == 1
    info = kj.cache_info()
    assert (info.hits, info.misses, info.reasons) == (0, 1, {"absent": 1})
    assert (info.directory, info.entries) == (str(fresh), 1)
    again(monkeypatch)
    kernel = made(1)
    assert run(kernel) == 1
    info = kj.cache_info()
    assert (info.hits, info.misses, info.sources) == (1, 0, {"disk": 1})
    assert kernel.cache_info() == {"recorded": 1, "compiled": 0, "cached": 1}
    assert run(kernel) == 1
    assert kernel.cache_info() == {"recorded": 1, "compiled": 0, "cached": 1}


def test_hits_and_misses_are_printed_where_that_is_asked_for(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(made(2))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("KHALJIT_LOG", "cache, compile")
    again(monkeypatch)
    run(made(2))
    run(made(3))
    hit, miss, compiled = capsys.readouterr().err.splitlines()
    assert hit.startswith("khaljit cache: hit, from disk: made2 for cpu:")
    assert miss.startswith("khaljit cache: miss, absent: made3 for cpu:")
    assert compiled.startswith("khaljit compile: made3 for cpu:")
    assert compiled.endswith(" ms")


def test_a_topic_that_nothing_prints_about_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KHALJIT_LOG", "cahce, compile")
    assert not wants("cache")
    assert wants("compile")
    said = capsys.readouterr().err
    assert said == "khaljit: KHALJIT_LOG has no topic 'cahce', only cache, compile, all\n"


def test_another_version_of_the_compiler_compiles_again_and_says_so(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tinygrad/tinygrad#15709; AdaptiveCpp performance guide: users had to delete their caches."""
    run(made(4))
    monkeypatch.setattr(cpu_target, "_llvmlite_version", lambda: "99.0")
    monkeypatch.setenv("KHALJIT_LOG", "cache")
    again(monkeypatch)
    kernel = made(4)
    assert run(kernel) == 4
    assert kernel.cache_info()["compiled"] == 1
    said = capsys.readouterr().err
    assert "miss, tool (llvmlite " in said
    assert " made it, and llvmlite 99.0 is here)" in said
    assert kj.cache_info().entries == 2, "both versions keep theirs"


def test_without_a_compiler_what_is_there_is_used(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(made(5))
    monkeypatch.setattr(cpu_target, "_llvmlite_version", lambda: None)
    again(monkeypatch)
    assert run(made(5)) == 5
    assert kj.cache_info().misses == 0


def test_code_that_cannot_be_loaded_is_thrown_away_and_compiled_again_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openmm/openmm#2847."""
    run(made(6))
    (entry,) = Catalog(compiler.store()).entries()
    artifact = Catalog(compiler.store()).artifact(entry)
    wrong = Artifact(b"\x7fELF of another world", artifact.plan, artifact.tool)
    compiler.store().put(entry.key, wrong)
    again(monkeypatch)
    kernel = made(6)
    assert run(kernel) == 6
    assert list((fresh / str(FORMAT) / "quarantine").iterdir())
    again(monkeypatch)
    assert run(made(6)) == 6
    assert kj.cache_info().hits == 1, "the entry was replaced by a good one"


def test_what_was_just_compiled_and_cannot_be_loaded_is_an_error(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_ = Cpu.compile

    def bad(self: Cpu, trace: Trace, *emitted: Any) -> Artifact:
        found = compile_(self, trace, *emitted)
        return Artifact(b"\x7fELF of another world", found.plan, found.tool)

    monkeypatch.setattr(Cpu, "compile", bad)
    with pytest.raises(kj.KhaljitError):
        run(made(7))


def test_strictly_trouble_with_the_cache_is_an_error_of_the_launch(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax-ml/jax#12594."""
    fresh.parent.joinpath("file").write_text("in the way")
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(fresh.parent / "file" / "cache"))
    monkeypatch.setenv("KHALJIT_CACHE_STRICT", "1")
    again(monkeypatch)
    with pytest.raises(kj.CacheError, match="cannot be used") as caught:
        run(made(20))
    assert "set KHALJIT_CACHE_DIR" in (caught.value.mend or "")
    with pytest.raises(kj.CacheError):
        kj.cache_info()


def test_machines_that_share_a_second_tier_compile_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE", f"memory://{fresh}")
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_KEY", "a secret of all machines")
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_WRITE", "1")
    compiled = []
    for machine in range(3):
        monkeypatch.setenv("KHALJIT_CACHE_DIR", str(fresh / str(machine)))
        again(monkeypatch)
        kernel = made(21)
        assert run(kernel) == 21
        compiled.append(kernel.cache_info()["compiled"])
        assert compiler.store().flush()
    assert compiled == [1, 0, 0]
    assert kj.cache_info().sources == {"remote": 1}


# -- failures ----------------------------------------------------------------------------------


def too_large() -> Any:
    @kj.jit(workgroup=8)
    def kernel(a: kj.Array1[kj.i32]) -> None:
        memory = kj.shared(kj.i32, 10_000_000)
        memory[kj.local_id(0)] = 1
        kj.barrier()
        a[0] = memory[0]

    return kernel


def test_a_compilation_that_failed_fails_again_with_the_same_error(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/warp#1713, NVIDIA/warp#1711: never the half of a program, warm or cold."""
    calls: list[Trace] = []
    compile_ = Cpu.compile

    def counted(self: Cpu, trace: Trace, *emitted: Any) -> Artifact:
        calls.append(trace)
        return compile_(self, trace, *emitted)

    monkeypatch.setattr(Cpu, "compile", counted)
    kernel = too_large()
    errors = []
    for _ in range(3):
        with pytest.raises(kj.CapabilityError) as caught:
            run(kernel)
        errors.append(caught.value)
    again(monkeypatch)  # another process
    with pytest.raises(kj.CapabilityError) as caught:
        run(kernel)
    errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    assert len(set(map(id, errors))) == 4
    assert len(calls) == 2, "once a process"
    assert kj.cache_info().entries == 0
    assert run(made(8)) == 8


def test_the_error_of_an_equal_kernel_names_that_kernels_line(fresh: Path) -> None:
    """The key has no lines in it, so neither may what is remembered under it."""

    @kj.jit(workgroup=8)
    def kernel(a: kj.Array1[kj.i32]) -> None:
        memory = kj.shared(kj.i32, 10_000_000)
        memory[kj.local_id(0)] = 1
        kj.barrier()
        a[0] = memory[0]

    lines = []
    for one in (too_large(), kernel, too_large(), kernel):
        with pytest.raises(kj.CapabilityError) as caught:
            run(one)
        lines.append(str(caught.value))
    assert lines[0] == lines[2]
    assert lines[1] == lines[3]


def test_what_may_pass_is_tried_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that is installed while the process runs is found."""
    compile_ = Cpu.compile

    def missing(self: Cpu, trace: Trace, *emitted: Any) -> Artifact:
        raise kj.DeviceError("no compiler is here", mend="pip install llvmlite")

    monkeypatch.setattr(Cpu, "compile", missing)
    kernel = made(9)
    with pytest.raises(kj.DeviceError):
        run(kernel)
    monkeypatch.setattr(Cpu, "compile", compile_)
    assert run(kernel) == 9


# -- what is loaded ----------------------------------------------------------------------------


def test_equal_kernels_are_loaded_once_and_others_apart(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ml-explore/mlx#4275, NVIDIA/numba-cuda#590: content counts, the name does not."""
    loads: list[Artifact] = []
    device = kj.device("cpu")
    load = device.load_artifact

    def counted(artifact: Artifact, trace: Trace) -> Any:
        loads.append(artifact)
        return load(artifact, trace)

    monkeypatch.setattr(device, "load_artifact", counted)

    def same() -> Any:
        @kj.jit
        def kernel(a: kj.Array1[kj.i32]) -> None:
            a[kj.global_id(0)] = 10

        return kernel

    def other() -> Any:
        @kj.jit
        def kernel(a: kj.Array1[kj.i32]) -> None:
            a[kj.global_id(0)] = 11

        return kernel

    kernels = [same() for _ in range(5)]
    assert [run(kernel) for kernel in kernels] == [10] * 5
    assert len(loads) == 1
    assert run(other()) == 11
    assert len(loads) == 2


def test_kernels_made_in_loops_do_not_pile_up(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """facebookexperimental/triton#1289."""
    monkeypatch.setattr(loading, "MAX_IDLE", 5)
    refs = []
    for number in range(40):
        kernel = made(number % 20)
        assert run(kernel) == number % 20
        (plan,) = kernel._plans.values()
        refs.append(weakref.ref(plan.loaded))
    del kernel, plan
    gc.collect()
    alive = {id(ref()) for ref in refs if ref() is not None}
    assert len(alive) <= 5


def test_what_is_held_is_found_though_it_was_not_used_for_long(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_IDLE", 2)
    held = made(100)
    run(held)
    (plan,) = held._plans.values()
    for number in range(10):
        run(made(number))
    other = made(100)
    run(other)
    assert next(iter(other._plans.values())).loaded is plan.loaded


def test_of_two_threads_that_load_both_get_the_same() -> None:
    modules = Modules()
    one, other = made(1), made(2)
    run(one)
    run(other)
    (first,), (second,) = one._plans.values(), other._plans.values()
    assert modules.put("content", first.loaded) is first.loaded
    assert modules.put("content", second.loaded) is first.loaded
    assert modules.get("content") is first.loaded


def test_equal_code_at_two_places_reports_its_own_place(device: Device) -> None:
    def first() -> Any:
        @kj.jit
        def kernel(a: kj.Array1[kj.i32]) -> None:
            assert a[0] > 0

        return kernel

    def second() -> Any:
        @kj.jit
        def kernel(a: kj.Array1[kj.i32]) -> None:
            assert a[0] > 0

        return kernel

    def fail(kernel: Any) -> None:
        kernel[1](np.zeros(1, np.int32))
        device.synchronize()

    lines = []
    for kernel in (first(), second()):
        with pytest.raises(kj.KernelError) as caught:
            fail(kernel)
        assert caught.value.at is not None
        lines.append(caught.value.at.line)
    assert lines[0] < lines[1]


# -- many specialisations ----------------------------------------------------------------------


@kj.jit
def constant(a: kj.Array1[kj.i32], factor: kj.i32, n: kj.Const[int]) -> None:
    a[kj.global_id(0)] = n * factor


def test_a_kernel_that_is_specialised_often_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """triton-lang/triton#8273, vllm-project/vllm#45631."""
    monkeypatch.setattr(specialising, "MANY", 5)
    a = np.zeros(2, np.int32)
    with kj.use("interpreter"):
        for n in range(5):
            constant[2](a, 1, n)
        with pytest.warns(kj.PerformanceWarning) as caught:
            constant[2](a, 1, 5)
        text = str(caught[0].message)
        assert "kernel constant was specialised more than 5 times" in text
        assert "parameter n came in 6 kinds, such as 0, 1, 2\n  mend: " in text
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in range(20):
                constant[2](a, n, n)


def test_scalars_specialise_nothing() -> None:
    """Dao-AILab/flash-attention#911."""

    @kj.jit
    def kernel(a: kj.Array1[kj.i32], n: kj.i32) -> None:
        a[kj.global_id(0)] = n

    with kj.use("interpreter"):
        for n in range(200):
            kernel[2](np.zeros(2, np.int32), n)
    assert kernel.cache_info()["recorded"] == 1


def test_plans_of_one_kernel_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialising, "MOST", 4)

    @kj.jit
    def kernel(a: kj.Array1[kj.i32], n: kj.Const[int]) -> None:
        a[kj.global_id(0)] = n

    a = np.zeros(2, np.int32)
    with kj.use("interpreter"):
        for n in [*range(20), *range(20)]:
            kernel[2](a, n)
            assert (a == n).all()
    assert len(kernel._plans) == 4


def test_threads_that_start_cold_compile_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA/numba-cuda-mlir#281."""
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(run(made(77)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [77] * 8
    info = kj.cache_info()
    assert info.entries == 1
    assert len(list((fresh / str(FORMAT)).glob("??/*"))) == 1


# -- what entries say --------------------------------------------------------------------------


def test_entries_say_whose_they_are_and_nothing_of_paths(fresh: Path) -> None:
    kernel = made(12)
    run(kernel)
    store = Store.open(fresh)
    (entry,) = Catalog(store).entries()
    assert entry.about["signature"] == "i32[:]"
    assert entry.about["target"].startswith("cpu:")
    data = Catalog(store).data(entry)
    artifact = Catalog(store).artifact(entry)
    for text in (data.decode("latin-1"), artifact.text, entry.key.material.decode()):
        assert str(Path.home()) not in text
        assert str(fresh) not in text
        assert __file__ not in text
    json.dumps(dict(artifact.plan))
