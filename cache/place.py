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

__all__ = ["DEFAULT_LIMIT", "directory", "is_disabled", "is_strict", "limit", "prepare"]

DEFAULT_LIMIT: Final = 1 << 30
OFF: Final = frozenset({"0", "off", "no", "false"})
ON: Final = frozenset({"1", "on", "yes", "true"})
SIZE: Final = re.compile(r"([0-9]+) ?([KMGT]?)(?:I?B)?", re.ASCII)
UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def is_disabled() -> bool:
    """Whether ``KHALJIT_CACHE=0`` says to keep nothing on disk."""
    return os.environ.get("KHALJIT_CACHE", "").strip().lower() in OFF


def is_strict() -> bool:
    """Whether ``KHALJIT_CACHE_STRICT=1`` says that trouble with the cache is an error."""
    return os.environ.get("KHALJIT_CACHE_STRICT", "").strip().lower() in ON


def limit() -> int:
    """Bytes that the cache may take: ``KHALJIT_CACHE_LIMIT`` ("512M", "2G"), else 1 GiB."""
    setting = os.environ.get("KHALJIT_CACHE_LIMIT", "").strip().upper()
    if not setting:
        return DEFAULT_LIMIT
    size = SIZE.fullmatch(setting)
    if size is None:
        raise CacheStoreError(
            f"KHALJIT_CACHE_LIMIT is {setting!r}", 'set it to a size as "512M" or "2G"'
        )
    return int(size[1]) << UNITS[size[2]]


def directory() -> Path:
    """``KHALJIT_CACHE_DIR``, else the folder for caches of this user on this system."""
    setting = os.environ.get("KHALJIT_CACHE_DIR", "").strip()
    if setting:
        return Path(setting).expanduser().absolute()
    return _user_caches() / "khaljit"


def _user_caches() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home) if os.path.isabs(home) else Path.home() / ".cache"


def prepare(folder: Path) -> None:
    """Make the folder, private to this user, or check that the one which is there can be trusted.

    Raises:
        CacheStoreError: it cannot be made, or others can write to it.
    """
    choose = "set KHALJIT_CACHE_DIR to a directory of yours, or KHALJIT_CACHE=0"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        raise CacheStoreError(
            f"the cache directory {folder} cannot be used ({error})", choose
        ) from error
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise CacheStoreError(f"the cache directory {folder} belongs to another user", choose)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheStoreError(
            f"other users can write to the cache directory {folder}", f"chmod 700 {folder}"
        )
