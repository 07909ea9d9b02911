"""Encoders: dispatches and copies recorded now, run in order when they are submitted.

::

    with device.encoder() as encoder:
        with encoder.compute_pass("add") as add:
            add.dispatch(kernel[n], x, y)
        encoder.copy(x, y)
    device.submit(encoder)

Everything is checked, and kernels are compiled, while recording. Commands run in the order in
which they were recorded, each seeing what those before it wrote, on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.arrays import Array
from khaljit.tracer.errors import ArgumentTypeError, ArgumentValueError, DeviceError

if TYPE_CHECKING:
    from khaljit.backends.base import Device
    from khaljit.launching import Launch

__all__ = ["ComputePass", "Encoder"]


@final
class Encoder:
    """A list of commands for one device."""

    def __init__(self, device: Device) -> None:
        self.device: Final = device
        self._commands: list[Callable[[], None]] = []
        self._pass: ComputePass | None = None
        self._submitted = False

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pass = None

    def compute_pass(self, label: str = "") -> ComputePass:
        """A group of dispatches with a label, which profiles show."""
        self._check()
        self._pass = ComputePass(self, label)
        return self._pass

    def copy(self, source: Array[Any], target: Array[Any]) -> None:
        """Copy elements between arrays with equal shapes and types; ranges by slicing. Both are on
        the device, or one on another that it reaches, as GPUs of CUDA do each other."""
        self._check()
        if self.device not in (source.device, target.device):
            raise ArgumentValueError(
                f"arrays on {source.device} and {target.device} are copied by an encoder of "
                f"{self.device}",
                mend="copy by an encoder of one of them",
            )
        for array in (source, target):
            if not self.device.reaches(array.device):
                raise ArgumentValueError(
                    f"an array on {array.device} is copied by an encoder of {self.device}",
                    mend="copy between arrays of the encoder's device",
                )
        if source.shape != target.shape or source.dtype is not target.dtype:
            raise ArgumentValueError(
                f"{source!r} is copied to {target!r}",
                mend="both need the same shape and type: copy slices of equal length",
            )
        self._commands.append(lambda: self.device.copy(source, target))

    def _dispatch(self, launch: Launch, label: str, args: Any, kwargs: Any) -> None:
        self._check()
        dispatch = launch.prepare(args, kwargs)
        if dispatch.device is not self.device:
            raise ArgumentValueError(
                f"kernel {dispatch.kernel} with arrays on {dispatch.device} is dispatched by an "
                f"encoder of {self.device}",
                mend="pass arrays of the encoder's device",
            )
        for operand in dispatch.operands:
            if not isinstance(operand.owner, Array):
                raise ArgumentTypeError(
                    f"kernel {dispatch.kernel}: parameter {operand.name} got a NumPy array in an "
                    "encoder, which runs later",
                    mend=f"copy it to the device first: device.array({operand.name})",
                )
        self._commands.append(lambda: dispatch.run(label or None))

    def _check(self) -> None:
        if self._submitted:
            raise DeviceError(
                "an encoder is used after it was submitted", mend="make a new one for more commands"
            )

    def run(self) -> None:
        """Run the commands; called by ``device.submit``."""
        self._check()
        self._submitted = True
        for command in self._commands:
            command()
        self._commands.clear()


@final
class ComputePass:
    """Dispatches with a common label."""

    def __init__(self, encoder: Encoder, label: str) -> None:
        self._encoder: Final = encoder
        self.label: Final = label

    def __enter__(self) -> ComputePass:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def dispatch(self, launch: Launch, *args: Any, **kwargs: Any) -> None:
        """Record a launch: ``add.dispatch(kernel[grid], x, y)``."""
        if self._encoder._pass is not self:
            raise DeviceError(
                f"the pass {self.label!r} is over", mend="dispatch in the encoder's current pass"
            )
        self._encoder._dispatch(launch, self.label, args, kwargs)
