"""Runs PTX as khaljit writes it, thread by thread, where there is no GPU.

A thread runs until it has to wait: at a barrier for its block, at a warp operation for its warp.
Every access is checked: nothing outside of a buffer is touched. ``ptx_instructions.py`` has the
instructions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from khaljit.codegen.layout import ParameterBlock
from khaljit.codegen.program import Program
from khaljit.tracer.dtypes import bool_
from khaljit.tracer.floats import Array
from khaljit.tracer.ir import Trace
from tests.ptx_instructions import (
    HANDLERS,
    WAITS,
    WARP,
    Buffers,
    Instruction,
    MachineError,
    State,
    Thread,
    split,
)

__all__ = ["Machine", "run_program"]


class Machine:
    """A module, ready to launch. ``buffers`` holds what its parameters point to."""

    def __init__(self, text: str) -> None:
        self.buffers = Buffers()
        self._symbols: dict[str, int] = {}
        self._code: list[Instruction] = []
        self._labels: dict[str, int] = {}
        self._shared = self._local = self._params = 0
        self.kinds: dict[str, str] = {}
        head, _, body = text.partition("\n{\n")
        for line in head.splitlines():
            found = re.match(
                r"\.(?:global|const) \.align \d+ \.b(8|64) (\w+)\[\d+\] = \{(.*)\};", line
            )
            if found:
                size, numbers = int(found[1]) // 8, found[3].split(",")
                data = b"".join(int(number, 0).to_bytes(size, "little") for number in numbers)
                self._symbols[found[2]] = self.buffers.add(bytearray(data))
            found = re.match(r"\.visible \.entry \w+\(\.param \.align 8 \.b8 \w+\[(\d+)\]\)", line)
            if found:
                self._params = int(found[1])
            found = re.match(r"\.extern \.shared \.align 16 \.b8 (\w+)\[\];", line)
            if found:
                self._symbols[found[1]] = 1024
        for line in body.splitlines():
            self._line(line.strip())

    def _line(self, line: str) -> None:
        if not line or line == "}" or line.startswith((".reg ", ".loc ")):
            return
        if line.endswith(":"):
            self._labels[line[:-1]] = len(self._code)
            return
        found = re.match(r"\.(shared|local) \.align 16 \.b8 (\w+)\[(\d+)\];", line)
        if found:
            base = 1024 if found[1] == "shared" else 4096
            self._symbols[found[2]] = base
            if found[1] == "shared":
                self._shared = int(found[3])
            else:
                self._local = int(found[3])
            return
        found = re.match(r"(?:@(!?)(%p\d+) )?([\w.]+)(?: (.*))?;$", line)
        if not found:
            raise MachineError(f"what is {line!r}?")
        guard = (found[2], not found[1]) if found[2] else None
        operands = split(found[4] or "")
        self._code.append(Instruction(guard, found[3].split("."), operands, line))

    # Launching.

    def launch(
        self,
        blocks: tuple[int, int, int],
        shape: tuple[int, int, int],
        params: bytes,
        dynamic: int = 0,
    ) -> None:
        """Run all blocks, one after the other."""
        if len(params) != self._params:
            raise MachineError(f"{self._params} bytes of parameters, not {len(params)}")
        with np.errstate(all="ignore"):
            for number in range(blocks[0] * blocks[1] * blocks[2]):
                rest, x = divmod(number, blocks[0])
                z, y = divmod(rest, blocks[1])
                self._block((x, y, z), blocks, shape, params, dynamic)

    def _block(
        self,
        at: tuple[int, int, int],
        blocks: tuple[int, int, int],
        shape: tuple[int, int, int],
        params: bytes,
        dynamic: int,
    ) -> None:
        shared = Buffers()
        size = self._shared or dynamic
        if size:
            shared.add(bytearray(b"\xa5" * size), 1024)
        warps: list[list[_Running]] = []
        for number in range(shape[0] * shape[1] * shape[2]):
            place = (
                number % shape[0],
                number // shape[0] % shape[1],
                number // shape[0] // shape[1],
            )
            local = Buffers()
            if self._local:
                local.add(bytearray(b"\x5a" * self._local), 4096)
            special = {f"%ctaid.{axis}": at[k] for k, axis in enumerate("xyz")}
            special |= {f"%nctaid.{axis}": blocks[k] for k, axis in enumerate("xyz")}
            special |= {f"%tid.{axis}": place[k] for k, axis in enumerate("xyz")}
            special["%laneid"] = number % WARP
            state = State(
                {}, special, self.buffers, params, shared, local, self._symbols, number % WARP
            )
            if number % WARP == 0:
                warps.append([])
            warps[-1].append(_Running(self._thread(state)))
        _schedule(warps)

    def _thread(self, s: State) -> Thread:
        at, steps = 0, 0
        while True:
            steps += 1
            if steps > 1_000_000:
                raise MachineError("a thread does not end")
            one = self._code[at]
            at += 1
            if one.guard is not None and bool(s.registers[one.guard[0]]) is not one.guard[1]:
                continue
            head = one.name[0]
            if head == "bra":
                at = self._labels[one.operands[0]]
            elif head == "ret":
                return
            elif head in WAITS:
                yield from WAITS[head](s, one)
            else:
                handler = HANDLERS.get(head)
                if handler is None:
                    raise MachineError(f"what is {one.text!r}?")
                handler(s, one)


@dataclass
class _Running:
    """A thread with what it waits for."""

    thread: Thread
    waits: tuple[str, Any] | None = None
    ended: bool = False
    answer: Any = field(default=None)

    def go(self) -> None:
        try:
            self.waits = self.thread.send(self.answer)
        except StopIteration:
            self.ended, self.waits = True, None
        self.answer = None


def _schedule(warps: list[list[_Running]]) -> None:
    """Run a block's threads to their end."""
    everyone = [one for warp in warps for one in warp]
    while not all(one.ended for one in everyone):
        for one in everyone:
            if not one.ended and one.waits is None:
                one.go()
        moved = False
        for warp in warps:
            alive = [one for one in warp if not one.ended]
            if alive and all(one.waits is not None and one.waits[0] == "warp" for one in alive):
                _answer(warp)
                moved = True
        alive = [one for one in everyone if not one.ended]
        if alive and all(one.waits is not None and one.waits[0] == "bar" for one in alive):
            for one in alive:
                one.waits = None
            moved = True
        if alive and not moved and all(one.waits is not None for one in alive):
            raise MachineError("threads wait for one another")


def _answer(warp: list[_Running]) -> None:
    """Give each lane of a warp the others' values."""
    texts = {one.waits[1][0] for one in warp if one.waits is not None}
    if len(texts) != 1:
        raise MachineError(f"lanes of a warp wait at different operations: {texts}")
    values = {lane: one.waits[1][1] for lane, one in enumerate(warp) if one.waits is not None}
    for one in warp:
        if one.waits is not None:
            one.answer, one.waits = values, None


def run_program(
    trace: Trace,
    program: Program,
    arrays: Sequence[Array],
    scalars: Sequence[int | float | bool],
    groups: tuple[int, int, int],
    *,
    folded: bool = False,
    resident: int = 0,
) -> None:
    """Launch a program over a grid of workgroups, changing the arrays in place.

    ``trace`` is the legal one. A resident program is run by so many blocks.
    """
    machine, block = Machine(program.text), ParameterBlock.of(trace)
    data = bytearray(block.size)
    for k, (array, param) in enumerate(zip(arrays, trace.arrays, strict=True)):
        assert array.flags.c_contiguous
        piece = memoryview(array.reshape(-1).view(np.uint8).data) if array.size else bytearray()
        struct.pack_into("<q", data, block.pointers[k], machine.buffers.add(piece))
        for axis in range(param.memory.ndim):
            stride = array.strides[axis] // param.memory.element.align
            struct.pack_into("<q", data, block.shapes[k][axis], array.shape[axis])
            struct.pack_into("<q", data, block.strides[k][axis], stride)
    for offset, value, scalar in zip(block.scalars, scalars, trace.scalars, strict=True):
        dtype = scalar.dtype
        bits = trace.index_bits if dtype.bits == 0 else dtype.bits
        kind = f"i{bits // 8}" if dtype.bits == 0 else "u1" if dtype is bool_ else dtype.numpy
        raw = np.array(value).astype(kind).tobytes()
        data[offset : offset + len(raw)] = raw
    for offset, count in zip(block.groups, groups, strict=True):
        struct.pack_into("<q", data, offset, count)
    if resident:
        counts = bytearray(struct.pack("<3I", *groups))
        struct.pack_into("<3q", data, block.groups[0], machine.buffers.add(counts), -1, -1)
    seen = trace.workgroup or (1, 1, 1)
    x, y, z = (
        -(-count * size // (own * item))
        for count, size, own, item in zip(
            groups, seen, program.workgroup, program.item, strict=True
        )
    )
    blocks = (x * y * z, 1, 1) if folded else (x, y, z)
    if resident:
        blocks = (resident, 1, 1)
    machine.launch(blocks, program.workgroup, bytes(data), program.shared)
