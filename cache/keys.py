"""Keys: the name of an entry is the hash of everything that went into it.

Laws:

* Each input goes in under its name and length, so no two layouts of inputs can collide.
* The order in which inputs are given means nothing.
* A key carries its material, all of it: an entry is believed only where the material is equal too,
  so a collision of hashes costs a miss and never gives wrong code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, final

import xxhash

__all__ = ["SCHEMA", "Key", "described", "key", "parts_of"]

SCHEMA: Final = 2
"""Counts changes of what is hashed, or how."""

NOTHING: Final[Mapping[type, Callable[[Any], str]]] = {}


@final
class Key(str):
    """32 hexadecimal digits, with the material that they are the hash of."""

    __slots__ = ("__dict__",)

    material: bytes

    @classmethod
    def of(cls, material: bytes) -> Key:
        """The key of material that `key` once made."""
        made = cls(xxhash.xxh3_128_hexdigest(material))
        made.material = material
        return made


def key(**parts: bytes) -> Key:
    """The key of named inputs."""
    pieces = [f"khaljit {SCHEMA}\n".encode()]
    for name, part in sorted(parts.items()):
        pieces += (f"{name} {len(part)}\n".encode(), part, b"\n")
    return Key.of(b"".join(pieces))


def described(value: object, spell: Mapping[type, Callable[[Any], str]] = NOTHING) -> str:
    """A configuration as text: all of it, and the same text in every process.

    Takes dataclasses with every field that they have, mappings, sets, sequences, enumerations and
    plain values.

    Args:
        spell: how to write values of other types.

    Raises:
        TypeError: something in it has no such text.

    >>> described({"b": 1.5, "a": frozenset({"y", "x"})})
    "{'a': {'x', 'y'}, 'b': 0x1.8000000000000p+0}"
    """

    def text(value: object) -> str:
        kind = type(value)
        if kind in spell:
            return spell[kind](value)
        if value is None or kind in (bool, int, str, bytes):
            return repr(value)
        if isinstance(value, float):
            return value.hex()
        if isinstance(value, Enum):
            return f"{kind.__name__}.{value.name}"
        if isinstance(value, tuple | list):
            return f"({', '.join(map(text, value))})"
        if isinstance(value, frozenset | set):
            return f"{{{', '.join(sorted(map(text, value)))}}}"
        if is_dataclass(value):
            parts = (f"{one.name}={text(getattr(value, one.name))}" for one in fields(value))
            return f"{kind.__name__}({', '.join(parts)})"
        if isinstance(value, Mapping):
            items = sorted(f"{text(name)}: {text(item)}" for name, item in value.items())
            return f"{{{', '.join(items)}}}"
        raise TypeError(f"a {kind.__name__} has no text that is the same everywhere")

    return text(value)


def parts_of(material: bytes) -> dict[str, bytes]:
    """The named inputs again; raises ValueError where the material is none of `key`'s."""
    head = f"khaljit {SCHEMA}\n".encode()
    if not material.startswith(head):
        raise ValueError("key material of another schema")
    parts: dict[str, bytes] = {}
    at = len(head)
    while at < len(material):
        end = material.index(b"\n", at)
        name, length = material[at:end].decode().rsplit(" ", 1)
        at = end + 1 + int(length)
        parts[name] = material[end + 1 : at]
        if material[at : at + 1] != b"\n":
            raise ValueError("key material is cut short")
        at += 1
    return parts
