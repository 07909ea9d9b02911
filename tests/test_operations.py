"""The page of operations is current, and the behaviour matrix runs every cell of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from khaljit.codegen.caps import ROWS, row
from khaljit.codegen.operations import MADE, NATIVE, NONE, REFUSED, cells, page
from khaljit.tracer.dtypes import ALL
from tests.seen_operations import SEEN

ROOT = Path(__file__).resolve().parent.parent
# The parts of the table that the matrix covers, by what the plugin calls them.
PARTS = {
    "Operations": "operation",
    "Casts, by the type that is cast": "cast",
    "Atomics": "atomic",
    "Subgroup operations": "subgroup",
}


def test_the_page_is_current() -> None:
    """``python -m khaljit.codegen.operations > docs/operations.md`` writes it anew."""
    assert (ROOT / "docs" / "operations.md").read_text() == page()


def test_the_matrix_covers_every_cell(tmp_path: Path) -> None:
    """Every operation in every type it has on any target is recorded by some test of the matrix,
    which runs on every device there is."""
    report = tmp_path / "seen.json"
    files = sorted(str(path) for path in (ROOT / "tests").glob("test_matrix*.py"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.seen_operations"),
            *("-p", "no:cacheprovider", "-k", "interpreter", "--basetemp", str(tmp_path / "base")),
            *files,
        ],
        cwd=ROOT,
        env={**os.environ, SEEN: str(report)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    seen = {tuple(cell) for cell in json.loads(report.read_text())}
    missing = {
        (PARTS[part], line, dtype.name)
        for caps in ROWS.values()
        for part, lines in cells(caps).items()
        for line, signs in lines.items()
        for dtype, sign in zip(ALL, signs, strict=True)
        if sign != NONE and (part, line) != ("Casts, by the type that is cast", dtype.name)
    }
    assert not missing - seen


def test_cells_say_what_the_legaliser_does() -> None:
    """Some that are known."""
    places = {dtype.name: k for k, dtype in enumerate(ALL)}

    def sign(target: str, part: str, line: str, dtype: str) -> str:
        return cells(row(target))[part][line][places[dtype]]

    assert sign("ptx:sm_80", "Operations", "fma", "bf16") == NATIVE
    assert sign("ptx:sm_75", "Operations", "fma", "bf16") == MADE
    assert sign("llvm:x86-64", "Operations", "fma", "f32") == MADE
    assert sign("webgpu", "Operations", "add", "f64") == REFUSED
    assert sign("webgpu", "Operations", "add", "i64") == MADE
    assert sign("webgpu", "Atomics", "add", "i64") == REFUSED
    assert sign("webgpu", "Subgroup operations", "add", "i32") == MADE
    assert sign("llvm:x86-64-v3", "Operations", "xor", "f32") == NONE
