"""The examples of ``docs/arrays.md`` run, one after the other, and give what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import khaljit as kj
from khaljit.backends.base import Device

PAGE = Path(__file__).resolve().parent.parent / "docs" / "arrays.md"


@kj.jit
def double(x: kj.Array1[kj.f32], y: kj.Array1[kj.f32]) -> None:
    i = kj.global_id(0)
    if i < x.size:
        y[i] = 2 * x[i]


def test_the_examples_run_on_every_device(device: Device) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 5
    scope: dict[str, Any] = {"kj": kj, "np": np, "double": double}
    for example in examples:
        exec(example.replace('kj.device("cpu")', f"kj.device({device.name!r})"), scope)
    ramp = np.arange(6, dtype=np.float32)
    assert (scope["b"].numpy() == 2 * ramp).all()
    assert (scope["points"].shape, scope["points"].numpy().shape) == ((100,), (100, 3))
    assert scope["numbers"].tolist() == scope["wide"].numpy().tolist() == [1.5, -2]
    assert (scope["same"].numpy() == scope["bits"]).all()
    assert scope["corner"] == 9
    assert (scope["first"] == ramp).all()
    assert (scope["second"] == 2 * ramp).all()
    assert (scope["grid"].numpy().reshape(-1)[6:] == 0.5).all()
