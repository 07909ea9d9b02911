"""Single flight: of those who need the same entry at the same time, one builds it.

A lease is a file with its holder's host, process and start time in it. Others wait for a bounded
time and then build for themselves, so a lost or stuck holder costs time and nothing else; every
doubt is settled by building twice. Where leases cannot be written, everybody builds.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from contextlib import suppress
from typing import Final, final

__all__ = ["Lease"]

STALE: Final = 120.0
"""Seconds after which a lease whose holder cannot be asked for is nobody's."""


def _started(process: int) -> str:
    """When a process started, in its system's words; empty where that is not known.

    Raises:
        ProcessLookupError: there is none.
    """
    if sys.platform == "win32":
        return ""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except FileNotFoundError:
        os.kill(process, 0)  # asks only; raises where there is none
        return ""


def _own() -> bytes:
    return f"{platform.node()} {os.getpid()} {_started(os.getpid())}".encode()


@final
class Lease:
    """The right to build one entry."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._claim = b""

    def take(self) -> bool:
        """Try to get the lease; True also where leases cannot be had at all."""
        claim = _own()
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        except FileNotFoundError:
            return self.take() if self._make_folder() else True
        except OSError:
            return True
        try:
            os.write(handle, claim)
            self._claim = claim
        except OSError:
            with suppress(OSError):
                os.remove(self._path)
        finally:
            os.close(handle)
        return True

    def break_if_dead(self) -> None:
        """Remove a lease whose holder is gone."""
        with suppress(OSError):
            with open(self._path, "rb") as file:
                claim = file.read()
                age = time.time() - os.fstat(file.fileno()).st_mtime
            if not _is_dead(claim, age):
                return
            away = f"{self._path}.{os.urandom(4).hex()}"  # one of several wins the rename
            os.rename(self._path, away)
            os.remove(away)

    def drop(self) -> None:
        """Give the lease back, if it is still this process's."""
        if self._claim and self._claim == _own():
            with suppress(OSError):
                with open(self._path, "rb") as file:
                    mine = file.read() == self._claim
                if mine:
                    os.remove(self._path)
            _sweep(os.path.dirname(self._path))
        self._claim = b""

    def _make_folder(self) -> bool:
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        except OSError:
            return False
        return True


def _sweep(folder: str) -> None:
    """Delete the leases of those who died long ago and whose entries nobody asked for again."""
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with suppress(OSError):
                if time.time() - os.stat(path).st_mtime > STALE:
                    os.remove(path)


def _is_dead(claim: bytes, age: float) -> bool:
    if age > STALE:
        return True
    words = claim.decode(errors="replace").split(" ")
    if len(words) != 3 or not words[1].isdecimal():
        return age > 1.0  # its holder died between making the file and signing it
    host, process, started = words
    if host != platform.node():
        return False
    try:
        return _started(int(process)) != started
    except ProcessLookupError:
        return True
    except OSError:
        return False
