"""One launch, ready to run: what direct launches, encoders and profiles have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from khaljit.arrays import Array
from khaljit.backends.base import Device, Loaded
from khaljit.graphs.capture import capture_of, refuse
from khaljit.grids import Grid, Indirect
from khaljit.operands import Operand
from khaljit.profiling import profile_of
from khaljit.tracer.recorder import Guard
from khaljit.tracer.records import dataclass

__all__ = ["Dispatch", "is_watched"]


def is_watched(device: Device) -> bool:
    """Whether a profile or a capture of this context sees the launches of a device."""
    return profile_of(device) is not None or capture_of(device) is not None


@final
@dataclass(slots=True)
class Dispatch:
    """A kernel with its arguments and its grid.

    Attributes:
        groups: workgroups in x, y and z, or where the device reads them.
        written: per operand, whether the kernel writes it.
        strides: per operand, whether the kernel looks at its strides.
        guards: what the kernel's code was made for; it holds while they do.
    """

    kernel: str
    device: Device
    loaded: Loaded
    operands: Sequence[Operand]
    numbers: Sequence[int | float | bool]
    groups: Grid | Indirect
    written: Sequence[bool]
    strides: Sequence[bool]
    guards: Sequence[Guard] = ()

    def launch(self) -> None:
        """Run it now: NumPy arrays on a device with memory of its own are staged."""
        if self.device.has_own_memory and any(
            isinstance(operand.owner, np.ndarray) for operand in self.operands
        ):
            self.refuse_host_arrays()
            self.run_staged()
        else:
            self.run()

    def run(self, label: str | None = None) -> None:
        """Enqueue it; an empty grid is nothing to do."""
        if isinstance(self.groups, tuple) and 0 in self.groups:
            return
        capture = capture_of(self.device)
        if capture is not None:
            self.refuse_host_arrays()
            if capture.kernel(self, label or self.kernel):
                return
        profile = profile_of(self.device)
        if profile is None:
            self.loaded.launch(self.operands, self.numbers, self.groups)
        else:
            with profile.timed(label or self.kernel):
                self.loaded.launch(self.operands, self.numbers, self.groups)

    def refuse_host_arrays(self) -> None:
        """No graph holds a launch on NumPy arrays, on any device."""
        owners = [(f"parameter {one.name}", one.name, one.owner) for one in self.operands]
        if isinstance(self.groups, Indirect):
            owners.append(("the grid", "counts", self.groups.array))
        for what, name, owner in owners:
            if not isinstance(owner, Array):
                refuse(
                    self.device,
                    f"kernel {self.kernel}: {what} got a NumPy array",
                    f"copy it to the device before the capture: device.array({name})",
                )

    def with_operands(self, operands: Sequence[Operand]) -> Dispatch:
        """The same launch on other arrays."""
        return dataclasses.replace(self, operands=operands)

    def with_numbers(self, numbers: Sequence[int | float | bool]) -> Dispatch:
        """The same launch with other numbers."""
        return dataclasses.replace(self, numbers=numbers)

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
            place = (operand.address, operand.shape, operand.strides)
            if place not in arrays:
                arrays[place] = self.device.stage(host, operand, looked_at)
            array = arrays[place]
            staged.append(
                Operand(
                    operand.name, array, operand.dtype, operand.shape, array.units, array.address
                )
            )
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
                found = self.device.read(there.owner)
                operand.owner[...] = found.view(operand.owner.dtype)
        self.device.synchronize()
