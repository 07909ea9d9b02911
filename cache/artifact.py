"""Artifacts: what a compilation made, and the bytes of its entry.

One entry holds all that must agree, so no two files can disagree:

    magic    8 bytes
    format   u32
    checksum 16 bytes, of everything else in the entry
    lengths  u32 header, u32 material, u64 payload, u32 text
    header   canonical JSON: {"plan": ..., "shipped": ..., "tool": ...}
    material the key's material, compressed
    payload  what a driver or the loader takes, as it is
    text     for people (the IR, the assembly), compressed; may be empty

Numbers are little-endian. Equal artifacts give equal bytes. Reading runs no code and believes
nothing: whatever is not as it was written is `CorruptError`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final, final

import xxhash

from khaljit.cache.errors import CorruptError
from khaljit.cache.keys import Key

__all__ = ["FORMAT", "Artifact", "pack", "read", "unpack"]

FORMAT: Final = 1
MAGIC: Final = b"\x89khaljit"
PREFIX: Final = struct.Struct("<8sI16sIIQI")
NO_CHECKSUM: Final = bytes(16)
FAST: Final = 1  # zlib's level: entries are small, and writing is on the way to the first launch


@final
class Artifact:
    """What a compilation made.

    Args:
        payload: the bytes that are loaded.
        plan: what a launch needs to know besides, as JSON.
        tool: name and version of what made the payload; None where nothing but khaljit did.
        text: for people to read.
        shipped: whether it was imported, to be used as it is whatever tool is installed here.
    """

    __slots__ = ("_text", "payload", "plan", "shipped", "tool")

    def __init__(
        self,
        payload: bytes,
        plan: Mapping[str, Any],
        tool: tuple[str, str] | None,
        *,
        text: str = "",
        shipped: bool = False,
    ) -> None:
        self.payload: Final = payload
        self.plan: Final = plan
        self.tool: Final = tool
        self.shipped: Final = shipped
        self._text: str | bytes = text  # bytes: compressed, and few will ask

    @property
    def text(self) -> str:
        """The text for people; empty where none was kept."""
        if isinstance(self._text, bytes):
            self._text = zlib.decompress(self._text).decode()
        return self._text

    @property
    def size(self) -> int:
        """Roughly the bytes of memory that it takes."""
        return len(self.payload) + len(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Artifact):
            return NotImplemented
        return self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # `plan` is a mapping

    def __repr__(self) -> str:
        return f"Artifact({len(self.payload)} bytes, {self.plan!r}, {self.tool!r})"

    def _fields(self) -> tuple[object, ...]:
        return self.payload, self.plan, self.tool, self.shipped, self.text


def pack(key: Key, artifact: Artifact) -> bytes:
    """The bytes of an entry."""
    header = _canonical({"plan": artifact.plan, "shipped": artifact.shipped, "tool": artifact.tool})
    material = zlib.compress(key.material, FAST)
    text = artifact.text.encode()
    text = zlib.compress(text, FAST) if text else b""
    sections = (header, material, artifact.payload, text)
    body = b"".join(sections)
    lengths = tuple(map(len, sections))
    unsigned = PREFIX.pack(MAGIC, FORMAT, NO_CHECKSUM, *lengths)
    return PREFIX.pack(MAGIC, FORMAT, _checksum(unsigned, body), *lengths) + body


def unpack(data: bytes, key: Key) -> Artifact:
    """The artifact in an entry that was found under a key.

    Raises:
        CorruptError: it is damaged, or not that key's.
    """
    material, artifact = read(data)
    if material != key.material:
        raise CorruptError("the entry is another key's")
    return artifact


def read(data: bytes) -> tuple[bytes, Artifact]:
    """The key material and the artifact in an entry; raises `CorruptError`."""
    try:
        magic, number, checksum, *lengths = PREFIX.unpack_from(data)
    except struct.error:
        raise CorruptError("the entry is cut short") from None
    if magic != MAGIC or number != FORMAT:
        raise CorruptError("the entry has another format")
    body = memoryview(data)[PREFIX.size :]
    if sum(lengths) != len(body):
        raise CorruptError("the entry has the wrong length")
    unsigned = PREFIX.pack(magic, number, NO_CHECKSUM, *lengths)
    if _checksum(unsigned, body) != checksum:
        raise CorruptError("the checksum is wrong")
    sections = []
    at = 0
    for length in lengths:
        sections.append(bytes(body[at : at + length]))
        at += length
    header, material, payload, text = sections
    try:
        return zlib.decompress(material), _artifact(json.loads(header), payload, text)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CorruptError(f"the entry's header is wrong: {error}") from error


def _artifact(header: dict[str, Any], payload: bytes, text: bytes) -> Artifact:
    tool = header["tool"]
    if tool is not None:
        name, version = tool
        tool = (str(name), str(version))
    artifact = Artifact(payload, dict(header["plan"]), tool, shipped=bool(header["shipped"]))
    artifact._text = text if text else ""
    return artifact


def _canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def _checksum(prefix: bytes, body: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_128(prefix)
    digest.update(body)
    return digest.digest()
