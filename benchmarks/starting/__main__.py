"""``python -m benchmarks.starting [ROUNDS]``: a table of warm starts, one run of all in turns.

Each number is the least of the rounds, in milliseconds: whatever else the machine does can only
add to it. Peers that are not installed are named.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.starting.processes import BARE, Start, environment, is_installed, start
from benchmarks.starting.program import IMPLEMENTATIONS, PROGRAMS


def _least(starts: Sequence[Start]) -> tuple[float, ...]:
    """The least of each time."""
    times = [(one.whole, one.processor, one.imports, one.first) for one in starts]
    return tuple(map(min, zip(*times, strict=True)))


def main(rounds: int) -> None:
    """Measure and print."""
    missing = [name for name in IMPLEMENTATIONS if not is_installed(name)]
    present = [BARE, *(name for name in IMPLEMENTATIONS if name not in missing)]
    cases = [(program, name) for program in PROGRAMS for name in present]
    found: dict[tuple[str, str], list[Start]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        seen = environment(Path(folder, "bytecode"), Path(folder, "caches"))
        for program, name in cases:
            for _ in range(2):  # the caches are filled by the first or, at its end, by the second
                start(name, program, seen)
        for _ in range(rounds):
            for program, name in cases:
                found[program, name].append(start(name, program, seen))
    print(
        "| program | implementation | whole, more than numpy | processor, more | imports | then |"
    )
    print("|---|---|--:|--:|--:|--:|")
    for program, name in cases:
        least, bare = _least(found[program, name]), _least(found[program, BARE])
        whole, processor, imports, first = least
        row = (
            f"{whole:.1f}, {whole - bare[0]:.1f} | {processor:.1f}, {processor - bare[1]:.1f} | "
            f"{imports:.1f} | {first:.1f}"
        )
        print(f"| {program} | {name} | {row} |")
    if missing:
        print(f"not installed: {', '.join(missing)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 15)
