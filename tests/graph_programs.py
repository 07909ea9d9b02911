"""Generated launch sequences: run eagerly and replayed from a graph, they give the same bytes.

``python -m tests.graph_programs --sequences 1000`` runs a great number of them once, on every
column that is asked for, and prints those that disagree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.graphs.graph import Graph

__all__ = ["disagreement"]

ARRAYS: Final = 4
DEPTH: Final = 3  # of bodies in bodies
Rng = np.random.Generator
Step = Callable[["State"], None]


@kj.jit
def mix(x: kj.Array1[kj.i32], y: kj.Array1[kj.i32], k: kj.i32) -> None:
    i = kj.global_id(0)
    if i < y.size and i < x.size:
        y[i] = y[i] * 3 + x[i] ^ k


@kj.jit
def scale(x: kj.Array1[kj.f32], a: kj.f32, b: kj.f32) -> None:
    i = kj.global_id(0)
    if i < x.size:
        x[i] = x[i] * a + b


@kj.jit(workgroup=16)
def count(x: kj.Array1[kj.i32], k: kj.i32) -> None:
    kj.atomic_add(x, kj.global_id(0) % x.size, k)


@kj.jit(workgroup=32)
def reverse(x: kj.Array1[kj.i32]) -> None:
    """Each workgroup turns its elements round, by way of shared memory."""
    tile = kj.shared(kj.i32, 32)
    i, local = kj.global_id(0), kj.local_id(0)
    tile[local] = x[i]
    kj.barrier()
    first = i - local
    last = kj.min(first + 32, x.size)
    if i < x.size:
        x[i] = tile[last - first - 1 - local]


@kj.jit
def transpose(x: kj.Array2[kj.f32], y: kj.Array2[kj.f32]) -> None:
    j, i = kj.index(2)
    if j < x.shape[0] and i < x.shape[1]:
        y[j, i] = x[i, j] + y[j, i]


@kj.jit
def plan(counts: kj.Array1[kj.u32], x: kj.Array1[kj.i32]) -> None:
    counts[0], counts[1], counts[2] = kj.u32(x[0] & 3), 1, 1


@kj.jit
def put(x: kj.Array1[kj.i32], at: kj.i32, value: kj.i32) -> None:
    x[at] = value


@kj.jit
def lower(x: kj.Array1[kj.i32], at: kj.i32) -> None:
    x[at] -= 1


@kj.jit
def look(flags: kj.Array1[kj.i32], at: kj.i32, x: kj.Array1[kj.i32]) -> None:
    flags[at] = x[0] & 1


class State:
    """The arrays that a sequence works on, the same in every run of it."""

    def __init__(self, device: Device, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 200))
        self.device = device
        self.ints = [device.array(_ints(rng, size)) for _ in range(ARRAYS)]
        self.floats = [device.array(rng.random(size, np.float32)) for _ in range(ARRAYS)]
        side = int(rng.integers(1, 9))
        self.squares = [device.array(rng.random((side, side), np.float32)) for _ in range(2)]
        self.counts = device.zeros(3, kj.u32)
        self.flags = device.zeros(DEPTH, kj.i32)  # of loops and branches, by their depth
        self.numbers: list[Any] = []  # of the launch, or the graph's parameters
        self.graph: Graph | None = None  # that is captured
        self.size = size

    def turns(self, depth: int, limit: int) -> Iterator[Any]:
        """Blocks: the body of a loop of the graph's, or each turn of one of the host's."""
        flag = self.flags[depth : depth + 1]
        if self.graph is not None:
            if limit == 1:
                yield self.graph.if_(flag)
            else:
                yield self.graph.while_(flag, limit=limit)
            return
        for _ in range(limit):
            if not flag.numpy()[0]:
                return
            yield nullcontext()

    def bytes(self) -> list[bytes]:
        """Everything that a sequence may have changed."""
        arrays = (*self.ints, *self.floats, *self.squares, self.counts, self.flags)
        return [array.numpy().tobytes() for array in arrays]


def _ints(rng: Rng, size: int) -> np.ndarray[Any, Any]:
    return rng.integers(-(1 << 30), 1 << 30, size).astype(np.int32)


def _part(rng: Rng, size: int) -> slice:
    """A range of an array, strided or backwards too."""
    start, stop = sorted(int(one) for one in rng.integers(0, size + 1, 2))
    step = int(rng.choice([1, 1, 2, 3]))
    forwards = slice(start, stop, step)
    if rng.random() < 0.2:
        places = range(size)[forwards]
        if places and places[0] > 0:
            return slice(places[-1], places[0] - 1, -step)
    return forwards


def _step(rng: Rng, size: int, numbers: int) -> Step:
    """One thing that a sequence does."""
    a, b = (int(one) for one in rng.choice(ARRAYS, 2, replace=False))
    k, n = int(rng.integers(-9, 9)), int(rng.integers(0, size + 40))
    at, here, there = int(rng.integers(numbers)), _part(rng, size), _part(rng, size)
    both = min(len(range(size)[here]), len(range(size)[there]))

    def whole_mix(s: State) -> None:
        mix[n](s.ints[a], s.ints[b], k)

    def part_mix(s: State) -> None:
        mix[n](s.ints[a][here], s.ints[b][there], s.numbers[at][0])

    def same_mix(s: State) -> None:
        mix[n](s.ints[a], s.ints[a], k)

    def scaled(s: State) -> None:
        scale[n](s.floats[a][here], s.numbers[at][1], 0.25)

    def counted(s: State) -> None:
        count[n](s.ints[a], s.numbers[at][0])

    def reversed_(s: State) -> None:
        reverse[size](s.ints[a])

    def copied(s: State) -> None:
        source, target = s.ints[a if k % 2 else b][here], s.ints[a][there]
        s.device.copy(source[:both], target[:both])

    def assigned(s: State) -> None:
        s.floats[a][there][:both] = s.floats[b][here][:both]

    def filled(s: State) -> None:
        s.ints[a][here].fill(k)

    def one_set(s: State) -> None:
        s.floats[a][:1] = k / 4

    def transposed(s: State) -> None:
        x, y = s.squares
        transpose[kj.over(y)](x, y)

    def indirect(s: State) -> None:
        plan[1](s.counts, s.ints[b])
        count[kj.Indirect(s.counts)](s.ints[a], 1)

    def encoded(s: State) -> None:
        encoder = s.device.encoder()
        with encoder.compute_pass("pass") as p:
            p.dispatch(mix[n], s.ints[a], s.ints[b], 5)
        encoder.copy(s.floats[a], s.floats[b])
        s.device.submit(encoder)

    kinds: list[Step] = [
        *(whole_mix, part_mix, same_mix, scaled, counted, reversed_, copied, assigned, filled),
        *(one_set, transposed, indirect, encoded),
    ]
    return kinds[int(rng.integers(len(kinds)))]


def _block(rng: Rng, size: int, numbers: int, depth: int) -> Step:
    """Steps in a loop or a branch."""
    steps = _steps(rng, size, numbers, depth + 1)
    a, count, limit = int(rng.integers(ARRAYS)), int(rng.integers(4)), int(rng.integers(1, 6))
    at = int(rng.integers(numbers)) if rng.random() < 0.3 else -1

    def looped(s: State) -> None:
        put[1](s.flags, depth, count)
        for turn in s.turns(depth, limit):
            with turn:
                for step in steps:
                    step(s)
                lower[1](s.flags, depth)

    def branched(s: State) -> None:
        if at < 0:
            look[1](s.flags, depth, s.ints[a])
        else:
            put[1](s.flags, depth, s.numbers[at][0])
        for turn in s.turns(depth, 1):
            with turn:
                for step in steps:
                    step(s)

    return branched if rng.random() < 0.4 else looped


def _steps(rng: Rng, size: int, numbers: int, depth: int = 0) -> list[Step]:
    """What a sequence does, or a body in one."""
    found = []
    for _ in range(rng.integers(1, max(3, 12 >> depth))):
        if depth < DEPTH and rng.random() < 0.2:
            found.append(_block(rng, size, numbers, depth))
        else:
            found.append(_step(rng, size, numbers))
    return found


def disagreement(device: Device, seed: int, *, parametrised: bool = True) -> str | None:
    """What is wrong with a sequence; None if nothing is.

    Args:
        parametrised: some of its numbers are the graph's parameters.
    """
    rng = np.random.default_rng(seed)
    eager, replayed = State(device, seed), State(device, seed)
    numbers = int(rng.integers(1, 4))
    steps = _steps(rng, eager.size, numbers)
    defaults = [(n, 0.5) for n in range(numbers)]
    with device.capture() as graph:
        replayed.graph = graph
        replayed.numbers = [
            (graph.param(f"i{n}", kj.i32, default=i), graph.param(f"f{n}", kj.f32, default=f))
            if parametrised
            else (i, f)
            for n, (i, f) in enumerate(defaults)
        ]
        for step in steps:
            step(replayed)
    if replayed.bytes() != State(device, seed).bytes():
        return "capturing ran something"
    for turn in range(3):
        given = [(int(rng.integers(-99, 99)), float(rng.random())) for _ in range(numbers)]
        if turn == 0 or not parametrised:
            given = defaults
        repeat = int(rng.integers(0, 3))
        eager.numbers = given
        for _ in range(repeat):
            for step in steps:
                step(eager)
        values: dict[str, float] = {f"i{n}": pair[0] for n, pair in enumerate(given)}
        values |= {f"f{n}": pair[1] for n, pair in enumerate(given)}
        graph.launch(repeat=repeat, **(values if turn and parametrised else {}))
        if eager.bytes() != replayed.bytes():
            names = ", ".join(step.__name__ for step in steps)
            return f"launch {turn}, repeated {repeat} times, differs: {names}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sequences", type=int, default=1000, help="how many, on each column")
    parser.add_argument("--first", type=int, default=0, help="the first sequence's number")
    parser.add_argument("--columns", default="interpreter,cpu,webgpu", help="devices")
    chosen = parser.parse_args(arguments)
    wrong = 0
    for name in chosen.columns.split(","):
        device, seen = kj.device(name), 0
        for seed in range(chosen.first, chosen.first + chosen.sequences):
            found = disagreement(device, seed)
            seen += found is not None
            if found is not None:
                print(f"{name}, sequence {seed}: {found}")
        print(f"{name}: {chosen.sequences} sequences, {seen} disagree")
        sys.stdout.flush()
        wrong += seen
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
