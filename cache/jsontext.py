"""Reads JSON without the module `json`, which compiles regular expressions when it is imported.

That would take longer than all that the cache has to do for a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["loads"]


class _Plain:
    """What the standard library's scanner asks its decoder for: the usual."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float  # NaN and Infinity


def _scanner() -> Callable[[str, int], tuple[Any, int]]:
    try:
        from _json import make_scanner

        usual: Any = _Plain
        made: Callable[[str, int], tuple[Any, int]] = make_scanner(usual)
    except (ImportError, AttributeError, TypeError):  # a Python that has another one, or none
        import json

        made = json.JSONDecoder().raw_decode
    return made


_SCAN: Final = _scanner()


def loads(text: str) -> Any:
    """What a text without space around it says; raises ValueError.

    >>> loads('{"tool":["ptxas","13.0"],"shipped":false}')
    {'tool': ['ptxas', '13.0'], 'shipped': False}
    """
    try:
        value, end = _SCAN(text, 0)
        if end == len(text):
            return value
    except (StopIteration, SystemError, ValueError):  # SystemError: Python 3.11 without the module
        pass
    import json  # it says what is wrong

    return json.loads(text)
