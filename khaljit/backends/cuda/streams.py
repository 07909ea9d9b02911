"""Streams: khaljit's own, and those of other libraries.

Streams are told apart by identity: there is one `Stream` per handle while somebody uses it, and
it keeps the other library's object alive, so that no handle dies under work that waits for it.
"""

from __future__ import annotations

import weakref
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.extension import Watched
from khaljit.tracer.errors import ArgumentValueError

if TYPE_CHECKING:
    from khaljit.backends.cuda.memory import Memory

__all__ = ["CHOSEN", "Captured", "Stream", "stream", "stream_of"]


@final
class Captured:
    """What a stream that is captured has been given by khaljit.

    Attributes:
        memories: that the work uses; it keeps them.
        commands: how many there are.
    """

    def __init__(self) -> None:
        self.memories: Final[dict[Memory, None]] = {}
        self.commands = 0


@final
class Stream:
    """A stream by its handle.

    Attributes:
        captured: while a graph is captured on it.
    """

    __slots__ = ("__weakref__", "captured", "handle", "owner")

    def __init__(self, handle: int, owner: object = None) -> None:
        self.handle: Final = handle
        self.owner: Final = owner
        self.captured: Captured | None = None

    def __cuda_stream__(self) -> tuple[int, int]:
        """For other libraries: the version of this protocol, and the handle."""
        return 0, self.handle


_KNOWN: Final[weakref.WeakValueDictionary[int, Stream]] = weakref.WeakValueDictionary()


def stream_of(handle: int, owner: object = None) -> Stream:
    """The stream with a handle; ``owner`` is the object that keeps it."""
    found = _KNOWN.get(handle)
    if found is None:
        found = _KNOWN[handle] = Stream(handle, owner)
    return found


# What `kj.stream` set: work of this context goes there.
CHOSEN: Final[Watched[Stream | None]] = Watched("khaljit_stream", None)


class stream:  # noqa: N801  # called like a function
    """Work of a block goes to a CUDA stream of another library: ``with kj.stream(s): ...``.

    Args:
        handle: a stream's address, or an object with ``__cuda_stream__``, ``cuda_stream`` or
            ``ptr`` (PyTorch's and CuPy's streams).
    """

    def __init__(self, handle: Any) -> None:
        found, protocol = handle, getattr(handle, "__cuda_stream__", None)
        if callable(protocol):
            found = protocol()[1]
        else:
            for name in ("cuda_stream", "ptr"):
                found = getattr(found, name, found)
        if not isinstance(found, int) or isinstance(found, bool):
            raise ArgumentValueError(
                f"{handle!r} is no CUDA stream", mend="pass its address or an object that has one"
            )
        self._stream: Final = stream_of(found, handle)
        self._tokens: Final[list[Token[Stream | None]]] = []

    def __enter__(self) -> stream:
        self._tokens.append(CHOSEN.set(self._stream))
        return self

    def __exit__(self, *exception: object) -> None:
        CHOSEN.reset(self._tokens.pop())
