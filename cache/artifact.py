"""Artifacts: what a compilation made, and the bytes of its entry.

One entry holds all that must agree, so no two files can disagree:

    magic    8 bytes
    format   u32
    checksum 16 bytes, of everything else in the entry
    lengths  u32 header, u32 material, u64 payload, u32 text
    header   canonical JSON: {"about": ..., "plan": ..., "shipped": ..., "tool": ...}
    material the key's material, compressed
    payload  what a driver or the loader takes, as it is
    text     for people (the IR, the assembly), compressed; may be empty

Numbers are little-endian. Equal artifacts give equal bytes. Reading runs no code and believes
nothing: whatever is not as it was written is `CorruptError`, and an entry that another khaljit
wrote in another format is `FormatError`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import IO, Any, Final, final

import xxhash

from khaljit.cache.errors import CorruptError, FormatError
from khaljit.cache.jsontext import loads
from khaljit.cache.keys import Key

__all__ = ["FORMAT", "Artifact", "Head", "head", "pack", "read", "unpack"]

FORMAT: Final = 2
MAGIC: Final = b"\x89khaljit"
PREFIX: Final = struct.Struct("<8sI16sIIQI")
NO_CHECKSUM: Final = bytes(16)
MALFORMED: Final = (KeyError, TypeError, ValueError, zlib.error)
FAST: Final = 1  # zlib's level: entries are small, and writing is on the way to the first launch


@final
class Artifact:
    """What a compilation made.

    Args:
        payload: the bytes that are loaded.
        plan: what a launch needs to know besides, as JSON.
        tool: name and version of what made the payload; None where nothing but khaljit did.
        text: for people to read.
        about: what lists of entries say of it, as JSON: the kernel, its signature, the target.
        shipped: whether it was imported, to be used as it is whatever tool is installed here.
    """

    __slots__ = ("_text", "about", "payload", "plan", "shipped", "tool")

    def __init__(
        self,
        payload: bytes,
        plan: Mapping[str, Any],
        tool: tuple[str, str] | None,
        *,
        text: str = "",
        about: Mapping[str, Any] | None = None,
        shipped: bool = False,
    ) -> None:
        self.payload: Final = payload
        self.plan: Final = plan
        self.tool: Final = tool
        self.about: Final[Mapping[str, Any]] = about or {}
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

    def told(
        self, about: Mapping[str, Any] | None = None, *, shipped: bool | None = None
    ) -> Artifact:
        """The same with more said about it, or marked as imported or not."""
        told = Artifact(
            self.payload,
            self.plan,
            self.tool,
            about={**self.about, **(about or {})},
            shipped=self.shipped if shipped is None else shipped,
        )
        told._text = self._text
        return told

    def without_text(self) -> Artifact:
        """The same with nothing for people to read."""
        return Artifact(self.payload, self.plan, self.tool, about=self.about, shipped=self.shipped)

    def _fields(self) -> tuple[object, ...]:
        return self.payload, self.plan, self.tool, self.about, self.shipped, self.text


@final
class Head:
    """What stands at the beginning of an entry, for lists; not checked.

    Attributes:
        material: the key's.
        about: see `Artifact`.
    """

    __slots__ = ("about", "material", "shipped", "tool")

    def __init__(
        self,
        material: bytes,
        about: Mapping[str, Any],
        tool: tuple[str, str] | None,
        shipped: bool,
    ) -> None:
        self.material: Final = material
        self.about: Final = about
        self.tool: Final = tool
        self.shipped: Final = shipped


def pack(key: Key, artifact: Artifact) -> bytes:
    """The bytes of an entry."""
    header = _canonical(
        {
            "about": artifact.about,
            "plan": artifact.plan,
            "shipped": artifact.shipped,
            "tool": artifact.tool,
        }
    )
    material = zlib.compress(key.material, FAST)
    text = artifact._text  # one that was read is compressed already
    if isinstance(text, str):
        text = zlib.compress(text.encode(), FAST) if text else b""
    sections = (header, material, artifact.payload, text)
    body = b"".join(sections)
    lengths = tuple(map(len, sections))
    unsigned = PREFIX.pack(MAGIC, FORMAT, NO_CHECKSUM, *lengths)
    return PREFIX.pack(MAGIC, FORMAT, _checksum(unsigned, body), *lengths) + body


def unpack(data: bytes, key: Key) -> Artifact:
    """The artifact in an entry that was found under a key.

    Raises:
        CorruptError: it is damaged, or not that key's.
        FormatError: another khaljit wrote it.
    """
    material, artifact = read(data)
    if material != key.material:
        raise CorruptError("the entry is another key's")
    return artifact


def read(data: bytes) -> tuple[bytes, Artifact]:
    """The key material and the artifact in an entry; raises as `unpack` does."""
    checksum, lengths = _prefix(data)
    body = memoryview(data)[PREFIX.size :]
    if sum(lengths) != len(body):
        raise CorruptError("the entry has the wrong length")
    unsigned = PREFIX.pack(MAGIC, FORMAT, NO_CHECKSUM, *lengths)
    if _checksum(unsigned, body) != checksum:
        raise CorruptError("the checksum is wrong")
    header, material, payload, text = _cut(body, lengths)
    try:
        return zlib.decompress(material), _artifact(loads(header.decode()), payload, text)
    except MALFORMED as error:
        raise CorruptError(f"the entry's header is wrong: {error}") from error


def head(file: IO[bytes]) -> Head:
    """What an entry's file begins with: the rest is neither read nor checked; raises as `unpack`
    does."""
    _, lengths = _prefix(file.read(PREFIX.size))
    header, material = _cut(file.read(sum(lengths[:2])), lengths[:2])
    try:
        artifact = _artifact(loads(header.decode()), b"", b"")
        return Head(zlib.decompress(material), artifact.about, artifact.tool, artifact.shipped)
    except MALFORMED as error:
        raise CorruptError(f"the entry's header is wrong: {error}") from error


def _prefix(data: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The checksum and the lengths of the sections."""
    try:
        magic, number, checksum, *lengths = PREFIX.unpack_from(data)
    except struct.error:
        raise CorruptError("the entry is cut short") from None
    if magic != MAGIC:
        raise CorruptError("this is no entry")
    if number != FORMAT:
        raise FormatError(f"the entry has format {number}, and this khaljit reads {FORMAT}")
    return checksum, tuple(lengths)


def _cut(body: bytes | memoryview, lengths: Sequence[int]) -> list[bytes]:
    ends = list(accumulate(lengths, initial=0))
    return [bytes(body[start:end]) for start, end in pairwise(ends)]


def _artifact(header: dict[str, Any], payload: bytes, text: bytes) -> Artifact:
    tool = header["tool"]
    if tool is not None:
        name, version = tool
        tool = (str(name), str(version))
    artifact = Artifact(
        payload,
        dict(header["plan"]),
        tool,
        about=dict(header["about"]),
        shipped=bool(header["shipped"]),
    )
    artifact._text = text if text else ""
    return artifact


def _canonical(value: object) -> bytes:
    import json  # for writers only

    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def _checksum(prefix: bytes, body: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_128(prefix)
    digest.update(body)
    return digest.digest()
