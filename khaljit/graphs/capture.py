"""Who takes the launches of a context: a graph that is captured, or a function that is watched.

A capture belongs to a context, as profiles and streams do, so that other threads work on. What
devices do asks here: kernels and copies are offered to the capture, and what no graph can hold is
refused. `apart` is for what a device does for itself meanwhile, such as loading a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from khaljit.extension import Watched

if TYPE_CHECKING:
    from khaljit.arrays import Array
    from khaljit.backends.base import Device
    from khaljit.dispatch import Dispatch
    from khaljit.graphs.nodes import ConditionalNode

__all__ = [
    "EVERYWHERE",
    "Capture",
    "apart",
    "capture_of",
    "captured",
    "is_captured",
    "refuse",
    "unwatched",
]


class Capture(Protocol):
    """What takes launches."""

    def kernel(self, dispatch: Dispatch, label: str) -> bool:
        """Note a launch; whether it is not to run now."""

    def copy(self, source: Array[Any], target: Array[Any]) -> bool:
        """Note a copy of contiguous bytes; whether it is not to run now."""

    def body(self, node: ConditionalNode) -> AbstractContextManager[None]:
        """Note a loop or a branch, and in the block its body."""

    def made(self, array: Array[Any]) -> None:
        """An array was made that a device needs by the way."""

    def refuse(self, device: Device, what: str, mend: str) -> None:
        """Something happens that no graph can hold."""


EVERYWHERE: Final = None  # in place of a device: a capture of what goes to any

_ACTIVE: Final[Watched[Mapping[Device | None, Capture]]] = Watched("khaljit_captures", {})


def capture_of(device: Device) -> Capture | None:
    """What takes the launches of a device in this context."""
    active = _ACTIVE.get()
    return (active.get(device) or active.get(EVERYWHERE)) if active else None


def is_captured() -> bool:
    """Whether anything takes launches in this context."""
    return bool(_ACTIVE.get())


def captured(device: Device | None, capture: Capture | None) -> None:
    """Let a capture take the launches of a device in this context; none from now on if None."""
    active = {key: one for key, one in _ACTIVE.get().items() if key is not device}
    _ACTIVE.set(active if capture is None else {**active, device: capture})


def refuse(device: Device, what: str, mend: str) -> None:
    """Say that something happens which no graph can hold; it raises where one is captured."""
    capture = capture_of(device)
    if capture is not None:
        capture.refuse(device, what, mend)


@contextmanager
def apart(device: Device) -> Iterator[None]:
    """What a device does for itself runs at once, whatever is captured."""
    with unwatched(), device.uncaptured():
        yield


@contextmanager
def unwatched() -> Iterator[None]:
    """Nobody takes the launches of a block."""
    if not _ACTIVE.get():
        yield
        return
    token = _ACTIVE.set({})
    try:
        yield
    finally:
        _ACTIVE.reset(token)
