"""Those who need one entry at one time: one builds it, the others wait for it, but not for ever."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from khaljit.cache import flight
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.flight import Lease
from khaljit.cache.keys import Key, key
from khaljit.cache.store import Store

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc when a process started")


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


ARTIFACT = Artifact(b"built", {}, None)


pytestmark = pytest.mark.usefixtures("no_cache_settings")


# -- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_of_many_threads_one_builds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "memory":
        monkeypatch.setenv("KHALJIT_CACHE", "0")
    store = Store.open(folder)
    built: list[int] = []
    got: list[Artifact] = []

    def build() -> Artifact:
        built.append(1)
        time.sleep(0.05)
        return ARTIFACT

    def need() -> None:
        got.append(store.obtain(numbered(1), none, build))

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [ARTIFACT] * 8
    assert built == [1]


def test_builds_of_different_keys_do_not_wait_for_each_other(folder: Path) -> None:
    store = Store.open(folder)
    with store.building(numbered(1), none) as first:
        assert first.artifact is None
        done = threading.Thread(target=store.obtain, args=(numbered(2), none, lambda: ARTIFACT))
        done.start()
        done.join(20)
        assert not done.is_alive()


def test_when_the_builder_fails_those_who_waited_build_for_themselves(folder: Path) -> None:
    store = Store.open(folder)
    inside = threading.Event()
    go_on = threading.Event()

    def fail() -> Artifact:
        inside.set()
        go_on.wait(20)
        raise ZeroDivisionError

    def first() -> None:
        with pytest.raises(ZeroDivisionError):
            store.obtain(numbered(1), none, fail)

    builder = threading.Thread(target=first)
    builder.start()
    inside.wait(20)
    got: list[Artifact] = []
    waiter = threading.Thread(
        target=lambda: got.append(store.obtain(numbered(1), none, lambda: ARTIFACT))
    )
    waiter.start()
    time.sleep(0.05)
    assert got == []
    go_on.set()
    builder.join(20)
    waiter.join(20)
    assert got == [ARTIFACT]


def test_a_thread_waits_for_a_bounded_time(folder: Path) -> None:
    store = Store.open(folder, wait=0.1)
    got: list[Artifact] = []
    with store.building(numbered(1), none):
        waiter = threading.Thread(
            target=lambda: got.append(store.obtain(numbered(1), none, lambda: ARTIFACT))
        )
        waiter.start()
        waiter.join(20)
        assert got == [ARTIFACT]


# -- processes ---------------------------------------------------------------------------------

BUILDER = """
import os, sys, time
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
folder, log = sys.argv[1:]
store = Store.open(folder)
def build():
    with open(log, "a") as file:
        file.write("built\\n")
    time.sleep(0.3)
    return Artifact(b"built", {}, None)
print("ready", flush=True)
sys.stdin.readline()
assert store.obtain(key(number=b"1"), lambda name: None, build).payload == b"built"
"""

HOLDER = """
import sys, time
from khaljit.cache.keys import key
from khaljit.cache.store import Store
with Store.open(sys.argv[1]).building(key(number=b"1"), lambda name: None):
    print("ready", flush=True)
    time.sleep(60)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_of_many_processes_one_builds(folder: Path, tmp_path: Path) -> None:
    """tenstorrent/tt-metal#55009."""
    log = tmp_path / "log"
    processes = [start(BUILDER, folder, log) for _ in range(5)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert log.read_text() == "built\n"
    assert list((folder / str(FORMAT) / "leases").iterdir()) == []


def test_the_lease_of_a_killed_process_is_taken_over(folder: Path) -> None:
    stop(start(HOLDER, folder))
    assert len(list((folder / str(FORMAT) / "leases").iterdir())) == 1
    begun = time.monotonic()
    assert Store.open(folder).obtain(numbered(1), none, lambda: ARTIFACT) == ARTIFACT
    assert time.monotonic() - begun < 15
    assert list((folder / str(FORMAT) / "leases").iterdir()) == []


def test_a_living_builder_is_waited_for_a_bounded_time(folder: Path) -> None:
    """NVIDIA/numba-cuda#204."""
    holder = start(HOLDER, folder)
    try:
        store = Store.open(folder, wait=0.3)
        begun = time.monotonic()
        assert store.obtain(numbered(1), none, lambda: ARTIFACT) == ARTIFACT
        assert time.monotonic() - begun > 0.25
        assert len(list((folder / str(FORMAT) / "leases").iterdir())) == 1, "the lease is still its"
    finally:
        stop(holder)


def test_an_entry_that_appears_ends_the_wait(folder: Path) -> None:
    holder = start(HOLDER, folder)
    try:
        other = threading.Timer(0.1, Store.open(folder).put, args=(numbered(1), ARTIFACT))
        other.start()
        begun = time.monotonic()
        with Store.open(folder, wait=30).building(numbered(1), none) as building:
            assert building.artifact == ARTIFACT
        assert time.monotonic() - begun < 20
        other.join()
    finally:
        stop(holder)


def test_processes_that_all_write_and_read_agree(folder: Path) -> None:
    script = """
import random, sys
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
print("ready", flush=True)
sys.stdin.readline()
rng = random.Random(int(sys.argv[2]))
for turn in range(60):
    number = rng.randrange(15)
    store = Store.open(sys.argv[1], limit=600_000)  # so that there is eviction too
    payload = random.Random(number).randbytes(50_000)
    found = store.obtain(
        key(number=b"%d" % number), lambda name: None, lambda: Artifact(payload, {}, None)
    )
    assert found.payload == payload
    assert "corrupt" not in store.info().reasons
"""
    processes = [start(script, folder, seed) for seed in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0


# -- leases ------------------------------------------------------------------------------------


def test_a_lease_is_had_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / "leases" / "k")
    one, other = Lease(path), Lease(path)
    assert one.take()
    assert not other.take()
    other.break_if_dead()
    assert not other.take()
    other.drop()
    assert not other.take()
    one.drop()
    assert other.take()


def test_where_leases_cannot_be_written_everybody_builds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        assert Lease(str(tmp_path / "file" / "leases" / "k")).take()


@linux
@pytest.mark.parametrize(
    ("claim", "age", "dead"),
    [
        ("{host} {pid} {started}", 0.0, False),
        ("{host} {pid} 1", 0.0, True),  # another process that has the number now
        ("{host} {gone} {started}", 0.0, True),
        ("elsewhere {gone} 1", 0.0, False),
        ("elsewhere {gone} 1", 1000.0, True),
        ("{host} {pid} {started}", 1000.0, True),
        ("", 0.0, False),  # about to be signed
        ("", 10.0, True),
        ("junk", 10.0, True),
        ("a b c", 10.0, True),
    ],
)
def test_a_lease_is_broken_when_its_holder_is_gone(
    tmp_path: Path, claim: str, age: float, dead: bool
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host, pid, started = flight._own().decode().split(" ")
    path = tmp_path / "k"
    path.write_text(claim.format(host=host, pid=pid, started=started, gone=ended.pid))
    then = time.time() - age
    os.utime(path, (then, then))
    Lease(str(path)).break_if_dead()
    assert path.exists() != dead


def test_a_lease_that_was_taken_over_is_not_dropped_by_its_first_holder(tmp_path: Path) -> None:
    path = tmp_path / "k"
    lease = Lease(str(path))
    assert lease.take()
    path.write_text("elsewhere 1 1")
    lease.drop()
    assert path.exists()


def test_leases_of_the_long_dead_are_swept(tmp_path: Path) -> None:
    old, lease = tmp_path / "old", Lease(str(tmp_path / "k"))
    old.write_text("elsewhere 1 1")
    then = time.time() - 10_000
    os.utime(old, (then, then))
    assert lease.take()
    lease.drop()
    assert not old.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_does_not_drop_its_parents_lease(tmp_path: Path) -> None:
    script = """
import os, sys
from khaljit.cache.flight import Lease
lease = Lease(sys.argv[1])
assert lease.take()
child = os.fork()
if child == 0:
    lease.drop()
    os._exit(0)
os.waitpid(child, 0)
assert os.path.exists(sys.argv[1])
lease.drop()
assert not os.path.exists(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "k")], check=True, timeout=60)


def test_a_random_order_of_takers_never_gives_two_leases_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "k")
    holders: list[int] = []
    wrong: list[int] = []

    def contend(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(100):
            lease = Lease(path)
            if lease.take():
                holders.append(seed)
                if len(holders) > 1:
                    wrong.append(seed)
                time.sleep(rng.uniform(0, 0.0005))
                holders.remove(seed)
                lease.drop()
            else:
                lease.break_if_dead()

    threads = [threading.Thread(target=contend, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
