"""Rewriting that expands operations into others, some of them into control flow."""

from __future__ import annotations

from typing import Final

from khaljit.codegen.caps import Caps
from khaljit.tracer.ir import Region, Trace
from khaljit.tracer.rewriting import Rewriter, Walk

__all__ = ["Expanding"]


class Expanding(Rewriter):
    """Expands operations, some into control flow.

    Control flow stands in a region, and so do the values it gives: when that region closes, what
    was built in it is forgotten, and a use elsewhere builds it again.
    """

    def __init__(self, trace: Trace, caps: Caps) -> None:
        super().__init__(trace)
        self.caps: Final = caps
        self.branches = 0  # expansions into control flow so far

    def region(self, region: Region) -> Walk[Region]:
        branches, known = self.branches, len(self.values)
        closed = yield from super().region(region)
        if self.branches > branches:
            self.forget(known)
        return closed
