"""Source that no file holds: of ``python -c``, of a script on standard input, of what was typed.

`linecache` has none of it, but for what Python 3.13 and later put there. Where it was read from may
have it still: the command line, standard input if it is a file, the history of the prompt. What is
found there is a guess, to be believed only where it compiles to the very bytecode that runs.
"""

from __future__ import annotations

import linecache
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from types import CodeType

__all__ = ["candidates", "keep"]


def candidates(code: CodeType) -> Iterator[tuple[str, list[str]]]:
    """Texts that may hold a code object at its line numbers, each under a name of its own."""
    if code.co_filename == "<string>":
        for place, argument in enumerate(sys.orig_argv):
            if code.co_name == "<lambda>" or code.co_name in argument:
                yield f"<argument {place} of python>", argument.splitlines(keepends=True)
    elif code.co_filename == "<stdin>":
        yield "<stdin>", _script()
        yield from _typed(code)


def keep(name: str, lines: Sequence[str]) -> None:
    """Let tracebacks and messages show the lines of a text that was believed."""
    linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)


def _script() -> list[str]:
    """What standard input held, if it is a file."""
    try:
        descriptor = sys.__stdin__.fileno() if sys.__stdin__ else -1
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return []
        return os.pread(descriptor, status.st_size, 0).decode().splitlines(keepends=True)
    except (AttributeError, OSError, ValueError):  # no pread on Windows; closed; no UTF-8
        return []


def _typed(code: CodeType) -> Iterator[tuple[str, list[str]]]:
    """What was typed at the prompt, from each line on that the statement may begin with."""
    readline = sys.modules.get("readline")
    if readline is None:
        return
    count = readline.get_current_history_length()
    history = [f"{readline.get_history_item(1 + k) or ''}\n" for k in range(count)]
    for begin in range(count - code.co_firstlineno, -1, -1):
        first = history[begin + code.co_firstlineno - 1].lstrip()
        if code.co_name == "<lambda>":
            if "lambda" in first:
                yield f"<stdin>-{begin + 1}", history[begin : begin + code.co_firstlineno]
        elif first.startswith(("@", "def ", "async def ")):
            yield f"<stdin>-{begin + 1}", history[begin:]
