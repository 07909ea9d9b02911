"""The worker pool: every item runs once, whatever threads, forks and interrupts do meanwhile."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from khaljit.backends.cpu import pool as pool_module
from khaljit.backends.cpu.loader import Image, load
from khaljit.backends.cpu.pool import available_threads, make_pool
from khaljit.backends.cpu.workers import Arena, Pool, Scratch
from khaljit.extension import NATIVE
from khaljit.tracer.errors import ArgumentValueError
from tests.machine_code import COUNTING, compile_object


@pytest.fixture(params=["python", "native"])
def new_pool(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    """Makes a pool of each kind in turn."""
    if request.param == "python":
        return Pool
    if NATIVE is None:
        pytest.skip("the native extension is not built")
    return make_pool


@pytest.fixture(scope="module")
def counting() -> Image:
    return load(compile_object(COUNTING))


class Counts:
    """How often each item ran."""

    def __init__(self, items: int, turns: int = 1) -> None:
        self.counts = (ctypes.c_int64 * max(1, items))()
        self._block = (ctypes.c_int64 * 2)(ctypes.addressof(self.counts), turns)
        self.params = ctypes.addressof(self._block)

    def all_are(self, times: int) -> bool:
        return all(count == times for count in self.counts)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_item_runs_once(
    new_pool: Callable[[int], Any], counting: Image, threads: int
) -> None:
    pool = new_pool(threads)
    rng = random.Random(threads)
    for _ in range(150):
        total = rng.choice([1, 2, 3, 64, 1000, rng.randrange(1, 5000)])
        chunk = rng.choice([1, 2, 7, 64, total, total + 1])
        made = Counts(total, turns=rng.choice([1, 1, 50]))
        pool.run(counting.address("entry"), made.params, total, chunk, 64)
        assert made.all_are(1)


def test_no_items_run_nothing(new_pool: Callable[[int], Any], counting: Image) -> None:
    made = Counts(1)
    new_pool(4).run(counting.address("entry"), made.params, 0, 1, 64)
    assert made.all_are(0)


def test_a_launch_of_one_chunk_starts_no_thread(
    new_pool: Callable[[int], Any], counting: Image
) -> None:
    pool = new_pool(8)
    made = Counts(64)
    pool.run(counting.address("entry"), made.params, 64, 64, 64)
    assert pool.started == 0
    pool.run(counting.address("entry"), made.params, 64, 32, 64)
    assert pool.started == 1


WAITS_FOR_COMPANY = """
; Each thread that enters adds 1 to a counter and does not leave before it has reached the number
; that is asked for: so it returns only if that many threads are inside at once.
define void @entry(ptr %params, ptr %next, i64 %total, i64 %chunk, ptr %arena) nounwind {
  %entered = load ptr, ptr %params
  %wanted_at = getelementptr i64, ptr %params, i64 1
  %wanted = load i64, ptr %wanted_at
  %old = atomicrmw add ptr %entered, i64 1 seq_cst
  br label %wait
wait:
  %now = load atomic i64, ptr %entered seq_cst, align 8
  %enough = icmp sge i64 %now, %wanted
  br i1 %enough, label %out, label %wait
out:
  ret void
}
"""


def test_several_threads_are_inside_at_once(new_pool: Callable[[int], Any]) -> None:
    image = load(compile_object(WAITS_FOR_COMPANY))
    pool = new_pool(3)
    for _ in range(20):
        made = Counts(1, turns=3)
        pool.run(image.address("entry"), made.params, 1000, 1, 64)
        assert made.counts[0] == 3


def test_a_launch_does_not_wait_for_workers_that_another_keeps(
    new_pool: Callable[[int], Any],
) -> None:
    image = load(compile_object(WAITS_FOR_COMPANY))
    counting = load(compile_object(COUNTING))
    pool = new_pool(2)
    long = Counts(1, turns=3)  # its two threads stay inside until somebody adds a third
    first = threading.Thread(
        target=pool.run, args=(image.address("entry"), long.params, 2, 1, 64), daemon=True
    )
    first.start()
    while long.counts[0] < 2:
        time.sleep(0.001)
    made = Counts(1000)
    pool.run(counting.address("entry"), made.params, 1000, 1, 64)
    assert made.all_are(1)
    long.counts[0] = 3
    first.join(10)
    assert not first.is_alive()


def test_user_threads_launch_at_once(new_pool: Callable[[int], Any], counting: Image) -> None:
    pool = new_pool(4)
    wrong: list[int] = []

    def launch(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            total = rng.randrange(1, 400)
            made = Counts(total)
            pool.run(counting.address("entry"), made.params, total, rng.randrange(1, 20), 64)
            if not made.all_are(1):
                wrong.append(seed)

    threads = [threading.Thread(target=launch, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_pool_goes_on_where_no_thread_can_be_started(
    counting: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    made = Counts(500)
    Pool(4).run(counting.address("entry"), made.params, 500, 1, 64)
    assert made.all_are(1)


# -- arenas ------------------------------------------------------------------------------------

SHOWS_ARENAS = """
; Each item stores the arena's address, after writing to both ends of the size in params[1].
define void @entry(ptr %params, ptr %next, i64 %total, i64 %chunk, ptr %arena) nounwind {
start:
  %data = load ptr, ptr %params
  %size_at = getelementptr i64, ptr %params, i64 1
  %size = load i64, ptr %size_at
  %last = sub i64 %size, 8
  %end = getelementptr i8, ptr %arena, i64 %last
  store i64 1, ptr %arena
  store i64 2, ptr %end, align 1
  br label %take
take:
  %i = atomicrmw add ptr %next, i64 1 monotonic
  %more = icmp slt i64 %i, %total
  br i1 %more, label %item, label %out
item:
  %place = getelementptr i64, ptr %data, i64 %i
  %address = ptrtoint ptr %arena to i64
  store i64 %address, ptr %place
  br label %take
out:
  ret void
}
"""


def test_arenas_are_aligned_and_grow_on_demand(new_pool: Callable[[int], Any]) -> None:
    image = load(compile_object(SHOWS_ARENAS))
    pool = new_pool(3)
    for size in (64, 4096, 100, 1 << 20, 64):
        made = Counts(300, turns=size)
        pool.run(image.address("entry"), made.params, 300, 1, size)
        assert all(address and address % 64 == 0 for address in made.counts)


def test_each_thread_has_an_arena_of_its_own() -> None:
    scratch = Scratch()
    seen: list[Arena] = []
    threads = [threading.Thread(target=lambda: seen.append(scratch.arena(256))) for _ in range(5)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len({arena.address for arena in seen}) == 5


def test_an_arena_that_is_held_outlives_its_successor() -> None:
    scratch = Scratch()
    small = scratch.arena(100)
    assert scratch.arena(50) is small
    large = scratch.arena(1000)
    assert large.size >= 1000
    assert not small.address <= large.address < small.address + small.size
    ctypes.memset(small.address, 1, small.size)


# -- forks and interrupts ----------------------------------------------------------------------

FORKING = """
import os, sys, threading
sys.path.insert(0, {tests!r})
from tests.machine_code import COUNTING, compile_object
from tests.test_pool import Counts
from khaljit.backends.cpu.loader import load
from khaljit.backends.cpu.pool import make_pool
from khaljit.backends.cpu.workers import Pool
image = load(compile_object(COUNTING))
pool = {make}(4)
def launch():
    made = Counts(2000)
    pool.run(image.address("entry"), made.params, 2000, 1, 64)
    return made.all_are(1)
assert launch()
stop = False
def keep_launching():
    while not stop:
        launch()
busy = threading.Thread(target=keep_launching, daemon=True)  # locks are held when we fork
busy.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        good = pool.started == 0 and launch() and launch() and pool.started == 3
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
stop = True
busy.join()
assert launch()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_starts_its_own_workers(new_pool: Callable[[int], Any]) -> None:
    script = FORKING.format(tests=str(Path(__file__).parent.parent), make=new_pool.__name__)
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_an_interrupt_leaves_only_when_no_thread_is_inside(new_pool: Callable[[int], Any]) -> None:
    image = load(compile_object(WAITS_FOR_COMPANY))
    counting = load(compile_object(COUNTING))
    pool = new_pool(2)
    made = Counts(1, turns=2)
    pool.run(image.address("entry"), made.params, 2, 1, 64)  # the worker is awake and was inside

    def interrupt() -> None:
        while not slow.counts[0]:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    slow = Counts(64, turns=200_000)

    def launch() -> None:
        pool.run(counting.address("entry"), slow.params, 64, 1, 64)
        time.sleep(10)  # where the signal came too late to be seen in `run`

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        launch()
    helper.join()
    assert slow.all_are(1)
    after = Counts(100)
    pool.run(counting.address("entry"), after.params, 100, 1, 64)
    assert after.all_are(1)


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_interrupts_at_any_moment_neither_lose_items_nor_hang(
    new_pool: Callable[[int], Any], counting: Image
) -> None:
    """An alarm whose handler raises goes off again and again, wherever the launch is just then."""

    class AlarmError(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise AlarmError

    pool = new_pool(3)
    rng = random.Random(11)
    made = Counts(200)
    before = signal.signal(signal.SIGALRM, ring)
    interrupted = 0
    gc.collect()
    gc.disable()  # finalizers cannot be interrupted
    try:
        for _ in range(400):
            made = Counts(200, turns=20)
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 300e-6))
                pool.run(counting.address("entry"), made.params, 200, 1, 64)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except AlarmError:
                interrupted += 1
            counts = list(made.counts)
            assert set(counts) <= {0, 1}
            assert list(made.counts) == counts, "nobody is inside any more"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert interrupted
    made = Counts(500)
    pool.run(counting.address("entry"), made.params, 500, 1, 64)
    assert made.all_are(1)


# -- how many ----------------------------------------------------------------------------------


def test_the_environment_says_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_NUM_THREADS", " 7 ")
    assert available_threads() == 7
    for wrong in ("0", "-1", "many", "1.5", "²"):
        monkeypatch.setenv("KHALJIT_NUM_THREADS", wrong)
        with pytest.raises(ArgumentValueError, match="KHALJIT_NUM_THREADS"):
            available_threads()


def test_the_processors_that_the_process_may_use_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KHALJIT_NUM_THREADS", raising=False)
    monkeypatch.setattr(pool_module, "_granted_processors", lambda *_: float("inf"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 9}, raising=False)
    assert available_threads() == 3
    for granted, threads in ((1.5, 2), (0.2, 1), (2.0, 2), (64.0, 3)):
        monkeypatch.setattr(pool_module, "_granted_processors", lambda *_, g=granted: g)
        assert available_threads() == threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_quotas_of_control_groups_count_and_so_do_those_above(tmp_path: Path) -> None:
    membership, root = tmp_path / "cgroup", tmp_path / "fs"
    granted = pool_module._granted_processors
    assert granted(str(membership), str(root)) == float("inf")
    write(membership, "0::/user/job\n")
    assert granted(str(membership), str(root)) == float("inf")
    write(root / "user/job/cpu.max", "max 100000\n")
    assert granted(str(membership), str(root)) == float("inf")
    write(root / "user/cpu.max", "250000 100000\n")
    assert granted(str(membership), str(root)) == 2.5
    write(root / "user/job/cpu.max", "150000 100000\n")
    assert granted(str(membership), str(root)) == 1.5
    write(root / "cpu.max", "50000 100000\n")
    assert granted(str(membership), str(root)) == 0.5
    write(root / "cpu.max", "not a number\n")
    assert granted(str(membership), str(root)) == 1.5


def test_quotas_of_the_first_version_of_control_groups_count(tmp_path: Path) -> None:
    membership, root = tmp_path / "cgroup", tmp_path / "fs"
    write(membership, "5:memory:/\n4:cpu,cpuacct:/docker/1\n0::/\n")
    write(root / "cpu,cpuacct/docker/1/cpu.cfs_quota_us", "-1\n")
    write(root / "cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n")
    assert pool_module._granted_processors(str(membership), str(root)) == float("inf")
    write(root / "cpu,cpuacct/docker/1/cpu.cfs_quota_us", "300000\n")
    assert pool_module._granted_processors(str(membership), str(root)) == 3.0
