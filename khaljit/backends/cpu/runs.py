"""Parts of a graph's list on the CPU, each of which is run so many times.

None refers to the replay, which has them: graphs go at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, final

from khaljit import compiler
from khaljit.backends.cpu.loader import Image, load
from khaljit.backends.cpu.target import Cpu
from khaljit.backends.host import view
from khaljit.backends.reporting import OwnReport
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import described, key
from khaljit.codegen.llvm import replay
from khaljit.graphs.nodes import ConditionalNode

__all__ = ["ConditionalRun", "NativeRun", "Run", "Runner", "runner_of"]

LONGEST: Final = 1 << 28  # simple operations of a native call, which nothing can interrupt
_LIST: Final = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_CALL: Final = ctypes.CFUNCTYPE(ctypes.c_int64, *_LIST)
_TURNS: Final = ctypes.CFUNCTYPE(ctypes.c_int64, *_LIST, ctypes.c_void_p, ctypes.c_int64)
Run = Callable[[int], None]


@final
class Runner:
    """The native functions, mapped."""

    def __init__(self, code: bytes) -> None:
        self._image: Final[Image] = load(code)
        self.call: Final = _CALL(self._image.address(replay.NAME))
        self.turns: Final = _TURNS(self._image.address(replay.TURNS))
        self.chains: Final = self._image.address(replay.CHAINS)


@lru_cache(maxsize=1)
def runner_of(target: Cpu) -> Runner | None:
    """The functions for a processor, from the cache or made now; None where nothing makes it."""
    text = replay.text(target.cpu)
    name = key(runner=text.encode(), target=described(target.key_parts()).encode())
    tool = ("llvmlite", target.tool_version("llvmlite") or "")

    def build() -> Artifact:
        from khaljit.codegen.llvm.assemble import assemble

        return Artifact(assemble(text, target.cpu), {}, tool, text=text)

    store = compiler.store()
    if not tool[1] and store.get(name, target.tool_version) is None:
        return None
    return Runner(store.obtain(name, target.tool_version, build).payload)


@final
class NativeRun:
    """Small launches, one after the other, in this thread.

    Args:
        rows: where those of the launches stand.
        reports: of launches that may fail, by their rows.
        work: of all launches, in simple operations.
    """

    def __init__(
        self,
        runner: Runner,
        rows: int,
        count: int,
        arena: int,
        reports: Mapping[int, OwnReport],
        work: int,
    ) -> None:
        self._runner: Final = runner
        self._list: Final = (rows, count)
        self._arena: Final = arena
        self._reports: Final = reports
        self._most: Final = max(1, LONGEST // max(work, 1))

    def __call__(self, repeat: int) -> None:
        """Run them so many times."""
        call, arena, most = self._runner.call, self._arena, self._most
        while repeat > 0:
            turns = min(repeat, most)
            self._tell(call(*self._list, turns, arena))
            repeat -= turns

    def while_set(self, flag: int, nbytes: int, limit: int) -> None:
        """Run them as long as a flag is not zero."""
        call, arena, most = self._runner.turns, self._arena, self._most
        while limit > 0:
            turns = min(limit, most)
            stopped = call(*self._list, turns, arena, flag, nbytes)
            if stopped < 0:
                return
            self._tell(stopped)
            limit -= turns

    def _tell(self, stopped: int) -> None:
        """Raise what the row says that ended a call."""
        failed = self._reports.get(stopped)
        if failed is not None:
            failed.tell()


@final
class ConditionalRun:
    """A loop or a branch."""

    def __init__(self, node: ConditionalNode, body: Sequence[Run]) -> None:
        self._flag: Final = view(node.flag).reshape(())
        self._address: Final = node.flag.address
        self._limit: Final = node.limit
        self._body: Final = body

    def __call__(self, repeat: int) -> None:
        """Run it so many times; a loop that is one native run, by one call for many turns."""
        flag, body = self._flag, self._body
        inner = body[0] if len(body) == 1 else None
        for _ in range(repeat):
            if isinstance(inner, NativeRun):
                inner.while_set(self._address, flag.nbytes, self._limit)
                continue
            left = self._limit
            while left and flag:
                for run in body:
                    run(1)
                left -= 1
