"""One launch, ready to run: what direct launches, encoders and profiles have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from khaljit.arguments import Operand
from khaljit.arrays import Array
from khaljit.backends.base import Device, Loaded
from khaljit.grids import Grid, Indirect
from khaljit.profiling import profile_of

__all__ = ["Dispatch"]


@final
@dataclass(slots=True)
class Dispatch:
    """A kernel with its arguments and its grid.

    Attributes:
        groups: workgroups in x, y and z, or where the device reads them.
        written: per operand, whether the kernel writes it.
        strides: per operand, whether the kernel looks at its strides.
    """

    kernel: str
    device: Device
    loaded: Loaded
    operands: Sequence[Operand]
    numbers: Sequence[int | float | bool]
    groups: Grid | Indirect
    written: Sequence[bool]
    strides: Sequence[bool]

    def run(self, label: str | None = None) -> None:
        """Enqueue it; an empty grid is nothing to do."""
        if isinstance(self.groups, tuple) and 0 in self.groups:
            return
        profile = profile_of(self.device)
        if profile is None:
            self.loaded.launch(self.operands, self.numbers, self.groups)
        else:
            with profile.timed(label or self.kernel):
                self.loaded.launch(self.operands, self.numbers, self.groups)

    def run_staged(self) -> None:
        """Run with NumPy arguments on a device with memory of its own, and wait.

        Everything goes up, since a kernel may write some elements only; what is written comes
        back. The same view twice is one array there too.
        """
        arrays: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Array[Any]] = {}
        staged = []
        for operand, looked_at in zip(self.operands, self.strides, strict=True):
            host = operand.owner
            assert isinstance(host, np.ndarray)
            place = (host.ctypes.data, operand.shape, operand.strides)
            if place not in arrays:
                arrays[place] = self.device.stage(host, operand, looked_at)
            array = arrays[place]
            staged.append(Operand(operand.name, array, operand.dtype, operand.shape, array.units))
        Dispatch(
            self.kernel,
            self.device,
            self.loaded,
            staged,
            self.numbers,
            self.groups,
            self.written,
            self.strides,
        ).run()
        for operand, there, writes in zip(self.operands, staged, self.written, strict=True):
            if writes and isinstance(operand.owner, np.ndarray) and isinstance(there.owner, Array):
                operand.owner[...] = there.owner.numpy().view(operand.owner.dtype)
        self.device.synchronize()
