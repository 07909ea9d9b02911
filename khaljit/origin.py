"""Where a trace comes from: what is written of it in manifests and in the cache's lists."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final, final

from khaljit.entries import Signature
from khaljit.tracer.records import dataclass

__all__ = ["Origin"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """A kernel and the signature that it was recorded for. Its texts are made when they are asked
    for, as a launch that finds its code needs none.

    Attributes:
        kernel: a `khaljit.jit.Kernel`.
        options: those of ``@kj.jit`` that are not the usual ones.
    """

    kernel: Any
    signature: Signature
    options: Mapping[str, Any]

    @property
    def path(self) -> str | None:
        """Where other processes find the kernel; None where they cannot."""
        from khaljit import modules  # a launch that finds its code needs none

        return modules.path_of(self.kernel, type(self.kernel).is_same)

    @property
    def salt(self) -> str | None:
        """The kernel's own, for the key."""
        return self.options.get("salt")

    @property
    def text(self) -> str:
        """The signature as text."""
        from khaljit.signature_text import (
            write_signature,  # a launch that finds its code needs none
        )

        return write_signature(self.signature)

    def about(self, target: str) -> dict[str, Any]:
        """What the cache's lists say of code that is made now for a target."""
        return {
            "kernel": self.path or self.kernel.__qualname__,
            "signature": self.text,
            "target": target,
            "created": int(time.time()),
        }

    def record(self, target: str) -> None:
        """Enter a use in the manifest that ``KHALJIT_RECORD`` asks for."""
        if not os.environ.get("KHALJIT_RECORD"):
            return
        from khaljit.manifest import Specialisation, recorder

        path, text = self.path, self.text
        if path is None or not self.kernel.reads_as(text, self.signature):
            self._refuse(text if path else "no name in a module leads to it")
        else:
            recorder().add(Specialisation.of(path, text, self.options), target)

    def _refuse(self, reason: str) -> None:
        """Say once for each kernel that it is in no manifest."""
        name = self.kernel.__qualname__
        if name not in _REFUSED:
            _REFUSED.add(name)
            warnings.warn(
                f"kernel {name} is not recorded: {reason}\n  mend: make it a function of a module, "
                "and pass constants that a text can stand for (khaljit/signatures.py)",
                stacklevel=2,
            )


_REFUSED: Final[set[str]] = set()
