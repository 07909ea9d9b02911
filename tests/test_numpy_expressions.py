"""Generated expressions mean what NumPy makes of them; ``python -m tests.numpy_expressions`` runs
a great number."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.tracer.dtypes import ALL, Kind, bool_
from tests.numpy_expressions import TYPES, Program, disagreements, types_of


def test_generated_expressions_are_numpys(device: Device, tmp_path: Path) -> None:
    first = random.randrange(1 << 32)
    short = device.kind == "python"
    for seed in range(first, first + (1 if short else 4)):
        program = Program(seed, 12 if short else 25, 6 if short else 40, types_of(device))
        wrong = disagreements(program, device, tmp_path)
        assert not wrong, f"seed {seed}\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", [one.name for one in TYPES])
def test_every_type_takes_part(name: str, tmp_path: Path) -> None:
    program = Program(random.randrange(1 << 32), 30, 40, [getattr(kj, name)])
    wrong = disagreements(program, kj.device("interpreter"), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert {*TYPES, bool_} == {one for one in ALL if one.kind is not Kind.INDEX}
