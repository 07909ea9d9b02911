"""What every store does, on disk and in memory; and what one on disk does besides."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from khaljit.cache import store as store_module
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.files import is_entry
from khaljit.cache.keys import Key, key
from khaljit.cache.store import Store

MakeStore = Callable[[], Store]


def nothing_installed(name: str) -> str | None:
    return None


def artifact(number: int = 0, size: int = 100) -> Artifact:
    payload = random.Random(number).randbytes(size)
    return Artifact(payload, {"number": number}, ("llvmlite", "0.50.0"), text="define")


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


def files_in(directory: Path) -> list[Path]:
    return [
        path
        for path in directory.glob(f"{FORMAT}/??/*")
        if is_entry(f"{path.parent.name}/{path.name}")
    ]


pytestmark = pytest.mark.usefixtures("no_cache_settings")


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "memory":
        monkeypatch.setenv("KHALJIT_CACHE", "0")
    return Store.open(tmp_path / "cache")


class TestEveryStore:
    def test_what_was_put_is_got(self, store: Store) -> None:
        for number in range(20):
            store.put(numbered(number), artifact(number))
        for number in range(20):
            assert store.get(numbered(number), nothing_installed) == artifact(number)

    def test_what_was_not_put_is_missed(self, store: Store) -> None:
        assert store.get(numbered(1), nothing_installed) is None
        store.put(numbered(1), artifact())
        assert store.get(numbered(2), nothing_installed) is None

    def test_the_last_one_put_counts(self, store: Store) -> None:
        store.put(numbered(1), artifact(1))
        store.put(numbered(1), artifact(2))
        assert store.get(numbered(1), nothing_installed) == artifact(2)

    def test_what_was_just_put_is_the_same_object(self, store: Store) -> None:
        made = artifact()
        store.put(numbered(1), made)
        assert store.get(numbered(1), nothing_installed) is made

    def test_equal_digits_with_other_material_are_a_miss(self, store: Store) -> None:
        """NVIDIA/warp#1511."""
        collided = Key(numbered(1))
        collided.material = b"khaljit 1\nanother 0\n\n"
        store.put(numbered(1), artifact())
        assert store.get(collided, nothing_installed) is None

    def test_clearing_leaves_nothing(self, store: Store) -> None:
        store.put(numbered(1), artifact())
        store.clear()
        assert store.get(numbered(1), nothing_installed) is None
        assert store.info().entries == 0
        store.put(numbered(1), artifact())
        assert store.get(numbered(1), nothing_installed) == artifact()

    def test_what_could_not_be_loaded_is_discarded(self, store: Store) -> None:
        store.put(numbered(1), artifact())
        store.put(numbered(2), artifact())
        store.discard(numbered(1))
        assert store.get(numbered(1), nothing_installed) is None
        assert store.get(numbered(2), nothing_installed) == artifact()

    def test_hits_and_misses_are_counted_with_reasons(self, store: Store) -> None:
        store.get(numbered(1), nothing_installed)
        store.put(numbered(1), artifact())
        store.get(numbered(1), nothing_installed)
        store.get(numbered(1), nothing_installed)
        info = store.info()
        assert (info.hits, info.misses, info.reasons) == (2, 1, {"absent": 1})

    def test_obtain_builds_once(self, store: Store) -> None:
        built: list[int] = []

        def build() -> Artifact:
            built.append(1)
            return artifact()

        for _ in range(3):
            assert store.obtain(numbered(1), nothing_installed, build) == artifact()
        assert built == [1]

    def test_a_build_that_fails_is_tried_again_and_fails_again(self, store: Store) -> None:
        def build() -> Artifact:
            raise ZeroDivisionError("cold")

        for _ in range(3):
            with pytest.raises(ZeroDivisionError, match="cold"):
                store.obtain(numbered(1), nothing_installed, build)
        assert store.obtain(numbered(1), nothing_installed, artifact) == artifact()


# -- on disk -----------------------------------------------------------------------------------


@pytest.fixture
def reopen(tmp_path: Path) -> MakeStore:
    """Opens one directory again and again, as processes that come one after the other do."""
    return lambda: Store.open(tmp_path / "cache")


def test_another_process_finds_what_was_put(tmp_path: Path, reopen: MakeStore) -> None:
    reopen().put(numbered(1), artifact(7, size=5000))
    script = (
        "import sys\n"
        "from khaljit.cache.keys import key\n"
        "from khaljit.cache.store import Store\n"
        f"store = Store.open({str(tmp_path / 'cache')!r})\n"
        "found = store.get(key(number=b'1'), lambda name: None)\n"
        "print(found.plan, found.tool, found.text, len(found.payload), 'sqlite3' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'number': 7} ('llvmlite', '0.50.0') define 5000 False"


def test_an_entry_is_one_file_for_this_user_only(tmp_path: Path, reopen: MakeStore) -> None:
    reopen().put(numbered(1), artifact())
    assert len(files_in(tmp_path)) == 0
    assert len(files_in(tmp_path / "cache")) == 1
    if hasattr(os, "geteuid"):
        assert stat.S_IMODE(os.stat(tmp_path / "cache").st_mode) == 0o700


def test_putting_again_replaces_the_file(tmp_path: Path, reopen: MakeStore) -> None:
    for number in range(5):
        reopen().put(numbered(1), artifact(number))
    assert len(files_in(tmp_path / "cache")) == 1
    assert reopen().get(numbered(1), nothing_installed) == artifact(4)


@pytest.mark.parametrize(
    ("installed", "found"), [(None, True), ("0.50.0", True), ("0.51.0", False), ("", False)]
)
def test_an_entry_of_another_version_of_an_installed_tool_is_refused(
    reopen: MakeStore, installed: str | None, found: bool
) -> None:
    reopen().put(numbered(1), artifact())
    store = reopen()
    asked: list[str] = []

    def tools(name: str) -> str | None:
        asked.append(name)
        return installed

    assert (store.get(numbered(1), tools) is not None) == found
    assert asked == ["llvmlite"]
    assert store.info().reasons == ({} if found else {"tool": 1})


def test_what_no_tool_made_and_what_was_shipped_is_accepted(reopen: MakeStore) -> None:
    own = Artifact(b"ptx", {}, None)
    shipped = Artifact(b"cubin", {}, ("ptxas", "13.0"), shipped=True)
    store = reopen()
    store.put(numbered(1), own)
    store.put(numbered(2), shipped)
    assert reopen().get(numbered(1), lambda name: "99") == own
    assert reopen().get(numbered(2), lambda name: "99") == shipped


def test_two_versions_of_a_tool_share_a_cache(tmp_path: Path, reopen: MakeStore) -> None:
    old = Artifact(b"old", {}, ("llvmlite", "0.50"))
    new = Artifact(b"new", {}, ("llvmlite", "0.51"))
    reopen().put(numbered(1), old)
    reopen().put(numbered(1), new)
    assert len(files_in(tmp_path / "cache")) == 2
    assert reopen().get(numbered(1), lambda name: "0.50") == old
    assert reopen().get(numbered(1), lambda name: "0.51") == new
    assert reopen().get(numbered(1), lambda name: "0.52") is None


def test_the_text_of_an_entry_is_kept(reopen: MakeStore) -> None:
    reopen().put(numbered(1), Artifact(b"", {}, None, text="; ü\n" * 100))
    found = reopen().get(numbered(1), nothing_installed)
    assert found is not None
    assert found.text == "; ü\n" * 100


# -- the bound ---------------------------------------------------------------------------------


def test_the_cache_stays_within_its_bound(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "cache", limit=400_000)
    for number in range(60):
        store.put(numbered(number), artifact(number, size=20_000))
    info = Store.open(tmp_path / "cache", limit=400_000).info()
    assert 8 <= info.entries < 20
    assert info.bytes <= 400_000
    assert info.limit == 400_000


def age(directory: Path, hours: float) -> None:
    """Make all entries look last used so long ago, in the order that they now have."""
    for path in files_in(directory):
        then = os.stat(path).st_mtime - 3600 * hours
        os.utime(path, (then, then))


def test_what_was_used_last_is_kept(tmp_path: Path) -> None:
    """Readers write no database, yet what they read is not what goes."""
    filler = Store.open(tmp_path / "cache", limit=400_000)
    for number in range(15):
        filler.put(numbered(number), artifact(number, size=20_000))
    age(tmp_path / "cache", hours=5)
    reader = Store.open(tmp_path / "cache", limit=400_000)
    favourites = (0, 1, 4)
    for number in favourites:
        assert reader.get(numbered(number), nothing_installed) is not None
    time.sleep(0.01)
    for number in range(100, 112):
        filler.put(numbered(number), artifact(number, size=20_000))
    after = Store.open(tmp_path / "cache")
    kept = [n for n in range(15) if after.get(numbered(n), nothing_installed) is not None]
    assert set(favourites) <= set(kept)
    assert len(kept) < 10


def test_an_entry_larger_than_the_bound_is_served_from_memory(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "cache", limit=1000)
    store.put(numbered(1), artifact(1, size=50_000))
    assert store.get(numbered(1), nothing_installed) == artifact(1, size=50_000)
    assert store.info().entries == 0


def test_memory_has_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_CACHE", "0")
    monkeypatch.setattr(store_module, "MEMORY_LIMIT", 10_000)
    store = Store.open()
    for number in range(10):
        store.put(numbered(number), artifact(number, size=3000))
        assert store.get(numbered(0), nothing_installed) is not None  # of use, so it stays
    kept = [n for n in range(10) if store.get(numbered(n), nothing_installed) is not None]
    assert kept == [0, 8, 9]


# -- threads and forks -------------------------------------------------------------------------


def test_threads_share_a_store(reopen: MakeStore) -> None:
    store = reopen()
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(30):
                number = rng.randrange(12)
                found = store.get(numbered(number), nothing_installed)
                if found is None:
                    store.put(numbered(number), artifact(number))
                elif found != artifact(number):
                    wrong.append(number)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert reopen().info().entries == 12


FORKING = """
import os, sys, threading, time
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
store = Store.open(sys.argv[1])
none = lambda name: None
def put_and_get(number):
    made = Artifact(b"%d" % number, {}, None)
    store.put(key(n=b"%d" % number), made)
    return store.get(key(n=b"%d" % number), none) == made
assert put_and_get(0)
stop = False
def keep_busy():
    number = 1000
    while not stop:
        put_and_get(number)
        number += 1
        time.sleep(0.001)
busy = threading.Thread(target=keep_busy, daemon=True)  # so that a lock is held when we fork
busy.start()
for number in range(1, 11):
    child = os.fork()
    if child == 0:
        with store.building(key(n=b"0"), none) as building:
            good = building.artifact is not None
        os._exit(0 if good and put_and_get(number) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
stop = True
busy.join()
fresh = Store.open(sys.argv[1])
assert all(fresh.get(key(n=b"%d" % number), none) for number in range(11))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_store_works_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tmp_path / "c")],
        check=True,
        timeout=120,
    )
