"""Which file systems are a network's: there SQLite's locks cannot be relied on.

Asked by those who write. What cannot be found out counts as a network, where everything works too
and the bound is only kept less exactly.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

__all__ = ["is_network"]

# fmt: off
LOCAL: Final = frozenset(
    {
        "apfs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs",
        "fuseblk", "hfs", "hfsplus", "iso9660", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3",
        "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "udf", "ufs", "vfat",
        "xfs", "zfs", "fuse.fuse-overlayfs", "aufs", "ecryptfs",
    }
)
# fmt: on
"""As the kernels of Linux name them; any other may be a network's."""

ESCAPED: Final = re.compile(r"\\([0-7]{3})")
LOCAL_FLAG: Final = 0x1000  # MNT_LOCAL of macOS
FLAGS_AT: Final = 64  # where f_flags stands in its struct statfs
REMOTE: Final = 4  # DRIVE_REMOTE of Windows


def is_network(folder: str) -> bool:
    """Whether a folder that is there lies on a network, as far as can be told."""
    try:
        path = os.path.realpath(folder)
        if sys.platform == "win32":
            return _on_windows(path)
        if sys.platform == "darwin":
            return _on_mac(path)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return kind_of(path, file.read()) not in LOCAL
    except (OSError, AttributeError):
        return True


def kind_of(path: str, mounts: str) -> str:
    """The type of the file system that a path lies on, by the text of a ``mountinfo``."""
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        words = left.split(" ")
        if len(words) < 5:
            continue
        point = ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two on one point, the later hides the earlier
            best, kind = point, right.split(" ", 1)[0]
    return kind


def _on_mac(path: str) -> bool:
    import ctypes  # not run here

    buffer = ctypes.create_string_buffer(4096)
    statfs = ctypes.CDLL(None, use_errno=True)["statfs$INODE64" if _is_intel() else "statfs"]
    if statfs(os.fsencode(path), buffer) != 0:
        return True
    flags = int.from_bytes(buffer.raw[FLAGS_AT : FLAGS_AT + 4], sys.byteorder)
    return not flags & LOCAL_FLAG


def _is_intel() -> bool:
    return os.uname().machine == "x86_64"


def _on_windows(path: str) -> bool:
    import ctypes  # not run here

    drive = os.path.splitdrive(path.removeprefix("\\\\?\\"))[0]
    if drive.startswith("\\\\") or drive.upper().startswith("UNC"):
        return True
    return bool(ctypes.WinDLL("kernel32").GetDriveTypeW(drive + "\\") == REMOTE)  # type: ignore[attr-defined,unused-ignore]  # Windows only
