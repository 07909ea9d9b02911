"""Loops and branches in the driver's graphs: nodes whose bodies are graphs of their own.

A node runs its body while the value of a handle is not zero. The value is set on the device, by a
kernel of one thread before the node and, in a loop, as the last one of the body: it reads the flag
and counts the turns. What it calls is the driver's, so it is PTX for the driver's own compiler,
whatever else there is to make machine code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from khaljit.arrays import Array
from khaljit.backends.cuda import driver
from khaljit.backends.cuda.kernel import Block, Module, chosen_stream
from khaljit.graphs.capture import apart
from khaljit.graphs.nodes import ConditionalNode
from khaljit.tracer.dtypes import u64

if TYPE_CHECKING:
    from khaljit.backends.cuda.device import CudaDevice

__all__ = ["SETTER", "Condition", "has_conditionals"]

FIRST: Final = 12040  # the driver that has loops in graphs

# Its parameters: handle, where the flag is, where the turns are counted, the most turns, whether
# the loop begins here, and the bytes of the flag, 1 or 4.
SETTER: Final = """\
.version 6.3
.target sm_75
.address_size 64

.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);

.visible .entry decide(.param .align 8 .b8 params[40])
{
    .reg .pred %p<4>;
    .reg .b32 %r<3>;
    .reg .b64 %d<5>;
    .param .b64 handle;
    .param .b32 value;
    ld.param.b64 %d0, [params+0];
    ld.param.b64 %d1, [params+8];
    ld.param.b64 %d2, [params+16];
    ld.param.b64 %d3, [params+24];
    ld.param.b32 %r0, [params+32];
    ld.param.b32 %r1, [params+36];
    mov.b64 %d4, 0;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra COUNTED;
    ld.global.b64 %d4, [%d2];
    add.s64 %d4, %d4, 1;
COUNTED:
    st.global.b64 [%d2], %d4;
    setp.eq.u32 %p1, %r1, 1;
    @%p1 bra BYTE;
    ld.global.b32 %r2, [%d1];
    bra DECIDE;
BYTE:
    ld.global.u8 %r2, [%d1];
DECIDE:
    setp.ne.u32 %p2, %r2, 0;
    setp.lt.u64 %p3, %d4, %d3;
    and.pred %p2, %p2, %p3;
    selp.b32 %r2, 1, 0, %p2;
    st.param.b64 [handle], %d0;
    st.param.b32 [value], %r2;
    call.uni cudaGraphSetConditional, (handle, value);
    ret;
}
"""
_ENTRY: Final = "decide"
_PARAMETERS: Final = struct.Struct("<QQQQII")
_ONE: Final = (1, 1, 1)


def has_conditionals() -> bool:
    """Whether the driver has such nodes."""
    return int(driver.call("cuDriverGetVersion")) >= FIRST


@final
class Condition:
    """Whether a body runs, and how often still.

    Args:
        node: the loop or branch.
    """

    def __init__(self, device: CudaDevice, node: ConditionalNode) -> None:
        self._device: Final = device
        self.node: Final = node
        with apart(device):
            if device.setter is None:
                device.setter = Module(device, SETTER.encode(), _ENTRY, "of a graph's condition")
            self._setter: Final[Module] = device.setter
            self._turns: Final[Array[Any]] = device.empty(1, u64)
        self._handle: Any = None

    def begin(self, graph: Any) -> None:
        """A handle for a graph; its value is set where the stream is now."""
        context = self._device.context.handle
        self._handle = self._call("cuGraphConditionalHandleCreate", graph, context, 0, 0)
        self._set(is_first=True)

    def add_node(self, graph: Any, before: Sequence[Any], edges: Sequence[Any]) -> tuple[Any, Any]:
        """The node behind others, and the graph that is its body."""
        library = driver.library()
        kinds = library.CUgraphConditionalNodeType
        params = library.CUgraphNodeParams()
        params.type = library.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = self._handle
        params.conditional.type = (
            kinds.CU_GRAPH_COND_TYPE_WHILE if self.repeats else kinds.CU_GRAPH_COND_TYPE_IF
        )
        params.conditional.size = 1
        params.conditional.ctx = self._device.context.handle
        node = self._call("cuGraphAddNode", graph, before, edges, len(before), params)
        return node, params.conditional.phGraph_out[0]

    def end(self) -> None:
        """The last thing in the body of a loop: whether there is another turn."""
        if self.repeats:
            self._set(is_first=False)

    @property
    def repeats(self) -> bool:
        """Whether it is a loop."""
        return self.node.limit > 1

    def _set(self, *, is_first: bool) -> None:
        """Enqueue what sets the value."""
        flag, turns = self.node.flag, self._turns
        block = Block(_PARAMETERS.size)
        places = int(self._handle), flag.address, turns.address
        _PARAMETERS.pack_into(block.data, 0, *places, self.node.limit, is_first, flag.nbytes)
        stream = chosen_stream(self._device, (flag.buffer, turns.buffer))
        self._setter.run(_ONE, _ONE, 0, stream, block.address)

    def _call(self, function: str, *args: Any) -> Any:
        return self._device.call(function, *args, what="capturing a loop or branch of a graph")
