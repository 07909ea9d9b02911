"""The cache key of a kernel's code: everything that the code depends on.

Everything goes in by itself: what a trace and its options mean by the canonical text and the fields
of `Options`, a target by all that it is made of, khaljit's generators by their sources
(`generators.py`). What is left out stands in `LEFT_OUT`, with its reason. The tool that assembled
the code is no part of the key: it stands in the entry, which is refused where another version is
installed and used where none is, so that a cache serves machines that cannot compile.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from khaljit.cache.keys import Key, described, key
from khaljit.generators import generators
from khaljit.tracer.dtypes import DType
from khaljit.tracer.ir import Trace
from khaljit.tracer.text import canonical

if TYPE_CHECKING:
    from khaljit.backends.base import Target

__all__ = ["LEFT_OUT", "key_of"]

LEFT_OUT: Final = {
    "Trace.name": "it is for messages, which are made of the trace at hand",
    "Trace.pool": "it is the pure values of the body, at hand for passes",
    "Trace.sites": "code reports numbers, which are looked up in the trace at hand",
    "ArrayParam.name": "it is for messages",
    "ScalarParam.name": "it is for messages",
    "Note.site": "notes are numbered in their order before the key is made",
    "Value.at": "it is for messages while compiling, and what fails is not stored",
}
"""What no code depends on, with the reason."""


def key_of(trace: Trace, target: Target, salt: str | None = None) -> Key:
    """The cache key of a trace for a target: as it was recorded, for how products and sums are then
    contracted is a matter of its options and of the generators."""
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
