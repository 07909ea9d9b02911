"""Graphs on WebGPU: dispatches whose arguments are all made, recorded in one loop.

WebGPU has no command buffers that run twice, so every launch records anew. What is left of that is
one call of wgpu-native for each thing that changes from a dispatch to the next.

Nor has it dispatches that depend on the memory of the device, but for the number of their
workgroups: a loop is recorded turn by turn, and the host reads the flag before each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from khaljit.backends.replay import Replay, reporting, turns
from khaljit.backends.reporting import Reporting, launching
from khaljit.backends.webgpu.pipeline import Prepared
from khaljit.backends.webgpu.raw import Commands
from khaljit.graphs.nodes import ConditionalNode, Item, KernelNode, Node, outline

if TYPE_CHECKING:
    from khaljit.backends.webgpu.device import WebGpuDevice

__all__ = ["WebGpuReplay"]

MOST: Final = 256  # dispatches in one list: the GPU starts when some lists are full


@final
class WebGpuReplay(Replay):
    """The dispatches of a graph, in lists; what is no dispatch is between them."""

    def __init__(self, device: WebGpuDevice, nodes: Sequence[Node]) -> None:
        self._device: Final = device
        super().__init__(nodes)
        self._prepared: Final = [self._prepare(node) for node in nodes]
        self._reporting: Final = reporting(nodes)
        self._list_of: Final[dict[int, _List]] = {}
        self._runs: Final = self._cut(outline(nodes))

    def _prepare(self, node: Node) -> Prepared | None:
        """A dispatch that a list takes; None for other nodes."""
        if not isinstance(node, KernelNode):
            return None
        loaded: Any = node.dispatch.loaded
        operands = node.dispatch.operands
        if isinstance(loaded, Reporting):
            operands, _ = loaded.passed(operands, ())
            loaded = loaded.code
        prepared: Prepared | None = loaded.prepare(operands, node.dispatch.groups)
        return prepared if prepared is not None and prepared.pipeline.has_immediates else None

    def _cut(self, items: Sequence[Item]) -> Sequence[Run]:
        """Lists of the nodes, and what is in none."""
        runs: list[Run] = []
        for item in items:
            if self._prepared[item.position] is None:
                runs.append(_Other(item.position, self._cut(item.body)))
                continue
            last = runs[-1] if runs else None
            if not isinstance(last, _List) or len(last.positions) >= MOST:
                last = _List()
                runs.append(last)
            last.positions.append(item.position)
            self._list_of[item.position] = last
        return runs

    def launch(self, repeat: int) -> None:
        """Record everything, behind what was recorded before."""
        with launching(self._reporting):
            for _ in range(repeat):
                self._run(self._runs)

    def _run(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if isinstance(run, _List):
                with self._device.lock:
                    self._record(run)
                continue
            node = self.nodes[run.position]
            if isinstance(node, ConditionalNode):
                for _ in turns(node):
                    self._run(run.body)
            else:
                node.run()

    def update(self, position: int, node: Node) -> None:
        """Bind other buffers."""
        super().update(position, node)
        self._prepared[position] = self._prepare(node)
        self._outdate(position)

    def changed(self, position: int) -> None:
        """The list's blocks are packed anew."""
        self._outdate(position)

    def _outdate(self, position: int) -> None:
        if position in self._list_of:
            self._list_of[position].commands = None

    def _record(self, run: _List) -> None:
        """Record a list; its calls are made when they are first needed."""
        if run.commands is None:
            run.commands, run.names = self._commands(run.positions)
        self._device.batch.recorder().issue(run.commands)
        self._device.batch.count(*run.names, commands=len(run.positions))

    def _commands(self, positions: Sequence[int]) -> tuple[Commands, tuple[str, ...]]:
        """A list as calls, and the names of its kernels."""
        commands, names = Commands(), dict[str, None]()
        for position in positions:
            node, prepared = self.nodes[position], self._prepared[position]
            assert isinstance(node, KernelNode)
            assert prepared is not None
            loaded, numbers = node.dispatch.loaded, node.dispatch.numbers
            if isinstance(loaded, Reporting):
                _, numbers = loaded.passed((), numbers)
            prepared.add_to(commands, numbers)
            names[prepared.pipeline.name] = None
        return commands, tuple(names)


@final
class _List:
    """Dispatches one behind the other, as calls, and the names of their kernels."""

    __slots__ = ("commands", "names", "positions")

    def __init__(self) -> None:
        self.positions: Final[list[int]] = []
        self.commands: Commands | None = None
        self.names: tuple[str, ...] = ()


class _Other(NamedTuple):
    """A node that is in no list, with the runs of its body."""

    position: int
    body: Sequence[Run]


Run = _List | _Other
