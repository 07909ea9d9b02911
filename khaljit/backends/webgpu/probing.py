"""Asking a driver how it rounds, once: the answers stand in the cache beside the kernels.

WebGPU leaves contraction and the accuracy of division to drivers. A small kernel finds out what
this one does (``codegen/webgpu/probe.py``), and the capability row says it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from khaljit import compiler
from khaljit.backends.webgpu.target import WebGpu, artifact_of
from khaljit.cache.artifact import Artifact
from khaljit.cache.keys import key
from khaljit.generators import generators
from khaljit.operands import Operand
from khaljit.tracer.dtypes import f32

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["ask"]


def ask(device: WebGpuDevice) -> dict[str, Any]:
    """What the driver does, as arguments of ``codegen.caps.webgpu``."""
    driver = json.dumps(device.info, sort_keys=True, default=str)
    name = key(probe=b"rounding", driver=driver.encode(), generators=generators())
    found = compiler.store().obtain(name, lambda tool: None, lambda: _asked(device))
    return dict(found.plan)


def _asked(device: WebGpuDevice) -> Artifact:
    from khaljit.codegen.webgpu.probe import COUNT, judge, probe, questions

    trace, target = probe(), device.target
    assert isinstance(target, WebGpu)
    loaded = device.load_artifact(artifact_of(target, trace), trace)
    arrays = [device.array(one) for one in questions()]
    operands = [
        Operand(f"probe{k}", array, f32, (COUNT,), (1,), array.address)
        for k, array in enumerate(arrays)
    ]
    loaded.launch(operands, (), (COUNT, 1, 1))
    return Artifact(b"", judge([np.asarray(array) for array in arrays]), None)
