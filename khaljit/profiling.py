"""Profiles: how long every dispatch of a device took, measured on the device.

``with device.profile() as prof:`` times what is dispatched inside. ``prof.entries()`` waits for the
results, ``prof.try_take()`` does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from khaljit.extension import Watched
from khaljit.tracer.records import dataclass

if TYPE_CHECKING:
    from khaljit.backends.base import Device, Timer

__all__ = ["Profile", "Timing", "profile_of"]


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """One dispatch.

    Attributes:
        label: of the dispatch: the kernel's name, or what its pass is called.
        start: seconds on the device's own clock.
        seconds: how long it took there.
    """

    label: str
    start: float
    seconds: float


@final
class Profile:
    """The timings of one ``with`` block."""

    def __init__(self, device: Device) -> None:
        self._device: Final = device
        self._timers: list[tuple[str, Timer]] = []
        self._taken = 0
        self._token: Token[dict[Device, Profile]] | None = None

    def __enter__(self) -> Profile:
        self._token = _ACTIVE.set({**_ACTIVE.get(), self._device: self})
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._token is not None
        _ACTIVE.reset(self._token)

    @contextmanager
    def timed(self, label: str) -> Iterator[None]:
        """Time what is enqueued inside as one dispatch."""
        timer = self._device.timer()
        timer.start()
        try:
            yield
        finally:
            timer.stop()
            self._timers.append((label, timer))

    def entries(self) -> list[Timing]:
        """All timings in the order of dispatch, once the device is done with them."""
        self._device.synchronize()
        return [self._timing(label, timer) for label, timer in self._timers]

    def try_take(self) -> list[Timing] | None:
        """The timings since the last time, without waiting; None while any of them is under way."""
        waiting = self._timers[self._taken :]
        if not all(timer.ready() for _, timer in waiting):
            return None
        self._taken += len(waiting)
        return [self._timing(label, timer) for label, timer in waiting]

    @staticmethod
    def _timing(label: str, timer: Timer) -> Timing:
        start, end = timer.interval()
        return Timing(label, start, end - start)

    def table(self) -> str:
        """Per label: how often, total, mean and share of the time, the longest first."""
        totals: dict[str, list[float]] = {}
        for entry in self.entries():
            totals.setdefault(entry.label, []).append(entry.seconds)
        whole = sum(map(sum, totals.values())) or 1.0
        rows = [f"{'dispatch':<24} {'count':>7} {'total ms':>10} {'mean us':>10} {'share':>6}"]
        for label, times in sorted(totals.items(), key=lambda item: -sum(item[1])):
            total = sum(times)
            rows.append(
                f"{label:<24} {len(times):>7} {total * 1e3:>10.3f} "
                f"{total / len(times) * 1e6:>10.1f} {total / whole:>6.1%}"
            )
        return "\n".join(rows)

    def __str__(self) -> str:
        return self.table()

    def chrome_trace(self, path: str | Path) -> None:
        """Write the timings for chrome://tracing and Perfetto."""
        events = [
            {
                "name": entry.label,
                "ph": "X",
                "ts": entry.start * 1e6,
                "dur": entry.seconds * 1e6,
                "pid": 0,
                "tid": self._device.name,
            }
            for entry in self.entries()
        ]
        import json  # for those who write one

        Path(path).write_text(json.dumps({"traceEvents": events}))


_ACTIVE: Final[Watched[dict[Device, Profile]]] = Watched("khaljit_profiles", {})


def profile_of(device: Device) -> Profile | None:
    """The profile that is on for a device in this context."""
    active = _ACTIVE.get()
    return active.get(device) if active else None
