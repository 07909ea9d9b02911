"""What the commands print with: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console

__all__ = ["AsJson", "age", "console", "print_json", "size"]

WIDE: Final = 200  # columns of what goes to a file, where nothing has to fit
console: Final = Console(highlight=False)
if not console.is_terminal and "COLUMNS" not in os.environ:
    console.width = WIDE

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]

UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_json(data: Any) -> None:
    """Print plain data, never wrapped or coloured."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def size(count: float) -> str:
    """Bytes as people read them.

    >>> size(999), size(4096), size(3 << 20)
    ('999 B', '4.0 KiB', '3.0 MiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def age(moment: float) -> str:
    """How long ago a time was, in seconds since 1970."""
    seconds = max(0.0, time.time() - moment)
    length, unit = next((one for one in UNITS if seconds >= one[0]), UNITS[-1])
    return f"{seconds / length:.0f} {unit}"
