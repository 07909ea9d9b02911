"""Generated programs: every device gives the same bits, and plain Python agrees.

The first column is judged by plain Python, every other one by the interpreter. Where floats are
the driver's own affair, only programs without them are compared. For more programs there is
``python -m tests.campaign``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import khaljit as kj
from khaljit.backends.base import Device
from tests.agreement import verdict
from tests.generate import generate
from tests.matrix import apart
from tests.programs import DEFECTS

_PROGRAMS: Final = 150
# Programs that campaigns found a fault with. The program of a number changes with the generator,
# so every fault has a test of its own as well.
_FOUND: Final = (2561, 1001899, 1010452, 1013936, 3001546, 3009849, 5000417, 9000223)


def test_generated_programs_mean_the_same_everywhere(device: Device, tmp_path: Path) -> None:
    judge = kj.device("interpreter")
    devices = [judge] if device is judge else [judge, device]

    @settings(
        max_examples=_PROGRAMS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**40))
    def agree(seed: int) -> None:
        program = generate(seed)
        assume(not (program.floats and apart(device)))
        assert verdict(program, tmp_path, devices) is None, program.source

    agree()


@pytest.mark.parametrize("seed", _FOUND)
def test_what_campaigns_found_stays_mended(device: Device, tmp_path: Path, seed: int) -> None:
    judge = kj.device("interpreter")
    program = generate(seed)
    if program.floats and apart(device):
        pytest.skip("floats are the driver's own affair")
    assert verdict(program, tmp_path, [judge] if device is judge else [judge, device]) is None


def test_programs_with_a_defect_are_refused_for_it(tmp_path: Path) -> None:
    found: set[str] = set()
    seed = 0
    while len(found) < len(DEFECTS):
        program = generate(seed)
        seed += 1
        if program.defect is not None and program.defect not in found:
            found.add(program.defect)
            assert verdict(program, tmp_path, [kj.device("interpreter")]) is None, program.source


def test_the_same_number_makes_the_same_program() -> None:
    assert generate(7) == generate(7)
    assert generate(7).source != generate(8).source
