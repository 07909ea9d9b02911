"""What is called: kernels by their grid, launches, and launches with arguments that stay.

Each has two forms that mean the same: the Python one here, and the native one of
``khaljit/native/``, whose calls go by a plan (`khaljit.plans`) and come back to Python with
whatever that does not know.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from khaljit.dispatch import Dispatch
from khaljit.extension import NATIVE
from khaljit.grids import Grid, Indirect
from khaljit.tracer.errors import ArgumentTypeError

if TYPE_CHECKING:
    from khaljit.arguments import Parameters

__all__ = ["Bound", "KernelBase", "Launch", "Launchable", "bind"]


class Launchable(Protocol):
    """What can be launched on a grid: a kernel, recorded or hand-written."""

    def launch(
        self, groups: Grid | Indirect, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Run on the device where the arrays live."""

    def prepare(
        self, groups: Grid | Indirect, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Dispatch:
        """Everything about a launch but running it."""

    def bind_launch(
        self, launch: Launch, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Bound:
        """A launch of this kernel with arguments that stay."""


class PythonLaunch:
    """A kernel with its grid; call it with the kernel's arguments."""

    __slots__ = ("groups", "kernel")

    def __init__(self, kernel: Launchable, groups: Grid | Indirect) -> None:
        self.kernel = kernel
        self.groups = groups

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.kernel.launch(self.groups, args, kwargs)

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatch:
        """The launch with its arguments, checked and compiled, to be run later."""
        return self.kernel.prepare(self.groups, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """The launch with arguments that stay; ``bound(name=value)`` runs it with others."""
        return self.kernel.bind_launch(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<{self.kernel!r} with {self.groups} workgroups>"


class PythonKernel:
    """What the native form of a kernel has: its subscript, and room for plans."""

    def __init__(self, workgroup: tuple[int, int, int]) -> None:
        del workgroup

    def __getitem__(self, grid: Any) -> Launch:
        """The kernel with a grid: invocations per axis, x first."""
        return self.on(grid)

    def on(self, grid: Any) -> Launch:
        """The kernel with any grid."""
        raise NotImplementedError

    def learn(self, plans: tuple[Any, ...], names: tuple[str, ...] | None) -> None:
        """Take plans, the first to be tried first, and the names of the parameters."""


@final
class Bound:
    """A launch with arguments that stay. ``bound()`` runs it; ``bound(a=2.0)`` runs it with another
    ``a``, this once. It keeps its arrays alive."""

    __slots__ = ("_arguments", "_launch")

    def __init__(self, launch: Launch, arguments: inspect.BoundArguments) -> None:
        self._launch: Final = launch
        self._arguments: Final = arguments

    def __call__(self, *args: Any, **changes: Any) -> None:
        known = self._arguments.signature
        unknown = [name for name in changes if name not in known.parameters]
        if args or unknown:
            raise ArgumentTypeError(
                f"{self!r} is called with {', '.join(unknown) or 'arguments without their names'}",
                mend=f"change arguments by name: {', '.join(known.parameters)}",
            )
        with_changes: Any = {**self._arguments.arguments, **changes}
        arguments = inspect.BoundArguments(known, with_changes)
        self._launch(*arguments.args, **arguments.kwargs)

    def __repr__(self) -> str:
        return f"<{self._launch!r} and arguments>"


def bind(
    launch: Launch, parameters: Parameters, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Bound:
    """A launch with arguments that stay, once they are checked and the kernel is compiled."""
    launch.prepare(args, kwargs)
    arguments = parameters.signature.bind_partial(*args, **kwargs)
    bound = Bound(launch, arguments)
    names = tuple(arguments.arguments)
    if NATIVE is None or not parameters.are_plain or names != parameters.names[: len(names)]:
        return bound
    try:
        native: Bound = NATIVE.Bound(launch, names, tuple(arguments.arguments.values()), bound)
    except ValueError:  # a grid that the device reads, or a kernel without plans
        return bound
    return native


if TYPE_CHECKING or NATIVE is None:
    KernelBase = PythonKernel
    Launch = PythonLaunch
else:
    KernelBase = NATIVE.Kernel
    Launch = NATIVE.Launch
