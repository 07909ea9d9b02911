"""Paths into modules and scripts: what is written of an object leads to it again."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import khaljit as kj
from khaljit import modules


class Outer:
    class Inner:
        @staticmethod
        def function() -> None: ...


def function() -> None: ...


def make() -> Any:
    def local() -> None: ...

    return local


alias = make()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("script_of_a_test", None)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (function, "function"),
        (Outer, "Outer"),
        (Outer.Inner, "Outer.Inner"),
        (Outer.Inner.function, "Outer.Inner.function"),
        (alias, "alias"),  # its own name leads nowhere, a variable of the module does
    ],
)
def test_what_is_written_leads_back(value: Any, path: str) -> None:
    assert modules.path_of(value) == f"{__name__}:{path}"
    assert modules.find(f"{__name__}:{path}") is value


def test_what_no_name_leads_to_has_no_path() -> None:
    assert modules.path_of(make()) is None
    assert modules.path_of(lambda: None) is None
    assert modules.path_of(3) is None
    assert modules.path_of(math.sin) == "math:sin"


def test_a_script_is_known_by_its_file(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "script_of_a_test.py").write_text("loads = []\nclass Body: ...\n")
    found = modules.find("inner/script_of_a_test.py:Body")
    assert modules.path_of(found) == "inner/script_of_a_test.py:Body"
    again = modules.load_module(str(inner / "script_of_a_test.py"))
    assert again.Body is found  # it is loaded once, however its file is written


@pytest.mark.parametrize(
    ("command", "path"),
    [(["inner/main.py"], "inner/main.py:f"), (["-m", "inner.main"], "inner.main:f")],
)
def test_the_main_module_is_known_by_what_was_run(
    folder: Path, command: list[str], path: str
) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "main.py").write_text(
        "from khaljit import modules\ndef f(): ...\nprint(modules.path_of(f))\n"
        "print(modules.find(modules.path_of(f)) is f)\n"
    )
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}\nTrue\n"  # it was not run again


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "names nothing in a module"),
        (":nothing", "names nothing in a module"),
        ("math:", "names nothing in a module"),
        ("math:nothing", "math has no 'nothing'"),
        ("math:sin.nothing", "has no 'sin.nothing'"),
        ("nowhere_at_all:x", "no module nowhere_at_all"),
        ("nowhere.py:x", "no file nowhere.py"),
    ],
)
def test_wrong_paths_are_explained(path: str, message: str) -> None:
    with pytest.raises(kj.ArgumentValueError, match=message):
        modules.find(path)
