"""Looking an entry up among the files: what is there, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from khaljit.cache.artifact import Artifact, unpack
from khaljit.cache.errors import CorruptError, FormatError
from khaljit.cache.files import Files, UntrustedError
from khaljit.cache.keys import Key

__all__ = ["SOURCES", "Found", "Tools", "refusal", "search"]

SOURCES: Final[frozenset[str]] = frozenset({"memory", "disk", "remote"})
"""Where a hit may come from."""

Tools = Callable[[str], str | None]
"""The version of a tool that is installed here, given its name; None where none is."""


@final
class Found:
    """What a look brought.

    Attributes:
        artifact: None after a miss.
        outcome: where it was (``memory``, ``disk``, ``remote``), or that it was ``built``; after a
            miss the reason: ``absent``, ``tool`` (another version of a tool made it), ``corrupt``,
            ``format``, ``unreadable``, ``untrusted``.
        detail: the reason in words, where there is more to say.
        name: of the file, if it was on disk.
    """

    __slots__ = ("artifact", "detail", "name", "outcome")

    def __init__(
        self, artifact: Artifact | None, outcome: str, detail: str = "", name: str = ""
    ) -> None:
        self.artifact: Final = artifact
        self.outcome: Final = outcome
        self.detail: Final = detail
        self.name: Final = name


def search(files: Files, key: Key, tools: Tools) -> Found:
    """What the files have of a key. Bad ones are moved away."""
    best = Found(None, "absent")
    try:
        for name in files.candidates(key):
            found = _read(files, name, key, tools)
            if found.artifact is not None:
                return found
            if found.outcome != "absent":
                best = found
    except OSError as error:
        return Found(None, "unreadable", str(error))
    return best


def _read(files: Files, name: str, key: Key, tools: Tools) -> Found:
    try:
        artifact = unpack(files.read(name), key)
    except FileNotFoundError:  # evicted while we looked
        return Found(None, "absent")
    except UntrustedError as error:
        return Found(None, "untrusted", str(error))
    except OSError as error:
        return Found(None, "unreadable", str(error))
    except FormatError as error:
        return Found(None, "format", str(error))
    except CorruptError as error:
        files.quarantine(name)
        return Found(None, "corrupt", str(error))
    reason = refusal(artifact, tools)
    return Found(None, "tool", reason) if reason else Found(artifact, "disk", name=name)


def refusal(artifact: Artifact, tools: Tools) -> str:
    """Why what a tool made may not be used where another version of it is installed; empty where
    it may."""
    if artifact.tool is None or artifact.shipped:
        return ""
    name, version = artifact.tool
    here = tools(name)
    if here in (None, version):
        return ""
    return f"{name} {version} made it, and {name} {here} is here"
