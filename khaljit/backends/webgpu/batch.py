"""Commands that are submitted together.

They go into one command encoder, in order; it is submitted when something is read, written from
the host or waited for, when a buffer is handed out, or when it holds many commands. A GPU works on
what was submitted while the host records on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from khaljit.backends.webgpu import raw
from khaljit.backends.webgpu.buffers import ParameterRing

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["Batch"]

MAX_COMMANDS: Final = 512  # in one submission
NAMED: Final = 8  # kernels that the error of a submission names


@final
class Batch:
    """The commands of a device that are not submitted yet; used under the device's lock."""

    def __init__(self, device: WebGpuDevice) -> None:
        self._device: Final = device
        self._encoder: Any = None
        self._recorder: raw.Recorder | None = None
        self._ring: ParameterRing | None = None
        self._stamps: tuple[Any, int, bool] | None = None  # whether the first is taken
        self._commands = 0
        self._kernels: dict[str, None] = {}

    def encoder(self) -> Any:
        """The open command encoder, outside any pass."""
        device = self._device
        if self._recorder is not None:
            self._recorder.handle.end()
            self._recorder = None
        if self._encoder is None:
            device.expect_alive("recording")
            self._encoder = device.guarded("recording", device.handle.create_command_encoder)
        return self._encoder

    def recorder(self) -> raw.Recorder:
        """The open compute pass."""
        if self._recorder is None:
            stamps = None
            if self._stamps is not None:
                queries, first, is_begun = self._stamps
                stamps = {"query_set": queries, "end_of_pass_write_index": first + 1}
                if not is_begun:
                    stamps["beginning_of_pass_write_index"] = first
                    self._stamps = queries, first, True
            self._recorder = raw.Recorder(
                self.encoder().begin_compute_pass(timestamp_writes=stamps)
            )
        return self._recorder

    def stamp(self, stamps: tuple[Any, int] | None) -> None:
        """Write timestamps at both ends of the next pass, or from the first to the last one until
        there are no more to be written, where what is timed takes several."""
        self.encoder()  # ends the pass before
        self._stamps = None if stamps is None else (*stamps, False)

    def ring(self) -> ParameterRing:
        """Where parameters go that do not fit in immediates."""
        if self._ring is None:
            self._ring = ParameterRing(self._device)
        return self._ring

    def count(self, *kernels: str, commands: int = 1) -> None:
        """Commands were added, of kernels or copies; many are submitted at once."""
        self._kernels.update(dict.fromkeys(kernels))
        self._commands += commands
        if self._commands >= MAX_COMMANDS:
            self.submit()

    def submit(self) -> None:
        """Submit what there is."""
        if self._encoder is None:
            return
        device, names = self._device, list(self._kernels)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        what = f"running {', '.join(names[:NAMED])}{more}" if names else "submitting"
        try:
            encoder = self.encoder()
            if self._ring is not None:
                self._ring.write()
            device.guarded(what, lambda: device.handle.queue.submit([encoder.finish()]))
        finally:
            self._encoder, self._commands, self._kernels = None, 0, {}
