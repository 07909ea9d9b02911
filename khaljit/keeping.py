"""Rewritten functions, kept in the cache: a process that finds its kernels there parses nothing.

They are Python's bytecode, so they are for the very Python that made them.
"""

from __future__ import annotations

import sys
from importlib.util import MAGIC_NUMBER
from typing import Final, final

import xxhash

from khaljit.cache.keys import Key, key
from khaljit.compiler import store
from khaljit.generators import RUNNING, generators
from khaljit.tracer.identity import Identity

__all__ = ["REWRITTEN", "Rewritten"]

# What else the compiler makes code by: `-O`, and whether columns are kept
_PYTHON: Final = repr(
    (sys.version, MAGIC_NUMBER, sys.flags.optimize, compile("_", "", "eval").co_linetable)
).encode()


@final
class Rewritten:
    """What `khaljit.tracer` rewrites, among the memos of this process's store."""

    __slots__ = ()

    def get(self, identity: Identity) -> bytes | None:
        memos = store().memos
        return None if memos is None else memos.get(_key(identity))

    def put(self, identity: Identity, data: bytes) -> None:
        memos = store().memos
        if memos is not None and not RUNNING.have_changed("tracer/syntax"):
            memos.put(_key(identity), data)


def _key(identity: Identity) -> Key:
    return key(
        code=identity.code,
        file=xxhash.xxh3_128_digest(identity.text),
        generators=generators(),
        python=_PYTHON,
    )


REWRITTEN: Final = Rewritten()
