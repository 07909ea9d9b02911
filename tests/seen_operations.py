"""A plugin for pytest: which operations, casts and atomics the kernels that a run records use, in
which types, written to the file that ``KHALJIT_TEST_SEEN`` names."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from khaljit.codegen.operations import OPERATIONS
from khaljit.tracer.ir import AtomicAccess, Trace, values
from khaljit.tracer.ops import Op

__all__ = ["SEEN", "used"]

SEEN: Final = "KHALJIT_TEST_SEEN"
_FOUND: Final[set[tuple[str, str, str]]] = set()


def used(trace: Trace) -> set[tuple[str, str, str]]:
    """The cells of a trace: part of the table, line, type."""
    found = set()
    for value in values(trace.body):
        if value.op in OPERATIONS:
            works_in = value.args[1 if value.op is Op.SELECT else 0].type
            found.add(("operation", value.op.value, works_in.name))
        elif value.op is Op.CAST:
            found.add(("cast", value.args[0].type.name, value.type.name))
        elif value.op is Op.SUBGROUP and value.args:
            found.add(("subgroup", str(value.attr), value.args[0].type.name))
        elif isinstance(value.attr, AtomicAccess):
            memory = value.memory.element.leaves[0][1]
            found.add(("atomic", value.attr.kind, memory.name))
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Look over the recorder's shoulder, where the tests do."""
    del config
    conftest: Any = importlib.import_module("tests.conftest")
    before = conftest.record

    def record(*args: Any, **kwargs: Any) -> Any:
        recording = before(*args, **kwargs)
        _FOUND.update(used(recording.trace))
        return recording

    conftest.record = record


def pytest_sessionfinish(session: pytest.Session) -> None:
    del session
    if SEEN in os.environ:
        Path(os.environ[SEEN]).write_text(json.dumps(sorted(_FOUND)))
