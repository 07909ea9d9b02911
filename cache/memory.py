"""The artifacts of this process: what was put or read is not read again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import Key

__all__ = ["Memory"]


@final
class Memory:
    """Artifacts by the material of their keys, those used last; not for two threads at once."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._artifacts: Final[OrderedDict[bytes, Artifact]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Artifact | None:
        artifact = self._artifacts.get(key.material)
        if artifact is not None:
            self._artifacts.move_to_end(key.material)
        return artifact

    def put(self, key: Key, artifact: Artifact) -> None:
        self.drop(key)
        self._artifacts[key.material] = artifact
        self._bytes += artifact.size
        while self._bytes > self._limit and len(self._artifacts) > 1:
            _, oldest = self._artifacts.popitem(last=False)
            self._bytes -= oldest.size

    def drop(self, key: Key) -> None:
        before = self._artifacts.pop(key.material, None)
        if before is not None:
            self._bytes -= before.size

    def clear(self) -> None:
        self._artifacts.clear()
        self._bytes = 0
