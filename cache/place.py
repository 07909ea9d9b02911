"""Where the cache is, and whether that place can be trusted.

Machine code is read from there and run, so nobody but its owner (or root) may be able to write to
it. Systems without owners and modes (Windows) keep user folders apart themselves.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

from khaljit.cache.errors import CacheStoreError

__all__ = [
    "DEFAULT_LIMIT",
    "check",
    "directory",
    "entries",
    "for_system",
    "is_disabled",
    "is_off",
    "is_on",
    "is_private",
    "is_strict",
    "keeps_text",
    "limit",
    "prepare",
]

DEFAULT_LIMIT: Final = 1 << 30
DEFAULT_ENTRIES: Final = 100_000
OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
CHOOSE: Final = "set KHALJIT_CACHE_DIR to a directory of yours, or KHALJIT_CACHE=0"
OFF: Final = frozenset({"0", "off", "no", "false"})
ON: Final = frozenset({"1", "on", "yes", "true"})
SIZE: Final = r"([0-9]+) ?([KMGT]?)(?:I?B)?"
UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def is_on(name: str) -> bool:
    """Whether a variable says yes."""
    return os.environ.get(name, "").strip().lower() in ON


def is_off(name: str) -> bool:
    """Whether a variable says no."""
    return os.environ.get(name, "").strip().lower() in OFF


def is_disabled() -> bool:
    """Whether ``KHALJIT_CACHE=0`` says to keep nothing on disk, nor elsewhere."""
    return is_off("KHALJIT_CACHE")


def is_strict() -> bool:
    """Whether ``KHALJIT_CACHE_STRICT=1`` says that trouble with the cache is an error."""
    return is_on("KHALJIT_CACHE_STRICT")


def limit() -> int:
    """Bytes that the cache may take: ``KHALJIT_CACHE_LIMIT`` ("512M", "2G"), else 1 GiB."""
    setting = os.environ.get("KHALJIT_CACHE_LIMIT", "").strip().upper()
    if not setting:
        return DEFAULT_LIMIT
    size = re.fullmatch(SIZE, setting, re.ASCII)
    if size is None:
        raise CacheStoreError(
            f"KHALJIT_CACHE_LIMIT is {setting!r}", 'set it to a size as "512M" or "2G"'
        )
    return int(size[1]) << UNITS[size[2]]


def entries() -> int:
    """Entries that the cache may hold: ``KHALJIT_CACHE_ENTRIES``, else 100,000."""
    setting = os.environ.get("KHALJIT_CACHE_ENTRIES", "").strip()
    if not setting:
        return DEFAULT_ENTRIES
    if not setting.isdecimal():
        raise CacheStoreError(
            f"KHALJIT_CACHE_ENTRIES is {setting!r}", "set it to a number of entries"
        )
    return int(setting)


def keeps_text() -> bool:
    """Whether entries hold the text for people; ``KHALJIT_CACHE_TEXT=0`` says no."""
    return not is_off("KHALJIT_CACHE_TEXT")


def directory() -> Path:
    """``KHALJIT_CACHE_DIR``, else the folder for caches of this user on this system.

    Raises:
        CacheStoreError: the user has no home, or the working directory is gone.
    """
    setting = os.environ.get("KHALJIT_CACHE_DIR", "").strip()
    try:
        if os.path.isabs(setting):
            return Path(setting)
        if setting:
            return Path(setting).expanduser().absolute()
        return _user_caches() / "khaljit"
    except (RuntimeError, OSError) as error:
        raise CacheStoreError(f"there is no place for the cache ({error})", CHOOSE) from error


def _user_caches() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home) if os.path.isabs(home) else Path.home() / ".cache"


def for_system(folder: str, system: str = sys.platform) -> str:
    r"""A folder's name as its system takes it, however deep it lies.

    Windows takes 260 letters, and more behind ``\\?\``.
    """
    if system != "win32" or folder.startswith("\\\\?\\"):
        return folder
    if folder.startswith("\\\\"):
        return "\\\\?\\UNC" + folder[1:]
    return "\\\\?\\" + folder


def prepare(folder: Path) -> None:
    """Make the folder, private to this user, or check that the one which is there can be trusted.

    Raises:
        CacheStoreError: it cannot be made, or others can write to it.
    """
    try:
        try:
            check(folder)  # it is there but the first time
        except FileNotFoundError:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            check(folder)
    except OSError as error:
        raise CacheStoreError(
            f"the cache directory {folder} cannot be used ({error})", CHOOSE
        ) from error


def check(path: str | os.PathLike[str]) -> None:
    """Refuse a file or folder that others can write to; raises CacheStoreError, or OSError."""
    status = os.stat(path)
    if is_private(status):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise CacheStoreError(f"{path}, of the cache, belongs to another user", CHOOSE)
    raise CacheStoreError(f"other users can write to {path}, of the cache", f"chmod go-w {path}")


def is_private(status: os.stat_result) -> bool:
    """Whether only this user, or root, can write to a file or folder."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & OTHERS
