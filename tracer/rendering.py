"""Fills numbers into the texts of prints and assertions."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, Final, final

__all__ = ["render"]


def render(template: str, numbers: Sequence[Any]) -> str:
    """A text with NumPy scalars in its fields; floats by their own type's shortest digits.

    >>> import numpy as np
    >>> render("x = {} of {:.2f}", [np.float32(0.1), np.int32(3)])
    'x = 0.1 of 3.00'
    """
    return _FORMATTER.vformat(template, numbers, {})


@final
class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return format(value.item(), format_spec) if format_spec else str(value)


_FORMATTER: Final = _Formatter()
