"""The cache key of a kernel's code: everything that the code depends on.

Everything goes in by itself: what a trace and its options mean by the canonical text and the fields
of `Options`, a target by all that it is made of, khaljit's generators by their sources. What is
left out stands in `LEFT_OUT`, with its reason. The tool that assembled the code is no part of the
key: it stands in the entry, which is refused where another version is installed and used where none
is, so that a cache serves machines that cannot compile.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import xxhash

from khaljit.cache import place
from khaljit.cache.errors import CacheStoreError
from khaljit.cache.keys import Key, described, key
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Trace
from khaljit.tracer.text import canonical

if TYPE_CHECKING:
    from khaljit.backends.base import Target

__all__ = ["LEFT_OUT", "generators", "key_of"]

LEFT_OUT: Final = {
    "Trace.name": "it is for messages, which are made of the trace at hand",
    "Trace.sites": "code reports numbers, which are looked up in the trace at hand",
    "ArrayParam.name": "it is for messages",
    "ScalarParam.name": "it is for messages",
    "Note.site": "notes are numbered in their order before the key is made",
    "Value.at": "it is for messages while compiling, and what fails is not stored",
}
"""What no code depends on, with the reason."""

GENERATORS: Final = ("tracer", "codegen", "backends")
HERE: Final = os.path.dirname(os.path.abspath(__file__))


def key_of(trace: Trace, target: Target, salt: str | None = None) -> Key:
    """The cache key of a canonical trace for a target."""
    return key(
        trace=canonical(trace),
        options=_described(trace.options),
        generators=generators(),
        salt="\n".join((salt or "", os.environ.get("KHALJIT_CACHE_SALT", ""))).encode(),
        **{f"target.{name}": _described(part) for name, part in target.key_parts().items()},
    )


@lru_cache(maxsize=256)
def _described(value: object) -> bytes:
    return described(value, {DType: repr}).encode()


@lru_cache(maxsize=1)
def generators() -> bytes:
    """What tells this khaljit's code generators from others': a digest of their sources.

    Equal sources give equal digests wherever they lie. Reading them all takes milliseconds, so the
    digest is kept in the cache beside their sizes and times of change.
    """
    files = sorted(_sources())
    facts = xxhash.xxh3_128_hexdigest(repr(files).encode()).encode()
    memo = _memo()
    if memo is not None:
        with suppress(OSError), open(memo, "rb", buffering=0) as file:
            known = file.read().split()
            if len(known) == 2 and known[0] == facts:
                return known[1]
    digest = xxhash.xxh3_128()
    for name, *_ in files:
        with open(os.path.join(HERE, name), "rb") as source:
            text = source.read().replace(b"\r\n", b"\n")
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    found = digest.hexdigest().encode()
    if memo is not None:
        _keep(memo, facts + b" " + found)
    return found


def _sources() -> list[tuple[str, int, int, int, int]]:
    """The generators' files by their names within khaljit, with what changes when they do."""
    found = []
    folders = list(GENERATORS)
    for folder in folders:  # which grows
        with os.scandir(os.path.join(HERE, folder)) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py"):
                    one = entry.stat()
                    facts = (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino)
                    found.append((f"{folder}/{name}", *facts))
                elif "." not in name and name != "__pycache__" and entry.is_dir():
                    folders.append(f"{folder}/{name}")
    return found


def _memo() -> str | None:
    """Where the digest of the sources in this place is kept; None where nothing is."""
    if place.is_disabled():
        return None
    try:
        folder = place.for_system(str(place.directory() / "generators"))
        with suppress(FileNotFoundError):
            place.check(folder)
    except (CacheStoreError, OSError):
        return None
    return os.path.join(folder, xxhash.xxh3_128_hexdigest(os.fsencode(HERE)))


def _keep(memo: str, text: bytes) -> None:
    with suppress(OSError, CacheStoreError):
        place.prepare(place.directory())
        os.makedirs(os.path.dirname(memo), mode=0o700, exist_ok=True)
        unfinished = f"{memo}.{os.urandom(4).hex()}"
        with open(unfinished, "xb") as file:
            file.write(text)
        os.replace(unfinished, memo)
