"""``docs/math.md`` holds the table of errors and every name of the host that means something."""

from __future__ import annotations

import math
import re
from types import ModuleType

import numpy as np
import pytest

from benchmarks import math_accuracy as accuracy
from khaljit.tracer import host


def test_the_page_holds_the_table() -> None:
    assert accuracy.rendered() in accuracy.PAGE.read_text()


@pytest.mark.parametrize("module", [math, np], ids=["math", "numpy"])
def test_the_page_lists_the_names_of_the_host(module: ModuleType) -> None:
    text = accuracy.PAGE.read_text().split("## Names of the host")[1].split("## Errors")[0]
    words = set(re.findall(r"\w+", text))
    types = tuple(kind for kind in host.TABLE if isinstance(kind, type))
    meant = [one for one in host.TABLE if one not in types]
    names = [name for name in dir(module) if any(getattr(module, name) is one for one in meant)]
    assert len(names) > 30
    assert set(names) <= words
