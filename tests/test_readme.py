"""The README's examples run as they stand, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from khaljit.cli import app

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(_blocks("python")[0])
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert done.stdout == _blocks("text")[0]


def test_the_one_file_for_every_machine_is_made_as_the_readme_says(tmp_path: Path) -> None:
    """In CI, and then where it is run: with another cache, and no compiler."""
    (tmp_path / "app.py").write_text(_blocks("python")[0])
    made, used = (dict(os.environ, KHALJIT_CACHE_DIR=str(tmp_path / name)) for name in "ab")
    in_ci, there = _blocks("bash")
    khaljit, python = f"{sys.executable} -m khaljit", sys.executable
    for commands, environment in ((in_ci, made), (there, used)):
        for line in commands.splitlines():
            command = re.sub(r"^khaljit", khaljit, line).replace(" python ", f" {python} ")
            subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)
    bare = (
        "import sys; sys.modules.update(llvmlite=None, diskcache=None, cuda=None, nvidia=None)\n"
        "import app, khaljit.compiler as compiler\n"
        "print(dict(compiler.COUNTS), app.add_assign.cache_info()['compiled'])"
    )
    environment = dict(used, PATH="", KHALJIT_DEVICE="cpu")
    done = subprocess.run(
        [python, "-c", bare],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "{'cached': 1} 0"


def test_there_are_two_commands_of_one_line_each() -> None:
    commands = _blocks("sh")
    assert len(commands) == 2
    assert all(command.count("\n") == 1 for command in commands)
    assert "khaljit demo" in commands[0]
    assert "pytest" in commands[1]
    ci = (ROOT / ".ci" / "run").read_text()
    assert 'grep -m1 -- "-m pytest" README.md' in ci


def test_every_command_of_the_readme_exists() -> None:
    runner = CliRunner()
    for line in _blocks("text")[2].splitlines():
        words = re.split(r"  +", line)[0].split()
        assert words[0] == "khaljit"
        names = re.findall(r"\b[a-z]+\b", " ".join(words[2:])) if words[1] == "cache" else [""]
        for name in names:
            command = [*words[1:2], *filter(None, [name]), "--help"]
            assert runner.invoke(app, command).exit_code == 0, command


def test_the_error_in_the_readme_is_the_error_that_is_raised(tmp_path: Path) -> None:
    """The message, the caret and the mend; the line number is the story's."""
    source = (
        "import numpy as np\nimport khaljit as kj\n\n\n"
        "@kj.jit\ndef blur(weights: kj.Array1[kj.u32], out: kj.Array1[kj.i32]) -> None:\n"
        "    i = kj.global_id(0)\n    total = out[i]\n    total = total + weights[i]\n"
        "    out[i] = total\n\n\n"
        "try:\n    blur[4](np.zeros(4, np.uint32), np.zeros(4, np.int32))\n"
        "except kj.TraceError as error:\n    print(error)\n"
    )
    path = tmp_path / "blur.py"
    path.write_text(source)
    done = subprocess.run(
        [sys.executable, path.name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    printed = re.sub(r"at .*blur\.py:\d+", "at blur.py:12", done.stdout)
    assert printed == _blocks("text")[1]
