"""Graphs on the CPU: small launches one after the other in one native call, large ones on the pool.

The list of a graph is cut into runs. A run of small launches is an array of rows for
``codegen/llvm/replay.py``, in several chains where some do not depend on others and together they
are worth a second thread. Each other launch is a run of its own, because it takes all threads
anyhow, or because its grid is read when it comes to it. So is a loop or a branch, whose body is
cut by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from khaljit.backends.cpu.device import WORTH_THREADS, CpuKernel
from khaljit.backends.cpu.runs import ConditionalRun, NativeRun, Run, Runner
from khaljit.backends.cpu.workers import Arena
from khaljit.backends.replay import Replay, Slots
from khaljit.backends.reporting import OwnReport, Reporting
from khaljit.codegen.layout import SLOT
from khaljit.codegen.llvm import replay
from khaljit.dispatch import Dispatch
from khaljit.graphs.dependence import chains
from khaljit.graphs.nodes import ConditionalNode, Item, KernelNode, Node, outline
from khaljit.grids import Indirect

if TYPE_CHECKING:
    from khaljit.backends.cpu.device import CpuDevice

__all__ = ["CpuReplay"]

MOST_OF_ONE: Final = 0.8  # of the work of a run, that one of its chains may have
MASK: Final = (1 << 64) - 1


@final
class CpuReplay(Replay):
    """The launches of a graph, packed."""

    def __init__(self, device: CpuDevice, runner: Runner, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self._device: Final = device
        launches = {
            position: node for position, node in enumerate(nodes) if isinstance(node, KernelNode)
        }
        self._loaded: Final = {position: _code(node) for position, node in launches.items()}
        self._reports: Final = {
            position: OwnReport(device, loaded)
            for position, node in launches.items()
            if isinstance(loaded := node.dispatch.loaded, Reporting)
        }
        self._runner: Final = runner
        offsets = np.cumsum([0, *(loaded.block_bytes for loaded in self._loaded.values())]).tolist()
        self._offsets: Final[dict[int, int]] = dict(zip(launches, offsets, strict=False))
        self._blocks: Final = np.zeros(offsets[-1] // SLOT, np.uint64)
        self._words: Final = memoryview(self._blocks)  # type: ignore[arg-type]  # NumPy has buffers
        self._bytes: Final = self._words.cast("B")
        self._rows: Final = np.zeros((len(nodes), replay.ROW), np.uint64)
        self._order: Final[list[int]] = []  # the nodes in the order of their rows
        self._as_they_are: Final[set[int]] = set()  # nodes that are run as they were launched
        self._places: Final[dict[int, _Places]] = {}  # of parameters, by which slots they are
        arenas = (loaded.arena_bytes for loaded in self._loaded.values())
        self._arena: Final = Arena(max(arenas, default=0))
        self._runs: Final = self._cut(outline(nodes))
        self._row_of: Final = {position: row for row, position in enumerate(self._order)}
        for position in launches:
            self._pack(position)

    def launch(self, repeat: int) -> None:
        """Run to completion; an assertion that fails ends it, as it ends a list of launches."""
        runs = self._runs
        if len(runs) == 1:
            runs[0](repeat)
            return
        for _ in range(repeat):
            for run in runs:
                run(1)

    def update(self, position: int, node: Node) -> None:
        """Pack a node anew."""
        super().update(position, node)
        self._pack(position)
        for places in self._places.values():
            self._write(places)

    def set_numbers(self, slots: Slots, numbers: Sequence[Any], bits: Sequence[int]) -> None:
        """Write their slots in all blocks at once."""
        places = self._places.get(id(slots))
        if places is None:
            places = self._places[id(slots)] = _Places(slots, self._word)
        places.bits = [one & MASK for one in bits]
        self._write(places)
        for position, index, component in slots if self._as_they_are else ():
            if position in self._as_they_are:
                self._dispatch(position).numbers[index] = numbers[component]  # type: ignore[index]  # a list, of its own

    def _word(self, position: int, index: int) -> int:
        """Where a number of a node stands."""
        return self._offsets[position] // SLOT + self._loaded[position].first_number + index

    def _write(self, places: _Places) -> None:
        for where, bits in zip(places.words, places.bits, strict=True):
            self._blocks[where] = bits

    def _dispatch(self, position: int) -> Dispatch:
        return _kernel(self.nodes[position]).dispatch

    def _pack(self, position: int) -> None:
        """A node's parameter block, and its row."""
        loaded, dispatch = self._loaded[position], self._dispatch(position)
        if isinstance(dispatch.groups, Indirect):
            return
        operands, numbers, report = dispatch.operands, dispatch.numbers, self._reports.get(position)
        if report is not None:
            operands, numbers = (*operands, report.operand), (*numbers, 0)
        start = self._offsets[position]
        block = loaded.pack(operands, numbers, dispatch.groups)
        self._bytes[start : start + loaded.block_bytes] = block
        row = self._row_of.get(position)
        if row is not None:
            total, _ = loaded.share(dispatch.groups)
            where = self._blocks.ctypes.data + start
            self._rows[row] = (loaded.address, where, total, report.failed if report else 0)

    def _cut(self, items: Sequence[Item]) -> list[Run]:
        """The runs of some nodes, in order."""
        runs: list[Run] = []
        small: list[int] = []

        def close() -> None:
            if small:
                runs.append(self._small(small))
                small.clear()

        for position, body in items:
            node = self.nodes[position]
            if isinstance(node, ConditionalNode):
                close()
                runs.append(ConditionalRun(node, self._cut(body)))
                continue
            groups = _kernel(node).dispatch.groups
            report = self._reports.get(position)
            if isinstance(groups, Indirect) or (report is not None and report.prints):
                close()
                runs.append(self._as_launched(position))
                continue
            total, chunk = self._loaded[position].share(groups)
            if chunk < total:
                close()
                runs.append(self._shared(position, total, chunk))
            else:
                small.append(position)
        close()
        return runs

    def _small(self, positions: Sequence[int]) -> Run:
        """Small launches: one after the other, or chains of them on several threads."""
        work = {position: self._work(position) for position in positions}
        if self._device.threads > 1 and sum(work.values()) >= WORTH_THREADS:
            nodes = [self.nodes[position] for position in positions]
            found = [[positions[one] for one in chain] for chain in chains(nodes)]
            longest = max(sum(work[position] for position in chain) for chain in found)
            if self._are_fixed(positions) and longest <= MOST_OF_ONE * sum(work.values()):
                return self._parallel(found)
        return self._native(positions, sum(work.values()))

    def _are_fixed(self, positions: Sequence[int]) -> bool:
        """Whether launches have the same arrays for ever, and none can fail and end the others."""
        nodes = [self.nodes[position] for position in positions]
        arrays = [array for node in nodes for array, _ in node.uses()]
        return not any(one in self._reports for one in positions) and not any(
            array.param is not None for array in arrays
        )

    def _work(self, position: int) -> int:
        groups = self._dispatch(position).groups
        assert not isinstance(groups, Indirect)
        return self._loaded[position].work(groups)

    def _native(self, positions: Sequence[int], work: int) -> Run:
        """One after the other, in this thread."""
        first, count = len(self._order), len(positions)
        self._order.extend(positions)
        rows = self._rows[first:].ctypes.data
        reports = {
            row: self._reports[position]
            for row, position in enumerate(positions)
            if position in self._reports
        }
        return NativeRun(self._runner, rows, count, self._arena.address, reports, work)

    def _parallel(self, found: Sequence[Sequence[int]]) -> Run:
        """Chains that do not depend on each other, on all threads."""
        starts = np.cumsum([len(self._order), *map(len, found)])
        self._order.extend(position for chain in found for position in chain)
        params = np.array([self._rows.ctypes.data, starts.ctypes.data], np.uint64)
        pool, address, arena = self._device.pool, self._runner.chains, self._arena.size

        def run(repeat: int) -> None:
            for _ in range(repeat):
                pool.run(address, params.ctypes.data, len(starts) - 1, 1, arena)

        return run

    def _shared(self, position: int, total: int, chunk: int) -> Run:
        """A large launch, on all threads."""
        loaded, pool, report = (
            self._loaded[position],
            self._device.pool,
            self._reports.get(position),
        )
        block = self._blocks.ctypes.data + self._offsets[position]

        def run(repeat: int) -> None:
            for _ in range(repeat):
                pool.run(loaded.address, block, total, chunk, loaded.arena_bytes)
                if report is not None:
                    report.tell()

        return run

    def _as_launched(self, position: int) -> Run:
        """A launch whose grid stands in memory, or that prints: as if it were no graph's."""
        nodes = self.nodes
        self._as_they_are.add(position)

        def run(repeat: int) -> None:
            for _ in range(repeat):
                _kernel(nodes[position]).run()

        return run


@final
class _Places:
    """Where the numbers of a parameter stand, by component, and what they are."""

    def __init__(self, slots: Slots, word: Callable[[int, int], int]) -> None:
        count = 1 + max(component for _, _, component in slots)
        self.slots: Final = slots  # which nobody else is, so
        self.bits: Sequence[int] = ()
        self.words: Final = [
            np.array([word(at, index) for at, index, component in slots if component == one], int)
            for one in range(count)
        ]


def _kernel(node: Node) -> KernelNode:
    assert isinstance(node, KernelNode)  # copies on the host are kernels
    return node


def _code(node: KernelNode) -> CpuKernel:
    loaded: Any = node.dispatch.loaded
    if isinstance(loaded, Reporting):
        loaded = loaded.code
    assert isinstance(loaded, CpuKernel)
    return loaded
