"""The second tier, which machines share: read through, signed, and never in the way."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from khaljit.cache import remote as remote_module
from khaljit.cache.artifact import FORMAT, Artifact, pack
from khaljit.cache.errors import CacheStoreError, CacheWarning
from khaljit.cache.keys import Key, key
from khaljit.cache.remote import MAGIC, Remote, pack_records, read_records
from khaljit.cache.store import Store

fsspec = pytest.importorskip("fsspec", reason="the extra `remote` is not installed")

SECRET = "a secret of all who share it"
NUMBERS = itertools.count()


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


def artifact(number: int, tool: tuple[str, str] | None = None) -> Artifact:
    return Artifact(b"%d" % number * 100, {"n": number}, tool, text="ir")


@pytest.fixture(autouse=True)
def url(no_cache_settings: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tier in memory that takes writes."""
    url = f"memory://tier{next(NUMBERS)}"
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE", url)
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_KEY", SECRET)
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_WRITE", "1")
    return url


class Machines:
    """Stores of machines that have nothing in common but the tier."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(self) -> Store:
        self._count += 1
        return Store.open(self._folder / str(self._count))


@pytest.fixture
def machine(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def never() -> Artifact:
    raise AssertionError("it is there, and was built")


def path_in(url: str, one: Key) -> str:
    return f"{url}/{FORMAT}/{one[:2]}/{one[2:]}"


def test_what_one_machine_built_another_finds(machine: Machines, url: str) -> None:
    first = machine()
    for number in range(5):
        first.obtain(numbered(number), none, partial(artifact, number))
    assert first.flush()
    second = machine()
    for number in range(5):
        found = second.find_or_build(numbered(number), none, never)
        assert (found.artifact, found.outcome) == (artifact(number), "remote")
    info = second.info()
    assert (info.remote, info.sources["remote"], info.entries) == (url, 5, 5)


def test_what_was_fetched_is_in_the_store_afterwards(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine()
    first.put(numbered(1), artifact(1))
    assert first.flush()
    second = machine()
    assert second.obtain(numbered(1), none, never) == artifact(1)
    monkeypatch.delenv("KHALJIT_CACHE_REMOTE")
    again = Store.open(second.directory)
    assert again.find_or_build(numbered(1), none, never).outcome == "disk"


def test_nothing_is_written_unless_that_is_asked_for(
    machine: Machines, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KHALJIT_CACHE_REMOTE_WRITE")
    store = machine()
    store.put(numbered(1), artifact(1))
    assert store.flush()
    system, root = fsspec.core.url_to_fs(url)
    assert not system.exists(root)


def test_a_cache_that_is_off_has_no_second_tier(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE", "0")
    assert machine().info().remote is None


def test_a_store_that_cannot_be_written_to_fetches_into_memory(
    machine: Machines, tmp_path: Path
) -> None:
    first = machine()
    first.put(numbered(1), artifact(1))
    assert first.flush()
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(CacheWarning, match="cannot be used"):
        second = Store.open(tmp_path / "file" / "cache")
    for _ in range(2):
        assert second.obtain(numbered(1), none, never) == artifact(1)


def test_versions_of_a_tool_stand_side_by_side(machine: Machines) -> None:
    versions = {"0.50": artifact(1, ("t", "0.50")), "0.51": artifact(2, ("t", "0.51"))}
    for version, made in versions.items():
        store = machine()
        assert store.look(numbered(1), {"t": version}.get).artifact is None
        store.put(numbered(1), made)
        assert store.flush()
    for version, made in versions.items():
        assert machine().obtain(numbered(1), {"t": version}.get, never) == made
    assert machine().obtain(numbered(1), none, never).tool == ("t", "0.51"), "the last one"


def test_objects_do_not_grow_without_end(machine: Machines, url: str) -> None:
    for number in range(10):
        store = machine()
        store.put(numbered(1), artifact(number, ("t", str(number))))
        assert store.flush()
    system, root = fsspec.core.url_to_fs(path_in(url, numbered(1)))
    entries, wrong = read_records(system.cat_file(root), numbered(1), SECRET.encode())
    assert (len(entries), wrong) == (remote_module.VERSIONS, 0)


# -- trust -------------------------------------------------------------------------------------


def test_what_another_signed_is_not_looked_into(
    machine: Machines, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_KEY", "the secret of an attacker")
    attacker = machine()
    attacker.put(numbered(1), artifact(666))
    assert attacker.flush()
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_KEY", SECRET)
    store = machine()
    with pytest.warns(CacheWarning, match="is not signed with KHALJIT_CACHE_REMOTE_KEY"):
        found = store.find_or_build(numbered(1), none, lambda: artifact(1))
    assert (found.artifact, found.outcome) == (artifact(1), "built")
    assert store.flush()
    assert machine().obtain(numbered(1), none, never) == artifact(1), "and it is replaced"


def test_a_signed_entry_under_another_keys_name_is_not_used(machine: Machines, url: str) -> None:
    store = machine()
    store.put(numbered(1), artifact(1))
    assert store.flush()
    system, root = fsspec.core.url_to_fs(url)
    here, there = (path_in(root, numbered(number)) for number in (1, 2))
    system.makedirs(there.rpartition("/")[0], exist_ok=True)
    system.pipe_file(there, system.cat_file(here))
    with pytest.warns(CacheWarning, match="not signed"):
        assert machine().obtain(numbered(2), none, lambda: artifact(2)) == artifact(2)


def test_every_flipped_byte_and_every_cut_of_an_object_is_found() -> None:
    secret, one = SECRET.encode(), numbered(1)
    entries = [pack(one, artifact(number, ("t", str(number)))) for number in range(2)]
    data = pack_records(entries, one, secret)
    assert read_records(data, one, secret) == (entries, 0)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x20
        assert set(read_records(bytes(damaged), one, secret)[0]) < set(entries)
        assert set(read_records(data[:at], one, secret)[0]) < set(entries)
    assert read_records(data, numbered(2), secret) == ([], 2)
    assert read_records(data, one, secret + b"x") == ([], 2)
    assert read_records(MAGIC, one, secret) == ([], 0)


@pytest.mark.parametrize("secret", ["", "short"])
def test_without_a_secret_the_tier_is_not_used(
    machine: Machines, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_KEY", secret)
    store = machine()
    with pytest.warns(CacheWarning, match="KHALJIT_CACHE_REMOTE_KEY") as caught:
        store.put(numbered(1), artifact(1))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.obtain(numbered(2), none, lambda: artifact(2)) == artifact(2)
        assert store.info().remote is None


def test_secrets_in_a_url_are_not_shown() -> None:
    made = Remote("s3://user:word@host/path?token=x", b"x" * 16, writes=False, timeout=1)
    assert made.url == "s3://host/path"


# -- trouble -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    ["nonsense://host/x", "s3:// /", "http://127.0.0.1:9/none", "/proc/none"],
)
def test_a_tier_that_cannot_be_reached_is_skipped_with_one_warning(
    machine: Machines, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE", wrong)
    store = machine()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(5):
            assert store.obtain(numbered(number), none, lambda: artifact(7)) == artifact(7)
        assert store.flush()
    told = [str(one.message) for one in caught if issubclass(one.category, CacheWarning)]
    assert len(told) == 1
    assert "cannot be" in told[0]
    assert "\n  mend: check KHALJIT_CACHE_REMOTE" in told[0]
    assert len(list((store.directory or Path()).glob(f"{FORMAT}/??/*"))) == 5


def test_strictly_trouble_with_the_tier_is_an_error(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_STRICT", "1")
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE", "nonsense://host/x")
    with pytest.raises(CacheStoreError, match="cannot be read"):
        machine().obtain(numbered(1), none, lambda: artifact(1))


class Slow:
    """A file system that answers late, and counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def cat_file(self, path: str) -> bytes:
        self.calls += 1
        time.sleep(self.seconds)
        raise FileNotFoundError(path)

    def makedirs(self, path: str, exist_ok: bool) -> None:
        raise OSError(30, "Read-only file system")


def with_system(monkeypatch: pytest.MonkeyPatch, system: Any) -> None:
    monkeypatch.setattr(Remote, "_opened", lambda self: (system, "root"))


def test_a_tier_that_hangs_is_waited_for_a_bounded_time_and_then_left_alone(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(30)
    with_system(monkeypatch, slow)
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_TIMEOUT", "0.2")
    monkeypatch.delenv("KHALJIT_CACHE_REMOTE_WRITE")
    store = machine()
    begun = time.monotonic()
    with pytest.warns(CacheWarning, match=r"no answer within 0\.2 s"):
        store.obtain(numbered(1), none, lambda: artifact(1))
    for number in range(2, 10):
        store.obtain(numbered(number), none, lambda: artifact(1))
    assert time.monotonic() - begun < 15
    assert slow.calls == 1


def test_what_failed_is_tried_again_each_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Slow):
        def cat_file(self, path: str) -> bytes:
            self.calls += 1
            raise OSError("no route to host")

    broken = Broken(0)
    with_system(monkeypatch, broken)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    tier = Remote("memory://x", b"x" * 16, writes=False, timeout=10)
    called: list[float] = []
    for _ in range(4000):
        tier.fetch(numbered(1))
        if broken.calls > len(called):
            called.append(clock[0])
        clock[0] += 1
    gaps = [round(b - a) for a, b in itertools.pairwise(called)]
    assert gaps[:6] == [30, 60, 120, 240, 480, 600]
    assert set(gaps[6:]) == {600}


def test_a_tier_that_is_read_only_serves_and_is_warned_of_once(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_system(monkeypatch, Slow(0))
    store = machine()
    store.put(numbered(1), artifact(1))
    with pytest.warns(CacheWarning, match=r"cannot be written to \(\[Errno 30\] Read-only"):
        assert store.flush()


def test_a_wrong_timeout_is_said(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_REMOTE_TIMEOUT", "soon")
    with pytest.warns(CacheWarning, match="KHALJIT_CACHE_REMOTE_TIMEOUT is 'soon'"):
        machine().put(numbered(1), artifact(1))


def test_a_missing_fsspec_says_what_to_install(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.warns(CacheWarning, match="pip install khaljit.remote."):
        machine().obtain(numbered(1), none, lambda: artifact(1))


def test_a_local_hit_asks_no_tier(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    store = machine()
    store.put(numbered(1), artifact(1))
    store.flush()
    slow = Slow(0)
    with_system(monkeypatch, slow)
    assert Store.open(store.directory).obtain(numbered(1), none, never) == artifact(1)
    assert slow.calls == 0


# -- processes ---------------------------------------------------------------------------------

PROGRAM = """
import sys
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
store = Store.open(sys.argv[1])
found = store.find_or_build(key(n=b"1"), lambda name: None, lambda: Artifact(b"made", {}, None))
print(found.outcome, "fsspec" in sys.modules)
"""


def run(folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_process_writes_what_is_still_to_be_written_when_it_ends(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    assert run(tmp_path / "one", KHALJIT_CACHE_REMOTE=shared) == "built True"
    assert run(tmp_path / "two", KHALJIT_CACHE_REMOTE=f"file://{shared}") == "remote True"
    assert run(tmp_path / "three", KHALJIT_CACHE_REMOTE="") == "built False"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_ends_without_waiting_for_its_parents_threads(tmp_path: Path) -> None:
    script = PROGRAM + (
        "import os, time\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    store.obtain(key(n=b'2'), lambda name: None, lambda: Artifact(b'2', {}, None))\n"
        "    sys.exit()\n"
        "began = time.monotonic()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert time.monotonic() - began < 4\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "one")],
        env={**os.environ, "KHALJIT_CACHE_REMOTE": str(tmp_path / "shared")},
        check=True,
        timeout=60,
    )
    assert len([p for p in (tmp_path / "shared").rglob("*") if p.is_file()]) == 2


def test_of_many_threads_one_fetches(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine()
    first.put(numbered(1), artifact(1))
    assert first.flush()
    fetches: list[Key] = []
    fetch = Remote.fetch

    def counted(self: Remote, one: Key) -> list[bytes]:
        fetches.append(one)
        time.sleep(0.05)
        return fetch(self, one)

    monkeypatch.setattr(Remote, "fetch", counted)
    store = machine()
    got: list[Artifact] = []
    threads = [
        threading.Thread(target=lambda: got.append(store.obtain(numbered(1), none, never)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == [artifact(1)] * 6
    assert len(fetches) == 1
