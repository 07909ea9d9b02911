"""Entries one by one: listed, checked, deleted, carried elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from khaljit.cache import memos as memos_module
from khaljit.cache import uses
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.catalog import Catalog, Damage, Entry
from khaljit.cache.errors import CorruptError, FormatError
from khaljit.cache.keys import Key, key, parts_of
from khaljit.cache.memos import Memos
from khaljit.cache.store import Store


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode(), target=b"cpu")


def artifact(number: int) -> Artifact:
    about = {"kernel": f"k{number}", "signature": "f32[:]", "target": "cpu:x86-64-v3"}
    return Artifact(b"p" * number, {"n": number}, ("llvmlite", "0.50"), text="ir", about=about)


pytestmark = pytest.mark.usefixtures("no_cache_settings")


@pytest.fixture
def store(folder: Path) -> Store:
    store = Store.open(folder)
    for number in range(1, 6):
        store.put(numbered(number), artifact(number))
    return store


def by_kernel(catalog: Catalog) -> dict[str, Entry]:
    return {entry.about["kernel"]: entry for entry in catalog.entries()}


def test_entries_are_listed_with_what_their_headers_say(store: Store) -> None:
    found = by_kernel(Catalog(store))
    assert sorted(found) == ["k1", "k2", "k3", "k4", "k5"]
    entry = found["k3"]
    assert entry.key == numbered(3)
    assert parts_of(entry.key.material) == {"number": b"3", "target": b"cpu"}
    assert entry.about["signature"] == "f32[:]"
    assert entry.tool == ("llvmlite", "0.50")
    assert not entry.pinned
    assert entry.size > 100
    assert abs(entry.used - time.time()) < 1000
    assert Catalog(store).artifact(entry) == artifact(3)


def test_entries_are_found_by_the_first_digits_of_their_keys(store: Store) -> None:
    catalog = Catalog(store)
    assert [entry.key for entry in catalog.find(numbered(2)[:9])] == [numbered(2)]
    assert len(catalog.find("")) == 5
    assert catalog.find("nothing") == []


def test_a_store_in_memory_lists_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_CACHE", "0")
    catalog = Catalog(Store.open())
    assert list(catalog.entries()) == list(catalog.check()) == []
    assert catalog.prune() == 0


def test_a_deleted_entry_is_gone_from_disk_memory_and_index(store: Store, folder: Path) -> None:
    catalog = Catalog(store)
    catalog.remove(by_kernel(catalog)["k3"])
    assert sorted(by_kernel(catalog)) == ["k1", "k2", "k4", "k5"]
    assert store.get(numbered(3), none) is None
    store.put(numbered(3), artifact(3))
    assert Store.open(folder).get(numbered(3), none) == artifact(3)


def test_hits_of_processes_that_have_ended_are_counted(store: Store, folder: Path) -> None:
    script = """
import sys
from khaljit.cache.keys import Key
from khaljit.cache.memos import Memos
from khaljit.cache.store import Store
store = Store.open(sys.argv[1])
for _ in range(3):  # from memory after the first time, which counts once
    assert store.get(Key.of(bytes.fromhex(sys.argv[2])), lambda name: None)
"""
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", script, str(folder), numbered(2).material.hex()], check=True
        )
    hits = {name: entry.hits for name, entry in by_kernel(Catalog(store)).items()}
    assert hits == {"k1": 0, "k2": 2, "k3": 0, "k4": 0, "k5": 0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_counts_only_its_own_hits(store: Store, folder: Path) -> None:
    script = """
import os, sys
from khaljit.cache.keys import Key
from khaljit.cache.memos import Memos
from khaljit.cache.store import Store
store = Store.open(sys.argv[1])
keys = [Key.of(bytes.fromhex(text)) for text in sys.argv[2:]]
assert store.get(keys[0], lambda name: None)
child = os.fork()
if child == 0:
    assert store.get(keys[1], lambda name: None)
    sys.exit()
os.waitpid(child, 0)
child = os.fork()
if child == 0:
    sys.exit()  # it has used nothing
os.waitpid(child, 0)
"""
    keys = [numbered(number).material.hex() for number in (1, 2)]
    subprocess.run([sys.executable, "-c", script, str(folder), *keys], check=True)
    hits = {name: entry.hits for name, entry in by_kernel(Catalog(store)).items()}
    assert (hits["k1"], hits["k2"]) == (1, 1)


def test_the_journal_of_hits_is_bounded_and_believes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uses, "LONG", 500)
    monkeypatch.setattr(uses, "MOST", 10)
    (tmp_path / "uses").write_bytes(b"\xff\xfe junk\nx\ny -1\nz 1.5\n")
    for turn in range(100):
        journal = uses.Uses(str(tmp_path))
        journal.count("often")
        journal.count(f"seldom{turn}")
        journal.flush()
        journal.flush()
    assert uses.totals(str(tmp_path))["often"] == 100
    assert os.stat(tmp_path / "uses").st_size < 1000
    uses.Uses(str(tmp_path / "missing")).flush()


def test_an_entry_is_carried_to_another_store(store: Store, tmp_path: Path) -> None:
    catalog = Catalog(store)
    data = [catalog.data(entry) for entry in catalog.entries()]
    other = Store.open(tmp_path / "other")
    assert not any(Catalog(other).has(one) for one in data)
    for one in data:
        Catalog(other).insert(one)
    assert all(Catalog(other).has(one) for one in data)
    fresh = Store.open(tmp_path / "other")
    for number in range(1, 6):  # whatever tool is here
        assert fresh.get(numbered(number), lambda name: "9.9") == artifact(number).told(
            shipped=True
        )
    assert all(entry.pinned for entry in Catalog(other).entries())


def test_an_entry_that_is_not_pinned_is_refused_as_any_other(store: Store, tmp_path: Path) -> None:
    catalog = Catalog(store)
    data = catalog.data(by_kernel(catalog)["k1"])
    other = Store.open(tmp_path / "other")
    assert Catalog(other).insert(data, pin=False) == numbered(1)
    fresh = Store.open(tmp_path / "other")
    found = fresh.look(numbered(1), lambda name: "9.9")
    assert (found.outcome, found.artifact) == ("tool", None)
    assert found.detail == "llvmlite 0.50 made it, and llvmlite 9.9 is here"
    assert fresh.get(numbered(1), none) == artifact(1)


def test_what_is_damaged_on_the_way_is_not_put(store: Store, tmp_path: Path) -> None:
    catalog = Catalog(store)
    data = catalog.data(by_kernel(catalog)["k2"])
    other = Catalog(Store.open(tmp_path / "other"))
    for wrong in (b"", data[:-1], data + b"\0", data[:50] + b"\x55" + data[51:]):
        with pytest.raises(CorruptError):
            other.insert(wrong)
    with pytest.raises(FormatError, match=f"format {FORMAT + 1}"):
        other.insert(data[:8] + bytes([FORMAT + 1]) + data[9:])
    assert list(other.entries()) == []


def test_checking_finds_what_is_damaged_and_moves_it_away(store: Store, folder: Path) -> None:
    catalog = Catalog(store)
    entries = by_kernel(catalog)
    root = folder / str(FORMAT)
    for name, change in (("k1", -1), ("k2", -3)):  # the payload's last bytes, or the text's
        path = root / entries[name].name
        data = bytearray(path.read_bytes())
        data[change] ^= 1
        path.write_bytes(data)
    (root / entries["k3"].name).rename(root / entries["k3"].name[:3] / ("0" * 30 + ".0.0"))
    results = list(catalog.check())
    assert sorted(one.about["kernel"] for one in results if isinstance(one, Entry)) == ["k4", "k5"]
    damage = {one.name: one.reason for one in results if isinstance(one, Damage)}
    assert set(damage) == {entries["k1"].name, entries["k2"].name}
    assert set(damage.values()) == {"the checksum is wrong"}
    assert [type(one) for one in catalog.check()] == [Entry, Entry]


def test_pruning_takes_what_nobody_needs(store: Store, folder: Path) -> None:
    root = folder / str(FORMAT)
    catalog = Catalog(store)
    old = root / by_kernel(catalog)["k1"].name
    os.utime(old, (1000, 1000))
    (folder / "1" / "ab").mkdir(parents=True)
    (folder / "1" / "ab" / "entry").write_bytes(b"of another khaljit" * 1000)
    (root / "quarantine").mkdir()
    (root / "quarantine" / "bad").write_bytes(b"bad")
    assert catalog.prune() > 10_000
    assert not (folder / "1").exists()
    assert not (root / "quarantine").exists()
    assert len(by_kernel(catalog)) == 5
    assert catalog.prune(lambda entry: entry.used < time.time() - 3600) > 100
    assert sorted(by_kernel(catalog)) == ["k2", "k3", "k4", "k5"]


def test_listing_goes_on_while_others_delete(store: Store) -> None:
    catalog = Catalog(store)
    listing = catalog.entries()
    first = next(listing)
    Store.open(store.directory).clear()
    assert list(listing) == []
    assert first.about
    with pytest.raises(FileNotFoundError):
        catalog.data(first)


# -- memos -----------------------------------------------------------------------------------------


def opened(store: Store) -> Memos:
    assert store.memos is not None
    return store.memos


def count(memos: Memos) -> int:
    return len([*memos.files.all()])


def test_memos_are_no_entries(store: Store) -> None:
    memos = opened(store)
    memos.put(numbered(1), b"memo")
    assert memos.get(numbered(1)) == opened(Store.open(store.directory)).get(numbered(1)) == b"memo"
    assert memos.get(numbered(2)) is None
    assert store.get(numbered(1), none) == artifact(1)
    info = store.info()
    assert (info.entries, info.memos, info.hits, info.misses) == (5, 1, 1, 0)
    assert 4 < info.memo_bytes < 500
    assert len(by_kernel(Catalog(store))) == 5


def test_memos_are_checked_pruned_and_cleared_with_the_entries(store: Store) -> None:
    memos, catalog = opened(store), Catalog(store)
    for number in range(4):
        memos.put(numbered(number), b"memo" * number)
    names = {number: memos.files.candidates(numbered(number))[0] for number in range(4)}
    root = Path(memos.files.root)
    (root / names[0]).write_bytes(b"damaged")
    assert [one.name for one in catalog.check() if isinstance(one, Damage)] == [names[0]]
    assert count(memos) == 3
    assert (root / "quarantine").exists()
    os.utime(root / names[1], (1000, 1000))
    catalog.prune(lambda entry: entry.used < time.time() - 3600)
    assert not (root / "quarantine").exists()
    assert [memos.get(numbered(number)) for number in range(4)] == [
        None,
        None,
        b"memo" * 2,
        b"memo" * 3,
    ]
    assert len(by_kernel(catalog)) == 5
    store.clear()
    assert count(memos) == 0


def together(count: int) -> list[Key]:
    """Keys whose memos lie in one folder."""
    found: list[Key] = []
    number = 0
    while len(found) < count:
        number += 1
        if numbered(number).startswith("a5"):
            found.append(numbered(number))
    return found


SHARES = memos_module.PART * memos_module.FOLDERS


def test_memos_have_bounds_of_their_own(folder: Path) -> None:
    """Those used last stay."""
    keys = together(8)
    few = opened(Store.open(folder, entries=3 * SHARES))
    for age, one in enumerate(keys):
        few.put(one, b"memo")
        (name,) = few.files.candidates(one)
        os.utime(os.path.join(few.files.root, name), (age, time.time() - 9 + age))
    assert [few.get(one) is not None for one in keys] == [False] * 5 + [True] * 3
    small = opened(Store.open(folder, limit=1500 * SHARES))
    for one in keys:
        small.put(one, b"m" * 600)
    assert count(small) == 2
    opened(Store.open(folder, limit=1)).put(keys[0], b"large" * 1000)
    assert count(small) == 1, "one in any case"
    small.put(keys[1], b"m")
    assert count(small) == 1, "the newest"
    assert small.get(keys[1]) == b"m"
    small.put(keys[2], b"m")
    assert count(small) == 2
    Catalog(Store.open(folder, entries=1)).prune()
    assert count(small) == 1


@pytest.mark.parametrize("bounds", [{"limit": 0}, {"entries": 0}])
def test_no_memo_is_kept_where_nothing_is_to_be(folder: Path, bounds: dict[str, int]) -> None:
    memos = opened(Store.open(folder, **bounds))
    memos.put(numbered(1), b"memo")
    assert count(memos) == 0


def test_a_memo_that_was_put_twice_is_there_once(folder: Path) -> None:
    memos = opened(Store.open(folder))
    memos.put(numbered(1), b"memo")
    memos.put(numbered(1), b"memo")
    assert memos.get(numbered(1)) == b"memo"
    assert count(memos) == 1


def test_the_folders_of_memos_are_the_users_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        store = Store.open(folder)
        opened(store).put(numbered(1), b"memo")
        store.put(numbered(1), artifact(1))  # warns where others can write
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o022, path
