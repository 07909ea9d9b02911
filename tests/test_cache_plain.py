"""Caches on network file systems: no database, the same behaviour."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from khaljit.cache import files as files_module
from khaljit.cache import filesystems, plain
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.catalog import Catalog
from khaljit.cache.errors import CacheWarning
from khaljit.cache.files import Files, is_entry
from khaljit.cache.filesystems import is_network, kind_of
from khaljit.cache.keys import Key, key
from khaljit.cache.store import Store


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


def artifact(number: int = 0, size: int = 1000) -> Artifact:
    return Artifact(random.Random(number).randbytes(size), {"number": number}, None)


def entries(folder: Path) -> list[Path]:
    found = folder.glob(f"{FORMAT}/??/*")
    return [path for path in found if is_entry(f"{path.parent.name}/{path.name}")]


@pytest.fixture
def folder(tmp_path: Path, no_cache_settings: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place that is taken for a network's."""
    monkeypatch.setattr(filesystems, "is_network", lambda folder: True)
    return tmp_path / "cache"


def test_no_database_is_made_on_a_network(folder: Path) -> None:
    """grantjenks/python-diskcache#164, GridTools/gt4py#1745, mitsuba-renderer/drjit#115."""
    store = Store.open(folder)
    for number in range(20):
        store.put(numbered(number), artifact(number))
    assert len(entries(folder)) == 20
    assert {path.name for path in (folder / str(FORMAT)).iterdir() if len(path.name) > 2} == set()
    for number in range(20):
        assert Store.open(folder).get(numbered(number), none) == artifact(number)


def test_putting_again_replaces_the_file_there_too(folder: Path) -> None:
    for number in range(5):
        Store.open(folder).put(numbered(1), artifact(number))
    assert len(entries(folder)) == 1
    assert Store.open(folder).get(numbered(1), none) == artifact(4)


def test_the_bounds_are_kept_by_looking_at_the_files(folder: Path) -> None:
    store = Store.open(folder, limit=400_000)
    for number in range(60):
        store.put(numbered(number), artifact(number, size=20_000))
    info = Store.open(folder).info()
    assert info.bytes <= 400_000 * (1 + 1 / plain.PART)
    assert info.entries >= 15
    few = Store.open(folder.with_name("few"), entries=10)
    for number in range(60):
        few.put(numbered(number), artifact(number))
    assert 8 <= few.info().entries <= 11


def test_what_was_not_used_for_the_longest_goes_first(folder: Path) -> None:
    store = Store.open(folder)
    for number in range(10):
        store.put(numbered(number), artifact(number))
    for path in entries(folder):
        os.utime(path, (1_000_000, 1_000_000))
    for number in (2, 5):
        assert Store.open(folder).get(numbered(number), none)
    Store.open(folder, entries=4).put(numbered(100), artifact(100))
    kept = {entry.key for entry in Catalog(Store.open(folder)).entries()}
    assert {numbered(2), numbered(5), numbered(100)} < kept
    assert len(kept) == 4


def test_times_that_are_to_come_hang_nothing_and_go_first(folder: Path) -> None:
    store = Store.open(folder, entries=5)
    for number in range(20):
        for path in entries(folder):
            os.utime(path, (time.time() + 1e6, time.time() + 1e6))
        store.put(numbered(number), artifact(number))
        assert Store.open(folder).get(numbered(number), none) == artifact(number)
    assert store.info().entries <= 6


def test_files_that_another_writer_replaced_are_swept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(folder)
    store.put(numbered(1), artifact(1))
    (path,) = entries(folder)
    double = path.with_name(path.name[:-12] + "0" * 12)
    double.write_bytes(path.read_bytes())
    os.utime(double, (1, 1))
    (path.parent / "new-0123456789ab").write_bytes(b"half")
    monkeypatch.setattr(files_module, "ABANDONED", -1.0)
    monkeypatch.setattr(plain, "ABANDONED", -1.0)
    Store.open(folder).put(numbered(2), artifact(2))
    assert len(entries(folder)) == 2
    assert Store.open(folder).get(numbered(1), none) == artifact(1)


def test_deleting_clearing_and_pruning_work_there(folder: Path) -> None:
    store = Store.open(folder)
    for number in range(4):
        store.put(numbered(number), artifact(number))
    catalog = Catalog(store)
    catalog.remove(catalog.find(numbered(1))[0])
    assert len(entries(folder)) == 3
    catalog.prune(lambda entry: True)
    assert entries(folder) == []
    store.put(numbered(9), artifact(9))
    store.clear()
    assert entries(folder) == []


def test_a_full_network_disk_warns_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> str:
        raise OSError(122, "Disk quota exceeded")

    store = Store.open(folder)
    monkeypatch.setattr(Files, "publish", full)
    with pytest.warns(CacheWarning, match="Disk quota exceeded") as caught:
        store.put(numbered(1), artifact(1))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(numbered(2), artifact(2))
    assert store.get(numbered(2), none) == artifact(2)


def test_a_python_without_sqlite_caches_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import sys
sys.modules["sqlite3"] = None
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
Store.open(sys.argv[1]).put(key(n=b"1"), Artifact(b"1", {}, None))
assert Store.open(sys.argv[1]).get(key(n=b"1"), lambda name: None)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "cache")], check=True, timeout=60)


def test_processes_on_a_network_agree(folder: Path) -> None:
    """deepseek-ai/DeepGEMM#301, deepseek-ai/DeepEP#683: losers of a race use their own result."""
    script = """
import random, sys
from khaljit.cache import filesystems
filesystems.is_network = lambda folder: True
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
rng = random.Random(int(sys.argv[2]))
for turn in range(40):
    number = rng.randrange(10)
    store = Store.open(sys.argv[1], limit=400_000)
    payload = random.Random(number).randbytes(50_000)
    found = store.obtain(
        key(number=b"%d" % number), lambda name: None, lambda: Artifact(payload, {}, None)
    )
    assert found.payload == payload
    assert "corrupt" not in store.info().reasons
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), str(seed)])
        for seed in range(3)
    ]
    for process in processes:
        assert process.wait(120) == 0


# -- which file systems those are --------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
30 22 0:30 / /home rw shared:1 master:2 - nfs4 server:/home rw,vers=4.2
31 30 8:1 /ada /home/ada/scratch rw - xfs /dev/sda1 rw
32 22 0:40 / /mnt/my\\040disk rw - cifs //server/share rw
33 22 0:41 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw
34 22 0:42 / /over rw - ext4 /dev/sdb rw
35 22 0:43 / /over rw - fuse.sshfs host: rw
short line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/tmp/cache", "ext4"),
        ("/home", "nfs4"),
        ("/home/ada/.cache/khaljit", "nfs4"),
        ("/home/ada/scratch/x", "xfs"),
        ("/home/ada/scratchy", "nfs4"),
        ("/homes/x", "ext4"),
        ("/mnt/my disk/x", "cifs"),
        ("/lustre/a", "lustre"),
        ("/over/x", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_the_one_mounted_last_above_it(path: str, kind: str) -> None:
    assert kind_of(path, MOUNTS) == kind


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs",
             "fuse.sshfs", "fuse.glusterfs", "virtiofs", "something new", ""],
)  # fmt: skip
def test_what_may_be_a_network_counts_as_one(kind: str) -> None:
    assert kind not in filesystems.LOCAL


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux mounts")
def test_this_machines_disks_are_no_network(tmp_path: Path) -> None:
    assert not is_network("/dev/shm")
    assert not is_network(str(tmp_path))
    assert is_network("/proc/self")


def test_what_cannot_be_found_out_counts_as_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "another")
    monkeypatch.setattr("builtins.open", lambda *args, **named: (_ for _ in ()).throw(OSError()))
    assert is_network("/")
