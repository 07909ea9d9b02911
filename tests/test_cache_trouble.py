"""Trouble with the cache costs time, one warning, and nothing else."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from khaljit.cache import files as files_module
from khaljit.cache import index as index_module
from khaljit.cache import place
from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.errors import CacheStoreError, CacheWarning
from khaljit.cache.files import Files, is_entry
from khaljit.cache.index import EntryDisk
from khaljit.cache.keys import Key, key
from khaljit.cache.store import Store

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no modes and owners")


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


def artifact(number: int = 0, size: int = 1000) -> Artifact:
    return Artifact(random.Random(number).randbytes(size), {"number": number}, None)


def entries(directory: Path) -> list[Path]:
    found = directory.glob(f"{FORMAT}/??/*")
    return [path for path in found if is_entry(f"{path.parent.name}/{path.name}")]


pytestmark = pytest.mark.usefixtures("no_cache_settings")


def goes_on_in_memory(store: Store) -> None:
    """The store works, and says nothing more."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(3):
            store.put(numbered(number), artifact(number))
            assert store.get(numbered(number), none) == artifact(number)


# -- where it is -------------------------------------------------------------------------------


def test_the_environment_says_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_DIR", str(folder))
    Store.open().put(numbered(1), artifact(1))
    assert len(entries(folder)) == 1
    assert Store.open().info().directory == str(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="the places of other systems are elsewhere")
def test_the_place_is_the_users_own_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert place.directory() == tmp_path / ".cache" / "khaljit"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert place.directory() == tmp_path / ".cache" / "khaljit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert place.directory() == tmp_path / "xdg" / "khaljit"
    monkeypatch.setenv("KHALJIT_CACHE_DIR", "~/mine")
    assert place.directory() == tmp_path / "mine"


@pytest.mark.parametrize("off", ["0", "off", "No", " false "])
def test_the_cache_can_be_switched_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE", off)
    store = Store.open(folder)
    goes_on_in_memory(store)
    assert not folder.exists()
    assert store.info().directory is None


@pytest.mark.parametrize(
    ("setting", "size"),
    [("", 1 << 30), ("1000", 1000), ("512M", 512 << 20), ("2g", 2 << 30), ("3 GiB", 3 << 30)],
)
def test_the_environment_says_how_large(
    monkeypatch: pytest.MonkeyPatch, setting: str, size: int
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_LIMIT", setting)
    assert place.limit() == size


@pytest.mark.parametrize("setting", ["much", "-1", "1.5G", "G", "1X", "1GG"])
def test_a_size_that_is_none_warns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_LIMIT", setting)
    with pytest.warns(CacheWarning, match="KHALJIT_CACHE_LIMIT"):
        store = Store.open(folder)
    goes_on_in_memory(store)


# -- directories -------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(folder: Path, mode: int) -> None:
    Store.open(folder).put(numbered(1), artifact(99))
    folder.chmod(mode)
    with pytest.warns(CacheWarning, match=r"other users can write.*\n  mend: chmod go-w "):
        store = Store.open(folder)
    assert store.get(numbered(1), none) is None
    goes_on_in_memory(store)


@posix
def test_a_directory_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # root may write anywhere, so its directories are as good as one's own
        assert Store.open(folder).get(numbered(1), none) == artifact(1)
        os.chown(folder, 4711, -1)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        store = Store.open(folder)
    assert store.get(numbered(1), none) is None


def test_a_place_that_cannot_be_made_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(CacheWarning, match="set KHALJIT_CACHE_DIR") as caught:
        store = Store.open(tmp_path / "file" / "cache")
    assert len(caught) == 1
    goes_on_in_memory(store)


def test_trouble_is_an_error_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax-ml/jax#12594."""
    monkeypatch.setenv("KHALJIT_CACHE_STRICT", "1")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheStoreError, match="mend: set KHALJIT_CACHE_DIR"):
        Store.open(tmp_path / "file" / "cache")
    store = Store.open(tmp_path / "cache")
    monkeypatch.setattr(Files, "publish", failing(OSError(28, "No space left on device")))
    with pytest.raises(CacheStoreError, match="No space left on device"):
        store.put(numbered(1), artifact(1))


def failing(error: Exception) -> Callable[..., object]:
    def fail(*args: object, **named: object) -> object:
        raise error

    return fail


READ_ONLY = """
import os, sys, warnings
import khaljit.cache.flight, khaljit.cache.index  # while the interpreter's own files can be read
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
os.setgroups([]); os.setgid(4711); os.setuid(4711)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    store = Store.open(sys.argv[1])
    assert store.get(key(number=b"1"), lambda name: None).plan == {"number": 1}
    assert caught == []
    for number in range(5):
        store.put(key(number=b"new%d" % number), Artifact(b"new", {}, None))
        assert store.get(key(number=b"new%d" % number), lambda name: None).payload == b"new"
        with store.building(key(number=b"other%d" % number), lambda name: None) as building:
            assert building.artifact is None
print([str(warning.message) for warning in caught])
"""


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="becomes another user")
def test_a_cache_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    """Such as one of root's, baked into an image."""
    parents = [tmp_path, *tmp_path.parents[:3]]  # as deep as pytest-xdist puts it
    modes = [parent.stat().st_mode for parent in parents]
    folder = tmp_path / "cache"
    Store.open(folder).put(numbered(1), artifact(1))
    try:
        for path in (*parents, folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode & 0o7777 | (0o055 if path.is_dir() else 0o044))
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for parent, mode in zip(parents, modes, strict=True):
            parent.chmod(mode & 0o7777)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be written to") == 1


def test_a_full_disk_warns_once_and_leaves_nothing_half_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NixOS/nixpkgs#453992."""
    store = Store.open(folder)
    store.put(numbered(50), artifact(50))
    real_open = open

    class Full:
        """A file on a disk that has room for ten bytes more."""

        def __init__(self, path: str) -> None:
            self.file = real_open(path, "xb", buffering=0)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            return self.file.write(data[:10])

    def open_full(path: str, mode: str, buffering: int, **_: object) -> object:
        return Full(path) if mode == "xb" else real_open(path, mode, buffering)

    monkeypatch.setattr(files_module, "open", open_full, raising=False)
    with pytest.warns(CacheWarning, match="cannot be written to") as caught:
        store.put(numbered(1), artifact(1))
    assert len(caught) == 1
    goes_on_in_memory(store)
    monkeypatch.undo()
    assert len(entries(folder)) == 1
    assert [path for path in folder.rglob("*") if path.name.startswith("new-")] == []
    assert Store.open(folder).get(numbered(50), none) == artifact(50)


# -- entries -----------------------------------------------------------------------------------


def damage(path: Path, how: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[rng.randrange(len(data)) :]
    elif how == "empty":
        data.clear()
    else:
        data = bytearray(rng.randbytes(len(data)))
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "noise"])
def test_a_damaged_entry_is_a_miss_is_moved_away_and_is_rebuilt(folder: Path, how: str) -> None:
    rng = random.Random(how)
    for number in range(5):
        Store.open(folder).put(numbered(1), artifact(number))
        (path,) = entries(folder)
        damage(path, how, rng)
        store = Store.open(folder)
        assert store.obtain(numbered(1), none, lambda: artifact(7)) == artifact(7)
        assert store.info().reasons == {"corrupt": 1}
        assert len(entries(folder)) == 1
        assert Store.open(folder).get(numbered(1), none) == artifact(7)
    assert len(list((folder / str(FORMAT) / "quarantine").iterdir())) == 5


def test_an_entry_under_another_keys_name_is_a_miss(folder: Path) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    (path,) = entries(folder)
    other = numbered(2)
    wrong = folder / str(FORMAT) / other[:2] / (other[2:] + path.name[30:])
    wrong.parent.mkdir(exist_ok=True)
    path.rename(wrong)
    store = Store.open(folder)
    assert store.get(other, none) is None
    assert store.info().reasons == {"corrupt": 1}


def test_the_quarantine_does_not_grow_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "QUARANTINED", 3)
    for number in range(6):
        Store.open(folder).put(numbered(number), artifact())
        (path,) = entries(folder)
        damage(path, "cut", random.Random(1))
        assert Store.open(folder).get(numbered(number), none) is None
        assert entries(folder) == []
    assert len(list((folder / str(FORMAT) / "quarantine").iterdir())) == 3


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root reads everything")
def test_an_entry_that_cannot_be_read_is_a_miss(folder: Path) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    entries(folder)[0].chmod(0)
    store = Store.open(folder)
    assert store.get(numbered(1), none) is None
    assert store.info().reasons == {"unreadable": 1}


def test_a_directory_that_cannot_be_listed_is_a_miss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(folder)
    monkeypatch.setattr(os, "listdir", failing(OSError(5, "Input/output error")))
    assert store.get(numbered(1), none) is None
    assert store.info().reasons == {"unreadable": 1}


def test_junk_among_the_entries_is_tolerated(folder: Path) -> None:
    """jax-ml/jax#39880."""
    store = Store.open(folder)
    store.put(numbered(1), artifact(1))
    made = numbered(1)
    for name in ("README", made[2:], made[2:] + ".x", "new-00", ".nfs0001"):
        (folder / str(FORMAT) / made[:2] / name).write_bytes(b"junk")
    (folder / str(FORMAT) / made[:2] / "folder").mkdir()
    (folder / str(FORMAT) / "zz").write_bytes(b"junk")
    fresh = Store.open(folder)
    assert fresh.get(made, none) == artifact(1)
    fresh.put(numbered(2), artifact(2))
    assert fresh.info().entries == 2
    fresh.clear()
    assert fresh.info().entries == 0


@posix
def test_an_entry_that_others_could_have_written_is_not_read(folder: Path) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    (path,) = entries(folder)
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        store = Store.open(folder)
        assert store.get(numbered(1), none) is None
        assert store.info().reasons == {"untrusted": 1}
    path.chmod(0o644)
    assert Store.open(folder).get(numbered(1), none) == artifact(1)


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="gives a file away")
def test_an_entry_of_another_user_is_a_miss(folder: Path) -> None:
    """NVIDIA/accelerated-computing-hub#263."""
    Store.open(folder).put(numbered(1), artifact(1))
    os.chown(entries(folder)[0], 4711, -1)
    store = Store.open(folder)
    assert store.get(numbered(1), none) is None
    assert store.info().reasons == {"untrusted": 1}
    goes_on_in_memory(store)


@posix
@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_entries_are_private_whatever_the_users_mask_is(folder: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        Store.open(folder).put(numbered(1), artifact(1))
    finally:
        os.umask(before)
    (path,) = entries(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    for one in (folder, folder / str(FORMAT), path.parent):
        assert one.stat().st_mode & 0o077 == 0
    assert not (folder / str(FORMAT) / "cache.db").stat().st_mode & 0o022
    assert Store.open(folder).get(numbered(1), none) == artifact(1)


def test_an_entry_of_a_newer_khaljit_is_a_miss_and_left_alone(folder: Path) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    (path,) = entries(folder)
    data = bytearray(path.read_bytes())
    data[8] = FORMAT + 1
    path.write_bytes(data)
    (folder / str(FORMAT + 1)).mkdir()
    (folder / str(FORMAT + 1) / "whatever").write_bytes(b"it keeps")
    store = Store.open(folder)
    found = store.look(numbered(1), none)
    assert (found.artifact, found.outcome) == (None, "format")
    assert f"format {FORMAT + 1}, and this khaljit reads {FORMAT}" in found.detail
    assert path.exists()
    store.put(numbered(1), artifact(2))
    assert Store.open(folder).get(numbered(1), none) == artifact(2)
    assert (folder / str(FORMAT + 1) / "whatever").exists()


def test_a_refusal_that_passes_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cupy/cupy#9463, cupy/cupy#10271: on Windows others hold a file for a moment."""
    monkeypatch.setattr(files_module, "RETRIES", 5)
    monkeypatch.setattr(files_module, "PAUSE", 0.0)
    real_open, real_rename = open, os.rename
    refusals = {"open": 0, "rename": 0}

    def refuse(which: str) -> None:
        refusals[which] += 1
        if refusals[which] % 4:
            raise PermissionError(13, "used by another process")

    def open_(*args: object, **named: object) -> object:
        refuse("open") if "rb" in args else None
        return real_open(*args, **named)  # type: ignore[call-overload]

    def rename(one: str, other: str) -> None:
        refuse("rename")
        real_rename(one, other)

    monkeypatch.setattr(files_module, "open", open_, raising=False)
    monkeypatch.setattr(os, "rename", rename)
    Store.open(folder).put(numbered(1), artifact(1))
    assert Store.open(folder).get(numbered(1), none) == artifact(1)
    assert refusals == {"open": 4, "rename": 4}
    monkeypatch.setattr(files_module, "RETRIES", 0)
    store = Store.open(folder)
    assert store.get(numbered(1), none) is None
    assert store.info().reasons == {"unreadable": 1}


def test_files_that_vanish_while_in_use_are_misses(folder: Path) -> None:
    store = Store.open(folder)
    for number in range(3):
        store.put(numbered(number), artifact(number))
    shutil.rmtree(folder)
    fresh = Store.open(folder)
    assert fresh.get(numbered(0), none) is None
    assert fresh.info().reasons == {"absent": 1}
    with warnings.catch_warnings():  # where the index was is said at most once
        warnings.simplefilter("ignore")
        store.put(numbered(7), artifact(7))
    store.put(numbered(8), artifact(8))
    again = Store.open(folder)
    assert again.get(numbered(8), none) == artifact(8)


@pytest.mark.skipif(sys.platform == "win32", reason="homes are elsewhere")
def test_without_a_home_the_run_goes_on_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """numba/numba#5566, numba/numba#4908, LMCache/LMCache#4597, cupy/cupy#2296."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(path: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    monkeypatch.setattr(Path, "home", classmethod(nobody))
    with pytest.warns(
        CacheWarning, match=r"no place .*home directory.*\n  mend: set KHALJIT_CACHE"
    ):
        goes_on_in_memory(Store.open())
    monkeypatch.setenv("KHALJIT_CACHE_DIR", "~nobody/cache")
    with pytest.warns(CacheWarning, match="no place for the cache"):
        goes_on_in_memory(Store.open())


def test_a_working_directory_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from khaljit.cache.store import Store\n"
        "os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "print(Store.open().info().directory)"
    )
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "gone")],
        env={**os.environ, "KHALJIT_CACHE_DIR": "relative"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout == "None\n", done.stderr
    assert "there is no place for the cache" in done.stderr


def test_names_are_short_and_long_folders_are_written_as_windows_takes_them() -> None:
    """NVIDIA/warp CHANGELOG 1.16.0."""
    long = "C:\\" + "deep\\" * 60 + "cache"
    assert place.for_system(long, "win32") == "\\\\?\\" + long
    assert place.for_system("\\\\server\\share\\x", "win32") == "\\\\?\\UNC\\server\\share\\x"
    assert place.for_system("\\\\?\\" + long, "win32") == "\\\\?\\" + long
    assert place.for_system("/home/x", "linux") == "/home/x"
    name = f"{numbered(1)[:2]}/{numbered(1)[2:]}.00000000.000000000000"
    assert is_entry(name)
    assert len(name) < 60


def test_the_text_for_people_can_be_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """triton-lang/triton#11778: one file per entry, and less in it."""
    full = Artifact(b"code", {}, None, text="; LLVM\n" * 1000)
    Store.open(folder).put(numbered(1), full)
    monkeypatch.setenv("KHALJIT_CACHE_TEXT", "0")
    store = Store.open(folder)
    store.put(numbered(2), full)
    assert store.get(numbered(2), none) is full, "in this process it is there"
    fresh = Store.open(folder)
    one, other = (fresh.get(numbered(number), none) for number in (1, 2))
    assert one is not None
    assert other is not None
    assert (one.text, other.text) == (full.text, "")
    assert other.payload == b"code"


def test_the_number_of_entries_has_a_bound_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """triton-lang/triton#11778, DiamondLightSource/httomo#243: quotas count files as well."""
    monkeypatch.setenv("KHALJIT_CACHE_ENTRIES", "20")
    store = Store.open(folder)
    for number in range(60):
        store.put(numbered(number), artifact(number))
    assert len(entries(folder)) == 20
    assert (store.info().entries, store.info().entries_limit) == (20, 20)
    kept = {number for number in range(60) if Store.open(folder).get(numbered(number), none)}
    assert kept == set(range(40, 60))


@pytest.mark.parametrize("setting", ["many", "-5", "1e3", "1.5"])
def test_a_number_of_entries_that_is_none_warns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("KHALJIT_CACHE_ENTRIES", setting)
    with pytest.warns(CacheWarning, match="KHALJIT_CACHE_ENTRIES"):
        goes_on_in_memory(Store.open(folder))


def test_a_clock_that_jumps_hangs_nothing_and_loses_little(folder: Path) -> None:
    """What has a time that is to come, or of long ago, is what goes; not what is written now."""
    store = Store.open(folder, entries=10)
    for number in range(40):
        for path in entries(folder):
            then = time.time() + (1e7 if number % 2 else -1e7)
            os.utime(path, (then, then))
        store.put(numbered(number), artifact(number))
        assert Store.open(folder).get(numbered(number), none) == artifact(number)
    assert len(entries(folder)) <= 10


def test_what_is_of_use_after_the_clock_was_set_back_stays(folder: Path) -> None:
    filler = Store.open(folder, entries=10)
    for number in range(10):
        filler.put(numbered(number), artifact(number))
    for path in entries(folder):
        os.utime(path, (time.time() + 1e7, time.time() + 1e7))
    assert Store.open(folder).get(numbered(3), none) == artifact(3)
    for number in range(10, 18):
        filler.put(numbered(number), artifact(number))
    assert Store.open(folder).get(numbered(3), none) == artifact(3)


# -- the index ---------------------------------------------------------------------------------


@posix
def test_a_database_that_others_can_write_to_is_refused(folder: Path) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    database = folder / str(FORMAT) / "cache.db"
    database.chmod(0o666)
    store = Store.open(folder)
    assert store.get(numbered(1), none) == artifact(1), "entries prove themselves"
    with pytest.warns(CacheWarning, match=r"other users can write to .*cache\.db") as caught:
        store.put(numbered(2), artifact(2))
    assert "\n  mend: chmod go-w " in str(caught[0].message)
    goes_on_in_memory(store)
    assert len(entries(folder)) == 1


@posix
def test_a_folder_of_entries_that_others_can_write_to_is_refused(folder: Path) -> None:
    Store.open(folder).put(numbered(1), artifact(1))
    (folder / str(FORMAT)).chmod(0o777)
    with pytest.warns(CacheWarning, match="other users can write to"):
        Store.open(folder).put(numbered(2), artifact(2))


@pytest.mark.parametrize("how", ["noise", "empty", "cut", "another database", "a directory"])
def test_a_damaged_index_costs_no_entry(folder: Path, how: str) -> None:
    filler = Store.open(folder)
    for number in range(5):
        filler.put(numbered(number), artifact(number))
    path = folder / str(FORMAT) / "cache.db"
    if how == "another database":
        path.unlink()
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE Settings (none, of, ours)")
            database.execute("INSERT INTO Settings VALUES (1, 2, 3)")
            database.commit()
    elif how == "a directory":
        path.unlink()
        path.mkdir()
    else:
        damage(path, how, random.Random(3))
    store = Store.open(folder)
    for number in range(5):
        assert store.get(numbered(number), none) == artifact(number)
    if how == "empty":
        store.put(numbered(10), artifact(10))
    else:
        with pytest.warns(CacheWarning, match="damaged|cannot be written") as caught:
            store.put(numbered(10), artifact(10))
        assert len(caught) == 1
    goes_on_in_memory(store)
    if how != "a directory":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Store.open(folder).put(numbered(11), artifact(11))
        assert Store.open(folder).get(numbered(10), none) == artifact(10)
        assert Store.open(folder).get(numbered(11), none) == artifact(11)


def test_an_index_that_is_damaged_while_in_use_is_begun_again(folder: Path) -> None:
    store = Store.open(folder)
    for number in range(50):
        store.put(numbered(number), artifact(number))
    path = folder / str(FORMAT) / "cache.db"
    data = bytearray(path.read_bytes())
    data[4096:] = random.Random(1).randbytes(len(data) - 4096)
    path.write_bytes(data)
    with pytest.warns(CacheWarning, match="damaged and begun again"):
        store.put(numbered(60), artifact(60))
    assert Store.open(folder).get(numbered(60), none) == artifact(60)
    assert Store.open(folder).get(numbered(20), none) == artifact(20)


def test_a_locked_index_is_not_waited_for_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "PATIENCE", 0.2)
    Store.open(folder).put(numbered(1), artifact(1))
    with closing(
        sqlite3.connect(folder / str(FORMAT) / "cache.db", isolation_level=None)
    ) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        store = Store.open(folder)
        assert store.get(numbered(1), none) == artifact(1)
        begun = time.monotonic()
        with pytest.warns(CacheWarning, match="locked"):
            store.put(numbered(2), artifact(2))
        goes_on_in_memory(store)
        assert time.monotonic() - begun < 20
        assert Store.open(folder).get(numbered(2), none) == artifact(2), "its file is kept"
        holder.execute("ROLLBACK")
    Store.open(folder).put(numbered(3), artifact(3))
    assert Store.open(folder).get(numbered(3), none) == artifact(3)


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_pickle_in_the_index_is_never_loaded(folder: Path, tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    pickled = pickle.dumps(Bomb(fired))
    pickle.loads(pickled).close()
    assert fired.exists(), "the bomb works"
    fired.unlink()
    made = numbered(1)
    filler = Store.open(folder, limit=100_000)
    filler.put(made, artifact(1))
    planted = folder / str(FORMAT) / "zz.val"
    planted.write_bytes(pickled)
    with closing(sqlite3.connect(folder / str(FORMAT) / "cache.db")) as database:
        insert = (
            "INSERT INTO Cache (key, raw, store_time, access_time, size, mode, filename, value) "
            "VALUES (?, ?, 0, 0, 0, 4, ?, ?)"
        )
        database.execute(insert, (pickled, 0, None, pickled))
        database.execute(insert, (made + ".00000000", 1, None, pickled))
        database.execute(insert, (numbered(2) + ".00000000", 1, "zz.val", None))
        database.execute(insert, (made[:2] + "junk", 1, "../../../etc/passwd", None))
        database.execute("UPDATE Cache SET mode = 4, value = ?", (pickled,))
        database.execute("INSERT OR REPLACE INTO Settings VALUES ('disk_pickle_protocol', 5)")
        database.commit()
    store = Store.open(folder, limit=100_000)
    assert store.get(made, none) == artifact(1)
    assert store.get(numbered(2), none) is None
    for number in range(10, 30):
        store.put(numbered(number), artifact(number, size=20_000))  # evicts the planted rows too
    assert planted.exists(), "only entries' files are deleted"
    store.clear()
    assert not fired.exists()


def test_the_disk_refuses_all_that_is_not_text_and_bytes(tmp_path: Path) -> None:
    disk = EntryDisk(str(tmp_path))
    pickled = pickle.dumps(1)
    for refused in (
        lambda: disk.put(b"key"),
        lambda: disk.put((1, 2)),
        lambda: disk.get(pickled, 0),
        lambda: disk.get("key", 0),
        lambda: disk.store({"a": 1}, False, "key"),
        lambda: disk.store("text", False, "key"),
        lambda: disk.fetch(4, None, pickled, False),
        lambda: disk.fetch(4, "ab/file", None, False),
        lambda: disk.fetch(2, "../outside", None, False),
    ):
        with pytest.raises(TypeError):
            refused()


# -- what dead writers leave -------------------------------------------------------------------


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before now counts as left behind."""
    monkeypatch.setattr(files_module, "ABANDONED", -1.0)
    monkeypatch.setattr(index_module, "ABANDONED", -1.0)


def count_rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / str(FORMAT) / "cache.db")) as database:
        (count,) = database.execute("SELECT COUNT(*) FROM Cache").fetchone()
    return int(count)


@pytest.mark.usefixtures("long_ago")
def test_entries_without_a_row_are_taken_in_and_kept_within_the_bound(folder: Path) -> None:
    filler = Store.open(folder)
    for number in range(10):
        filler.put(numbered(number), artifact(number))
    with closing(sqlite3.connect(folder / str(FORMAT) / "cache.db")) as database:
        database.execute("DELETE FROM Cache")
        database.commit()
    store = Store.open(folder)
    for turn in range(200):
        store.put(numbered(100), artifact(turn))
        if count_rows(folder) == 11:
            break
    assert count_rows(folder) == 11
    for number in range(10):
        assert Store.open(folder).get(numbered(number), none) == artifact(number)


@pytest.mark.usefixtures("long_ago")
def test_unfinished_files_and_replaced_ones_are_swept(folder: Path) -> None:
    store = Store.open(folder)
    store.put(numbered(1), artifact(1))
    (path,) = entries(folder)
    (path.parent / "new-0123456789ab").write_bytes(b"half")
    double = path.with_name(path.name[:-12] + "0" * 12)
    double.write_bytes(path.read_bytes())
    for turn in range(100):
        store.put(numbered(1), artifact(turn))
    assert len(list(path.parent.iterdir())) == 1
    assert Store.open(folder).get(numbered(1), none) == artifact(99)


KILLED = """
import random, sys
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.cache.store import Store
store = Store.open(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    payload = random.Random(number).randbytes(200_000)
    store.put(key(number=str(number).encode()), Artifact(payload, {"number": number}, None))
    number = (number + 1) % 20
"""


def test_killed_writers_leave_whole_entries_or_none(folder: Path) -> None:
    """CHIP-SPV/chipStar#1081."""
    rng = random.Random(9)
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.15))
            writer.kill()
    store = Store.open(folder)
    found = 0
    for number in range(20):
        entry = store.get(numbered(number), none)
        if entry is not None:
            assert entry == artifact(number, size=200_000)
            found += 1
    assert found
    assert "corrupt" not in store.info().reasons
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(numbered(100), artifact(100))
